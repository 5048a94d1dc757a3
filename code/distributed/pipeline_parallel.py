"""Pipeline parallelism: each rank has some of the layers, and micro-batches move through them.

    rank r: x_i from rank r − 1 → stage → x_i to rank r + 1      for each of k micro-batches
            dy_i from rank r + 1 → backward → dx_i to rank r − 1

At first the later ranks wait for work, and at the end the earlier ranks wait for gradients. This
*bubble* is (P − 1)/(k + P − 1) of the time with P stages (Huang et al. 2019, §2.3). Each pair of
neighbors exchanges activations and their gradients, 2kbd elements, whatever the number of
parameters. On a mesh, each row is a pipeline, and the columns are data-parallel.
"""

import time

import numpy as np
import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace


def make_stage(stage: int, width: int = 32, last: bool = False) -> nn.Module:
    """One rank's layers, x[b, width] → x[b, width]; the last gives 10 logits."""
    torch.manual_seed(stage)
    head = [nn.Linear(width, 10)] if last else []
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), *head).double()


def make_batch(batch: int, width: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """x[b, width] and labels[b], the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, (batch,), generator=generator)


def step(
    group: Group,
    stage: nn.Module,
    micro: int,
    x: torch.Tensor,
    labels: torch.Tensor,
    pause: float = 0.0,
) -> float:
    """Gradients of one batch x[b, d] in this rank's stage, all forward and then all backward.

    Only the first rank uses x, only the last uses labels; the loss is returned there, 0 elsewhere.
    `pause` (s) is slept in each forward pass, and twice in each backward pass, as if it computed.
    Raises ValueError unless `micro` divides the batch.
    """
    if micro < 1 or len(x) % micro:
        raise ValueError(f"micro={micro}: {len(x)} rows do not make so many equal parts")
    first, last = group.rank == 0, group.rank == group.size - 1
    trace = group.trace or Trace(group.rank)
    inputs, outputs, total = [], [], 0.0
    for rows, wanted in zip(x.chunk(micro), labels.chunk(micro), strict=True):
        part = rows if first else group.receive(torch.empty_like(rows), group.rank - 1)
        part = part.clone().requires_grad_(not first)
        with trace.span("forward"):
            time.sleep(pause)
            out = stage(part)
            if last:
                out = nn.functional.cross_entropy(out, wanted) / micro
                total += out.item()
        inputs.append(part)
        outputs.append(out)
        if not last:
            group.send(out.detach(), group.rank + 1)
    for part, out in zip(inputs, outputs, strict=True):
        grad = None if last else group.receive(torch.empty_like(out), group.rank + 1)
        with trace.span("backward"):
            time.sleep(2 * pause)
            out.backward(grad)
        if part.grad is not None:  # not on the first rank
            group.send(part.grad, group.rank - 1)
    return total


def elements_sent(stages: int, batch: int, width: int) -> int:
    """Elements that all stages together send in a step on a batch[b, width]."""
    return 2 * (stages - 1) * batch * width


def crossing(parameters: int, width: int) -> float:
    """The batch from which data parallelism on as many ranks sends less: 2(N − 1)Ψ elements."""
    return parameters / width


def bubble(stages: int, micro: int) -> float:
    """The share of a step in which a rank waits, if all stages take equally long."""
    return (stages - 1) / (micro + stages - 1)


def run_rank(
    group: Group, micro: int, batch: int, pause: float
) -> tuple[float, list[torch.Tensor], Trace]:
    """One rank: the loss, its gradients, and what it did."""
    stage = make_stage(group.rank, last=group.rank == group.size - 1)
    x, labels = make_batch(batch)
    step(group, stage, micro, x, labels)  # warm
    stage.zero_grad()
    group.barrier()
    group.trace = trace = Trace(group.rank)
    loss = step(group, stage, micro, x, labels, pause)
    group.trace = None
    return loss, [p.grad for p in stage.parameters() if p.grad is not None], trace


def waiting(traces: list[Trace]) -> float:
    """The share of all ranks' time, from the first span to the last, without computation."""
    spans = [span for trace in traces for span in trace.spans if span.kind == "compute"]
    whole = max(s.end for s in spans) - min(s.start for s in spans)
    return 1 - sum(s.seconds for s in spans) / (whole * len(traces))


def main(stages: int = 4, batch: int = 32, pause: float = 0.05) -> None:
    """The bubble for 1, 4 and 16 micro-batches; gradients are those of one device.

    Shorter pauses than 50 ms are easily lost in what messages and a busy processor add.
    """
    if stages < 1 or batch % 16:
        raise ValueError(f"stages={stages}, batch={batch}: 1 or more, and a multiple of 16")
    whole = nn.Sequential(*(make_stage(i, last=i == stages - 1) for i in range(stages)))
    x, labels = make_batch(batch)
    nn.functional.cross_entropy(whole(x), labels).backward()
    expected = [p.grad for p in whole.parameters() if p.grad is not None]
    for micro in (1, 4, 16):
        results = launch(run_rank, micro, batch, pause, ranks=stages, device="cpu")
        found = [g for _, gradients, _ in results for g in gradients]
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
        share = waiting([trace for _, _, trace in results])
        print(
            f"{micro:2} micro-batches: {share:.0%} waiting, predicted {bubble(stages, micro):.0%}"
        )


def on_a_mesh(group: Group, across: int, micro: int, batch: int) -> tuple[list[torch.Tensor], int]:
    """One rank of a mesh with rows of `across` stages: its stage's gradients, and bytes sent."""
    from distributed.dp import shard
    from distributed.ring_group import RingGroup
    from distributed.runtime.mesh import mesh

    row, column = mesh(group, across)
    stage = make_stage(row.rank, last=row.rank == row.size - 1)
    x, labels = make_batch(batch)
    mine = shard(np.arange(batch), column.rank, column.size)
    row.trace = trace = Trace(group.rank)
    step(row, stage, micro, x[mine], labels[mine])
    rings = RingGroup(column)
    rings.trace = trace
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    for gradient in gradients:
        rings.all_reduce(gradient, op="avg")
    return gradients, trace.sent


if __name__ == "__main__":
    run_script(main)
