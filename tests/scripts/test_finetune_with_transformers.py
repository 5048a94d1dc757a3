"""finetune.py and the library transformers: each loads what the other has written, and computes the
same."""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_finetune import PATIENCE, SMALL, beside_each_other, filled, script

from playground.lab.one_host import SCRIPTS, as_module, torchrun

pytestmark = pytest.mark.slow  # transformers comes with `make test-all`

GPT2 = {
    "vocab_size": 251, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
LLAMA = {
    "vocab_size": 251, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 44, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-untied": ("gpt2", GPT2 | {"tie_word_embeddings": False, "n_inner": 40}),
    "llama": ("llama", LLAMA | {"rms_norm_eps": 1e-5}),
    "llama-tied": (
        "llama",
        LLAMA | {"tie_word_embeddings": True, "head_dim": 12, "rope_parameters": LLAMA3},
    ),
    "llama-biased": (
        "llama",
        LLAMA | {
            "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
    ),
    "mistral": ("mistral", LLAMA | {"sliding_window": 32, "head_dim": 6}),
    "qwen2": ("qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 16, "tie_word_embeddings": True}),
}  # fmt: skip
ASKED = torch.randint(251, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    os.environ["HF_HUB_OFFLINE"] = "1"
    module = pytest.importorskip("transformers")
    module.utils.logging.disable_progress_bar()
    return module


def made(
    transformers: ModuleType, kind: str, folder: Path, dtype: torch.dtype = torch.float32
) -> str:
    """A model with random weights, norms and biases too, in several files."""
    torch.manual_seed(0)
    model_type, given = KINDS[kind]
    config = transformers.AutoConfig.for_model(model_type, **given)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    model.to(dtype).save_pretrained(folder, max_shard_size=20_000)
    assert len([*folder.glob("*.safetensors")]) > 1
    assert (folder / "model.safetensors.index.json").exists()
    return str(folder)


def logits_of(transformers: ModuleType, folder: str | Path) -> torch.Tensor:
    """By transformers, of the tokens ASKED. It finds each tensor that it needs, and no other."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    with torch.no_grad():
        return model.eval()(ASKED).logits


def finetuned(*words: str) -> tuple[torch.Tensor, torch.Tensor]:
    """On each rank: the logits of the sharded model before and after its training."""
    with beside_each_other():
        module = as_module(SCRIPTS / "finetune.py")
        import train

        logits = []

        class Looked(module.Job):  # type: ignore[misc, name-defined]
            @torch.no_grad()
            def look_at_it(self) -> None:
                self.model.eval()
                logits.append(self.model(ASKED))
                self.model.train()

            def train(self) -> None:
                self.look_at_it()
                super().train()
                self.look_at_it()

        train.main(*words, kind=Looked, about="")
        before, after = logits
        return before, after


@pytest.mark.parametrize(("lora", "ranks"), [("4", 1), ("0", 2), ("0", 3), ("4", 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_one_has_written_the_other_computes(transformers, tokens, tmp_path, kind, lora, ranks):
    start, run = made(transformers, kind, tmp_path / "start"), tmp_path / "run"
    words = (tokens, str(run), start, *SMALL, "--lora", lora)
    said = torchrun(lambda: finetuned(*words), ranks=ranks, timeout=PATIENCE)
    begun, ended = logits_of(transformers, start), logits_of(transformers, run / "model")
    assert begun.std() > 0.5, "too small, and every model would be the same to 1e-5"
    assert (ended - begun).abs().max() > 0.1, "it has learned"
    for before, after in said:
        torch.testing.assert_close(before, begun, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(after, ended, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_weights_in_bf16_stay_what_they_are(transformers, tmp_path, kind):
    start = made(transformers, kind, tmp_path / "start", torch.bfloat16)
    model = filled(start)
    with torch.no_grad():
        logits = model(ASKED)
    torch.testing.assert_close(logits, logits_of(transformers, start), atol=1e-5, rtol=1e-5)
    script("weights").save(model, tmp_path / "out", start)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    assert torch.equal(logits_of(transformers, tmp_path / "out"), logits_of(transformers, start))


OLDER = {"rope_theta": 7e3}
NO_PARAMETERS = ("rope_parameters",)
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}
OUTER = {name: LLAMA3[name] for name in ("rope_type", "low_freq_factor", "high_freq_factor")}
OUTER = {"rope_scaling": OUTER | {"factor": 2.0}}


@pytest.mark.parametrize(
    ("kind", "change", "gone"),
    [
        ("llama", OLDER, NO_PARAMETERS),
        ("llama", OLDER | LINEAR, NO_PARAMETERS),
        ("llama", OLDER | LINEAR, ()),
        ("llama", OLDER | OUTER, NO_PARAMETERS),
        ("llama", OLDER | OUTER | {"original_max_position_embeddings": 16}, NO_PARAMETERS),
        ("llama", OLDER | {"rope_parameters": {"rope_type": "default"}}, ()),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}, ()),
        ("mistral", {"attention_bias": True, "mlp_bias": True}, ()),
        ("gpt2", {}, ("tie_word_embeddings", "n_inner", "activation_function")),
    ],
)
def test_a_config_means_what_it_means_there(transformers, tmp_path, kind, change, gone):
    start = Path(made(transformers, kind, tmp_path))
    config = json.loads((start / "config.json").read_text())
    kept = {name: value for name, value in (config | change).items() if name not in gone}
    (start / "config.json").write_text(json.dumps(kept))
    with torch.no_grad():
        torch.testing.assert_close(
            filled(start)(ASKED), logits_of(transformers, start), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_a_config_leaves_out_is_as_there(transformers, tmp_path, kind):
    given = {"vocab_size": 251, "hidden_size": 128, "num_hidden_layers": 2}
    given |= {"intermediate_size": 44, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **given}))
    ours, theirs = script("models").shape_of(tmp_path), transformers.AutoConfig.for_model(kind)
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.eps == theirs.rms_norm_eps
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.rope["rope_theta"] == theirs.rope_parameters["rope_theta"]
    window = getattr(theirs, "sliding_window", None)
    assert ours.longest == min(theirs.max_position_embeddings, window or 10**9)
