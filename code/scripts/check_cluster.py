"""Health check for a new cluster: which ranks are there, how fast, and what is slow or broken.

    torchrun --nnodes 8 --nproc-per-node 8 ... check_cluster.py --shared DIR --json report.json
    srun --ntasks-per-node 8 python check_cluster.py          (or mpirun: no torchrun is needed)

It is one file and needs only torch. It takes minutes and never hangs: every stage has a deadline,
ranks report their progress through a store instead of the collective that may be stuck, and a rank
that doesn't report is listed as missing. Exit status: 0 all is well, 1 something is wrong, 2 the
check didn't finish. On one host, with `torchrun --max-restarts 1`, it also kills a rank to check
that it comes back.

The file, from top to bottom:

    1. Expected speed of links and GPUs  HARDWARE, busbw
    2. This process and its reports      Me, Line: a thread that tells rank 0 how far this rank is
    3. A rank that takes orders          Member: runs each stage in a thread that may get stuck
    4. The stages, in order              who, clocks, shm, matmul, storage, loader, pairs (small
                                         messages, between hosts, inside them), collectives,
                                         overlap, counters, kill
    5. Rank 0, which gives the orders    Conductor: deadlines, who is missing, the report
    6. The verdicts                      judge: from the report alone; NEXT: what to do
    7. Starting and ending               main

Part 4 shows how something is measured, and part 6 when it counts as bad.
"""

import argparse
import contextlib
import ctypes
import glob
import json
import math
import os
import queue
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

BEGAN = time.monotonic()


def place_of(env: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, ranks and local rank from torchrun, Open MPI, PMI or Slurm; without them, one rank."""
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun's, which may be fewer
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if names[0] in env and names[1] in env:
            local = env.get(names[2]) or env.get("PMI_LOCAL_RANK")  # Cray's
            local = local or env.get("SLURM_LOCALID")  # Slurm's PMI-2 names none
            return int(env[names[0]]), int(env[names[1]]), int(local or 0)
    return 0, 1, 0


def meeting_point(env: Mapping[str, str]) -> tuple[str, int, bool]:
    """Address and port of the store, and whether rank 0 has to create it (torchrun has one)."""
    alone = "127.0.0.1" if place_of(env)[1] == 1 else ""
    address = env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR") or alone
    if not address:
        raise SystemExit("check_cluster: set MASTER_ADDR to the address of rank 0's host")
    made = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    port = 20000 + int(env.get("SLURM_JOB_ID", 9500)) % 10000  # each job's own; else 29500
    return address, int(env.get("MASTER_PORT", "0" if alone else port)), not made


def announce(env: Mapping[str, str]) -> threading.Event:
    """Tell rank 0 each second, until the event is set, that this rank is still importing torch.

    It sends datagrams to the store's port, because using a store requires torch. If one of them
    has arrived, rank 0 can name the host of a rank that doesn't come.
    """
    over, (rank, *_), (address, port, _) = threading.Event(), place_of(env), meeting_point(env)
    said = json.dumps([rank, socket.gethostname()]).encode()

    def repeat() -> None:
        while not over.wait(1):
            with contextlib.suppress(OSError):
                kind, *_, there = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
                with socket.socket(kind, socket.SOCK_DGRAM) as out:
                    out.sendto(said, there)

    if rank:
        threading.Thread(target=repeat, daemon=True).start()
    return over


if __name__ == "__main__":
    imported = announce(os.environ)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if __name__ == "__main__":
    imported.set()
IMPORTED = time.monotonic() - BEGAN
FORMAT = 1  # of the JSON
KIB, MIB, GB = 2**10, 2**20, 1e9

# === 1. Expected speed of links and GPUs.


class Gpu(NamedTuple):
    """Data sheet values: dense 16-bit TFLOP/s, GB/s in one direction inside a host and out."""

    peak: float
    inside: float
    network: float


# The first name that is part of the device's name. "network" is one GPU's share of a usual host's.
HARDWARE = {
    "P100": Gpu(21.2, 80, 6.25),
    "V100": Gpu(125, 150, 6.25),
    "A100": Gpu(312, 300, 25),
    "H100 PCIe": Gpu(756, 64, 25),
    "H100": Gpu(989, 450, 50),
    "H200": Gpu(989, 450, 50),
    "B200": Gpu(2250, 900, 50),
    "MI300X": Gpu(1307, 448, 50),
    "L40S": Gpu(362, 32, 12.5),
    "RTX 4090": Gpu(165, 32, 1.25),
}


# Where no switch gives two GPUs of a host all of "inside": what they have between them.
PAIRS = {"P100": 20, "V100": 25, "MI300X": 64}


def hardware(device: str) -> Gpu | None:
    """The data sheet's values for a device, if it is known."""
    known = [n for n in HARDWARE if n in device and ("PCI" in n or "PCI" not in device)]
    return HARDWARE[known[0]] if known and "NVL" not in device else None


# nccl-tests, doc/PERFORMANCE.md: busbw = algbw × this, where algbw = S/t and S is the whole array
BUS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
}


def busbw(collective: str, size: float, seconds: float, ranks: int) -> float:
    """Bytes/s that the slowest link carried: `size` bytes, the whole array, took `seconds`."""
    return size / seconds * BUS[collective](ranks)


# === 2. This process and its reports.


@dataclass
class Me:
    """This process, as described by its launcher."""

    rank: int
    ranks: int
    local_rank: int
    host: str = field(default_factory=socket.gethostname)
    cpu: bool = False
    doing: str = "starting"

    @property
    def device(self) -> torch.device:
        there = 0 if self.cpu else torch.cuda.device_count()
        return torch.device("cuda", self.local_rank % there) if there else torch.device("cpu")

    def say(self, what: str) -> None:
        """Note this rank's progress, which its `Line` reports to rank 0."""
        self.doing = what


def who_am_i(env: Mapping[str, str]) -> Me:
    """This process, from its launcher's environment variables."""
    return Me(*place_of(env))


def hear(address: str, port: int) -> socket.socket | None:
    """Socket for announcements, only on rank 0's own address. None if it can't be bound."""
    try:
        kind, *_, here = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        ear = socket.socket(kind, socket.SOCK_DGRAM)
        ear.setblocking(False)
        ear.bind(here)
    except OSError:  # for example, an address that a different machine translates (NAT)
        return None
    return ear


def wait_for(address: str, port: int, seconds: float) -> None:
    """Wait until something listens there, or raise OSError: TCPStore's has dozens of C++ frames."""
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((address, port), timeout=5).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def open_store(address: str, port: int, patience: timedelta) -> dist.TCPStore:
    """The store that rank 0 creates; only this host can reach it if it's at 127.0.0.1.

    By default, TCPStore listens on all network cards, whatever address it's given.
    """
    listen = None
    if address == "127.0.0.1":
        own = socket.create_server((address, port))
        port, listen = own.getsockname()[1], own.detach()  # the store closes it
    return dist.TCPStore(
        address, port, None, True, patience, wait_for_workers=False, master_listen_fd=listen
    )


def connect(address: str, port: int, seconds: float) -> dist.Store:
    """A separate connection, because calls on the same store wait for each other."""
    patience = timedelta(seconds=seconds)
    store = dist.TCPStore(address, port, is_master=False, timeout=patience, wait_for_workers=False)
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"check-cluster-{again}", store)


class Line(threading.Thread):
    """Heartbeat thread: twice a second, reports progress and results, and fetches orders.

    Only this thread waits for rank 0's machine, so nothing else hangs when that machine is gone.
    """

    def __init__(self, me: Me, store: dist.Store):
        super().__init__(daemon=True)
        self.me, self.store = me, store
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.out: queue.Queue[tuple[str, str]] = queue.Queue()
        self.heard, self.beat, self.number = time.monotonic(), 0.0, 0
        self.broken: str | None = None

    def run(self) -> None:
        try:
            while True:
                self.once()
                time.sleep(0.05)
        except Exception as error:  # whatever a lost store raises
            self.broken = f"{error}".splitlines()[0]

    def once(self) -> None:
        now = time.monotonic()
        if now - self.beat > 0.5:
            self.store.set(f"beat/{self.me.rank}", json.dumps([now, self.me.doing]))
            self.beat = now
        while not self.out.empty():
            self.store.set(*self.out.get())
        if self.store.check([f"order/{self.number}"]):
            self.orders.put(json.loads(self.store.get(f"order/{self.number}")))
            self.number += 1
        self.heard = time.monotonic()

    def silent(self, patience: float) -> str | None:
        """Why rank 0 can no longer be reached, or None."""
        if self.broken:
            return self.broken
        waited = time.monotonic() - self.heard
        return f"no answer for {waited:.0f} s" if waited > patience else None


# === 3. A rank that takes orders.


class Member:
    """One rank: takes orders, and runs each in a thread that may get stuck."""

    def __init__(self, me: Me, line: Line, store: Callable[[], dist.Store], options: Any):
        self.me, self.line, self.store, self.options = me, line, store, options
        self.world: Any = None  # a process group of all ranks, once a stage has made it
        self.connection: dist.Store | None = None
        self.busy: threading.Thread | None = None

    def obey(self, order: dict[str, Any]) -> None:
        if self.busy and self.busy.is_alive():  # stuck: leave it, with its connections
            self.world = self.connection = None
        self.busy = threading.Thread(target=self.work, args=(order,), daemon=True)
        self.busy.start()

    def work(self, order: dict[str, Any]) -> None:
        key, stage = f"done/{order['number']}/{self.me.rank}", order["stage"]
        self.me.say(stage)
        try:
            if self.me.device.type == "cuda":
                torch.cuda.set_device(self.me.device)
            if self.connection is None:
                self.connection = self.store()
            found = STAGES[stage](self, **order["given"])
        except Exception as error:
            print(f"rank {self.me.rank}, {stage}: {traceback.format_exc()}", file=sys.stderr)
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
            self.world = None  # don't trust a group in which a call has failed
        self.me.say(f"{stage}: done")
        self.line.out.put((key, json.dumps(found)))

    # what stages share

    def group(self, name: str, ranks: Sequence[int], seconds: float) -> Any:
        """A process group of these ranks; only they have to call this."""
        assert self.connection is not None
        store = dist.PrefixStore(f"group/{name}", self.connection)
        mine, patience = list(ranks).index(self.me.rank), timedelta(seconds=seconds)
        if self.me.device.type == "cpu":
            return dist.ProcessGroupGloo(store, mine, len(ranks), patience)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        return dist.ProcessGroupNCCL(store, mine, len(ranks), options)

    def of_all(self) -> Any:
        if self.world is None:
            self.world = self.group("world", range(self.me.ranks), 60)
        return self.world

    def wait(self, works: Iterable[Any], seconds: float = 20) -> None:
        """Wait for these works, including on the GPU. Raises RuntimeError or TimeoutError."""
        for work in works:
            work.wait()  # on a GPU this only makes its stream wait
        if self.me.device.type == "cuda":
            event, until = torch.cuda.Event(), time.monotonic() + seconds
            event.record()
            while not event.query():
                if time.monotonic() > until:
                    raise TimeoutError(f"not done after {seconds:g} s: {self.me.doing}")

    def ones(self, size: int) -> torch.Tensor:
        """float32[⌈size/4⌉], on this rank's device."""
        return torch.ones(-(-size // 4), device=self.me.device)


# === 4. The stages, in order: what a rank does on rank 0's orders. Each returns JSON.


def words_of(*command: str, seconds: float = 10) -> list[str]:
    """The lines that a program prints; none if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


SMI = {
    "driver": "driver_version",
    "clock": "clocks.sm",
    "most": "clocks.max.sm",
    "temperature": "temperature.gpu",
    "uncorrected": "ecc.errors.uncorrected.volatile.total",
    "retired": "retired_pages.pending",
}


def gpu_health() -> dict[str, Any]:
    """What nvidia-smi and the kernel's log say about this host's GPUs; empty without GPUs."""
    asked = [f"--query-gpu={','.join(SMI.values())}", "--format=csv,noheader,nounits"]
    rows = [dict(zip(SMI, map(str.strip, line.split(",")), strict=False))
            for line in words_of("nvidia-smi", *asked)]  # fmt: skip
    if not rows:
        return {}
    spare = ["--query-remapped-rows=remapped_rows.pending,remapped_rows.failure", asked[1]]
    for row, line in zip(rows, words_of("nvidia-smi", *spare), strict=False):
        if any(said.strip() in ("Yes", "1") for said in line.split(",")):
            row["retired"] = "Yes"  # since Ampere rows are remapped, and no page is retired
    source, lines = kernel_log()
    xid = [line.strip()[-160:] for line in lines if "NVRM: Xid" in line]
    xid.sort(key=faulty_gpu)  # the last ones are kept: a flood of others must hide no fault
    return {"gpus": rows, "xid": xid[-8:], "log": source}


def kernel_log() -> tuple[str | None, list[str]]:
    """The program that could read the kernel's log, and its lines; None if none of them could.

    With kernel.dmesg_restrict=1, which some distributions set, only root may read it by dmesg.
    """
    for command in (
        ("dmesg", "--time-format", "iso"),
        ("dmesg",),
        ("journalctl", "--dmesg", "--boot", "--no-pager", "--output", "short-iso"),
    ):
        lines = [line for line in words_of(*command) if not line.startswith("-- ")]
        if lines:  # a kernel has always logged something: no lines means no permission
            return command[0], lines
    return None, []


def cores() -> tuple[list[int], float]:
    """The cores that this process may use, and the number that a container's quota allows."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    quota = math.inf
    with contextlib.suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        quota = int(most) / int(period)
    return mine, min(quota, len(mine) or os.cpu_count() or 1)


def numa_node(device: torch.device) -> int | None:
    """NUMA node of the GPU, if Linux reports it."""
    try:
        properties: Any = torch.cuda.get_device_properties(device)
        bus = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
        bus += f":{properties.pci_device_id:02x}.0"
        return int(Path(f"/sys/bus/pci/devices/{bus}/numa_node").read_text())
    except (OSError, ValueError, AttributeError):
        return None


def error_counters(root: str = "/sys/class") -> dict[str, int]:
    """Error counters of this host's network cards, InfiniBand and Ethernet."""
    found = {}
    wanted = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors")
    files = [f"{root}/infiniband/*/ports/*/counters/{name}" for name in wanted]
    files += [f"{root}/net/*/statistics/{way}_errors" for way in ("rx", "tx")]
    files += [f"{root}/net/*/carrier_down_count"]
    for pattern in files:
        for path in glob.glob(pattern):
            with contextlib.suppress(OSError, ValueError):
                found[path.removeprefix(f"{root}/")] = int(Path(path).read_text())
    return found


def who(member: Member, address: str) -> dict[str, Any]:
    """Everything about this rank that doesn't have to be measured."""
    me, device = member.me, member.me.device
    found: dict[str, Any] = {
        "rank": me.rank, "host": me.host, "local_rank": me.local_rank, "pid": os.getpid(),
        "device": "CPU", "torch": torch.__version__, "nccl": None, "import_s": round(IMPORTED, 2),
        "address": my_address(address), "numa": None,
    }  # fmt: skip
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["uuid"] = str(torch.cuda.get_device_properties(device).uuid)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["numa"] = numa_node(device)
    found["cores"], found["quota"] = cores()
    found["machine_cores"] = os.cpu_count()
    found |= limits()
    found["infiniband"] = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    found["environment"] = {
        name: value for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "GLOO_", "UCX_", "OMP_NUM", "CUDA_VISIBLE", "TORCH_NCCL"))
    }  # fmt: skip
    if me.local_rank == 0:
        found |= {"health": gpu_health(), "counters": error_counters()}
    return found


def limits() -> dict[str, int | None]:
    """How many files this process may open, and how much memory it may lock; None: no limit."""
    found: dict[str, int | None] = {}
    for name in ("NOFILE", "MEMLOCK"):
        soft = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        found[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError):
        held = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
        if int(held, 16) >> 14 & 1:  # CAP_IPC_LOCK, as pods get it: then no limit holds
            found["memlock"] = None
    return found


def my_address(other: str) -> str:
    """This host's address on the route to `other`; nothing is sent.

    If `other` is this host, by a name that only it knows, the result is that name.
    """
    try:
        family, kind, *_, there = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            own = str(probe.getsockname()[0])
            return other if own.startswith("127.") or own == "::1" else own
    except OSError:
        return socket.gethostname()


def clocks(member: Member, askers: Sequence[int]) -> dict[str, Any]:
    """Offset of this host's clock from rank 0's, and its uncertainty (s): Cristian's algorithm."""
    store, me = member.connection, member.me
    assert store is not None
    tries = 5
    if me.rank == 0:
        for asker in askers:
            for number in range(tries):
                me.say(f"clocks: waiting for rank {asker}")
                store.wait([f"ask/{asker}/{number}"], timedelta(seconds=20))
                store.set(f"tell/{asker}/{number}", repr(time.time()))
    if me.rank not in askers:
        return {}
    best = (math.inf, 0.0)
    for number in range(tries):
        before = time.monotonic()
        clock = time.time()
        store.set(f"ask/{me.rank}/{number}", "")
        store.wait([f"tell/{me.rank}/{number}"], timedelta(seconds=60))
        told = float(store.get(f"tell/{me.rank}/{number}"))
        took = time.monotonic() - before
        best = min(best, (took / 2, clock + took / 2 - told))
    return {"offset_s": best[1], "known_to_s": best[0]}


def shm(member: Member, folder: str = "/dev/shm") -> dict[str, Any]:
    """Whether this host has the shared memory that NCCL and loaders need: it allocates 32 MiB."""
    if not os.path.isdir(folder):
        return {"there": False}
    space = os.statvfs(folder)
    found: dict[str, Any] = {"there": True, "bytes": space.f_blocks * space.f_frsize,
             "free": space.f_bavail * space.f_frsize, "error": None}  # fmt: skip
    path = f"{folder}/check-cluster-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 32 * MIB)
    except OSError as error:
        found["problem"] = error.strerror
    finally:
        Path(path).unlink(missing_ok=True)
    return found


def matmul(member: Member, seconds: float) -> dict[str, Any]:
    """FLOP/s of large matmuls, on all ranks at the same time, and this rank's share of a core."""
    device, cuda = member.me.device, member.me.device.type == "cuda"
    width, dtype = (8192, torch.bfloat16) if cuda else (384, torch.float32)
    if cuda and torch.cuda.get_device_capability(device) < (8, 0):
        dtype = torch.float16
    a = torch.randn(width, width, device=device, dtype=dtype)
    for _ in range(3):
        a @ a
    member.wait([])
    at_once, done = 5 if cuda else 1, 0
    begin, cpu = time.monotonic(), time.process_time()
    while (took := time.monotonic() - begin) < seconds:
        for _ in range(at_once):
            a @ a
        member.wait([])
        done += at_once
    share = (time.process_time() - cpu) / took
    return {"flops": 2 * width**3 * done / took, "cpu_share": share}


def storage(member: Member, folder: str, part: str, writers: Sequence[int]) -> dict[str, Any]:
    """Write a file, wait for those of all other hosts, read the next one's; or delete them."""
    me, home = member.me, Path(folder)
    if me.rank not in writers:
        return {}
    size, own = 32 * MIB, home / f"of-rank-{me.rank}"
    if part == "write":
        home.mkdir(parents=True, exist_ok=True)
        data, begin = os.urandom(MIB) * (size // MIB), time.monotonic()
        with own.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return {"write": size / (time.monotonic() - begin)}
    if part == "read":
        begin, unseen = time.monotonic(), list(writers)
        while unseen and time.monotonic() - begin < 10:
            unseen = [rank for rank in unseen if not seen(home / f"of-rank-{rank}", size)]
            if unseen:
                me.say(f"storage: waiting for the file of rank {unseen[0]}")
                time.sleep(0.05)
        waited = time.monotonic() - begin
        following = writers[(list(writers).index(me.rank) + 1) % len(writers)]
        if following in unseen:
            return {"unseen": unseen, "seen_after_s": waited}
        begin = time.monotonic()
        (home / f"of-rank-{following}").read_bytes()
        return {"unseen": unseen, "seen_after_s": waited,
                "read": size / (time.monotonic() - begin)}  # fmt: skip
    own.unlink(missing_ok=True)
    return {}


def seen(path: Path, size: int) -> bool:
    """Whether a file exists and is complete."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


class Pictures(torch.utils.data.Dataset):
    """Pictures of noise, as large as ImageNet's: a loader's data, without a disk."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 224, 224), index % 251, dtype=torch.uint8)


def end_with_parent(how: signal.Signals) -> None:
    """Let Linux end this process when the one that started it ends, however that ends."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, int(how))  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it has ended meanwhile
            os.kill(os.getpid(), how)


def load_pictures(seconds: float) -> None:
    """Main of the loader's process, which may fork workers because it has no threads."""
    end_with_parent(signal.SIGKILL)
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=64, num_workers=2,
        multiprocessing_context="fork", timeout=30,
        worker_init_fn=lambda _: end_with_parent(signal.SIGKILL),
    )  # fmt: skip
    batches = iter(loader)
    next(batches)
    begin, count = time.monotonic(), 0
    while (took := time.monotonic() - begin) < seconds:
        next(batches)
        count += 1
    size = 64 * 3 * 224 * 224
    print(json.dumps({"batches": count / took, "bytes": count * size / took}), flush=True)
    os._exit(0)  # its workers end with it


def loader(member: Member, seconds: float) -> dict[str, Any]:
    """Batches/s that a DataLoader with two workers transfers through /dev/shm."""
    command = [sys.executable, __file__, "--load-pictures", str(seconds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
                             start_new_session=True)  # fmt: skip
    try:
        out, said = child.communicate(timeout=60 + seconds)
    except subprocess.TimeoutExpired:
        return {"problem": "not done after a minute"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and its workers
    if child.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        return {"problem": (lines or [f"exit status {child.returncode}"])[-1][:200]}
    return json.loads(out.splitlines()[-1])


# --- Pairs: hosts (each rank with its counterpart: a NIC's rail) and the ranks of a host.


def rounds(many: int, most: int) -> list[list[tuple[int, int]]]:
    """Pairs for each round, every member at most once per round; all pairs, if `most` allows it.

    The circle method for tournaments: one member is fixed, the others rotate around it.
    """
    seats = list(range(many)) + [-1] * (many % 2)
    found = []
    for _ in range(min(most, len(seats) - 1)):
        half = len(seats) // 2
        meet = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in meet if min(pair) >= 0])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def rounds_of_hosts(many: int) -> list[list[tuple[int, int]]]:
    """Logarithmically many rounds: enough to identify a host that is slow in all of them."""
    return rounds(many, max(3, math.ceil(math.log2(max(many, 2))) + 1)) if many > 1 else []


def meet(
    member: Member, name: str, pairs: Sequence[Sequence[int]], probe: bool = False
) -> dict[str, Any]:
    """Measure the link to this rank's partner, if it has one, with small or large messages."""
    me = member.me
    pair = next((pair for pair in pairs if me.rank in pair), None)
    if pair is None:
        return {}
    first = me.rank == pair[0]
    other = pair[1] if first else pair[0]
    found: dict[str, Any] = {"with": other}
    name = f"{name}/{pair[0]}-{pair[1]}"
    try:
        if probe:
            me.say(f"small messages over TCP, with rank {other}")
            return found | ping(member, name, first)
        me.say(f"connecting to rank {other}")
        group, there = member.group(name, pair, 10), 1 if first else 0
        if first:
            me.say(f"sending to rank {other}")
            found |= send_for(member, group, there)
        me.say(f"receiving from rank {other}")
        receive(member, group, there)
        if not first:
            me.say(f"sending to rank {other}")
            found |= send_for(member, group, there)
    except (RuntimeError, OSError) as error:  # TimeoutError is an OSError
        found["problem"] = f"{me.doing}: {error}".splitlines()[0][:200]
    return found


def send_for(member: Member, group: Any, to: int, seconds: float = 1.0) -> dict[str, float]:
    """Bytes/s in one direction, best of several, and the latency of a small message (s)."""
    device = member.me.device
    header, answer = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def carry(size: int) -> float:
        payload = member.ones(size)
        header.fill_(size)
        member.wait([group.send([header], to, 0)])
        member.wait([group.recv([answer], to, 0)])
        begin = time.monotonic()
        member.wait([group.send([payload], to, 0)])
        member.wait([group.recv([answer], to, 0)])
        return time.monotonic() - begin

    latency = min(carry(4) for _ in range(20)) / 2
    size, most = 256 * KIB, 256 * MIB if device.type == "cuda" else 32 * MIB
    took, begin = carry(size), time.monotonic()
    while took < 0.05 and size < most:
        size *= 4
        took = carry(size)
    times = [took]
    while len(times) < 4 or (len(times) < 20 and time.monotonic() - begin < seconds / 2):
        times.append(carry(size))
        if time.monotonic() - begin > seconds and len(times) > 2:
            break
    header.fill_(0)
    member.wait([group.send([header], to, 0)])
    return {"bytes_per_s": size / min(times), "size": size, "latency_s": latency}


def receive(member: Member, group: Any, frm: int) -> None:
    """The other end of `send_for`."""
    device = member.me.device
    header, answer = torch.zeros(1, device=device), torch.zeros(1, device=device)
    while True:
        member.wait([group.recv([header], frm, 0)])
        size = int(header.item())
        if size == 0:
            return
        payload = member.ones(size)
        member.wait([group.send([answer], frm, 0)])
        member.wait([group.recv([payload], frm, 0)])
        member.wait([group.send([answer], frm, 0)])


def ping(member: Member, name: str, first: bool, seconds: float = 3) -> dict[str, float]:
    """Small messages back and forth over TCP: how long they take, and how many were resent.

    Such small messages don't overflow any queue, so TCP resends only what was lost on the way.
    """
    store, count, size = member.connection, 300, 1024
    assert store is not None
    patience = timedelta(seconds=10)
    if first:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as server:
            address = my_address(meeting_point(os.environ)[0])
            store.set(f"ping/{name}", json.dumps([address, server.getsockname()[1]]))
            server.settimeout(10)
            link, _ = server.accept()
    else:
        store.wait([f"ping/{name}"], patience)
        link = socket.create_connection(json.loads(store.get(f"ping/{name}")), timeout=10)
    took = []
    with link:
        link.settimeout(10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.monotonic() + seconds
        for number in range(count):
            begin = time.monotonic()
            if first:  # the last message says so
                last = number == count - 1 or begin > until
                link.sendall(bytes([last]) * size)
                exactly(link, size)
            else:
                last = bool(exactly(link, size)[0])
                link.sendall(bytes([last]) * size)
            took.append(time.monotonic() - begin)
            if last:
                break
        again = sent_again(link)
    return {"latency_s": statistics.median(took) / 2, "worst_s": max(took),
            "sent_again": again, "messages": len(took)}  # fmt: skip


def exactly(link: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises OSError if the other end closes first."""
    parts = b""
    while len(parts) < size:
        part = link.recv(size - len(parts))
        if not part:
            raise OSError("the other end closed the connection")
        parts += part
    return parts


def sent_again(link: socket.socket) -> int:
    """How many segments this connection sent twice: tcpi_total_retrans of linux/tcp.h."""
    if not sys.platform.startswith("linux"):
        return 0
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return int(struct.unpack_from("=I", info, 100)[0])


# --- Collectives of all ranks.


class Collectives:
    """The three collectives of data parallelism, on an array of `size` bytes in total."""

    def __init__(self, member: Member, size: int):
        self.member, self.group = member, member.of_all()
        ranks = member.me.ranks
        part = -(-size // (4 * ranks))
        self.whole = member.ones(4 * part * ranks)
        self.part = member.ones(4 * part)
        self.size = 4 * part * ranks

    def start(self, name: str) -> Any:
        if name == "all-reduce":
            return self.group.allreduce([self.whole])
        if name == "all-gather":
            return self.group._allgather_base(self.whole, self.part)
        return self.group._reduce_scatter_base(self.part, self.whole)

    def seconds(self, name: str, times: int) -> float:
        """Seconds per call: the mean of `times` calls after a barrier, as in nccl-tests."""
        flag = self.member.ones(4)
        self.member.wait([self.group.allreduce([flag])])
        begin = time.monotonic()
        if self.member.me.device.type == "cpu":
            for _ in range(times):
                self.member.wait([self.start(name)])
        else:
            self.member.wait([self.start(name) for _ in range(times)])
        took = time.monotonic() - begin
        self.whole.fill_(1)  # or sums of sums grow without end
        return took / times


def collectives(member: Member, name: str, size: int) -> dict[str, Any]:
    """One collective, one size: the slowest rank's median time of five loops, and its result."""
    member.me.say(f"{name} of {size} bytes")
    on, ranks = Collectives(member, size), member.me.ranks
    first = agreed(member, on.seconds(name, 1))
    times = max(1, min(20, int(0.1 / first)))
    took = statistics.median(on.seconds(name, times) for _ in range(5 if first < 0.5 else 1))
    member.wait([on.start(name)])
    expected = 1 if name == "all-gather" else ranks
    result = on.part if name == "reduce-scatter" else on.whole
    right = bool((result == expected).all().item())
    return {"size": on.size, "seconds": agreed(member, took), "right": right}


def agreed(member: Member, seconds: float) -> float:
    """The largest of all ranks' times."""
    found = torch.tensor([seconds], device=member.me.device)
    member.wait([member.of_all().allreduce([found], dist.ReduceOp.MAX)])
    return float(found.item())


def overlap(member: Member, size: int) -> dict[str, float]:
    """Share of the shorter one that is hidden if matmuls and an all-reduce run concurrently."""
    cuda = member.me.device.type == "cuda"
    on = Collectives(member, size)
    width = 8192 if cuda else 384
    a = torch.randn(width, width, device=member.me.device)
    a = a.bfloat16() if cuda else a

    def compute(times: int) -> None:
        for _ in range(times):
            a @ a

    def timed(times: int, send: bool) -> float:
        agreed(member, 0)
        begin = time.monotonic()
        works = [on.start("all-reduce")] if send else []
        compute(times)
        member.wait(works)
        return time.monotonic() - begin

    timed(1, True)
    alone = agreed(member, statistics.median(timed(0, True) for _ in range(3)))
    one = agreed(member, statistics.median(timed(4, False) for _ in range(3))) / 4
    times = max(1, min(2000, round(alone / one)))  # as long as the all-reduce
    computed = agreed(member, statistics.median(timed(times, False) for _ in range(3)))
    both = agreed(member, statistics.median(timed(times, True) for _ in range(3)))
    hidden = (alone + computed - both) / min(alone, computed)
    return {"all_reduce_s": alone, "matmul_s": computed, "both_s": both, "hidden": hidden}


def counters_again(member: Member) -> dict[str, Any]:
    return {"counters": error_counters()} if member.me.local_rank == 0 else {}


def die(member: Member, rank: int) -> dict[str, Any]:
    """Kill and resume: this rank ends as if its host had killed it."""
    if member.me.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "who": who, "clocks": clocks, "shm": shm, "matmul": matmul, "storage": storage,
    "loader": loader, "pairs": meet, "collectives": collectives, "overlap": overlap,
    "counters": counters_again, "kill": die,
}  # fmt: skip


# === 5. Rank 0, which gives the orders and knows which ranks are missing.


class Told(BaseException):
    """A signal asked this process to end."""


class Lost(Exception):
    """Ranks are missing, and the check can't continue without them."""


class Conductor:
    """Orders one stage after the other, waits no longer than its deadline, and keeps the report."""

    def __init__(self, me: Me, store: dist.Store, options: Any):
        self.me, self.store, self.options = me, store, options
        self.began, self.number = time.monotonic(), 0
        self.beats: dict[int, tuple[str, float]] = {}
        self.report: dict[str, Any] = {
            "format": FORMAT, "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0, "finished": False, "stage": "who", "ended": None, "status": None,
            "backend": "nccl" if me.device.type == "cuda" else "gloo", "hosts": {}, "ranks": [],
            "found": {}, "missing": [], "skipped": {}, "verdicts": [],
        }  # fmt: skip
        self.state: Path | None = None  # where a restarted job finds the report
        self.ear: socket.socket | None = None
        self.importing: dict[int, str] = {}  # hosts of ranks that have announced themselves

    @property
    def found(self) -> dict[str, Any]:
        return self.report["found"]

    def save(self) -> None:
        """Write the report so far, so that it survives if this process is killed."""
        self.report["seconds"] = round(time.monotonic() - self.began, 1)
        for path in filter(None, (self.options.json and Path(self.options.json), self.state)):
            new = path.with_name(f".{path.name}.new")
            new.write_text(json.dumps(self.report, indent=1) + "\n")
            new.replace(path)

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {line}", flush=True)

    # listening

    def listen(self, ranks: Iterable[int]) -> None:
        """Note when each of them was last heard, and what it said."""
        for rank in ranks:
            if self.store.check([f"beat/{rank}"]):
                said = self.store.get(f"beat/{rank}").decode()
                if said != self.beats.get(rank, ("", 0))[0]:
                    self.beats[rank] = (said, time.monotonic())

    def hear_announcements(self) -> None:
        while self.ear is not None:
            try:
                rank, host = json.loads(self.ear.recv(1024))
                self.importing[int(rank)] = str(host)
            except BlockingIOError:
                return
            except (OSError, ValueError, TypeError):
                continue  # what a stranger may have sent

    def miss(self, rank: int, stage: str) -> dict[str, Any]:
        """What is known about a rank that didn't finish a stage."""
        coming = "importing torch" if rank in self.importing else None
        said, heard = self.beats.get(rank, (json.dumps([0, coming]), None))
        known = {host: ranks for host, ranks in self.report["hosts"].items() if rank in ranks}
        one = {
            "stage": stage,
            "rank": rank,
            "host": next(iter(known), self.importing.get(rank)),
            "doing": json.loads(said)[1],
            "silent_s": None if heard is None else round(time.monotonic() - heard, 1),
        }
        self.report["missing"].append(one)
        return one

    def join(self) -> None:
        """Wait until all ranks are there. Raises Lost with those that are missing."""
        everybody, until = range(self.me.ranks), time.monotonic() + self.options.join
        while True:
            self.hear_announcements()
            self.listen(rank for rank in everybody if rank not in self.beats)
            absent = [rank for rank in everybody if rank not in self.beats]
            if not absent:
                return
            if time.monotonic() > until:
                for rank in absent:
                    self.miss(rank, "who")
                raise Lost(f"{shown('rank', absent)} didn't join within {self.options.join:g} s")
            time.sleep(0.1)

    def order(
        self, stage: str, within: float, label: str = "", **given: Any
    ) -> list[dict[str, Any]]:
        """Order a stage; returns each rank's result with its `rank`, and notes late ranks."""
        name = label or stage
        self.report["stage"] = name
        self.save()
        self.say(name)
        number, self.number = self.number, self.number + 1
        order = {"number": number, "stage": stage, "given": given}
        self.store.set(f"order/{number}", json.dumps(order))
        waiting, found, looked = list(range(self.me.ranks)), [], 0.0
        until = time.monotonic() + within
        while waiting:
            for rank in list(waiting):
                if self.store.check([f"done/{number}/{rank}"]):
                    one = json.loads(self.store.get(f"done/{number}/{rank}"))
                    found.append({"rank": rank} | one)
                    waiting.remove(rank)
            if waiting and time.monotonic() - looked > 1:
                self.listen(waiting)
                looked = time.monotonic()
                self.bury(waiting, name)
            if waiting and time.monotonic() > until:
                for rank in waiting:
                    self.miss(rank, name)
                break
            time.sleep(0.02)
        return sorted(found, key=lambda one: one["rank"])

    def bury(self, waiting: Iterable[int], name: str) -> None:
        """Raise Lost if some of them haven't been heard from for too long."""
        now, patience = time.monotonic(), self.options.patience
        gone = [rank for rank in waiting if now - self.beats[rank][1] > patience]
        if gone:
            time.sleep(1)  # a lost host loses all of its ranks: wait until all are noted
            self.listen(range(self.me.ranks))
            now = time.monotonic()
            gone = [r for r in range(self.me.ranks) if now - self.beats[r][1] > patience - 2]
            hosts = sorted({str(self.miss(rank, name)["host"]) for rank in gone})
            silent = f"no heartbeat for {patience:g} s"
            raise Lost(f"{shown('rank', gone)} on {shown('host', hosts)}: {silent}")

    # the stages

    def run(self) -> None:
        """Run all stages. Raises Lost if ranks are gone, Told if this rank is asked to end."""
        self.join()
        options = self.options
        address = meeting_point(os.environ)[0]
        self.report["ranks"] = ranks = self.order("who", 60, address=address)
        if len(ranks) < self.me.ranks:
            raise Lost("not all ranks said who they are")
        there = {(one["host"], one["address"]) for one in ranks}
        for one in ranks:
            if sum(host == one["host"] for host, _ in there) > 1:  # clones, all of one name
                one["host"] = f"{one['host']} {one['address']}"
        for one in ranks:
            self.report["hosts"].setdefault(one["host"], []).append(one["rank"])
        hosts = list(self.report["hosts"].values())
        firsts = [ranks[0] for ranks in hosts]
        if len(hosts) > 1:
            self.found["clocks"] = self.order("clocks", 30 + len(hosts) / 10, askers=firsts[1:])
        self.found["shm"] = self.order("shm", 20)
        self.found["matmul"] = self.order("matmul", 60, seconds=2.0)
        self.storage(firsts)
        if not options.no_loader:
            self.found["loader"] = self.order("loader", 90, seconds=2.0)
        self.pairs(hosts)
        self.together()
        self.found["counters"] = self.order("counters", 20)
        self.kill()

    def storage(self, writers: list[int]) -> None:
        folder = f"{self.options.shared}/check-cluster-{os.getpid()}-{int(time.time())}"
        parts = {}
        for part in ("write", "read", "remove"):
            given = {"folder": folder, "part": part, "writers": writers}
            parts[part] = self.order("storage", 60, f"storage: {part}", **given)
        shutil.rmtree(folder, ignore_errors=True)
        self.found["storage"] = parts["write"] + parts["read"]

    def pairs(self, hosts: list[list[int]]) -> None:
        """Pairs between hosts, then inside them; slow pairs are measured again, alone."""
        between = rounds_of_hosts(len(hosts))
        for kind in ("lost", "between"):
            self.found[kind] = []
            for number, meetings in enumerate(between, 1):
                many = 1 if kind == "lost" else None
                pairs = [
                    pair
                    for i, j in meetings
                    for pair in list(zip(hosts[i], hosts[j], strict=False))[:many]
                ]
                self.meet(kind, f"round {number} of {len(between)}", pairs)
        most = max(len(ranks) for ranks in hosts)
        self.found["inside"] = []
        inside = rounds(most, 15) if most > 1 else []
        for number, meetings in enumerate(inside, 1):
            pairs = [(ranks[i], ranks[j]) for ranks in hosts for i, j in meetings if j < len(ranks)]
            self.meet("inside", f"round {number} of {len(inside)}", pairs)
        for kind in ("between", "inside"):
            for pair, _ in slow_pairs(self.report, kind)[:6]:
                self.meet(kind, f"ranks {pair[0]} and {pair[1]} alone", [pair])

    def meet(self, kind: str, which: str, pairs: list[tuple[int, int]]) -> None:
        name = {"lost": "small messages between hosts", "between": "pairs of hosts",
                "inside": "pairs inside hosts"}[kind]  # fmt: skip
        given = {"name": f"{kind}/{self.number}", "pairs": pairs, "probe": kind == "lost"}
        self.found[kind] += [one for one in self.order("pairs", 45, f"{name}, {which}", **given)
                             if "with" in one]  # fmt: skip

    def together(self) -> None:
        """Collectives and overlap, if all ranks reach each other."""
        if self.me.ranks == 1:
            self.report["skipped"]["collectives"] = "there is only one rank"
            return
        broken = [one for kind in ("between", "inside") for one in self.found[kind]
                  if "problem" in one]  # fmt: skip
        if broken or self.report["missing"]:
            self.report["skipped"]["collectives"] = "some ranks can't reach each other"
            return
        cuda = self.report["backend"] == "nccl"
        self.found["collectives"] = []
        for name in BUS:
            for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB, *([256 * MIB] if cuda else [])):
                many = f"{size >> 20} MiB" if size >= MIB else f"{size >> 10} KiB"
                given = {"name": name, "size": size}
                one = self.order("collectives", 60, f"{name}, {many}", **given)
                self.found["collectives"] += [{"name": name} | each for each in one]
                if self.report["missing"] or any("error" in each for each in one):
                    self.report["skipped"]["overlap"] = f"{name} didn't finish"
                    return
                if one[0]["seconds"] * (16 if size >= MIB else 1) > 3:
                    break  # the next size takes too long
        reduced = [one for one in self.found["collectives"] if one["name"] == "all-reduce"]
        size = max(one["size"] for one in reduced if one["seconds"] < 0.3 or one["size"] < MIB)
        self.found["overlap"] = self.order("overlap", 60, size=size)

    def kill(self) -> None:
        """Kill the last rank, if torchrun will restart all ranks.

        Each host's torchrun counts its own restarts, so ranks on several hosts don't meet again.
        """
        if self.state is None or len(self.report["hosts"]) > 1:
            why = "on one host, give torchrun --max-restarts 1, and --shared a folder"
            self.report["skipped"]["kill"] = why
            return
        self.report["found"]["kill"] = {"rank": self.me.ranks - 1, "at": time.time()}
        self.order("kill", 60, f"kill rank {self.me.ranks - 1}, and resume", rank=self.me.ranks - 1)
        raise Lost(f"rank {self.me.ranks - 1} was killed, and nothing started it again")

    def farewell(self) -> None:
        """After a signal: ranks that also got it say so; silent ranks were gone before."""
        until = time.monotonic() + 2.5
        begin = time.monotonic()
        others = [rank for rank in range(self.me.ranks) if rank != self.me.rank]
        while time.monotonic() < until:
            self.listen(others)
            left = [rank for rank in others if not self.store.check([f"bye/{rank}"])]
            if not left:
                return
            time.sleep(0.1)
        for rank in left:
            if self.beats.get(rank, ("", 0))[1] < begin + 0.5:
                self.miss(rank, self.report["stage"])

    def end(self) -> None:
        """Wait for the others to exit: torchrun ends them when it sees this rank's exit status."""
        self.store.set(f"order/{self.number}", json.dumps({"stage": "end"}))
        gone = {one["rank"] for one in self.report["missing"]} | {self.me.rank}
        waiting = [f"bye/{rank}" for rank in range(self.me.ranks) if rank not in gone]
        until = time.monotonic() + 5
        while waiting and not self.store.check(waiting) and time.monotonic() < until:
            time.sleep(0.05)


def shown(what: str, names: Sequence[Any]) -> str:
    """ "rank 3" or "ranks 3, 4 and 7"."""
    if len(names) == 1:
        return f"{what} {names[0]}"
    return f"{what}s {', '.join(map(str, names[:-1]))} and {names[-1]}"


# === 6. The verdicts, from the report alone, so that you can judge it again.


# What to do next, by kind of finding. The page *On your cluster* explains it in detail.
NEXT = {
    # who, limits
    "versions differ": "give all hosts the same image, driver and GPUs",
    "shared GPU": "start as many ranks on a host as it has GPUs; check CUDA_VISIBLE_DEVICES",
    "slow import": "put Python's packages on a local disk",
    "bound to few cores": "give the ranks more cores: with Slurm `srun --cpus-per-task`, with "
    "Kubernetes `resources`, with mpirun `--bind-to none`",
    "few cores": "give each rank its own core, and more for its loader",
    "few files": "raise the limit: ulimit -n 65536",
    "memlock": "raise the limit: InfiniBand needs `ulimit -l unlimited` (containers: --ulimit "
    "memlock=-1)",
    # GPU health, network cards, clocks, /dev/shm
    "ECC": "drain the host and reset the GPU; if the errors come back, have it replaced",
    "Xid": "94: restart the job; 48, 64, 95, 119, 120: drain the host and reset the GPU; 79: "
    "reboot the host; the same GPU again: have it replaced; others: NVIDIA's list of Xid errors; "
    "if the time is before your job, it may have been someone else's program",
    "log not readable": "run the check as root, or look on those hosts: `sudo journalctl -k | grep "
    "Xid`",
    "NIC errors": "reseat or replace that port's cable",
    "clock": "start NTP (chronyd) there: certificates, logs and file times are wrong",
    "shm": "containers: --ipc=host or --shm-size=16g; Kubernetes: an emptyDir of medium Memory; "
    "a full one: remove what dead jobs left (nccl-*, torch_*)",
    # matmul
    "slow rank": "look for other processes (`top`, `nvidia-smi`), and for heat or a power cap "
    "(`nvidia-smi -q -d PERFORMANCE`)",
    "GPUs slow": "compare clocks.sm with clocks.max.sm in `nvidia-smi -q -d CLOCK`; look for a "
    "power cap",
    # storage, loader
    "storage": "check that the folder is mounted there, and that you may write to it",
    "not shared": "give --shared a folder that all hosts mount (`df` there: is it the same file "
    "system?)",
    "loader": "check which limit is reached: memory, /dev/shm or open files",
    # links
    "drops": "swap the cable, then the switch port; compare MTUs; look at `ethtool -S` and "
    "`ibdiagnet`",
    "no connection": "look for a firewall (ranks listen on ports that the system picks), and name "
    "the right network card with NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
    "slow link": "swap the cable, then the switch port; compare the port's speed with the others' "
    "(`ibstat`, `ethtool`)",
    "slow pair": "both are fast with other hosts, so their cables are fine: check the links "
    "between their switches (speed, errors, other traffic)",
    "slow inside": "`nvidia-smi topo -m` and `nvidia-smi nvlink -s` show whether a link is down "
    "or uses PCIe",
    "links slow": "find out which network they use: NCCL_DEBUG=INFO shows NET/IB or NET/Socket, "
    "and P2P or SHM",
    # collectives, overlap
    "failed": "run it again with NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL",
    "wrong sum": "take that host out of the job: its memory or its GPU changes numbers",
    "collectives slow": "check with NCCL_DEBUG=INFO that NCCL uses all network cards and GPUDirect "
    "(GDRDMA), and look at `nvidia-smi topo -m`",
    "overlap": "unset CUDA_DEVICE_MAX_CONNECTIONS and CUDA_LAUNCH_BLOCKING",
    # ranks that didn't finish a stage
    "late": "fix what is slow in the lines above, then run the check again",
    "missing": "look on that host first: is it up, can it reach the first host, and does `dmesg` "
    "show out-of-memory or GPU errors?",
}


@dataclass
class Verdict:
    """One line of the table."""

    check: str
    level: str  # ok, note, bad
    found: str
    kind: str = ""  # what is wrong, as a key for programs
    where: Sequence[Any] = ()  # host names, pairs of them, or ranks
    next: str = ""

    def __post_init__(self) -> None:
        self.next = NEXT.get(self.kind, "")


# How much less than the others is ill: GPUs and their links are alike; CPUs share what they have.
FAIR = {"nccl": {"matmul": 0.85, "link": 0.7}, "gloo": {"matmul": 1 / 3, "link": 1 / 3}}


def host_of(report: Mapping[str, Any], rank: int) -> str:
    return next(host for host, ranks in report["hosts"].items() if rank in ranks)


def links(report: Mapping[str, Any], kind: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Per pair of ranks: the slower direction, in its best measurement."""
    measured: dict[tuple[int, int], dict[int, float]] = {}
    problems: dict[tuple[int, int], str] = {}
    for one in report["found"].get(kind, []):
        pair = (min(one["rank"], one["with"]), max(one["rank"], one["with"]))
        if "problem" in one:
            problems[pair] = one["problem"]
        if "bytes_per_s" in one:
            ways = measured.setdefault(pair, {})
            ways[one["rank"]] = max(ways.get(one["rank"], 0), one["bytes_per_s"])
    found = {pair: {"bytes_per_s": min(ways.values())} for pair, ways in measured.items()}
    return found | {pair: {"problem": said} for pair, said in problems.items()}


def slow_ranks(report: Mapping[str, Any]) -> dict[int, float]:
    """Ranks whose matmuls are slow, and their share of the usual speed."""
    rates = {one["rank"]: one["flops"] for one in report["found"].get("matmul", [])
             if "flops" in one}  # fmt: skip
    if not rates:
        return {}
    usual = statistics.median_high(rates.values())
    fair = FAIR[report["backend"]]["matmul"]
    return {rank: rate / usual for rank, rate in rates.items() if rate < fair * usual}


def slow_pairs(report: Mapping[str, Any], kind: str) -> list[tuple[tuple[int, int], float]]:
    """Pairs that carry much less than others, with their share of the usual rate.

    The usual rate is the median over ranks of each rank's best: one bad host makes many pairs slow,
    but not the best pair of many ranks. Pairs of slow ranks are not judged.
    """
    slow = slow_ranks(report)
    rates = {pair: one["bytes_per_s"] for pair, one in links(report, kind).items()
             if "bytes_per_s" in one and not slow.keys() & set(pair)}  # fmt: skip
    best: dict[int, float] = {}
    for pair, rate in rates.items():
        for rank in pair:
            best[rank] = max(best.get(rank, 0), rate)
    if not best:
        return []
    usual = statistics.median_high(best.values())
    fair = FAIR[report["backend"]]["link"]
    return [(pair, rate / usual) for pair, rate in rates.items() if rate < fair * usual]


def culprits(ill: Iterable[tuple], all_pairs: Iterable[tuple]) -> list[Any]:
    """Members to blame for bad pairs: all pairs (two or more) of such a member are bad; else pairs.

    Members with the most bad pairs are named first, and the pairs that they explain are then left
    out.
    """
    ill, all_pairs = sorted(set(ill)), set(all_pairs)
    members = {one for pair in all_pairs for one in pair}
    of = {one: {pair for pair in all_pairs if one in pair} for one in members}
    named: list[Any] = []
    left = set(ill)
    for one in sorted(members, key=lambda one: (-len(of[one] & left), one)):
        if len(of[one]) > 1 and of[one] <= set(ill) and of[one] & left:
            named.append(one)
            left -= of[one]
    return named + sorted(left)


def names_of(report: Mapping[str, Any], blamed: Sequence[Any]) -> list[Any]:
    """Ranks, or pairs of them, as hosts if each host has one; else "host:rank"."""

    def name(rank: int) -> str:
        host = host_of(report, rank)
        return host if len(report["hosts"][host]) == 1 else f"{host} (rank {rank})"

    return [name(one) if isinstance(one, int) else [name(one[0]), name(one[1])] for one in blamed]


def hosts_of(report: Mapping[str, Any], blamed: Sequence[Any]) -> list[Any]:
    """The hosts of these ranks; for pairs of ranks, pairs of hosts."""
    return [host_of(report, one) if isinstance(one, int) else [host_of(report, r) for r in one]
            for one in blamed]  # fmt: skip


def speed(rate: float) -> str:
    """Bytes/s, for people."""
    return f"{rate / GB:.3g} GB/s" if rate >= GB else f"{rate / 1e6:.3g} MB/s"


def place(one: Any) -> str:
    return one if isinstance(one, str) else f"between {one[0]} and {one[1]}"


def places(where: Sequence[Any]) -> str:
    return "; ".join(map(place, where))


def judge(report: Mapping[str, Any]) -> list[Verdict]:
    """One verdict per check, and one per problem."""
    if not report["ranks"]:  # not even who is there could be found out
        return [judge_missing(report)] if report["missing"] else []
    said: list[Verdict] = []
    for check in (judge_who, judge_limits, judge_health, judge_clocks, judge_shm, judge_matmul,
                  judge_storage, judge_loader, judge_lost, judge_links, judge_collectives,
                  judge_overlap, judge_kill):  # fmt: skip
        said += check(report)
    if report["missing"]:
        said.append(judge_missing(report))
    return said


def judge_missing(report: Mapping[str, Any]) -> Verdict:
    """The ranks that didn't finish the first stage that was left unfinished."""
    stage = report["missing"][0]["stage"]
    late = [one for one in report["missing"] if one["stage"] == stage]
    hosts = sorted({one["host"] or "?" for one in late})
    if len(late) == len(report["ranks"]):
        return Verdict(
            "missing", "bad", f"{stage}: all ranks took longer than its deadline", "late"
        )
    lines = []
    for one in late[:8]:
        where = one["host"] or "an unknown host"
        doing = f'last reported "{one["doing"]}"' if one["doing"] else "never joined"
        lines.append(f"rank {one['rank']} on {where} {doing}")
    return Verdict("missing", "bad", f"{stage}: {'; '.join(lines)}", "missing", hosts)


def judge_who(report: Mapping[str, Any]) -> list[Verdict]:
    ranks, hosts = report["ranks"], report["hosts"]
    devices = sorted({one["device"] for one in ranks})
    many = f"{len(hosts)} host{'s' * (len(hosts) > 1)}, {len(ranks)} rank{'s' * (len(ranks) > 1)}"
    line = f"{many}, {report['backend']}, {' and '.join(devices)}, torch {ranks[0]['torch']}"
    said = [Verdict("who", "ok", line)]
    for what, of in (("devices", "device"), ("torch", "torch"), ("NCCL", "nccl")):
        kinds: dict[str, list[str]] = {}
        for one in ranks:
            kinds.setdefault(str(one[of]), []).append(one["host"])
        if len(kinds) > 1:
            usual = max(kinds, key=lambda kind: len(kinds[kind]))
            odd = {host: kind for kind in kinds if kind != usual for host in kinds[kind]}
            lines = ", ".join(f"{host}: {kind}" for host, kind in sorted(odd.items()))
            line = f"{what} differ: {lines}; others: {usual}"
            said.append(Verdict("who", "bad", line, "versions differ", sorted(odd)))
    uuids = [one["uuid"] for one in ranks if "uuid" in one]
    if len(set(uuids)) < len(uuids):
        said.append(Verdict("who", "bad", "two ranks use the same GPU", "shared GPU"))
    slow = {one["host"]: one["import_s"] for one in ranks if one["import_s"] > 60}
    if slow:
        lines = ", ".join(f"{host} {took:.0f} s" for host, took in slow.items())
        line = f"`import torch` took {lines}"
        said.append(Verdict("who", "note", line, "slow import", sorted(slow)))
    return said


def judge_limits(report: Mapping[str, Any]) -> list[Verdict]:
    said, ranks = [], report["ranks"]
    for host, its in report["hosts"].items():
        mine = [one for one in ranks if one["rank"] in its]
        may = {core for one in mine for core in one["cores"]}
        there, quota = mine[0]["machine_cores"] or 0, mine[0]["quota"]
        if quota == len(mine[0]["cores"]):  # no container's limit, but the cores of one rank
            quota = len(may)
        if may and len(may) < len(mine) and len(may) < there:
            line = f"{host}: {len(mine)} ranks may use {len(may)} of {there} cores"
            said.append(Verdict("cores", "bad", line, "bound to few cores", [host]))
        elif quota < len(mine):
            line = f"{host}: {len(mine)} ranks share {quota:g} cores"
            said.append(Verdict("cores", "note", line, "few cores", [host]))
    files = sorted({one["host"] for one in ranks if (one["nofile"] or math.inf) < 4096})
    if files:
        line = f"few open files are allowed: {places(files)}"
        said.append(Verdict("limits", "note", line, "few files", files))
    locked = sorted({one["host"] for one in ranks if one["infiniband"] and one["memlock"]})
    if locked:
        line = f"locked memory is limited: {places(locked)}"
        said.append(Verdict("limits", "bad", line, "memlock", locked))
    return said or [Verdict("limits", "ok", "enough cores, open files, and locked memory")]


def judge_health(report: Mapping[str, Any]) -> list[Verdict]:
    said, drivers, unread = [], [], []
    for one in report["ranks"]:
        health, host = one.get("health") or {}, one["host"]
        for number, gpu in enumerate(health.get("gpus", [])):
            drivers.append(str(gpu.get("driver")))
            wrong = gpu.get("uncorrected", "0")
            if wrong.isdigit() and int(wrong) > 0:
                line = f"{host}, GPU {number}: {wrong} uncorrected ECC errors"
                said.append(Verdict("GPU health", "bad", line, "ECC", [host]))
            if gpu.get("retired", "No").lower() == "yes":
                line = f"{host}, GPU {number}: memory pages are pending retirement"
                said.append(Verdict("GPU health", "bad", line, "ECC", [host]))
        if health.get("xid"):
            level = "bad" if any(map(faulty_gpu, health["xid"])) else "note"
            line = next(filter(faulty_gpu, reversed(health["xid"])), health["xid"][-1])
            said.append(Verdict("GPU health", level, f"{host}: {line}", "Xid", [host]))
        if health and health.get("log", "") is None:
            unread.append(host)
    if len(set(drivers)) > 1:
        line = f"drivers differ: {sorted(set(drivers))}"
        said.append(Verdict("GPU health", "bad", line, "versions differ"))
    said += judge_counters(report)
    if drivers and not said:
        line = f"{len(drivers)} GPUs: no ECC errors" + ("" if unread else " and no Xid errors")
        said.append(Verdict("GPU health", "ok", line))
    if unread:
        line = f"kernel log not readable, so Xid errors are unknown: {places(unread)}"
        said.append(Verdict("kernel log", "note", line, "log not readable", unread))
    return said


# Xid errors after which a GPU can go on, by NVIDIA's list. A program usually causes the first four:
# exception, page fault, reset channel. 63: a row of memory will be remapped; 94: a contained error
GO_ON = {13, 31, 43, 45, 63, 94}


def faulty_gpu(line: str) -> bool:
    """Whether a line of the kernel's log reports an Xid error after which a GPU can't go on."""
    number = re.search(r"Xid(?: \([^)]*\):)? (\d+)", line)
    return number is None or int(number[1]) not in GO_ON


def judge_counters(report: Mapping[str, Any]) -> list[Verdict]:
    """Counters of network cards' faults that went up during the check."""
    said = []
    before = {one["host"]: one["counters"] for one in report["ranks"] if "counters" in one}
    for one in report["found"].get("counters", []):
        host = host_of(report, one["rank"])
        grown = {name: after - before.get(host, {}).get(name, after)
                 for name, after in (one.get("counters") or {}).items()}  # fmt: skip
        lines = ", ".join(f"{name} +{more}" for name, more in grown.items() if more > 0)
        if lines:
            line = f"{host}, during the check: {lines}"
            said.append(Verdict("NIC errors", "bad", line, "NIC errors", [host]))
    return said


def judge_clocks(report: Mapping[str, Any]) -> list[Verdict]:
    found = [one for one in report["found"].get("clocks", []) if "offset_s" in one]
    if not found:
        return []
    off = [one for one in found if abs(one["offset_s"]) > 1 + one["known_to_s"]]
    if not off:
        worst = max(abs(one["offset_s"]) + one["known_to_s"] for one in found)
        return [Verdict("clocks", "ok", f"at most {max(worst * 1e3, 1):.0f} ms apart")]
    hosts = sorted({host_of(report, one["rank"]) for one in off})
    first = next(iter(report["hosts"]))
    offsets = [one["offset_s"] for one in off]
    if len(off) == len(report["hosts"]) - 1 > 1 and max(offsets) - min(offsets) < 1:
        hosts = [first]  # all others agree, so the first host's clock is wrong
    lines = ", ".join(f"{host_of(report, one['rank'])} {one['offset_s']:+.1f} s" for one in off)
    return [Verdict("clocks", "bad", f"compared with {first}: {lines}", "clock", hosts)]


def small_shm(report: Mapping[str, Any]) -> list[str]:
    """Hosts with too little /dev/shm: 32 MiB weren't available, or less than 64 MiB per rank."""
    small = set()
    for one in report["found"].get("shm", []):
        host = host_of(report, one["rank"])
        need = 64 * MIB * len(report["hosts"][host])
        if not one.get("there") or one.get("problem") or one["free"] <= need:
            small.add(host)
    return sorted(small)


def judge_shm(report: Mapping[str, Any]) -> list[Verdict]:
    found = {host_of(report, one["rank"]): one for one in reversed(report["found"].get("shm", []))}
    if not found:
        return []
    small = small_shm(report)
    if not small:
        least = min(one["free"] for one in found.values())
        return [Verdict("/dev/shm", "ok", f"at least {least / 2**30:.1f} GiB free")]
    free = {host: f"{found[host]['free'] / MIB:.0f} of {found[host]['bytes'] / MIB:.0f} MiB free"
            if found[host].get("there") else "there is none" for host in small}  # fmt: skip
    line = "; ".join(f"{host}: {one}" for host, one in free.items())
    return [Verdict("/dev/shm", "bad", line, "shm", small)]


def judge_matmul(report: Mapping[str, Any]) -> list[Verdict]:
    found = {one["rank"]: one for one in report["found"].get("matmul", []) if "flops" in one}
    if not found:
        return []
    said, usual = [], statistics.median_high(one["flops"] for one in found.values())
    slow = slow_ranks(report)
    for rank, share in slow.items():
        line = f"rank {rank} on {host_of(report, rank)}: {share:.0%} of the other ranks' speed"
        if report["backend"] == "gloo":
            line += f", with {found[rank]['cpu_share']:.0%} of a core"
        said.append(Verdict("matmul", "bad", line, "slow rank", [rank]))
    gpu = hardware(report["ranks"][0]["device"])
    unit, name = (1e12, "TFLOP/s") if usual > 1e12 else (1e9, "GFLOP/s")
    line = f"typically {usual / unit:,.0f} {name} per rank"
    if gpu:
        line += f", {usual / gpu.peak / 1e12:.0%} of the data sheet's {gpu.peak:,.0f}"
    if gpu and usual < gpu.peak * 1e12 / 2:
        said.append(Verdict("matmul", "bad", line, "GPUs slow"))
    elif not slow:
        said.append(Verdict("matmul", "ok", line))
    return said


def judge_storage(report: Mapping[str, Any]) -> list[Verdict]:
    found = report["found"].get("storage", [])
    failed = [one for one in found if "error" in one]
    if failed:
        hosts = sorted({host_of(report, one["rank"]) for one in failed})
        line = f"{places(hosts)}: {failed[0]['error']}"
        return [Verdict("storage", "bad", line, "storage", hosts)]
    unseen = [(one["rank"], other) for one in found for other in one.get("unseen", [])]
    if unseen:
        pairs = {(min(pair), max(pair)) for pair in unseen}
        firsts = [ranks[0] for ranks in report["hosts"].values()]
        blamed = hosts_of(
            report, culprits(pairs, {(i, j) for i in firsts for j in firsts if i < j})
        )
        line = f"files written by other hosts aren't visible: {places(blamed)}"
        return [Verdict("storage", "bad", line, "not shared", blamed)]
    write = [one["write"] for one in found if "write" in one]
    read = [one["read"] for one in found if "read" in one]
    if not write or not read:
        return []
    late = max(one.get("seen_after_s", 0) for one in found)
    line = (f"each host writes at least {min(write) / 1e6:,.0f} MB/s and reads at least "
            f"{min(read) / 1e6:,.0f} MB/s; other hosts see a new file within "
            f"{max(late, 0.1):.1f} s")  # fmt: skip
    return [Verdict("storage", "ok", line)]


def judge_loader(report: Mapping[str, Any]) -> list[Verdict]:
    found = report["found"].get("loader", [])
    small, said = small_shm(report), []
    for one in found:
        host = host_of(report, one["rank"])
        if "batches" not in one and host not in small:  # a small /dev/shm explains it
            line = f"rank {one['rank']} on {host}: {one.get('problem') or one.get('error')}"
            said.append(Verdict("loader", "bad", line, "loader", [host]))
    rates = [one["batches"] for one in found if "batches" in one]
    if rates and not said:
        line = (
            f"at least {min(rates) * 64:,.0f} images/s per rank, with two workers and no decoding"
        )
        said.append(Verdict("loader", "ok", line))
    return said


def dropping(report: Mapping[str, Any]) -> tuple[dict[tuple[int, int], float], set[tuple]]:
    """Pairs between which TCP had to resend, with the share of messages; and all pairs."""
    again: dict[tuple[int, int], float] = {}
    slow = slow_ranks(report)
    for one in report["found"].get("lost", []):
        pair = (min(one["rank"], one["with"]), max(one["rank"], one["with"]))
        share = one.get("sent_again", 0) / max(one.get("messages", 1), 1)
        again[pair] = again.get(pair, 0) + share / 2
        if "problem" in one and not slow.keys() & set(pair):
            again[pair] = max(again[pair], 1)
    return {pair: share for pair, share in again.items() if share > 0.01}, set(again)


def judge_lost(report: Mapping[str, Any]) -> list[Verdict]:
    bad, every = dropping(report)
    found = [one for one in report["found"].get("lost", []) if "latency_s" in one]
    if bad:
        where, worst = hosts_of(report, culprits(bad, every)), max(bad.values())
        line = (
            "no connection" if worst >= 1 else f"{worst:.0%} of small messages were retransmitted"
        )
        return [Verdict("network", "bad", f"{places(where)}: {line}", "drops", where)]
    if not found:
        return []
    usual = statistics.median(one["latency_s"] for one in found)
    line = f"{usual * 1e6:,.0f} µs for a small message between hosts over TCP, no retransmissions"
    return [Verdict("network", "ok", line)]


def judge_links(report: Mapping[str, Any]) -> list[Verdict]:
    return (judge_link_of(report, "between", "links")
            + judge_link_of(report, "inside", "inside hosts"))  # fmt: skip


def judge_link_of(report: Mapping[str, Any], kind: str, check: str) -> list[Verdict]:
    """Pairs of hosts, or of ranks in a host: which are cut off or slow, and whether all are."""
    found, said = links(report, kind), []
    if not found:
        return []
    lost, _ = dropping(report) if kind == "between" else ({}, set())
    slow = dict(slow_pairs(report, kind))
    cut = {pair for pair, one in found.items() if "problem" in one}
    fast = found.keys() - cut - slow.keys()
    ill = {"no connection": culprits(cut, found)}
    ill |= slow_kinds(kind, culprits(slow, found), fast)
    for what, blamed in ill.items():
        pairs = {pair for pair in (cut if what == "no connection" else slow)
                 if any(one == pair or one in pair for one in blamed)}  # fmt: skip
        if not pairs or explained(report, lost, pairs):
            continue
        where = names_of(report, blamed)
        if what == "no connection":
            line = found[min(pairs)]["problem"]
        else:
            line = f"{min(slow[pair] for pair in pairs):.0%} of the other pairs' speed"
        said.append(Verdict(check, "bad", f"{places(where)}: {line}", what, where))
    rates = [one["bytes_per_s"] for pair, one in found.items()
             if "bytes_per_s" in one and pair not in slow]  # fmt: skip
    if said or not rates:
        return said
    usual, gpu = statistics.median(rates), hardware(report["ranks"][0]["device"])
    line = f"between two ranks: typically {speed(usual)}, at least {speed(min(rates))}"
    wanted = report.get("link") if kind == "between" else None
    if gpu and not wanted:
        device = report["ranks"][0]["device"]
        pair = next((pair for name, pair in PAIRS.items() if name in device), gpu.inside)
        wanted = gpu.network if kind == "between" else pair
    if wanted and usual < wanted * GB / 2:
        return [Verdict(check, "bad", f"{line}; expected {wanted:g} GB/s", "links slow")]
    return [] if lost else [Verdict(check, "ok", line)]


def slow_kinds(kind: str, blamed: Sequence[Any], fast: Iterable[tuple]) -> dict[str, list[Any]]:
    """What is slow: part of a host, a host's own cable, or the path between two healthy hosts.

    Both ends of a slow pair are healthy if each is fast with a different partner.
    """
    if kind == "inside":
        return {"slow inside": [*blamed]}
    healthy = {one for pair in fast for one in pair}
    between = [one for one in blamed if not isinstance(one, int) and {*one} <= healthy]
    return {"slow link": [one for one in blamed if one not in between], "slow pair": between}


def explained(report: Mapping[str, Any], lost: Iterable[tuple], pairs: Iterable[tuple]) -> bool:
    """Whether all of these pairs of ranks belong to pairs of hosts that lose messages."""

    def hosts(pair: tuple) -> frozenset[str]:
        return frozenset((host_of(report, pair[0]), host_of(report, pair[1])))

    return {hosts(pair) for pair in pairs} <= {hosts(pair) for pair in lost}


def judge_collectives(report: Mapping[str, Any]) -> list[Verdict]:
    found, ranks = report["found"].get("collectives", []), len(report["ranks"])
    if "collectives" in report["skipped"]:
        line = f"not run: {report['skipped']['collectives']}"
        return [Verdict("collectives", "note", line, "skipped")]
    said: list[Verdict] = []
    best: dict[str, float] = {}
    for one in found:
        who = f"{one['name']}, rank {one['rank']}"
        if "error" in one:
            line = f"{who}: {one['error']}"
            said.append(Verdict("collectives", "bad", line, "failed", [one["rank"]]))
            break
        if not one["right"]:
            line = f"{who}: a wrong sum"
            said.append(Verdict("collectives", "bad", line, "wrong sum", [one["rank"]]))
        rate = busbw(one["name"], one["size"], one["seconds"], ranks)
        best[one["name"]] = max(best.get(one["name"], 0), rate)
    if not best:
        return said
    line = "busbw: " + ", ".join(f"{name} {speed(rate)}" for name, rate in best.items())
    if gpu := hardware(report["ranks"][0]["device"]):
        per_host = min(len(its) for its in report["hosts"].values())
        many, link = len(report["hosts"]) > 1, report.get("link") or gpu.network
        wanted = min(gpu.inside, link * per_host) if many else gpu.inside
        line += f"; the links can carry {wanted:g} GB/s"
        if best.get("all-reduce", math.inf) < wanted * GB / 2:
            said.append(Verdict("collectives", "bad", line, "collectives slow"))
    return said or [Verdict("collectives", "ok", line)]


def judge_overlap(report: Mapping[str, Any]) -> list[Verdict]:
    found = [one for one in report["found"].get("overlap", []) if "hidden" in one]
    if not found:
        return []
    hidden = found[0]["hidden"]
    line = f"{max(0, min(1, hidden)):.0%} of an all-reduce is hidden behind matmuls of equal length"
    if report["backend"] == "nccl" and hidden < 0.4:
        return [Verdict("overlap", "note", line, "overlap")]
    return [Verdict("overlap", "ok", line)]


def judge_kill(report: Mapping[str, Any]) -> list[Verdict]:
    if "kill" in report["skipped"]:
        line = f"not tried: {report['skipped']['kill']}"
        return [Verdict("kill and resume", "note", line, "skipped")]
    one = report["found"].get("kill")
    if not one or "back_s" not in one:
        return []
    line = f"rank {one['rank']} was killed; all were back after {one['back_s']:.0f} s"
    return [Verdict("kill and resume", "ok", line)]


def wrapped(begin: str, text: str) -> list[str]:
    """Lines of at most 100 characters, those after the first indented."""
    return textwrap.wrap(text, 100, initial_indent=begin, subsequent_indent=" " * len(begin),
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def table(report: Mapping[str, Any]) -> str:
    """The verdicts for people: one line each, with the next step below those that need one."""
    lines = [""]
    for one in report["verdicts"]:
        level = "BAD" if one["level"] == "bad" else one["level"]
        lines += wrapped(f"{level:5} {one['check']:16} ", one["found"])
        if one["next"] and one["level"] != "ok":
            lines += wrapped(f"{'':22} → ", one["next"])
    if report["ended"]:
        lines.append(f'Not finished, in the stage "{report["stage"]}": {report["ended"]}')
    bad = sum(one["level"] == "bad" for one in report["verdicts"])
    if report["status"] == 0:
        lines.append(f"No problems found, after {report['seconds']:.0f} s.")
    elif bad:
        lines.append(f"{bad} problem{'s' * (bad > 1)} found, after {report['seconds']:.0f} s.")
    return "\n".join(lines)


# === 7. Starting and ending.


def end_of_report(conductor: Conductor, ended: str | None) -> int:
    """Judge, print and save. The exit status."""
    report = conductor.report
    report["ended"], report["finished"] = ended, ended is None
    report["verdicts"] = [asdict(one) for one in judge(report)]
    bad = any(one["level"] == "bad" for one in report["verdicts"])
    report["status"] = 2 if ended else int(bad)
    conductor.save()
    print(table(report), flush=True)
    return report["status"]


def conduct(conductor: Conductor) -> int:
    """Run all stages on rank 0, and return the exit status."""
    try:
        if (before := resumed(conductor)) is not None:
            return before
        conductor.run()
        status = end_of_report(conductor, None)
    except Lost as error:
        status = end_of_report(conductor, str(error))
    except Told as error:
        if "kill" in conductor.found:  # expected: torchrun restarts all ranks
            return 143
        conductor.farewell()
        status = end_of_report(conductor, f"ended by {error}")
    except Exception as error:
        traceback.print_exc()
        status = end_of_report(conductor, f"{type(error).__name__}: {error}")
    conductor.end()
    return status


def resumed(conductor: Conductor) -> int | None:
    """After a restart: finish the report of the job before. None if there was no restart."""
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    most = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    if not most or not conductor.options.shared_given:
        return None
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    state = Path(conductor.options.shared, f"check-cluster-{run}.json")
    conductor.state = state
    if restart == 0:
        return None
    conductor.join()
    conductor.report = report = json.loads(state.read_text())
    killed = report["found"].get("kill")
    if report["finished"]:
        status = int(report["status"])
    elif killed:
        killed["back_s"] = time.time() - killed["at"]
        conductor.began -= report["seconds"]
        status = end_of_report(conductor, None)
    else:
        status = end_of_report(conductor, "a rank died, and torchrun started all of them again")
    conductor.end()
    if restart == most or status == 0:
        state.unlink(missing_ok=True)
    return status


def follow(member: Member, line: Line, patience: float) -> int:
    """Every other rank: obey until the end, or until rank 0 is gone. Returns the exit status."""
    me, told = member.me, False
    try:
        while True:
            try:
                order = line.orders.get(timeout=0.2)
            except queue.Empty:
                if why := line.silent(2 * patience):
                    print(f"rank {me.rank} on {me.host}: rank 0 can't be reached ({why}); "
                          f'the last thing here was "{me.doing}"',
                          file=sys.stderr, flush=True)  # fmt: skip
                    return 2
                continue
            if order["stage"] == "end":
                break
            member.obey(order)
    except Told:
        told = True
    line.out.put((f"bye/{me.rank}", ""))
    until = time.monotonic() + 2
    while not line.out.empty() and time.monotonic() < until and not line.broken:
        time.sleep(0.02)
    time.sleep(0.1)
    return 143 if told else 0


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shared", help="folder that all hosts see (default: the current folder)")
    parser.add_argument("--json", help="file for rank 0's report, rewritten after each stage")
    parser.add_argument(
        "--link", type=float, help="expected speed of a link between hosts, in GB/s"
    )
    parser.add_argument("--cpu", action="store_true", help="check without the GPUs")
    parser.add_argument("--no-loader", action="store_true", help="check without the data loader")
    join = "time until all ranks must have joined, in seconds (default: 120)"
    parser.add_argument("--join", type=float, default=120, help=join)
    patience = "silence after which a rank counts as lost, in seconds (default: 15)"
    parser.add_argument("--patience", type=float, default=15, help=patience)
    parser.add_argument("--load-pictures", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.shared_given, options.shared = options.shared is not None, options.shared or "."
    return options


def main(words: Sequence[str] | None = None) -> int:
    """One rank. The exit status: 0 well, 1 something is wrong, 2 not finished."""
    options = arguments(words)
    if options.load_pictures:
        load_pictures(options.load_pictures)
    # Or NCCL's watchdog would end a stuck rank before it reports. torchrun sets it to 1.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    end_with_parent(signal.SIGTERM)

    def tell(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # torchrun and Slurm may both send it
        raise Told(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, tell)
    me = who_am_i(os.environ)
    me.cpu = options.cpu
    address, port, make = meeting_point(os.environ)
    server, patience = None, timedelta(seconds=options.join)
    try:
        if make and me.rank == 0:
            server = open_store(address, port, patience)
            port = server.port
        wait_for(address, port, options.join)
        line = Line(me, connect(address, port, options.join))
        store = connect(address, port, options.join)
    except (RuntimeError, OSError) as error:
        why = f"{address}:{port} can't be reached (MASTER_ADDR must be rank 0's host)"
        print(f"rank {me.rank} on {me.host}: {why}: {str(error).splitlines()[0]}", file=sys.stderr,
              flush=True)  # fmt: skip
        return 2
    line.start()
    member = Member(me, line, lambda: connect(address, port, 60), options)
    if me.rank:
        return follow(member, line, options.patience)
    threading.Thread(target=follow, args=(member, line, options.patience), daemon=True).start()
    conductor = Conductor(me, store, options)
    conductor.ear = hear(address, port)
    conductor.report["link"] = options.link
    return conduct(conductor)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # doesn't wait for stuck threads or broken groups
