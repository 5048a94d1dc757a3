"""A module of the reader's own: what the planner takes for its vocabulary, or why it refuses."""

import json
from types import SimpleNamespace

import pytest
from torch import nn

from distributed.planner.command import main
from distributed.planner.models import MODELS as SHAPES
from distributed.planner.models import PUBLISHED
from recipes.own import own

VOCAB, CONTEXT, D, LAYERS = 32_000, 512, 256, 6


class Block(nn.Module):
    """As GPT-2 has it: q, k and v in one matrix, and a network of four times the width."""

    def __init__(self, d=D):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))


class GatedBlock(nn.Module):
    """As Llama has it: grouped queries, wide heads, and three matrices in the network."""

    num_heads = 8

    def __init__(self, d=D, q_width=512, kv_width=128, ffn=704):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(d, q_width), nn.Linear(q_width, d)
        self.k_proj, self.v_proj = nn.Linear(d, kv_width), nn.Linear(d, kv_width)
        self.gate, self.up, self.down = nn.Linear(d, ffn), nn.Linear(d, ffn), nn.Linear(ffn, d)


class FusedBlock(nn.Module):
    """Grouped queries in one matrix, and the gate in one with the network's first."""

    n_head = 8

    def __init__(self, d=D, kv_width=64, ffn=704):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, d + 2 * kv_width), nn.Linear(d, d)
        self.gate_up, self.down = nn.Linear(d, 2 * ffn), nn.Linear(ffn, d)


class Expert(nn.Module):
    def __init__(self, d=D, ffn=512):
        super().__init__()
        self.up, self.down = nn.Linear(d, ffn), nn.Linear(ffn, d)


class MixedBlock(nn.Module):
    def __init__(self, experts=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.router = nn.Linear(D, experts)
        self.networks = nn.ModuleList(Expert() for _ in range(experts))


class MambaBlock(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.into, self.out = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.conv1d = nn.Conv1d(2 * d, 2 * d, 4, groups=2 * d)


class ManyHeads(nn.Module):
    """As courses have it: a module for each head."""

    def __init__(self, d=D, heads=4):
        super().__init__()
        head = nn.ModuleDict
        self.heads = nn.ModuleList(
            head({name: nn.Linear(d, d // heads, bias=False) for name in ("q", "k", "v")})
            for _ in range(heads)
        )
        self.out, self.up, self.down = nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)


class GPT(nn.Module):
    def __init__(self, first=(), block=Block, layers=LAYERS, tied=False, d=D):
        super().__init__()
        for number, rows in enumerate(first):
            setattr(self, f"table_{number}", nn.Embedding(rows, d))
        self.tokens = nn.Embedding(VOCAB, d)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(d, VOCAB, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def tokens_first():
    return GPT()


def positions_first():
    return GPT((CONTEXT,))


def types_and_positions_first():
    return GPT((2, CONTEXT))


def tied():
    return GPT((CONTEXT,), tied=True)


def long_positions_first():
    """More positions than tokens: the head says which table is the vocabulary's."""
    return GPT((4 * VOCAB,))


def gated():
    return GPT(block=GatedBlock)


def fused():
    return GPT(block=FusedBlock)


def many_heads():
    return GPT(block=ManyHeads)


def one_stage():
    """The blocks stand in a row within a row of one stage, as models of vision have them."""
    model = GPT()
    model.stages = nn.ModuleList([nn.Sequential(*model.blocks)])
    del model.blocks
    return model


def two_tables():
    """Two tables and no head as wide as either."""
    model = GPT((VOCAB // 2,))
    del model.head
    return model


def vision_first():
    model = nn.Module()
    model.vision = GPT(d=D // 2, block=lambda: Block(D // 2))
    del model.vision.head, model.vision.tokens
    model.vision.positions = nn.Embedding(577, D // 2)
    model.language = GPT()
    return model


def encoder_and_decoder():
    model = nn.Module()
    model.shared = nn.Embedding(VOCAB, D)
    model.encoder = nn.ModuleList(Block() for _ in range(LAYERS))
    model.decoder = nn.ModuleList(Block() for _ in range(LAYERS))
    return model


def mixture():
    return GPT(block=MixedBlock)


def many_experts():
    """More experts than layers."""
    return GPT(block=lambda: MixedBlock(64))


def mamba():
    return GPT(block=MambaBlock)


def of_transformers():
    """What a model of Hugging Face's library has: its config."""
    from recipes.executed import Transformer

    model = Transformer(SHAPES["qwen3-0.6b"])
    fields = PUBLISHED["qwen3-0.6b"]["config"]
    model.config = SimpleNamespace(to_dict=lambda: dict(fields))
    return model


def of_transformers_in_part():
    model = of_transformers()
    model.layers = model.layers[:4]
    return model


def of_transformers_mamba():
    model = tokens_first()
    model.config = SimpleNamespace(to_dict=lambda: {"model_type": "mamba"})
    return model


def shape_of(make):
    return own(f"{__name__}:{make.__name__}").model


@pytest.mark.parametrize(
    ("make", "positions"),
    [
        (tokens_first, 0), (positions_first, CONTEXT), (types_and_positions_first, CONTEXT + 2),
        (long_positions_first, 4 * VOCAB), (tied, CONTEXT), (many_heads, 0),
        (one_stage, 0),
    ],
)  # fmt: skip
def test_the_vocabulary_is_the_table_that_the_head_reads_wherever_it_is_declared(make, positions):
    model = shape_of(make)
    assert (model.vocab_size, model.d, model.layers) == (VOCAB, D, LAYERS)
    assert (model.positions, model.tied) == (positions, make is tied)
    count = sum(parameter.numel() for parameter in make().parameters())
    assert model.parameters == pytest.approx(count, rel=0.01)


def test_the_order_of_two_lines_changes_no_plan(capsys):
    plans = []
    for make in ("positions_first", "types_and_positions_first"):
        main(["--module", f"{__name__}:{make}", "--json"])
        plans.append(json.loads(capsys.readouterr().out)["options"][0]["bytes"]["parameters"])
    assert plans[0] == pytest.approx(plans[1], rel=1e-3)


def test_grouped_queries_wide_heads_and_gates_are_read_from_the_matrices():
    model = shape_of(gated)
    assert (model.heads, model.kv, model.head_dim) == (8, 2, 64)
    assert (model.ffn, model.gated) == (704, True)
    model = shape_of(fused)
    assert (model.heads, model.kv, model.head_dim) == (8, 2, 0)
    assert (model.ffn, model.gated) == (704, True)


def test_a_model_of_transformers_is_read_from_its_config():
    assert shape_of(of_transformers) == SHAPES["qwen3-0.6b"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (vision_first, "are in neither its blocks, its embeddings nor its head (most in 'vision')"),
        (encoder_and_decoder, "are in neither its blocks, its embeddings nor its head"),
        (mixture, "it has a mixture of experts (blocks.0.networks)"),
        (many_experts, "it has a mixture of experts (blocks.0.networks)"),
        (mamba, "its blocks have convolutions (blocks.0.conv1d), as state spaces have"),
        (two_tables, "two embeddings may be the vocabulary's"),
        (of_transformers_in_part, "its config counts 0.60 billion parameters, and it has 0.22"),
        (of_transformers_mamba, "'mamba' isn't a transformer"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line_with_the_way_out(make, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--module", f"{__name__}:{make.__name__}"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert "config.json" in error or "--params" in error
    assert error.count("\n") == 1
