"""A laboratory of hosts: several machines played by one, with links as slow as you like.

    with laboratory(hosts=2, bandwidth="200Mbit") as lab:
        lab.torchrun(["code/distributed/hsdp.py", "--ranks", "4"], per_host=2)
        lab.hosts[1].cut()

A host is a network namespace and a process namespace of Linux. Its NIC `eth0` hangs on a switch,
a namespace too: nothing of this machine's own network is touched. What runs on a host ends with its
first process, and that ends with us, however we end: then the kernel takes all away.

Needs Linux and programs of util-linux and iproute2. Who is not root is root in a user namespace of
the laboratory, where the system lets anybody make one: `unavailable()` says what is missing.
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
AS_ROOT, ENTER = [], []  # what makes a user root over its own namespaces, and what joins that
if os.name == "posix" and os.geteuid() != 0:
    AS_ROOT, ENTER = ["--user", "--map-root-user"], ["--user", "--preserve-credentials"]
UBUNTU = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
SETTINGS = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "OMP_NUM_THREADS": "1",
    # Else a restarted rank can find the addresses of the ranks before it: PyTorch's issue 135712.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def environment() -> dict[str, str]:
    """Ours, and the folders in which Debian has `tc`, but lets only root look."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {**os.environ, "PATH": path}


def unavailable() -> str | None:
    """Why there can be no laboratory here, or None."""
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
    """A process that holds namespaces open; a switch if it has no processes of its own.

    The first makes the user namespace, if there has to be one, and others are made `within` it.
    """

    def __init__(self, name: str, within: "Namespace | None" = None):
        self.name = name
        hold = f"hostname {name} && ip link set lo up && echo ready && exec sleep infinity"
        make = [*UNSHARE, *AS_ROOT] if within is None else [*within.enter(), *UNSHARE]
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *make, "sh", "-c", hold],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment(),
            start_new_session=True,  # Ctrl+C is for us to act on
        )  # fmt: skip
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != "ready\n":
            self.kill()
            raise RuntimeError(f"no namespace for {name}: see `unavailable()`")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        self.first = int(children.split()[0])

    def enter(self, *kinds: str) -> list[str]:
        """What to put before a command that needs the rights of this, and is in these `kinds`."""
        if not ENTER and not kinds:
            return []
        return ["nsenter", f"--target={self.first}", *ENTER, *kinds, "--"]

    def command(self, *words: str) -> list[str]:
        """What to start so that `words` runs in here."""
        kinds = ["--net", "--uts", "--pid", "--mount"]
        return [*self.enter(*kinds, f"--wdns={os.getcwd()}"), *words]

    def run(self, *words: str) -> str:
        """Run a command in here to its end; its output. Raises RuntimeError if it fails."""
        done = subprocess.run(
            self.command(*words), env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def kill(self) -> None:
        """Every process in here ends at once; the kernel lives on and closes their connections."""
        self.holder.kill()
        self.holder.wait()
        if self.holder.stdout:
            self.holder.stdout.close()


class Host(Namespace):
    """One machine of the laboratory."""

    def __init__(self, number: int, switch: Namespace):
        self.number, self.switch = number, switch
        self.address, self.port = f"10.77.0.{number + 1}", f"port{number}"
        super().__init__(f"machine-{number}", switch)  # a name that nobody can resolve
        self.started: list[subprocess.Popen[str]] = []
        ends = ["name", self.port, "netns", str(switch.first), "type", "veth",
                "peer", "name", "eth0", "netns", str(self.first)]  # fmt: skip
        # From the switch's network, but with our process ids: those that `ends` names.
        command = [*switch.enter("--net"), "ip", "link", "add", *ends]
        subprocess.run(command, env=environment(), check=True)
        switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def popen(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> "subprocess.Popen[str]":
        """Start a command on this host. It ends with the laboratory at the latest."""
        whole = {**environment(), **SETTINGS, **(env or {})}
        process = subprocess.Popen(self.command(*words), env=whole, text=True, **kwargs)
        self.started.append(process)
        return process

    def limit(self, bandwidth: str | None) -> None:
        """Send and receive no faster than this, such as "100Mbit"; None: as fast as it goes.

        Raises ValueError for what `tc` does not understand.
        """
        for where, nic in ((self, "eth0"), (self.switch, self.port)):
            with contextlib.suppress(RuntimeError):  # there was no limit
                where.run("tc", "qdisc", "delete", "dev", nic, "root")
            if bandwidth is not None:
                rate = ["tbf", "rate", bandwidth, "burst", "64kb", "latency", "50ms"]
                try:
                    where.run("tc", "qdisc", "add", "dev", nic, "root", *rate)
                except RuntimeError as error:
                    raise ValueError(f"bandwidth={bandwidth!r}: {error}; try '100Mbit'") from None

    def cut(self) -> None:
        """Pull the network cable out."""
        self.switch.run("ip", "link", "set", self.port, "down")

    def mend(self) -> None:
        """Put the cable back."""
        self.switch.run("ip", "link", "set", self.port, "up")

    def lose_power(self) -> None:
        """End everything at once, and tell nobody: no connection is closed."""
        self.cut()
        self.kill()

    def processes(self) -> list[int]:
        """Process ids, as this machine counts them, of all that runs on this host."""
        own = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(entry / "ns/pid") == own:
                    found.append(int(entry.name))
        return found

    def ranks(self) -> dict[int, int]:
        """The ranks that torchrun has started here: rank → process id."""
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
    """Hosts on one switch. Make it with `laboratory`."""

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
        """Limit the links of all hosts: see `Host.limit`."""
        for host in self.hosts:
            host.limit(bandwidth)

    def start(
        self, script: Sequence[str], per_host: int | Sequence[int] = 1,
        hosts: Sequence[int] | None = None, options: Sequence[str] = (),
        rendezvous: Sequence[str] = (), env: Mapping[str, str] | None = None,
    ) -> list["subprocess.Popen[str]"]:  # fmt: skip
        """`torchrun` on each host: per_host ranks of the script. They meet on the first host.

        It gets what hosts need whose names lead nowhere: addresses, gloo's NIC, and whether this is
        the first one, because torchrun would look its own name up to find out, and die of it.
        `options` are more of torchrun's, and `rendezvous` of its rendezvous.
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
        """Run a script to its end; what each host printed.

        Raises RuntimeError with the last lines when a host fails, TimeoutError when it takes long.
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
        self.switch.kill()  # with all that runs on it: it would keep the outputs below open
        for process in [process for host in self.hosts for process in host.started]:
            process.kill()
            if process.stdout is None or not process.stdout.closed:  # nobody has read it all yet
                process.communicate()


@contextlib.contextmanager
def laboratory(hosts: int = 2, bandwidth: str | None = None) -> Iterator[Laboratory]:
    """Some hosts, for as long as the block lasts. Raises RuntimeError where there can be none."""
    lab = Laboratory(hosts, bandwidth)
    try:
        yield lab
    finally:
        lab.close()
