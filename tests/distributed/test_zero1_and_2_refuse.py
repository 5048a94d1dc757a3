"""What a user's code does behind a ZeRO optimizer's back: it is followed, or refused in a line."""

import copy
import pickle
from functools import partial

import pytest
import torch
from tests.rows import covering
from torch import nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, vector_to_parameters

from distributed.ddp import DistributedDataParallel
from distributed.runtime.report import RankError
from distributed.zero import Zero1, Zero2, Zero3
from distributed.zero.flat_unit import MOVED
from distributed.zero.guards import REFUSED
from distributed.zero.reduce_in_backward import REPLACED
from distributed.zero.sharding_plan import check_groups, check_module, check_optimizer

WHOLE = {"zero1": Zero1, "zero2": Zero2}  # every rank has the whole parameters
STAGES = {**WHOLE, "zero3": partial(Zero3, blocks=[])}
each_with_whole = pytest.mark.parametrize("stage", WHOLE)
SPREAD = REFUSED["spread"]
every_stage = pytest.mark.parametrize("stage", STAGES)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 1))


X = torch.linspace(-1, 1, 36).view(2, 2, 3, 3)


def backward(model, dtype=torch.float32):
    model(X.to(dtype)).square().mean().backward()


def refusal(group, stage, meddle, again):
    """What the optimizer says after `meddle`, at a step or already in the backward pass."""
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    backward(model)
    zero.step()
    before = [value.clone() for _, value in zero.full_parameters()]
    dtype = meddle(model) or torch.float32

    def step():
        backward(model, dtype)
        zero.step()

    with pytest.raises(RuntimeError) as said:
        step()
    if again:
        return str(said.value)
    units = [value.clone() for _, value in list_of(zero)]
    assert all(torch.equal(a, b) for a, b in zip(before, units, strict=True)), "nothing is updated"
    return str(said.value)


def list_of(zero):
    """The parameters as shards have them, without asking whether they are still in place."""
    for unit in zero.units:
        full = unit.all_gather(torch.empty(unit.layout.size, dtype=unit.layout.dtype))
        for parameter, view in unit.layout.views(full).items():
            yield zero.names[parameter], view


def to_channels_last(model):
    model.to(memory_format=torch.channels_last)


def to_bf16(model):
    model.to(torch.bfloat16)
    return torch.bfloat16


def clamp_data(model):
    model[2].weight.data = model[2].weight.data.clamp(-0.1, 0.1)


def from_vector(model):
    vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), model.parameters())


@each_with_whole
@pytest.mark.parametrize("meddle", [to_channels_last, clamp_data, from_vector])
def test_replaced_storage_is_refused_before_anything_is_updated(pools, stage, meddle):
    for said in pools[2](refusal, stage, meddle, False):
        name = "2.weight" if meddle is clamp_data else "2.bias"
        assert said.partition(": ")[2] == MOVED.partition(": ")[2]
        assert said.startswith(("0.weight", name, "2.weight"))


@each_with_whole
def test_another_dtype_after_wrapping_is_refused_by_us_or_by_autograd(pools, stage):
    for said in pools[2](refusal, stage, to_bf16, True):
        assert "its storage was replaced" in said or "dtype" in said


def new_parameter(model):
    model[2].weight = nn.Parameter(torch.ones(model[2].weight.shape))


def new_layer(model):
    model.append(nn.Linear(1, 1))


@every_stage
@pytest.mark.parametrize(("meddle", "name"), [(new_parameter, "2.weight"), (new_layer, "3.weight")])
def test_another_parameter_than_was_sharded_is_refused(pools, stage, meddle, name):
    for said in pools[2](refusal, stage, meddle, True):
        assert said == REFUSED["parameter"].format(name=name)


def unfrozen(group, stage):
    model = make_model()
    model[0].requires_grad_(False)
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    model[0].requires_grad_(True)
    backward(model)
    zero.step()


@every_stage
def test_unfreezing_after_wrapping_is_refused(pools, stage):
    with pytest.raises(RankError, match=r"0\.weight requires a gradient now, but was frozen"):
        pools[2](unfrozen, stage)


def called_with_other_tensors(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    others = {n: torch.ones(p.shape, requires_grad=True) for n, p in model.named_parameters()}
    functional_call(model, others, (X,)).sum().backward()
    zero.step()


@every_stage
def test_a_step_after_functional_call_says_whose_gradients_are_missing(pools, stage):
    with pytest.raises(RankError, match=r"a parameter of the module itself.*functional_call"):
        pools[2](called_with_other_tensors, stage)


def frozen_later(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.AdamW, group, lr=0.1)
    backward(model)
    zero.step()
    model[0].requires_grad_(False)
    backward(model)
    zero.step()


@every_stage
def test_freezing_after_wrapping_is_refused(pools, stage):
    """Its gradient would be zero, and not none: momentum and weight decay would move it on."""
    with pytest.raises(RankError, match=r"0\.weight requires no gradient now, but was trained"):
        pools[2](frozen_later, stage)


# --- what is written in place is followed


def weights_after(group, stage, dtypes, write):
    """One step with lr=0 after `write(model)`: it must not be undone; and what `zero` has then."""
    model = make_model()
    zero = WHOLE[stage](model, torch.optim.SGD, group, lr=0.0, **dtypes)
    write(model)
    expected = [p.detach().clone() for p in model.parameters()]
    saved = copy.deepcopy(zero.state_dict())
    zero.load_state_dict(saved)
    backward(model, model[2].weight.dtype)
    zero.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected, strict=True))
    found = dict(zero.full_parameters())
    kept = [found[name].to(p.dtype) for name, p in model.named_parameters()]
    return [torch.equal(a, b) for a, b in zip(kept, expected, strict=True)]


def load_all(model):
    model.load_state_dict({k: torch.full_like(v, 5.0) for k, v in model.state_dict().items()})


def load_a_part(model):
    model[2].load_state_dict({k: v + 1 for k, v in model[2].state_dict().items()})


def clamp_in_place(model):
    model[2].weight.data.clamp_(-0.05, 0.05)


def draw_again(model):
    torch.manual_seed(7)
    nn.init.normal_(model[0].weight)


@each_with_whole
@pytest.mark.parametrize("dtypes", [{}, {"param_dtype": torch.bfloat16}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("write", [load_all, load_a_part, clamp_in_place, draw_again])
def test_what_is_loaded_or_written_in_place_stays(pools, stage, dtypes, write):
    for same in pools[2](weights_after, stage, dtypes, write):
        assert all(same)


def digits_kept(group, stage):
    """Of what nobody wrote, a step with lr=0 keeps the digits that bf16 has not."""
    model = make_model()
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    zero = WHOLE[stage](model, torch.optim.SGD, group, lr=0.0, param_dtype=torch.bfloat16)
    with torch.no_grad():
        model[2].weight[0, 3] = 4.0
    expected["2.weight"][0, 3] = 4.0
    backward(model, torch.bfloat16)
    zero.step()
    found = {name: value.clone() for name, value in zero.full_parameters()}
    return all(torch.equal(found[name], expected[name]) for name in expected)


@each_with_whole
def test_elements_that_nobody_wrote_keep_their_digits(pools, stage):
    assert pools[2](digits_kept, stage) == [True] * 2


def with_another_gradient(group, stage, change):
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    zero = WHOLE[stage](model, torch.optim.SGD, group, lr=1.0)
    model(torch.ones(1, 2)).sum().backward()
    change(model.weight)
    zero.step()
    return model.weight.tolist()


def scale_in_place(weight):
    weight.grad *= 0.5


def replace(weight):
    weight.grad = weight.grad * 0.5


def remove(weight):
    weight.grad = None


@pytest.mark.parametrize(
    ("change", "expected"), [(scale_in_place, -0.5), (replace, -0.5), (remove, 0.0)]
)
def test_zero_1_takes_the_gradient_that_is_there(pools, change, expected):
    assert pools[2](with_another_gradient, "zero1", change) == [[[expected] * 2]] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [(scale_in_place, SPREAD), (replace, SPREAD), (remove, REPLACED)],
)
def test_zero_2_says_that_its_gradient_is_spread(pools, change, reason):
    message = reason.format(name="weight")
    with pytest.raises(RankError, match=message.replace("(", r"\(").replace(")", r"\)")):
        pools[2](with_another_gradient, "zero2", change)


def removed_between_passes(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    backward(model)
    model.zero_grad()  # of the module: the shards know nothing of it
    backward(model)
    zero.step()


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_zero_grad_of_the_module_between_passes_is_refused(pools, stage):
    with pytest.raises(RankError, match=r"grad was replaced or removed after it was reduced"):
        pools[2](removed_between_passes, stage)


# --- clipping


CLIPS = {
    "norm": lambda parameters: clip_grad_norm_(parameters, 1.0),
    "norm, foreach": lambda parameters: clip_grad_norm_(parameters, 1.0, foreach=True),
    "value": lambda parameters: clip_grad_value_(parameters, 1.0),
    "value, foreach": lambda parameters: clip_grad_value_(parameters, 1.0, foreach=True),
    "total norm": lambda parameters: get_total_norm([p.grad for p in parameters]),
}


def clipped_by_torch(group, stage, clip):
    model = make_model()
    STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    for _ in range(2):  # also when there are gradients of an earlier pass
        backward(model)
    with pytest.raises(RuntimeError) as said:
        CLIPS[clip]([*model.parameters()])
    return str(said.value)


@every_stage
@pytest.mark.parametrize("clip", CLIPS)
def test_torchs_clipping_cannot_do_nothing_or_something_wrong(pools, stage, clip):
    reason = REFUSED["clipping"] if stage == "zero1" else SPREAD
    assert pools[2](clipped_by_torch, stage, clip) == [reason] * 2


def clipped_after_no_sync(group, stage, clip):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    for _ in range(2):
        with zero.no_sync():
            backward(model)
    with pytest.raises(RuntimeError) as said:
        CLIPS[clip]([*model.parameters()])
    return str(said.value)


@every_stage
@pytest.mark.parametrize("clip", ["norm", "value"])
def test_nor_what_a_rank_has_after_a_last_pass_that_sends_nothing(pools, stage, clip):
    assert pools[2](clipped_after_no_sync, stage, clip) == [REFUSED["clipping"]] * 2


def whole_gradients(group, stage):
    torch.manual_seed(3)
    model = make_model()
    expected = copy.deepcopy(model)
    x = torch.randn(2, 4, 2, 3, 3)
    expected(x.flatten(0, 1)).square().mean().backward()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
    model(x[group.rank]).square().mean().backward()
    described = [(p.grad.shape == p.shape, "Gradient" in repr(type(p.grad))) for p in
                 model.parameters()]  # fmt: skip
    assert all(a and b for a, b in described)
    assert stage == "zero1" or not sum(p.grad.nbytes for p in model.parameters()), "in shards"
    found = {name: value.clone() for name, value in zero.full_gradients()}
    for name, p in expected.named_parameters():
        torch.testing.assert_close(found[name], p.grad)
    norm = zero.clip_grad_norm_(0.1)
    clipped = {name: value.clone() for name, value in zero.full_gradients()}
    assert all(p.grad is None or stage != "zero1" for p in model.parameters())
    zero.step()
    assert all(p.grad is None for p in model.parameters())
    for name, p in expected.named_parameters():
        torch.testing.assert_close(clipped[name], p.grad * 0.1 / norm, rtol=1e-4, atol=1e-7)
    return sorted(found) == sorted(name for name, _ in expected.named_parameters())


@every_stage
def test_full_gradients_are_the_mean_and_what_the_step_applies(pools, stage):
    assert pools[2](whole_gradients, stage) == [True] * 2


def clipped_at_a_large_norm(group, stage):
    """How much a parameter's gradient changes if it's clipped at twice its norm, and at half."""
    changes = []
    for factor in (2.0, 0.5):
        model = make_model()
        zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
        backward(model)
        before = {name: gradient.clone() for name, gradient in zero.full_gradients()}
        norm = torch.cat([gradient.flatten() for gradient in before.values()]).norm()
        zero.clip_grad_norm_(factor * norm.item())
        after = dict(zero.full_gradients())["2.weight"]
        changes.append((after / before["2.weight"]).mean().item())
    return changes


@every_stage
def test_clipping_scales_large_gradients_down_and_no_small_ones_up(pools, stage):
    for changes in pools[2](clipped_at_a_large_norm, stage):
        assert changes == pytest.approx([1.0, 0.5], rel=1e-4)


# --- other wrappers, copies, and what is given


def wrapped_twice(group, first, second):
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    makers = {"ddp": lambda: DistributedDataParallel(model, group)}
    for name, stage in STAGES.items():
        makers[name] = partial(stage, model, torch.optim.SGD, group, lr=0.1)
    makers[first]()
    if first != "zero3":
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    makers[second]()


@covering(first=["ddp", *STAGES], second=["ddp", *STAGES])
def test_a_module_has_one_wrapper(pools, first, second):
    owner = "DistributedDataParallel" if first == "ddp" else first.title()
    with pytest.raises(RankError, match=rf"0\.weight is in a {owner} already: use that one"):
        pools[2](wrapped_twice, first, second)


def in_torchs_ddp(group, stage):
    with pytest.raises(ValueError, match="is in a DistributedDataParallel already"):
        WHOLE[stage](
            nn.parallel.DistributedDataParallel(make_model()), torch.optim.SGD, group, lr=0.1
        )


@each_with_whole
def test_torchs_ddp_around_the_module_is_refused(pools, stage):
    pools[2](in_torchs_ddp, stage)


def copied(group, stage):
    zero = STAGES[stage](make_model(), torch.optim.SGD, group, lr=0.1)
    said = []
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled") as error:
            attempt(zero)
        said.append(str(error.value))
    return said


@every_stage
def test_an_optimizer_that_is_one_of_several_ranks_cannot_be_copied(pools, stage):
    for said in pools[2](copied, stage):
        assert not any("\n" in line for line in said)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def copied_module(group, stage, make_copy):
    """A copy of the module is a plain module with today's weights, and neither moves the other."""
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    copied = make_copy(model)
    before = [p.detach().clone() for p in model.parameters()]
    torch.testing.assert_close(copied(X), model(X))
    backward(copied)
    assert all(p.grad is None for p in model.parameters())
    backward(model)
    zero.step()
    for was, p, its_copy in zip(before, model.parameters(), copied.parameters(), strict=True):
        assert not torch.equal(was, p)
        assert torch.equal(was, its_copy)
        assert type(its_copy.grad) is torch.Tensor
    DistributedDataParallel(copied, group)(X).sum().backward()
    nn.parallel.DistributedDataParallel(copy.deepcopy(model))(X).sum().backward()


@each_with_whole
@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickled])
def test_a_copy_of_the_module_is_plain(pools, stage, make_copy):
    pools[2](copied_module, stage, make_copy)


def averaged_model(group, stage):
    model = make_model()
    zero = STAGES[stage](model, torch.optim.SGD, group, lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    seen = []
    for _ in range(3):
        backward(model)
        zero.step()
        average.update_parameters(model)
        seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    found = nn.utils.parameters_to_vector(average.module.parameters())
    torch.testing.assert_close(found, torch.stack(seen).mean(0))


@each_with_whole
def test_an_averaged_model_is_the_mean_of_the_weights(pools, stage):
    pools[2](averaged_model, stage)


class LARS(torch.optim.SGD):
    """Looks at the norms of whole parameters."""


def test_a_class_derived_from_an_elementwise_one_must_not_be_cut_up():
    with pytest.raises(ValueError, match=r"LARS may look at a whole parameter.*'parameter'"):
        check_optimizer(LARS, "flat")
    check_optimizer(LARS, "parameter")
    check_optimizer(torch.optim.SGD, "flat")


@pytest.mark.parametrize("given", [list, lambda p: [{"lr": 0.1}], lambda p: [("name", *p)]])
def test_groups_that_are_none_are_refused_in_a_line(given):
    model = nn.Linear(2, 2)
    names = {p: name for name, p in model.named_parameters()}
    with pytest.raises(TypeError, match=r"param_groups: \w+ is no group: give dicts") as said:
        check_groups(names, given(model.parameters()))
    assert "\n" not in str(said.value)


def embedding_and_head():
    return nn.ModuleDict({"emb": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})


def share_data(model):
    model["head"].weight.data = model["emb"].weight.data


def share_in_a_new_parameter(model):
    model["head"].weight = nn.Parameter(model["emb"].weight.data)


def share_the_transposed(model):
    model["head"].weight = nn.Parameter(model["emb"].weight.data.t())


def share_with_a_frozen_one(model):
    share_data(model)
    model["emb"].requires_grad_(False)


def share_with_a_buffer(model):
    model["head"].register_buffer("weight_buffer", model["emb"].weight.data)


@pytest.mark.parametrize(
    "share",
    [share_data, share_in_a_new_parameter, share_the_transposed, share_with_a_frozen_one,
     share_with_a_buffer],
)  # fmt: skip
def test_weights_that_share_only_memory_are_refused_by_name(share):
    """Sharding would copy each, and from then on two weights would train instead of one."""
    model = embedding_and_head()
    share(model)
    with pytest.raises(ValueError, match=r"share memory but are different tensors") as said:
        check_module(model)
    assert "emb.weight" in str(said.value)
    assert "head.weight" in str(said.value)


def tie(model):
    model["head"].weight = model["emb"].weight


def one_storage(model):
    storage = torch.zeros(40)
    model["emb"].weight.data = storage[:20].view(5, 4)
    model["head"].weight.data = storage[20:].view(5, 4)


def share_what_is_frozen(model):
    share_data(model)
    model.requires_grad_(False)


@pytest.mark.parametrize("change", [tie, one_storage, share_what_is_frozen])
def test_tied_weights_and_parts_of_one_storage_are_fine(change):
    model = embedding_and_head()
    change(model)
    check_module(model)


def test_a_complex_parameter_is_refused_by_name_unless_it_is_frozen():
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"module: weight is torch\.complex64.*view_as_real"):
        check_module(model)
    check_module(model.requires_grad_(False))


def test_every_refusal_is_one_line():
    assert all("\n" not in line for line in REFUSED.values())
    check_module(nn.Linear(1, 1))


@pytest.mark.parametrize("stage", STAGES)
def test_settings_that_the_optimizer_refuses_leave_the_module_as_it_was(pools, stage):
    def refuse_and_try_again(group):
        model, x = nn.Linear(3, 2), torch.ones(1, 3)
        expected = model(x).tolist()
        with pytest.raises(ValueError, match="Invalid learning rate: -1"):
            STAGES[stage](model, torch.optim.SGD, group, lr=-1.0)
        assert model(x).tolist() == expected
        model(x).sum().backward()
        model.zero_grad()
        zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0)
        model(x).sum().backward()
        zero.step()
        return model(x).tolist() != expected

    assert pools[2](refuse_and_try_again) == [True] * 2


@pytest.mark.parametrize("dtype", [torch.int32, "bf16"])
@pytest.mark.parametrize("name", ["param_dtype", "reduce_dtype"])
def test_a_dtype_that_is_none_is_refused_by_the_name_of_its_argument(pools, name, dtype):
    def refuse(group):
        with pytest.raises(ValueError, match=f"^{name}={dtype!r}: give a dtype of floats"):
            Zero1(nn.Linear(2, 2), torch.optim.SGD, group, lr=1.0, **{name: dtype})

    pools[1](refuse)


@each_with_whole
def test_what_is_written_into_parameters_of_16_bits_is_what_is_saved(pools, stage):
    def written(group):
        model = nn.Linear(3, 2)
        zero = STAGES[stage](model, torch.optim.SGD, group, lr=1.0, param_dtype=torch.bfloat16)
        model(torch.ones(1, 3).bfloat16()).sum().backward()
        zero.step()
        model.load_state_dict({"weight": torch.full((2, 3), 0.5), "bias": torch.full((2,), 0.25)})
        return {name: tensor.tolist() for name, tensor in zero.full_parameters()}

    for found in pools[2](written):
        assert found == {"weight": [[0.5] * 3] * 2, "bias": [0.25] * 2}
