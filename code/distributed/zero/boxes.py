"""Any shard of an array as boxes: what lets files be written by 4 ranks and read by 3.

    flattened matrix[start:stop] = the rest of a row, whole rows, the beginning of a row

Files of `torch.distributed.checkpoint` know where each box of a parameter is. A rank that
loads asks only for its own boxes, and gets the overlaps.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut the elements start…stop of a flattened array into boxes of it, in order.

    With k dimensions there are at most 2k − 1.
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield ((start,), (stop - start,)) if shape else ((), ())
        return
    row = prod(shape[1:])
    while start < stop:
        first = start // row
        if start % row == 0 and stop - start >= row:
            count = (stop - start) // row
            yield (first, *[0] * (len(shape) - 1)), (count, *shape[1:])
            start += count * row
        else:
            end = min(stop, (first + 1) * row)
            for offsets, sizes in boxes(shape[1:], start - first * row, end - first * row):
                yield (first, *offsets), (1, *sizes)
            start = end


class Boxed(torch.Tensor):
    """A parameter as a file sees it: a shape, and the boxes of it that are on this rank.

    Elements are not copied: boxes are views of a shard. The three methods with underscores are what
    torch.distributed.checkpoint asks of a tensor that is in parts.
    """

    parts: dict[Box, torch.Tensor]

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype) -> "Boxed":
        boxed = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=dtype)
        boxed.parts = {}
        return boxed

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func}: a Boxed tensor is only to be saved and loaded")

    def add(self, param_slice: slice, elements: torch.Tensor) -> None:  # type: ignore[override]
        """This slice of the flattened parameter is in elements[n]."""
        start = 0
        for offsets, sizes in boxes(self.shape, param_slice.start, param_slice.stop):
            self.parts[offsets, sizes] = elements[start : start + prod(sizes)].view(sizes)
            start += prod(sizes)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(*map(torch.Size, box)) for box in self.parts]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(part for (offsets, _), part in self.parts.items() if offsets == index.offset)
