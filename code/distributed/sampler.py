"""Which rank reads which examples: a sampler that repeats nothing and leaves nothing out.

    order = permutation(seed + epoch), the same on every rank;  rank r reads order[r::N]

The rank decides the share, the epoch decides the order. What the order is must never depend on
the rank, and each worker's random numbers must.
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

    All ranks together read each example once an epoch. Shares differ by one at most; `drop_last`
    makes them equal by leaving out up to N − 1 examples. Raises ValueError for no such rank.

    `epoch` is what the order is made of; `done` is how many examples of it this rank has trained
    on, as the training loop says with `advance`.
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
        """Another order for another epoch. Call it on every rank, with the same number.

        The epoch of a state that was loaded goes on where it stood.
        """
        if epoch != self.epoch:
            self.epoch, self.done = epoch, 0

    def advance(self, examples: int) -> None:
        """The loop has trained on so many more. What was read may be more: a loader reads ahead."""
        if not 0 <= examples <= len(self) - self.done:
            raise ValueError(
                f"examples={examples}: {self.done} of {len(self)} are done in epoch {self.epoch}"
            )
        self.done += examples
        self.was_loaded = False

    def order(self) -> np.ndarray:
        """This epoch's order of all examples, the same on every rank."""
        order = np.arange(self.length)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        return order[: self.kept]

    @property
    def kept(self) -> int:
        """How many examples all ranks together read in an epoch."""
        return self.length - self.length % self.ranks if self.drop_last else self.length

    def __iter__(self) -> Iterator[int]:
        """The rest of this epoch, however often it is read: `advance` alone moves on in it."""
        if self.done == len(self) > 0 and not self.was_loaded:
            raise RuntimeError(f"epoch {self.epoch} is done: begin the next one with set_epoch()")
        return iter(self.order()[self.rank :: self.ranks][self.done :].tolist())

    def __len__(self) -> int:
        return len(range(self.rank, self.kept, self.ranks))

    def state_dict(self) -> dict[str, int]:
        """Where it stands: the epoch, and how many examples of it each rank has trained on."""
        return {"epoch": self.epoch, "done": self.done, "ranks": self.ranks}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there. Raises ValueError on another number of ranks: shares would be others."""
        if state["ranks"] != self.ranks:
            raise ValueError(
                f"state: it is of {state['ranks']} ranks, and here are {self.ranks}, who would "
                "skip examples or repeat them: go on with as many, or begin the next epoch"
            )
        self.epoch, self.done, self.was_loaded = state["epoch"], state["done"], True


def worker_seed(seed: int, rank: int, worker: int, epoch: int = 0) -> int:
    """A seed of its own for every loader process of every rank, the same in every run."""
    return int(np.random.SeedSequence([seed, epoch, rank, worker]).generate_state(1)[0])


def seed_worker(seed: int) -> None:
    """Seed all three sources of random numbers that augmentation may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def torchs_share(length: int, rank: int, ranks: int, drop_last: bool = False) -> list[int]:
    """What PyTorch's DistributedSampler gives a rank, unshuffled: it repeats to fill up."""
    data: Any = range(length)
    return list(DistributedSampler(data, ranks, rank, shuffle=False, drop_last=drop_last))


def main(length: int = 10, ranks: int = 4) -> None:
    """Both samplers' shares of a few examples."""
    ours = [list(ShardSampler(length, rank, ranks, shuffle=False)) for rank in range(ranks)]
    theirs = [torchs_share(length, rank, ranks) for rank in range(ranks)]
    print("rank   ours            PyTorch's")
    for rank in range(ranks):
        print(f"{rank:4}   {ours[rank]!s:15} {theirs[rank]}")
    assert sorted(number for share in ours for number in share) == list(range(length))


if __name__ == "__main__":
    run_script(main)
