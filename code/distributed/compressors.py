"""Gradient compression: send 16 bits per element, or only some of the elements.

    g_r + e_r → compress → c_r → messages → mean over ranks of decompressed c_r
    e_r ← g_r + e_r − decompressed c_r                           (error feedback)

Error feedback adds to the next gradient whatever wasn't sent of this one, so nothing is lost.
Without it, the same methods can move away from the minimum. See Seide et al. 2014, and Karimireddy
et al. 2019.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from distributed import Group, launch
from distributed.runtime.queue import Handle
from distributed.runtime.script import run_script

if TYPE_CHECKING:
    from distributed.bucketed_ddp import Bucket


class Gradients(NamedTuple):
    """Contents of a bucket: buffer[n], each gradient as a view of it, and its parameter."""

    buffer: torch.Tensor
    views: Sequence[torch.Tensor]
    parameters: Sequence[torch.Tensor]


class Compressor(Protocol):
    """Way to average gradients over the ranks with fewer bytes."""

    def average(self, group: Group, bucket: Gradients) -> None:
        """bucket.buffer[n]{partial over ranks} → buffer[n], approximately their mean, in place."""


def hook(compressor: Compressor) -> Callable[[Group, "Bucket"], Handle]:
    """For `register_comm_hook` of this book's DistributedDataParallel.

    Raises TypeError for complex gradients, because a cast would drop their imaginary part.
    """

    def reduce(group: Group, bucket: "Bucket") -> Handle:
        if bucket.buffer.is_complex():
            raise TypeError(
                "compressors need real gradients: leave complex ones to all_reduce_hook"
            )
        views = [bucket.views[p] for p in bucket.parameters]
        compressor.average(group, Gradients(bucket.buffer, views, bucket.parameters))
        return Handle(bucket.buffer, lambda: None, lambda: None)

    return reduce


class Cast:
    """Send 16 bits per element, half the bytes. The sum over the ranks has 16 bits, too."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16):
        self.dtype = dtype

    def average(self, group: Group, bucket: Gradients) -> None:
        bucket.buffer.copy_(group.all_reduce(bucket.buffer.to(self.dtype), "avg"))


def finite(x: torch.Tensor) -> torch.Tensor:
    """x with 0 instead of inf and nan, which would otherwise stay in the memory forever."""
    return torch.nan_to_num(x, nan=0, posinf=0, neginf=0)


def at_least_float32(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a rank adds or multiplies: x's, if that has 32 bits or more."""
    return torch.promote_types(x.dtype, torch.float32)


class WithMemory:
    """Error feedback for a compressor: `send` averages a part, and the rest is kept for later.

    The memory belongs to the parameters and not to their bucket, because DDP rebuilds buckets.
    """

    def __init__(self, error_feedback: bool = True):
        self.error_feedback = error_feedback
        # id(parameter) → [n], the part of its gradient that wasn't sent, in the bucket's order
        self.memory: dict[int, torch.Tensor] = {}

    def average(self, group: Group, bucket: Gradients) -> None:
        flat, keys = bucket.buffer, [id(p) for p in bucket.parameters]
        sizes = [view.numel() for view in bucket.views]
        if self.error_feedback:
            for key, part in zip(keys, flat.split(sizes), strict=True):
                if key in self.memory:
                    part += self.memory[key]
        mean, sent = self.send(group, flat)
        if self.error_feedback:
            self.memory.update(zip(keys, finite(flat - sent).split(sizes), strict=True))
        flat.copy_(mean)

    def send(self, group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x[n] → mean[n] over the ranks of the parts that were sent, and sent[n] of this rank."""
        raise NotImplementedError


class TopK(WithMemory):
    """Send the largest numbers of each rank and their indices (Aji & Heafield 2017).

    Ranks choose different indices, so the messages are gathered: 8k(N − 1) bytes from each rank for
    float32, half of them for indices. Sums are made in float32 or wider.
    """

    def __init__(self, share: float = 0.01, error_feedback: bool = True):
        super().__init__(error_feedback)
        self.share = check_share(share)

    def send(self, group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = max(1, int(self.share * len(x)))
        places = x.abs().topk(k, sorted=False).indices
        values = x[places].view(torch.uint8)
        mine = torch.cat([values, places.to(torch.int32).view(torch.uint8)])
        all_of_them = group.all_gather(mine, mine.new_empty(group.size * len(mine)))
        mean = torch.zeros_like(x, dtype=at_least_float32(x))
        for message in all_of_them.view(group.size, -1):
            theirs = message[: len(values)].clone().view(x.dtype)  # clone: a view needs alignment
            where = message[len(values) :].clone().view(torch.int32)
            mean.index_add_(0, where, theirs.to(mean.dtype))
        sent = torch.zeros_like(x).index_copy_(0, places, x[places])
        return (mean / group.size).to(x.dtype), sent


class RandomK(WithMemory):
    """Send numbers at random places, the same places on every rank: 8k(N − 1)/N bytes in a ring.

    Every rank draws from one seed, so places are not sent, and values can be all-reduced.
    """

    def __init__(self, share: float = 0.01, error_feedback: bool = True, seed: int = 0):
        super().__init__(error_feedback)
        self.share, self.random = check_share(share), torch.Generator().manual_seed(seed)

    def send(self, group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = max(1, int(self.share * len(x)))
        places = torch.randperm(len(x), generator=self.random)[:k].to(x.device)
        sent = torch.zeros_like(x).index_copy_(0, places, x[places])
        mean = torch.zeros_like(x).index_copy_(0, places, group.all_reduce(x[places], "avg"))
        return mean, sent


def check_share(share: float) -> float:
    """Raise ValueError unless 0 < share ≤ 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share={share}: choose more than 0, and at most 1")
    return share


def main(ranks: int = 4, n: int = 100_000) -> None:
    """Average one gradient with each compressor: bytes sent, and distance from the mean."""
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace

    ways: dict[str, Compressor] = {
        "bfloat16": Cast(torch.bfloat16),
        "float16": Cast(torch.float16),
        "top 1%": TopK(0.01),
        "random 1%": RandomK(0.01),
    }

    def average(group: Group) -> dict[str, tuple[int, float]]:
        rings, found = RingGroup(group), {}
        for name, compressor in ways.items():
            x = torch.randn(n, generator=torch.Generator().manual_seed(group.rank)) ** 3
            mean = group.all_reduce(x.clone(), "avg")
            rings.trace = trace = Trace(group.rank)
            compressor.average(rings, Gradients(x, [x], [x]))
            found[name] = trace.sent, ((x - mean).norm() / mean.norm()).item()
        return found

    whole = 8 * n * (ranks - 1) // ranks
    for name, (sent, error) in launch(average, ranks=ranks, device="cpu")[0].items():
        print(f"{name:10} {sent:7,} bytes of {whole:,}; off by {error:.1%} in this one step")
        assert sent < whole or ranks == 1


def torch_hook(compressor: Compressor, group: Group) -> Callable[[Any, dist.GradBucket], Any]:
    """For `register_comm_hook(None, …)` of PyTorch's DistributedDataParallel."""

    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        given = Gradients(bucket.buffer(), bucket.gradients(), bucket.parameters())
        compressor.average(group, given)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    return reduce


if __name__ == "__main__":
    run_script(main)
