"""Launch files, each executed with train.py: under torchrun, Ray, Slurm where it is installed (else
with stand-ins for its programs), and the variables of the JobSet. Slurm's options and the JobSet's
fields are checked as well."""

import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import psutil
import pytest
import yaml
from ports import free_port

from playground.lab.hosts import Host, laboratory
from playground.lab.one_host import torchrun
from playground.lab.rehearsal import SMALL

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "code/scripts/launch"


# --- torchrun, on two hosts, by the file that the reader starts


PATIENCE = 200  # s; 50 beside other work on two cores, and a slow machine is not a failure
FIRST_LINE = "{} ranks · gloo · no GPU found, so on CPUs"  # by the script, before it trains
TRAIN = str(ROOT / "code/scripts/train.py")


def losses_of(run: Path) -> dict[int, float]:
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("names", ["unknown", "as on Debian"])
def test_the_torchrun_file_runs_a_script_on_two_hosts(
    tokens: str, tmp_path: Path, names: str
) -> None:
    with laboratory(2) as lab:
        given = {"HOSTS": "2", "FIRST": lab.hosts[0].address, "RANKS": "2"}
        given["PYTHON"] = sys.executable
        if names == "as on Debian":
            given["FIRST"] = lab.hosts[0].name
            for host, other in permutations(lab.hosts):
                own = tmp_path / f"hosts{host.number}"
                known = ["127.0.0.1 localhost", f"127.0.1.1 {host.name}"]
                own.write_text("\n".join([*known, f"{other.address} {other.name}", ""]))
                host.run("mount", "--bind", str(own), "/etc/hosts")
                host.run("ip", "route", "add", "default", "dev", "eth0")
        words = [TRAIN, tokens, str(tmp_path), *SMALL, "--steps=10"]
        script = [str(ENGINES / "torchrun.sh"), *words]
        processes = [host.popen(script, given, stdout=subprocess.PIPE) for host in lab.hosts]
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
    (spoken,) = filter(None, said)
    assert spoken.startswith(FIRST_LINE.format(4)), "only rank 0 speaks"
    assert (tmp_path / "latest").read_text() == "step-00000010"


def test_without_its_settings_the_torchrun_file_says_which() -> None:
    clean = {"PATH": os.environ["PATH"]}
    command = [ENGINES / "torchrun.sh"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HOSTS: how many hosts" in done.stderr


@pytest.mark.slow
def test_a_second_job_on_the_same_port_ends_with_the_first(tmp_path: Path) -> None:
    """As the table of *Starting jobs* says: it has joined the store of the first."""
    script = tmp_path / "waits.py"
    lines = ["import sys, time", "from pathlib import Path", "began, end = map(Path, sys.argv[1:])"]
    lines += ["began.touch()", "while not end.exists():", "    time.sleep(0.1)"]
    script.write_text("\n".join(lines))
    meet = f"--rdzv-endpoint=localhost:{free_port()}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", meet]
    jobs = []
    try:
        for name in ("first", "second"):
            began = tmp_path / f"{name}-began"
            words = [f"--rdzv-id={name}", str(script), str(began), str(tmp_path / f"{name}-end")]
            jobs.append(subprocess.Popen([*torchrun, *words], stderr=subprocess.PIPE, text=True))
            while not began.exists():
                assert jobs[-1].poll() is None, jobs[-1].communicate()[1]
                time.sleep(0.1)
        (tmp_path / "first-end").touch()
        said = [job.communicate(timeout=PATIENCE)[1] for job in jobs]
    finally:
        for job in jobs:
            job.terminate()
    assert [job.returncode for job in jobs] == [0, 1], said
    assert "RendezvousConnectionError" in said[1]


# --- Ray, on a cluster of two hosts


RAYS_PATIENCE = 400  # s; a dozen processes import Ray or PyTorch, each alone in 3 s
TOO_SLOW = "The current node timed out during startup"  # Ray waits 30 s: no variable changes that


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_ray_trains_on_two_hosts_and_goes_on_after_a_death(tokens: str, tmp_path: Path) -> None:
    words = [*SMALL, "--steps=120", "--log-every=1"]
    script, given = "code/scripts/train.py", [tokens, str(tmp_path / "once"), *words]
    losses = torchrun(script, *given, ranks=2, timeout=RAYS_PATIENCE)[0]
    expected = dict(enumerate(losses, start=1))
    ray, mark = str(Path(sys.executable).with_name("ray")), uuid.uuid4().hex
    env = {"PYTHONPATH": str(ROOT / "code"), "RAY_TRAIN_V2_ENABLED": "1", "MARK": mark}
    env |= {"GLOO_SOCKET_IFNAME": "eth0"}  # these hosts do not know each other by name
    env |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200"}  # 60 is little for two busy cores,
    env |= {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}  # and each process that Ray starts is work
    # Else a token that any `ray.init` has left in the home folder is asked for, by the head alone.
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}

    def finish(host: Host, *words: str) -> tuple[int, str]:
        process = host.popen(words, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate(timeout=RAYS_PATIENCE)[0]
        return process.returncode, said

    def start(host: Host, *options: str) -> None:
        """Where two agents that must import Python take over 30 s, they are faster next time."""
        small = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
        for _ in range(3):
            own = f"--node-ip-address={host.address}"
            status, said = finish(host, ray, "start", own, *options, *small)
            if TOO_SLOW not in said:
                break
            finish(host, ray, "stop", "--force")
        assert status == 0, said

    def kill_one_after(step: int) -> None:
        """A worker of the second host, which has the mark of this test in its environment."""
        log = tmp_path / "run/log.jsonl"
        while not log.exists() or max(losses_of(tmp_path / "run"), default=0) < step:
            time.sleep(0.01)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("MARK") == mark
                if ours and "RayTrainWorker" in process.name() + " ".join(process.cmdline()):
                    process.kill()
                    return

    with tempfile.TemporaryDirectory() as short, laboratory(2) as lab:  # sockets need short names
        head, other = lab.hosts
        without = "--include-dashboard=false"
        start(head, "--head", "--port=6379", f"--temp-dir={short}", without)
        start(other, f"--address={head.address}:6379")
        env["RAY_ADDRESS"] = f"{head.address}:6379"
        killer = threading.Thread(target=kill_one_after, args=(20,), daemon=True)
        killer.start()
        job = [sys.executable, str(ENGINES / "ray_train.py"), "--workers", "2"]
        status, said = finish(head, *job, tokens, str(tmp_path / "run"), *words)
        assert status == 0, said
    assert not killer.is_alive()
    assert FIRST_LINE.format(2) in said
    assert {"10.77.0.1", "10.77.0.2"} <= set(re.findall(r"ip=(10[.\d]+)", said)), "on both hosts"
    assert "continues after step " in said, "the accident took place"
    assert losses_of(tmp_path / "run") == expected, "the curve, to the bit"


def test_ray_takes_gpus_for_all_workers_or_for_none() -> None:
    pytest.importorskip("ray.train.torch")
    a_gpu_each = runpy.run_path(str(ENGINES / "ray_train.py"))["a_gpu_each"]
    assert a_gpu_each(4, {"CPU": 8, "GPU": 4})
    assert not a_gpu_each(4, {"CPU": 8})
    with pytest.raises(ValueError, match=r"workers=4: this cluster has GPUs for 3 of them"):
        a_gpu_each(4, {"GPU": 3})


@pytest.mark.slow
def test_ray_is_refused_in_a_path_with_a_space(tmp_path: Path) -> None:
    """Without this its workers never start, and `bash: Is a directory` is all that it says."""
    pytest.importorskip("ray.train.torch")
    (spaced := tmp_path / "my book").symlink_to(sys.prefix)
    python, script = str(spaced / "bin/python"), str(ENGINES / "ray_train.py")
    env = os.environ | {"PYTHONPATH": str(ROOT / "code")}
    command = [python, script, "data", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"Ray can't start workers from a path that contains a space: {python}\n"


# --- Kubernetes and Slurm: their files without their controllers


def pod_of_the_jobset() -> tuple[dict, dict]:
    """The JobSet's file, and in it the pod of each host."""
    job = yaml.safe_load((ENGINES / "jobset.yaml").read_text())
    (hosts,) = job["spec"]["replicatedJobs"]
    return job, hosts["template"]["spec"]["template"]["spec"]


def test_the_jobset_is_one_by_the_published_models() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job, pod = pod_of_the_jobset()
    read = models.JobsetV1alpha2JobSet.from_dict(job)
    assert json.loads(read.to_json()) == job, "no field is unknown to the schema"
    (container,) = pod["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    (hosts,) = job["spec"]["replicatedJobs"]
    several = hosts["template"]["spec"]
    assert str(several["parallelism"]) == str(several["completions"]) == env["PET_NNODES"]
    name = job["metadata"]["name"]
    assert env["PET_MASTER_ADDR"] == f"{name}-{hosts['name']}-0-0.{name}", "the first pod's name"
    assert env["PET_NPROC_PER_NODE"] == container["resources"]["limits"]["nvidia.com/gpu"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (shm,) = [volume for volume in pod["volumes"] if mounted[volume["name"]] == "/dev/shm"]
    assert shm["emptyDir"]["medium"] == "Memory"
    grace = int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert grace < pod["terminationGracePeriodSeconds"], "the save is over before the pod is"


def test_the_jobset_with_infiniband_is_one_too() -> None:
    """Its comments below the first lines are YAML for a pod with the host's network cards."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    head, start, rest = (ENGINES / "jobset.yaml").read_text().partition("apiVersion:")
    job = yaml.safe_load(start + re.sub(r"^( +)# (?=\S+: )", r"\1", rest, flags=re.M))
    assert json.loads(models.JobsetV1alpha2JobSet.from_dict(job).to_json()) == job
    (hosts,) = job["spec"]["replicatedJobs"]
    pod = hosts["template"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert (pod["spec"]["hostNetwork"], pod["spec"]["dnsPolicy"]) == (
        True,
        "ClusterFirstWithHostNet",
    )
    assert "k8s.v1.cni.cncf.io/networks" in pod["metadata"]["annotations"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    asked = [name for name in container["resources"]["limits"] if name.startswith("rdma/")]
    assert len(asked) == 1, head


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_the_jobsets_command_trains_on_two_hosts(tokens: str, tmp_path: Path) -> None:
    """Once to step 10, then to 20: when a pod fails, JobSet starts all of them again."""
    _, pod = pod_of_the_jobset()
    (container,) = pod["containers"]
    program, *rest = container["command"]
    places = {"/book": str(ROOT), "/shared/DATA": tokens, "/shared/RUN": str(tmp_path)}
    for inside, here in places.items():
        rest = [word.replace(inside, here) for word in rest]
    command = [str(Path(sys.executable).with_name(program)), *rest, *SMALL]
    env = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    with laboratory(2) as lab:
        env |= {"PET_MASTER_ADDR": lab.hosts[0].address, "PET_NPROC_PER_NODE": "1"}
        env |= {"GLOO_SOCKET_IFNAME": "eth0"}  # pods know each other by name; these hosts do not
        for steps in ("10", "20"):
            words = [*command, "--steps", steps]
            processes = [
                host.popen(words, env | {"PET_NODE_RANK": str(host.number)}, stdout=subprocess.PIPE)
                for host in lab.hosts
            ]
            said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
            assert [process.returncode for process in processes] == [0, 0]
            assert said[0].startswith(FIRST_LINE.format(2))
    assert "continues after step 10" in said[0]


# What an option of sbatch may be, by its manual page: https://slurm.schedmd.com/sbatch.html
COUNT, NAME = r"[1-9]\d*", r"[^\s/]+"
CLOCK = r"[0-5]?\d"
SBATCH = {
    "job-name": NAME,
    "nodes": rf"{COUNT}(-{COUNT})?",
    "ntasks-per-node": COUNT,
    "cpus-per-task": COUNT,
    "gpus-per-node": rf"(\w+:)?{COUNT}",
    "mem": r"\d+[KMGT]?",
    "time": rf"\d+(:{CLOCK}){{0,2}}|\d+-\d+(:{CLOCK}){{0,2}}",  # minutes, h:m:s, days-hours …
    "signal": r"(B:)?(USR1|USR2|TERM|INT|HUP)(@\d+)?",
    "requeue": "",
    "open-mode": "append|truncate",
    "output": r"([^\s%]|%[AaJjNnstux%])+",
}


def wrong_options(text: str) -> list[str]:
    """Options in this text that sbatch does not have, or whose value is not of a known form."""
    given = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --\S+", line) for line in given)
    found = re.findall(r"(?:#SBATCH|(?<!-)sbatch)((?: +--\S+(?:[ =][^-\s]\S*)?)+)", text)
    options = re.findall(r"--([\w-]+)(?:[ =]([^-\s]\S*))?", " ".join(found))
    assert options
    return [
        f"{name}={value}"
        for name, value in options
        if name not in SBATCH or not re.fullmatch(SBATCH[name], value)
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("#SBATCH --time=90", []),
        ("#SBATCH --time=1-12:30:00", []),
        ("#SBATCH --time=1:75:00", ["time=1:75:00"]),
        ("#SBATCH --time=1h", ["time=1h"]),
        ("#SBATCH --nodes=2-4", []),
        ("#SBATCH --nodes=0", ["nodes=0"]),
        ("#SBATCH --mem=64GB", ["mem=64GB"]),
        ("#SBATCH --output=%q.out", ["output=%q.out"]),
        ("#SBATCH --requeue=yes", ["requeue=yes"]),
        ("#SBATCH --signal=B:USR1@180", []),
        ("#SBATCH --signal=USR1:180", ["signal=USR1:180"]),
        ("sbatch --nodes 2 --gpus-per-nod 8 job.sh", ["gpus-per-nod=8"]),
        ("sbatch --nodes two job.sh", ["nodes=two"]),
    ],
)
def test_an_option_that_sbatch_would_refuse_is_found(line: str, wrong: list[str]) -> None:
    assert wrong_options(line) == wrong


def stand_ins(folder: Path, srun: str, scancel: str = "exit 1") -> dict[str, str]:
    """Programs of Slurm's names, and the variables of a job on two hosts that finds them."""
    for name, script in {
        "scontrol": f'echo "$@" >>{folder}/asked; echo 127.0.0.1; sleep 0.1; echo node8',
        "srun": srun,
        "scancel": scancel,
    }.items():
        program = folder / name
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": sys.executable,
            "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "11",
            "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_CPUS_PER_TASK": "4"}  # fmt: skip


def test_the_slurm_file_is_a_script_with_known_options(tmp_path: Path) -> None:
    text = (ENGINES / "slurm.sbatch").read_text()
    assert not wrong_options(text)
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:]), "sbatch reads no further"
    env = stand_ins(tmp_path, 'echo "$HOSTS $FIRST $PORT $JOB: $*"')
    command = ["bash", str(ENGINES / "slurm.sbatch"), "code/scripts/train.py"]
    said = subprocess.check_output(command, env=env, text=True)
    assert (tmp_path / "asked").read_text() == "show hostnames node[7-8]\n"
    passed = (
        "--kill-on-bad-exit=1 --cpus-per-task=4 "
        "code/scripts/launch/torchrun.sh code/scripts/train.py"
    )
    assert said == f"2 127.0.0.1 20011 11: {passed}\n"


def test_plain_sbatch_gets_gpus_and_the_file_has_a_place_for_what_is_the_clusters_own() -> None:
    text = (ENGINES / "slurm.sbatch").read_text()
    assert re.search(r"^#SBATCH --gpus-per-node=[1-9]", text, re.M)
    before, _, _ = text.partition("set -euo pipefail")  # conda's own scripts fail under it
    for own in ("module load ", "venv/bin/activate", "conda activate", "export NCCL_"):
        assert own in before
    assert "Submit it from" in before


def test_the_slurm_file_says_from_where_to_submit_it(tmp_path: Path) -> None:
    env = stand_ins(tmp_path, "echo never") | {"SLURM_SUBMIT_DIR": str(tmp_path)}
    command = ["bash", str(ENGINES / "slurm.sbatch"), "train.py"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    line = f"{tmp_path} has no executable code/scripts/launch/torchrun.sh: submit the job from"
    assert done.stderr.startswith(line)
    copy = shutil.copy(ENGINES / "torchrun.sh", tmp_path / "copy.sh")
    env |= stand_ins(tmp_path, 'echo "$*"') | {"TORCHRUN": copy, "SLURM_SUBMIT_DIR": str(tmp_path)}
    assert subprocess.check_output(command, env=env, text=True).endswith(f"{copy} train.py\n")


@pytest.mark.parametrize("preempted", [True, False])
def test_a_job_that_was_preempted_with_a_grace_time_is_queued_again(tmp_path, preempted) -> None:
    env = stand_ins(tmp_path, "exit 1")
    if preempted:
        with (tmp_path / "scontrol").open("a") as scontrol:
            scontrol.write("echo 'PreemptEligibleTime=None PreemptTime=2026-11-25T20:59:59'\n")
    done = subprocess.run(["bash", str(ENGINES / "slurm.sbatch"), "train.py"], env=env, check=False)
    assert done.returncode == 1
    _, *asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["show job 11", "requeue 11"] if preempted else ["show job 11"]


@pytest.mark.slow
def test_the_slurm_file_trains_and_saves_before_its_time_is_over(tokens: str, tmp_path) -> None:
    """A stand-in for srun starts one task for each host, both on this machine. As Slurm's own does,
    it kills them when it gets TERM itself, and scancel tells all processes, torchrun and ranks.
    The first time Slurm's signal comes in the middle; the second time nothing does."""
    port = str(free_port())
    tasks = f"""
while [[ $1 == -* ]]; do shift; done
"$@" & one=$!
"$@" & two=$!
echo $one $two >{tmp_path}/tasks
trap 'kill -KILL $one $two' TERM
wait $one && wait $two"""
    all_processes = f"""
[[ $* == "--signal=TERM 11" ]] || exit 1
read one two <{tmp_path}/tasks
kill -TERM $one $two $(pgrep -P $one,$two)"""
    env = (
        os.environ
        | stand_ins(tmp_path, tasks, all_processes)
        | {"SLURM_GPUS_ON_NODE": "1", "PORT": port}
    )
    run = tmp_path / "run"
    words = [TRAIN, tokens, str(run), *SMALL, "--steps=200", "--log-every=1"]
    command = ["bash", str(ENGINES / "slurm.sbatch"), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = subprocess.Popen(command, env=env, **pipes)
    while not (run / "log.jsonl").exists() or max(losses_of(run), default=0) < 20:
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.01)
    job.send_signal(signal.SIGUSR1)
    said = job.communicate(timeout=PATIENCE)[0]
    assert job.returncode == 0, said
    assert "run the same command again to continue" in said
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "requeue 11"
    reached = (run / "latest").read_text()
    assert reached < "step-00000200"
    said = subprocess.check_output(command, env=env, text=True, timeout=PATIENCE)
    assert said.startswith(FIRST_LINE.format(2))
    assert f"continues after step {int(reached[5:])}\n" in said
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "show hostnames node[7-8]"
    assert (run / "latest").read_text() == "step-00000200"


SLURM = """
ClusterName=book
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
{plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=node[7-8] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17007-17008] CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CLUSTER = """
set -e
ip link set lo up
ip address add 10.78.0.1/32 dev lo  # names are looked up only where there is more than 127.0.0.1
mount --bind {folder}/hosts /etc/hosts
slurmctld -D -c -f {folder}/slurm.conf >{folder}/slurmctld.log 2>&1 &
for node in node7 node8; do
  slurmd -D -N $node -f {folder}/slurm.conf -d "$(command -v slurmstepd)" >{folder}/$node.log 2>&1 &
done
export SLURM_CONF={folder}/slurm.conf
until sinfo --noheader | grep -q "2 *idle"; do sleep 0.2; done
until_log_has() {{ until grep -qs "$1" {folder}/run/log.jsonl; do sleep 0.1; done; }}
job=$(sbatch --parsable --output={folder}/said "$@")
until_log_has '"step": 20,'
scancel --signal=USR1 --batch $job  # as Slurm does itself when the time is nearly over
until squeue --noheader --states=PENDING | grep -q .; do sleep 0.2; done
cp {folder}/run/latest {folder}/reached
scontrol update JobId=$job StartTime=now  # it would wait for two minutes
until_log_has '"step": 200,'
until scontrol show job $job | grep -q JobState=COMPLETED; do sleep 0.2; done
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ["slurmctld", "slurmd", "sbatch", "unshare"])),
    reason="no Slurm here, or no rights to start it: apt-get install slurmctld slurmd slurm-client",
)
def test_slurm_itself_queues_the_job_again_and_it_goes_on(tokens: str, tmp_path: Path) -> None:
    """Its controller and two hosts in namespaces of their own, all on this machine."""
    for name in ("state", "node7", "node8"):
        (tmp_path / name).mkdir()
    root = Path(shutil.which("slurmctld") or "").resolve().parents[1]
    found = [*root.glob("lib/*/slurm-wlm/auth_none.so")]  # Debian's, wherever it was unpacked
    given = {"folder": tmp_path, "host": socket.gethostname()}
    given["plugins"] = f"PluginDir={found[0].parent}" if found else ""
    (tmp_path / "slurm.conf").write_text(SLURM.format(**given))
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost node7 node8 {given['host']}\n")
    apart = ["unshare", "-mnpf", "--kill-child", "--mount-proc", "bash", "-c"]
    without_gpus = tmp_path / "slurm.sbatch"  # these hosts have none
    text = (ENGINES / "slurm.sbatch").read_text()
    without_gpus.write_text(re.sub(r"#SBATCH --gpus-per-node=.*\n", "", text))
    job = [without_gpus, TRAIN, tokens, tmp_path / "run", *SMALL]
    words = [*apart, CLUSTER.format(**given), "cluster", *map(str, job)]
    words += ["--steps=200", "--log-every=1"]
    env = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, env=env, cwd=ROOT, check=True, timeout=PATIENCE)
    said, reached = (tmp_path / "said").read_text(), (tmp_path / "reached").read_text()
    assert int(reached[5:]) < 200
    line = f"stopped by a signal after saving step {int(reached[5:])}: "
    line += "run the same command again to continue\n"
    assert said.count(line) == 1
    assert f"continues after step {int(reached[5:])}\n" in said
    assert (tmp_path / "run/latest").read_text() == "step-00000200"
    assert losses_of(tmp_path / "run").keys() == {*range(1, 201)}
