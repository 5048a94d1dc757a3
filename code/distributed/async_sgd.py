"""Asynchronous SGD: gradients of older weights, with a fixed delay or from a parameter server.

    W[t + 1] ← W[t] − η · mean over ranks of dW(W[t − delay])

On L = λw²/2 that is w[t + 1] = w[t] − ηλ w[t − delay], which comes to rest if
ηλ < 2 sin(π / (4 · delay + 2)), and swings wider and wider above it (Levin & May 1976). For large
delays the bound falls as 1/delay, and it does so for networks, too (Giladi et al. 2020).

A parameter server makes gradients *stale* without a fixed delay. One rank has the weights, and the
others send it gradients when they are ready, so weights change while a gradient is computed:

    worker: fetch W → dW on its own rows → send dW, and again
    server, asynchronous: for each gradient: W ← W − η dW, answer with the new W
    server, synchronous: wait for the first k of all workers, average, answer them all

Asynchronous workers don't wait for each other (Dean et al. 2012). If k is less than the number of
workers, the slowest are *backups*, whose gradients are thrown away if they arrive late (Chen et al.
2016).
"""

import math
import time
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.runtime.trace import Trace

END = -1.0


class Delayed:
    """Plain SGD on gradients[n]{partial over ranks} that are `delay` steps old.

    The first `delay` steps don't change the weights. Raises ValueError for a negative delay.
    """

    def __init__(self, parameters: list[nn.Parameter], group: Group, delay: int, lr: float):
        if delay < 0:
            raise ValueError(f"delay={delay}: 0 (no delay) or more steps")
        self.parameters, self.group, self.delay, self.lr = parameters, group, delay, lr
        self.under_way: deque[torch.Tensor] = deque()

    @torch.no_grad()
    def step(self, loss: torch.Tensor) -> None:
        """Average the gradient of `loss` over the ranks, and apply the oldest one."""
        gradients = torch.autograd.grad(loss, self.parameters)
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self.under_way.append(self.group.all_reduce(flat, "avg"))
        if len(self.under_way) > self.delay:
            oldest = self.under_way.popleft()
            sizes = [p.numel() for p in self.parameters]
            for p, g in zip(self.parameters, oldest.split(sizes), strict=True):
                p.sub_(g.view(p.shape), alpha=self.lr)


def stable(delay: int) -> float:
    """Largest ηλ at which a quadratic with curvature λ comes to rest: 2 without a delay."""
    return 2 * math.sin(math.pi / (4 * delay + 2))


def comes_to_rest(delay: int, rate: float, steps: int = 600) -> bool:
    """Whether w[t + 1] = w[t] − rate · w[t − delay] swings less and less."""
    w = [1.0] * (delay + 1)
    for _ in range(steps):
        w.append(w[-1] - rate * w[-1 - delay])
    return max(map(abs, w[steps // 2 :])) < max(map(abs, w[: steps // 2]))


class ServerLog(NamedTuple):
    """Record of a server: loss and staleness of each gradient, and how many were late.

    `trace` counts its messages: 4(Ψ + 2) bytes with each gradient, and 4(Ψ + 1) back.
    """

    losses: list[float]
    staleness: list[int]
    late: int
    seconds: float
    trace: Trace


def serve(group: Group, weights: torch.Tensor, updates: int, lr: float, wait_for: int) -> ServerLog:
    """Rank 0: update weights[n] `updates` times, with `wait_for` gradients each (1: asynchronous).

    A message is dW[n], its loss, and the number of the update that its weights came from.
    """
    workers = group.size - 1
    version, late, message = 0, 0, torch.empty(len(weights) + 2)
    losses: list[float] = []
    staleness: list[int] = []
    total, senders = torch.zeros_like(weights), []
    trace, begun = Trace(0), time.perf_counter()

    def answer(rank: int, number: float) -> None:
        reply = torch.cat([weights, torch.tensor([number])])
        group.send(reply, rank)
        trace.count_sent(reply.nbytes)

    def receive() -> int:
        trace.count_received(message.nbytes)
        source = dist.recv(message, group=group.backend)
        # PyTorch's answer is a number among all ranks, not among those of the group.
        return dist.get_group_rank(group.backend, source) if group.backend else source

    stopped = 0
    while version < updates:
        with trace.span("wait", "waiting"):
            source = receive()
        loss, of_version = message[-2].item(), int(message[-1])
        with trace.span("update"):
            if wait_for > 1 and of_version < version:  # the others went on without it
                late += 1
                answer(source, version)
                continue
            losses.append(loss)
            staleness.append(version - of_version)
            total += message[:-2]
            senders.append(source)
            if len(senders) == wait_for:
                weights -= lr * total / wait_for
                version += 1
                if version < updates:
                    for rank in senders:
                        answer(rank, version)
                else:
                    stopped = len(senders)
                    for rank in senders:
                        answer(rank, END)
                total.zero_()
                senders = []
    for _ in range(workers - stopped):  # gradients that are still on their way
        answer(receive(), END)
    return ServerLog(losses, staleness, late, time.perf_counter() - begun, trace)


@torch.no_grad()
def put(flat: torch.Tensor, parameters: list[nn.Parameter]) -> None:
    """flat[n] → the parameters."""
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.copy_(part.view(p.shape))


def main(workers: int = 3, updates: int = 60, lr: float = 0.1, delayed_lr: float = 0.3) -> None:
    """A quadratic on either side of the bound, a delay on digits, and servers of three kinds."""
    if workers < 2:
        raise ValueError(f"workers={workers}: give 2 or more")
    for delay in (0, 1, 4, 16):
        bound = stable(delay)
        below, above = (comes_to_rest(delay, share * bound) for share in (0.95, 1.05))
        print(f"delay {delay:2}: rests 5% below ηλ = {bound:.3f}, {below}; 5% above, {above}")
        assert below
        assert not above
    for delay in (0, 16):
        losses = launch(train_delayed, delay, delayed_lr, 60, ranks=2, device="cpu")[0]
        first, last = losses[0], losses[-1]
        print(f"digits, rate {delayed_lr}, delay {delay:2}: loss {first:.2f} → {last:.2f}")
        assert (last < first) == (delay == 0)
    pauses = (0.0,) * (workers - 1) + (0.02,)
    for name, wait_for in {"all": workers, "all but one": workers - 1, "anyone": 1}.items():
        # The same number of gradients in all, and with each as an update, a smaller rate for each.
        many, rate = (updates, lr) if wait_for > 1 else (updates * workers, lr / workers)
        ranks = workers + 1
        results = launch(train_with_server, many, rate, wait_for, pauses, ranks=ranks, device="cpu")
        served, _, final = results[0]
        assert served is not None
        stale = np.mean(served.staleness)
        print(
            f"wait for {name:11}: {served.seconds:.2f} s, loss {final:.3f}, "
            f"staleness {stale:.1f} on average, {served.late} gradients late"
        )
        assert final < served.losses[0]
        assert (stale > 0) == (wait_for == 1)


def train_delayed(
    group: Group, delay: int, lr: float, steps: int, batch: int = 128, seed: int = 0
) -> list[float]:
    """One rank: the loss of each global batch of digits, with gradients `delay` steps old."""
    from distributed.dp import shard
    from distributed.replicas import broadcast_module
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    module = make_network(seed, norm=True)
    broadcast_module(module, group)
    delayed = Delayed(list(module.parameters()), group, delay, lr)
    images, labels = (torch.from_numpy(array) for array in digits())
    losses = []
    for rows in batches(1797, batch, steps, seed):
        mine = shard(rows, group.rank, group.size)
        loss = nn.functional.cross_entropy(module(images[mine]), labels[mine])
        delayed.step(loss)
        losses.append(loss.detach())
    return group.all_reduce(torch.stack(losses), "avg").tolist()


def work(group: Group, module: nn.Module, rows: list[np.ndarray], pause: float) -> Trace:
    """A worker: send the gradient of one batch after another until the server sends END.

    It sleeps `pause` seconds per gradient, to simulate a slower computation.
    """
    from distributed.workbench.data import digits

    images, labels = (torch.from_numpy(array) for array in digits())
    parameters = list(module.parameters())
    message = torch.empty(sum(p.numel() for p in parameters) + 1)
    trace, version, number = Trace(group.rank), 0.0, 0
    while version != END:
        with trace.span("gradient"):
            mine = rows[number % len(rows)]
            number += 1
            loss = nn.functional.cross_entropy(module(images[mine]), labels[mine])
            gradients = torch.autograd.grad(loss, parameters)
            time.sleep(pause)
            flat = torch.cat([g.reshape(-1) for g in gradients])
            flat = torch.cat([flat, torch.tensor([loss.item(), version])])
        with trace.span("server", "communication"):
            group.send(flat, 0)
            group.receive(message, 0)
        version = message[-1].item()
        put(message[:-1], parameters)
    return trace


def train_with_server(
    group: Group,
    updates: int,
    lr: float,
    wait_for: int = 1,
    pauses: tuple[float, ...] = (),
    batch: int = 32,
    seed: int = 0,
) -> tuple[ServerLog | None, Trace, float]:
    """Server on rank 0 and workers on all others: record, trace, and the final loss (rank 0).

    `pauses` are the seconds that each worker sleeps per gradient. Raises ValueError if `wait_for`
    isn't between 1 and the number of workers, or if there isn't a pause per worker.
    """
    from distributed.workbench.data import batches, digits
    from distributed.workbench.training import make_network

    if not 1 <= wait_for < group.size:
        raise ValueError(f"wait_for={wait_for}: there are {group.size - 1} workers, and 1 server")
    if pauses and len(pauses) != group.size - 1:
        raise ValueError(f"pauses={pauses}: give one for each of {group.size - 1} workers, or none")
    module = make_network(seed, norm=True)
    if group.rank:
        pause = pauses[group.rank - 1] if pauses else 0.0
        rows = list(batches(1797, batch, 2 * updates, seed=100 * seed + group.rank))
        return None, work(group, module, rows, pause), 0.0
    weights = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    served = serve(group, weights, updates, lr, wait_for)
    put(weights, list(module.parameters()))
    images, labels = (torch.from_numpy(array) for array in digits())
    final = nn.functional.cross_entropy(module(images), labels).item()
    return served, served.trace, final


if __name__ == "__main__":
    run_script(main)
