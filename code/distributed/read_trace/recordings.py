"""Recordings of each rank: assigns files to ranks, and chooses one recording per rank.

`torch.profiler` writes a new file for each cycle of its schedule, and torchtitan a new folder. So
several files can be recordings of the same rank.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from distributed.read_trace.rank_trace import RankTrace

WORKER = re.compile(
    r"(.+)\.\d{9,}\.pt\.trace\.json(\.gz)?"
)  # as tensorboard_trace_handler names it


def one_for_each_rank(traces: Sequence[RankTrace], number: int = 0) -> list[RankTrace]:
    """One recording per rank, in rank order.

    `number` counts the recordings of a rank from 1, in order of time. By default it is the last
    one whose steps were recorded on all ranks, or the last one if there are no such steps. If there
    was a choice, the first trace gets a note. Raises ValueError for a number that a rank doesn't
    have.
    """
    ranks = by_rank(traces)
    for rank, recordings in ranks.items():
        if number and not 1 <= number <= len(recordings):
            count = f"{len(recordings)} recording{'s' if len(recordings) > 1 else ''}"
            raise ValueError(f"--recording {number}: rank {rank} has only {count}")
    if number:
        chosen = [recordings[number - 1] for recordings in ranks.values()]
    else:
        chosen = last_together([*ranks.values()])
    most = max(len(recordings) for recordings in ranks.values())
    if most > 1:
        one = len(ranks) == 1
        subject = f"rank {chosen[0].rank} has" if one else "each rank has up to"
        which = f"recording {number}" if number else "the last one"
        file = f", {chosen[0].name}" if one else ""
        chosen[0].note(
            f"{subject.capitalize()} {most} recordings, in a file each: this is {which}{file}."
        )
    return chosen


def by_rank(traces: Sequence[RankTrace]) -> dict[int, list[RankTrace]]:
    """The recordings of each rank in order of time.

    A trace without a rank gets a number that no other rank has, in the order of the files. Files
    named after the same worker belong to the same rank.
    """
    taken = {trace.rank for trace in traces}
    free = (rank for rank in range(2 * len(traces)) if rank not in taken)
    workers: dict[str, int] = {}
    found = defaultdict(list)
    for at, trace in enumerate(traces):
        if trace.rank < 0:
            named = WORKER.fullmatch(trace.name)
            worker = named[1] if named else f"file {at}"
            if worker not in workers:
                workers[worker] = next(free)
            trace.rank = workers[worker]
        found[trace.rank].append(trace)
    for recordings in found.values():
        recordings.sort(key=lambda trace: trace.begin)  # at the same time: in the order of files
    return {rank: found[rank] for rank in sorted(found)}


def last_together(ranks: Sequence[Sequence[RankTrace]]) -> list[RankTrace]:
    """The last recording of each rank, of steps that were recorded on all of them if possible."""
    for last in reversed(ranks[0]):
        same = [[each for each in rank if each.numbers == last.numbers] for rank in ranks]
        if all(same):
            return [recordings[-1] for recordings in same]
    return [recordings[-1] for recordings in ranks]
