"""The laboratory of hosts: links, limits, cables, counters; and nothing of it is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.lab import watch
from rights import lacking
from waiting import soon

from playground.lab import hosts as module
from playground.lab.hosts import Laboratory, laboratory, unavailable
from playground.server.limits import has_ended

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("hosts")
REACH = """
import socket, sys
if sys.argv[1] == "serve":
    with socket.create_server(("0.0.0.0", 7000)) as server:
        print("ready", flush=True)
        while True:
            server.accept()[0].close()
try:
    socket.create_connection((sys.argv[1], 7000), timeout=1).close()
    print("reached")
except OSError as error:
    print("not reached:", error)
"""


@pytest.fixture(scope="module")
def lab(hosts: None) -> Iterator[Laboratory]:
    with laboratory(2) as made:
        yield made


def interfaces() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def test_hosts_reach_each_other_until_the_cable_is_out(lab: Laboratory) -> None:
    one, other = lab.hosts
    server = other.popen([sys.executable, "-c", REACH, "serve"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"

    def reach() -> str:
        return one.run(sys.executable, "-c", REACH, other.address)

    assert reach() == "reached\n"
    other.cut()
    assert reach().startswith("not reached")
    other.mend()
    assert reach() == "reached\n"
    assert server.pid in other.processes() or len(other.processes()) >= 2
    assert one.run("pwd").strip() == os.getcwd()
    assert one.run("hostname").strip() == one.name == "machine-0"


TRANSFER = """
import socket, sys, time
if sys.argv[1] == "receive":
    with socket.create_server(("0.0.0.0", 7001)) as server:
        print("ready", flush=True)
        with server.accept()[0] as sender:
            got = 0
            while part := sender.recv(1 << 16):
                got += len(part)
            print(got, time.monotonic())
else:
    with socket.create_connection((sys.argv[1], 7001), timeout=30) as receiver:
        print(time.monotonic())
        receiver.sendall(bytes(1_000_000))
"""


@pytest.mark.parametrize("limited", ["the sender", "the receiver"])
def test_a_limited_link_carries_no_more_than_its_bandwidth(lab: Laboratory, limited: str) -> None:
    sender, receiver = lab.hosts
    host = sender if limited == "the sender" else receiver
    bandwidth, saved = 40e6 / 8, 64 * 1024  # bytes/s; bytes that a limiter lets pass at once
    host.limit("40Mbit")
    listening = receiver.popen([sys.executable, "-c", TRANSFER, "receive"], stdout=subprocess.PIPE)
    assert listening.stdout is not None
    assert listening.stdout.readline() == "ready\n"
    begun = float(sender.run(sys.executable, "-c", TRANSFER, receiver.address))
    got, ended = map(float, listening.communicate(timeout=30)[0].split())
    assert got == 1_000_000
    assert got <= bandwidth * (ended - begun) + 2 * saved
    host.limit(None)
    for where, nic in ((host, "eth0"), (lab.switch, host.port)):
        assert "rate" not in where.run("tc", "qdisc", "show", "dev", nic)


HOLD = """
import socket, sys
with socket.create_server(("0.0.0.0", 7002)) as server:
    print("ready", flush=True)
    with server.accept()[0] as other:
        print("here", flush=True)
        other.settimeout(0.5)
        try:
            print("closed:", other.recv(1) == b"")
        except TimeoutError:
            print("silence")
"""


@pytest.mark.parametrize(("end", "noticed"), [("kill", "closed: True"), ("lose_power", "silence")])
def test_killed_processes_close_their_connections_and_a_host_without_power_does_not(
    end: str, noticed: str
) -> None:
    with laboratory(2) as lab:
        stays, goes = lab.hosts
        holder = stays.popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        connect = f"import socket, time; s = socket.create_connection(('{stays.address}', 7002))"
        goes.popen([sys.executable, "-c", f"{connect}; time.sleep(100)"])
        assert holder.stdout.readline() == "here\n"
        getattr(goes, end)()
        assert holder.communicate(timeout=30)[0] == f"{noticed}\n"


def test_nonsense_is_named(lab: Laboratory) -> None:
    with pytest.raises(ValueError, match=r"bandwidth='fast': .*try '100Mbit'"):
        lab.limit("fast")
    lab.limit(None)
    for hosts in (0, 101):
        with pytest.raises(ValueError, match=f"hosts={hosts}: give 1 to 100"):
            Laboratory(hosts, None)
    with pytest.raises(RuntimeError, match="machine-0: false"):
        lab.hosts[0].run("false")


def test_where_there_can_be_none_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name, path: None if name == "tc" else name)
    assert unavailable() == "not installed: tc (packages util-linux and iproute2)"
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert "needs Linux, and this is darwin" in str(unavailable())
    with pytest.raises(RuntimeError, match="needs Linux"):
        Laboratory(2, None)


AS_A_USER = """
import pathlib, sys
path = sys.argv[1]
names = {"__name__": "hosts", "__file__": path}
exec(compile(pathlib.Path(path).read_text(), path, "exec"), names)
print(names["unavailable"]())
with names["laboratory"](2, "40Mbit") as lab:
    one, other = lab.hosts
    print(one.run("id", "-u").strip(), other.run("hostname").strip())
    other.run("sh", "-c", "echo 5 >/proc/sys/net/ipv4/tcp_retries2")
    other.cut()
    other.mend()
    limits = one.run("tc", "qdisc", "show", "dev", "eth0")
    print(len(other.processes()), "rate 40Mbit" in limits)
"""


def test_who_is_not_root_has_hosts_too() -> None:
    before = interfaces()
    command = ["/usr/bin/env", "python3", "-c", AS_A_USER, module.__file__]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    # Debian lets only root find what is in sbin.
    folders = [each for each in os.environ["PATH"].split(":") if not each.endswith("sbin")]
    env = os.environ | {"PATH": ":".join(folders)}
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)
    first, *rest = done.stdout.splitlines()
    if "this system gives no hosts" in first:
        lacking(first)
    assert [first, *rest] == ["None", "0 machine-1", "1 True"], done.stderr
    assert interfaces() == before


def test_on_a_runner_what_lacks_rights_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="this has to be possible: hosts"):
        lacking("hosts")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="hosts"):
        lacking("hosts")


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_however_its_owner_ends(how: signal.Signals) -> None:
    before = interfaces()
    script = (
        "from playground.lab.hosts import laboratory\\n"
        "import time\\n"
        "with laboratory(2) as lab:\\n"
        "    lab.hosts[0].popen(['sleep', '1000'])\\n"
        "    while len(lab.hosts[0].processes()) < 2: time.sleep(0.01)\\n"
        "    print(*[p for h in lab.hosts for p in h.processes()],\\n"
        "          flush=True)\\n"
        "    time.sleep(1000)\\n"
    ).replace("\\n", "\n")
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) >= 3
    assert not any(map(has_ended, pids))
    os.kill(owner.pid, how)
    owner.wait(20)
    owner.stdout.close()
    assert soon(lambda: all(map(has_ended, pids)))
    assert interfaces() == before


@pytest.mark.slow
def test_the_kernels_counters_see_what_the_formulas_say(lab: Laboratory) -> None:
    """Headers and acknowledgements come on top: less than a tenth. Nothing is missing."""
    cases = ["ring", "hierarchical", "gloo", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP"]
    seen = {row["name"]: row for row in watch(lab, cases, 2, n=300_000, times=3)}
    assert list(seen) == cases
    for name, row in seen.items():
        if row["payload"] is not None:
            assert row["payload"] <= row["wire"] < 1.1 * row["payload"], name
    assert seen["hierarchical"]["payload"] == seen["ring"]["payload"] * 2 / 3
    assert seen["HSDP"]["wire"] < seen["ZeRO-3"]["wire"] / 1.8
    assert seen["gloo"]["wire"] == pytest.approx(seen["ring"]["wire"], rel=0.1)


@pytest.mark.slow
def test_a_script_that_fails_says_so_with_its_host(lab: Laboratory) -> None:
    wrong = str(ROOT / "code/distributed/instruments/wire.py")
    with pytest.raises(RuntimeError, match=r"(?s)machine-0: .*cases=nothing: choose from"):
        lab.torchrun([wrong, "--cases", "nothing"], 1)


@pytest.mark.slow
def test_the_table_of_collectives_on_two_hosts(lab: Laboratory) -> None:
    given = ["distributed.instruments.collective_times", "--size", "4KB", "--times", "1"]
    given += ["--algorithm", "ring,hierarchical,backend"]
    first, second = lab.torchrun(given, per_host=2, options=["-m"])
    rows = [line.split() for line in first.splitlines()]
    found = [(row[1], row[-1]) for row in rows if row and row[-1] in ("ok", "WRONG")]
    assert found == [("ring", "ok"), ("hierarchical", "ok"), ("backend", "ok")]
    assert "ok" not in second.split(), "only rank 0 speaks"


DIFFER = """
import time, torch
from distributed.launching import launch

def differ(group):
    row, column = group.split(group.rank // 2), group.split(group.rank % 2)
    print(f"{row.local_size} of {row.size}, {column.local_size} of {column.size}")
    column.all_reduce(torch.ones(3))
    time.sleep(2 * (group.rank == 0))  # so that it comes last, and sees it
    column.all_reduce(torch.ones(3, dtype=torch.int32 if group.rank == 2 else torch.float32))
    group.barrier()

launch(differ)
"""


@pytest.mark.slow
def test_a_rank_of_another_host_that_differs_is_named(lab: Laboratory, tmp_path: Path) -> None:
    (script := tmp_path / "differ.py").write_text(DIFFER)
    first, second = lab.start([str(script)], per_host=2, env={"COMPARE_HOSTS": "1"})
    said = first.communicate(timeout=100)[0]
    second.communicate(timeout=100)
    assert first.returncode != 0
    for rank in (0, 1):
        assert f"[rank {rank}] 2 of 2, 1 of 2\n" in said
    assert "rank 0 calls all_reduce sum of float32[3], rank 2 calls all_reduce sum of int32" in said
