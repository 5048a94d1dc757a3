"""See how gradients meet: who travels in which bucket, when, and what that costs.

Four ways to average the same gradients, recorded on real ranks: each parameter after the backward
pass, all in one bucket, each parameter as soon as it is ready, and buckets as soon as they are
full. This module measures; pages draw.
"""

import statistics
from dataclasses import dataclass

import torch
from torch import nn

from distributed.ddp import DistributedDataParallel
from distributed.group import Group
from distributed.measure import seconds
from distributed.script import run_script
from distributed.simple_ddp import average_gradients
from distributed.trace import Trace, overlap
from distributed.transformer import CharTransformer, Config, make_model
from distributed.world import launch, world

ALL_IN_ONE = 1 << 40  # bytes: more than any model here has
WAYS = {  # bucket_bytes; None: by hand, when the backward pass is over
    "each parameter, afterwards": None,
    "one bucket": ALL_IN_ONE,
    "each parameter, at once": 1,
    "buckets": 400_000,
}
CONFIG = Config(v=96, t=64, d=128, layers=4)


@dataclass
class Synced:
    """What happened to one parameter's gradient on one rank."""

    name: str
    bucket: int
    before: float  # its norm, as this rank's share of the batch gave it
    after: float  # its norm when it was averaged over all ranks
    numbers: int


def batch_of(group: Group, rows: int = 8) -> torch.Tensor:
    """This rank's characters[b, t + 1]."""
    generator = torch.Generator().manual_seed(group.rank)
    return torch.randint(CONFIG.v, (rows, CONFIG.t + 1), generator=generator)


def watch_one_step(group: Group, bucket_bytes: int = 400_000) -> list[Synced]:
    """Each parameter's gradient before and after, in the order of buckets."""
    module = make_model(CONFIG)
    model = DistributedDataParallel(module, group, bucket_bytes, bucket_bytes // 4)
    batch = batch_of(group)
    with model.no_sync():
        module.loss(batch).backward()
    before = {p: p.grad.norm().item() for p in model.names if p.grad is not None}
    model.zero_grad()
    module.loss(batch).backward()
    return [
        Synced(model.names[p], bucket.index, before[p], bucket.views[p].norm().item(), p.numel())
        for bucket in model.buckets
        for p in bucket.parameters
    ]


def ready_to_step(group: Group, way: str) -> tuple[CharTransformer, nn.Module | None]:
    """The model, and its wrapper for this way if it has one, with buckets in their final order."""
    module = make_model(CONFIG)
    size = WAYS[way]
    if size is None:
        return module, None
    model = DistributedDataParallel(module, group, size, size if size == ALL_IN_ONE else size // 4)
    module.loss(batch_of(group)).backward()
    return module, model


def record_step(group: Group, way: str) -> Trace:
    """One forward and backward pass, with every span of computation and communication."""
    module, wrapper = ready_to_step(group, way)
    batch = batch_of(group)
    module.zero_grad()
    group.barrier()
    group.trace = trace = Trace(group.rank)
    with trace.span("forward"):
        loss = module.loss(batch)
    with trace.span("backward") as backward:
        loss.backward()
    for span in trace.spans:
        if span.kind == "waiting":  # the wrapper waits within backward(): that computes nothing
            backward.end = span.start
    if wrapper is None:
        average_gradients(module, group)
    group.trace = None
    return trace


def time_step(group: Group, bucket_bytes: int, times: int = 9) -> float:
    """The median time of forward and backward with buckets of this size (s)."""
    module = make_model(CONFIG)
    model = DistributedDataParallel(module, group, bucket_bytes, bucket_bytes)
    batch = batch_of(group)

    def step() -> None:
        model.zero_grad()
        module.loss(batch).backward()

    step()
    return statistics.median(seconds(group, step, times))


def main(ranks: int = 2) -> None:
    """Record one step in each way: how much of the communication hides behind the computation."""
    synced = launch(watch_one_step, ranks=ranks)[0]
    print(f"{len(synced)} parameters in {synced[-1].bucket + 1} buckets")
    with world(ranks) as run:
        for way in WAYS:
            trace = run(record_step, way)[0]
            spent = trace.seconds("communication")
            hidden = overlap(trace) / spent if spent else 0.0
            count = sum(span.kind == "communication" for span in trace.spans)
            print(f"{way:28} {count:3} all-reduces, {hidden:4.0%} of their time hidden")


if __name__ == "__main__":
    run_script(main)
