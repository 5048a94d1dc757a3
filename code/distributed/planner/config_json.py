"""Reader of a Hugging Face `config.json`: the shape of a model, without its code.

Files use several names for the same thing, and leave out the defaults of their model's class. So a
value comes from its usual name, from one of its other names, or from `DEFAULTS`. If none of these
has it, the error asks for it. Only transformers with attention in each layer are accepted.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from distributed.planner.shapes import Experts, Latent, Model

Config = Mapping[str, Any]
OTHER_NAMES = {  # usual name → names in other files
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("experts_per_token", "moe_topk", "moe_k"),
}
# Models with two matrices in the network instead of three
PLAIN = {
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt",
    "nemotron", "opt", "persimmon", "phi", "starcoder2",
}  # fmt: skip
POSITIONS = {"gpt2", "gpt_bigcode", "gpt_neo", "opt"}  # learned, one per position
# If a file has no `tie_word_embeddings`, its class decides: true for these, false for the others
TIED = {
    "bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2",
    "gpt_bigcode", "gpt_neo", "mpt", "opt", "smollm3", "starcoder2",
}  # fmt: skip
UNTIED = {
    "codegen", "deepseek_v2", "deepseek_v3", "glm4", "glm4_moe", "gpt_neox", "gpt_oss", "gptj",
    "granite", "llama", "llama4_text", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmoe",
    "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "stablelm",
}  # fmt: skip
# Period in layers: one layer attends to the whole row, the others to a window of it
WHOLE_ROW_EVERY = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
DEFAULTS: dict[str, Config] = {  # of the classes in transformers
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "sliding_window": 4096,
    },
    "gpt2": {"vocab_size": 50257, "max_position_embeddings": 1024},
    "qwen3": {"head_dim": 128},
}  # fmt: skip

STATE_SPACE = "layers of a state space (Mamba) have no attention"
LINEAR = "layers of linear attention (DeltaNet, RWKV and the like) keep one state and no keys"
REFUSED = {  # model type, or the beginning of a field's name → why it isn't a transformer
    "mamba": STATE_SPACE, "falcon_mamba": STATE_SPACE, "jamba": STATE_SPACE, "zamba": STATE_SPACE,
    "bamba": STATE_SPACE, "nemotron_h": STATE_SPACE, "falcon_h1": STATE_SPACE,
    "granitemoehybrid": STATE_SPACE, "ssm_": STATE_SPACE, "state_size": STATE_SPACE,
    "hybrid_override_pattern": STATE_SPACE,
    "qwen3_next": LINEAR, "qwen3_5": LINEAR, "kimi_linear": LINEAR, "rwkv": LINEAR,
    "minimax_text": LINEAR, "linear_": LINEAR, "recurrent_gemma": "most layers are recurrent",
    "xlstm": "its layers are recurrent", "lfm2": "most layers are convolutions",
    "conv_L_cache": "some layers are convolutions",
}  # fmt: skip
ENCODERS = (
    "albert", "bart", "bert", "clip", "deberta", "distilbert", "electra", "mbart", "modernbert",
    "mt5", "pegasus", "roberta", "siglip", "t5", "umt5", "vit", "wav2vec2", "whisper",
    "xlm-roberta",
)  # fmt: skip
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
WAY = "plan another model, or one of this size with --params"


class Read(NamedTuple):
    """A shape, and in words the parts of the model that the plan leaves out."""

    model: Model
    notes: tuple[str, ...] = ()


def read_config(path: str) -> Read:
    """The shape in a `config.json`, or in a folder with one.

    Raises ValueError, naming the file, if it can't be read or isn't a transformer.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        return read_fields(fields_of(file.read_text(encoding="utf-8"), str(file)))
    except OSError as error:
        raise ValueError(f"model={path!r}: {file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"model={path!r}: {error}") from None


def fields_of(text: str, file: str = "the file") -> dict[str, Any]:
    """The fields of a `config.json` with this text. Raises ValueError, naming the file."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} isn't JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} has no fields, as a config.json has")
    return config


def needed(config: Config) -> dict[str, Any]:
    """The fields that the shape depends on: without the others, the same model is read.

    Raises ValueError if no shape can be read.
    """
    found, kept = read_fields(config), dict(config)
    if isinstance(text := kept.get("text_config"), dict):
        for name in text:
            fewer = kept | {
                "text_config": {k: v for k, v in kept["text_config"].items() if k != name}
            }
            kept = fewer if reads_as(fewer, found) else kept
    for name in config:
        fewer = {key: value for key, value in kept.items() if key != name}
        kept = fewer if reads_as(fewer, found) else kept
    return kept


def reads_as(config: Config, found: Read) -> bool:
    try:
        return read_fields(config) == found
    except ValueError:
        return False


def read_fields(config: Config) -> Read:
    """The shape that these fields describe. Raises ValueError if it isn't a transformer."""
    notes = []
    if isinstance(text := config.get("text_config"), dict):
        others = [name.removesuffix("_config") for name in config if name.endswith("_config")]
        left_out = [name for name in others if name in ("vision", "audio", "speech")]
        notes.append(f"only the language model is planned, not {' and '.join(left_out) or 'more'}")
        whole_model = {"model_type": f"{config.get('model_type', '')}_text"}
        if "tie_word_embeddings" in config:
            whole_model["tie_word_embeddings"] = config["tie_word_embeddings"]
        config = whole_model | text
    kind = str(config.get("model_type", ""))
    refuse(config, kind)
    if kind not in TIED | UNTIED:
        notes.append(f"model_type {kind or 'unknown'!r} is read as if it were like Llama's")
    if predicted := config.get("num_nextn_predict_layers"):
        notes.append(f"num_nextn_predict_layers={predicted}: these layers are not planned")

    config = {name: value for name, value in config.items() if value is not None}
    config = dict(DEFAULTS.get(kind, {})) | usual(config)
    layers, d = whole(config, "num_hidden_layers"), whole(config, "hidden_size")
    heads = whole(config, "num_attention_heads")
    is_plain = kind in PLAIN
    plain_width = 4 * d if is_plain else None
    latent = latent_of(config)
    head_dim = 0 if latent else whole(config, "head_dim", 0)
    if not latent and not head_dim and d % heads:
        raise ValueError(f"num_attention_heads={heads}: {d:,} is no multiple; is head_dim missing?")
    experts = experts_of(config, layers)
    ffn = whole(config, "intermediate_size_mlp", whole(config, "intermediate_size", plain_width))
    window, local = window_of(config, kind, layers)
    kv = heads if latent else kv_heads(config, kind, heads)
    if heads % kv:
        raise ValueError(f"num_key_value_heads={kv}: {heads} heads are no multiple of it")
    model = Model(
        layers, d, heads, kv, ffn, whole(config, "vocab_size"), not is_plain,
        bool(config.get("tie_word_embeddings", kind in TIED)),
        whole(config, "max_position_embeddings") if kind in POSITIONS else 0,
        0 if head_dim * heads == d else head_dim, window, local, experts, latent,
    )  # fmt: skip
    return Read(model, tuple(notes))


def refuse(config: Config, kind: str) -> None:
    """Raise ValueError with the reason if this isn't a decoder with attention in each layer."""
    named = f"model_type {kind!r}" if kind else "this model"
    if config.get("is_encoder_decoder"):
        raise ValueError(f"{named} has an encoder and a decoder, and one stack can be planned")
    if kind in ENCODERS:
        raise ValueError(f"{named} isn't a language model that predicts the next token")
    fields = [name for name, value in config.items() if value not in (None, False, [], {})]
    for beginning, reason in REFUSED.items():
        found = [name for name in (kind, *fields) if name.startswith(beginning)]
        if found:
            because = "" if found[0] == kind else f" (it has {found[0]})"
            raise ValueError(f"{named} isn't a transformer{because}: {reason}; {WAY}")
    others = sorted({*map(str, listed(config, "layer_types"))} - {*ATTENTION})
    if others:
        reason = LINEAR if "linear_attention" in others else f"some layers are {others[0]!r}"
        raise ValueError(f"{named} isn't a transformer: {reason}; {WAY}")


def usual(config: Config) -> dict[str, Any]:
    """The same fields, where those with other names also appear under their usual names."""
    found = dict(config)
    for name, others in OTHER_NAMES.items():
        for other in others:
            if name not in found and other in config:
                found[name] = config[other]
    return found


def whole(config: Config, name: str, default: int | None = None) -> int:
    """A whole number of 0 or more. Raises ValueError if it is missing and has no default."""
    value = config.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        raise ValueError(
            f"there is no {name} in it: add it to the file, as the model's class has it"
        )
    least = 1 if default is None else 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
        shown = shorten(repr(value), 40)
        raise ValueError(f"{name}={shown}: give a whole number, {least} to 1e+09")
    return value


def listed(config: Config, name: str) -> list[Any]:
    """A list of numbers or names; empty if it is missing. Raises ValueError for another value."""
    value = config.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name}={value!r}: give a list")
    if any(not isinstance(each, str | int) for each in value or ()):
        raise ValueError(f"{name}={value!r}: give a list of numbers or names")
    return value or []


def kv_heads(config: Config, kind: str, heads: int) -> int:
    """Number of key and value heads; by default as many as query heads, or one."""
    if kind == "falcon" and not config.get("new_decoder_architecture", False):
        return 1 if config.get("multi_query", True) else heads
    if kind == "gpt_bigcode":
        return 1 if config.get("multi_query", True) else heads
    return whole(config, "num_key_value_heads", heads) or heads


def window_of(config: Config, kind: str, layers: int) -> tuple[int, float]:
    """Tokens in a sliding window (or in a chunk), and the share of layers that have it."""
    types = listed(config, "layer_types")
    chunk = whole(config, "attention_chunk_size", 0)
    window = whole(config, "sliding_window", 0) or chunk
    if not window or config.get("use_sliding_window") is False:
        return 0, 0.0
    if types:
        local = sum(each != "full_attention" for each in types)
        return (window, local / len(types)) if local else (0, 0.0)
    if kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        if not config.get("use_sliding_window", False):
            return 0, 0.0
        local = layers - min(layers, whole(config, "max_window_layers", layers))
    elif chunk and window == chunk:
        local = layers - layers // 4
    else:
        every = whole(config, "sliding_window_pattern", WHOLE_ROW_EVERY.get(kind, 0))
        local = layers - layers // every if every else layers
    return (window, local / layers) if local else (0, 0.0)


def experts_of(config: Config, layers: int) -> Experts | None:
    """The mixture of experts, if there are several; some layers may have a single network."""
    routed = whole(config, "num_experts", 0)
    if routed < 2:
        return None
    active = whole(config, "num_experts_per_tok")
    if active > routed:
        raise ValueError(f"num_experts_per_tok={active}: there are {routed} experts")
    ffn = whole(config, "moe_intermediate_size", whole(config, "intermediate_size"))
    shared = whole(config, "shared_expert_intermediate_size", 0)
    shared = shared or whole(config, "n_shared_experts", 0) * ffn
    if "intermediate_size_mlp" in config:  # Llama 4: the shared expert is like a routed one
        shared = ffn
    step = whole(config, "interleave_moe_layer_step", whole(config, "decoder_sparse_step", 1)) or 1
    without = {i for i in range(layers) if (i + 1) % step}
    without |= {*range(min(layers, whole(config, "first_k_dense_replace", 0)))}
    without |= {*listed(config, "mlp_only_layers")} & {*range(layers)}
    return Experts(routed, active, ffn, shared, len(without) / layers)


def latent_of(config: Config) -> Latent | None:
    """Multi-head latent attention, as in DeepSeek."""
    if "kv_lora_rank" not in config:
        return None
    return Latent(
        whole(config, "q_lora_rank", 0),
        whole(config, "kv_lora_rank"),
        whole(config, "qk_nope_head_dim"),
        whole(config, "qk_rope_head_dim"),
        whole(config, "v_head_dim"),
    )
