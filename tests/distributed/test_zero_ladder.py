"""The lessons of ZeRO train like one device, keep 1/N, and send what the formulas say."""

import time

import pytest
import torch
from torch import nn

from distributed import launch
from distributed.hsdp import ShardedInHost
from distributed.planner.traffic import between_hosts, elements_sent
from distributed.ring_group import RingGroup
from distributed.runtime.mesh import mesh
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.workbench.memory_meter import MemoryUse, nbytes
from distributed.zero1 import shard_optimizer
from distributed.zero2 import shard_gradients
from distributed.zero3 import AllGather, Sharded


class Layer(nn.Module):
    """Of odd sizes, with a frozen bias; one parameter may be idle, and get no gradient."""

    def __init__(self, inputs, outputs, idle):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.bias = nn.Parameter(torch.randn(outputs), requires_grad=False)
        if idle:
            self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.tanh(self.linear(x) + self.bias)


def network(seed=0, idle=False):
    torch.manual_seed(seed)
    sizes = [(5, 7), (7, 7), (7, 3)]
    return nn.Sequential(*(Layer(*size, idle) for size in sizes)).double()


def data(ranks=1, rank=0):
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.chunk(ranks)[rank]


def trained_parameters(module):
    return [p for p in module.parameters() if p.requires_grad]


def layers_backward(model):
    return [trained_parameters(layer) for layer in reversed(model)]


def by_zero1(model, group, optimizer_class, **settings):
    return model, *shard_optimizer(model, group, optimizer_class, **settings)


def by_zero2(model, group, optimizer_class, **settings):
    buckets = layers_backward(model)
    return model, *shard_gradients(model, buckets, group, optimizer_class, **settings)


def by_zero3(model, group, optimizer_class, **settings):
    sharded = nn.Sequential(*(Sharded(layer, group) for layer in model))
    optimizer = optimizer_class(trained_parameters(sharded), **settings)
    return sharded, lambda: (optimizer.step(), optimizer.zero_grad()), optimizer


def by_hsdp(model, group, optimizer_class, **settings):
    inside, hosts = mesh(group, 2 if group.size % 2 == 0 else 1)
    sharded = nn.Sequential(*(ShardedInHost(layer, inside, hosts) for layer in model))
    optimizer = optimizer_class(trained_parameters(sharded), **settings)
    return sharded, lambda: (optimizer.step(), optimizer.zero_grad()), optimizer


LESSONS = {"zero1": by_zero1, "zero2": by_zero2, "zero3": by_zero3, "hsdp": by_hsdp}
SGD = torch.optim.SGD, {"lr": 0.3, "momentum": 0.9}
ADAM = torch.optim.Adam, {"lr": 0.01}


def steps_of(model, step, x, passes=1, steps=4):
    """Outputs of each step's last pass."""
    outputs = []
    for _ in range(steps):
        for part in x.chunk(passes):
            output = model(part)
            (output.square().mean() / passes).backward()
        outputs.append(output.detach())
        step()
    return torch.stack(outputs)


def train_alone(optimizer_class, settings, passes, idle):
    model = network(idle=idle)
    optimizer = optimizer_class(trained_parameters(model), **settings)
    return steps_of(model, lambda: (optimizer.step(), optimizer.zero_grad()), data(), passes)


def train_rank(group, lesson, optimizer_class, settings, passes, idle):
    model = network(group.rank, idle=idle)
    model, step, _ = LESSONS[lesson](model, group, optimizer_class, **settings)
    x = torch.stack(data().chunk(passes)).chunk(group.size, dim=1)[group.rank]
    return steps_of(model, step, x.flatten(0, 1), passes)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("lesson", LESSONS)
@pytest.mark.parametrize(  # with an idle parameter, no bucket of ZeRO-2 fills up before the step
    ("optimizer", "passes", "idle"), [(SGD, 1, True), (ADAM, 2, True), (ADAM, 2, False)]
)
def test_a_lesson_trains_like_one_device(pools, lesson, ranks, optimizer, passes, idle):
    expected = train_alone(*optimizer, passes, idle)
    outputs = torch.cat(pools[ranks](train_rank, lesson, *optimizer, passes, idle), dim=1)
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-12)


def memory_and_traffic(group, stage):
    """Elements of parameters, gradients, states after a backward pass; sent by phase; shards."""
    ring, x = RingGroup(group), data(group.size, group.rank)
    optimizer_class, settings = ADAM
    model, step, optimizer = LESSONS[f"zero{stage}"](network(), ring, optimizer_class, **settings)
    steps_of(model, step, x, steps=1)
    sent = {}
    ring.trace = Trace(group.rank)
    loss = model(x).sum()
    sent["forward"], ring.trace = ring.trace.sent // 8, Trace(group.rank)
    loss.backward()
    sent["backward"], ring.trace = ring.trace.sent // 8, Trace(group.rank)
    parameters, shards = trained_parameters(model), optimizer.param_groups[0]["params"]
    gradients = [p.grad for p in (*parameters, *shards) if p.grad is not None]
    states = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    kept = [nbytes(tensors) // 8 for tensors in (parameters, gradients, states)]
    step()
    sent["step"] = ring.trace.sent // 8
    return kept, sent, [len(shard) for shard in shards]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stage_keeps_an_equal_share_and_sends_what_the_formula_says(pools, stage, ranks):
    layers = [sum(p.numel() for p in layer) for layer in layers_backward(network())]
    units = [sum(layers)] if stage == 1 else layers
    shards = [-(-unit // ranks) for unit in units]  # the last one is padded
    share, whole = sum(shards), ranks * sum(shards)
    parameters = share if stage == 3 else whole
    gradients = whole if stage == 1 else share
    for kept, sent, lengths in pools[ranks](memory_and_traffic, stage):
        assert sorted(lengths) == sorted(shards)
        assert kept == [parameters, gradients, 2 * share]
        assert sent == elements_sent(stage, ranks, shards, resident_blocks=0)


# ------------------------------------------------------------------ ZeRO-1


def clear_gradients(group):
    model = network()
    step, _ = shard_optimizer(model, group, torch.optim.Adam)
    model(data()).sum().backward()
    model.zero_grad()
    with pytest.raises(RuntimeError, match=r"step\(\) clears them"):
        step()


def test_zero1_refuses_gradients_that_are_no_longer_in_its_buffer(pools):
    pools[2](clear_gradients)


@pytest.mark.parametrize("lesson", ["zero1", "zero2", "zero3"])
def test_a_flat_buffer_of_two_dtypes_is_refused(lesson):
    def mix(group):
        model = network()
        model[0].linear.bias = nn.Parameter(torch.zeros(7))  # float32
        LESSONS[lesson](model, group, torch.optim.Adam)

    with pytest.raises(RankError, match="a flat buffer has one dtype"):
        launch(mix, ranks=1, device="cpu")


# ------------------------------------------------------------------ ZeRO-2


def whole_gradients(group):
    """After each gradient: bytes of gradients that are whole, and how many buckets were reduced."""
    model, seen = network(), []
    _, optimizer = shard_gradients(model, layers_backward(model), group, torch.optim.SGD)
    shards = optimizer.param_groups[0]["params"]

    def note(_):
        whole = [p.grad for p in model.parameters() if p.grad is not None]
        seen.append((nbytes(whole), sum(shard.grad is not None for shard in shards)))

    for parameter in trained_parameters(model):
        parameter.register_post_accumulate_grad_hook(note)
    model(data()).sum().backward()
    return seen, max(nbytes(parameters) for parameters in layers_backward(model))


def test_zero2_reduces_and_frees_a_bucket_before_the_next_one_fills(pools):
    for seen, largest in pools[2](whole_gradients):
        assert [reduced for _, reduced in seen] == [0, 1, 1, 2, 2, 3]
        assert [whole for whole, _ in seen][1::2] == [0, 0, 0]
        assert max(whole for whole, _ in seen) < largest


class Branches(nn.Module):
    """Two layers of the same shape; the order in which they compute is the caller's."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    def forward(self, x, one_first):
        layers = (self.one, self.other) if one_first else (self.other, self.one)
        return sum(scale * layer(x) for scale, layer in zip((1, 10), layers, strict=True))


def branch_gradients(group, orders):
    torch.manual_seed(0)
    model = Branches()
    buckets = [[model.one.weight], [model.other.weight]]
    _, optimizer = shard_gradients(model, buckets, group, torch.optim.SGD)
    for one_first in orders[group.rank]:
        model(torch.ones(1, 2), one_first).sum().backward()
    return [shard.grad.tolist() for shard in optimizer.param_groups[0]["params"]]


@pytest.mark.parametrize("passes", [1, 2])
def test_zero2_reduces_in_one_order_whichever_bucket_is_full_first(pools, passes):
    orders = [[True] * passes, [False] * passes]
    shards = [passes * (1 + 10) / 2] * 2  # of each rank two of four elements
    assert pools[2](branch_gradients, orders) == [[shards, shards]] * 2


def weights_without_a_branch(group, used, steps):
    """Of SGD with rate 1, where each rank computes only some of the layers."""
    model = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in "ab"})
    for layer in model.values():
        nn.init.zeros_(layer.weight)
    buckets = [[model["b"].weight], [model["a"].weight]]
    step, _ = shard_gradients(model, buckets, group, torch.optim.SGD, lr=1.0)
    for _ in range(steps):
        sum(model[name](torch.ones(1, 2)).sum() for name in used[group.rank]).backward()
        step()
    return [model[name].weight[0, 0].item() for name in "ab"]


@pytest.mark.parametrize(
    ("used", "means"), [(("ab", "a"), (1, 0.5)), (("a", "b"), (0.5, 0.5)), (("a", "a"), (1, 0))]
)
def test_zero2_counts_a_gradient_that_some_ranks_lack_as_zero(pools, used, means):
    found = pools[2](weights_without_a_branch, used, 3)
    assert found == [[-3 * mean for mean in means]] * 2


# ------------------------------------------------------------------ ZeRO-3


def both_dot_products(group):
    torch.manual_seed(group.rank)  # different values on every rank
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3 * group.size, dtype=torch.float64)
    gathered = AllGather.apply(x, group)
    gathered.backward(y)
    ahead, back = (gathered @ y).detach(), (x @ x.grad).detach() * group.size
    return group.all_reduce(torch.stack([ahead, back]))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_reduce_scatter_is_the_transpose_of_an_all_gather(pools, ranks):
    """⟨all_gather(x), y⟩ = ⟨x, reduce_scatter(y)⟩, summed over ranks; ours divides by N."""
    for ahead, back in pools[ranks](both_dot_products):
        torch.testing.assert_close(ahead, back)


class Block(nn.Module):
    """With an argument by name, two outputs, dropout and a buffer."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x, *, scale):
        y = self.linear(x) * scale + self.offset
        return self.drop(y), y


def call_block(group):
    torch.manual_seed(0)
    block = Block()
    x = torch.ones(2, 4)
    sharded = Sharded(block, group)
    dropped, _ = sharded(x, scale=2.0)
    sharded.eval()
    whole, y = sharded(x, scale=2.0)
    return (
        (dropped == 0).any().item(),
        torch.equal(whole, y),
        [name for name, _ in sharded.named_parameters()],
    )


def test_a_sharded_block_takes_keywords_gives_tuples_and_follows_eval(pools):
    assert pools[2](call_block) == [(True, True, ["shard"])] * 2


def peak_of_rank(group, layers=8, width=64):
    torch.manual_seed(0)
    blocks = [nn.Linear(width, width, bias=False) for _ in range(layers)]
    model = nn.Sequential(*(Sharded(block, group) for block in blocks))
    block = 4 * width**2
    with MemoryUse(lambda: {"parameters": model.parameters()}) as use:
        x = torch.ones(1, width)
        with use.phase("forward"):
            loss = model(x).sum()
            until = time.monotonic() + 10  # gloo's thread may hold the last block a moment longer
            while use.now().get("forward", 0) > 0.3 * block and time.monotonic() < until:
                time.sleep(0.01)
        loss.backward()
    return use.after["forward"].get("forward", 0) / block, sum(use.peak.values()) / block


def test_zero3_frees_a_block_after_it_computed_and_gathers_few_at_a_time(pools):
    """Eight blocks on two ranks: shards take four, their gradients four, one block computes."""
    for after_forward, peak in pools[2](peak_of_rank):
        assert after_forward < 0.3
        assert peak < 4 + 4 + 3.6


def tied():
    block = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    block[1].weight = block[0].weight
    return block


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda group: tied(), "module: 1.weight is tied to another weight"),
        (lambda group: nn.Sequential(Sharded(nn.Linear(3, 3), group)), "is sharded already"),
    ],
)
def test_a_block_that_would_train_wrong_is_refused(make, says):
    with pytest.raises(RankError, match=says):
        launch(lambda group: Sharded(make(group), group), ranks=1, device="cpu")


# ------------------------------------------------------------------ HSDP


def hosts_traffic(group, per_host):
    rings = [RingGroup(part) for part in mesh(group, per_host)]
    model = nn.Sequential(*(ShardedInHost(layer, *rings) for layer in network()))
    for ring in rings:
        ring.trace = Trace(group.rank)
    model(data()).sum().backward()
    return [ring.trace.sent // 8 for ring in rings], [
        len(shard) for shard in trained_parameters(model)
    ]


def test_hsdp_gathers_in_its_host_and_all_reduces_shards_between_hosts(pools):
    for rank, ((inside, between), shards) in enumerate(pools[4](hosts_traffic, 2)):
        assert inside == sum(elements_sent(3, 2, shards, resident_blocks=0).values())
        assert between == between_hosts(shards, host=rank // 2, hosts=2)
