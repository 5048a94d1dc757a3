"""Watch over the kernels: ends one that takes more than the machine can give, and says why.

It protects readers, who run code on their own machine, from accidents: a loop that forks, a list
that grows forever. A process belongs to a kernel if it is in the kernel's session, or if its parent
belongs to the kernel. A process that hides from this on purpose isn't found.
"""

import contextlib
import math
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

MB, GB = 1e6, 1e9  # bytes


def memory_of_machine(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this machine, or the container that we are in, has free for kernels now."""
    free = float(psutil.virtual_memory().available)
    for most, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),  # cgroups 2
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            left = float((cgroup / most).read_text()) - float((cgroup / used).read_text())
            # The page cache counts as used, but is released when memory is needed.
            stat = (cgroup / used).with_name("memory.stat").read_text().split()
            kept = float(stat[stat.index(cache) + 1])
            free = min(free, max(0.0, left + kept))
    return free


@dataclass(frozen=True)
class Limits:
    """Limits of the kernels; each kernel includes the ranks that it starts."""

    memory: float  # bytes, all kernels together
    kernel: float = math.inf  # bytes per kernel
    processes: int = 200
    text: float = 1e6  # bytes of text per run; a page with more of it becomes slow
    shown: float = 20e6  # bytes of pictures and other output per run


class Families:
    """Processes of each kernel. A kernel is named by the process id of its first process."""

    def __init__(self) -> None:
        self.adopted: dict[int, int] = {}  # process in another session → its kernel
        self.strangers: set[int] = set()  # processes that belong to no kernel

    def look(self, kernels: Iterable[int]) -> dict[int, list[int]]:
        """The process ids of each kernel, according to the system now."""
        families: dict[int, list[int]] = {kernel: [] for kernel in kernels}
        pids = psutil.pids()
        self.strangers &= set(pids)
        self.adopted = {pid: kernel for pid, kernel in self.adopted.items() if pid in set(pids)}
        session = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                session[pid] = os.getsid(pid)
        of_kernel = {pid: sid for pid, sid in session.items() if sid in families}
        unknown = set(session) - set(of_kernel) - set(self.adopted) - self.strangers
        for pid in sorted(unknown):
            with contextlib.suppress(psutil.Error):
                parent = psutil.Process(pid).ppid()
                kernel = of_kernel.get(parent) or self.adopted.get(parent)
                if kernel:
                    self.adopted[pid] = kernel
                elif parent not in unknown or parent in self.strangers:
                    self.strangers.add(pid)  # else its parent isn't known yet
        for pid, kernel in (of_kernel | self.adopted).items():
            families.get(kernel, []).append(pid)
        return families


def memory_used(pids: Iterable[int], enough: float) -> float:
    """Bytes in memory. If a quick sum reaches `enough`, count shared memory only once."""
    quick, exact = 0.0, 0.0
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            quick += process.memory_info().rss
            processes.append(process)
    if quick < enough:
        return quick
    for process in processes:
        with contextlib.suppress(psutil.Error):
            info = process.memory_full_info()  # takes milliseconds per process
            exact += getattr(info, "pss", info.uss)
    return exact


class Watch:
    """Checks all kernels, and reports which of them must be ended and why.

    Without it the system also ends processes of pages that did nothing wrong, and the reader gets
    no reason. RLIMIT_NPROC can't replace it, because it counts all threads of a user. If it is
    below the number that a desktop has, a kernel can't start any rank. If it is above, one page
    that forks can use up the processes of all others.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.families = Families()

    def look(self, kernels: Iterable[int]) -> dict[int, str]:
        """`kernels` are process ids. Returns the kernels to end, with the message for each."""
        families = self.families.look(kernels)
        ends = {}
        for kernel, pids in families.items():
            if len(pids) > self.limits.processes:
                ends[kernel] = f"had {len(pids)} processes, and {self.limits.processes} are allowed"
        most = min(self.limits.memory, self.limits.kernel)
        memory = {kernel: memory_used(pids, most) for kernel, pids in families.items()}
        for kernel in [kernel for kernel in memory if memory[kernel] > self.limits.kernel]:
            ends[kernel] = (
                f"used {memory.pop(kernel) / GB:.1f} GB of memory, and one kernel may use "
                f"{self.limits.kernel / GB:.1f} GB"
            )
        if sum(memory.values()) > self.limits.memory:  # each sum was the quick one
            memory = {kernel: memory_used(families[kernel], 0) for kernel in memory}
        if sum(memory.values()) > self.limits.memory:
            greediest = max(memory, key=lambda kernel: memory[kernel])
            ends[greediest] = (
                f"used {memory[greediest] / GB:.1f} GB of memory, and all kernels together may use "
                f"{self.limits.memory / GB:.1f} GB"
            )
        return ends

    def end(self, kernel: int) -> None:
        """End a kernel and its processes, faster than a loop can fork."""
        for _ in range(100):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(kernel, signal.SIGKILL)  # all together, so that none can fork in between
            left = [pid for pid in self.families.look([kernel])[kernel] if not has_ended(pid)]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Gone, or dead and not yet waited for."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
