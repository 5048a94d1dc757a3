"""Flat units: parameters laid end to end and cut into N equal shards, the atoms of ZeRO.

    flat[N·s] = first parameter, second, …, padding;  rank r owns flat[r·s : (r + 1)·s]

A reduce-scatter of such a flat buffer gives each rank its shard of the sum, and an all-gather of
shards gives all ranks the whole. Both send the least if shards are equal.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed import Group

MOVED = (
    "{name}: its storage was replaced after the module was sharded (.to(), .half(), .data =, "
    "vector_to_parameters): convert before, and write values in place after"
)


class Piece(NamedTuple):
    """Part of a parameter that is on this rank: parameter[param_slice] is local[local_slice].

    Both are flattened. `local` is a shard, or what the optimizer has of it (`LocalParameter`).
    """

    parameter: nn.Parameter
    param_slice: slice
    local_slice: slice


class Layout:
    """Layout of parameters of one dtype in a flat buffer of N shards.

    `partition="flat"` cuts at equal lengths, even through a parameter: at most N − 1 elements of
    padding. "parameter" gives each parameter whole to one rank, the largest first to the rank that
    has least; shards are as long as the longest, and the rest is padding.

    `dtype` is that of the parameters in the module, and of shards. W[N·s] is gathered in
    `param_dtype`, dW[N·s] is reduced in `reduce_dtype`: by default both are `dtype`.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranks: int,
        partition: str = "flat",
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ):
        self.parameters, self.ranks = list(parameters), ranks
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.param_dtype, self.reduce_dtype = param_dtype or self.dtype, reduce_dtype or self.dtype
        self.trainable = parameters[0].requires_grad
        self.numel = sum(p.numel() for p in parameters)
        if partition == "flat":
            self.shard_size = -(-self.numel // ranks)
            loads = [self.parameters]  # from rank 0 on
        else:
            loads = [[] for _ in range(ranks)]
            for parameter in sorted(parameters, key=lambda p: -p.numel()):
                min(loads, key=lambda load: sum(p.numel() for p in load)).append(parameter)
            self.shard_size = max(sum(p.numel() for p in load) for load in loads)
        self.start: dict[nn.Parameter, int] = {}  # of each parameter, in flat
        for rank, load in enumerate(loads):
            start = rank * self.shard_size
            for parameter in load:
                self.start[parameter] = start
                start += parameter.numel()

    @property
    def size(self) -> int:
        """Elements of flat[N·s], padding included."""
        return self.ranks * self.shard_size

    def view(self, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
        """flat[N·s] → one parameter's part of it, in the parameter's shape, on the same memory."""
        start = self.start[parameter]
        return flat[start : start + parameter.numel()].view(parameter.shape)

    def views(self, flat: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        """flat[N·s] → every parameter's view of it."""
        return {parameter: self.view(flat, parameter) for parameter in self.start}

    def write(
        self, values: Mapping[nn.Parameter, torch.Tensor | None], flat: torch.Tensor
    ) -> torch.Tensor:
        """Copy values of parameters into flat[N·s]; what is missing, and the padding, is zero."""
        if self.numel < self.size:
            flat.zero_()
        for parameter, view in self.views(flat).items():
            value = values.get(parameter)
            if value is None:
                view.zero_()
            else:
                view.copy_(value)
        return flat

    def broadcast(self, flat: torch.Tensor, group: Group) -> torch.Tensor:
        """flat[N·s] ← rank 0's values of the parameters, on every rank."""
        self.write({parameter: parameter.data for parameter in self.parameters}, flat)
        return group.broadcast(flat)

    def shard(self, flat: torch.Tensor, rank: int) -> torch.Tensor:
        """flat[N·s] → the shard[s] of one rank, on the same memory."""
        return flat[rank * self.shard_size : (rank + 1) * self.shard_size]

    def pieces(self, rank: int) -> list[Piece]:
        """The pieces in one rank's shard, in order, without padding."""
        begin, end = rank * self.shard_size, (rank + 1) * self.shard_size
        found = []
        for parameter, start in sorted(self.start.items(), key=lambda item: item[1]):
            low, high = max(begin, start), min(end, start + parameter.numel())
            if low < high:
                of_parameter = slice(low - start, high - start)
                found.append(Piece(parameter, of_parameter, slice(low - begin, high - begin)))
        return found


class FlatUnit:
    """A layout and this rank's shard of it: the unit of gathering, reducing and updating.

    shard[s]     this rank's W[s], which the optimizer updates; under a `param_dtype` a master copy
    gradient[s]  dW[s], the mean over the ranks, in the shard's dtype; None until it is reduced
    version      autograd's of the shard when all ranks knew it: another one tells of a write
    """

    def __init__(self, layout: Layout, group: Group, shard: torch.Tensor):
        assert (shard.shape, shard.dtype) == ((layout.shard_size,), layout.dtype)
        self.layout, self.group, self.shard = layout, group, shard
        self.gradient: torch.Tensor | None = None
        self.version = shard._version

    @property
    def is_cast(self) -> bool:
        """Whether parameters are gathered in another dtype than the shard has."""
        return self.layout.param_dtype != self.layout.dtype

    def new_gradients(self) -> torch.Tensor:
        """Memory for dW[N·s], where the group's collectives reach it best."""
        return self.group.empty(self.layout.size, self.layout.reduce_dtype)

    def all_gather(self, out: torch.Tensor, async_op: bool = False) -> Any:
        """W[s], different on each rank → out[N·s], in out's dtype, which may be narrower."""
        shard = self.shard
        if out.dtype != shard.dtype:
            shard = self.layout.shard(out, self.group.rank).copy_(shard)
        return self.group.all_gather(shard, out, async_op)

    def read_back(self, full: torch.Tensor) -> None:
        """W[s] ← what was written into full[N·s] since it was gathered, unless W[s] was written.

        Elements that are W[s] as it was cast keep all of their digits.
        """
        if self.shard._version == self.version:
            mine = self.layout.shard(full, self.group.rank)
            is_new = mine != self.shard.to(mine.dtype)
            self.shard.data.copy_(torch.where(is_new, mine, self.shard))  # with the same version

    def reduce_scatter(self, flat: torch.Tensor, async_op: bool = False) -> Any:
        """flat[N·s]{partial over ranks} → dW[s], their mean, in this rank's part of flat.

        Sums are made in flat's dtype, as `Group.reduce_scatter` says.
        """
        mine = self.layout.shard(flat, self.group.rank)
        return self.group.reduce_scatter(flat, mine, "avg", async_op)

    def reduced(self) -> torch.Tensor:
        """dW[s], when it is reduced."""
        assert self.gradient is not None
        return self.gradient

    def add_gradient(self, reduced: torch.Tensor) -> None:
        """dW[s] ← dW[s] + reduced[s], in the shard's dtype; the memory of `reduced` can go."""
        if self.gradient is None:
            self.gradient = reduced.to(self.shard.dtype, copy=True)
        else:
            self.gradient += reduced


def placeholder(like: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor in the shape of another, but one element in memory: NaN, if the dtype has it."""
    has_nan = dtype.is_floating_point or dtype.is_complex  # a quantized weight has none
    nothing = torch.full((), torch.nan if has_nan else 0, dtype=dtype, device=device)
    return nothing.expand(like.shape)
