"""GPT-2 and models like Llama (Mistral, Qwen2, Qwen3), in PyTorch alone, from a `config.json`.

    with torch.device("meta"):
        model = model_of("FOLDER")   # weights.load(model, "FOLDER") fills it

The parameters have the names that they have in the files, after `model.` or `transformer.`, so no
table translates them. Angles are computed where they are needed, so no buffer has to be filled. A
tied head multiplies with the embedding's weight, so nothing can untie it. Dropout is left out.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

LLAMAS = {  # longest sequence, and heads for keys and values, where config.json doesn't say them
    "llama": (2048, None),
    "mistral": (131072, 8),
    "qwen2": (32768, 32),
    "qwen3": (32768, 32),
}
WINDOW = 4096  # of them, where a config.json that has one doesn't say its length
GPT2_NAMES = {  # the general name, and GPT-2's
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
ROPES = {  # a rope_type and the numbers that it needs
    "default": ["rope_theta"],
    "linear": ["rope_theta", "factor"],
    "llama3": [
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ],
}


@dataclass(frozen=True)
class Shape:
    """What a config.json says about a model, by the names in it."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    longest: int  # sequence: of its positions, or of the window in which it attends
    eps: float  # of its norms
    tied: bool
    bias: bool  # of the projections to queries, keys, and values
    out_bias: bool
    mlp_bias: bool
    rope: dict[str, Any]


def fields_of(file: Path) -> dict[str, Any]:
    """What a file of JSON has. Raises ValueError with one line that names it."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: has no fields")
    return found


def shape_of(folder: str | Path) -> Shape:
    """Raises ValueError with one line that names the file, if it's no model that is built here."""
    file = Path(folder, "config.json")
    config = fields_of(file)
    kind = config.get("model_type")
    if kind not in ("gpt2", *LLAMAS):
        known = ", ".join(("gpt2", *LLAMAS))
        raise ValueError(f"{file}: model_type {kind!r} isn't built here. These are: {known}")
    try:
        if config.get("quantization_config"):
            raise ValueError("quantization_config: only weights in 16 bits or more are read here")
        return gpt2_shape(config) if kind == "gpt2" else llama_shape(config)
    except KeyError as error:
        raise ValueError(f"{file}: has no {error.args[0]}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def gpt2_shape(config: dict[str, Any]) -> Shape:
    """As GPT-2's class in transformers reads it; what isn't there is as in the smallest GPT-2."""
    config = {GPT2_NAMES.get(name, name): value for name, value in config.items()}
    width, heads = config.get("n_embd", 768), config.get("n_head", 12)
    if width % heads:
        raise ValueError(f"n_embd={width}: must be a multiple of n_head={heads}")
    for name, usual in {
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
    }.items():
        if config.get(name, usual) != usual:
            raise ValueError(f"{name}={config[name]} isn't built here")
    if (act := config.get("activation_function", "gelu_new")) not in (
        "gelu_new",
        "gelu_pytorch_tanh",
    ):
        raise ValueError(f"activation_function={act!r}: only gelu_new is built here")
    return Shape(
        "gpt2", config.get("vocab_size", 50257), width, config.get("n_layer", 12), heads, heads,
        width // heads, config.get("n_inner") or 4 * width, config.get("n_positions", 1024),
        config.get("layer_norm_epsilon", 1e-5), config.get("tie_word_embeddings", True),
        True, True, True, {},
    )  # fmt: skip


def llama_shape(config: dict[str, Any]) -> Shape:
    """As the classes of transformers read it, with their defaults where it says nothing."""
    kind, width, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    if (act := config.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"hidden_act={act!r}: only silu is built here")
    positions, shared = LLAMAS[kind]
    longest = config.get("max_position_embeddings", positions)
    rope = rope_of(config, longest)
    window = config.get("sliding_window", WINDOW) if kind != "llama" else None
    if window and (kind == "mistral" or config.get("use_sliding_window", False)):
        longest = min(longest, window)
    shared = config.get("num_key_value_heads", shared) or heads
    if heads % shared:
        what = f"num_attention_heads={heads}"
        raise ValueError(f"{what}: must be a multiple of num_key_value_heads={shared}")
    head_dim = config.get("head_dim") or (128 if kind == "qwen3" else width // heads)
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim}: must be even, because positions turn pairs")
    bias = config.get("attention_bias", False) and kind in ("llama", "qwen3")
    return Shape(
        kind, config["vocab_size"], width, config["num_hidden_layers"], heads, shared, head_dim,
        config["intermediate_size"], longest, config.get("rms_norm_eps", 1e-6),
        config.get("tie_word_embeddings", False), bias or kind == "qwen2", bias,
        config.get("mlp_bias", False) and kind == "llama", rope,
    )  # fmt: skip


def rope_of(config: dict[str, Any], longest: int) -> dict[str, Any]:
    """Rotary positions. An older config has rope_scaling, and rope_theta beside it."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in given.values()):
        raise ValueError("rope_parameters by layer: only the same ones for all layers")
    part = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if part not in (1, None):
        raise ValueError(f"partial_rotary_factor={part}: only all of a head's elements are turned")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROPES:
        raise ValueError(f"rope_type={kind!r}: not default, linear or llama3")
    original = "original_max_position_embeddings"
    rope = {"rope_theta": config.get("rope_theta", 1e4), original: longest, **given}
    rope |= {"rope_type": kind, original: config.get(original, rope[original])}
    for name in ROPES[kind]:
        if not isinstance(rope.get(name), int | float):
            raise ValueError(f"rope_type={kind!r} needs a number {name}")
    return rope


class Model(nn.Module):
    """What both kinds have in common: a loss from tokens, and how many operations it takes."""

    shape: Shape
    context = 1024  # tokens of a sequence, for `flops`
    recompute = False
    prefix: str  # of the names in the files, except the head's

    @property
    def blocks(self) -> nn.ModuleList:
        raise NotImplementedError

    @property
    def vocab(self) -> int:
        return self.shape.vocab_size

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """[b, t] → [b, t, width], before the head"""
        raise NotImplementedError

    @property
    def embedding(self) -> nn.Embedding:
        raise NotImplementedError

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """[b, t, width] → logits [b, t, vocab]"""
        return F.linear(x, self.embedding.weight) if self.shape.tied else self.lm_head(x)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [b, t, vocab], or their mean cross entropy in fp32 where targets are given. []"""
        logits = self.head(self.hidden(tokens))
        if targets is None:
            return logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def run(self, block: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        again = self.recompute and self.training
        return checkpoint(block, *inputs, use_reentrant=False) if again else block(*inputs)

    def flops(self) -> int:
        """FLOP per token: 2 forward for each weight that multiplies, 4 backward, or 2 if it's
        frozen; and attention."""
        shape, per_weight = self.shape, 0
        for name, weight in self.named_parameters():
            is_looked_up = name.startswith(("wte", "wpe", "embed_tokens"))
            if not is_looked_up or (shape.tied and not name.startswith("wpe")):
                per_weight += weight.numel() * (6 if weight.requires_grad else 4)
        wide = shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
        return per_weight + 12 * wide * self.context


# --- GPT-2 (Radford et al. 2019)


class Conv1D(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2's files have it."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class GPT2Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, width = shape.num_attention_heads, shape.hidden_size
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.c_attn(x).unflatten(-1, (3, self.heads, -1))  # [b, t, 3, heads, d]
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [b, heads, t, d]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class GPT2MLP(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.c_fc = Conv1D(shape.hidden_size, shape.intermediate_size)
        self.c_proj = Conv1D(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.hidden_size, shape.eps)
        self.attn = GPT2Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.hidden_size, shape.eps)
        self.mlp = GPT2MLP(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(Model):
    prefix = "transformer."

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape, width = shape, shape.hidden_size
        self.wte = nn.Embedding(shape.vocab_size, width)
        self.wpe = nn.Embedding(shape.longest, width)
        self.h = nn.ModuleList(GPT2Block(shape) for _ in range(shape.num_hidden_layers))
        self.ln_f = nn.LayerNorm(width, shape.eps)
        if not shape.tied:
            self.lm_head = nn.Linear(width, shape.vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.h

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = self.run(block, x)
        return self.ln_f(x)

    @property
    def embedding(self) -> nn.Embedding:
        return self.wte


# --- Models like Llama (Touvron et al. 2023)


def turns(shape: Shape, length: int, device: torch.device) -> torch.Tensor:
    """Cosines and sines of rotary positions (Su et al. 2021), in fp32. [2, length, head_dim]"""
    rope, d = shape.rope, shape.head_dim
    speeds = rope["rope_theta"] ** -(torch.arange(0, d, 2, device=device) / d)  # radians a position
    if rope["rope_type"] == "linear":
        speeds = speeds / rope["factor"]
    if rope["rope_type"] == "llama3":  # slow ones are slower still, and those between partly
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        rounds = rope["original_max_position_embeddings"] * speeds / (2 * math.pi)
        share = ((rounds - low) / (high - low)).clamp(0, 1)
        speeds = share * speeds + (1 - share) * speeds / rope["factor"]
    angles = torch.outer(torch.arange(length, device=device), speeds).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()])


def turn(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """x [b, heads, t, d], whose halves are pairs of coordinates, by [2, t, d]"""
    cos, sin = by.to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.d, width = shape.head_dim, shape.hidden_size
        own, shared = shape.num_attention_heads * self.d, shape.num_key_value_heads * self.d
        self.q_proj = nn.Linear(width, own, shape.bias)
        self.k_proj = nn.Linear(width, shared, shape.bias)
        self.v_proj = nn.Linear(width, shared, shape.bias)
        self.o_proj = nn.Linear(own, width, shape.out_bias)
        if shape.model_type == "qwen3":
            self.q_norm, self.k_norm = (nn.RMSNorm(self.d, shape.eps) for _ in range(2))

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        heads = (-1, self.d)
        q, k = self.q_proj(x).unflatten(-1, heads), self.k_proj(x).unflatten(-1, heads)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = turn(q.transpose(1, 2), by), turn(k.transpose(1, 2), by)  # [b, heads, t, d]
        v = self.v_proj(x).unflatten(-1, heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        wide, width = shape.intermediate_size, shape.hidden_size
        self.gate_proj = nn.Linear(width, wide, shape.mlp_bias)
        self.up_proj = nn.Linear(width, wide, shape.mlp_bias)
        self.down_proj = nn.Linear(wide, width, shape.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.self_attn = LlamaAttention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.mlp = LlamaMLP(shape)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), by)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Model):
    prefix = "model."

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.layers

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        x, by = self.embed_tokens(tokens), turns(self.shape, tokens.shape[1], tokens.device)
        for block in self.layers:
            x = self.run(block, x, by)
        return self.norm(x)

    @property
    def embedding(self) -> nn.Embedding:
        return self.embed_tokens


def model_of(folder: str | Path) -> GPT2 | Llama:
    """The model that FOLDER/config.json describes, without its weights. Raises ValueError."""
    shape = shape_of(folder)
    return GPT2(shape) if shape.model_type == "gpt2" else Llama(shape)
