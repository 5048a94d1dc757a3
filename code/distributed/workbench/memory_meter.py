"""Memory meter: the bytes that a rank really holds, counted as live storages after every operation.

Tensors that share memory share a storage, so views count once. Autograd keeps tensors for the
backward pass that no Python variable refers to. But every storage was made by an operation, and a
dispatch mode sees every operation.
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

Named = Mapping[str, Iterable[torch.Tensor]]  # purpose → tensors


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of tensors; a storage that two of them share counts once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class MemoryUse(TorchDispatchMode):
    """Within `with MemoryUse(names) as use:`, watch every storage that operations make.

    `names()` maps names to the known tensors. All others are named after the phase in which they
    were made: "activations" unless `use.phase(...)` sets another name. `use.after[phase]` is the
    memory at the end of a phase, and `use.peak` is the memory at its peak (bytes, by name). Memory
    that a kernel uses only within one operation isn't seen, and neither are other threads.
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
        """Give `name` to the storages that are made in the block and aren't in `names()`."""
        before, self.current = self.current, name
        try:
            yield
        finally:
            self.current = before
            self.after[name] = self.now()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operations on its local tensors, which come here
        result = func(*args, **(kwargs or {}))
        # Remove freed storages first: a new storage can have the address of an old one.
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
        """Bytes that are alive now, by name."""
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
    """Peak memory (bytes) of a step after `warm_up` steps.

    `make()` returns the step. Every storage made since `make` began counts, whatever its purpose.
    """
    with MemoryUse() as use:
        step = make()
        for _ in range(warm_up):
            step()
        use.peak = {}
        step()
    return sum(use.peak.values())


def watch(model: nn.Module, trained: Any, batch: int, examples: float) -> MemoryUse:
    """Watch the second of two steps, because the first makes the optimizer's states.

    `trained` has `step()` and `tensors()`, as `Alone` does; `batch` is the number of rows per rank.
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
