"""ZeRO-3: memory, prefetching, models without memory, and what is refused."""

import math
from time import perf_counter

import pytest
import torch
from torch import nn

from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.workbench.data import batches
from distributed.workbench.memory_meter import MemoryUse, watch
from distributed.workbench.training import make_network, train
from distributed.zero import Zero3
from distributed.zero.blocks import BlockState, check_blocks
from distributed.zero.materialise import by_reset_parameters, leave_meta, materialise

KEPT = ("parameters", "gradients", "master copy", "optimizer states")
LAYER = 64 * 64 + 64
PSI = 64 * 64 + 64 + 5 * LAYER + 64 * 10 + 10


def watched(group, options):
    model = make_network(width=64, depth=6)
    zero = Zero3(model, torch.optim.Adam, RingGroup(group), **options)
    use = watch(model, zero, 16, 16)
    return use.after["backward"], use.after["step"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_memory_is_16_over_n_and_two_blocks(pools, ranks):
    for after, end in pools[ranks](watched, {"param_dtype": torch.bfloat16}):
        kept = sum(after.get(k, 0) for k in KEPT)
        assert kept == pytest.approx(16 * PSI / ranks, rel=0.01)
        assert after["gathered"] == pytest.approx(2 * 2 * LAYER, rel=0.01)
        assert end.get("gradients", 0) == 0


@pytest.mark.parametrize(
    ("options", "gathered"),
    [({"prefetch": False}, LAYER), ({"reshard_after_forward": False}, PSI), ({"blocks": []}, PSI)],
)
def test_buffers_are_as_many_as_asked_for(pools, options, gathered):
    for after, _ in pools[2](watched, options):
        assert after["gathered"] == pytest.approx(4 * gathered, rel=0.01)


def first_and_last(group, prefetch):
    model = make_network(width=300, depth=6)
    zero = Zero3(model, torch.optim.SGD, group, prefetch=prefetch, lr=0.1)
    train(model, zero.step, batches(1797, 32, 1), 32.0)
    ended = {}
    for i, block in enumerate(zero.blocks):
        block.module.register_forward_hook(lambda *_, i=i: ended.update({i: perf_counter()}))
    group.barrier()
    group.trace = trace = Trace(group.rank)
    zero.module(torch.ones(2000, 64))
    group.trace = None
    begun = sorted(s.start for s in trace.spans if s.name == "all_gather")
    return begun, ended


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_next_block_is_called_before_this_one_has_computed(pools, prefetch):
    for begun, ended in pools[2](first_and_last, prefetch):
        # In the order of the forward pass: the root has nothing of its own to gather.
        assert len(begun) == len(ended) == 7
        for i in range(6):
            assert (begun[i + 1] < ended[i]) == prefetch


class Noting(RingGroup):
    """Notes which block is gathered: block i has (i + 1)² numbers, and one more where it is odd."""

    def __init__(self, group):
        super().__init__(group)
        self.events = []

    def all_gather(self, x, out, async_op=False):
        self.events.append(f"gather {math.isqrt(len(out)) - 1}")
        return super().all_gather(x, out, async_op)


def backward_events(group, prefetch):
    noting = Noting(group)
    model = nn.Sequential(*(nn.Linear(i, i + 1) for i in range(1, 6)))
    Zero3(model, torch.optim.SGD, noting, prefetch=prefetch, lr=0.1)
    y = torch.ones(1, 1)
    for i, block in enumerate(model, start=1):
        y = block(y)
        y.register_hook(lambda _, i=i: noting.events.append(f"compute {i}"))
    noting.events.clear()
    y.sum().backward()
    return noting.events


@pytest.mark.parametrize("prefetch", [True, False])
def test_backward_gathers_the_block_before_while_this_one_computes(pools, prefetch):
    """The last two blocks stand in two buffers, the last one in one."""
    expected = ["compute 5"]
    for i in (4, 3, 2, 1):
        before = i - 1 if prefetch else i
        expected += [f"gather {before}"] * (before > 0) + [f"compute {i}"]
    assert pools[2](backward_events, prefetch) == [expected] * 2


def gathered_after_each_pass(group, options):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1, **options)

    def gathered():
        return [block.index for block in zero.blocks if block.state is not BlockState.SHARDED]

    loss = model(torch.ones(2, 4)).sum()
    after_forward = gathered()
    loss.backward()
    after_backward = gathered()
    zero.step()
    return after_forward, after_backward, gathered()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ([4, 5], [0, 1], [])),
        ({"prefetch": False}, ([5], [0], [])),
        ({"reshard_after_forward": False}, ([*range(6)], [*range(6)], [])),
    ],
)
def test_blocks_are_freed_but_for_those_with_which_the_next_pass_begins(pools, options, expected):
    assert pools[2](gathered_after_each_pass, options) == [expected] * 2


def sent_without_block_1(group):
    ring = RingGroup(group)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    zero = Zero3(model, torch.optim.SGD, ring, prefetch=False, lr=0.1)
    ring.trace = trace = Trace(group.rank)
    y = torch.ones(2, 4)
    for i in (0, 2, 3):
        y = model[i](y)
    y.sum().backward()
    zero.step()
    return trace.sent, dict(zero.full_parameters())["1.weight"].clone()


def test_a_block_that_no_rank_calls_is_neither_gathered_nor_reduced(pools):
    shard = 4 * 4 * 4 // 2  # bytes that a rank sends to gather or to reduce a block
    for sent, _ in pools[2](sent_without_block_1):
        assert sent == (3 + 2 + 3) * shard  # the last one stays gathered between the passes


def whole_nowhere(group):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(200, 200, bias=False) for _ in range(12)))
    torch.manual_seed(group.rank)  # only rank 0's draws may count
    with MemoryUse() as use:
        zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    weights = [value.clone() for _, value in zero.full_parameters()]
    return sum(use.peak.values()), weights


def test_a_model_on_the_meta_device_is_never_whole(pools):
    results = pools[4](whole_nowhere)
    block, whole = 200 * 200 * 4, 12 * 200 * 200 * 4
    for peak, weights in results:
        assert peak <= whole / 4 + 4 * block < whole
        assert all(torch.equal(a, b) for a, b in zip(weights, results[0][1], strict=True))
        assert all(abs(w.std() * math.sqrt(3 * 200) - 1) < 0.02 for w in weights)


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        return x @ self.weight


def on_meta(group, initialise):
    with torch.device("meta"):
        model = nn.Sequential(NoReset(), nn.Linear(3, 1))
    options = {"initialise": initialise} if initialise else {}
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1, **options)
    return {name: value.sum().item() for name, value in zero.full_parameters()}


def fill_with_two(module):
    for parameter in module.parameters(recurse=False):
        parameter.data.fill_(2.0)


def test_what_cannot_be_drawn_is_said_and_what_is_given_is_used(pools):
    with pytest.raises(RankError, match=r"NoReset .* has no reset_parameters\(\)"):
        pools[2](on_meta, None)
    assert pools[2](on_meta, fill_with_two)[1] == {"1.weight": 6, "1.bias": 2, "0.weight": 18}


class Rotary(nn.Module):
    """Only buffers, of which one is a bool's, and not saved."""

    def __init__(self):
        super().__init__()
        self.reset_parameters()

    def reset_parameters(self):
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(4) / 4))
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)

    def forward(self, x):
        return x * self.frequencies


def with_buffers():
    norms = [nn.BatchNorm1d(4, affine=affine) for affine in (False, True)]
    return nn.Sequential(nn.Linear(4, 4), *norms, Rotary(), nn.Linear(4, 4))


def buffers_from_meta(group):
    garbage = [torch.full((4,), 1e30) for _ in range(50)]
    del garbage  # the allocator hands it out again
    with torch.device("meta"):
        model = with_buffers()
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    zero.step()
    return dict(model.named_buffers())


def test_buffers_on_the_meta_device_get_their_first_values(pools):
    model = with_buffers()
    model(torch.ones(2, 4))
    for found in pools[2](buffers_from_meta):
        assert found.keys() == dict(model.named_buffers()).keys()
        assert found["3.frequencies"].tolist() == model[3].frequencies.tolist()
        assert found["3.mask"].tolist() == [True, False]
        for name, buffer in found.items():
            expected = model.get_buffer(name)
            assert (buffer.shape, buffer.dtype) == (expected.shape, expected.dtype)
            assert buffer.double().isfinite().all(), name
        for i in (1, 2):
            torch.testing.assert_close(found[f"{i}.running_var"], torch.full((4,), 0.9))
            assert found[f"{i}.num_batches_tracked"] == 1


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(3, 3).tril())


class Forgetful(nn.Module):
    """Its first values leave out what is given by name."""

    def __init__(self, name):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("position_ids", torch.arange(4))
        self.register_buffer("causal", torch.ones(3, 3, dtype=torch.bool).tril())
        self.register_buffer("nothing", torch.ones(0, dtype=torch.long))
        self.name = name

    def reset_parameters(self):
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            if name != self.name:
                tensor.zero_()


def forgotten(group, name):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), Forgetful(name) if name else Masked())
    Zero3(model, torch.optim.SGD, group, lr=0.1)


def test_a_buffer_that_nobody_can_make_is_named(pools):
    with pytest.raises(RankError, match=r"Masked .* has no reset_parameters\(\)"):
        pools[2](forgotten, "")


FORGOTTEN = ["weight", "bias", "scale", "position_ids", "causal"]


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_the_first_values_leave_out_is_named(pools, name):
    with pytest.raises(RankError, match=rf"ValueError.*1\.{name} .*no value"):
        pools[2](forgotten, name)


class Unusual(nn.Module):
    """Its first values are those by which one could tell memory that nobody has written."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("unknown", torch.ones(2))
        self.register_buffer("last", torch.ones(2, dtype=torch.long))
        self.register_buffer("order", torch.ones(2, dtype=torch.long))

    def reset_parameters(self):
        self.weight.data.zero_()
        self.unknown.fill_(torch.nan)
        self.last.fill_(-1)
        self.order.data.copy_(torch.tensor([0, 1]))


def test_first_values_may_be_unusual():
    with torch.device("meta"):
        model = Unusual()
    materialise(model, leave_meta(model, torch.device("cpu")), by_reset_parameters)
    assert model.unknown.isnan().all()
    assert [model.weight.tolist(), model.last.tolist()] == [[0, 0], [-1, -1]]
    assert model.order.tolist() == [0, 1]


def test_half_of_a_weight_is_no_weight():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    unmade = leave_meta(model, torch.device("cpu"))
    with pytest.raises(ValueError, match="weight is on the meta device and has no value"):
        materialise(model, unmade, lambda module: module.weight[0].zero_())


def test_what_is_real_already_keeps_its_values():
    with torch.device("meta"):
        model = nn.BatchNorm1d(2)
    model.running_mean = torch.full((2,), 5.0)
    model.bias = nn.Parameter(torch.full((2,), 6.0))
    unmade = leave_meta(model, torch.device("cpu"))
    materialise(model, unmade, by_reset_parameters)
    assert (model.running_mean == 5).all()
    assert (model.bias == 6).all()
    assert (model.weight == 1).all()
    assert (model.running_var == 1).all()
    assert model.num_batches_tracked == 0


class ByDepth(nn.Module):
    """The first values of its weight depend on a buffer that is real already."""

    def __init__(self):
        super().__init__()
        self.register_buffer("depth", torch.tensor(12, device="cpu"))
        self.weight = nn.Parameter(torch.ones(2))

    def reset_parameters(self):
        self.weight.fill_(1 / self.depth.item())
        self.depth.zero_()


def test_first_values_can_depend_on_what_is_real_already():
    with torch.device("meta"):
        model = ByDepth()
    materialise(model, leave_meta(model, torch.device("cpu")), by_reset_parameters)
    assert model.weight.tolist() == [pytest.approx(1 / 12)] * 2
    assert model.depth == 12


class Parent(nn.Module):
    """It gives first values to a part of it, too, which has its own turn."""

    def __init__(self, fill):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)
        self.fill = fill

    def reset_parameters(self):
        self.scale.data.fill_(1.0)
        self.fill(self.inner.weight)


def fill_inside(group, fill):
    with torch.device("meta"):
        model = nn.Sequential(Parent(fill))
    Zero3(model, torch.optim.SGD, group, lr=0.1)


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (nn.init.zeros_, "ValueError: initialise= of 0 wrote into inner.weight, of a module "),
        # What is sharded has no memory, and most functions of torch refuse to write there.
        (nn.init.trunc_normal_, "RuntimeError(.|\n)*in initialise= of 0, which may fill "),
    ],
)
def test_first_values_of_a_module_inside_are_refused(pools, fill, said):
    with pytest.raises(RankError, match=said):
        pools[2](fill_inside, fill)


def emptied(module):
    """A habit of FSDP's users, which gives memory to all modules inside as well."""
    module.to_empty(device="cpu")
    module.reset_parameters()


def test_memory_for_a_module_inside_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(Parent(lambda weight: None))
    with pytest.raises(ValueError, match=r"initialise= of 0 wrote into inner\.weight"):
        materialise(model, leave_meta(model, torch.device("cpu")), emptied)


class Unfinished(nn.Module):
    """Its first values fail in the way that is given by name."""

    def __init__(self, way):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.register_buffer("cache", None)
        self.register_buffer("steps", torch.tensor(5, device="cpu"))
        self.way = way

    def reset_parameters(self):
        self.steps.zero_()
        self.cache = torch.zeros(3)  # a buffer that was not there
        if self.way == "half":
            self.weight[0].zero_()
        elif self.way == "shape":
            self.weight = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
        elif self.way == "none":
            self.weight = None
        else:
            self.weight.zero_()
        if self.way == "raise":
            raise RuntimeError("no disk")


@pytest.mark.parametrize("way", ["half", "shape", "none", "raise"])
def test_first_values_that_fail_leave_the_rest_as_it_was(way):
    with torch.device("meta"):
        model = Unfinished(way)
    unmade = leave_meta(model, torch.device("cpu"))
    said = "no disk" if way == "raise" else "^weight is on the meta device and has no value of its "
    with pytest.raises(RuntimeError if way == "raise" else ValueError, match=said):
        materialise(model, unmade, by_reset_parameters)
    assert model.steps == 5


def test_first_values_can_make_a_buffer_that_was_not_there():
    with torch.device("meta"):
        model = Unfinished("no way")
    materialise(model, leave_meta(model, torch.device("cpu")), by_reset_parameters)
    assert (model.weight == 0).all()
    assert model.cache.tolist() == [0, 0, 0]
    assert model.steps == 5


class Scale(nn.Parameter):
    """A class of the user's own."""


def test_parameters_keep_their_class():
    model = nn.Linear(2, 2)
    model.weight = Scale(torch.empty(2, 2, device="meta"))
    materialise(model, leave_meta(model, torch.device("cpu")), by_reset_parameters)
    assert type(model.weight) is Scale


def test_attributes_and_hooks_stay_with_what_leaves_the_meta_device():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    model.weight.no_decay, seen = True, []
    model.weight.register_hook(lambda _: seen.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda _: seen.append("ready"))
    leave_meta(model, torch.device("cpu"))
    model.weight.sum().backward()
    assert model.weight.no_decay
    assert seen == ["gradient", "ready"]


def test_what_cannot_leave_the_meta_device_is_named():
    with torch.device("meta"):
        model = nn.Sequential(nn.LSTM(2, 3))
    with pytest.raises(ValueError, match=r"0\.weight_ih_l0 can't leave the meta device: make "):
        leave_meta(model, torch.device("cpu"))


class Replacing(nn.Linear):
    """Makes new parameters, where others write into those that it has."""

    def reset_parameters(self):
        self.weight = nn.Parameter(torch.full((2, 2), 3.0))
        self.bias = nn.Parameter(torch.zeros(2))


def test_parameters_that_are_replaced_by_their_first_values_stay_the_same_objects():
    with torch.device("meta"):
        model = Replacing(2, 2)
    before = [*model.parameters()]
    materialise(model, leave_meta(model, torch.device("cpu")), by_reset_parameters)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    assert (model.weight == 3).all()


def test_what_was_tied_on_the_meta_device_stays_tied():
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        model[1].weight = model[0].weight
    leave_meta(model, torch.device("cpu"))
    assert model[1].weight is model[0].weight
    materialise(model, model.parameters(), fill_with_two)
    assert (model[1].weight == 2).all()


def outside_of_a_turn(group):
    model = make_network(width=8)
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    train(model, zero.step, batches(1797, 4, 1), 4.0)
    storage = next(model.parameters()).untyped_storage().nbytes()
    return all(p.data.isnan().all().item() for p in model.parameters()), storage


def test_between_steps_parameters_hold_nothing(pools):
    assert pools[2](outside_of_a_turn) == [(True, 4)] * 2


class Loop(nn.Module):
    """The first block computes a second time at the end."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(5))

    def forward(self, x):
        for block in [*self.blocks, self.blocks[0]]:
            x = block(x).tanh()
        return x


def looped(group):
    model = Loop()
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


def test_a_block_that_computes_twice(pools):
    model = Loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in pools[2](looped):
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-12, atol=1e-12)


def two_passes(group):
    """Two forward passes under one backward pass."""
    model = Loop()
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    x = torch.ones(2, 4, dtype=torch.float64)
    for _ in range(2):
        (model(x).sum() + model(2 * x).square().sum()).backward()
        zero.step()
    return {name: value.clone() for name, value in zero.full_parameters()}


def test_two_forward_passes_under_one_backward_pass(pools):
    model, x = Loop(), torch.ones(2, 4, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        (model(x).sum() + model(2 * x).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in pools[2](two_passes):
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-12, atol=1e-12)


class Watched(RingGroup):
    """Notes when a gather starts into memory into which another is still under way."""

    def __init__(self, group):
        super().__init__(group)
        self.last, self.clashes = {}, 0

    def all_gather(self, x, out, async_op=False):
        before = self.last.get(out.data_ptr())
        self.clashes += before is not None and not before.done
        result = super().all_gather(x, out, async_op)
        if async_op:
            self.last[out.data_ptr()] = result
        return result


def clashes(group):
    watched = Watched(group)
    model = Loop()
    zero = Zero3(model, torch.optim.SGD, watched, lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        zero.step()
    return watched.clashes


def test_a_block_prefetched_for_nothing_is_waited_for_before_another_takes_its_buffer(pools):
    assert pools[2](clashes) == [0, 0]


def test_blocks_that_cannot_be():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="blocks: Linear is not inside of the module"):
        check_blocks(model, [nn.Linear(2, 2)])
    with pytest.raises(ValueError, match="blocks: Sequential is not inside of the module"):
        check_blocks(model, [model])
    with pytest.raises(ValueError, match=r"blocks: 1\.0 is in another block, too"):
        check_blocks(model, [model[1], model[1][0]])
    with pytest.raises(ValueError, match="blocks: 0 is in another block, too, or given twice"):
        check_blocks(model, [model[0], model[1], model[0]])
    assert check_blocks(model, None) == [model[0], model[1]]
    assert check_blocks(nn.Linear(2, 2), None) == []


class Pairs(nn.Module):
    """Layers in lists, dicts and modules that nothing calls, only what is inside."""

    def __init__(self):
        super().__init__()
        pair = [nn.Linear(2, 2), nn.Linear(2, 2)]
        named = nn.ModuleDict({"attention": nn.Linear(2, 2), "skip": nn.Identity()})
        plain = nn.Module()
        plain.steps = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.layers = nn.ModuleList([nn.ModuleList(pair), named, plain, pair[0]])

    def called(self):
        (a, b), named, plain, _ = self.layers
        return [a, b, named["attention"], plain.steps]

    def forward(self, x):
        for block in self.called():
            x = block(x)
        return x


def computed_by_pairs(group):
    torch.manual_seed(0)
    model, x = Pairs(), torch.ones(1, 2)
    expected = model(x)
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
    assert torch.equal(model(x), expected)
    return [model.called().index(block.module) for block in zero.blocks]


def test_blocks_are_what_has_a_forward_pass(pools):
    assert check_blocks(model := Pairs(), None) == model.called()
    assert pools[2](computed_by_pairs) == [[0, 1, 2, 3]] * 2
