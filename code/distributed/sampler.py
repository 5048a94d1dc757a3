"""Sampler: deals out the examples of an epoch to the ranks, each example exactly once.

    order = permutation(seed + epoch), the same on every rank;  rank r reads order[r::N]

The rank decides the share, and the epoch decides the order. The order must never depend on the
rank. The random numbers of each loader's worker must.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler

from distributed.runtime.script import run_script


class ShardSampler(Sampler[int]):
    """The indices, in 0 … length − 1, of the examples that `rank` of `ranks` reads.

    All ranks together read each example once per epoch. Shares differ by one at most; `drop_last`
    makes them equal by leaving out up to N − 1 examples. Raises ValueError if `rank` isn't one of
    the ranks.

    The order follows from `seed` and `epoch`. `done` counts the examples of this epoch that this
    rank has trained on, as the training loop reports them with `advance`.
    """

    def __init__(
        self,
        length: int,
        rank: int,
        ranks: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        if not 0 <= rank < ranks:
            raise ValueError(f"rank={rank}: the ranks are 0 to {ranks - 1}")
        if length < 0:
            raise ValueError(f"length={length}: 0 examples or more")
        self.length, self.rank, self.ranks = length, rank, ranks
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self.done = 0
        self.was_loaded = False

    def set_epoch(self, epoch: int) -> None:
        """Change the order for a new epoch. Call it on every rank, with the same number.

        If the epoch is that of a loaded state, the sampler continues in the middle of it.
        """
        if epoch != self.epoch:
            self.epoch, self.done = epoch, 0

    def advance(self, examples: int) -> None:
        """Report that the loop has trained on `examples` more. A loader may have read further."""
        if not 0 <= examples <= len(self) - self.done:
            raise ValueError(
                f"examples={examples}: {self.done} of {len(self)} are done in epoch {self.epoch}"
            )
        self.done += examples
        self.was_loaded = False

    def order(self) -> np.ndarray:
        """The order of all examples in this epoch, the same on every rank."""
        order = np.arange(self.length)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        return order[: self.kept]

    @property
    def kept(self) -> int:
        """The number of examples that all ranks together read in an epoch."""
        return self.length - self.length % self.ranks if self.drop_last else self.length

    def __iter__(self) -> Iterator[int]:
        """The rest of this epoch. Only `advance` moves on, so it can be read several times."""
        if self.done == len(self) > 0 and not self.was_loaded:
            raise RuntimeError(f"epoch {self.epoch} is done: begin the next one with set_epoch()")
        return iter(self.order()[self.rank :: self.ranks][self.done :].tolist())

    def __len__(self) -> int:
        return len(range(self.rank, self.kept, self.ranks))

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the number of its examples that each rank has trained on."""
        return {"epoch": self.epoch, "done": self.done, "ranks": self.ranks}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue there. Raises ValueError if the number of ranks differs, as shares would."""
        if state["ranks"] != self.ranks:
            raise ValueError(
                f"state: it is of {state['ranks']} ranks, and here are {self.ranks}, who would "
                "skip examples or repeat them: go on with as many, or begin the next epoch"
            )
        self.epoch, self.done, self.was_loaded = state["epoch"], state["done"], True


def worker_seed(seed: int, rank: int, worker: int, epoch: int = 0) -> int:
    """A different seed for every loader process of every rank, the same in every run."""
    return int(np.random.SeedSequence([seed, epoch, rank, worker]).generate_state(1)[0])


def seed_worker(seed: int) -> None:
    """Seed the three generators that augmentation may use: Python's, NumPy's and torch's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def torchs_share(length: int, rank: int, ranks: int, drop_last: bool = False) -> list[int]:
    """The indices that PyTorch's DistributedSampler gives a rank, unshuffled and padded."""
    data: Any = range(length)
    return list(DistributedSampler(data, ranks, rank, shuffle=False, drop_last=drop_last))


def main(length: int = 10, ranks: int = 4) -> None:
    """Print the shares of a few examples from both samplers."""
    ours = [list(ShardSampler(length, rank, ranks, shuffle=False)) for rank in range(ranks)]
    theirs = [torchs_share(length, rank, ranks) for rank in range(ranks)]
    print("rank   ours            PyTorch's")
    for rank in range(ranks):
        print(f"{rank:4}   {ours[rank]!s:15} {theirs[rank]}")
    assert sorted(number for share in ours for number in share) == list(range(length))


if __name__ == "__main__":
    run_script(main)
