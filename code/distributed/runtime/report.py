"""Reports from ranks, readable as one text: output, errors, and the line where each rank waits.

Lines are printed whole, labelled with their rank. An error names the rank and the lines of the
user's code. If ranks hang, the report gives the line on which each of them waits.
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
    """An error in a world of ranks. The message is complete, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """IPython's traceback: the message alone, because the lines of `launch` don't help."""
        return [f"{type(self).__name__}: {self}"]


class RankError(WorldError, RuntimeError):
    """A rank raised an error or died, and the others were killed. `rank` is its number."""

    def __init__(self, rank: int, what: str):
        super().__init__(f"rank {rank} {what}")
        self.rank = rank


class RanksHang(WorldError, TimeoutError):
    """The ranks didn't finish in time; the message says on which line each of them waits."""


class Screen:
    """Terminal output: the lines of all ranks, and below them the progress bar of rank 0."""

    def __init__(self) -> None:
        self.bar = ""

    def show(self, lines: Iterable[str], bar: str) -> None:
        """Print whole lines above the bar, and redraw the bar if it has changed."""
        text = "".join(f"{line}\n" for line in lines)
        if text or bar != self.bar:
            wipe = f"\r{' ' * len(self.bar)}\r" if self.bar else ""
            print(f"{wipe}{text}{bar}", end="", flush=True)
            self.bar = bar


class Output:
    """Output of one rank, shown in whole lines with its number in front.

    A line ends in a newline. If carriage returns overwrite it, as in a progress bar, only its last
    state is shown. After LIMIT bytes in one call, lines are only counted. After FLOOD bytes, the
    caller stops ranks that print faster than STEADY.
    """

    LIMIT = 100_000  # bytes
    FLOOD = 5_000_000  # bytes
    STEADY = 100_000  # bytes/s; a training that prints each of its steps is slower
    LONGEST = 10_000  # bytes; a longer line is cut
    READS = 20  # more than a full pipe needs; a rank that goes on printing would never end it

    def __init__(self, rank: int, source: "Connection", screen: Screen):
        self.label, self.source, self.screen = f"[rank {rank}] ", source, screen
        self.has_bar = rank == 0
        self.rest, self.ended, self.size, self.hidden = b"", False, 0, 0
        os.set_blocking(source.fileno(), False)

    def show(self) -> bool:
        """Print the complete lines; returns whether there may be more to read immediately."""
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
        """The final state of a line, labelled with its rank."""
        states = [state for state in line.split(b"\r") if state]
        return self.label + (states[-1].decode("utf-8", "replace") if states else "")

    def is_flood(self, seconds: float) -> bool:
        """Whether a call that began so many seconds ago seems to print without end."""
        return self.size > max(self.FLOOD, self.STEADY * seconds)

    def end_call(self) -> None:
        """Show the rest of a call's output, and how many lines were hidden."""
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
    """An error's message and lines, as plain values that any process can unpickle."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return {
        "what": "".join(traceback.format_exception_only(error)).strip(),
        "frames": [f for f in frames if not is_machinery(f[0])] or frames[-1:],
    }


def is_machinery(path: str) -> bool:
    """Whether a file isn't the user's code but torch's, Python's or the runtime's."""
    runtime = Path(__file__).parent
    code = runtime.parents[1]
    ours = [
        f"{runtime}{os.sep}",
        str(runtime.parent / "launching.py"),
        str(code / "playground/tab"),
    ]
    theirs = [sysconfig.get_paths()["stdlib"], str(Path(os.__file__).parent), "<frozen"]
    if "torch" in sys.modules:  # a browser's tab has no torch
        theirs.append(str(Path(sys.modules["torch"].__file__ or "").parent))
    return path.startswith((*ours, *theirs))


def show_line(path: str, line: int, name: str) -> str:
    """`at file, line n, in function: code`; a notebook's cell is named by its number."""
    code = linecache.getline(path, line).strip()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cell = shell.compile.format_code_name(path) if shell else None
    where = f"{cell[0]} {cell[1]}" if cell else path.removeprefix(os.getcwd() + os.sep)
    return f"at {where}, line {line}, in {name}: {code}"


def where_ranks_stand(stacks: list[str], done: Collection[int]) -> str:
    """One line per rank, from Python's dumps of their stacks (innermost frame first).

    It shows the innermost line of the user's code, and the call in it in which the rank waits.
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
