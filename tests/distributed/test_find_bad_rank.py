"""A bad step: its rank and parameter are named, before and although all gradients are averaged."""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from distributed.find_bad_rank import (
    GradientWatch,
    Suspect,
    extra_bytes,
    first_bad_output,
    flip,
    gather,
    main,
    odd_replicas,
    suspects,
)
from playground.lab.one_host import torchrun

NAN, INF = math.nan, math.inf


class Root(nn.Module):
    """Its gradient at 0 is infinite, and NaN after a multiplication by 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x.sqrt(), 0)


def make(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 1))


def watch_one_step(model: nn.Module, *batches: torch.Tensor) -> tuple[GradientWatch, list[float]]:
    watch = GradientWatch(model)
    for x in batches:
        loss = model(x).square().mean()
        loss.backward()
    return watch, watch.report(loss).tolist()


def test_a_row_and_a_bit_are_found_and_a_step_sends_what_was_predicted():
    main()
    assert [extra_bytes(ranks) for ranks in (1, 4, 64)] == [0, 36, 756]


def test_two_ranks_cannot_tell_which_replica_is_odd():
    with pytest.raises(ValueError, match="ranks=2: 3 or more"):
        main(ranks=2)


# --- What a rank reports


def test_the_norm_is_that_of_all_gradients():
    model, x = make(), torch.randn(5, 4)
    _, (loss, norm, number) = watch_one_step(model, x)
    own = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert norm == pytest.approx(own.norm().item())
    assert loss == pytest.approx(model(x).square().mean().item())
    assert number == -1


def test_the_parameter_is_the_first_one_in_the_backward_pass():
    model = make()
    model[1].register_full_backward_hook(lambda *_: (torch.full((2, 4), NAN),))
    watch, (loss, norm, number) = watch_one_step(model, torch.ones(2, 4))
    assert math.isfinite(loss)
    assert math.isnan(norm)
    assert watch.names[int(number)].startswith("0.")  # what comes before it in the backward pass


def test_a_gradient_can_go_bad_although_the_loss_is_finite():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), Root(), nn.Linear(2, 1))
    watch, (loss, _, number) = watch_one_step(model, torch.zeros(1, 2))
    assert math.isfinite(loss)
    assert watch.names[int(number)] == "0.weight"


def test_a_micro_batch_is_found_although_others_follow():
    bad = torch.ones(2, 4)
    bad[1, 0] = INF
    _, (loss, norm, number) = watch_one_step(make(), bad, torch.ones(2, 4))
    assert math.isfinite(loss)
    assert math.isnan(norm)
    assert number >= 0


def test_of_micro_batches_the_largest_norm_is_kept():
    large, small = torch.full((2, 4), 30.0), torch.ones(2, 4)
    alone = watch_one_step(make(), large)[1]
    both = watch_one_step(make(), large, small)[1]
    assert both[1] >= alone[1]


def test_the_next_step_begins_without_the_last_one():
    model = make()
    watch, (_, norm, _) = watch_one_step(model, torch.full((2, 4), NAN))
    assert math.isnan(norm)
    model.zero_grad()
    loss = model(torch.ones(2, 4)).mean()
    loss.backward()
    assert torch.isfinite(watch.report(loss)).all()


def test_parameters_without_a_gradient_are_left_out():
    model = make()
    model[0].requires_grad_(False)
    watch, (_, norm, number) = watch_one_step(model, torch.ones(2, 4))
    assert watch.names == ["2.weight", "2.bias", "3.weight", "3.bias"]
    assert norm > 0
    assert number == -1


def test_a_step_that_computed_no_gradient_has_a_norm_of_zero():
    assert GradientWatch(make()).report(torch.tensor(2.0)).tolist() == [2, 0, -1]


def test_a_tied_weight_is_one_parameter():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    watch, (_, norm, _) = watch_one_step(model, torch.ones(2, 3))
    assert watch.names == ["0.weight"]
    assert norm == pytest.approx(model[0].weight.grad.norm().item())


# --- Under wrappers that average


def bad_step(wrapper: str, plant: bool) -> tuple[list[Suspect], bool]:
    """Rank 1's row has an inf in step 1: what is found, and whether averaged gradients are bad."""
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), make()
    if wrapper == "DDP":
        wrapped: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        wrapped = model
    watch, found = GradientWatch(model), []
    for step in range(3):
        x = torch.ones(2, 4) * (1 + rank)
        if plant and (rank, step) == (1, 1):
            x[1, 2] = INF
        wrapped.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        found.append(suspects(gather(watch.report(loss)), watch.names))
        if step == 1:
            bad = not all(p.grad.isfinite().all() for p in model.parameters())
    assert found[0] == found[2] == []
    return found[1], bad


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_every_rank_learns_whose_step_it_was_although_all_gradients_are_bad(wrapper):
    for found, bad in torchrun(bad_step, wrapper, True, ranks=2):
        assert [one.rank for one in found] == [1]
        assert found[0].parameter == "0.weight"
        assert math.isfinite(found[0].loss)  # tanh(inf) is 1, but its gradient times inf is NaN
        assert bad


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_without_a_bad_row_no_rank_is_suspected(wrapper):
    assert torchrun(bad_step, wrapper, False, ranks=2) == [([], False)] * 2


# --- Who is suspected


@pytest.mark.parametrize(
    ("row", "suspected"),
    [
        ([2.0, 1.5, -1], False),
        ([2.0, 200.0, -1], True),
        ([NAN, NAN, 1], True),
        ([2.0, NAN, 0], True),
        ([INF, 1.0, -1], True),
    ],
)
def test_a_rank_is_suspected_for_a_number_that_is_not_finite_or_far_too_large(row, suspected):
    found = suspects(torch.tensor([[2.0, 1.0, -1], row, [2.1, 1.2, -1]]), ["a", "b"])
    assert [one.rank for one in found] == [1] * suspected
    if suspected:
        assert found[0].parameter == ("" if row[2] < 0 else "ab"[int(row[2])])


def test_if_all_ranks_are_bad_all_are_named():
    found = suspects(torch.tensor([[NAN, NAN, 0.0]] * 3), ["a"])
    assert [one.rank for one in found] == [0, 1, 2]


# --- Where it began


def test_the_first_module_whose_output_is_not_finite_is_named():
    model, x = make(), torch.ones(1, 4)
    assert first_bad_output(model, x) is None
    with torch.no_grad():
        model[2].weight[0, 0] = INF
    assert first_bad_output(model, x) == "2"
    assert first_bad_output(model, x * NAN) == "the input"
    assert not model[2]._forward_hooks


def test_tokens_are_always_finite():
    assert first_bad_output(nn.Embedding(5, 2), torch.tensor([[1, 2]])) is None


# --- Replicas


def odd(models: list[nn.Module]) -> list[tuple[int, str]]:
    """`odd_replicas` of models that ranks would have."""
    rows: list[torch.Tensor] = []
    for model in models:
        odd_replicas(model, lambda own: rows.append(own) or own[None])
    return odd_replicas(models[0], lambda own: torch.stack(rows))


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    st.integers(0, 2),
    st.integers(0, 11),
    st.data(),
)
def test_any_flipped_bit_is_found(dtype, rank, place, data):
    models = [make().to(dtype) for _ in range(3)]
    assert odd(models) == []
    size = models[0][2].weight.element_size()
    data_bytes = models[rank][2].weight.detach().view(-1).view(torch.uint8)
    at = place * size + data.draw(st.integers(0, size - 1))
    data_bytes[at] ^= 1 << data.draw(st.integers(0, 7))
    assert odd(models) == [(rank, "2.weight")]


def test_buffers_and_single_numbers_are_compared_too():
    models = [nn.BatchNorm1d(2) for _ in range(3)]
    models[2].num_batches_tracked += 1
    assert odd(models) == [(2, "num_batches_tracked")]


def test_the_highest_bit_of_the_exponent_multiplies_a_small_number():
    weight = torch.tensor([0.5, 0.25])
    flip(weight, 1)
    assert weight.tolist() == [0.5, 0.25 * 2.0**128]


def test_the_report_of_a_gpu_does_not_wait():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = make().cuda()
    watch, _ = watch_one_step(model, torch.ones(2, 4, device="cuda"))
    loss = model(torch.ones(2, 4, device="cuda")).mean()
    loss.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        watch.report(loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
