"""DDP by hand and by our wrapper, beside PyTorch's and one device; both classes, the same tests."""

import copy
from contextlib import nullcontext
from itertools import pairwise
from time import perf_counter

import pytest
import torch
import torch.distributed as dist
from pools import launch_with_clock
from tests.rows import covering
from torch import nn
from torch.utils.checkpoint import checkpoint

from distributed.bucketed_ddp import all_reduce_hook
from distributed.ddp import DistributedDataParallel
from distributed.replicas import broadcast_module
from distributed.ring_group import RingGroup
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.shared_memory import SharedGroup
from distributed.simple_ddp import average_gradients
from distributed.workbench.transformer import Config, make_model
from distributed.zero import Zero1, Zero2, Zero3

KINDS = ["ours", "torch"]


def wrap(kind, module, group, **options):
    if kind == "torch":
        cap = options.pop("bucket_bytes", 25_000_000)
        return nn.parallel.DistributedDataParallel(module, bucket_cap_mb=cap / 2**20, **options)
    return DistributedDataParallel(module, group, **options)


def network(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def data(rows):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=generator)


def loss_of(model, x, labels):
    return nn.functional.cross_entropy(model(x), labels)


def share(group, rows):
    x, labels = data(rows)
    return x.chunk(group.size)[group.rank], labels.chunk(group.size)[group.rank]


def gradients_alone(rows):
    alone = network()
    loss_of(alone, *data(rows)).backward()
    return [p.grad for p in alone.parameters()]


def assert_all_close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def train_share(group, kind, options, groups):
    group = {"plain": lambda g: g, "shared": SharedGroup, "ring": RingGroup}[groups](group)
    x, labels = share(group, 12)
    model = module = network(seed=group.rank)
    if kind == "by hand":
        broadcast_module(module, group)
    else:
        model = wrap(kind, module, group, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model, x, labels).backward()
        if kind == "by hand":
            average_gradients(module, group)
        optimizer.step()
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "options", "groups"),
    [
        ("by hand", {}, "plain"),
        ("torch", {}, "plain"),
        ("ours", {}, "plain"),
        ("ours", {"bucket_bytes": 1}, "plain"),
        ("ours", {"find_unused_parameters": True}, "plain"),
        ("ours", {"bucket_bytes": 700}, "shared"),
        ("ours", {"bucket_bytes": 700}, "ring"),
    ],
)
def test_training_is_that_of_one_device_on_the_whole_batch(pools, ranks, kind, options, groups):
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.3, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(alone, *data(12)).backward()
        optimizer.step()
    results = pools[ranks](train_share, kind, options, groups)
    for weights in results:
        assert_all_close(weights, [p.detach() for p in alone.parameters()])
        for mine, first in zip(weights, results[0], strict=True):
            assert (mine == first).all(), "replicas agree to the bit"


def reduce_by_hand(kind, model, group, note):
    """Give either class a hook that calls note(bucket number, parameters, numbers) and averages."""

    def ours(group, bucket):
        note(bucket.index, bucket.parameters, bucket.buffer)
        bucket.buffer /= group.size
        return group.all_reduce(bucket.buffer, async_op=True)

    def theirs(_, bucket):
        note(bucket.index(), bucket.parameters(), bucket.buffer())
        work = dist.all_reduce(bucket.buffer().div_(group.size), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(*((None, theirs) if kind == "torch" else (ours,)))


@pytest.mark.parametrize("options", [{}, {"static_graph": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_bucket_leaves_before_the_last_gradient_is_there(pools, kind, options):
    def overlap(group, kind, options):
        module = make_model(Config(d=64, layers=4))
        model = wrap(kind, module, group, bucket_bytes=100_000, **options)
        ready, left = [], []
        reduce_by_hand(kind, model, group, lambda *_: left.append(perf_counter()))
        batch = torch.zeros(4, 32, dtype=torch.int64)
        for _ in range(2):  # the first pass rebuilds the buckets
            model(batch).sum().backward()
        left.clear()
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: ready.append(perf_counter()))
        group.barrier()
        model(batch).sum().backward()
        return ready, left, len(model.buckets) if kind == "ours" else len(left)

    for ready, left, buckets in pools[2](overlap, kind, options):
        assert len(left) == buckets > 3
        assert left[0] < max(ready), "starts while gradients are still computed"
        assert left[-1] > ready[-2], "the last bucket waits for the last gradients"


@pytest.mark.parametrize("kind", KINDS)
def test_buckets_follow_the_order_of_arrival_and_their_sizes(pools, kind):
    def buckets(group, kind):
        own = {"gradient_as_bucket_view": True} if kind == "torch" else {"first_bucket_bytes": 100}
        module = network()
        model = wrap(kind, module, group, bucket_bytes=700, **own)
        named, arrived, seen, views = {}, [], [], []
        for name, parameter in module.named_parameters():
            named[parameter] = name
            parameter.register_post_accumulate_grad_hook(lambda p, n=name: arrived.append(n))
        loss_of(model, *data(4)).backward()

        def note(index, parameters, flat):
            seen.append(([named[p] for p in parameters], flat.nbytes))
            whole = range(flat.data_ptr(), flat.data_ptr() + flat.nbytes)
            views.extend(p.grad.data_ptr() in whole for p in parameters)

        reduce_by_hand(kind, model, group, note)
        loss_of(model, *data(4)).backward()
        return *zip(*seen, strict=True), arrived[: len(named)], all(views)

    results = pools[3](buckets, kind)
    for names, sizes, _, views in results:
        assert names == results[0][0], "the same on every rank"
        assert [name for bucket in names for name in bucket] == results[0][2]
        assert names[0][0].startswith("4"), "the last layer comes first"
        assert kind == "torch" or {name.split(".")[0] for name in names[0]} == {"4"}
        assert views, "gradients are views of buckets"
        if kind == "torch":  # whose buckets are closed when they are too large
            continue
        for size, bucket in zip(sizes, names, strict=True):
            assert size <= 700 or len(bucket) == 1
        assert all(a + b > 700 for a, b in pairwise(sizes[1:])), "no bucket ends too early"


@pytest.mark.parametrize("kind", KINDS)
def test_no_sync_adds_up_locally_and_the_next_pass_sends_all(pools, kind):
    def accumulate(group, kind):
        model = wrap(kind, network(), group)
        x, labels = share(group, 12)
        group.trace = trace = Trace(group.rank)
        try:
            with model.no_sync():
                loss_of(model, x[:2], labels[:2]).backward()
                raise KeyError
        except KeyError:
            pass
        silent = trace.handed_over
        loss_of(model, x[2:], labels[2:]).backward()
        group.trace = None
        names = [span.name for span in trace.spans]
        return silent, trace.handed_over, names, [p.grad / 2 for p in model.parameters()]

    size = sum(p.nbytes for p in network().parameters())
    for silent, sent, names, grads in pools[3](accumulate, kind):
        assert silent == 0
        if kind == "ours":  # PyTorch's do not pass through our group
            gradients = names.count("all_reduce avg")
            assert (gradients, sent - 8 * names.count("broadcast from 0") * 6) == (1, size)
        assert_all_close(grads, gradients_alone(12))


class Odd(nn.Module):
    """Tied, frozen and unused parameters, and two dtypes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 6).double()
        self.b = nn.Linear(6, 6).double()
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(6, 6).double().requires_grad_(False)
        self.single = nn.Linear(6, 3)
        self.sometimes = nn.Linear(6, 3)
        self.never = nn.Linear(2, 2)

    def forward(self, x, use=False):
        h = self.frozen(self.b(self.a(x).tanh())).float()
        return self.single(h) + (self.sometimes(h) if use else 0)


def assert_as_on_one_device(results, alone, **bounds):
    """Of two ranks, rank 0 alone uses what the module need not use: all have that gradient."""
    x, labels = data(4)
    halves = [(alone(x[:2], True), labels[:2]), (alone(x[2:]), labels[2:])]
    (sum(nn.functional.cross_entropy(*half) for half in halves) / 2).backward()
    for grads in results:
        for name, parameter in alone.named_parameters():
            if parameter.grad is None:
                assert grads[name] is None, name
            else:
                torch.testing.assert_close(grads[name], parameter.grad, msg=name, **bounds)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_frozen_mixed_and_unused_parameters(pools, kind):
    def odd(group, kind):
        module = Odd()
        model = wrap(kind, module, group, find_unused_parameters=True)
        x, labels = share(group, 4)
        for _ in range(2):
            model.zero_grad()
            nn.functional.cross_entropy(model(x, group.rank == 0), labels).backward()
        return {name: p.grad for name, p in module.named_parameters()}

    assert_as_on_one_device(pools[2](odd, kind), Odd(), rtol=1e-5, atol=1e-8)


def unfrozen(group):
    module = network()
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module, group)
    module.requires_grad_(True)
    with pytest.raises(RuntimeError, match="weight requires a gradient now, but not when"):
        model(data(2)[0])


def test_unfreezing_after_wrapping_is_refused(pools):
    pools[2](unfrozen)


def changed_after_wrapping(group, change):
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 2))
    model = DistributedDataParallel(module, group)
    module.to(**change)
    with pytest.raises(RuntimeError, match=r"0\.weight .* is not what was wrapped: change dtype"):
        model(torch.ones(1, 3, 2, 2))


@pytest.mark.parametrize(
    "change", [{"dtype": torch.bfloat16}, {"memory_format": torch.channels_last}]
)
def test_parameters_that_were_converted_after_wrapping_are_refused(pools, change):
    pools[2](changed_after_wrapping, change)


def test_parameters_that_were_replaced_after_wrapping_are_refused(pools):
    def refuse(group):
        model = wrap("ours", network(), group)
        x = data(2)[0]
        others = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
        with pytest.raises(RuntimeError, match=r"0\.weight was replaced .* functional_call"):
            torch.func.functional_call(model, others, (x,))
        torch.func.functional_call(model, dict(model.named_parameters()), (x,)).sum().backward()
        model.module[4].bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
        with pytest.raises(RuntimeError, match=r"4\.bias was replaced .* assignment"):
            model(x)

    pools[2](refuse)


def test_ranks_that_freeze_other_parameters_are_told_which_before_anything_is_written():
    def differ(group):
        module = network()
        module[2].weight.requires_grad_(group.rank == 0)
        wrap("ours", module, group)

    says = r"2\.weight float64\[8, 8\], frozen on rank 1, 2\.weight float64\[8, 8\] on rank 0"
    with pytest.raises(RankError, match=says):
        launch_with_clock(differ, ranks=2, timeout=30)


UNUSED = r"no gradient came for never\.bias, never\.weight, someti"


@pytest.mark.parametrize(("kind", "says"), [("ours", UNUSED), ("torch", "finished reduction in t")])
def test_an_unused_parameter_is_named(kind, says):
    def unused(group, kind):
        model = wrap(kind, Odd(), group)
        for _ in range(2):  # PyTorch's says it when the next step begins
            model(data(2)[0]).sum().backward()

    with pytest.raises(RankError, match=says):
        launch_with_clock(unused, kind, ranks=2, timeout=30)


class Fails(torch.autograd.Function):
    """x → x, whose backward pass raises once `fuse` holds something."""

    @staticmethod
    def forward(ctx, x, fuse):
        ctx.fuse = fuse
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.fuse:
            ctx.fuse.clear()
            raise ZeroDivisionError
        return grad, None


class Breakable(nn.Module):
    """The network above, in whose backward pass something can fail behind layer `at`."""

    def __init__(self, at):
        super().__init__()
        self.inner, self.at, self.fuse, self.cut = network(), at, [], False

    def forward(self, x):
        for number, layer in enumerate(self.inner):
            x = layer(x)
            if number == self.at:
                x = x.detach() if self.cut else Fails.apply(x, self.fuse)
        return x


@pytest.mark.parametrize("bucket_bytes", [1, 25_000_000])
@pytest.mark.parametrize("fails_at", [(4, 4), (2, 2), (0, 2), (4, 0)])
def test_a_pass_that_failed_leaves_nothing_behind(pools, fails_at, bucket_bytes):
    """Wherever it failed: before any bucket left, after some, or after more on one rank."""

    def fail_and_go_on(group, fails_at, bucket_bytes):
        module = Breakable(fails_at[group.rank])
        model = wrap("ours", module, group, bucket_bytes=bucket_bytes)
        x, labels = share(group, 12)
        for step in range(3):
            if step < 2:  # in the first pass, and once buckets have been filled anew
                module.fuse.append("burn")
                with pytest.raises(ZeroDivisionError):
                    loss_of(model, 100 * x, labels).backward()
            model.zero_grad()
            loss_of(model, x, labels).backward()
        return [p.grad for p in model.parameters()]

    for grads in pools[2](fail_and_go_on, fails_at, bucket_bytes):
        assert_all_close(grads, gradients_alone(12))


def test_a_pass_that_failed_may_be_run_again_or_followed_by_no_sync(pools):
    def fail_and_go_on(group, how):
        module = Breakable(0)
        model = wrap("ours", module, group, bucket_bytes=1)
        x, labels = share(group, 12)
        module.fuse.append("burn")
        loss = loss_of(model, x, labels)
        with pytest.raises(ZeroDivisionError):
            loss.backward(retain_graph=True)
        model.zero_grad()
        if how == "run again":
            loss.backward()
            return [p.grad for p in model.parameters()]
        with model.no_sync():
            loss.backward()
        loss_of(model, x, labels).backward()
        return [p.grad / 2 for p in model.parameters()]

    for how in ("run again", "no_sync"):
        for grads in pools[2](fail_and_go_on, how):
            assert_all_close(grads, gradients_alone(12))


def test_a_reduction_that_cannot_be_waited_for_leaves_the_next_pass_clean(pools):
    class Broken:
        def __init__(self, work):
            self.work = work

        def wait(self):
            self.work.wait()
            raise ZeroDivisionError

    def fail_and_go_on(group, at):
        model = wrap("ours", network(), group, bucket_bytes=1)
        x, labels = share(group, 12)
        for _ in range(2):
            loss_of(model, x, labels).backward()  # buckets have their final order

        def hook(group, bucket):
            work = all_reduce_hook(group, bucket)
            return Broken(work) if bucket.index == at else work

        model.register_comm_hook(hook)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, 100 * x, labels).backward()
        model.register_comm_hook(all_reduce_hook)
        model.zero_grad()
        loss_of(model, x, labels).backward()
        return [p.grad for p in model.parameters()]

    for at in (0, 1, 5):
        for grads in pools[2](fail_and_go_on, at):
            assert_all_close(grads, gradients_alone(12))


def test_after_a_pass_that_failed_the_module_is_not_run_without_its_wrapper(pools):
    """Its gradients would be added to what the failed pass left in the buckets."""

    def fail_and_go_on(group):
        module = Breakable(0)
        model = wrap("ours", module, group)
        x, labels = share(group, 12)
        module.fuse.append("burn")
        with pytest.raises(ZeroDivisionError):
            loss_of(model, x, labels).backward()
        with pytest.raises(RuntimeError, match="call the wrapper, not its module"):
            loss_of(module, x, labels).backward()
        model.zero_grad()
        loss_of(model, x, labels).backward()
        return [p.grad for p in model.parameters()]

    for grads in pools[2](fail_and_go_on):
        assert_all_close(grads, gradients_alone(12))


@pytest.mark.parametrize("how", [ZeroDivisionError, RuntimeError])
def test_every_reduction_that_a_failed_pass_started_is_waited_for(pools, how):
    """One that is still under way could write into a gradient of the next pass."""

    def fail_and_go_on(group, how):
        module = Breakable(0)
        model = wrap("ours", module, group, bucket_bytes=1)
        under_way = []

        class Late:
            """Reduces when it is waited for."""

            def __init__(self, flat):
                self.flat = flat
                under_way.append(self)

            def wait(self):
                group.all_reduce(self.flat, "avg")
                under_way.remove(self)

        model.register_comm_hook(lambda _, bucket: Late(bucket.buffer))
        x, labels = share(group, 12)
        module.cut = how is RuntimeError  # no gradient comes for the first layer
        module.fuse.append("burn")
        with pytest.raises(how):
            loss_of(model, x, labels).backward()
        module.cut = False
        module.fuse.clear()
        started = len(under_way)
        model.zero_grad(set_to_none=False)  # in the very memory that is still being reduced
        loss_of(model, x, labels).backward()
        return started, len(under_way), [p.grad for p in model.parameters()]

    for started, left, grads in pools[2](fail_and_go_on, how):
        assert started > 0 == left
        assert_all_close(grads, gradients_alone(12))


DIFFERS = r"tensor 0 is weight float32\[3, 3\] on rank 1, weight"


@pytest.mark.parametrize(("kind", "says"), [("ours", DIFFERS), ("torch", "appears not to match")])
def test_a_network_that_differs_between_ranks_is_named_before_anything_is_written(kind, says):
    def differ(group, kind):
        wrap(kind, nn.Linear(3, 2 + group.rank), group)

    with pytest.raises(RankError, match=says):
        launch_with_clock(differ, kind, ranks=2, timeout=30)


@pytest.mark.parametrize("kind", KINDS)
def test_several_passes_of_one_step_add_up(pools, kind):
    def grads(group, kind):
        model = wrap(kind, network(), group, bucket_bytes=700)
        x, labels = share(group, 12)
        for half in (slice(2), slice(2, None)):
            loss_of(model, x[half], labels[half]).backward()
        both = wrap(kind, network(), group, bucket_bytes=700)
        (loss_of(both, x[:2], labels[:2]) + loss_of(both, x[2:], labels[2:])).backward()
        return [[p.grad / 2 for p in m.parameters()] for m in (model, both)]

    for backward_twice, forward_twice in pools[3](grads, kind):
        assert_all_close(backward_twice, gradients_alone(12))
        assert_all_close(forward_twice, gradients_alone(12))


class Reentrant(nn.Module):
    """A part that is checkpointed so often; one that rank 0 alone uses; one that nobody does."""

    def __init__(self, times):
        super().__init__()
        torch.manual_seed(0)
        self.part, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()
        self.of_rank_0, self.never = nn.Linear(6, 3).double(), nn.Linear(2, 2).double()
        self.times = times

    def forward(self, x, use=False):
        x = x.clone().requires_grad_()
        for _ in range(self.times):
            x = checkpoint(self.part, x, use_reentrant=True).tanh()
        return self.head(x) + (self.of_rank_0(x) if use else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_graph_may_have_unused_parameters_and_reentrant_checkpoints(pools, kind):
    def grads(group, kind):
        module = Reentrant(2)
        model = wrap(kind, module, group, bucket_bytes=300, static_graph=True)
        x, labels = share(group, 4)
        for _ in range(3):
            model.zero_grad()
            nn.functional.cross_entropy(model(x, group.rank == 0), labels).backward()
        return {name: p.grad for name, p in module.named_parameters()}

    assert_as_on_one_device(pools[2](grads, kind), Reentrant(2))


@pytest.mark.parametrize(
    ("kind", "static", "says"),
    [
        # PyTorch's says nothing of this one: the second gradient stays on its rank.
        ("ours", False, r"part.(bias|weight) got 2 gradients in one backward pass"),
        (
            "ours",
            True,
            r"of_rank_0.(bias|weight) got 1 .* static_graph=True, and the first pass had 0",
        ),
        ("torch", True, "training graph has changed"),
    ],
)
def test_a_gradient_that_was_not_expected_is_named(kind, static, says):
    def change(group, kind, static):
        module = Reentrant(2)
        module.never.requires_grad_(False)
        module.of_rank_0.requires_grad_(static)
        model = wrap(kind, module, group, static_graph=static)
        for use in (False, True, True):
            model(data(2)[0], use).sum().backward()

    with pytest.raises(RankError, match=says):
        launch_with_clock(change, kind, static, ranks=2, timeout=30)


class Pair(nn.Module):
    """a · x and b · x, as asked for."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, x, use):
        return sum(getattr(self, name) * x for name in use)


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_rank_used_within_no_sync_has_a_gradient_on_every_rank(pools, kind):
    def grads(group, kind):
        model = wrap(kind, Pair(), group, find_unused_parameters=True)
        for _ in range(2):
            model.zero_grad()
            with model.no_sync():
                model(torch.ones(1) * 4, "ab" if group.rank == 1 else "b").sum().backward()
            model(torch.ones(1) * 6, "b").sum().backward()
        return [p.grad.item() for p in model.parameters()]

    assert pools[2](grads, kind) == [[4 / 2, 4 + 6]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_no_sync_decides_in_the_forward_pass(pools, kind):
    def gradients(group, kind, forward_inside):
        model, x = wrap(kind, nn.Linear(1, 1, bias=False), group), torch.ones(1, 1)
        with model.no_sync() if forward_inside else nullcontext():
            loss = model(x * (1 + group.rank)).sum()
        with nullcontext() if forward_inside else model.no_sync():
            loss.backward()
        return model.module.weight.grad.item()

    assert pools[2](gradients, kind, True) == [1.0, 2.0]
    assert pools[2](gradients, kind, False) == [1.5, 1.5]


@pytest.mark.parametrize("inside", ["ab", "a", "b", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_through_several_forward_passes_sends_unless_all_are_in_no_sync(pools, kind, inside):
    def gradients(group, kind, inside):
        model, losses = wrap(kind, Pair(), group, bucket_bytes=1), []
        for name in "ab":
            with model.no_sync() if name in inside else nullcontext():
                losses.append(model(torch.ones(1) * (1 + group.rank), name).sum())
        sum(losses).backward()
        return [p.grad.item() for p in model.module.parameters()]

    first, second = pools[2](gradients, kind, inside)
    assert (first, second) == (([1.0, 1.0], [2.0, 2.0]) if inside == "ab" else ([1.5, 1.5],) * 2)


def test_each_backward_pass_sends_as_its_own_forward_pass_says(pools):
    """PyTorch's DDP sends in the first backward pass, whichever it is, and then no more."""

    def gradients(group):
        model, x = wrap("ours", nn.Linear(1, 1, bias=False), group), torch.ones(1, 1)
        with model.no_sync():
            local = model(x * (1 + group.rank)).sum()
        losses, seen = [local, model(x).sum(), model(x).sum()], []
        for loss in losses:
            loss.backward()
            seen.append(model.module.weight.grad.item())
        return seen

    assert pools[2](gradients) == [[1.0, 2.5, 3.5], [2.0, 2.5, 3.5]]


def test_a_local_pass_that_failed_is_followed_by_one_that_sends(pools):
    def gradients(group):
        module = Breakable(2)
        model = wrap("ours", module, group)
        x, labels = share(group, 12)
        module.fuse.append("burn")
        with model.no_sync():
            loss = loss_of(model, x, labels)
        if group.rank == 0:  # other ranks know nothing of it
            with pytest.raises(ZeroDivisionError):
                loss.backward()
        module.fuse.clear()
        model.zero_grad()
        loss_of(model, x, labels).backward()
        return [p.grad for p in model.parameters()]

    for grads in pools[2](gradients):
        assert_all_close(grads, gradients_alone(12))


@pytest.mark.parametrize("kind", KINDS)
def test_no_sync_in_no_sync_ends_with_the_outer_one(pools, kind):
    def gradients(group, kind):
        model, x = wrap(kind, nn.Linear(1, 1, bias=False), group), torch.ones(1, 1)
        seen = []
        with model.no_sync():
            with model.no_sync():
                pass
            model(x * (1 + group.rank)).sum().backward()
            seen.append(model.module.weight.grad.item())
        model(x).sum().backward()
        return [*seen, model.module.weight.grad.item()]

    assert pools[2](gradients, kind) == [[1.0, 2.5], [2.0, 2.5]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_on_a_gradient_alone_is_averaged(pools, kind):
    """Its backward pass goes through the graph of the gradient, not through an output."""

    def penalize(group, kind):
        module = nn.Linear(3, 1, bias=False)
        nn.init.ones_(module.weight)
        model = wrap(kind, module, group)
        for _ in range(2):
            model.zero_grad()
            x = torch.ones(1, 3, requires_grad=True)
            y = model(x).sum() * (1 + group.rank)
            (slope,) = torch.autograd.grad(y, x, create_graph=True)  # (1 + rank) · weight
            slope.square().sum().backward()
        return module.weight.grad.tolist()

    assert pools[2](penalize, kind) == [[[2 * (1 + 4) / 2] * 3]] * 2


def test_a_static_graph_names_what_is_used_within_no_sync_alone(pools):
    def change(group):
        model = wrap("ours", Pair(), group, static_graph=True)
        model(torch.ones(1), "b").sum().backward()
        with model.no_sync(), pytest.raises(RuntimeError, match="a got 1 gradients"):
            model(torch.ones(1), "ab").sum().backward()

    pools[2](change)


class Nothing(torch.autograd.Function):
    """x, and a gradient for `p` that stays undefined if `silent`."""

    @staticmethod
    def forward(ctx, x, p, silent):
        ctx.silent = silent
        return x * p

    @staticmethod
    def backward(ctx, grad):
        return None, None if ctx.silent else grad, None


@pytest.mark.parametrize("silent_ranks", [{0}, {0, 1}])
@pytest.mark.parametrize("find", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_stays_undefined_counts_as_zero(pools, kind, find, silent_ranks):
    def grads(group, kind, find, silent_ranks):
        module = Pair()
        model = wrap(kind, module, group, find_unused_parameters=find)
        model.module.forward = lambda x, silent: Nothing.apply(x, module.a, silent) + module.b * x
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(1), group.rank in silent_ranks).sum().backward()
        return [p.grad if p.grad is None else p.grad.item() for p in (module.a, module.b)]

    mean = (2 - len(silent_ranks)) / 2
    nobodys = find and mean == 0  # then it has none, as on one device
    assert pools[2](grads, kind, find, silent_ranks) == [[None if nobodys else mean, 1.0]] * 2


def test_create_graph_averages_first_derivatives_and_warns(pools):
    def grads(group):
        model = wrap("ours", Pair(), group)
        for _ in range(3):
            model.zero_grad()
            with pytest.warns(UserWarning, match="first derivatives without a graph"):
                (model(torch.ones(1), "ab") ** (group.rank + 1)).sum().backward(create_graph=True)
        return [p.grad.item() for p in model.parameters()]

    assert pools[2](grads) == [[(1 + 2 * 2) / 2] * 2] * 2


@pytest.mark.filterwarnings("ignore:create_graph")
def test_after_a_pass_with_create_graph_a_module_is_not_called_without_its_wrapper(pools):
    def bypass(group):
        model = wrap("ours", nn.Linear(2, 1), group)
        model(torch.ones(1, 2)).square().sum().backward(create_graph=True)
        model.module.weight.grad = model.module.bias.grad = None
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="came in a backward pass that reached no output"):
            model.module(torch.ones(1, 2)).sum().backward()

    pools[2](bypass)


def test_sparse_gradients_are_refused_by_name(pools):
    class Hidden(nn.Module):
        """An embedding that does not tell that its gradient is sparse."""

        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.embedding(x, self.table, sparse=True)

    def refuse(group):
        module = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2))
        with pytest.raises(ValueError, match=r"0\.weight.*sparse=False"):
            wrap("ours", module, group)
        model = wrap("ours", Hidden(), group)
        with pytest.raises(RuntimeError, match=r"table.*sparse=False"):
            model(torch.tensor([1])).sum().backward()

    pools[2](refuse)


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, Zero1, Zero2, Zero3])
def test_embeddings_that_a_forward_pass_renormalizes_are_refused_by_name(pools, wrapper):
    def refuse(group, wrapper):
        options = () if wrapper is DistributedDataParallel else (torch.optim.SGD,)
        for kind in (nn.Embedding, nn.EmbeddingBag):
            module = nn.Sequential(nn.Identity(), kind(3, 2, max_norm=0.5), nn.Linear(2, 2))
            with pytest.raises(ValueError, match=r"1\.weight has max_norm=0\.5"):
                wrapper(module, *options, group)

    pools[2](refuse, wrapper)


@pytest.mark.parametrize("kind", KINDS)
def test_complex_parameters_and_buffers(pools, kind):
    class Turn(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.by = nn.Parameter(torch.tensor([1 + 1j]) * (1 - rank))
            self.register_buffer("scale", torch.tensor([2j]) * (1 - rank))

        def forward(self, x):
            return (self.by * self.scale * x).real + (self.by * x).imag

    def grads(group, kind):
        model = wrap(kind, Turn(group.rank), group)
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(1) * (1 + group.rank)).sum().backward()
        return model.module.by.tolist(), model.module.by.grad.tolist()

    alone = Turn(0)
    alone(torch.ones(1) * 1.5).sum().backward()
    assert pools[2](grads, kind) == [(alone.by.tolist(), alone.by.grad.tolist())] * 2


def test_state_dict_has_the_modules_own_names(pools):
    def save_and_load(group):
        model = DistributedDataParallel(network(), group)
        saved = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        model.load_state_dict(saved)
        plain = network(5)
        plain.load_state_dict(saved)
        pairs = zip(plain.parameters(), model.parameters(), strict=True)
        return list(saved), all((a == b).all() for a, b in pairs)

    for names, same in pools[2](save_and_load):
        assert names == list(network().state_dict())
        assert same


def test_a_checkpoint_of_pytorchs_wrapper_can_be_loaded(pools):
    class Own(nn.Module):
        """Its own names begin with `module.` already, before anything wraps it."""

        def __init__(self, seed):
            super().__init__()
            self.module = network(seed)

    def load(group, make):
        saved = wrap("torch", make(3), group).state_dict()
        model = wrap("ours", make(4), group)
        model.load_state_dict(saved)
        model.load_state_dict(model.state_dict())
        pairs = zip(make(3).parameters(), model.parameters(), strict=True)
        return all(name.startswith("module.") for name in saved), all(
            (a == b).all() for a, b in pairs
        )

    assert pools[2](load, network) == [(True, True)] * 2
    assert pools[2](load, Own) == [(True, True)] * 2


class Inner(nn.Module):
    """Its own names begin with `module.` already, and one more is beside the part of that name."""

    def __init__(self, module):
        super().__init__()
        self.module, self.gate = module, nn.Parameter(module[0].weight.detach()[:1].clone())


class Versioned(nn.Module):
    """Its first version saved the weight transposed."""

    _version = 2

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, 3))

    def _load_from_state_dict(self, state_dict, prefix, metadata, *others):
        if metadata.get("version", 1) < 2:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, metadata, *others)


SAVED = {
    "plain": network,
    "module inside": lambda seed: Inner(network(seed)),
    "twice": lambda seed: nn.Sequential(Inner(nn.Sequential(*Inner(network(seed)).module))),
    "two gates": lambda seed: Gates(seed),
    "with a version": lambda seed: nn.Sequential(Versioned(seed)),
}


class Gates(nn.Module):
    """PyTorch's `module.gate` of the whole is also an own name, of the part."""

    def __init__(self, seed, depth=2):
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), float(seed)))
        self.module = Gates(seed + 10, depth - 1) if depth else Versioned(seed)


@pytest.mark.parametrize("where", ["alone", "in a larger module"])
@pytest.mark.parametrize("what", SAVED)
def test_a_wrapper_loads_what_it_and_what_pytorchs_wrapper_saves(pools, what, where):
    def load(group, make, is_inside):
        def build(kind, seed):
            one = wrap(kind, make(seed), group)
            return nn.ModuleDict({"net": one, "head": nn.Linear(2, 2)}) if is_inside else one

        found = []
        for kind in ("ours", "torch"):
            saved, model = build(kind, 3), build("ours", 4)
            keys = model.load_state_dict(saved.state_dict(), strict=False)
            pairs = zip(saved.parameters(), model.parameters(), strict=True)
            found.append((*keys, all(torch.equal(a, b) for a, b in pairs)))
        return found, [*build("ours", 3).state_dict()], [*build("torch", 3).state_dict()]

    is_inside = where != "alone"
    for found, ours, pytorchs in pools[2](load, SAVED[what], is_inside):
        assert found == [([], [], True)] * 2
        assert ours == (pytorchs if is_inside else [*SAVED[what](3).state_dict()])


def test_a_prefix_comes_before_the_modules_own_names(pools):
    def saved(group):
        module = Gates(3)
        found = wrap("ours", module, group).state_dict(prefix="net.")
        expected = module.state_dict(prefix="net.")
        return [*found] == [*expected], found._metadata == expected._metadata

    assert pools[1](saved) == [(True, True)]


def test_a_wrapper_calls_the_hooks_of_its_state_dict(pools):
    def called(group):
        model, seen = wrap("ours", network(), group), []
        model.register_state_dict_pre_hook(lambda *_: seen.append("before saving"))
        model.register_state_dict_post_hook(lambda *_: seen.append("saved"))
        saved = model.state_dict()
        model.register_load_state_dict_pre_hook(lambda *_: seen.append("before loading"))
        model.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
        model.load_state_dict(saved)
        return seen

    assert pools[1](called) == [["before saving", "saved", "before loading", "loaded"]]


def test_a_wrapper_has_no_shallow_copy(pools):
    def shallow(group):
        copy.copy(wrap("ours", network(), group))

    with pytest.raises(RankError, match=r"TypeError: copy\.copy .*: use copy\.deepcopy"):
        pools[1](shallow)


def test_on_shared_memory_gradients_are_kept_once(pools):
    def bytes_kept(group):
        model = wrap("ours", network(), SharedGroup(group), bucket_bytes=700)
        loss = []
        for _ in range(3):  # the first pass fills the buckets anew
            loss_of(model, *share(group, 12)).backward()
            loss.append([p.grad / (len(loss) + 1) for p in model.parameters()])
        model.use_order(sorted(model.order()))
        loss.append([p.grad / 3 for p in model.parameters()])
        return sum(each.size for each in model.group.memory.resident.values()), loss

    for kept, grads in pools[2](bytes_kept):
        assert kept == sum(p.nbytes for p in network().parameters())
        for each in grads:
            assert_all_close(each, gradients_alone(12))


def test_a_module_is_wrapped_once(pools):
    def refuse(group):
        module = network()
        wrap("ours", module, group)
        for again in (module, nn.Sequential(module, nn.ReLU()), module[0]):
            with pytest.raises(ValueError, match="weight is in a DistributedDataParallel already"):
                wrap("ours", again, group)
        wrap("ours", copy.deepcopy(module), group)

    pools[2](refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_sees_the_averaged_gradient(pools, kind):
    def clip(group, kind):
        model = wrap(kind, network(), group)
        loss_of(model, *share(group, 12)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return norm.item(), [p.grad for p in model.parameters()]

    alone = network()
    loss_of(alone, *data(12)).backward()
    expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.01).item()
    for norm, grads in pools[3](clip, kind):
        assert norm == pytest.approx(expected, rel=1e-12)
        assert_all_close(grads, [p.grad for p in alone.parameters()])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = network()
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.inner:
            x = checkpoint(layer, x.clone().requires_grad_(), use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_activation_checkpointing(pools, kind, reentrant):
    def grads(group, kind, reentrant):
        model = wrap(kind, Checkpointed(reentrant), group, bucket_bytes=700)
        for _ in range(2):
            model.zero_grad()
            loss_of(model, *share(group, 8)).backward()
        return [p.grad for p in model.parameters()]

    for got in pools[2](grads, kind, reentrant):
        assert_all_close(got, gradients_alone(8))


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_come_from_rank_0_at_every_forward(pools, kind):
    def means(group, kind):
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model = wrap(kind, module, group)
        for step in range(3):
            model(torch.full((4, 2), float(group.rank + step))).sum().backward()
        model(torch.zeros(4, 2))  # brings rank 0's of the last step, then adds the same to each
        return module[1].running_mean.tolist()

    results = pools[2](means, kind)
    assert results[0] == results[1]


class Tables(nn.Module):
    """A buffer of every kind, which each forward pass fills with the input."""

    dtypes = (
        torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.float8_e4m3fn,
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        for dtype in self.dtypes:
            self.register_buffer(f"of_{str(dtype)[6:]}", torch.zeros(3, dtype=dtype))
        self.register_buffer("strided", torch.zeros(2, 3).t())

    def forward(self, x):
        seen = [buffer.float().flatten()[0].item() for buffer in self.buffers()]
        for buffer in self.buffers():
            buffer.copy_(torch.full_like(buffer, x))
        return self.weight * x, seen


def test_buffers_of_every_dtype_come_from_rank_0_when_wrapped_and_at_every_forward(pools):
    def what_each_pass_saw(group):
        module = Tables()
        module(1.0 - group.rank)  # rank 0: ones
        model = wrap("ours", module, group)
        return [model(float(group.rank))[1] for _ in range(2)]  # rank 0: zeros

    n = len(Tables.dtypes) + 1
    assert pools[2](what_each_pass_saw) == [[[1.0] * n, [0.0] * n]] * 2


def test_a_buffer_that_cannot_be_sent_is_named_when_the_module_is_wrapped(pools):
    def refuse(group):
        module = nn.Linear(2, 2)
        module.register_buffer("table", torch.eye(2).to_sparse())
        with pytest.raises(ValueError, match="table is sparse or quantized"):
            wrap("ours", module, group)

    pools[2](refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_takes_the_place_of_the_all_reduce(pools, kind):
    def hooked(group, kind):
        model = wrap(kind, network(), group, bucket_bytes=700)
        seen = []
        reduce_by_hand(kind, model, group, lambda index, *_: seen.append(index))
        group.trace = trace = Trace(group.rank)
        loss_of(model, *share(group, 4)).backward()
        group.trace = None
        averaged = [span.name for span in trace.spans].count("all_reduce avg")
        return seen, averaged, [p.grad for p in model.parameters()]

    for seen, averaged, grads in pools[2](hooked, kind):
        assert seen == [*range(len(seen))]
        assert len(seen) > 0 == averaged
        assert_all_close(grads, gradients_alone(4))


@covering(
    kind=[*KINDS, "static graph"],
    lengths=[[2, 5, 3], [0, 2, 1], [3, 3, 3], [1, 0, 0]],
    by_all=[True, False],
)
def test_ranks_that_run_out_of_data_take_part_until_the_last_is_done(pools, kind, lengths, by_all):
    def rows(rank, step):
        return slice(4 * (5 * rank + step), 4 * (5 * rank + step) + 4)

    def uneven(group, kind, lengths, by_all):
        options = {"static_graph": True} if kind == "static graph" else {}
        kind = "ours" if options else kind
        model = wrap(kind, network(), group, bucket_bytes=700, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, labels = data(60)
        mine_of_steps = [rows(group.rank, step) for step in range(lengths[group.rank])]
        with model.join(divide_by_initial_world_size=by_all):
            for mine in mine_of_steps:
                optimizer.zero_grad()
                loss_of(model, x[mine], labels[mine]).backward()
                optimizer.step()
        return [p.detach() for p in model.parameters()]

    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    x, labels = data(60)
    for step in range(max(lengths)):
        have = [rows(rank, step) for rank in range(3) if step < lengths[rank]]
        optimizer.zero_grad()
        parts = 3 if by_all else len(have)
        (sum(loss_of(alone, x[mine], labels[mine]) for mine in have) / parts).backward()
        optimizer.step()
    for weights in pools[3](uneven, kind, lengths, by_all):
        assert_all_close(weights, [p.detach() for p in alone.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_done_keeps_its_own_gradients_and_none_of_later_steps(pools, kind):
    def two_epochs(group, kind, zero_last):
        model = wrap(kind, nn.Linear(1, 1, bias=False), group)
        weight, seen = model.module.weight, []
        for _ in range(2):
            with model.join():
                for _ in range(1 + group.rank):
                    if not zero_last:
                        model.zero_grad()
                    model(torch.ones(1, 1)).sum().backward()
                    seen.append(weight.grad.item())
                    if zero_last:
                        model.zero_grad()
            seen.append(None if weight.grad is None else weight.grad.item())
        return seen

    assert pools[2](two_epochs, kind, True) == [[1.0, None] * 2, [1.0, 0.5, None] * 2]
    assert pools[2](two_epochs, kind, False) == [[1.0, 1.0] * 2, [1.0, 0.5, 0.5] * 2]


def test_what_a_rank_has_accumulated_when_it_is_done_is_there_in_the_next_epoch(pools):
    def accumulate(group):
        model = wrap("ours", nn.Linear(1, 1, bias=False), group)
        with model.join():
            if group.rank == 0:
                with model.no_sync():
                    model(torch.ones(1, 1) * 8).sum().backward()
            else:
                model(torch.ones(1, 1)).sum().backward()
        model(torch.zeros(1, 1)).sum().backward()
        return model.module.weight.grad.item()

    assert pools[2](accumulate) == [(8 + 0.5) / 2] * 2


@pytest.mark.parametrize("lengths", [[2, 2, 2], [0, 2, 2], [0, 0, 2]])
def test_buckets_follow_the_order_of_arrival_whichever_rank_has_a_batch(pools, lengths):
    def order(group, lengths):
        model = wrap("ours", network(), group)
        with model.join():
            for _ in range(lengths[group.rank]):
                loss_of(model, *data(4)).backward()
        return model.order()

    orders = pools[3](order, lengths)
    assert all(names == orders[0] for names in orders)
    assert [name.split(".")[0] for name in orders[0]] == ["4", "4", "2", "2", "0", "0"]


class WithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.linear = nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.steps += 1
        return self.linear(self.norm(x))


@pytest.mark.parametrize("lengths", [[2, 5], [5, 2], [0, 3], [4, 4]])
@pytest.mark.parametrize("kind", KINDS)
def test_buffers_come_from_a_rank_that_still_has_data(pools, kind, lengths):
    def uneven(group, kind, lengths):
        module = WithNorm().double()
        model = wrap(kind, module, group)
        generator = torch.Generator().manual_seed(group.rank)
        with model.join():
            for _ in range(lengths[group.rank]):
                x = torch.randn(8, 6, generator=generator, dtype=torch.float64) + group.rank
                model(x).sum().backward()
        norm = module.norm
        return module.steps.item(), norm.num_batches_tracked.item(), norm.running_mean.tolist()

    results = pools[2](uneven, kind, lengths)
    assert results[0] == results[1]
    assert results[0][:2] == (max(lengths), max(lengths))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_join_that_fine_tune_in_eval_mode(pools, kind):
    def uneven(group, kind):
        module = WithNorm().double()
        model = wrap(kind, module, group)
        model.eval()
        with model.join():
            for _ in range([1, 3][group.rank]):
                x = torch.ones(8, 6, dtype=torch.float64)
                model(x).sum().backward()
        return module.norm.num_batches_tracked.item(), [p.grad for p in module.parameters()]

    (batches, _), (others, gradients) = pools[2](uneven, kind)
    assert batches == others == 0
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_module_keeps_beside_its_tensors_is_its_own(pools, kind):
    class Counts(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            assert state == {"calls": 3}

    def wrapped(group, kind):
        module = Counts(2, 2)
        wrap(kind, module, group)
        return module.weight.tolist()

    first, second = pools[2](wrapped, kind)
    assert first == second


def test_a_buffer_that_is_never_saved_is_compared_too(pools):
    def swapped(group):
        module = nn.Linear(2, 2)
        for name in ("ab", "ba")[group.rank]:
            module.register_buffer(name, torch.zeros(3), persistent=False)
        wrap("ours", module, group)

    with pytest.raises(RankError, match=r"a float32\[3\] on rank 0"):
        pools[2](swapped)


def weights_after_an_uneven_epoch(group, kind, shares):
    """Two epochs of 2 and 6 steps with Adam: the weights after the second one's first step."""
    module = network()
    model = wrap(kind, module, group)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(group.rank)
    options = {"optimizer": optimizer} if shares else {}
    first = []
    for _ in range(2):
        with model.join(**options):
            for step in range([2, 6][group.rank]):
                x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                if step == 0:
                    first = [p.detach().clone() for p in module.parameters()]
    return first, optimizer.state_dict()["state"][0]["step"].item()


@pytest.mark.parametrize("kind", KINDS)
def test_adams_moments_part_in_an_uneven_epoch_and_weights_after_it(pools, kind):
    (a, few), (b, many) = pools[2](weights_after_an_uneven_epoch, kind, False)
    assert (few, many) == (4, 12)
    assert max((x - y).abs().max().item() for x, y in zip(a, b, strict=True)) > 0.01


def test_join_shares_an_optimizers_state(pools):
    (a, few), (b, many) = pools[2](weights_after_an_uneven_epoch, "ours", True)
    assert few == many == 12
    for mine, other in zip(a, b, strict=True):
        assert torch.equal(mine, other)


def test_join_shares_an_optimizers_state_within_a_part_of_the_ranks(pools):
    def in_pairs(group):
        return weights_after_an_uneven_epoch(group.split(group.rank // 2), "ours", True)

    found = pools[4](in_pairs)
    assert [steps for _, steps in found] == [12] * 4
    for (mine, _), (other, _) in (found[:2], found[2:]):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def through_a_file(model, path):
    torch.save(model, path)
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize("how", ["deepcopy", "save"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_the_wrapper_averages_too(pools, kind, how, tmp_path):
    def train_the_copy(group, kind, how, folder):
        model = wrap(kind, network(group.rank), group, bucket_bytes=700)
        x, labels = share(group, 12)
        loss_of(model, x, labels).backward()  # buckets have their final order
        # PyTorch's copy of a wrapper within no_sync() never averages.
        with model.no_sync() if kind == "ours" else nullcontext():
            if how == "deepcopy":
                copied = copy.deepcopy(model)
            else:
                copied = through_a_file(model, folder / f"{group.rank}.pt")
        for one in (copied, model):
            one.zero_grad()
            loss_of(one, x, labels).backward()
        pairs = zip(copied.parameters(), model.parameters(), strict=True)
        assert not any(mine is other for mine, other in pairs)
        if kind == "ours":
            assert copied.order() == model.order()
        return [p.grad for p in copied.parameters()], [p.grad for p in model.parameters()]

    for of_copy, of_model in pools[2](train_the_copy, kind, how, tmp_path):
        assert_all_close(of_copy, gradients_alone(12))
        assert_all_close(of_model, gradients_alone(12))


def test_a_wrapper_on_a_part_of_the_ranks_is_copied_and_not_saved(pools, tmp_path):
    def train_the_copy(group, path):
        part = group.split(group.rank // 2)
        model = wrap("ours", network(), part)
        with pytest.raises(TypeError, match="a Group of 2 ranks cannot be saved"):
            torch.save(model, path / str(group.rank))
        copied = copy.deepcopy(model)
        loss_of(copied, *share(part, 12)).backward()
        return [p.grad for p in copied.parameters()]

    for grads in pools[4](train_the_copy, tmp_path):
        assert_all_close(grads, gradients_alone(12))


class Hidden:
    def __init__(self, logits):
        self.logits = logits


class HidesItsOutput(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return Hidden(self.module(x))


class HidesItDeeply(HidesItsOutput):
    def forward(self, x):
        return Hidden(Hidden(self.module(x)))


def test_a_module_that_is_run_behind_the_wrappers_back_is_told(pools):
    def run_the_module(group):
        module = network()
        model = wrap("ours", module, group)
        x, labels = share(group, 12)
        loss_of(model, x, labels).backward()
        for eager in (module, module.eval()):
            with pytest.raises(RuntimeError, match=r"4\.bias came .* call the wrapper"):
                loss_of(eager, x, labels).backward()
        module.train()
        model.zero_grad()
        with model.no_sync():  # adds up on this rank: the next pass of the wrapper averages all
            loss_of(module, x, labels).backward()
        with torch.no_grad():
            module(x)
        loss_of(model, x, labels).backward()
        return [p.grad / 2 for p in model.parameters()]

    for grads in pools[2](run_the_module):
        assert_all_close(grads, gradients_alone(12))


@pytest.mark.parametrize("hides", [HidesItsOutput, HidesItDeeply])
def test_an_output_in_which_tensors_hide_is_followed_from_the_first_gradient_on(pools, hides):
    def run(group, hides):
        model = wrap("ours", hides(network()), group)
        x, labels = share(group, 12)
        found = model(x).logits
        found = found.logits if hides is HidesItDeeply else found
        nn.functional.cross_entropy(found, labels).backward()
        return [p.grad for p in model.parameters()]

    for grads in pools[2](run, hides):
        assert_all_close(grads, gradients_alone(12))


def test_a_last_layer_that_is_checkpointed_may_be_an_attribute_of_the_output(pools):
    """The checkpoint's pass within the pass has the first gradients, and an end of its own."""

    def run(group):
        model = wrap("ours", HidesItsOutput(Checkpointed(reentrant=True)), group)
        x, labels = share(group, 12)
        nn.functional.cross_entropy(model(x).logits, labels).backward()
        return [p.grad for p in model.parameters()]

    for grads in pools[2](run):
        assert_all_close(grads, gradients_alone(12))


def test_a_hook_that_cannot_be_called_is_refused(pools):
    def refuse(group):
        with pytest.raises(TypeError, match=r"hook: give a function .* not dict"):
            wrap("ours", network(), group).register_comm_hook({})

    pools[2](refuse)


def test_nothing_to_train_is_refused(pools):
    def refuse(group):
        said = []
        for module, options in ((nn.ReLU(), {}), (nn.Linear(1, 1), {"bucket_bytes": 0})):
            try:
                DistributedDataParallel(module, group, **options)
            except ValueError as error:
                said.append(str(error))
        return said

    said = pools[2](refuse)[0]
    assert "no parameter requires a gradient" in said[0]
    assert "bucket_bytes=0: a bucket holds 1 byte or more" in said[1]


class CanSkip(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, skips):
        return self.first(x if skips else self.second(x)).sum()


def penalised(group):
    model = DistributedDataParallel(CanSkip(), group, find_unused_parameters=True)
    weight = model.module.second.weight
    (model(torch.ones(1, 2), skips=group.rank == 0) + weight.square().sum()).backward()
    return weight.grad.clone()


def test_a_penalty_on_a_weight_counts_also_on_a_rank_that_skips_its_layer(pools):
    model = CanSkip()
    weight = model.second.weight
    (model(torch.ones(1, 2), skips=False) / 2 + weight.square().sum()).backward()
    for gradient in pools[2](penalised):
        torch.testing.assert_close(gradient, weight.grad)


class CanPass(nn.Module):
    """Returns what it gets, without a weight, if it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 2)

    def forward(self, x, passes):
        return x * 2 if passes else self.layer(x)


def passed(group):
    model = DistributedDataParallel(CanPass(), group, find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        x = torch.ones(1, 2, requires_grad=True)
        model(x, passes=group.rank == 1).sum().backward()
    return model.module.layer.weight.grad.clone()


def test_a_rank_without_any_gradient_counts_as_zeros(pools):
    """PyTorch's wrapper, which reduces when a gradient has come, waits forever here."""
    alone = CanPass()
    alone(torch.ones(1, 2), passes=False).sum().backward()
    for gradient in pools[2](passed):
        torch.testing.assert_close(gradient, alone.layer.weight.grad / 2)
