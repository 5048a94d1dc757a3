"""Recorder of gradient synchronization: which gradient travels in which bucket, when, at what cost.

Four ways to average the same gradients, recorded on real ranks: each parameter after the backward
pass, all in one bucket, each parameter as soon as it is ready, and buckets as soon as they are
full. For messages that share no core with the computation it also predicts:

    begin_i = max(ready_i, end_{i−1})      end_i = begin_i + α + β n_i
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import nn

from distributed import Group, launch, world
from distributed.ddp import DistributedDataParallel
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace, overlap, overlapped
from distributed.simple_ddp import average_gradients
from distributed.workbench.transformer import CharTransformer, Config, make_model, text_loss

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
    elements: int


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
        text_loss(model, batch).backward()
    before = {p: p.grad.norm().item() for p in model.names if p.grad is not None}
    model.zero_grad()
    text_loss(model, batch).backward()
    return [
        Synced(model.names[p], bucket.index, before[p], bucket.views[p].norm().item(), p.numel())
        for bucket in model.buckets
        for p in bucket.parameters
    ]


def ready_to_step(group: Group, way: str) -> tuple[CharTransformer, nn.Module | None]:
    """The model, and its wrapper for this way if it has one, after a first pass.

    Like every first one it is slow; after it buckets are in their final order.
    """
    module, size, model = make_model(CONFIG), WAYS[way], None
    if size is not None:
        first = size if size == ALL_IN_ONE else size // 4
        model = DistributedDataParallel(module, group, size, first)
    text_loss(model or module, batch_of(group)).backward()
    return module, model


def record_step(group: Group, way: str) -> Trace:
    """One forward and backward pass, with every span of computation and communication."""
    module, wrapper = ready_to_step(group, way)
    batch = batch_of(group)
    module.zero_grad()
    group.barrier()
    group.trace = trace = Trace(group.rank)
    with trace.span("forward"):
        loss = text_loss(wrapper or module, batch)
    with trace.span("backward") as backward:
        loss.backward()
    for span in trace.spans:
        if span.kind == "waiting":  # the wrapper waits within backward(): that computes nothing
            backward.end = span.start
    if wrapper is None:
        average_gradients(module, group)
    group.trace = None
    return trace


def bucket_sizes(group: Group, way: str) -> list[int]:
    """The bytes of each bucket, in the order in which they leave."""
    module, wrapper = ready_to_step(group, way)
    if isinstance(wrapper, DistributedDataParallel):
        return [bucket.buffer.nbytes for bucket in wrapper.buckets]
    return [p.nbytes for p in module.parameters()]


class Costs(NamedTuple):
    """What a step is made of (s; β in s/byte)."""

    alpha: float
    beta: float
    forward: float
    backward: float


def predict_step(costs: Costs, sizes: Sequence[float]) -> float:
    """Time of forward and backward when gradients leave in buckets of these sizes (bytes → s).

    A bucket is ready when its part of all bytes is: the backward pass fills them evenly.
    """
    messages = [costs.alpha + costs.beta * size for size in sizes]
    filled = [part / sum(sizes) for part in accumulate(sizes)]
    ready = [costs.forward + costs.backward * part for part in filled]
    return overlapped(ready, messages, costs.forward + costs.backward)


def best_size(costs: Costs, whole: int) -> float:
    """The size of a bucket, of `whole` bytes in all, with which a step on own cores ends first.

    From α/(T/gΨ − β) on, messages leave as fast as they come (T: backward; gΨ: whole): what is
    larger makes the last one longer. If they never do, the wait for the first bucket and all
    latencies are to be small together, T s/gΨ + α gΨ/s: best at s = gΨ √(α/T).
    """
    spare = costs.backward / whole - costs.beta  # computing a byte's gradient, less sending it
    keeps_up = costs.alpha / spare if spare > 0 else math.inf
    return min(whole, keeps_up, whole * math.sqrt(costs.alpha / costs.backward))


def main(ranks: int = 2) -> None:
    """Record one step in each way: how much of the communication hides behind the computation."""
    synced = launch(watch_one_step, ranks=ranks)[0]
    print(f"{len(synced)} parameters in {synced[-1].bucket + 1} buckets")
    counts, hides = {}, {}
    with world(ranks) as run:
        for way in WAYS:
            trace = run(record_step, way)[0]
            spent = trace.seconds("communication")
            hides[way] = overlap(trace) / spent
            counts[way] = sum(span.kind == "communication" for span in trace.spans)
            print(f"{way:28} {counts[way]:3} all-reduces, {hides[way]:4.0%} of their time hidden")
    assert [*counts.values()] == [len(synced), 1, len(synced), synced[-1].bucket + 1]
    assert hides["each parameter, afterwards"] < 1e-6


if __name__ == "__main__":
    run_script(main)
