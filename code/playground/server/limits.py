"""A watch over the kernels: who takes more than the machine can give is ended, and told why.

It guards against accidents of a reader who runs code on the own machine: a loop that forks, a list
that grows for ever. A process is of a kernel if it is in the kernel's session or was started by a
process that is. One that hides from this on purpose is not found.
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
            # What is kept of files counts as used, and goes when memory is asked for.
            stat = (cgroup / used).with_name("memory.stat").read_text().split()
            kept = float(stat[stat.index(cache) + 1])
            free = min(free, max(0.0, left + kept))
    return free


@dataclass(frozen=True)
class Limits:
    """What kernels may use, each with the ranks that it starts."""

    memory: float  # bytes, of all kernels together
    kernel: float = math.inf  # bytes, of one kernel
    processes: int = 200
    text: float = 1e6  # bytes that one run may print; a page with more of it becomes slow
    shown: float = 20e6  # bytes of pictures and the like


class Families:
    """The processes of each kernel. A kernel is named by the process id of its first process."""

    def __init__(self) -> None:
        self.adopted: dict[int, int] = {}  # process in another session → its kernel
        self.strangers: set[int] = set()  # looked at before

    def look(self, kernels: Iterable[int]) -> dict[int, list[int]]:
        """The process ids of each kernel, by what the system says now."""
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
                    self.strangers.add(pid)  # else the next look says, when its parent is known
        for pid, kernel in (of_kernel | self.adopted).items():
            families.get(kernel, []).append(pid)
        return families


def memory_used(pids: Iterable[int], enough: float) -> float:
    """Bytes in memory. What processes share counts once, if the quick count says `enough`."""
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
            info = process.memory_full_info()  # takes milliseconds for each
            exact += getattr(info, "pss", info.uss)
    return exact


class Watch:
    """Looks at all kernels and says which of them must end, and why.

    Without it the system ends processes of innocent pages too, and a reader is not told why.
    RLIMIT_NPROC is no substitute: it counts all threads of a user. Below what a desktop has, a
    kernel starts no rank at all; above it, one page that forks leaves no process to the others.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.families = Families()

    def look(self, kernels: Iterable[int]) -> dict[int, str]:
        """`kernels`: their process ids. Returns what to tell of those to end."""
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
        if sum(memory.values()) > self.limits.memory:  # each was counted quickly
            memory = {kernel: memory_used(families[kernel], 0) for kernel in memory}
        if sum(memory.values()) > self.limits.memory:
            greediest = max(memory, key=lambda kernel: memory[kernel])
            ends[greediest] = (
                f"used {memory[greediest] / GB:.1f} GB of memory, and all kernels together may use "
                f"{self.limits.memory / GB:.1f} GB"
            )
        return ends

    def end(self, kernel: int) -> None:
        """End a kernel and its processes; a loop that forks cannot run ahead of this."""
        for _ in range(100):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(kernel, signal.SIGKILL)  # all at once: no time to fork between two
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
