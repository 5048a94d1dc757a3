"""finetune.py and the library transformers: each loads what the other has written, and computes the
same."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_finetune import PATIENCE, SMALL, beside_each_other

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


def made(transformers: ModuleType, kind: str, folder: Path) -> str:
    """A model with random weights, norms and biases too, in several files."""
    torch.manual_seed(0)
    model_type, given = KINDS[kind]
    config = transformers.AutoConfig.for_model(model_type, **given)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    model.save_pretrained(folder, max_shard_size=20_000)
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
