"""ZeRO on ranks with different graphs: what may differ counts as zero, what may not is refused.

A rank may lack gradients that other ranks have. In ZeRO-3 and HSDP it must call the same blocks as
they do, in the same order, or it gets a line that names a block and a rank. Where ranks may differ,
they talk through gloo, without a board: a collective out of order hangs, or mixes up numbers.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distributed.ring_group import RingGroup
from distributed.runtime.group import Group
from distributed.runtime.mesh import mesh
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.zero import HSDP, Zero1, Zero2, Zero3

STAGES = {
    "zero1": Zero1,
    "zero2": partial(Zero2, bucket_bytes=100),
    "zero3": Zero3,
    "zero3, no prefetch": partial(Zero3, prefetch=False),
    "zero3, kept after forward": partial(Zero3, reshard_after_forward=False),
}
OFTEN = ("zero2", "zero3")
BLOCKS, RANKS = 5, 3


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.extra = nn.Parameter(torch.rand(4))

    def forward(self, x, extra):
        x = x + self.linear(x).tanh()
        return x * self.extra if extra else x


class Chain(nn.Module):
    """Blocks between two layers of the root. `without` says what one forward pass leaves out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Part() for _ in range(BLOCKS))
        self.again = None  # or how a checkpoint computes a block again: reentrant or not

    def forward(self, x, without):
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            if f"block {i}" in without:
                continue
            extra = f"extra {i}" not in without
            if self.again is None:
                x = block(x, extra)
            else:
                x = checkpoint(block, x, extra, use_reentrant=self.again)
            if f"behind {i}" in without:
                x = x.detach()
        return x if "last" in without else self.last(x)


def inputs(rank, step):
    return torch.randn(
        6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9 * step + rank)
    )


def alone(plans, passes=1):
    """The mean of all ranks' gradients, where a missing one is zero, on one device."""
    model = Chain().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, plan in enumerate(plans):
        for rank, without in enumerate(plan):
            for _ in range(passes):
                (model(inputs(rank, step), without).square().sum() / len(plan)).backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def together(group, stage, plans, again=None, quiet=False, ring=False):
    plain = Group(group.device, None, group.local_size, group.backend)
    group = RingGroup(plain) if ring else plain
    model = Chain().double()
    model.again = again
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.05, momentum=0.9)
    for step, plan in enumerate(plans):
        x, without = inputs(group.rank, step), plan[group.rank]
        if quiet:  # a first pass that sends no gradient
            with zero.no_sync():
                model(x, without).square().sum().backward()
        model(x, without).square().sum().backward()
        zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


def assert_equal(results, expected):
    for found in results:
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def each_rank_in_turn(*without):
    """Three steps: in each of them another rank leaves something out."""
    return [[without if rank == step else () for rank in range(RANKS)] for step in range(RANKS)]


SAME_BLOCKS = [
    ["extra 2"],
    ["extra 0"],
    ["extra 4", "extra 3"],
    ["behind 2"],
    ["behind 4"],
    ["last"],
    ["behind 1", "extra 4"],
]
OTHER_BLOCKS = [
    ["block 2"],
    ["block 0"],
    ["block 4"],
    ["block 1", "block 2", "block 3"],
    ["block 3", "behind 1", "extra 4"],
]
RARE = pytest.mark.slow


@pytest.mark.parametrize(
    "stage", [pytest.param(s, marks=() if s in OFTEN else RARE) for s in STAGES]
)
@pytest.mark.parametrize("without", SAME_BLOCKS, ids=" ".join)
def test_what_one_rank_leaves_out_counts_as_zero(pools, stage, without):
    plans = each_rank_in_turn(*without)
    assert_equal(pools[RANKS](together, stage, plans), alone(plans))


@pytest.mark.parametrize("stage", [pytest.param("zero1", marks=RARE), "zero2"])
@pytest.mark.parametrize("without", OTHER_BLOCKS, ids=" ".join)
def test_zero_1_and_2_know_no_blocks(pools, stage, without):
    plans = each_rank_in_turn(*without)
    assert_equal(pools[RANKS](together, stage, plans), alone(plans))


BLOCKWISE = [stage for stage in STAGES if stage.startswith("zero3")]


@pytest.mark.parametrize("stage", BLOCKWISE)
def test_all_ranks_may_leave_out_blocks_others_in_each_step(pools, stage):
    left_out = [("block 2",), (), ("block 0", "block 4"), ("block 1", "block 2"), ("block 3",)]
    plans = [[without] * RANKS for without in left_out]
    assert_equal(pools[RANKS](together, stage, plans), alone(plans))


@pytest.mark.parametrize("stage", ["zero2", "zero3", "zero3, no prefetch"])
def test_with_blocks_that_are_computed_again(pools, stage):
    plans = each_rank_in_turn("extra 1", "behind 2", "extra 3", "last")
    assert_equal(pools[RANKS](together, stage, plans, False), alone(plans))


@pytest.mark.parametrize("stage", ["zero2"])
def test_with_blocks_that_are_checkpointed_reentrantly(pools, stage):
    plans = each_rank_in_turn("extra 1", "block 3", "last")
    assert_equal(pools[RANKS](together, stage, plans, True), alone(plans))


@pytest.mark.parametrize("stage", ["zero2", "zero3", "zero3, no prefetch"])
def test_with_gradients_that_add_up_in_no_sync(pools, stage):
    plans = each_rank_in_turn("extra 2", "behind 0")
    assert_equal(pools[RANKS](together, stage, plans, None, True), alone(plans, passes=2))


def test_around_a_ring(pools):
    plans = each_rank_in_turn("extra 2", "behind 3")
    results = pools[RANKS](together, "zero3", plans, None, False, True)
    assert_equal(results, alone(plans))


LACKS = [("extra 4", "behind 2", "block 1"), ("behind 1", "block 1")]  # of the second rank


def lacks(rank, number):
    return LACKS[number] if rank == 1 else ("block 1",)


def two_passes(group, backward_of_each):
    plain = Group(group.device, None, group.local_size, group.backend)
    model = Chain().double()
    zero = Zero3(model, torch.optim.SGD, plain, lr=0.05)
    losses = [model(inputs(group.rank, i), lacks(group.rank, i)).square().sum() for i in range(2)]
    for loss in losses if backward_of_each else [sum(losses)]:
        loss.backward()
    zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


@pytest.mark.parametrize("backward_of_each", [False, True])
def test_two_forward_passes_before_a_backward_pass(pools, backward_of_each):
    model = Chain().double()
    for rank in range(RANKS):
        for i in range(2):
            (model(inputs(rank, i), lacks(rank, i)).square().sum() / RANKS).backward()
    expected = {
        name: p.detach() if p.grad is None else p.detach() - 0.05 * p.grad
        for name, p in model.named_parameters()
    }
    assert_equal(pools[RANKS](two_passes, backward_of_each), expected)


class Checkpointed(Chain):
    """One way for each rank: n checkpoints a block, r runs it, u goes on without its output."""

    ways = ("r" * BLOCKS,) * RANKS

    def forward(self, x, rank):
        x = self.first(x)
        for block, way in zip(self.blocks, self.ways[rank], strict=True):
            y = checkpoint(block, x, True, use_reentrant=False) if way == "n" else block(x, True)
            x = x if way == "u" else y
        return self.last(x)


def checkpointed(group, ways, prefetch):
    plain = Group(group.device, None, group.local_size, group.backend)
    model = Checkpointed().double()
    model.ways = ways
    zero = Zero3(model, torch.optim.SGD, plain, lr=0.05, prefetch=prefetch)
    for step in range(2):
        model(inputs(group.rank, step), group.rank).square().sum().backward()
        zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(
    "ways", [("nrrru", "rrrrr", "nnnnn"), ("uuuur", "rnrnr", "nuuuu")], ids=" ".join
)
def test_one_rank_checkpoints_a_block_and_another_does_not_use_it(pools, ways, prefetch):
    model = Checkpointed().double()
    model.ways = ways
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        for rank in range(RANKS):
            (model(inputs(rank, step), rank).square().sum() / RANKS).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = {name: p.detach() for name, p in model.named_parameters()}
    assert_equal(pools[RANKS](checkpointed, ways, prefetch), expected)


# --- blocks that one rank leaves out


def hsdp(model, optimizer_class, group, **settings):
    return HSDP(model, optimizer_class, *mesh(group, 2), **settings)


def one_leaves_out(group, make, without):
    model = Chain().double()
    zero = make(model, torch.optim.SGD, group, lr=0.05)
    model(inputs(group.rank, 0), without if group.rank == 1 else ()).square().sum().backward()
    zero.step()


@pytest.mark.parametrize(
    "make", [*(STAGES[stage] for stage in BLOCKWISE), hsdp], ids=[*BLOCKWISE, "hsdp"]
)
@pytest.mark.parametrize(
    "without", [["block 0"], ["block 2"], ["block 4"], ["block 1", "block 2"]], ids=" ".join
)
def test_a_block_that_one_rank_leaves_out_is_named_with_the_ranks(pools, make, without):
    number = without[0][-1]
    with pytest.raises(RankError) as said:
        pools[4](one_leaves_out, make, tuple(without))
    line = str(said.value).splitlines()[0]
    assert f"calls all_gather for block {number} (blocks.{number})" in line
    assert "rank 1 calls " in line


class Backwards(Chain):
    """The blocks, from the last to the first."""

    def forward(self, x, without):
        x = self.first(x)
        for block in reversed(self.blocks):
            x = block(x, True)
        return self.last(x)


def in_another_order(group, given):
    model = Backwards().double()
    blocks = [*reversed(model.blocks)] if given else None
    zero = Zero3(model, torch.optim.SGD, group, blocks=blocks, lr=0.05)
    model(inputs(group.rank, 0), ()).square().sum().backward()
    zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


def test_blocks_in_another_order_are_learned_from_the_forward_pass(pools):
    model = Backwards().double()
    for rank in range(RANKS):
        (model(inputs(rank, 0), ()).square().sum() / RANKS).backward()
    expected = {name: p.detach() - 0.05 * p.grad for name, p in model.named_parameters()}
    for given in (True, False):
        assert_equal(pools[RANKS](in_another_order, given), expected)


class FrozenLast(nn.Module):
    """A frozen block that is registered first and called last."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = self.c(self.b(self.a(x)))
        return x, self.frozen(x)


def without_what_is_frozen(group, prefetch):
    torch.manual_seed(0)
    model = FrozenLast()
    blocks = [model.frozen, model.a, model.b, model.c]
    zero = Zero3(model, torch.optim.SGD, group, blocks=blocks, prefetch=prefetch, lr=0.1)
    plain, behind = model(torch.ones(3, 4))
    (plain if group.rank == 1 else behind).sum().backward()
    return [value.norm().item() for _, value in zero.full_gradients()]


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_frozen_block_that_one_rank_leaves_out_is_where_it_was_called(pools, prefetch):
    first, second = pools[2](without_what_is_frozen, prefetch)
    assert first == second
    assert all(first)


def sent_when_frozen(group):
    ring, model = RingGroup(group), Chain().double()
    for part in [model.first, model.last, *model.blocks[:4]]:
        part.requires_grad_(False)
    zero = Zero3(model, torch.optim.SGD, ring, lr=0.05)
    loss = model(inputs(0, 0), ()).square().sum()
    ring.trace = trace = Trace(group.rank)
    loss.backward()
    (trained,) = zero.trained
    return trace.sent, trained.layout.shard_size * 8


def test_frozen_blocks_before_all_that_is_trained_are_not_gathered_again(pools):
    for sent, share in pools[2](sent_when_frozen):
        assert sent == share, "the gradient of the last block, and nothing else"
