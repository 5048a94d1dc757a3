"""Tensor parallelism: every rank has the whole batch and a share of every layer.

    W0[d, f/N], columns:  h[b, f/N] = relu(x[b, d] W0)             without a message
    W1[f/N, o], rows:     y[b, o]{partial over ranks} = h W1 → all_reduce → y[b, o]

The first layer is cut by columns and the second by rows, so that between them nothing is sent
(Shoeybi et al. 2019, §3). Data parallelism sends gradients, df + fo elements; this sends results,
bo elements. On a mesh both go together: tensors over one group of ranks, the batch over the other.
"""

import numpy as np

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.single_device import (
    Array,
    Arrays,
    SingleDevice,
    Sizes,
    as_torch,
    initial_weights,
    train,
)


class TensorParallel(SingleDevice):
    """SingleDevice with a share of f on every rank of `group`; over `replicas` rows are shared out.

    Without `replicas`, or with one, this is tensor parallelism alone.
    """

    def __init__(self, weights: Arrays, group: Group, replicas: Group | None = None):
        super().__init__(weights, group)
        self.replicas = replicas

    def forward(self, x: Array) -> Array:
        """x[b, d] → y[b, o], equal on every rank of the group."""
        return self.group.all_reduce(super().forward(x))

    def backward(self, grads: Array) -> Arrays:
        """dy[b, o] → dW0[d, f/N], dW1[f/N, o], of this rank's share: nothing to send for that."""
        mine = super().backward(grads)
        if self.replicas:
            for gradient in mine.values():
                self.replicas.all_reduce(gradient, op="avg")
        return mine


def cut(weights: Arrays, rank: int, ranks: int) -> Arrays:
    """One rank's share: columns of W0[d, f], the same rows of W1[f, o]."""
    f = weights["layer_0/weights"].shape[1]
    mine = slice(f * rank // ranks, f * (rank + 1) // ranks)
    return {
        "layer_0/weights": weights["layer_0/weights"][:, mine].copy(),
        "layer_1/weights": weights["layer_1/weights"][mine].copy(),
    }


def main(ranks: int = 4, across: int = 2, batch: int = 128, steps: int = 40) -> None:
    """Train on a mesh, each layer over its rows and the batch over its columns."""
    from distributed.all_reduce import ring_sent
    from distributed.workbench.data import batches, digits

    if ranks < 1 or across < 1 or ranks % across or batch % ranks:
        raise ValueError(
            f"ranks={ranks}, across={across}, batch={batch}: "
            "ranks must be a multiple of across, and batch of ranks"
        )
    images, labels = digits("float64")
    alone = SingleDevice(initial_weights(Sizes(batch, 64, 128, 10), dtype="float64"))
    rows = batches(len(images), batch, steps)
    expected = train(alone, ((images[r], labels[r]) for r in rows), 0.5)
    results = launch(train_rank, across, batch, steps, ranks=ranks, device="cpu")
    for rank, (losses, _, along_row, along_column) in enumerate(results):
        print(f"rank {rank}: {along_row:,} bytes of results, {along_column:,} of gradients a step")
        assert np.allclose(losses, expected, rtol=1e-9)
        elements = batch // (ranks // across) * 10
        assert along_row == 8 * ring_sent(elements, rank % across, across).elements
    print(f"loss {expected[0]:.4f} → {expected[-1]:.4f}, as on one device")


def train_rank(
    group: Group, across: int, batch: int, steps: int, f: int = 128
) -> tuple[list[float], Arrays, int, int]:
    """One rank: losses of whole batches, its shares, bytes sent a step along row and column."""
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.mesh import mesh
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches, digits

    row, column = (RingGroup(part) for part in mesh(group, across))
    images, labels = digits("float64")
    sizes = Sizes(batch, images.shape[1], f, 10)
    weights = as_torch(cut(initial_weights(sizes, dtype="float64"), row.rank, row.size))
    x, y = as_torch({"x": images, "y": labels}).values()
    model = TensorParallel(weights, row, column)
    row.trace, column.trace = Trace(row.rank), Trace(column.rank)
    mine = (shard(rows, column.rank, column.size) for rows in batches(len(x), batch, steps))
    losses = train(model, ((x[r], y[r]) for r in mine), 0.5, examples=batch / column.size)
    sent = row.trace.sent // steps, column.trace.sent // steps  # before the losses are, to be shown
    mean = column.all_reduce(np.array(losses), op="avg").tolist()
    return mean, model.weights, *sent


if __name__ == "__main__":
    run_script(main)
