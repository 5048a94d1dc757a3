"""Launch files, each executed: under torchrun, Ray, a stand-in for srun, and the variables that
Kubeflow's controller sets. Slurm's options and the TrainJob's fields are checked as well."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from distributed.elastic import train_rank
from playground.lab.accidents import losses_in
from playground.lab.hosts import Host, laboratory

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "engines"


# --- torchrun, on two hosts, by the file that the reader starts


PATIENCE = 200  # s; 50 beside other work on two cores, and a slow machine is not a failure
FIRST_LINE = "{} ranks · gloo · no GPU found, so on CPUs"  # by the script, before it trains
FSDP = str(ROOT / "code/scripts/fsdp.py")


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_the_torchrun_file_runs_a_script_on_two_hosts(tmp_path: Path) -> None:
    with laboratory(2) as lab:
        given = {"HOSTS": "2", "FIRST": lab.hosts[0].address, "RANKS": "2"}
        given["PYTHON"] = sys.executable
        script = [str(ENGINES / "torchrun.sh"), FSDP, str(tmp_path)]
        processes = [host.popen(script, given, stdout=subprocess.PIPE) for host in lab.hosts]
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
    (spoken,) = filter(None, said)
    assert spoken.startswith(FIRST_LINE.format(4)), "only rank 0 speaks"
    assert len([*tmp_path.glob("*/.metadata")]) == 2, "a checkpoint for each epoch"


def test_without_its_settings_the_torchrun_file_says_which() -> None:
    clean = {"PATH": os.environ["PATH"]}
    command = [ENGINES / "torchrun.sh"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HOSTS: how many hosts" in done.stderr


# --- Ray, on a cluster of two hosts


RAYS_PATIENCE = 400  # s; a dozen processes import Ray or PyTorch, each alone in 3 s
TOO_SLOW = "The current node timed out during startup"  # Ray waits 30 s: no variable changes that


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_ray_trains_on_two_hosts_and_goes_on_after_a_death(tmp_path: Path, pools) -> None:
    expected = pools[2](train_rank, str(tmp_path / "once"), 3, 256, 9, 3)[0]
    ray = str(Path(sys.executable).with_name("ray"))
    env = {"PYTHONPATH": str(ROOT / "code"), "RAY_TRAIN_V2_ENABLED": "1"}
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

    with tempfile.TemporaryDirectory() as short, laboratory(2) as lab:  # sockets need short names
        head, other = lab.hosts
        without = "--include-dashboard=false"
        start(head, "--head", "--port=6379", f"--temp-dir={short}", without)
        start(other, f"--address={head.address}:6379")
        env["RAY_ADDRESS"] = f"{head.address}:6379"
        job = [sys.executable, str(ENGINES / "ray_train.py"), "--workers", "2", "--until", "9"]
        status, said = finish(head, *job, "--folder", str(tmp_path / "run"), "--die-at", "4")
        assert status == 0, said
    (first,) = [line for line in said.splitlines() if " ranks · " in line]
    assert first == FIRST_LINE.format(2)
    assert said.index(first) < said.index("step 1 on 2 ranks")
    assert "checkpoints of steps 6, 9" in said
    assert {"10.77.0.1", "10.77.0.2"} <= set(re.findall(r"ip=(10[.\d]+)", said)), "on both hosts"
    assert (tmp_path / "run/died").exists(), "the accident took place"
    assert losses_in(tmp_path / "run/step-00000009") == expected, "the curve, to the bit"


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
    command = [python, script, "--folder", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"Ray starts no workers from a path with a space in it: {python}\n"


# --- Kubernetes and Slurm: their files without their controllers


def test_the_trainjob_is_one_by_kubeflows_published_models() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = yaml.safe_load((ENGINES / "trainjob.yaml").read_text())
    read = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert json.loads(read.to_json()) == job, "no field is unknown to the schema"
    assert job["spec"]["trainer"]["numNodes"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_the_trainjobs_command_trains_where_its_controller_says() -> None:
    """The variables are those of Kubeflow Trainer's plugin for torch; the rendezvous is static."""
    trainer = yaml.safe_load((ENGINES / "trainjob.yaml").read_text())["spec"]["trainer"]
    program, *rest = [word.replace("/book", str(ROOT)) for word in trainer["command"]]
    command = [str(Path(sys.executable).with_name(program)), *rest]
    env = {item["name"]: item["value"] for item in trainer["env"]}
    with laboratory(2) as lab:
        env |= {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_PORT": "29400"}
        env |= {"PET_MASTER_ADDR": lab.hosts[0].address}
        processes = [
            host.popen(command, env | {"PET_NODE_RANK": str(host.number)}, stdout=subprocess.PIPE)
            for host in lab.hosts
        ]
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
    assert said[0].startswith(FIRST_LINE.format(2))


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
    "requeue": "",
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
        ("sbatch --nodes 2 --gpus-per-nod 8 job.sh", ["gpus-per-nod=8"]),
        ("sbatch --nodes two job.sh", ["nodes=two"]),
    ],
)
def test_an_option_that_sbatch_would_refuse_is_found(line: str, wrong: list[str]) -> None:
    assert wrong_options(line) == wrong


def stand_ins(folder: Path, srun: str) -> dict[str, str]:
    """Programs of Slurm's names, and the variables of a job on two hosts that finds them."""
    for name, script in {
        "scontrol": f'echo "$@" >>{folder}/asked; echo 127.0.0.1; sleep 0.1; echo node8',
        "srun": srun,
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
    env = stand_ins(tmp_path, 'echo "$HOSTS $FIRST $RANKS $JOB: $*"')
    command = ["bash", str(ENGINES / "slurm.sbatch"), "code/scripts/ddp.py"]
    said = subprocess.check_output(command, env=env, text=True)
    assert (tmp_path / "asked").read_text() == "show hostnames node[7-8]\n"
    passed = "--kill-on-bad-exit=1 --cpus-per-task=4 engines/torchrun.sh code/scripts/ddp.py"
    assert said == f"2 127.0.0.1 auto 11: {passed}\n"


@pytest.mark.slow
def test_the_slurm_file_trains_under_a_stand_in_for_srun(tmp_path: Path) -> None:
    """It starts one task for each host, and both on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    tasks = 'while [[ $1 == -* ]]; do shift; done; "$@" & one=$!; "$@" & wait $one && wait $!'
    env = stand_ins(tmp_path, tasks) | {"SLURM_GPUS_ON_NODE": "1", "PORT": port}
    command = ["bash", str(ENGINES / "slurm.sbatch"), "code/scripts/fsdp.py", str(tmp_path / "run")]
    said = subprocess.check_output(command, env=env, text=True, timeout=PATIENCE)
    assert said.startswith(FIRST_LINE.format(2))
    assert (tmp_path / "run/000001/.metadata").exists()
