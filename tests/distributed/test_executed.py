"""Plans for PyTorch against the very text that is handed out, executed in a fake world."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from distributed.model_states import RECIPES
from distributed.planner.hardware import GPUS
from distributed.planner.job import RECIPE, REDUCED_IN_FP32, Job, cluster_of, option
from distributed.planner.memory import held, sent
from distributed.planner.shapes import CHECKPOINTS, PRESETS, Experts, Latent, Model
from recipes.executed import Block, Transformer, execute, world_of

SEVEN = PRESETS["llama-2-7b"]
SHALLOW = SEVEN._replace(layers=4, vocab_size=4096)  # of a small vocabulary, so that blocks count
IN_FP32 = "fp32, Adam"
ROWS = [
    ("ZeRO-1", IN_FP32, "selective"),
    ("ZeRO-3", RECIPE, "none"),
    ("HSDP", RECIPE, "selective"),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ("DDP", RECIPE, "none"),
            ("ZeRO-2", RECIPE, "full"),
            ("ZeRO-3", IN_FP32, "full"),
        )
    ),
]
EVERY = [
    (name, recipe, checkpoint, model, gpus)
    for model, gpus in (("llama-2-7b", 8), ("llama-2-13b", 16), ("llama-2-70b", 64))
    for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP")
    for recipe in (RECIPE, IN_FP32)
    for checkpoint in CHECKPOINTS
]


def compare(name, recipe, checkpoint, model, gpus, accumulate=1, context=2048):
    job = Job(model, 1, context, accumulate, checkpoint, RECIPES[recipe])
    per_host = 4 if gpus == 8 and name == "HSDP" else 8
    cluster = cluster_of(GPUS["h100"], gpus, per_host, speed=4e14)
    found = execute(option(job, name, cluster, 1e15), job, cluster)
    planned = held(job, name, cluster, checkpoint)
    assert sum(planned.values()) == pytest.approx(found.held, rel=0.05), (planned, found.memory)
    # Buckets are padded to eight bytes, and an optimizer's broadcast leaves out nothing of any size
    assert found.sent == pytest.approx(sent(job, name, cluster), rel=1e-3)
    return found


@pytest.mark.parametrize(("name", "recipe", "checkpoint"), ROWS)
def test_what_is_handed_out_holds_and_sends_what_was_planned(name, recipe, checkpoint):
    compare(name, recipe, checkpoint, SHALLOW, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe", "checkpoint", "model", "gpus"), EVERY)
def test_all_strategies_at_full_width_hold_and_send_what_was_planned(
    name, recipe, checkpoint, model, gpus
):
    compare(name, recipe, checkpoint, PRESETS[model]._replace(layers=24), gpus)


def test_scores_of_a_large_vocabulary_have_twelve_bytes_each_in_the_loss():
    """Not ten: the gradient of a logarithm is there beside that of its score."""
    many = PRESETS["llama-3-8b"]._replace(layers=2)
    job = Job(many, 2, 8192, 1, "none", RECIPES[RECIPE])
    cluster = cluster_of(GPUS["h100"], 8, speed=4e14)
    found = execute(option(job, "ZeRO-3", cluster, 1e15), job, cluster)
    assert found.held > 12 * job.tokens * many.vocab_size
    assert sum(held(job, "ZeRO-3", cluster, "none").values()) == pytest.approx(found.held, rel=0.05)


def test_shards_of_gradients_stay_between_micro_batches_and_each_is_sent():
    one, two = (compare("ZeRO-3", RECIPE, "none", SHALLOW, 8, n) for n in (1, 2))
    assert two.memory["Sharded Grad"] == pytest.approx(4 * SHALLOW.parameters / 8)
    assert two.memory["Sharded Grad"] > 2 * one.memory["Sharded Grad"]


@pytest.mark.parametrize(
    ("micro", "checkpoint", "context"),
    [
        (2, "none", 2048),  # the peak is at the second loss
        pytest.param(3, "full", 2048, marks=pytest.mark.slow),
        pytest.param(2, "full", 128, marks=pytest.mark.slow),  # in a backward pass
        pytest.param(3, "full", 128, marks=pytest.mark.slow),
    ],
)
def test_zero2_gathers_once_in_a_step_and_keeps_it_until_the_last_micro_batch(
    micro, checkpoint, context
):
    one, more = (
        compare("ZeRO-2", RECIPE, checkpoint, SHALLOW, 8, n, context=context) for n in (1, micro)
    )
    assert more.sent["all-gather"] == one.sent["all-gather"]
    assert more.sent["reduce-scatter"] == pytest.approx(micro * one.sent["reduce-scatter"])


def test_a_single_layer_has_no_other_one_beside_it():
    one = PRESETS["tinyllama-1.1b"]._replace(layers=1, vocab_size=4096)
    compare("ZeRO-3", RECIPE, "full", one, 8)


@pytest.mark.parametrize(
    ("recipe", "context"),
    [
        (RECIPE, 128),
        pytest.param(RECIPE, 2048, marks=pytest.mark.slow),
        pytest.param(IN_FP32, 128, marks=pytest.mark.slow),
    ],
)
def test_hosts_reduce_the_sum_of_all_micro_batches(recipe, context):
    one, three = (
        compare("HSDP", recipe, "full", SHALLOW, 8, micro, context=context) for micro in (1, 3)
    )
    assert three.sent["all-reduce"] == one.sent["all-reduce"]
    assert three.sent["reduce-scatter"] == pytest.approx(3 * one.sent["reduce-scatter"])


@pytest.mark.slow
def test_what_hsdp_all_reduced_stays_to_the_end_of_the_backward_pass():
    """In bf16, beside the shard in fp32 that was made from it."""
    few = {"context": 128}  # so that the end of the backward pass is the peak
    inside, over = (compare(name, RECIPE, "full", SHALLOW, 8, **few) for name in ("ZeRO-3", "HSDP"))
    assert "all-reduce" in over.sent
    assert "all-reduce" not in inside.sent
    job = Job(SHALLOW, 1, 128, 1, "full", RECIPES[RECIPE])
    planned = held(job, "HSDP", cluster_of(GPUS["h100"], 8, 4, speed=4e14), "full")
    alone = held(job, "HSDP", cluster_of(GPUS["h100"], 4, 4, speed=4e14), "full")
    of_two_blocks = 2 * 2 * SHALLOW.block / 4  # when the second backward pass but one ends
    assert planned["buckets"] - alone["buckets"] == pytest.approx(of_two_blocks)


def test_states_of_the_optimizer_are_shards():
    """The tracker alone counts whole ones in the step: DTensor learns shapes by whole tensors."""
    found = compare("ZeRO-3", RECIPE, "none", SHALLOW, 8)
    assert found.memory["OptState"] == pytest.approx(8 * SHALLOW.parameters / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "checkpoint", "tokens"),
    [
        ("ZeRO-3", "full", 8192),
        pytest.param("ZeRO-3", "full", 32768, marks=pytest.mark.slow),
        pytest.param("ZeRO-2", "full", 32768, marks=pytest.mark.slow),
        pytest.param("ZeRO-3", "selective", 16384, marks=pytest.mark.slow),
        pytest.param("ZeRO-3", "none", 8192, marks=pytest.mark.slow),
    ],
)
def test_gradients_within_a_layer_count_where_the_loss_is_small(name, checkpoint, tokens):
    """With many tokens and few words, the peak is in a layer's backward pass."""
    model = SEVEN._replace(layers=8, vocab_size=1000)
    compare(name, REDUCED_IN_FP32, checkpoint, model, 64, context=tokens)


def test_a_second_world_is_refused():
    with world_of(4), pytest.raises(RuntimeError, match="a process group already"), world_of(4):
        pass
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("gated", "compiled"),
    [(True, False), pytest.param(True, True, marks=pytest.mark.slow), (False, True)],
)
def test_a_block_keeps_what_the_plan_counts_compiled_or_not(gated, compiled):
    """With the partition between both passes that PyTorch's compiler makes; its kernels would do
    the same."""
    model = Model(1, 256, 4, 4, 1024, 1000, gated)
    block, tokens, sizes = Block(model).bfloat16(), 512, {}
    weights = {each.untyped_storage().data_ptr() for each in block.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    run = torch.compile(block, backend="aot_eager_decomp_partition") if compiled else block
    x = torch.randn(1, tokens, 256, dtype=torch.bfloat16, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = run(x)
    assert result.shape == x.shape
    # Beside them a few numbers for each row and head: sums of norms and of attention
    assert sum(sizes.values()) == pytest.approx(2 * tokens * model.kept("none", compiled), rel=5e-3)


def kept_under_autocast(block, x):
    """Bytes that the backward pass needs, without weights and their casts."""
    sizes, weights = {}, {each.untyped_storage().data_ptr() for each in block.parameters()}
    alive = []  # so that no other tensor gets the memory of one that was noted

    def note(tensor):
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    saved = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with saved, torch.autocast("cpu", torch.bfloat16):
        block(x)
    return sum(sizes.values()) - sum(
        2 * each.numel() for each in block.parameters() if each.dim() > 1
    )


@pytest.mark.parametrize(("gated", "readers"), [(True, 5), (False, 4)])
def test_under_autocast_each_matrix_keeps_its_own_cast_of_a_norms_result(gated, readers):
    """Of two norms: q, k, and v read the first; up, and the gate if there is one, the second."""
    model = Model(1, 256, 4, 4, 1024, 1000, gated)
    tokens = 512
    kept = kept_under_autocast(Block(model), torch.randn(1, tokens, 256, requires_grad=True) * 1)
    norms = 2 * 2 * 256  # more bytes for inputs in fp32
    assert model.cast_again == (readers - 2) * 256
    expected = tokens * (2 * model.kept("none") + norms + 2 * (readers - 2) * 256)
    assert kept == pytest.approx(expected, rel=5e-3)
    one, none = (model._replace(layers=n).activations(tokens, "none", 2, 0, 4.0) for n in (1, 0))
    assert one - none == expected


class LatentAttention(nn.Module):
    """Section 2.1 of DeepSeek-V2, without rotations and the latent vectors' norms."""

    def __init__(self, model):
        super().__init__()
        self.model, d = model, model.d
        q_rank, kv_rank, plain, rotated, value = model.latent
        self.q_down = nn.Linear(d, q_rank, bias=False) if q_rank else nn.Identity()
        self.q = nn.Linear(q_rank or d, round(model.q_width), bias=False)
        self.kv_down = nn.Linear(d, kv_rank + rotated, bias=False)
        self.kv = nn.Linear(kv_rank, model.heads * (plain + value), bias=False)
        self.out = nn.Linear(model.heads * value, d, bias=False)

    def forward(self, h):
        _, kv_rank, plain, rotated, value = self.model.latent
        q = self.q(self.q_down(h)).unflatten(-1, (self.model.heads, -1)).transpose(1, 2)
        latent, shared = self.kv_down(h).split([kv_rank, rotated], -1)
        both = self.kv(latent).unflatten(-1, (self.model.heads, -1)).transpose(1, 2)
        k, v = both.split([plain, value], -1)
        k = torch.cat([k, shared.unsqueeze(1).expand(-1, self.model.heads, -1, -1)], -1)
        mixed = F.scaled_dot_product_attention(q, k, v.contiguous(), is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, d, ffn, gated):
        super().__init__()
        self.gate = nn.Linear(d, ffn, bias=False) if gated else None
        self.up, self.down = nn.Linear(d, ffn, bias=False), nn.Linear(ffn, d, bias=False)

    def forward(self, h):
        if self.gate is None:
            return self.down(F.gelu(self.up(h)))
        return self.down(F.silu(self.gate(h)) * self.up(h))


class Mixture(nn.Module):
    """Each token goes through its experts and the shared one. A result has its router's weight."""

    def __init__(self, model):
        super().__init__()
        routed, self.active, ffn, shared, _ = model.experts
        self.router = nn.Linear(model.d, routed, bias=False)
        self.experts = nn.ModuleList(Network(model.d, ffn, model.gated) for _ in range(routed))
        self.shared = Network(model.d, shared, model.gated) if shared else None

    def forward(self, h):
        found = self.shared(h) if self.shared else 0
        scores, chosen = self.router(h).topk(self.active)
        for number, expert in enumerate(self.experts):
            *rows, nth = (chosen == number).nonzero(as_tuple=True)
            result = expert(h[tuple(rows)]) * scores[*rows, nth].unsqueeze(-1)
            found = found + torch.zeros_like(h, dtype=result.dtype).index_put(tuple(rows), result)
        return found


class MixedBlock(nn.Module):
    """Two norms and their readers, with the attention and the network of a `Model`."""

    def __init__(self, model):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(model.d, bias=False) for _ in range(2))
        self.attention = LatentAttention(model)
        self.network = Mixture(model) if model.experts else Network(model.d, model.ffn, model.gated)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.network(self.norms[1](x))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("latent", "experts", "again"),
    [  # `again` in widths: without a gate, and what a gate adds
        (Latent(192, 96, 96, 32, 128), None, (1, 1)),
        (Latent(0, 96, 96, 32, 128), None, (1, 1)),  # then q reads the norm's result itself
        (Latent(192, 96, 96, 32, 128), Experts(4, 2, 256), (1, 2)),
        (Latent(192, 96, 96, 32, 128), Experts(4, 3, 256), (1, 3)),
        (Latent(192, 96, 96, 32, 128), Experts(4, 2, 256, shared=384), (2, 3)),
    ],
)
def test_latent_attention_and_experts_keep_their_own_casts_of_a_norms_result(
    latent, experts, again, gated
):
    """Two matrices read the first norm's result, and gate and up a token's row for each expert.

    The router keeps the cast of the second norm's result that `kept` counts. The shared expert
    reads that result, too, and adds no other copies.
    """
    d, tokens = 512, 512
    model = Model(1, d, 4, 4, 1024, 1000, gated, experts=experts, latent=latent)
    block = MixedBlock(model)
    assert sum(each.numel() for each in block.parameters()) == model.block
    assert model.cast_again == (again[0] + again[1] * gated) * d
    kept = kept_under_autocast(block, torch.randn(1, tokens, d, requires_grad=True) * 1)
    norms = 2 * 2 * d  # more bytes for inputs in fp32
    expected = 2 * model.kept("none") + norms + 2 * model.cast_again
    assert kept / tokens == pytest.approx(expected, rel=0.01)


def test_casts_in_dense_layers_beside_a_mixture_are_averaged():
    mixed = Model(4, 256, 4, 4, 1024, 1000, experts=Experts(8, 2, 128, shared=256))
    dense = mixed._replace(experts=None)
    both = mixed._replace(experts=mixed.experts._replace(dense=1 / 4))
    assert dense.cast_again == 3 * 256
    assert mixed.cast_again == 6 * 256
    assert both.cast_again == dense.cast_again / 4 + mixed.cast_again * 3 / 4


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-70b", "gpt-2-124m", "tinyllama-1.1b"])
def test_the_network_has_the_parameters_of_its_model(name):
    model = PRESETS[name]._replace(layers=2)
    with torch.device("meta"):
        made = Transformer(model)
    assert sum(each.numel() for each in made.parameters()) == model.parameters
