"""Child processes of a rank, which end with the rank's call.

A rank that exits by itself kills them first; if a rank is killed, its caller does it. They are
found by their parents, in Linux's /proc. A daemon, which has left its parent, isn't found.
"""

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Running(NamedTuple):
    """A process: its number, and its start time, because numbers are reused."""

    number: int
    since: str


def parents() -> dict[Running, int]:
    """All processes, and the number of each one's parent."""
    found = {}
    names = os.listdir("/proc") if Path("/proc/self/stat").exists() else []
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError):  # the process has exited in the meantime
            after_its_name = Path("/proc", name, "stat").read_text().rpartition(") ")[2].split()
            found[Running(int(name), after_its_name[19])] = int(after_its_name[1])
    return found


def descendants(of: Collection[int]) -> set[Running]:
    """The children of these processes, their children, and so on."""
    found: set[Running] = set()
    started_by, generation = parents() if of else {}, {*of}
    while generation:
        youngest = {each for each, parent in started_by.items() if parent in generation}
        found |= youngest
        generation = {each.number for each in youngest}
    return found


def end_processes(processes: Collection[Running]) -> None:
    """Kill the processes that still run."""
    for process in processes and {*processes} & parents().keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.number, signal.SIGKILL)


def end_children() -> None:
    """Kill all descendants of this process; usually there are none, and this takes no time."""
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):  # no child, not even one that has exited
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        end_processes(descendants([os.getpid()]))
