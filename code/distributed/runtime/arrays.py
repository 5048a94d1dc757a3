"""Arrays as tensors on the same memory, and what a sum or a mean of them is made of."""

import contextlib
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

Array = TypeVar("Array", torch.Tensor, np.ndarray, "array[Any]", memoryview)
COMBINE: dict[str, Callable[..., Any]] = {  # combine(a, b, out=a): a[n] ← a[n] with b[n]
    "sum": torch.add,
    "avg": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


@contextlib.contextmanager
def as_tensor(
    x: "torch.Tensor | np.ndarray | array[Any] | memoryview", writes: bool = True
) -> Iterator[torch.Tensor]:
    """x as a contiguous tensor on the same memory; what has gaps is copied in, and back out.

    So are views that PyTorch conjugates or negates only when they are read. What is only read
    (`writes=False`) is not copied back: its owner may have changed it since.
    Raises as `in_place` does.
    """
    view = in_place(x, writes)
    tensor = view.contiguous().resolve_conj().resolve_neg()
    yield tensor
    if writes and tensor is not view and tensor.data_ptr() != view.data_ptr():
        view.copy_(tensor)


def in_place(
    x: "torch.Tensor | np.ndarray | array[Any] | memoryview", writes: bool = True
) -> torch.Tensor:
    """x as a tensor on the same memory.

    An `array.array` of Python, or a `memoryview` of one, is an array, too. Raises TypeError for
    what is no array, or sparse, and ValueError for an array that is to be written and is read-only
    (NumPy would raise where it is written, PyTorch would write) or in which several elements are
    one.
    """
    if isinstance(x, array | memoryview):
        x = np.asarray(x)
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise TypeError(f"x must be a torch tensor or a NumPy array, not {type(x).__name__}")
    if isinstance(x, torch.Tensor) and x.layout != torch.strided:
        raise TypeError(f"x has the layout {x.layout}: give a dense tensor, as x.to_dense()")
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        if writes:
            raise ValueError("x is a read-only array, and the result is written into it: copy it")
        x = x.copy()
    tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x.detach()
    if writes and not tensor.is_contiguous() and is_expanded(tensor):
        raise ValueError("x is expanded, several elements in one place: give it as .contiguous()")
    return tensor


def is_expanded(x: torch.Tensor) -> bool:
    """Whether several elements of x are in one place."""
    return any(k > 1 and step == 0 for k, step in zip(x.shape, x.stride(), strict=True))


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """x[...] without gaps as bytes[n]: what is only moved can have dtypes that a backend lacks."""
    empty = x.new_empty(0, dtype=torch.uint8)  # one of NumPy can have strides that have no bytes
    return x.view(-1).view(torch.uint8) if x.numel() else empty


class Divisors(NamedTuple):
    """What to divide by before and after a sum, so that it is a mean."""

    before: float
    after: float


def divisors(op: str, ranks: int, dtype: torch.dtype) -> Divisors:
    """How "avg" of so many elements is made of their sum; any other op divides by nothing.

    float16 ends at 65,504, so the sum can overflow where the mean does not; and it begins at 6e-8,
    so to divide first would lose small gradients. Therefore half of the factor goes before the sum
    and half after it, as in PyTorch's FSDP: first a power of two, at least √N and less than 2√N.
    Means of up to 65,504/√N do not overflow, and elements above 1.2e-7·√N are not lost. All other
    dtypes, also bfloat16, have float32's range or more, and are divided once, after the sum.
    """
    if op != "avg":
        return Divisors(1, 1)
    if dtype != torch.float16:
        return Divisors(1, ranks)
    before = 1 << (((ranks - 1).bit_length() + 1) // 2)
    return Divisors(before, ranks / before)


def divide(x: torch.Tensor, by: float) -> None:
    """x[...] / by, in place; integers only by 1, which leaves them alone."""
    if by != 1:
        x /= by


def check_op(op: str, known: Collection[str], x: torch.Tensor) -> None:
    """Raise ValueError for an unknown op, or one not defined for x's dtype."""
    if op not in known:
        raise ValueError(f"op={op!r}: choose one of {', '.join(known)}")
    if op == "avg" and not x.is_floating_point():
        raise ValueError(f"op='avg' needs floating-point numbers, x has {x.dtype}")
    if op in ("max", "min") and x.is_complex():
        raise ValueError(f"op={op!r}: complex numbers have no order, x has {x.dtype}")
