"""Bad-rank finder: each rank reports its own loss and gradients, before they are averaged.

    own[3] of each rank → all_gather → table[N, 3], equal on every rank

Gradients are averaged in every step, so one rank's NaN is in all ranks' gradients a moment later.
Here, hooks look at this rank's gradients before that, and a rank's row of the table has

    loss        of this rank's rows
    norm        of this rank's gradients, in float32
    parameter   number of the first one in the backward pass whose gradient isn't finite, or −1

An all-gather copies numbers and adds none, so a NaN stays in the row of its rank. Around a ring, a
rank sends 12(N − 1) bytes per step for it. All ranks see the same table, and can decide alike.

If a rank is found, `first_bad_output` finds the module, and `odd_replicas` a rank whose weights
differ from the others'. Nothing here needs more than torch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script

Gather = Callable[[torch.Tensor], torch.Tensor]  # own[k] → table[ranks, k]


def gather(own: torch.Tensor) -> torch.Tensor:
    """own[k] of each rank → table[ranks, k] on every rank, by PyTorch's default group."""
    table = own.new_empty(dist.get_world_size(), len(own))
    dist.all_gather([*table], own)
    return table


def extra_bytes(ranks: int) -> int:
    """Bytes that each rank sends around a ring in a step, for three numbers in float32."""
    return 3 * 4 * (ranks - 1)


class GradientWatch:
    """Norms of this rank's own gradients, before DDP or FSDP2 averages them.

    Give it the model itself, before or after it is wrapped. FSDP2 has whole parameters
    only during a forward pass, so each module's first one registers the hooks.
    """

    def __init__(self, model: nn.Module):
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.norms: dict[int, torch.Tensor] = {}  # in the order of the backward pass
        self.order: tuple[int, ...] = ()  # the same order, and as a tensor
        self.numbers = torch.empty(0)
        self.waiting = {
            prefix: module.register_forward_pre_hook(partial(self.register, prefix))
            for prefix, module in model.named_modules()
        }

    def register(self, prefix: str, module: nn.Module, _: object) -> None:
        self.waiting.pop(prefix).remove()
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if name in self.names and parameter.requires_grad:
                parameter.register_hook(partial(self.see, self.names.index(name)))

    def see(self, number: int, gradient: torch.Tensor) -> None:
        """Keep the largest norm of all micro-batches; `maximum` keeps a NaN."""
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        self.norms[number] = torch.maximum(norm, self.norms.get(number, norm))

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        """own[3]: loss, norm, number. It doesn't wait for the GPU. Then a new step begins."""
        loss, order = loss.detach().float(), (-1, *self.norms)
        if order != self.order or self.numbers.device != loss.device:  # in the first step
            self.order, self.numbers = order, loss.new_tensor(order)
        norms = torch.stack([loss.new_zeros(()), *self.norms.values()])
        first = (~norms.isfinite()).int().argmax(keepdim=True)  # if all are finite, of −1
        self.norms.clear()
        norm = torch.linalg.vector_norm(norms)
        return torch.cat([loss[None], norm[None], self.numbers[first]])


class Suspect(NamedTuple):
    """A rank whose step isn't finite, or far larger than the other ranks' steps."""

    rank: int
    loss: float
    norm: float
    parameter: str  # the first one whose gradient isn't finite, or ""

    def __str__(self) -> str:
        where = f", first in the gradient of {self.parameter}" if self.parameter else ""
        return f"rank {self.rank}: loss {self.loss:.3g}, norm {self.norm:.3g}{where}"


def suspects(table: torch.Tensor, names: list[str], times: float = 100.0) -> list[Suspect]:
    """Ranks with a number that isn't finite, or a norm of more than `times` the median."""
    usual = table[:, 1].nanmedian().item()
    found = []
    for rank, (loss, norm, number) in enumerate(table.tolist()):
        parameter = names[int(number)] if number >= 0 else ""
        if parameter or not math.isfinite(loss + norm) or norm > times * usual:
            found.append(Suspect(rank, loss, norm, parameter))
    return found


def first_bad_output(model: nn.Module, *inputs: torch.Tensor) -> str | None:
    """Where a forward pass goes bad: "the input", the name of a module, or None if it doesn't.

    Run it on one device with the bad rank's rows. Modules are in the order in which they end.
    """
    if not all(x.isfinite().all() for x in inputs):
        return "the input"
    bad: list[str] = []

    def look(name: str, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, torch.Tensor) and not output.isfinite().all():
            bad.append(name)

    modules = model.named_modules()
    hooks = [module.register_forward_hook(partial(look, name)) for name, module in modules]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return bad[0] if bad else None


def odd_replicas(model: nn.Module, gather: Gather = gather) -> list[tuple[int, str]]:
    """Ranks and names of tensors whose bits differ from those that most ranks have.

    A tensor's checksum is the sum of its bytes, in int64, so any flipped bit changes it.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    data = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors.values())
    table = gather(torch.stack([part.sum(dtype=torch.int64) for part in data]))
    odd = (table != table.mode(0).values).nonzero().tolist()
    return [(rank, [*tensors][number]) for rank, number in odd]


def main(ranks: int = 4) -> None:
    """Plant a row with inf on rank 2 and a flipped bit on rank 1, and find both."""
    if ranks < 3:
        raise ValueError(f"ranks={ranks}: 3 or more, so that most replicas agree")
    watched = launch(train, True, ranks=ranks, device="cpu")
    for step, line in watched[0].found:
        print(f"step {step}: {line}")
    for seen in watched:
        assert str(seen.found) == str(watched[0].found)  # NaN isn't equal to NaN
        assert seen.odd == [(1, "2.weight")]
    (step, row), (last, bit) = watched[0].found
    assert (step, row.rank, row.parameter) == (ROW_AT, 2, "2.bias")
    assert (last, bit.rank) == (BIT_AT, 1)
    assert [seen.began for seen in watched] == [None, None, "the input", *[None] * (ranks - 3)]
    print(f"step {step} began in the input, and step {last} in {watched[0].odd[0][1]} of rank 1")
    unwatched = launch(train, False, ranks=ranks, device="cpu")
    for seen, plain in zip(watched, unwatched, strict=True):
        more = {a - b for a, b in zip(seen.sent, plain.sent, strict=True)}
        assert more == {extra_bytes(ranks)}, more
    print(f"a rank sends {extra_bytes(ranks)} bytes more in each step, as predicted")


ROW_AT, BIT_AT = 3, 6  # steps


class Seen(NamedTuple):
    """What a rank has seen of one run."""

    found: list[tuple[int, Suspect]]  # by step
    began: str | None  # where its forward pass went bad in step ROW_AT
    odd: list[tuple[int, str]]
    sent: list[int]  # bytes in each step


def flip(weight: torch.Tensor, index: int, bit: int = 30) -> None:
    """Flip a bit of one float32 number; 30 is the highest of the exponent: below 2, times 2¹²⁸."""
    weight.detach().view(-1).view(torch.int32)[index].bitwise_xor_(1 << bit)


def train(group: Group, watched: bool) -> Seen:
    """One rank: train until BIT_AT. If it is watched, a bad step is skipped, by all ranks alike."""
    from distributed.ddp import DistributedDataParallel
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    def ring_gather(own: torch.Tensor) -> torch.Tensor:
        table = own.new_empty(group.size, len(own))
        ring.all_gather(own, table.view(-1))
        return table

    ring, network = RingGroup(group), make_network()
    model, watch = DistributedDataParallel(network, ring), GradientWatch(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images, labels = (torch.from_numpy(array) for array in digits())
    seen = Seen([], None, [], [])
    for step, batch in enumerate(batches(1797, 64, BIT_AT + 1)):
        ring.trace = trace = Trace(group.rank)
        rows = shard(batch, group.rank, group.size)
        x = images[rows]
        if (step, group.rank) == (ROW_AT, 2):
            x[0, 0] = math.inf
        if (step, group.rank) == (BIT_AT, 1):
            flip(network.get_parameter("2.weight"), index=5)
        loss = nn.functional.cross_entropy(model(x), labels[rows])
        loss.backward()
        own = watch.report(loss)
        bad = suspects(ring_gather(own), watch.names) if watched else []
        seen.sent.append(trace.sent)
        seen.found.extend((step, one) for one in bad)
        if bad and step == ROW_AT:
            seen = seen._replace(began=first_bad_output(network, x))
        if not bad:
            optimizer.step()
        optimizer.zero_grad()
    return seen._replace(odd=odd_replicas(network, ring_gather))


if __name__ == "__main__":
    run_script(main)
