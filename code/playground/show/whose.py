"""Figures that show which examples are in each array of a training step, made by running the code.

A cell has a slot for each example, which is filled if the cell depends on that example. A cell with
only some of its slots filled is a partial sum and is hatched; a cell with all of them filled is
complete and framed. All frames are shown below each other until `book/_static/frames.js` runs and
shows one at a time.
"""

import contextlib
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from distributed import Group, launch
from distributed.dp import DataParallel, shard
from distributed.single_device import Arrays, SingleDevice, Sizes, einsum, initial_weights
from playground.show.colours import RANKS

WIDTH = 400  # px: as wide as on a phone, so that its text isn't scaled down


class Box(NamedTuple):
    """Position and size of a cell (px)."""

    x: float
    y: float
    wide: float
    high: float


class Frame(NamedTuple):
    """One picture of a figure, and its caption."""

    drawing: str
    height: float
    caption: str


class Frames:
    """A figure to step through. With several `runs` (ranks → frames), a slider selects one."""

    def __init__(self, name: str, runs: dict[int, list[Frame]], start: int = 4):
        """It opens with `start` ranks."""
        self.name, self.runs = name, runs
        self.start = start if start in runs else next(iter(runs))

    def _repr_html_(self) -> str:
        runs = "".join(self._run(ranks) for ranks in self.runs)
        return f'<div class="frames" role="group" aria-label="{escape(self.name)}">{runs}</div>'

    def _run(self, ranks: int) -> str:
        frames = enumerate(self.runs[ranks])
        figures = "".join(self._figure(f"whose-{ranks}-{i}", frame) for i, frame in frames)
        hidden = "" if ranks == self.start else " hidden"
        return f'<div class="frames-run" data-ranks="{ranks}"{hidden}>{figures}</div>'

    def _figure(self, name: str, frame: Frame) -> str:
        """One picture; `name` is the ID of its pattern, which no other picture may have."""
        drawing = frame.drawing.replace("url(#hatch)", f"url(#{self.name[:3]}{name})")
        hatch = HATCH.replace("NAME", self.name[:3] + name) if drawing != frame.drawing else ""
        return (
            f'<figure><svg viewBox="0 0 {WIDTH} {frame.height:g}" role="img" '
            f'aria-label="{escape(frame.caption)}">{hatch}{drawing}</svg>'
            f"<figcaption>{escape(frame.caption)}</figcaption></figure>"
        )

    def __repr__(self) -> str:
        return "\n".join(frame.caption for frame in self.runs[self.start])


HATCH = (
    '<defs><pattern id="NAME-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#777"/>'
    '<rect width="3" height="6" fill="#fff"/></pattern><mask id="NAME">'
    '<rect width="100%" height="100%" fill="url(#NAME-stripes)"/></mask></defs>'
)


def cell(box: Box, colours: Sequence[str | None], partial: bool = False, done: bool = False) -> str:
    """A cell with a slot for each color; None is an empty slot."""
    wide = box.wide / len(colours)
    slots = []
    for i, colour in enumerate(colours):
        fill = f'fill="{colour}"' if colour else 'class="steps-slot"'
        hatched = ' mask="url(#hatch)"' if colour and partial else ""
        slots.append(
            f'<rect x="{box.x + i * wide:g}" y="{box.y:g}" width="{wide:g}" '
            f'height="{box.high:g}" {fill}{hatched}/>'
        )
    frame = "steps-part steps-complete" if done else "steps-part"
    return (
        f"{''.join(slots)}"
        f'<rect class="{frame}" x="{box.x:g}" y="{box.y:g}" width="{box.wide:g}" '
        f'height="{box.high:g}" rx="3"/>'
    )


def text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(words)}</text>'


# ------------------------------------------------ one device: which arrays contain which examples


def examples_in_arrays(b: int = 4) -> Frames:
    """Change one example at a time, and record which elements of which arrays change."""
    sizes = Sizes(b=b, d=3, f=4, o=2)
    arrays = dependences(sizes)
    said = [
        "x[b, d]: a batch of four examples, with one row and one color per example.",
        "h[b, f], the hidden units: each row was computed from one example and from nothing else.",
        "y[b, o], the outputs: one example per row. So far no example has needed any other.",
        "dy[b, o], the gradient of the loss at the outputs: still one example per row.",
        "dh[b, f], the gradient at the hidden units, from dy and W1: again one example per row.",
        "dW1[f, o], the gradient of the second layer's weights: b is summed over, so all four "
        "examples are in every cell.",
        "dW0[d, f], the gradient of the first layer's weights: the same. Examples meet only here, "
        "in the gradients of the weights.",
    ]
    places = {"x": (0, 0), "h": (1, 0), "y": (2, 0), "dy": (2, 1), "dh": (1, 1)}
    places |= {"dW1": (1, 2), "dW0": (0, 2)}
    lefts, tops = (4, 160, 322), (26, 168, 296)
    frames = []
    for shown, caption in enumerate(said, start=1):
        parts = [text(4, 14, "forward →"), text(4, 182, "← backward")]
        for name in [*places][:shown]:
            column, row = places[name]
            parts.append(grid(name, arrays[name], lefts[column], tops[row]))
        frames.append(Frame("".join(parts), 420, caption))
    return Frames("which examples are in which array of one training step", {1: frames})


def grid(name: str, whose: np.ndarray, left: float, top: float) -> str:
    """An array whose[rows, columns, examples] as cells under its name."""
    rows, columns, examples = whose.shape
    parts = [text(left, top + 10, name)]
    for row in range(rows):
        for column in range(columns):
            has = whose[row, column]
            colours = [RANKS[i] if has[i] else None for i in range(examples)]
            box = Box(left + column * 36, top + 18 + row * 24, 32, 20)
            parts.append(cell(box, colours, done=bool(has.all())))
    return "".join(parts)


def dependences(sizes: Sizes) -> dict[str, np.ndarray]:
    """For each array of a step, changed[..., i]: does the element depend on example i?"""
    random = np.random.default_rng(0)
    x, dy = random.random((sizes.b, sizes.d)), random.random((sizes.b, sizes.o))
    weights = {name: abs(w) for name, w in initial_weights(sizes, dtype="float64").items()}

    def step(x: np.ndarray, dy: np.ndarray) -> Arrays:
        model = SingleDevice(weights)
        y, grads = model.forward(x), model.backward(dy)
        dh = einsum("bo,fo->bf", dy, weights["layer_1/weights"]) * (model.h > 0)
        named = {"dW1": grads["layer_1/weights"], "dW0": grads["layer_0/weights"]}
        return {"x": x, "h": model.h, "y": y, "dy": dy, "dh": dh, **named}

    before, found = step(x, dy), dict[str, list[np.ndarray]]()
    for i in range(sizes.b):
        other_x, other_dy = x.copy(), dy.copy()
        other_x[i] += 1.0
        other_dy[i] += 1.0
        for name, array in step(other_x, other_dy).items():
            found.setdefault(name, []).append(array != before[name])
    return {name: np.stack(changed, axis=-1) for name, changed in found.items()}


# ------------------------------------------------ data parallelism: rows that are in a gradient


def data_parallel_step(ranks: Sequence[int] = (4,), rows: int = 8) -> Frames:
    """One step of `DataParallel` on real ranks: which rows each rank has, and which are in dW."""
    with contextlib.redirect_stdout(io.StringIO()):
        runs = {n: _pictures(launch(rows_in_gradients, rows, ranks=n), rows) for n in ranks}
    return Frames("one step of data parallelism", runs)


def _pictures(recorded: Sequence[tuple[list[int], int, int]], rows: int) -> list[Frame]:
    """Five frames, from what each rank recorded: its rows, its own gradient, and the average."""
    ranks = len(recorded)
    owner = {row: rank for rank, (mine, *_) in enumerate(recorded) for row in mine}
    local = [partial for _, partial, _ in recorded]
    averaged = [whole for _, _, whole in recorded]
    captions = [
        f"A batch of {rows} rows, and {ranks} ranks with the same weights W.",
        "Each rank takes its share of the rows. The weights aren't divided.",
        "Forward and backward pass. Without any message, each rank has the gradient dW of its own "
        "rows. It's one part of a sum, so it is hatched.",
        "All-reduce. Now every rank has the gradient of all rows, and it's the same on all ranks.",
        "All ranks take the same step. Their weights stay equal, so no rank has to send them.",
    ]
    bits = [[0] * ranks, [0] * ranks, local, averaged, averaged]
    frames = []
    for number, caption in enumerate(captions):
        taken = owner if number else {}
        drawing = [_batch(rows, taken)]
        for rank, (mine, *_) in enumerate(recorded):
            stepped = number == len(captions) - 1
            drawing.append(_lane(rank, mine if taken else [], bits[number][rank], owner, stepped))
        frames.append(Frame("".join(drawing), 64 + 40 * ranks, caption))
    return frames


def rows_in_gradients(group: Group, rows: int) -> tuple[list[int], int, int]:
    """This rank's rows; its gradient before and after the average, with row i as the number 2ⁱ.

    With one weight per layer and inputs of 1, the gradient of W1 is the sum of dy over the rows.
    """
    mine = shard(np.arange(rows), group.rank, group.size)
    names = ("layer_0/weights", "layer_1/weights")
    model = DataParallel({name: np.ones((1, 1)) for name in names}, group)
    model.forward(np.ones((len(mine), 1)))
    dy = 2.0 ** mine[:, None]
    local = SingleDevice.backward(model, dy)["layer_1/weights"]
    averaged = model.backward(dy)["layer_1/weights"]
    return mine.tolist(), int(local.item()), int(averaged.item() * group.size)


def _batch(rows: int, owner: dict[int, int]) -> str:
    parts = [text(2, 28, "batch")]
    for row in range(rows):
        colour = RANKS[owner[row]] if row in owner else None
        parts.append(cell(_row(row, 10), [colour]))
    return "".join(parts)


def _row(row: int, y: float) -> Box:
    return Box(70 + row * 18, y, 16, 26)


def _lane(rank: int, mine: list[int], bits: int, owner: dict[int, int], stepped: bool) -> str:
    """A rank: its rows, its weights, and its gradient with a slot for each row of the batch."""
    y = 60 + 40 * rank
    parts = [
        f'<circle cx="8" cy="{y + 13}" r="6" fill="{RANKS[rank]}"/>',
        text(18, y + 18, f"rank {rank}"),
        cell(Box(218, y, 54, 26), [None], done=stepped),
        text(221, y + 18, "new W" if stepped else "W"),
    ]
    for row in mine:
        parts.append(cell(_row(row, y), [RANKS[rank]]))
    if bits:
        done = bits == 2 ** len(owner) - 1
        slots = [RANKS[owner[row]] if bits >> row & 1 else None for row in sorted(owner)]
        parts.append(cell(Box(276, y, 94, 26), slots, partial=not done, done=done))
        parts.append(text(373, y + 18, "dW"))
    return "".join(parts)
