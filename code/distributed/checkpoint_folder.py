"""Checkpoint folder: each checkpoint in it is whole, or isn't there.

    .step-00000010.partial, while ranks write → step-00000010, when all of it is on the disk

A folder gets its name by one `rename`, which a file system does wholly or not at all: a kill
leaves the last checkpoint whole.
"""

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from distributed import Group
from distributed.launching import launch
from distributed.replicas import broadcast_text
from distributed.runtime.report import RankError
from distributed.runtime.script import run_script

NAME = re.compile(r"step-(\d+)|\.step-(\d+)\.old")


@contextlib.contextmanager
def new_checkpoint(folder: str | Path, step: int, group: Group) -> Iterator[Path]:
    """A path for all ranks to write into, which becomes folder/step-N at the end of the block.

    Every rank must come to the end, or none. An older one of that step is replaced.
    """
    folder = Path(folder)
    final = path_of(folder, step)
    partial, old = (folder / f".{final.name}.{end}" for end in ("partial", "old"))
    if group.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    group.barrier()
    yield partial
    group.barrier()
    if group.rank == 0:
        if final.exists():
            final.rename(old)
        sync_entries(partial)
        partial.rename(final)
        sync_entries(folder)
        tidy(folder)
    group.barrier()


def sync_entries(folder: Path) -> None:
    """When this returns, the names of what is in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def tidy(folder: Path) -> None:
    """Remove what is not finished, or replaced; an old folder that nothing replaced is restored."""
    for step, path in steps(folder).items():
        if path.suffix == ".old":
            path.rename(path_of(folder, step))
    for useless in (*folder.glob(".step-*.partial"), *folder.glob(".step-*.old")):
        shutil.rmtree(useless)


def path_of(folder: str | Path, step: int) -> Path:
    return Path(folder) / f"step-{step:08}"


def by_step(paths: Iterable[Path]) -> dict[int, Path]:
    """Step → path, in order. A folder of any other name is the user's own."""
    matches = ((NAME.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(match[1] or match[2]), path) for match, path in matches if match))


def steps(folder: str | Path) -> dict[int, Path]:
    """Step → its whole checkpoint, in order; the old one where a kill was between two renames."""
    return by_step((*Path(folder).glob(".step-*.old"), *Path(folder).glob("step-*")))


def as_rank_0_found(found: dict[int, Path], folder: str | Path, group: Group) -> dict[int, Path]:
    """`steps(folder)` of rank 0, on every rank.

    A listing can be stale on one host, and ranks that choose for themselves mix two steps.
    """
    text = " ".join(["names:", *(path.name for path in found.values())])
    names = broadcast_text(text, group).split()[1:]
    return by_step(Path(folder) / name for name in names)


def latest(group: Group, folder: str | Path) -> int | None:
    """The last step that is whole, or None: the same answer on every rank. All must ask."""
    return max(as_rank_0_found(steps(folder), folder, group), default=None)


def save_three(group: Group, folder: str) -> None:
    """Write steps 10, 20 and 30; the last rank is killed while it writes step 30."""
    for step in (10, 20, 30):
        with new_checkpoint(folder, step, group) as path:
            path.mkdir(exist_ok=True)
            (path / f"rank-{group.rank}").write_text(f"weights of step {step}")
            if step == 30 and group.rank == group.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)


def main(ranks: int = 2) -> None:
    """A kill in the third checkpoint: the second one is whole, and the next save tidies up."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(RankError):
            launch(save_three, folder, ranks=ranks, device="cpu")
        print("there:", *sorted(os.listdir(folder)))
        assert list(steps(folder)) == [10, 20]
        assert launch(latest, folder, ranks=ranks, device="cpu") == [20] * ranks


if __name__ == "__main__":
    run_script(main)
