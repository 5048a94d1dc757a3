"""What a rank really holds, in bytes: count the storages that are alive, after every operation.

Tensors that share memory share a storage, so views count once. Autograd keeps what the backward
pass will need where no Python variable shows it; but each storage was made by an operation, and
those can be watched.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from distributed.runtime.script import run_script
from distributed.workbench.data import batches
from distributed.workbench.training import Alone, make_network, train

Named = Mapping[str, Iterable[torch.Tensor]]  # what tensors are for → the tensors


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors; what two of them share counts once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class MemoryUse(TorchDispatchMode):
    """Within `with MemoryUse(names) as use:`, watch every storage that operations make.

    `names()` tells what the known tensors are for. All others go by the phase in which they were
    made: "activations" unless `use.phase(...)` says otherwise. `use.after[phase]` is what was alive
    at the end of a phase, `use.peak` when most was (bytes, by name). What a kernel uses within one
    operation is not seen, nor what other threads make.
    """

    def __init__(self, names: Callable[[], Named] = dict):
        super().__init__()
        self.names = names
        self.made: dict[int, tuple[weakref.ref, str]] = {}
        self.current = "activations"
        self.peak: dict[str, int] = {}
        self.after: dict[str, dict[str, int]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Storages that are made in here, and that nobody names, are called so."""
        before, self.current = self.current, name
        try:
            yield
        finally:
            self.current = before
            self.after[name] = self.now()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operations on what this rank has: they come here
        result = func(*args, **(kwargs or {}))
        # Forget what is gone first: a new storage can have the address of an old one.
        self.made = {key: made for key, made in self.made.items() if made[0]() is not None}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                if storage._cdata not in self.made:
                    self.made[storage._cdata] = (weakref.ref(storage), self.current)
        now = self.now()
        if sum(now.values()) > sum(self.peak.values()):
            self.peak = now
        return result

    def now(self) -> dict[str, int]:
        """Bytes that are alive now, by what they are for."""
        found: dict[str, int] = {}
        seen = set()
        named = [(name, t.untyped_storage()) for name, ts in self.names().items() for t in ts]
        rest = [(phase, ref()) for ref, phase in self.made.values()]
        for name, storage in [*named, *rest]:
            if storage is not None and storage._cdata not in seen:
                seen.add(storage._cdata)
                found[name] = found.get(name, 0) + storage.nbytes()
        return found


def peak_of_step(make: Callable[[], Callable[[], Any]], warm_up: int = 2) -> int:
    """Bytes that are alive when most is, in a step after the first ones.

    `make()` returns the step. All that was made since `make` began counts, whatever it is for.
    """
    with MemoryUse() as use:
        step = make()
        for _ in range(warm_up):
            step()
        use.peak = {}
        step()
    return sum(use.peak.values())


def watch(model: nn.Module, trained: Any, batch: int, examples: float) -> MemoryUse:
    """Watch the second of two steps, for the first makes the optimizer's states.

    `trained` has `step()` and `tensors()`, as `Alone`; `batch` is how many rows this rank takes.
    """
    first, last = batches(1797, batch, 2)
    train(model, trained.step, [first], examples)
    with MemoryUse(trained.tensors) as use:

        def phase(name: str) -> contextlib.AbstractContextManager[None]:
            return use.phase("activations" if name == "forward" else name)

        train(model, trained.step, [last], examples, phase)
    return use


def main(width: int = 256, depth: int = 4, batch: int = 128) -> None:
    """Adam in fp32 keeps 16 bytes for each parameter, and the forward pass keeps activations."""
    model = make_network(width=width, depth=depth)
    use = watch(model, Alone(model, torch.optim.Adam), batch, examples=batch)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters; bytes for each of them:")
    for phase, found in [*use.after.items(), ("the peak", use.peak)]:
        shares = ", ".join(f"{size / parameters:.2f} {name}" for name, size in found.items())
        print(f"after {phase}:".replace("after the peak", "at the peak"), shares)
    for name, size in {"parameters": 4, "gradients": 4, "optimizer states": 8}.items():
        assert abs(use.after["backward"][name] / (size * parameters) - 1) < 0.02


if __name__ == "__main__":
    run_script(main)
