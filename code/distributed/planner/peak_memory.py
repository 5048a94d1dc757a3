"""All that a rank must hold in a step: model states, activations, buffers of communication.

    model states: `model_states.per_rank`
    activations: rows · t · (16d + 4 + heads) elements a layer, and each word's score in the loss
    ZeRO-3 gathers two blocks and holds the gradient of one; ZeRO-2 fills two buckets; DDP and
    ZeRO-1 send gradients from where they are, so their buckets are the gradients themselves

The formula of activations is that of this book's transformer, whose attention keeps no matrix of
t × t (Dao et al. 2022). Frameworks lose some memory between pieces: `allowance` is a guess at it.
"""

from typing import NamedTuple

from distributed.model_states import Recipe, per_rank
from distributed.planner.shapes import PLAIN
from distributed.runtime.script import run_script


class Shape(NamedTuple):
    """A transformer: so many layers, width d, heads, context t, and v words."""

    layers: int
    d: int
    heads: int
    t: int
    v: int

    @property
    def block(self) -> int:
        """Parameters of one layer: attention 4d², network 8d², their biases, and two norms."""
        return 12 * self.d**2 + 13 * self.d

    @property
    def parameters(self) -> int:
        """Of the whole model, the last layer tied to the embedding."""
        return self.layers * self.block + (self.v + self.t + 2) * self.d


def activations(
    shape: Shape, rows: float, size: float, checkpoint: bool = False, scores: float = PLAIN
) -> float:
    """Bytes when the loss begins its backward pass, `size` bytes for each number of the layers.

    A layer keeps the inputs of its norms (2d), their results (2d), q, k and v (3d), attention's
    result (d), and 4d twice around the gelu; 4 numbers of the norms and one for each head. With
    `checkpoint` only each layer's input is kept, and one layer is computed again at a time. The
    end keeps the input and the result of a norm, its 2 numbers, and `scores` bytes for each word's
    score: `PLAIN` at the peak, of which the forward pass leaves `LOGARITHM`.
    """
    tokens = rows * shape.t
    layer = tokens * (16 * shape.d + 4 + shape.heads)
    kept = shape.layers * tokens * shape.d + layer if checkpoint else shape.layers * layer
    return size * (kept + tokens * (2 * shape.d + 2)) + scores * tokens * shape.v


def bytes_at_peak(
    shape: Shape,
    rows: float,
    ranks: int,
    stage: int,
    recipe: Recipe,
    checkpoint: bool = False,
    bucket: float = 25e6,
    allowance: float = 0.0,
    parameters: float | None = None,
) -> dict[str, float]:
    """Bytes on each rank at the peak of a step, by what they are for.

    `rows` are those of this rank, `bucket` is in bytes, `allowance` a share of all the others.
    `parameters` counts if it is given, spread evenly over the layers, and not those of the shape.
    Raises ValueError for numbers that make no sense.
    """
    if rows < 0 or min(shape) < 1 or bucket < 0 or allowance < 0:
        rest = f"rows={rows}, bucket={bucket}, allowance={allowance}"
        raise ValueError(f"{shape}, {rest}: sizes are 1 or more, the rest 0 or more")
    count = shape.parameters if parameters is None else parameters
    block = shape.block if parameters is None else parameters / shape.layers
    found = per_rank(count, ranks, stage, recipe)
    found["activations"] = activations(shape, rows, recipe.parameters, checkpoint)
    if stage == 3:
        found["gathered"] = 2 * block * recipe.parameters
        found["buckets"] = block * recipe.gradients
    elif stage == 2:
        found["buckets"] = min(2 * bucket, count * recipe.gradients)
    if allowance:
        found["allowance"] = allowance * sum(found.values())
    return found


GPT = {  # Brown et al. 2020, table 2.1; it prints 5140 for 13B, which are 40 heads of 128
    "GPT-3 small": Shape(12, 768, 12, 2048, 50257),
    "GPT-3 XL": Shape(24, 2048, 24, 2048, 50257),
    "GPT-3 6.7B": Shape(32, 4096, 32, 2048, 50257),
    "GPT-3 13B": Shape(40, 5120, 40, 2048, 50257),
    "GPT-3 175B": Shape(96, 12288, 96, 2048, 50257),
}


def main(ranks: int = 64, rows: int = 1) -> None:
    """The models of GPT-3's paper, in GB on each rank, with one row each."""
    recipe = Recipe(2, 2, 4, 8)
    for name, shape in GPT.items():
        sizes = [
            sum(bytes_at_peak(shape, rows, ranks, stage, recipe).values()) for stage in range(4)
        ]
        shown = ", ".join(f"{size / 1e9:.1f}" for size in sizes)
        print(f"{name:12} {shape.parameters / 1e9:6.1f} billion; DDP, ZeRO-1, 2, 3: {shown} GB")
        assert sizes[0] > sizes[1] > sizes[2]


if __name__ == "__main__":
    run_script(main)
