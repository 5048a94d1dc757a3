"""Arrays as tensors on the same memory, and the operations that sum or average them."""

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
    """x as a contiguous tensor on the same memory; an array with gaps is copied in and back out.

    Views that PyTorch conjugates or negates only on reading are copied, too. An array that is only
    read (`writes=False`) isn't copied back, because its owner may have changed it since.
    Raises the same errors as `in_place`.
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

    Python's `array.array`, or a `memoryview` of one, is an array, too. Raises TypeError if x isn't
    an array or is sparse. If x will be written, raises ValueError if several of its elements share
    an address, or if it is read-only: NumPy would raise at the write, and PyTorch would write.
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
    """Whether several elements of x share one address."""
    return any(k > 1 and step == 0 for k, step in zip(x.shape, x.stride(), strict=True))


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """x[...] without gaps as bytes[n]: a backend can move dtypes that it can't compute with."""
    empty = x.new_empty(0, dtype=torch.uint8)  # its strides may allow no view as bytes
    return x.view(-1).view(torch.uint8) if x.numel() else empty


class Divisors(NamedTuple):
    """Factors to divide by before and after a sum, so that the result is a mean."""

    before: float
    after: float


def divisors(op: str, ranks: int, dtype: torch.dtype) -> Divisors:
    """Divisors that turn a sum over `ranks` elements into "avg"; for any other op they are 1.

    float16 ends at 65,504, so the sum can overflow even if the mean doesn't. It begins at 6e-8, so
    dividing first would lose small gradients. Therefore about √N is divided out before the sum
    and the rest after it, as in PyTorch's FSDP: first a power of two from √N to less than 2√N.
    Means of up to 65,504/√N don't overflow, and elements above 1.2e-7·√N aren't lost. All other
    dtypes, including bfloat16, have at least float32's range and are divided once, after the sum.
    """
    if op != "avg":
        return Divisors(1, 1)
    if dtype != torch.float16:
        return Divisors(1, ranks)
    before = 1 << (((ranks - 1).bit_length() + 1) // 2)
    return Divisors(before, ranks / before)


def divide(x: torch.Tensor, by: float) -> None:
    """x[...] / by, in place; integers can be divided only by 1, which changes nothing."""
    if by != 1:
        x /= by


def check_op(op: str, known: Collection[str], x: torch.Tensor) -> None:
    """Raise ValueError for an unknown op, or one that isn't defined for x's dtype."""
    if op not in known:
        raise ValueError(f"op={op!r}: choose one of {', '.join(known)}")
    if op == "avg" and not x.is_floating_point():
        raise ValueError(f"op='avg' needs floating-point numbers, x has {x.dtype}")
    if op in ("max", "min") and x.is_complex():
        raise ValueError(f"op={op!r}: complex numbers have no order, x has {x.dtype}")
