"""The rungs below DistributedDataParallel, alone; and what all of them do in half precision."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from pools import launch_with_clock
from torch import nn

from distributed import Group
from distributed.bucketed_ddp import (
    Bucket,
    BucketedDDP,
    Reducer,
    State,
    all_reduce_hook,
    fill_buckets,
)
from distributed.ddp import DistributedDataParallel
from distributed.launching import launch
from distributed.overlapped_ddp import OverlappedDDP
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.simple_ddp import average_gradients
from distributed.workbench.transformer import Config, make_model

ROOT = Path(__file__).parents[2]
RUNGS = {
    "overlapped": OverlappedDDP,
    "bucketed": BucketedDDP,
    "all options": DistributedDataParallel,
}


def network(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def data(rows=12):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=generator)


def loss_of(model, x, labels):
    return nn.functional.cross_entropy(model(x), labels)


def share(group, rows=12):
    return [part.chunk(group.size)[group.rank] for part in data(rows)]


def assert_gradients_of_one_device(found, times=1):
    alone = network()
    loss_of(alone, *data()).backward()
    for grad, parameter in zip(found, alone.parameters(), strict=True):
        torch.testing.assert_close(grad, times * parameter.grad, rtol=1e-11, atol=1e-13)


# ------------------------------------------------------------------ every rung


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_trains_as_one_device_does_and_replicas_agree_to_the_bit(pools, rung, ranks):
    def train(group, rung):
        model = RUNGS[rung](network(seed=group.rank), group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model, *share(group)).backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.3, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(alone, *data()).backward()
        optimizer.step()
    results = pools[ranks](train, rung)
    for weights in results:
        for mine, first, right in zip(weights, results[0], alone.parameters(), strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, right.detach(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rung", RUNGS)
def test_several_passes_of_one_step_add_up_on_every_rung(pools, rung):
    def grads(group, rung):
        model = RUNGS[rung](network(), group)
        for _ in range(2):
            loss_of(model, *share(group)).backward()
        return [p.grad for p in model.parameters()]

    for found in pools[3](grads, rung):
        assert_gradients_of_one_device(found, times=2)


@pytest.mark.parametrize("rung", RUNGS)
def test_no_rung_carries_a_failed_pass_into_the_next_one(pools, rung):
    """The gradient was 3 where 1.5 is right: nobody was asked to wait for the second pass."""

    def fail_and_go_on(group, rung, grads):
        linear = nn.Linear(1, 1, bias=False)
        tail = nn.Linear(1, 1, bias=False)
        nn.init.ones_(tail.weight)
        model = RUNGS[rung](nn.Sequential(linear, tail), group)
        x = torch.full((1, 1), group.rank + 1.0)
        inner = []
        linear.register_forward_hook(lambda *given: inner.append(given[2]))
        loss = model(x).sum()
        inner[0].register_hook(lambda grad: 1 / 0)  # the tail's gradient has been sent by then
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        model.zero_grad(set_to_none=grads == "none")
        model(x).sum().backward()
        return linear.weight.grad.item()

    for grads in ("none", "zeros"):
        if rung == "overlapped" and grads == "zeros":
            continue  # zeroed while they are reduced: this rung does not say that it copes
        assert pools[2](fail_and_go_on, rung, grads) == [1.5, 1.5]


@pytest.mark.parametrize(("rung", "messages"), [("overlapped", 6), ("bucketed", 3)])
def test_the_first_message_leaves_before_the_last_gradient_is_there(pools, rung, messages):
    def overlap(group, rung):
        options = {"bucket_bytes": 700, "first_bucket_bytes": 300} if rung == "bucketed" else {}
        module, ready = network(), []
        model = RUNGS[rung](module, group, **options)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: ready.append(perf_counter()))
        group.trace = trace = Trace(group.rank)
        loss_of(model, *share(group)).backward()
        group.trace = None
        return [span.start for span in trace.spans], ready

    for left, ready in pools[2](overlap, rung):
        assert len(left) == messages
        assert left[0] < max(ready)


@pytest.mark.parametrize("rung", RUNGS)
def test_what_a_rung_has_wrapped_is_not_wrapped_again(pools, rung):
    def refuse(group, rung):
        module = network()
        model = RUNGS[rung](module, group)
        with pytest.raises(ValueError, match=f"0.weight is in a {type(model).__name__} already"):
            DistributedDataParallel(module, group)

    pools[2](refuse, rung)


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "all options"])
def test_a_rung_is_not_copied_without_its_hooks(pools, rung, tmp_path):
    def refuse(group, rung, folder):
        model = RUNGS[rung](network(), group)
        for copied in (copy.deepcopy, lambda model: torch.save(model, folder / str(group.rank))):
            with pytest.raises(TypeError, match="cannot be copied or saved: wrap a copy"):
                copied(model)

    pools[2](refuse, rung, tmp_path)


# ------------------------------------------------------------------ buckets


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    kinds=st.lists(st.sampled_from([torch.float32, torch.float64]), min_size=30, max_size=30),
    most=st.integers(1, 200),
    first=st.integers(1, 200),
)
def test_buckets_hold_every_parameter_once_in_order_and_up_to_their_size(sizes, kinds, most, first):
    parameters = [
        nn.Parameter(torch.zeros(size, dtype=kind))
        for size, kind in zip(sizes, kinds, strict=False)
    ]
    index_of = {p: i for i, p in enumerate(parameters)}
    lists = fill_buckets(parameters, most, first)
    assert sorted(index_of[p] for ps in lists for p in ps) == [*range(len(parameters))]
    firsts = [index_of[ps[0]] for ps in lists]
    assert firsts == sorted(firsts)
    for number, ps in enumerate(lists):
        assert len({p.dtype for p in ps}) == 1
        indices = [index_of[p] for p in ps]
        assert indices == sorted(indices)
        limit = most if number else min(most, first)
        assert len(ps) == 1 or sum(p.nbytes for p in ps) <= limit


def test_a_bucket_goes_through_its_states_in_order(pools):
    def go(group):
        a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
        bucket, said = Bucket(0, [a, b], torch.zeros(4)), []

        def refused(call, *args):
            with pytest.raises(AssertionError):
                call(*args)

        refused(bucket.fill, a)  # before a pass
        refused(bucket.wait)
        bucket.start_pass()
        refused(bucket.start_pass)
        a.grad, b.grad = torch.ones(2) * group.rank, torch.ones(2)
        bucket.fill(a)
        refused(bucket.fill, a)  # twice
        refused(bucket.reduce, group, all_reduce_hook)  # b is missing
        bucket.fill(b)
        bucket.reduce(group, all_reduce_hook)
        refused(bucket.store, a)  # while it is reduced
        said.append(bucket.state)
        bucket.wait()
        return [*said, bucket.state], a.grad.tolist() + b.grad.tolist(), a.grad._base is not None

    expected = [State.REDUCING, State.IDLE], [0.5, 0.5, 1.0, 1.0], True
    assert pools[2](go) == [expected] * 2


def test_buckets_leave_in_order_whatever_order_gradients_come_in(pools):
    def go(group):
        parameters = [nn.Parameter(torch.ones(1)) for _ in range(3)]
        buckets = [Bucket(i, [p], torch.zeros(1)) for i, p in enumerate(parameters)]
        left = []

        def note(group, bucket):
            left.append(bucket.index)
            return all_reduce_hook(group, bucket)

        reducer = Reducer(buckets, group, note)
        reducer.start_pass()
        come = [2, 0, 1] if group.rank == 0 else [0, 2, 1]
        left_after = []
        for i in come:
            parameters[i].grad = torch.full((1,), float(i + group.rank))
            reducer.gradient_ready(parameters[i])
            left_after.append([*left])
        reducer.finish_pass()
        return left_after, [p.grad.item() for p in parameters]

    first, second = pools[2](go)
    assert first == ([[], [0], [0, 1, 2]], [0.5, 1.5, 2.5])
    assert second == ([[0], [0], [0, 1, 2]], [0.5, 1.5, 2.5])


def test_the_bucketed_rung_names_a_parameter_without_a_gradient_and_goes_on(pools):
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.one, self.other = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

        def forward(self, x, both):
            return self.one(x) + (self.other(x) if both else 0)

    def skip_and_go_on(group):
        model = BucketedDDP(TwoHeads(), group)
        x = share(group)[0]
        says = r"no gradient came for other\.bias, other\.weight: leave them out of the module"
        with pytest.raises(RuntimeError, match=says):
            model(x, False).sum().backward()
        model(x, True).sum().backward()  # no zero_grad: what the failed pass computed is dropped
        return model.module.one.weight.grad

    alone = nn.Linear(6, 3).double()
    alone(data()[0]).sum().backward()
    for found in pools[2](skip_and_go_on):
        torch.testing.assert_close(found, alone.weight.grad / 2)


def test_gradients_of_the_bucketed_rung_are_views_of_few_buffers(pools):
    def views(group):
        model = BucketedDDP(network(), group, bucket_bytes=700, first_bucket_bytes=100)
        for _ in range(2):
            model.zero_grad()
            loss_of(model, *share(group)).backward()
        return [
            [model.names[p] for p in bucket.parameters if p.grad._base is bucket.buffer]
            for bucket in model.reducer.buckets
        ]

    expected = [["4.bias"], ["4.weight", "2.bias"], ["2.weight", "0.bias"], ["0.weight"]]
    assert pools[2](views) == [expected] * 2


class Slope(nn.Module):
    """Gradients: x for `small`, the number of outputs for `large`, whose reduction takes long."""

    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.ones(1000, 1000))
        self.small = nn.Parameter(torch.ones(10))

    def forward(self, x):
        return self.small * x + self.large.sum()


WRAPPERS = {**RUNGS, "torch": nn.parallel.DistributedDataParallel}


@pytest.mark.parametrize(
    ("rung", "when"),
    [
        *((rung, "before forward") for rung in WRAPPERS),
        ("all options", "before backward"),
        ("torch", "before backward"),
    ],
)
def test_a_users_hook_sees_this_ranks_gradient_and_what_it_leaves_is_reduced(pools, rung, when):
    def train(group, rung, when):
        module = Slope()
        model = WRAPPERS[rung](module) if rung == "torch" else WRAPPERS[rung](module, group)
        x, seen = torch.ones(10) * (1 + group.rank), []

        def double(parameter):
            seen.append(parameter.grad[0].item())
            parameter.grad.mul_(2)

        def replace(parameter):
            parameter.grad = parameter.grad * 3

        for step in range(3):
            model.zero_grad()
            loss = None if when == "before forward" else model(x).sum()
            if step == 0:
                module.small.register_post_accumulate_grad_hook(double)
                module.large.register_post_accumulate_grad_hook(replace)
            loss = model(x).sum() if loss is None else loss
            loss.backward()
        return seen, module.small.grad.unique().tolist(), module.large.grad.unique().tolist()

    first, second = pools[2](train, rung, when)
    assert first == ([1.0] * 3, [3.0], [30.0])
    assert second == ([2.0] * 3, [3.0], [30.0])


# ------------------------------------------------------------------ how weights lie in memory


class Strided(nn.Module):
    """A channels_last convolution and a transposed weight: dense, but not in row order."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(5, 4).t())

    def forward(self, x):
        return self.conv(x).mean((2, 3)) @ self.turned


def train_fused(model, x):
    """Weights after three steps, and the strides of each weight and its gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    strides = [(p.stride(), p.grad.stride()) for p in model.parameters()]
    return [p.detach().clone() for p in model.parameters()], strides


@pytest.mark.parametrize("rung", RUNGS)
def test_gradients_have_their_parameters_strides_so_that_fused_optimizers_fit(pools, rung):
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))

    def train(group, rung, x):
        return train_fused(RUNGS[rung](Strided(group.rank), group), x.chunk(2)[group.rank])

    alone, _ = train_fused(Strided(), x)
    for weights, strides in pools[2](train, rung, x):
        torch.testing.assert_close(weights, alone, rtol=1e-4, atol=1e-5)
        assert all(weight == gradient for weight, gradient in strides)


@pytest.mark.parametrize("rung", RUNGS)
def test_ranks_whose_weights_have_different_strides_are_told_when_they_wrap(rung):
    def wrap(group, rung):
        formats = torch.contiguous_format, torch.channels_last
        RUNGS[rung](nn.Conv2d(3, 4, 2).to(memory_format=formats[group.rank]), group)

    says = r"weight float32\[4, 3, 2, 2\] with strides \(12, 1, 6, 3\) on rank 1, weight float32"
    with pytest.raises(RankError, match=says):
        launch_with_clock(wrap, rung, ranks=2, timeout=30)


# ------------------------------------------------------------------ half precision


def mean_through(rung, group, gradient, dtype):
    """gradient[n] of each rank, in dtype, averaged by a rung."""

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(len(gradient), dtype=dtype))

        def forward(self, x):
            return (self.w * x).sum()

    module = Line()
    model = module if rung == "by hand" else RUNGS[rung](module, group)
    model(gradient.to(dtype)).backward()
    if rung == "by hand":
        average_gradients(module, group)
    return module.w.grad


@pytest.mark.parametrize(("ranks", "large"), [(2, 40_000.0), (4, 30_000.0)])
@pytest.mark.parametrize("rung", ["by hand", *RUNGS])
def test_means_in_float16_neither_overflow_nor_vanish(pools, rung, ranks, large):
    """Their sum is infinite; and what is small would vanish if it were divided by N first."""

    def mean(group, rung, gradient):
        found = mean_through(rung, group, gradient, torch.float16)
        return found.dtype, found.tolist()

    tiny = 1.2e-7 * ranks**0.5
    for dtype, found in pools[ranks](mean, rung, torch.tensor([large, -large, tiny])):
        assert dtype == torch.float16
        assert found[:2] == pytest.approx([large, -large], rel=1e-3)
        assert found[2] > 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_mean_in_bfloat16_is_off_by_at_most_a_256th_for_each_rank(pools, rung, ranks):
    def gradient(rank):
        x = torch.randn(4000, generator=torch.Generator().manual_seed(rank))
        return x.to(torch.bfloat16)

    def mean(group, rung):
        return mean_through(rung, group, gradient(group.rank), torch.bfloat16)

    exact = torch.stack([gradient(rank).double() for rank in range(ranks)])
    magnitudes = exact.abs().mean(0)
    for found in pools[ranks](mean, rung):
        error = (found.double() - exact.mean(0)).abs()
        assert found.dtype == torch.bfloat16
        assert (error <= ranks / 256 * magnitudes).all()
        assert error.max() > 0, "it does round"


# ------------------------------------------------------------------ at home in torch

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
from distributed.bucketed_ddp import BucketedDDP
from distributed.ddp import DistributedDataParallel
from distributed.overlapped_ddp import OverlappedDDP

if len(sys.argv) > 1:
    meet = f"file://{sys.argv[1]}"
    dist.init_process_group("gloo", init_method=meet, rank=int(sys.argv[2]), world_size=2)
else:
    dist.init_process_group()
for wrap in (OverlappedDDP, BucketedDDP, DistributedDataParallel):
    torch.manual_seed(dist.get_rank())
    model = wrap(torch.nn.Linear(2, 1))
    assert model.group.local_size == 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 2), dist.get_rank() + 1.0)).sum().backward()
        assert model.module.weight.grad.tolist() == [[6.0, 6.0]]
        optimizer.step()
        schedule.step()
    weight = model.module.weight.detach()
    others = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(others, weight)
    assert torch.equal(*others)
os.write(1, b"trained\\n")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "init_process_group"])
def test_without_a_group_it_is_the_default_process_group(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "code")}
    start = [sys.executable]
    calls = [[*start, str(program), str(tmp_path / "meet"), str(rank)] for rank in range(2)]
    if how == "torchrun":
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        calls = [[*start, str(program)]]
    begun = [
        subprocess.Popen(call, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for call in calls
    ]
    said = [process.communicate(timeout=120)[0].decode() for process in begun]
    assert "".join(said).count("trained") == 2, said
    assert [process.returncode for process in begun] == [0] * len(begun)


def test_without_a_process_group_it_says_what_is_missing():
    assert not dist.is_initialized()
    for wrap in (Group.default, *(lambda w=w: w(nn.Linear(1, 1)) for w in RUNGS.values())):
        with pytest.raises(RuntimeError, match=r"^no process group: call .*init_process_group"):
            wrap()


def test_the_default_group_is_that_of_all_ranks_also_within_launch(pools):
    def who(group):
        default = Group.default()
        return default.rank, default.size, default.device, default.all_reduce(torch.ones(1)).item()

    cpu = torch.device("cpu")
    assert pools[3](who) == [(rank, 3, cpu, 3.0) for rank in range(3)]


def test_the_default_group_is_on_the_current_gpu_under_nccl():
    def where(_):  # in a rank of its own, which ends with what is put in place there
        torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 1
        found = []
        for config in ("cpu:gloo,cuda:nccl", "cuda:nccl", "cpu:gloo,cuda:gloo"):
            dist.get_backend_config = lambda config=config: config
            Group.__init__, kept = (lambda self, device, **_: found.append(device)), Group.__init__
            try:
                Group.default()
            finally:
                Group.__init__ = kept
        return [str(device) for device in found]

    assert launch(where, ranks=1, device="cpu") == [["cuda:1", "cuda:1", "cpu"]]


def test_a_rung_takes_a_transformer(pools):
    def losses(group, rung):
        model = RUNGS[rung](make_model(Config(d=32, layers=2)), group)
        batch = torch.randint(90, (4, 17), generator=torch.Generator().manual_seed(group.rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    first, *rest = (pools[2](losses, rung) for rung in RUNGS)
    for found in rest:
        assert [pytest.approx(a, rel=1e-5) for a in first] == found
