"""Laboratory of hosts: one Linux machine simulates several, with links as slow as you like.

    with laboratory(hosts=2, bandwidth="200Mbit") as lab:
        lab.torchrun(["code/distributed/hsdp.py", "--ranks", "4"], per_host=2)
        lab.hosts[1].cut()

Each host is a pair of Linux namespaces, one for its network and one for its processes. Its NIC
`eth0` is connected to a switch, which is also a namespace, so the machine's own network isn't
touched. The processes of a host end with the host's first process, which ends with ours, however
ours ends. The kernel then removes the namespaces.

It needs Linux and the programs of util-linux and iproute2. A user who isn't root becomes root in a
user namespace of the laboratory, if the system permits that. `unavailable()` returns what is
missing.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "tc")
UNSHARE = ["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
AS_ROOT, ENTER = [], []  # make a user root over new namespaces; join that user namespace
if os.name == "posix" and os.geteuid() != 0:
    AS_ROOT, ENTER = ["--user", "--map-root-user"], ["--user", "--preserve-credentials"]
UBUNTU = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
SETTINGS = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "OMP_NUM_THREADS": "1",
    # Otherwise a restarted rank may find addresses of the previous ranks: PyTorch issue 135712.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def environment() -> dict[str, str]:
    """Our environment plus the folders with `tc`, which Debian puts on root's path only."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {**os.environ, "PATH": path}


def unavailable() -> str | None:
    """Why this machine can't run a laboratory, or None if it can."""
    if sys.platform != "linux":
        return f"a laboratory of hosts needs Linux, and this is {sys.platform}"
    env = environment()
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=env["PATH"])]:
        return f"not installed: {', '.join(missing)} (packages util-linux and iproute2)"
    try_all = (
        "ip link add name s0 type bridge && ip link add name v0 type veth peer name v1 && "
        "tc qdisc add dev v0 root tbf rate 1mbit burst 64kb latency 50ms"
    )
    command = [*UNSHARE, *AS_ROOT, "sh", "-c", try_all]
    tried = subprocess.run(command, env=env, capture_output=True, text=True)
    if tried.returncode:
        way = "only root may make them"
        if UBUNTU.exists() and UBUNTU.read_text().strip() != "0":
            way += f", or everybody after `sudo sysctl kernel.{UBUNTU.name}=0`"
        return f"this system gives no hosts and links: {tried.stderr.strip()} ({way})"
    return None


class Namespace:
    """A process that holds namespaces open. Without further processes in it, it is the switch.

    The first one creates the user namespace if one is needed; the others are created `within` it.
    """

    def __init__(self, name: str, within: "Namespace | None" = None):
        self.name = name
        hold = f"hostname {name} && ip link set lo up && echo ready && exec sleep infinity"
        make = [*UNSHARE, *AS_ROOT] if within is None else [*within.enter(), *UNSHARE]
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *make, "sh", "-c", hold],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment(),
            start_new_session=True,  # we handle Ctrl+C, so it must not reach this process
        )  # fmt: skip
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != "ready\n":
            self.kill()
            raise RuntimeError(f"no namespace for {name}: see `unavailable()`")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.first = int(children.split()[0])

    def enter(self, *kinds: str) -> list[str]:
        """Prefix of a command that runs with the rights of this, in these `kinds` of namespaces."""
        if not ENTER and not kinds:
            return []
        return ["nsenter", f"--target={self.first}", *ENTER, *kinds, "--"]

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` in this namespace."""
        kinds = ["--net", "--uts", "--pid", "--mount"]
        return [*self.enter(*kinds, f"--wdns={os.getcwd()}"), *words]

    def run(self, *words: str) -> str:
        """Run a command in here and return its output. Raises RuntimeError if it fails."""
        done = subprocess.run(
            self.command(*words), env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def kill(self) -> None:
        """Kill all processes in here together; the kernel keeps running and closes connections."""
        self.holder.kill()
        self.holder.wait()
        if self.holder.stdout:
            self.holder.stdout.close()


class Host(Namespace):
    """One machine of the laboratory, connected to the switch by a virtual cable."""

    def __init__(self, number: int, switch: Namespace):
        self.number, self.switch = number, switch
        self.address, self.port = f"10.77.0.{number + 1}", f"port{number}"
        super().__init__(f"machine-{number}", switch)  # a name that doesn't resolve
        self.started: list[subprocess.Popen[str]] = []
        ends = ["name", self.port, "netns", str(switch.first), "type", "veth",
                "peer", "name", "eth0", "netns", str(self.first)]  # fmt: skip
        # In the switch's network, but with our process ids, because `ends` contains those.
        command = [*switch.enter("--net"), "ip", "link", "add", *ends]
        subprocess.run(command, env=environment(), check=True)
        switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def popen(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> "subprocess.Popen[str]":
        """Start a command on this host. The laboratory kills it on closing if it still runs."""
        whole = {**environment(), **SETTINGS, **(env or {})}
        process = subprocess.Popen(self.command(*words), env=whole, text=True, **kwargs)
        self.started.append(process)
        return process

    def limit(self, bandwidth: str | None) -> None:
        """Limit the bandwidth in both directions, such as to "100Mbit"; None removes the limit.

        Raises ValueError for a bandwidth that `tc` doesn't understand.
        """
        for where, nic in ((self, "eth0"), (self.switch, self.port)):
            with contextlib.suppress(RuntimeError):  # there was no limit to remove
                where.run("tc", "qdisc", "delete", "dev", nic, "root")
            if bandwidth is not None:
                rate = ["tbf", "rate", bandwidth, "burst", "64kb", "latency", "50ms"]
                try:
                    where.run("tc", "qdisc", "add", "dev", nic, "root", *rate)
                except RuntimeError as error:
                    raise ValueError(f"bandwidth={bandwidth!r}: {error}; try '100Mbit'") from None

    def cut(self) -> None:
        """Unplug the network cable."""
        self.switch.run("ip", "link", "set", self.port, "down")

    def mend(self) -> None:
        """Plug the cable in again."""
        self.switch.run("ip", "link", "set", self.port, "up")

    def lose_power(self) -> None:
        """Kill all processes together, as a power failure would: no connection is closed."""
        self.cut()
        self.kill()

    def processes(self) -> list[int]:
        """Process ids, as this machine counts them, of every process on this host."""
        own = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has ended
                if os.readlink(entry / "ns/pid") == own:
                    found.append(int(entry.name))
        return found

    def ranks(self) -> dict[int, int]:
        """Ranks that torchrun has started on this host: rank → process id."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for setting in Path(f"/proc/{pid}/environ").read_text().split("\0"):
                    if setting.startswith("RANK="):
                        found[int(setting.removeprefix("RANK="))] = pid
        return found

    def wire(self) -> tuple[int, int]:
        """Bytes that the NIC has sent and received so far, headers included."""
        (nic,) = json.loads(self.run("ip", "-s", "-j", "link", "show", "eth0"))
        return nic["stats64"]["tx"]["bytes"], nic["stats64"]["rx"]["bytes"]


class Laboratory:
    """Hosts on one switch, created by `laboratory`."""

    def __init__(self, hosts: int, bandwidth: str | None):
        if hosts < 1 or hosts > 100:
            raise ValueError(f"hosts={hosts}: give 1 to 100")
        if reason := unavailable():
            raise RuntimeError(reason)
        self.switch = Namespace("switch")
        self.hosts: list[Host] = []
        try:
            self.switch.run("ip", "link", "add", "switch", "type", "bridge")
            self.switch.run("ip", "link", "set", "switch", "up")
            for number in range(hosts):
                self.hosts.append(Host(number, self.switch))
            self.limit(bandwidth)
        except BaseException:
            self.close()
            raise

    def limit(self, bandwidth: str | None) -> None:
        """Limit the links of all hosts (see `Host.limit`)."""
        for host in self.hosts:
            host.limit(bandwidth)

    def start(
        self, script: Sequence[str], per_host: int | Sequence[int] = 1,
        hosts: Sequence[int] | None = None, options: Sequence[str] = (),
        rendezvous: Sequence[str] = (), env: Mapping[str, str] | None = None,
    ) -> list["subprocess.Popen[str]"]:  # fmt: skip
        """Run `torchrun` on each host with `per_host` ranks of the script; they meet on the first.

        The names of these hosts don't resolve, so torchrun is given addresses, the NIC for gloo,
        and whether this host is the first. To find that out itself, torchrun would look up its own
        name and crash. `options` are more options of torchrun, and `rendezvous` of its rendezvous.
        """
        chosen = [self.hosts[i] for i in (range(len(self.hosts)) if hosts is None else hosts)]
        ranks = [per_host] * len(chosen) if isinstance(per_host, int) else per_host
        meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={chosen[0].address}:29400"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *meet, *options]
        more = "".join(f",{setting}" for setting in rendezvous)
        env = {"GLOO_SOCKET_IFNAME": "eth0", **(env or {})}
        if not any(option.startswith("--nnodes") for option in options):
            torchrun.append(f"--nnodes={len(chosen)}")
        return [
            host.popen(
                [*torchrun, f"--local-addr={host.address}", f"--nproc-per-node={n}",
                 f"--rdzv-conf=is_host={int(host is chosen[0])}{more}",
                 "--", *script],
                env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for host, n in zip(chosen, ranks, strict=True)
        ]  # fmt: skip

    def torchrun(self, script: Sequence[str], per_host: int = 1, timeout: float = 120,
                 **more: Any) -> list[str]:  # fmt: skip
        """Run a script until it ends, and return what each host printed.

        Raises RuntimeError with the last lines if a host fails, TimeoutError after `timeout` (s).
        """
        processes, said = self.start(script, per_host, **more), []
        until = time.monotonic() + timeout
        try:
            for process in processes:
                said.append(process.communicate(timeout=max(0.1, until - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{' '.join(script)}: not done after {timeout:g} s") from None
        finally:
            for process in processes:
                process.kill()
        for host, process, text in zip(self.hosts, processes, said, strict=False):
            if process.returncode:
                raise RuntimeError(f"{host.name}: {' '.join(script)} failed:\n{text[-3000:]}")
        return said

    def close(self) -> None:
        """Switch all hosts off."""
        for host in self.hosts:
            host.kill()
        self.switch.kill()  # with its processes, which would keep the outputs below open
        for process in [process for host in self.hosts for process in host.started]:
            process.kill()
            if process.stdout is None or not process.stdout.closed:  # its output wasn't read
                process.communicate()


@contextlib.contextmanager
def laboratory(hosts: int = 2, bandwidth: str | None = None) -> Iterator[Laboratory]:
    """Hosts that exist until the block ends. Raises RuntimeError if this machine can't have any."""
    lab = Laboratory(hosts, bandwidth)
    try:
        yield lab
    finally:
        lab.close()
