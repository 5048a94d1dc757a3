"""In which order tests run, and on which worker: for pytest-xdist.

A file is the smallest piece that goes to a worker, because its tests share pools of ranks, servers
and kernels. Tests of the built book are one piece, which begins first: the book is built once.
Tests that look at a clock come when all the others have ended, in one process.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE, BUILT = "alone", "built"
LONG = (  # files, the longest first: begun early, so that no worker waits for another at the end
    "tests/browser/test_live.py",
    "tests/test_scripts.py",
    "tests/playground/test_server.py",
    "tests/browser/test_accessible.py",
    "tests/distributed/test_checkpoint.py",
    "tests/distributed/test_in_a_kernel.py",
    "tests/distributed/test_world.py",
    "tests/playground/test_limits.py",
    "tests/distributed/test_zero_equals_one_device.py",
    "tests/distributed/test_collectives.py",
    "tests/distributed/test_all_reduce.py",
    "tests/browser/",
    "tests/playground/",
    "tests/lab/",
)


def group(item: pytest.Item) -> str:
    """The piece that a test belongs to, if that is not its file."""
    if item.get_closest_marker(ALONE):
        return ALONE
    return BUILT if "built" in getattr(item, "fixturenames", ()) else ""


def rank(item: pytest.Item) -> int:
    """Where a test stands in the order of all."""
    of = group(item)
    if of:
        return -1 if of == BUILT else len(LONG) + 1
    return next((i for i, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))


NOTES = pytest.StashKey[tempfile.TemporaryDirectory[str]]()  # where workers write their groups


def ask_for_groups(node: Any) -> None:
    """Tell a worker that starts where to write which tests are in a group."""
    notes = node.config.stash.setdefault(NOTES, tempfile.TemporaryDirectory(prefix="groups-"))
    node.workerinput["groups"] = str(Path(notes.name, node.gateway.id))


def tell_groups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where this is a worker: the scheduler, in another process, sees no marks and no fixtures."""
    if told := getattr(config, "workerinput", {}).get("groups"):
        Path(told).write_text(json.dumps({item.nodeid: group(item) for item in items}))


class Pieces(LoadScopeScheduling):
    """Gives the next piece to the worker that has nothing left; the last one is `ALONE`.

    A worker begins its last test only when it knows the one after it, or that there is none. So
    the first worker that runs out of work is shut down, and the other one takes the last piece as
    soon as no test is under way beside it.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the order is ours
        self.groups: dict[str, str] = {}

    def add_node_collection(self, node: Any, collection: Any) -> None:
        self.groups |= json.loads(Path(node.workerinput["groups"]).read_text())
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        return self.groups[nodeid] or nodeid.partition("::")[0]

    def _has_to_wait(self, node: Any) -> bool:
        """Are only the tests left that run alone, and another worker still runs something?"""
        if ALONE in self.workqueue:
            self.workqueue.move_to_end(ALONE)  # after what a worker left that has crashed
        others = [self.assigned_work[other] for other in self.nodes if other is not node]
        return [*self.workqueue] == [ALONE] and any(map(self._pending_of, others))

    def _assign_work_unit(self, node: Any) -> None:
        if not self._has_to_wait(node):
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        others = [other for other in self.nodes if other is not node and not other.shutting_down]
        if self._has_to_wait(node) and others and self._pending_of(self.assigned_work[node]) <= 2:
            node.shutdown()
        else:
            super()._reschedule(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        for other in self.nodes:  # it may have waited for this
            if other is not node:
                self._reschedule(other)
