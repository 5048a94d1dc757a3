"""ZeRO-3 under models and loops that are out of the ordinary: right, or one clear line.

Weights that are read out of a block's turn are another block's, so nothing here may pass in
silence: each case is compared with one device, or raises before it can compute with them.
"""

import copy
import dataclasses
import pickle
from functools import partial

import pytest
import torch
from tests.rows import covering
from torch import nn
from torch.utils.checkpoint import checkpoint

from distributed.runtime.mesh import mesh
from distributed.runtime.report import RankError
from distributed.zero import HSDP, Zero2, Zero3

RANKS = 2


def train(model, step, steps=2):
    """Train in float64 on the same input on all ranks: the losses."""
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 4, dtype=torch.float64)).square().sum()
        loss.backward()
        step()
        losses.append(loss.item())
    return losses


def alone(make, backward=train):
    torch.manual_seed(7)
    model = make().double()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    found = backward(model, step)
    return found, {name: p.detach() for name, p in model.named_parameters()}


def sharded(group, make, options, backward=train):
    torch.manual_seed(7)
    model = make().double()
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1, **options)
    found = backward(model, zero.step)
    return found, {name: value.clone() for name, value in zero.full_parameters()}


def assert_as_alone(results, expected):
    losses, weights = expected
    for found_losses, found in results:
        assert found_losses == pytest.approx(losses, rel=1e-10)
        assert found.keys() == weights.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, weights[name], rtol=1e-10, atol=1e-10, msg=name)


OPTIONS: dict[str, dict[str, bool]] = {
    "prefetch": {},
    "no prefetch": {"prefetch": False},
    "kept after forward": {"reshard_after_forward": False},
}
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


# --- a weight that a block shares with a module outside of all blocks


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.blocks = nn.ModuleList([self.first, *(nn.Linear(4, 4) for _ in range(3))])
        self.head = nn.Linear(4, 4)
        self.head.weight = self.first.weight

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


@EACH
def test_a_weight_tied_to_a_module_outside_of_all_blocks_is_the_roots(pools, options):
    assert_as_alone(pools[RANKS](sharded, Tied, options), alone(Tied))


# --- hooks that a block has before it is wrapped


def with_weight_norm():
    return nn.Sequential(*[nn.utils.weight_norm(nn.Linear(4, 4)) for _ in range(3)])


def with_spectral_norm():
    return nn.Sequential(*[nn.utils.spectral_norm(nn.Linear(4, 4)) for _ in range(3)])


def with_parametrizations():
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(*[norm(nn.Linear(4, 4)) for _ in range(3)])


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@EACH
@pytest.mark.parametrize("make", [with_weight_norm, with_spectral_norm, with_parametrizations])
def test_a_block_is_gathered_before_its_own_hooks_run(pools, make, options):
    assert_as_alone(pools[RANKS](sharded, make, options), alone(make))


def scaled_by_hooks(model, step):
    """Hooks of a block, registered after it was wrapped, that use its parameters."""

    def before(block, given):
        return given[0] * block.weight.mean()

    def after(block, given, output):
        return output * block.weight.mean()

    for block in model:
        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)
    return train(model, step)


def linears():
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])


@EACH
def test_hooks_that_a_block_gets_later_may_use_its_parameters(pools, options):
    results = pools[RANKS](sharded, linears, options, scaled_by_hooks)
    assert_as_alone(results, alone(linears, scaled_by_hooks))


# --- orders of calls that training loops have


def zero_grad_before_backward(model, step):
    """As many loops have it: forward, zero_grad, backward."""
    forget = getattr(step, "__self__", model).zero_grad  # the optimizer's, or alone the module's
    losses = []
    for _ in range(2):
        loss = model(torch.ones(2, 4, dtype=torch.float64)).square().sum()
        forget()
        loss.backward()
        step()
        losses.append(loss.item())
    return losses


def two_losses(model, step):
    """Two backward passes through one graph."""
    y = model(torch.ones(2, 4, dtype=torch.float64))
    y.square().sum().backward(retain_graph=True)
    y.sum().backward()
    step()
    return []


@EACH
@pytest.mark.parametrize("backward", [zero_grad_before_backward, two_losses])
def test_orders_of_calls_that_training_loops_have(pools, backward, options):
    results = pools[RANKS](sharded, chain, options, backward)
    assert_as_alone(results, alone(chain, backward))


# --- outputs in which tensors are hard to find


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    others: list


class Plain:
    def __init__(self, y):
        self.y = y


class Object(Plain):
    """Its tensor is in a place where nothing looks for one."""

    __slots__ = ("y",)


class Wrapping(nn.Linear):
    kind = Output

    def forward(self, x):
        y = super().forward(x).tanh()
        return Output(y, []) if self.kind is Output else self.kind(y)


class Dataclasses(nn.Module):
    """Frozen blocks: no gradient of their own says that they were passed in the backward pass."""

    kind = Output

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Wrapping(4, 4) for _ in range(4)).requires_grad_(False)
        for layer in self.layers:
            layer.kind = self.kind

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x).y
        return x


class PlainObjects(Dataclasses):
    kind = Plain


class Objects(Dataclasses):
    kind = Object


@EACH
@pytest.mark.parametrize("made", [Dataclasses, PlainObjects])
def test_frozen_blocks_that_return_an_object(pools, options, made):
    assert_as_alone(pools[RANKS](sharded, made, options), alone(made))


def test_an_output_in_which_no_tensor_is_found_is_refused(pools):
    with pytest.raises(RankError, match=r"layers\.0 returns Object, in which no tensor is found"):
        pools[RANKS](sharded, Objects, {})


class Hiding(Dataclasses):
    """Its tensors leave by a side door: one is found in the output, and it is not the one used."""

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            layer.kind = lambda y: (Object(y), torch.ones(1))
            x = layer(x)[0].y
        return x


def test_what_autograd_would_read_of_another_block_is_autograds_error(pools):
    with pytest.raises(RankError, match="modified by an inplace operation"):
        pools[RANKS](sharded, Hiding, {})


# --- a view of the weights that outlives the block's turn


class Leaking(nn.Linear):
    def forward(self, x):
        return super().forward(x).tanh(), self.weight.t()


class Hypernetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Leaking(4, 4) for _ in range(3))

    def forward(self, x):
        weights = []
        for block in self.blocks:
            x, weight = block(x)
            weights.append(weight)
        return x @ weights[0]


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_block_that_returns_a_view_of_its_weight_is_refused(pools, prefetch):
    with pytest.raises(RankError, match=r"blocks\.0 returns a view of its parameters.*clone"):
        pools[RANKS](sharded, Hypernetwork, {"prefetch": prefetch})


def test_where_blocks_stay_a_view_of_the_weight_is_right(pools):
    results = pools[RANKS](sharded, Hypernetwork, {"reshard_after_forward": False})
    assert_as_alone(results, alone(Hypernetwork))


# --- weights of blocks that aren't called


def as_zero3(model, group):
    return Zero3(model, torch.optim.SGD, group, lr=0.1)


def as_hsdp(model, group):
    return HSDP(model, torch.optim.SGD, *mesh(group, RANKS), lr=0.1)


BLOCKWISE = pytest.mark.parametrize("wrap", [as_zero3, as_hsdp])


class Uncalled(nn.Module):
    """The second of its blocks isn't called: the forward pass reads its weight."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        first, second, third = self.layers
        return third(nn.functional.linear(first(x).tanh(), second.weight))


class Attention(nn.Module):
    """`nn.MultiheadAttention` reads the weight of `out_proj` and never calls that module."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.layers = nn.ModuleList([nn.Linear(4, 4), self.attention.out_proj])

    def forward(self, x):
        x = self.layers[0](x)
        return self.attention(x, x, x)[0]


def trained_once(group, wrap, make):
    model = make().double()
    zero = wrap(model, group)
    train(model, zero.step, steps=1)


@BLOCKWISE
@pytest.mark.parametrize("make", [Uncalled, Attention])
def test_a_weight_of_a_block_that_is_not_called_is_refused_by_name(pools, make, wrap):
    with pytest.raises(RankError, match=r"RuntimeError: (layers\.1|attention\.out_proj)"):
        pools[RANKS](trained_once, wrap, make)


# --- copies of the module, and averages of its weights


def copied(group, wrap, make_copy):
    model = chain()
    wrap(model, group)
    make_copy(model)


def parameter_copied(group, wrap, make_copy):
    model = chain()
    wrap(model, group)
    make_copy(model[0][0].weight)


@BLOCKWISE
@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, torch.optim.swa_utils.AveragedModel, pickle.dumps]
)
def test_a_copy_of_a_sharded_module_is_refused(pools, make_copy, wrap):
    with pytest.raises(RankError, match=r"Error: .*full_parameters\(\)"):
        pools[RANKS](copied, wrap, make_copy)


def described(group):
    model = nn.Sequential(nn.Linear(4, 3))
    Zero3(model, torch.optim.SGD, group, lr=0.1)
    weight = model[0].weight
    assert isinstance(weight, nn.Parameter)
    assert "0.weight" in repr(weight)
    return (
        weight.shape, weight.size(0), len(weight), weight.numel(), weight.nelement(), weight.dim(),
        weight.dtype, weight.type(), weight.device, weight.requires_grad, weight.is_leaf,
        weight.nbytes, weight.is_floating_point(), torch.zeros_like(weight).tolist(),
    )  # fmt: skip


def test_a_sharded_parameter_can_be_described(pools):
    weight = nn.Linear(4, 3).weight
    expected = (
        weight.shape, 3, 3, 12, 12, 2, torch.float32, "torch.FloatTensor", weight.device, True,
        True, 48, True, [[0.0] * 4] * 3,
    )  # fmt: skip
    assert pools[RANKS](described) == [expected] * RANKS


@BLOCKWISE
@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickle.dumps, torch.clone])
def test_a_copy_of_a_sharded_parameter_is_refused(pools, make_copy, wrap):
    with pytest.raises(RankError, match=r"RuntimeError: .*full_parameters\(\)"):
        pools[RANKS](parameter_copied, wrap, make_copy)


# --- second derivatives


def penalty(model, step):
    x = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
    loss = slope.square().sum()
    loss.backward()
    step()
    return [loss.item()]


def chain():
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)])


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_second_derivative_is_refused(pools, prefetch):
    with pytest.raises(RankError, match=r"create_graph=True.*reshard_after_forward=False"):
        pools[RANKS](sharded, chain, {"prefetch": prefetch}, penalty)


def test_where_blocks_stay_a_second_derivative_is_right(pools):
    results = pools[RANKS](sharded, chain, {"reshard_after_forward": False}, penalty)
    assert_as_alone(results, alone(chain, penalty))


def slope_alone(model, step):
    """A first derivative by the input changes no parameter, and the training after it is right."""
    x = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x)
    return [slope.square().sum().item(), *train(model, step)]


@EACH
def test_a_gradient_of_the_input_alone(pools, options):
    assert_as_alone(pools[RANKS](sharded, chain, options, slope_alone), alone(chain, slope_alone))


def after_the_step(model, step):
    """Go back through a graph whose weights the step has replaced."""
    x = torch.ones(2, 4, dtype=torch.float64)
    old = model(x).square().sum()
    model(x).square().sum().backward()
    step()
    old.backward()
    return []


@EACH
def test_a_graph_from_before_the_step_is_autograds_error_as_on_one_device(pools, options):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        alone(chain, after_the_step)
    with pytest.raises(RankError, match="modified by an inplace operation"):
        pools[RANKS](sharded, chain, options, after_the_step)


# --- a backward pass that raises


def fail_and_go_on(zero, zero_grad):
    """A pass that raises in the third of four blocks, and then two steps: their losses."""

    def fail(_):
        raise ArithmeticError("on purpose")

    model, x = zero.module, torch.ones(2, 4, dtype=torch.float64)
    hook = model[2].register_forward_hook(lambda *found: found[2].register_hook(fail) and None)
    with pytest.raises(ArithmeticError):
        model(x).square().sum().backward()
    hook.remove()
    if zero_grad:
        zero.zero_grad()
    return train(model, zero.step)


def after_a_failed_pass(group, options, zero_grad):
    return sharded(
        group, chain, options, lambda model, step: fail_and_go_on(step.__self__, zero_grad)
    )


@EACH
def test_after_a_pass_that_raised_and_zero_grad_all_is_as_before(pools, options):
    assert_as_alone(pools[RANKS](after_a_failed_pass, options, True), alone(chain))


@EACH
def test_after_a_pass_that_raised_a_forward_pass_asks_for_zero_grad(pools, options):
    with pytest.raises(RankError, match=r"the last backward pass raised: call zero_grad\(\)"):
        pools[RANKS](after_a_failed_pass, options, False)


# --- a block that is called plainly and under a reentrant checkpoint, alike on all ranks


class Again(nn.Module):
    """Which calls are checkpointed reentrantly: their gradients come in a pass of their own."""

    calls = ""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        # A reentrant checkpoint of what needs no gradient would have none to pass on.
        self.scale = nn.Parameter(torch.ones(4)) if self.calls[0] == "c" else 1.0

    def forward(self, x):
        first, last = self.blocks
        x = x * self.scale
        for call in self.calls:
            x = checkpoint(first, x, use_reentrant=True) if call == "c" else first(x)
            x = x.tanh()
        return last(x)


def again(calls):
    return type("Again", (Again,), {"calls": calls})


@pytest.mark.parametrize("calls", ["pc", "cp", "cc", "pcp", "cpc"])
@pytest.mark.parametrize(
    "options",
    [{}, {"prefetch": False}, {"reshard_after_forward": False}, {"blocks": []}],
    ids=["prefetch", "no prefetch", "kept after forward", "no blocks"],
)
def test_a_block_called_plainly_and_checkpointed_reentrantly(pools, calls, options):
    make = again(calls)
    assert_as_alone(pools[RANKS](sharded, make, options), alone(make))


# --- several blocks under one checkpoint


class Part(nn.Module):
    """Its last gradient needs nothing that a checkpoint would have to compute again."""

    def __init__(self):
        super().__init__()
        self.linear, self.shift = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.linear(x).tanh() + self.shift


class Segments(nn.Module):
    size, reentrant, frozen = 2, False, False

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Part() for _ in range(6))
        if self.frozen:
            self.blocks[2:5].requires_grad_(False)

    def forward(self, x):
        x = self.first(x)
        for i in range(0, len(self.blocks), self.size):
            part = self.blocks[i : i + self.size]
            x = checkpoint(self.run, part, x, use_reentrant=self.reentrant)
        return x

    def run(self, part, x):
        for block in part:
            x = block(x)
        return x


def segments(size, reentrant, frozen):
    return type("Segments", (Segments,), {"size": size, "reentrant": reentrant, "frozen": frozen})


@covering(
    options=OPTIONS,
    size=[1, 2, 3, 6],
    frozen={"trained": False, "some frozen": True},
    reentrant={"reentrant": True, "not reentrant": False},
)
def test_several_blocks_under_one_checkpoint(pools, size, reentrant, frozen, options):
    make = segments(size, reentrant, frozen)
    assert_as_alone(pools[RANKS](sharded, make, options), alone(make))


# --- what PyTorch does to modules and optimizers


def compile_after(whole):
    def train_compiled(model, step):
        for module in [model] if whole else [*model]:
            module.compile(backend="aot_eager")
        return train(model, step, steps=3)

    return train_compiled


def compile_first(whole):
    def make():
        model = chain()
        for module in [model] if whole else [*model]:
            module.compile(backend="aot_eager")
        return model

    return make


@pytest.mark.slow  # compiling takes seconds
@pytest.mark.parametrize("whole", [True, False], ids=["the whole model", "each block"])
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}], ids=["", "kept"])
def test_it_can_be_compiled_before_and_after(pools, whole, options):
    expected = alone(chain, partial(train, steps=3))
    results = pools[RANKS](sharded, compile_first(whole), options, partial(train, steps=3))
    assert_as_alone(results, expected)
    results = pools[RANKS](sharded, chain, options, compile_after(whole))
    assert_as_alone(results, expected)


def as_zero2(model, group):
    return Zero2(model, torch.optim.SGD, group, lr=0.1)


def accumulated(group, wrap):
    """Two backward passes through a compiled block before the step, on batches of two lengths."""
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Linear(4, 4), backend="eager"))
    zero = wrap(model, group)
    for rows in (4, 2):
        model(torch.ones(rows, 4)).square().sum().backward()
    zero.step()


@pytest.mark.slow  # compiling takes seconds
@pytest.mark.parametrize("wrap", [as_zero2, as_zero3, as_hsdp])
def test_a_compiled_block_accumulates_batches_of_different_lengths(pools, wrap):
    pools[RANKS](accumulated, wrap)


def transformed(transform):
    def run(model, step):
        x = torch.ones(3, 4, dtype=torch.float64)
        if transform == "vmap":
            torch.func.vmap(model)(x)
        else:
            torch.func.grad(lambda x: model(x).sum())(x)
        return []

    return run


@EACH
@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_transforms_of_torch_func_are_refused(pools, transform, options):
    with pytest.raises(RankError, match=r"RuntimeError: torch\.func .*torch\.autograd"):
        pools[RANKS](sharded, chain, options, transformed(transform))


def scaled(unscale):
    def run(model, step):
        zero = step.__self__
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(2, 4, dtype=torch.float64)).sum()).backward()
        if unscale:
            scaler.unscale_(zero)
        scaler.step(zero)
        return []

    return run


@pytest.mark.parametrize("unscale", [False, True])
def test_a_gradient_scaler_is_refused(pools, unscale):
    with pytest.raises(RankError, match=r"GradScaler .*bfloat16"):
        pools[RANKS](sharded, chain, {}, scaled(unscale))


# --- what programs do to the module's parameters between steps


class Renormalized(nn.Embedding):
    """The forward pass writes into the weight itself."""

    def forward(self, x):
        return nn.functional.embedding(x, self.weight, max_norm=0.1)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Renormalized(3, 4), nn.Linear(4, 4)])

    def forward(self, x):
        embed, linear = self.blocks
        return linear(embed(x[0].long() % 3))


def cast(model):
    model.float().double()


def data_replaced(model):
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)


def from_vector(model):
    size = sum(p.numel() for p in model.parameters())
    nn.utils.vector_to_parameters(torch.zeros(size, dtype=torch.float64), model.parameters())


def load(model):
    model.load_state_dict(Tied().double().state_dict())


def write_into_the_root(model):
    with torch.no_grad():
        model.head.bias.mul_(0.5)


def begin_anew(model):
    nn.init.zeros_(model.head.bias)


def nothing(model):
    model.double().to("cpu")


def meddled(group, meddle, when, options):
    torch.manual_seed(7)
    model = Tied().double()
    zero = Zero3(model, torch.optim.SGD, group, lr=0.1, **options)
    for _ in range(2):
        loss = model(torch.ones(2, 4, dtype=torch.float64)).square().sum()
        if when == "before backward":
            meddle(model)
        loss.backward()
        if when == "before step":
            meddle(model)
        zero.step()
        if when == "after step":
            meddle(model)
    return [], {name: value.clone() for name, value in zero.full_parameters()}


@covering(
    meddle=[cast, data_replaced, from_vector],
    when=["before backward", "before step", "after step"],
    options=OPTIONS,
)
def test_replaced_storage_is_refused(pools, meddle, when, options):
    with pytest.raises(RankError, match=r"storage was replaced|is spread|its block is sharded"):
        pools[RANKS](meddled, meddle, when, options)


@EACH
@pytest.mark.parametrize("when", ["before step"])
def test_what_is_written_into_a_gathered_parameter_is_refused(pools, when, options):
    with pytest.raises(RankError, match=r"RuntimeError: head\.bias was written in place"):
        pools[RANKS](meddled, write_into_the_root, when, options)


@EACH
@pytest.mark.parametrize("when", ["before step", "after step"])
def test_a_parameter_that_begins_anew_out_of_turn_is_refused(pools, when, options):
    with pytest.raises(RankError, match=r"RuntimeError: head\.bias (was written|is used while)"):
        pools[RANKS](meddled, begin_anew, when, options)


def test_a_frozen_quantized_weight_is_sharded(pools):
    def norm(group, sharded):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
        model.base = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
        x = torch.ones(2, 4, dtype=torch.float64)
        if not sharded:
            return [model(x).sum().item()]
        zero = Zero3(model, torch.optim.SGD, group, lr=0.1)
        found = dict(zero.full_parameters())["base"]
        assert found.dtype is torch.int8
        assert found.eq(1).all()
        return [model(x).sum().item()]

    assert pools[2](norm, True) == pools[2](norm, False)


def test_a_forward_pass_that_writes_into_its_weight_is_refused(pools):
    with pytest.raises(RankError, match=r"RuntimeError: blocks\.0\.weight was written in place"):
        pools[RANKS](sharded, Embedding, {})


@pytest.mark.parametrize("meddle", [load, nn.Module.state_dict])
def test_state_dicts_of_a_sharded_module_are_refused(pools, meddle):
    with pytest.raises(RankError, match=r"RuntimeError: .*checkpoint\.save"):
        pools[RANKS](meddled, meddle, "after step", {})


@EACH
def test_a_conversion_to_what_it_is_already_changes_nothing(pools, options):
    _, weights = alone(Tied)
    assert_as_alone(pools[RANKS](meddled, nothing, "after step", options), ([], weights))
