"""Average many small tensors with few messages. The check counts messages and bytes.

Only the counts decide. Times are shown, too, so that you see what fewer messages are worth.
"""

from collections.abc import Callable
from typing import Any

import torch

from distributed import Group
from distributed.all_reduce import ring_sent
from distributed.ring_group import RingGroup
from distributed.runtime.trace import Trace
from playground.exercises.check import Draw, Wrong, on_ranks
from playground.exercises.suspects import expect, normal
from playground.exercises.watch import paired, told

HINTS = [
    "Each message costs time, however short it is. So copy many tensors into one flat tensor, "
    "average that, and copy the means back.",
    "`torch.cat([g.reshape(-1) for g in gradients])` makes the flat tensor, and "
    "`flat.split([g.numel() for g in gradients])` divides it again.",
    "torch.cat of float32 and float64 returns float64, which doubles the bytes. Make one flat "
    "tensor per dtype.",
]
LOOK = {  # words of a message → the name in the answer to look at
    "the sum over ranks": "all_reduce",
    "in 8 bytes": "cat|concatenate",
    "computed in float32": "float|float32",
    "length of the largest": "zeros|new_zeros|pad",
    "copy the means back": "all_reduce",
    "many tensors into one message": "all_reduce",
}
Shapes = list[tuple[tuple[int, ...], torch.dtype]]
SHAPES: Shapes = [
    *[((n % 5 + 1, 3), torch.float32) for n in range(12)],
    ((7,), torch.float64),
    ((), torch.float32),
    ((0, 4), torch.float32),
    ((5, 2), torch.float64),
    ((40,), torch.float32),
]


def drawn(draw: Draw) -> Shapes:
    """Different shapes of the same kinds, in a different order; the fourth has two dimensions."""
    made: Shapes = [
        *[((draw(1, 6), draw(2, 4)), torch.float32) for _ in range(draw(8, 14))],
        *[((draw(1, 9),) * draw(0, 2), torch.float64) for _ in range(draw(2, 3))],
        ((0, draw(1, 4)), torch.float32),
        ((draw(41, 60),), torch.float32),
    ]
    order = draw.random.permutation(len(made) - 4) + 4
    return [*made[:4], *(made[at] for at in order)]


def gradients(rank: int, shapes: Shapes) -> list[torch.Tensor]:
    """A rank's gradients. One is a transpose, so it isn't contiguous."""
    made = [normal(*shape, seed=(rank, i)).to(dtype) for i, (shape, dtype) in enumerate(shapes)]
    made[3] = made[3].t().contiguous().t()
    return made


def run(
    group: Group, answer: Callable[..., Any], shapes: Shapes
) -> tuple[list[torch.Tensor], int, int]:
    rings, mine = RingGroup(group), gradients(group.rank, shapes)
    given = list(mine)
    rings.trace = trace = Trace(group.rank)
    answer(rings, given)
    return mine, trace.sent, trace.messages


def listed(group: Group, given: list[torch.Tensor]) -> None:
    for gradient in given:
        group.all_reduce(gradient, "avg")


def race(group: Group, answer: Callable[..., Any]) -> tuple[float, float, float]:
    mine, other = gradients(group.rank, SHAPES), gradients(group.rank, SHAPES)
    return paired(group, lambda: answer(group, mine), lambda: listed(group, other))


def listing(rank: int, ranks: int, shapes: Shapes) -> tuple[int, int]:
    """Bytes and messages of one all-reduce per tensor, by the ring's formula."""
    sent = [ring_sent(g.numel(), rank, ranks) for g in gradients(rank, shapes)]
    sizes = [dtype.itemsize for _, dtype in shapes]
    elements = zip(sent, sizes, strict=True)
    return sum(one.elements * size for one, size in elements), sum(one.messages for one in sent)


def check(average: Callable[..., Any], *, draw: Draw) -> str:
    said = check_case(average, SHAPES, 2)
    check_case(average, drawn(draw), 3)
    return f"{said} {told(on_ranks(race, average, ranks=2)[0], 'the listing')}."


def check_case(average: Callable[..., Any], shapes: Shapes, ranks: int) -> str:
    """A message about a right answer. Raises `Wrong`."""
    results = on_ranks(run, average, shapes, ranks=ranks)
    each = [gradients(rank, shapes) for rank in range(ranks)]
    for rank, (found, _, _) in enumerate(results):
        check_numbers(rank, found, each)
    bytes_of_all, messages_of_all, before, messages_before = 0, 0, 0, 0
    for rank, (_, sent, messages) in enumerate(results):
        listed = listing(rank, ranks, shapes)
        if messages >= listed[1]:
            raise Wrong(
                f"The means are right, but rank {rank} of {ranks} sends {messages} messages "
                f"for {len(shapes)} tensors, and the listing sends {listed[1]}. Put many tensors "
                "into one message"
            )
        bytes_of_all, messages_of_all = bytes_of_all + sent, messages_of_all + messages
        before, messages_before = before + listed[0], messages_before + listed[1]
    least = len({dtype for _, dtype in shapes}) * 2 * (ranks - 1) * ranks
    if bytes_of_all > before:
        why = cause(ranks, bytes_of_all, shapes)
        raise Wrong(
            f"The means are right, and {ranks} ranks send {messages_of_all} messages instead of "
            f"{messages_before}. But they send {bytes_of_all} bytes, {bytes_of_all / before:.3g} "
            f"times as many as the listing's {before}. {why}"
        )
    if messages_of_all > 2 * least:
        raise Wrong(
            f"{ranks} ranks send {messages_of_all} messages, fewer than the listing's "
            f"{messages_before}, but {least} are enough: one all-reduce per dtype"
        )
    return (
        f"Right: the same means, and {ranks} ranks send {messages_of_all} messages instead of "
        f"{messages_before}, with {bytes_of_all} bytes instead of {before}."
    )


def check_numbers(rank: int, found: list[torch.Tensor], each: list[list[torch.Tensor]]) -> None:
    ranks = len(each)
    for i, (x, same) in enumerate(zip(found, zip(*each, strict=True), strict=True)):
        total = torch.stack([g.double() for g in same]).sum(0)
        last = torch.zeros(()) if not x.numel() else same[rank]
        suspects = {
            "That is the sum over ranks, not the mean": total,
            "It hasn't changed: copy the means back into the tensors themselves": last,
        }
        here = f"{ranks} ranks, rank {rank}: "
        expect(
            f"gradients[{i}], shape {list(x.shape)}, number ",
            x,
            total / ranks,
            suspects,
            1e-5,
            here,
        )
        if x.dtype == torch.float64 and (x - total / ranks).abs().max() > 1e-12:
            raise Wrong(
                f"{here}gradients[{i}] is float64, and its mean is off by "
                f"{float((x - total / ranks).abs().max()):.1g}: it was computed in float32"
            )


def cause(ranks: int, found: int, shapes: Shapes) -> str:
    """Which typical mistake costs so many bytes."""
    elements = sum(g.numel() for g in gradients(0, shapes))
    size = sum(g.nbytes for g in gradients(0, shapes))
    largest = max(g.numel() for g in gradients(0, shapes))
    if abs(found - 2 * (ranks - 1) * elements * 8) < 64:
        return "Every number is sent in 8 bytes, but most of them take only 4"
    if found >= 2 * (ranks - 1) * len(shapes) * largest * 4:
        return "All tensors were padded to the length of the largest"
    if ranks > 2 and abs(found - ranks * (ranks - 1) * size) < 64:
        return "Every rank sends all its numbers to every other rank"
    return "Send each number in its own dtype, and only once"
