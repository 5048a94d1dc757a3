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
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


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


class Output:
    """What one rank prints, shown in whole lines with its number in front."""

    def __init__(self, rank: int, source: Connection):
        self.label, self.source = f"[rank {rank}] ", source
        self.rest, self.ended = b"", False
        os.set_blocking(source.fileno(), False)

    def show(self) -> None:
        """Print the lines that have come whole; at the end of the stream, also the last piece."""
        text = self.rest
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.source.fileno(), 1 << 16):
                text += piece
            self.ended = True
            text += b"\n" * (bool(text) and not text.endswith(b"\n"))
        *lines, self.rest = text.split(b"\n")
        labelled = (f"{self.label}{line.decode('utf-8', 'replace')}\n" for line in lines)
        if lines:
            print("".join(labelled), end="", flush=True)


def describe(error: BaseException) -> dict[str, Any]:
    """What went wrong and on which lines, in plain values that any process can read."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return {
        "what": "".join(traceback.format_exception_only(error)).strip(),
        "frames": [f for f in frames if not is_machinery(f[0])] or frames[-1:],
    }


def is_machinery(path: str) -> bool:
    """Whether a line of this file is no news to a reader: torch, Python itself, these modules."""
    here = Path(__file__).parent
    ours = [str(here / f"{module}.py") for module in ("group", "rank", "report", "script", "world")]
    theirs = [str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"], "<frozen"]
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
