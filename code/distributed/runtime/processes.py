"""Processes that a rank has started: no call leaves them behind.

A rank that ends by itself ends them first; for a rank that is killed its caller does. They are
found by their parents, in Linux's /proc. What has left its parents, as a daemon does, is not found.
"""

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Running(NamedTuple):
    """A process: its number, and when it was started, for numbers are given out again."""

    number: int
    since: str


def parents() -> dict[Running, int]:
    """All processes, and the number of the process that each was started by."""
    found = {}
    names = os.listdir("/proc") if Path("/proc/self/stat").exists() else []
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError):  # no process, or one that has ended meanwhile
            after_its_name = Path("/proc", name, "stat").read_text().rpartition(") ")[2].split()
            found[Running(int(name), after_its_name[19])] = int(after_its_name[1])
    return found


def descendants(of: Collection[int]) -> set[Running]:
    """What these processes have started, and what that has started, and so on."""
    found: set[Running] = set()
    started_by, generation = parents() if of else {}, {*of}
    while generation:
        youngest = {each for each, parent in started_by.items() if parent in generation}
        found |= youngest
        generation = {each.number for each in youngest}
    return found


def end_processes(processes: Collection[Running]) -> None:
    """Kill those of these processes that still run."""
    for process in processes and {*processes} & parents().keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.number, signal.SIGKILL)


def end_children() -> None:
    """End what this process has started. It takes no time if there is nothing, as nearly always."""
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):  # there is none, not even one that has ended
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        end_processes(descendants([os.getpid()]))
