"""What ranks say, told so that one reader can follow: output, errors, and where they stand.

Lines come whole and carry their rank's number. An error names the rank and the reader's own
lines. A world that hangs is described by the line on which each rank waits.
"""

import contextlib
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class WorldError(Exception):
    """Something went wrong in a world of ranks. The message is all that there is to tell."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message alone, for the lines of `launch` are no news."""
        return [f"{type(self).__name__}: {self}"]


class RankError(WorldError, RuntimeError):
    """A rank raised or died, and the others were ended. `rank` is its number."""

    def __init__(self, rank: int, what: str):
        super().__init__(f"rank {rank} {what}")
        self.rank = rank


class RanksHang(WorldError, TimeoutError):
    """The ranks did not finish in time; the message says on which line each of them stands."""


class Screen:
    """Where the lines of all ranks appear, and below them the progress bar of rank 0."""

    def __init__(self) -> None:
        self.bar = ""

    def show(self, lines: Iterable[str], bar: str) -> None:
        """Print whole lines above the bar, and draw the bar anew where it has changed."""
        text = "".join(f"{line}\n" for line in lines)
        if text or bar != self.bar:
            wipe = f"\r{' ' * len(self.bar)}\r" if self.bar else ""
            print(f"{wipe}{text}{bar}", end="", flush=True)
            self.bar = bar


class Output:
    """What one rank prints, shown in whole lines with its number in front.

    A line is what ends in a newline. Of what was written over with carriage returns, as progress
    bars are, only the last counts. After LIMIT bytes in one call, lines are counted, not shown.
    """

    LIMIT = 100_000  # bytes
    LONGEST = 10_000  # bytes; a longer line is cut
    READS = 20  # more than a full pipe has; who still writes then would be read for ever

    def __init__(self, rank: int, source: "Connection", screen: Screen):
        self.label, self.source, self.screen = f"[rank {rank}] ", source, screen
        self.has_bar = rank == 0
        self.rest, self.ended, self.size, self.hidden = b"", False, 0, 0
        os.set_blocking(source.fileno(), False)

    def show(self) -> bool:
        """Print the lines that have come whole; whether there may be more to read at once."""
        piece = b""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self.source.fileno(), 1 << 16)
            self.ended = not piece
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if self.rest and (self.ended or len(self.rest) >= self.LONGEST):
            lines.append(self.rest)
            self.rest = b""
        self._print(lines)
        return bool(piece)

    def _print(self, lines: list[bytes]) -> None:
        shown = []
        for line in lines:
            self.size += len(line) + 1
            if self.size <= self.LIMIT:
                shown.append(self.last_state(line))
            else:
                self.hidden += 1
        bar = self.last_state(self.rest) if self.has_bar and b"\r" in self.rest else ""
        self.screen.show(shown, bar if self.has_bar else self.screen.bar)

    def last_state(self, line: bytes) -> str:
        """A line as it looks in the end, labelled."""
        states = [state for state in line.split(b"\r") if state]
        return self.label + (states[-1].decode("utf-8", "replace") if states else "")

    def end_call(self) -> None:
        """Show what is left of a call's output, and say how much was not shown."""
        for _ in range(self.READS):
            if not self.show():
                break
        if self.rest:
            self._print([self.rest])
            self.rest = b""
        if self.hidden:
            self.screen.show([f"{self.label}… and {self.hidden:,} more lines"], "")
        self.size = self.hidden = 0


def describe(error: BaseException) -> dict[str, Any]:
    """What went wrong and on which lines, in plain values that any process can read."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return {
        "what": "".join(traceback.format_exception_only(error)).strip(),
        "frames": [f for f in frames if not is_machinery(f[0])] or frames[-1:],
    }


def is_machinery(path: str) -> bool:
    """Whether a line of this file is no news to a reader: torch, Python itself, the runtime."""
    runtime = Path(__file__).parent
    code = runtime.parents[1]
    ours = [
        f"{runtime}{os.sep}",
        str(runtime.parent / "launching.py"),
        str(code / "playground/tab"),
    ]
    theirs = [sysconfig.get_paths()["stdlib"], str(Path(os.__file__).parent), "<frozen"]
    if "torch" in sys.modules:  # where ranks are workers of a browser's tab, there is none
        theirs.append(str(Path(sys.modules["torch"].__file__ or "").parent))
    return path.startswith((*ours, *theirs))


def show_line(path: str, line: int, name: str) -> str:
    """`at file:line, in function: code`; a notebook's cell is called by its number."""
    code = linecache.getline(path, line).strip()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cell = shell.compile.format_code_name(path) if shell else None
    where = f"{cell[0]} {cell[1]}" if cell else path.removeprefix(os.getcwd() + os.sep)
    return f"at {where}, line {line}, in {name}: {code}"


def where_ranks_stand(stacks: list[str], done: Collection[int]) -> str:
    """One line a rank, from Python's own dumps of their stacks (innermost frame first).

    The line is the reader's own; the call in it that the rank waits in is named beside it.
    """
    lines = []
    for rank, stack in enumerate(stacks):
        frames = re.findall(r'File "(.*)", line (\d+) in (.*)', stack)
        mine = next((i for i, f in enumerate(frames) if not is_machinery(f[0])), None)
        if rank in done:
            lines.append(f"  rank {rank} is done")
        elif mine is None:
            lines.append(f"  rank {rank} has not begun the call")
        else:
            path, line, name = frames[mine]
            does = f"waits in {frames[mine - 1][2]}" if mine else "stands"
            lines.append(f"  rank {rank} {does} {show_line(path, int(line), name)}")
    return "\n".join(lines)
