"""Data parallelism: every rank has all the weights and a share of the batch.

    dW[d, f]{partial over ranks} → all_reduce(avg) → dW[d, f]

The forward pass needs no communication. After the backward pass, the ranks average their
gradients, so all of them take the same step and their weights stay equal.
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


class DataParallel(SingleDevice):
    """SingleDevice on every rank of `group`, with gradients averaged over the ranks.

    It works like PyTorch's DistributedDataParallel, and not like torch.nn.DataParallel.
    """

    def backward(self, grads: Array) -> Arrays:
        """dy[b/N, o] → dW0[d, f], dW1[f, o], the average of all ranks' gradients."""
        return {
            name: self.group.all_reduce(local, op="avg")
            for name, local in super().backward(grads).items()
        }


def shard(rows: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """The rows of one rank: consecutive, and at most one more than those of any other rank."""
    return rows[len(rows) * rank // ranks : len(rows) * (rank + 1) // ranks]


def main(
    ranks: int = 4,
    batch: int = 256,
    steps: int = 100,
    dtype: str = "float32",
    library: str = "torch",
    device: str = "auto",
) -> None:
    """Train on several ranks and on one device: the losses are the same."""
    from distributed.workbench.data import batches, digits

    losses, replicas = train_data_parallel(ranks, batch, steps, dtype, library, device)

    images, labels = digits(dtype)
    alone = SingleDevice(initial_weights(Sizes(batch, 64, 128, 10), dtype=dtype))
    rows = batches(len(images), batch, steps)
    expected = train(alone, ((images[r], labels[r]) for r in rows), 0.5)

    print("step   all ranks    one device")
    for step in range(0, steps, max(1, steps // 5)):
        print(f"{step:4}   {losses[step]:.8f}   {expected[step]:.8f}")
    # The ranks add the same numbers in a different order, so the losses differ by rounding.
    apart = max(abs(np.array(losses) / expected - 1))
    print(f"largest relative difference: {apart:.1e} in {dtype}")
    assert apart < {"float32": 1e-4, "float64": 1e-12}[dtype]
    for weights in replicas:
        for name, weight in weights.items():
            assert (weight == replicas[0][name]).all(), f"replicas differ in {name}"


def train_rank(
    group: Group, images: np.ndarray, labels: np.ndarray, sizes: Sizes, steps: int, library: str
) -> tuple[list[float], Arrays]:
    """Train on this rank's share of every batch; return the batches' losses, and the weights."""
    from distributed.workbench.data import batches

    weights = initial_weights(sizes, seed=group.rank, dtype=str(images.dtype))
    if library == "torch":
        weights = as_torch(weights, group.device)
        x, y = as_torch({"x": images, "y": labels}, group.device).values()
    else:
        x, y = images, labels
    # Every rank drew different weights. From here on, all of them have those of rank 0.
    model = DataParallel({name: group.broadcast(w) for name, w in weights.items()}, group)

    mine = (shard(rows, group.rank, group.size) for rows in batches(len(x), sizes.b, steps))
    # Shards differ by a row if N doesn't divide b. So each rank divides its sum by the average
    # shard, b/N, and then the average over ranks is the mean over the batch.
    losses = train(model, ((x[r], y[r]) for r in mine), 0.5, examples=sizes.b / group.size)
    return group.all_reduce(np.array(losses), op="avg").tolist(), model.weights


def train_data_parallel(
    ranks: int = 4,
    batch: int = 256,
    steps: int = 100,
    dtype: str = "float32",
    library: str = "torch",
    device: str = "auto",
) -> tuple[list[float], list[Arrays]]:
    """Learn the digits on `ranks` ranks; return the losses, and every rank's final weights.

    Raises ValueError before any rank starts if an argument is out of range.
    """
    from distributed.workbench.data import digits

    if library not in ("torch", "numpy"):
        raise ValueError(f"library={library!r}: choose 'torch' or 'numpy'")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype={dtype!r}: choose 'float32' or 'float64'")
    if steps < 1:
        raise ValueError(f"steps={steps}: train for 1 step or more")
    images, labels = digits(dtype)
    if not ranks <= batch <= len(images):
        raise ValueError(f"batch={batch}: choose {ranks} (one example per rank) to {len(images)}")
    sizes = Sizes(b=batch, d=images.shape[1], f=128, o=10)
    results = launch(train_rank, images, labels, sizes, steps, library, ranks=ranks, device=device)
    return results[0][0], [weights for _, weights in results]


if __name__ == "__main__":
    run_script(main)
