"""ZeRO-1: every rank keeps the whole model, and the optimizer's memory of a share of it.

    dW[N·s]{partial over ranks} → reduce_scatter(avg) → dW[s] → optimizer → W[s]
    W[s], another share on each rank → all_gather → W[N·s]

Each rank averages, updates and sends one share of the parameters. That is what an all-reduce sends,
cut in two with the optimizer in between (Rajbhandari et al. 2020, §5.1 and §7).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from distributed import Group, launch
from distributed.runtime.script import run_script
from distributed.shards import Shard, Unit, check_groups, check_optimizer, make_units, runs
from distributed.simple_ddp import check_same_lines, check_same_model


class Zero1:
    """Train `module` on all ranks of `group`, each with a share of the optimizer's state.

    `optimizer_class` and `settings` are those of `torch.optim`, `param_groups` a list of dicts as
    torch takes it: every rank's `optimizer.param_groups` has all of them. After `backward()`,
    `step()` averages gradients over the ranks, updates, and forgets them; a gradient that did not
    come counts as zero. `master` is the dtype in which the optimizer keeps a copy of its share, for
    parameters of another dtype.

    Raises ValueError for a module with nothing to train, for groups that leave out or repeat a
    parameter, for an optimizer that must see whole parameters, or all of them, and where the ranks'
    modules or groups differ, before anything is written.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: Group,
        *,
        param_groups: Sequence[dict[str, Any]] | None = None,
        partition: str = "flat",
        master: torch.dtype | None = None,
        bucket_bytes: int = 25_000_000,
        **settings: Any,
    ):
        self.module, self.group, self.master = module, group, master
        self.partition, self.bucket_bytes = partition, bucket_bytes
        self.names = {p: name for name, p in module.named_parameters()}
        groups = check_groups(self.names, param_groups)
        check_optimizer(optimizer_class, partition)
        self.kind_of = {p: i for i, g in enumerate(groups) for p in g["params"]}
        self._check_same(group)
        self.units = self._plan()
        self.flats: list[torch.Tensor] = []
        self.shares = [self._share_out(unit) for unit in self.units]
        self.trained = [i for i, unit in enumerate(self.units) if unit.trainable]
        self.gradients: dict[int, torch.Tensor] = {}
        self._make_gradients()
        self.unit_of = {p: i for i in self.trained for p in self.units[i].parameters}
        self._keep_rest_equal()

        self.masters = {i: self.shares[i].to(master or self.units[i].dtype) for i in self.trained}
        self.local: list[Shard] = []
        self.locals: list[tuple[nn.Parameter, int, slice]] = []  # it, its unit, where in the share
        for g in groups:
            g["params"] = []
        for i in self.trained:
            self._hand_out(i, groups)
        # Also a group of which this rank has nothing: a schedule counts on finding all of them.
        self.optimizer = optimizer_class(groups, **settings)
        self.came, self.reduced = False, False
        for parameter in self.unit_of:
            parameter.register_post_accumulate_grad_hook(self._came)

    def _check_same(self, group: Group) -> None:
        """Raise ValueError where a rank would cut up its parameters otherwise than rank 0."""
        check_same_model(self.module, group)
        lines = []
        for parameter, name in self.names.items():
            trained = f"in group {self.kind_of.get(parameter)}"
            lines.append(f"{name}, {trained if parameter.requires_grad else 'frozen'}")
        check_same_lines("parameter", lines, group)

    def _plan(self) -> list[Unit]:
        """What is sent together. From the last parameter: its gradient comes first."""
        trained = [p for p in reversed(self.names) if p.requires_grad]
        ranks = self.group.size
        return make_units(trained, ranks, self.bucket_bytes, self.partition, self._kind)

    def _kind(self, parameter: nn.Parameter) -> int:
        return self.kind_of.get(parameter, -1)

    def _share_out(self, unit: Unit) -> torch.Tensor:
        """Move a unit's parameters into W[N·s], with the values of rank 0; this rank's W[s]."""
        flat = self.group.empty(unit.size, unit.dtype)
        unit.write({p: p.data for p in unit.parameters}, flat)
        self.group.broadcast(flat)
        for parameter, view in unit.views(flat).items():
            parameter.data = view
        self.flats.append(flat)
        return unit.of_rank(flat, self.group.rank)

    def _make_gradients(self) -> None:
        """Room for dW[N·s]: all of the gradients."""
        for i in self.trained:
            unit = self.units[i]
            self.gradients[i] = self.group.empty(unit.size, unit.dtype).zero_()

    def _keep_rest_equal(self) -> None:
        """Frozen parameters and buffers are in no unit: they come from rank 0, once."""
        for tensor in [*self._in_no_unit(), *self.module.buffers()]:
            if tensor.numel():
                self.group.broadcast(tensor.data)

    def _hand_out(self, i: int, groups: list[dict[str, Any]]) -> None:
        """Give the optimizer this rank's share of a unit, as few tensors as its groups allow."""
        pieces = self.units[i].pieces(self.group.rank)
        whole = self.partition == "parameter"
        for run in [[p] for p in pieces] if whole else runs(pieces, self._kind):
            at = slice(run[0].at.start, run[-1].at.stop)
            values = self.masters[i][at]
            local = nn.Parameter(values.view(run[0].parameter.shape) if whole else values)
            groups[self._kind(run[0].parameter)]["params"].append(local)
            self.locals.append((local, i, at))
            for piece in run:
                here = slice(piece.at.start - at.start, piece.at.stop - at.start)
                name = self.names[piece.parameter]
                self.local.append(Shard(name, piece.parameter, piece.of, local, here))

    def _came(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a gradient is complete: it belongs into dW[N·s]."""
        if self.reduced:
            raise RuntimeError("gradients are averaged and clipped already: step() comes first")
        self.came = True
        unit, flat = self.units[self.unit_of[parameter]], self.gradients[self.unit_of[parameter]]
        start, grad = unit.start[parameter], parameter.grad
        if grad is None:
            return  # a function of autograd gave none: it counts as zero
        view = flat[start : start + grad.numel()].view(grad.shape)
        if grad.data_ptr() != view.data_ptr():
            view.copy_(grad)
            parameter.grad = view

    def gradient(self, i: int) -> torch.Tensor:
        """dW[s]: this rank's share of a unit's gradient, valid once it is reduced."""
        return self.units[i].of_rank(self.gradients[i], self.group.rank)

    def reduce(self) -> None:
        """dW[N·s]{partial over ranks} → dW[s]: their mean, once for every step."""
        if not self.came:
            raise RuntimeError("step() without gradients: call backward() first")
        if not self.reduced:
            self._reduce()
            self.reduced = True

    def _reduce(self) -> None:
        for i in self.trained:
            for parameter, view in self.units[i].views(self.gradients[i]).items():
                if parameter.grad is None:
                    view.zero_()
                parameter.grad = None
            self.group.reduce_scatter(self.gradients[i], self.gradient(i), "avg")

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradient so that its norm over all ranks is at most this; the norm before."""
        self.reduce()
        wide = torch.promote_types(torch.float32, self.units[self.trained[0]].dtype)
        squares = torch.zeros((), dtype=wide, device=self.group.device)
        for i in self.trained:
            squares += self.gradient(i).to(wide).square().sum()
        norm = self.group.all_reduce(squares).sqrt()
        for i in self.trained:
            self.gradient(i).mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Average the gradients, update this rank's share, give it to everyone."""
        self.reduce()
        for local, i, at in self.locals:
            local.grad = self.gradient(i)[at].to(local.dtype).view(local.shape)
        self.optimizer.step()
        for local, *_ in self.locals:
            local.grad = None
        for i in self.trained:
            if self.masters[i] is not self.shares[i]:
                self.shares[i].copy_(self.masters[i])
        self._publish()
        self.zero_grad()

    def _publish(self) -> None:
        """W[s] → W[N·s]: the parameters that the others updated."""
        for share, flat in zip(self.shares, self.flats, strict=True):
            self.group.all_gather(share, flat)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.unit_of:
            parameter.grad = None
        self.came = self.reduced = False

    @torch.no_grad()
    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and value of each parameter, gathered a unit at a time; all ranks must ask.

        Those that are in no unit, for they are frozen or empty, are whole on every rank: they come
        last. Copy what you keep: the next unit comes into the same room.
        """
        sizes = [unit.size * unit.dtype.itemsize for unit in self.units]
        room = torch.empty(max(sizes, default=0), dtype=torch.uint8, device=self.group.device)
        for unit, share, size in zip(self.units, self.shares, sizes, strict=True):
            flat = room[:size].view(unit.dtype)
            for parameter, view in unit.views(self.group.all_gather(share, flat)).items():
                yield self.names[parameter], view
        for parameter in self._in_no_unit():
            yield self.names[parameter], parameter.detach()

    def _in_no_unit(self) -> list[nn.Parameter]:
        """What is whole on every rank: what is frozen, before ZeRO-3, and what has no numbers."""
        held = {parameter for unit in self.units for parameter in unit.parameters}
        return [parameter for parameter in self.names if parameter not in held]

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What this rank holds, by what it is for."""
        states = [state.values() for state in self.optimizer.state.values()]
        return {
            "parameters": [*self.shares, *self.flats],
            "gradients": [*self.gradients.values()],
            "master copy": [m for i, m in self.masters.items() if m is not self.shares[i]],
            "optimizer states": [t for s in states for t in s if isinstance(t, torch.Tensor)],
        }


def train_rank(group: Group, stage: type[Zero1], batch: int, steps: int) -> tuple[list[float], int]:
    """One rank: the losses of the whole batches, and how many numbers its optimizer keeps."""
    from distributed.workbench.training import make_network, train_together

    model = make_network(seed=group.rank)
    zero = stage(model, torch.optim.AdamW, group, lr=1e-2)
    losses = train_together(group, model, zero.step, batch, steps)
    return losses, sum(t.numel() for t in zero.tensors()["optimizer states"])


def show(stage: type[Zero1], ranks: int, batch: int, steps: int) -> None:
    """Train on several ranks and on one device: the losses are the same."""
    from distributed.workbench.data import batches
    from distributed.workbench.training import Alone, make_network, train

    if not ranks <= batch <= 1797:
        raise ValueError(f"batch={batch}: choose {ranks} (one example a rank) to 1797")
    results = launch(train_rank, stage, batch, steps, ranks=ranks, device="cpu")
    alone = Alone(make_network(), torch.optim.AdamW, lr=1e-2)
    expected = train(alone.model, alone.step, batches(1797, batch, steps), examples=batch)
    for i in range(0, steps, max(1, steps // 4)):
        print(f"step {i:3}: loss {results[0][0][i]:.6f}, on one device {expected[i]:.6f}")
    assert max(abs(np.array(results[0][0]) / expected - 1)) < 1e-3
    numbers = sum(t.numel() for t in alone.tensors()["optimizer states"])
    print(f"numbers in the optimizer: {numbers} alone,", *(kept for _, kept in results), "on ranks")
    assert max(kept for _, kept in results) < numbers / len(results) + 100


def main(ranks: int = 4, batch: int = 256, steps: int = 40) -> None:
    """ZeRO-1 learns what one device learns, with an N-th of its optimizer's memory."""
    show(Zero1, ranks, batch, steps)


if __name__ == "__main__":
    run_script(main)
