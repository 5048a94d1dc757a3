"""Figures to step through in the part *DDP*: waiting buckets, and shares of the data."""

from collections.abc import Sequence

import torch
from torch import nn

from distributed.bucketed_ddp import Bucket, Reducer, State
from playground.show.colours import RANKS
from playground.show.whose import Box, Frame, Frames, cell, text


def waiting_buckets(layers: int = 9, unused: int = 5) -> Frames:
    """A backward pass through the book's own `Reducer`, in which one gradient never comes."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(layers)]
    buckets = [Bucket(i, parameters[3 * i : 3 * i + 3], torch.zeros(3)) for i in range(layers // 3)]
    reducer = Reducer(buckets, None, lambda _, bucket: bucket)  # type: ignore[arg-type]
    reducer.start_pass()
    said = "The backward pass begins with the last layer. Each bucket waits for three gradients."
    frames = [_draw_buckets(reducer, layers, said)]
    for layer, parameter in zip(range(layers, 0, -1), parameters, strict=True):
        if layer == unused:
            continue
        sent, bucket = reducer.sent, reducer.bucket_of[parameter]
        reducer.gradient_ready(parameter)
        said = f"The gradient of layer {layer} is there."
        if reducer.sent > sent:
            said += f" Bucket {bucket.index} is full and leaves."
        elif not bucket.missing:
            said += f" Bucket {bucket.index} is full, but bucket {reducer.sent} must leave first."
        elif layer == unused - 1:
            said += f" The gradient of layer {unused} should have arrived before it."
        frames.append(_draw_buckets(reducer, layers, said))
    (missing,) = reducer.missing()
    stuck = reducer.bucket_of[missing].index
    said = (
        f"The backward pass is over. Layer {unused} had no part in the loss, so bucket {stuck} is "
        f"not full, and the bucket behind it can't leave either."
    )
    frames.append(_draw_buckets(reducer, layers, said))
    return Frames("buckets of a pass in which one gradient never comes", {1: frames}, 1)


def _draw_buckets(reducer: Reducer, layers: int, caption: str) -> Frame:
    parts = []
    for i, bucket in enumerate(reducer.buckets):
        top = 8 + 58 * i
        sent, full = bucket.state is State.REDUCING, not bucket.missing
        numbers = ", ".join(str(layers - 3 * i - place) for place in range(3))
        parts.append(text(4, top + 12, f"bucket {i}: layers {numbers}"))
        colours = [None if p in bucket.missing else RANKS[0] for p in bucket.parameters]
        parts.append(cell(Box(4, top + 18, 225, 26), colours, done=sent))
        state = "sent" if sent else "full, but not first" if full else "waits"
        parts.append(text(242, top + 36, state))
    return Frame("".join(parts), 184, caption)


def shares_of(ways: dict[str, list[list[int]]], captions: Sequence[str]) -> Frames:
    """For each way to share out examples, a lane for each rank with the examples that it reads."""
    frames = []
    for (way, shares), caption in zip(ways.items(), captions, strict=True):
        parts, seen = [text(4, 16, way)], set[int]()
        for rank, share in enumerate(shares):
            top = 28 + 38 * rank
            parts.append(text(4, top + 21, f"rank {rank}"))
            for place, example in enumerate(share):
                box = Box(80 + 78 * place, top, 72, 30)
                parts.append(cell(box, [RANKS[rank]], partial=example in seen, done=True))
                parts.append(_number(box, example))
                seen.add(example)
        frames.append(Frame("".join(parts), 28 + 38 * len(shares), caption))
    return Frames("which rank reads which examples", {len(shares): frames}, len(shares))


def _number(box: Box, number: int) -> str:
    """A number in the middle of a cell, on white: readable on any colour and on hatching."""
    x, y = box.x + box.wide / 2, box.y + box.high / 2
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="#fff"/><text x="{x:g}" y="{y + 5:g}" '
        f'style="fill: #000; text-anchor: middle">{number}</text>'
    )
