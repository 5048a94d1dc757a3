"""Odd uses: what programs do to a module or an optimizer that is wrapped, or about to be.

Each is right, or refused on every rank in one line that this package raises, before a step is
made. An odd use changes a training at some of these places, on ranks and on one device alike.
"""

import contextlib
import copy
import io
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from tests.fuzz.draws import STRATEGIES, ZERO3, Draw, Pass
from tests.fuzz.network import Network, loss_of
from torch import nn

import distributed
from distributed.ddp import DistributedDataParallel

DDP, ZERO = STRATEGIES[:2], STRATEGIES[2:]
OURS = str(Path(distributed.__file__).parent)


class Odd:
    """Nothing odd."""

    strategies: tuple[str, ...] = STRATEGIES
    changes: ClassVar[dict[str, Any]] = {}  # of the draw
    low = False  # whether parameters of other dtypes keep the bound that they have
    drops = ""  # what no pass leaves out
    alike: tuple[str, ...] = ()  # strategies in which all ranks leave out the same
    parts: ClassVar[dict[str, Any]] = {}  # changes of each part
    needs: tuple[str, ...] = ()  # what a layer must not say that it cannot
    saves = False  # whether it shows only after a save
    one_pass = False  # whether each step has one pass, which sends
    one_segment = False
    must_refuse = False
    weight = 1.0  # how often it is drawn
    no_grad: Any = torch.no_grad  # in which ranks evaluate

    def network(self, model: Network) -> None:
        """Before the module is wrapped."""

    def module(self, model: nn.Module, group: Any) -> nn.Module:
        """What is called instead of a module that ZeRO has, and given to it: on ranks only."""
        return model

    def optimizer_class(self, given: type[torch.optim.Optimizer]) -> Any:
        return given

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        return given

    def param_groups(self, given: list[dict[str, Any]]) -> Any:
        """As ZeRO is given them: on ranks only."""
        return given

    def wrapped(self, trainer: Any) -> None:
        """After the module is wrapped: on ranks only."""

    def changed(self, model: nn.Module) -> None:
        """After the module is wrapped, on ranks and alone."""

    def attached(self, model: nn.Module) -> None:
        """The same, in each segment."""

    def optimized(self, optimizer: torch.optim.Optimizer) -> None:
        """After an optimizer is made, on ranks and alone."""

    def batch(self, raw: torch.Tensor) -> torch.Tensor:
        return raw

    def epochs(self, steps: list[Any]) -> list[list[Any]]:
        return [steps]

    def joined(self, trainer: Any) -> contextlib.AbstractContextManager[None]:
        """Around an epoch: on ranks only."""
        return contextlib.nullcontext()

    def has_batch(self, draw: Draw, step: int, rank: int) -> bool:
        return True

    def divisor(self, active: list[bool]) -> int:
        """Of the sum over ranks, when these have a batch."""
        return len(active)

    def passes(
        self,
        run: Callable[[Sequence[Pass]], None],
        passes: Sequence[Pass],
        drop: Callable[[], None],
    ) -> None:
        """Make the passes of a step; `drop` forgets gradients."""
        run(passes)

    def loss(self, model: Callable[..., Any], raw: torch.Tensor, without: Any) -> torch.Tensor:
        return loss_of(model(raw, without))

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def before_step(self, model: nn.Module) -> None:
        """After the backward passes."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def after_step(self, model: nn.Module) -> None:
        """When the weights are new."""

    def results(self) -> dict[str, torch.Tensor]:
        """What else is to be as on one device."""
        return {}


class CopyOfDdp(Odd):
    strategies = DDP

    def copy(self, model: nn.Module) -> nn.Module:
        return copy.deepcopy(model)

    def wrapped(self, trainer: Any) -> None:
        trainer.model = self.copy(trainer.model)
        trainer.module = trainer.model.module
        trainer.no_sync = trainer.model.no_sync
        trainer.make_optimizer()


class SavedDdp(CopyOfDdp):
    needs = ("pickle",)

    def copy(self, model: nn.Module) -> nn.Module:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False)


class CopyOfZero(Odd):
    strategies = ZERO

    def wrapped(self, trainer: Any) -> None:
        trainer.optimizer = copy.deepcopy(trainer.optimizer)
        trainer.model = trainer.module = trainer.optimizer.module
        trainer.no_sync = trainer.optimizer.no_sync


class Penalty(Odd):
    needs = ("second derivative",)
    drops = "behind"  # else a rank's loss may have no derivative

    def loss(self, model: Callable[..., Any], raw: torch.Tensor, without: Any) -> torch.Tensor:
        raw = raw.requires_grad_()
        loss = loss_of(model(raw, without))
        (slope,) = torch.autograd.grad(loss, raw, create_graph=True)
        return loss + slope.square().sum()


class Dataclasses(Odd):
    strategies = ZERO3
    changes: ClassVar = {"output": "dataclass"}


class Views(Odd):
    drops = "block"  # else not all ranks refuse

    changes: ClassVar = {"output": "view"}


class PreHooks(Odd):
    def network(self, model: Network) -> None:
        for block in model.blocks:

            def scale(block: Any, given: Any) -> Any:
                return given[0] * block.extra.mean(), *given[1:]

            block.register_forward_pre_hook(scale)


class WeightNorm(Odd):
    def norm(self, layer: nn.Module) -> None:
        with warnings.catch_warnings(category=FutureWarning, action="ignore"):
            nn.utils.weight_norm(layer)

    def network(self, model: Network) -> None:
        for block in model.blocks:
            self.norm(block.out)


class WeightNormOfToday(WeightNorm):
    def norm(self, layer: nn.Module) -> None:
        nn.utils.parametrizations.weight_norm(layer)


class InDdp(Odd):
    strategies = ZERO

    def module(self, model: nn.Module, group: Any) -> nn.Module:
        return DistributedDataParallel(model, group, find_unused_parameters=True)


class WholeParameters(Odd):
    """Steps of a length of their own for each parameter, as LARS makes them."""

    def optimizer_class(self, given: type[torch.optim.Optimizer]) -> Any:
        class Lars(given):  # type: ignore[misc, valid-type]
            def step(self, closure: Any = None) -> Any:
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.grad *= p.detach().norm() / (p.grad.norm() + 1)
                return super().step(closure)

        return Lars


class Cast(Odd):
    needs = ("cast",)
    changes: ClassVar = {"evaluate": False}

    def changed(self, model: nn.Module) -> None:
        model.to(torch.float32).to(torch.float64)


class Loaded(Odd):
    """Weights as torch loads them, behind the back of whatever keeps a copy."""

    low = True

    def changed(self, model: nn.Module) -> None:
        model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})


class DataReplaced(Odd):
    def changed(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data = 0.5 * parameter.data


class FromVector(Odd):
    needs = ("flatten",)

    def changed(self, model: nn.Module) -> None:
        parameters = [p for p in model.parameters() if p.dtype == torch.float64]
        vector = 0.5 * nn.utils.parameters_to_vector(parameters)
        nn.utils.vector_to_parameters(vector.detach(), parameters)


class GradientReplaced(Odd):
    strategies = (*DDP, "zero1")

    def before_step(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = 0.5 * parameter.grad


class TensorRate(Odd):
    changes: ClassVar = {"optimizer": "adam", "groups": False}
    saves = True

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "lr": torch.tensor(given["lr"], dtype=torch.float64)}


class Scaled(Odd):
    needs = ("scale",)
    changes: ClassVar = {"clip": None}

    def network(self, model: Network) -> None:
        self.scaler = torch.amp.GradScaler("cpu")

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()


class ListOfParameters(Odd):
    strategies = ZERO
    changes: ClassVar = {"groups": False}

    def param_groups(self, given: list[dict[str, Any]]) -> Any:
        return given[0]["params"]


class NoHook(Odd):
    strategies = DDP
    must_refuse = True

    def wrapped(self, trainer: Any) -> None:
        trainer.model.register_comm_hook({})


class Unfrozen(Odd):
    def changed(self, model: nn.Module) -> None:
        model.requires_grad_(True)


class TwoOptimizers(Odd):
    strategies = ZERO

    def wrapped(self, trainer: Any) -> None:
        trainer.make_optimizer()


class TorchClips(Odd):
    """torch's clipping, which sees what a rank has of the gradients."""

    strategies = ZERO
    changes: ClassVar = {"clip": None}

    def before_step(self, model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)


USES: dict[str, Odd] = {
    "": Odd(),
    "deep copy of DDP": CopyOfDdp(),
    "DDP saved and loaded": SavedDdp(),
    "deep copy of ZeRO": CopyOfZero(),
    "gradient penalty": Penalty(),
    "blocks return a dataclass": Dataclasses(),
    "blocks return a view of a weight": Views(),
    "blocks with a pre-hook": PreHooks(),
    "weight_norm": WeightNorm(),
    "parametrized weight_norm": WeightNormOfToday(),
    "ZeRO on a module in DDP": InDdp(),
    "optimizer sees whole parameters": WholeParameters(),
    "cast after wrapping": Cast(),
    "load_state_dict of the module": Loaded(),
    "p.data replaced": DataReplaced(),
    "vector_to_parameters": FromVector(),
    "p.grad replaced": GradientReplaced(),
    "lr is a tensor": TensorRate(),
    "GradScaler": Scaled(),
    "param_groups is a list of parameters": ListOfParameters(),
    "a hook that is none": NoHook(),
    "unfrozen after wrapping": Unfrozen(),
    "two ZeRO optimizers": TwoOptimizers(),
    "torch's clip_grad_norm_ on ZeRO": TorchClips(),
}


def refusal(error: Exception) -> str:
    """What an error says, if it is one line, and a `raise` of this package's own says it.

    What the board says is none: it notices that ranks differ, which is too late.
    """
    frame, said = traceback.extract_tb(error.__traceback__)[-1], str(error)
    ours = frame.filename.startswith(OURS) and not frame.filename.endswith("runtime/board.py")
    meant = ours and (frame.line or "").startswith("raise ")
    return said if meant and "\n" not in said else ""
