"""Break things while `distributed.elastic` trains on several hosts, and note the result.

with laboratory(2) as lab:
    training = Training(lab, folder, until=30, every=3)
    training.wait_for_step(5)
    lab.hosts[1].cut()
    training.wait_for_start(2)
"""

import json
import queue
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from playground.lab.hosts import Laboratory

ELASTIC = str(Path(__file__).parents[2] / "distributed/elastic.py")
STEP = re.compile(r"step (\d+) on (\d+) ranks: loss ([\d.]+)")
# After 3 s a host counts as lost. The others then wait 2 s for additional hosts.
RENDEZVOUS = ("last_call_timeout=2", "keep_alive_interval=1", "keep_alive_max_attempt=3")


class Line(NamedTuple):
    """A line of output: its time (s, `time.monotonic`), its host, and its text."""

    at: float
    host: int
    text: str


class Training:
    """A run of `elastic.py` on all hosts of a laboratory, from one checkpoint to the next."""

    def __init__(
        self, lab: Laboratory, folder: str | Path, per_host: int | Sequence[int] = 2,
        patience: float = 5.0, fewest: int = 1, **options: Any,
    ):  # fmt: skip
        self.lab, self.folder = lab, Path(folder)
        given = {"folder": folder, "patience": patience, **options}
        words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
        self.lines: list[Line] = []
        self._new: queue.Queue[Line] = queue.Queue()
        self.processes = lab.start(
            [ELASTIC, *words],
            per_host,
            options=[f"--nnodes={fewest}:{len(lab.hosts)}", "--max-restarts=1000",
                     "--monitor-interval=0.1"],
            rendezvous=RENDEZVOUS,
        )  # fmt: skip
        for host, process in enumerate(self.processes):
            threading.Thread(target=self._read, args=(host, process), daemon=True).start()

    def _read(self, host: int, process: Any) -> None:
        for text in process.stdout:
            self._new.put(Line(time.monotonic(), host, text.rstrip()))

    def wait_for(self, pattern: str, timeout: float = 120.0) -> tuple[Line, "re.Match[str]"]:
        """The next new line that matches this pattern.

        Raises TimeoutError with the last lines if none arrives in time.
        """
        until = time.monotonic() + timeout
        while True:
            try:
                line = self._new.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                said = "\n".join(line.text for line in self.lines[-30:])
                raise TimeoutError(f"no line with {pattern!r} in {timeout:g} s:\n{said}") from None
            self.lines.append(line)
            if match := re.search(pattern, line.text):
                return line, match

    def wait_for_step(self, step: int) -> Line:
        """Wait until step number `step`, or a later one, is done."""
        while True:
            line, match = self.wait_for(STEP.pattern)
            if int(match[1]) >= step:
                return line

    def wait_for_start(self, ranks: int) -> tuple[Line, int]:
        """Wait for the first step on `ranks` ranks; returns its line and its number."""
        while True:
            line, match = self.wait_for(STEP.pattern)
            if int(match[2]) == ranks:
                return line, int(match[1])

    def wait_for_end(self) -> list[float]:
        """Wait until all steps are done; returns their losses."""
        self.wait_for(r"\d+ steps, last loss")
        last = max(self.folder.glob("step-*"))
        return losses_in(last)

    def curve(self) -> list[tuple[int, int, float]]:
        """Step, number of ranks and loss of all steps so far, in the order of their execution."""
        found = (STEP.search(line.text) for line in self.lines)
        return [(int(one[1]), int(one[2]), float(one[3])) for one in found if one]

    def committed(self) -> int:
        """The last step with a complete checkpoint, or 0."""
        return max(
            (int(p.name.removeprefix("step-")) for p in self.folder.glob("step-*")), default=0
        )


def losses_in(checkpoint: Path) -> list[float]:
    """The losses that are stored in a checkpoint of `elastic.py`."""
    import torch.distributed.checkpoint as dcp

    found: dict[str, Any] = {"extra": None}
    dcp.load(found, checkpoint_id=checkpoint, no_dist=True)
    (extra,) = found["extra"]
    return json.loads(extra["losses"])
