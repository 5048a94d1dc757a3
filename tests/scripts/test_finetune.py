"""models.py, weights.py, finetune.py and sample.py: a checkpoint in, trained on ranks, and out."""

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from playground.lab.one_host import SCRIPTS, as_module, torchrun

PATIENCE = 300  # s
GPT2 = {
    "model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True, "head_dim": 12},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 16},
}
SMALL = (
    "--context", "24", "--batch", "6", "--micro", "1", "--steps", "3", "--lr", "1e-2",
    "--warmup", "1", "--log-every", "1", "--eval-batches", "1", "--eval-every", "3", "--no-bf16",
)  # fmt: skip


@contextlib.contextmanager
def beside_each_other() -> Iterator[None]:
    """The scripts find each other, as they do where they lie in one folder."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield
    finally:
        sys.path.remove(str(SCRIPTS))


def script(name: str) -> ModuleType:
    with beside_each_other():
        return as_module(SCRIPTS / f"{name}.py")


def write_start(folder: Path, config: dict[str, Any], prefix: bool = True) -> str:
    """A model with random weights, as others write it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = script("models").model_of(folder)
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, weight in model.named_parameters():
        own = "" if name.startswith("lm_head") or not prefix else model.prefix
        state[own + name] = 0.2 * torch.randn(weight.shape, generator=draw)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


@pytest.fixture(scope="module", params=CONFIGS)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_start(tmp_path_factory.mktemp(request.param) / "start", CONFIGS[request.param])


def finetune(*words: str) -> tuple[str, Any]:
    """One rank: "losses" and they, or "stop" and its line."""
    with beside_each_other():
        module = as_module(SCRIPTS / "finetune.py")
        import train

        try:
            return "losses", train.main(*words, kind=module.Job, about=module.__doc__)
        except train.Stop as stop:
            return "stop", str(stop)


def tuned(tokens: str, run: Path, start: str, *words: str, ranks: int = 2) -> list[float]:
    said = torchrun(
        lambda: finetune(tokens, str(run), start, *SMALL, *words), ranks=ranks, timeout=PATIENCE
    )
    assert [kind for kind, _ in said] == ["losses"] * ranks, said
    return list(said[0][1])


def filled(folder: str | Path) -> torch.nn.Module:
    with torch.device("meta"):
        model = script("models").model_of(folder)
    model.to_empty(device="cpu")
    script("weights").load(model, folder)
    return model.eval()


def val_loss(folder: str | Path, tokens: str) -> float:
    """On one device, of the model in a folder: what a run logs after its last step."""
    train = script("train")
    settings = train.Settings(tokens, "", context=24, batch=6)
    rows = train.Tokens("val", settings, 256).read(torch.arange(6))
    with torch.no_grad():
        return float(filled(folder)(rows[:, :-1], rows[:, 1:]))


def logged(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["val_loss"] for line in lines if "val_loss" in line][-1]


@pytest.mark.parametrize("lora", ["0", "4"])
def test_what_was_trained_on_ranks_is_what_the_exported_files_compute(
    start, tokens, tmp_path, lora
):
    losses = tuned(tokens, tmp_path / "run", start, "--lora", lora)
    assert losses[-1] < losses[0]
    before, after = val_loss(start, tokens), val_loss(tmp_path / "run/model", tokens)
    assert after == pytest.approx(logged(tmp_path / "run"), abs=1e-5)
    assert before - after > 0.01
    assert (tmp_path / "run/model/config.json").read_text() == Path(
        start, "config.json"
    ).read_text()
    assert (tmp_path / "run/model/tokenizer_config.json").exists()
    ours, theirs = (
        load_file(Path(one, "model.safetensors")) for one in (tmp_path / "run/model", start)
    )
    assert {name: w.shape for name, w in ours.items()} == {n: w.shape for n, w in theirs.items()}


@pytest.mark.parametrize("lora", ["0", "4"])
def test_the_losses_are_the_same_on_any_number_of_ranks(tokens, tmp_path, lora):
    start = write_start(tmp_path / "start", CONFIGS["tied"])
    one, two, three = (
        tuned(tokens, tmp_path / f"run{n}", start, "--lora", lora, ranks=n) for n in (1, 2, 3)
    )
    replicas = tuned(tokens, tmp_path / "ddp", start, "--lora", lora, "--ddp", ranks=2)
    assert one == pytest.approx(two, abs=1e-5)
    assert one == pytest.approx(three, abs=1e-5)
    assert one == pytest.approx(replicas, abs=1e-5)


def test_it_goes_on_after_a_stop_and_saves_adapters_alone(tokens, tmp_path):
    start, run = write_start(tmp_path / "start", LLAMA), tmp_path / "run"
    whole = tuned(tokens, tmp_path / "whole", start, "--lora", "4", "--steps", "4")
    words = ("--lora", "4", "--warmup", "1", "--save-every", "2")
    first = torchrun(
        lambda: stopped_after_two(tokens, str(run), start, *SMALL, *words, "--steps", "4"),
        ranks=2, timeout=PATIENCE,
    )  # fmt: skip
    rest = tuned(tokens, run, start, *words, "--steps", "4", ranks=3)
    assert [*first[0], *rest] == pytest.approx(whole, abs=1e-5)
    (folder,) = run.glob("step-*2")
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    names = {name for name in saved if name.startswith("model.")}
    assert len(names) == 2 * 2 * 7, "the frozen model is in START"
    assert all(name.endswith(("lora_a", "lora_b")) for name in names)


def stopped_after_two(*words: str) -> list[float]:
    with beside_each_other():
        module = as_module(SCRIPTS / "finetune.py")
        import train

        class Stopped(module.Job):  # type: ignore[misc, name-defined]
            def save(self) -> None:
                super().save()
                self.checkpoints.finish()
                raise train.Stop("enough")

        job: list[Any] = []

        def made(*given: Any) -> Any:
            job.append(Stopped(*given))
            return job[0]

        made.SETTINGS = module.Settings  # type: ignore[attr-defined]
        with pytest.raises(train.Stop, match="enough"):
            train.main(*words, kind=made)
        return list(job[0].history)


def test_other_adapters_than_were_saved_are_refused(tokens, tmp_path):
    start, run = write_start(tmp_path / "start", GPT2), tmp_path / "run"
    tuned(tokens, run, start, "--lora", "4")
    for words, line in {
        ("--lora", "2"): "step-00000003 was",
        ("--lora", "0"): "step-00000003 was",
        ("--lora", "4", "--alpha", "8"): "--lora 4, --alpha 32.0, start, but this run has",
    }.items():
        said = torchrun(
            lambda given=words: finetune(tokens, str(run), start, *SMALL, *given),
            ranks=2, timeout=PATIENCE,
        )  # fmt: skip
        assert [kind for kind, _ in said] == ["stop"] * 2
        assert line in said[0][1]


def test_a_base_that_is_frozen_is_held_in_16_bits_and_adapters_in_32(tmp_path):
    start, module = write_start(tmp_path / "start", LLAMA), script("finetune")
    fields = {one.name: one.default for one in dataclasses.fields(module.Settings)}
    given = fields | {"data": "", "run": "", "start": start, "lora": 4, "context": 64}
    model = module.made(module.Settings(**given))
    dtypes = {name: weight.dtype for name, weight in model.named_parameters()}
    adapters = [name for name in dtypes if name.endswith(("lora_a", "lora_b"))]
    assert len(adapters) == 2 * 2 * 7  # seven linear layers in each of two blocks
    assert all(dtypes[name] == torch.float32 for name in adapters)
    assert {dtypes[name] for name in dtypes.keys() - {*adapters}} == {torch.bfloat16}
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {*adapters}


# --- files


def test_names_without_a_prefix_and_tensors_in_several_files(tmp_path):
    start = write_start(tmp_path / "plain", GPT2, prefix=False)
    weights, model = script("weights"), filled(write_start(tmp_path / "start", GPT2))
    tokens = torch.arange(20).view(2, 10)
    assert torch.equal(filled(start)(tokens), model(tokens))
    weights.LARGEST = 20_000  # bytes
    weights.save(model, tmp_path / "out", tmp_path / "start")
    files = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    kept = {f.name: load_file(f) for f in (tmp_path / "out").glob("*.safetensors")}
    assert index["weight_map"] == {name: file for file, part in kept.items() for name in part}
    sizes = {file: sum(w.nbytes for w in part.values()) for file, part in kept.items()}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert all(size <= 20_000 or len(kept[file]) == 1 for file, size in sizes.items())
    assert torch.equal(filled(tmp_path / "out")(tokens), model(tokens))


def test_each_tensor_keeps_the_dtype_of_its_source(tmp_path):
    start = write_start(tmp_path / "start", LLAMA)
    file = Path(start, "model.safetensors")
    mixed = {
        name: weight if "norm" in name else weight.bfloat16()
        for name, weight in load_file(file).items()
    }
    save_file(mixed, file)
    script("weights").save(filled(start), tmp_path / "out", start)
    found = load_file(tmp_path / "out/model.safetensors")
    assert {name: w.dtype for name, w in found.items()} == {n: w.dtype for n, w in mixed.items()}
    assert all(torch.equal(found[name], weight) for name, weight in mixed.items())


def test_an_export_can_be_replaced_although_its_source_is_read_only(tmp_path):
    start, weights = write_start(tmp_path / "start", LLAMA), script("weights")
    Path(start, "config.json").chmod(0o444)
    weights.save(filled(start), tmp_path / "out", start)
    assert (tmp_path / "out/config.json").stat().st_mode & 0o200


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' isn't built here"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': only silu"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ({"intermediate_size": 40}, "mlp.gate_proj.weight is [48, 32], but config.json needs [40"),
        ({"attention_bias": True}, "no model.layers.0.self_attn.q_proj.bias in the files"),
        ({"tie_word_embeddings": True, "num_hidden_layers": 3}, "no model.layers.2."),
        ({"max_position_embeddings": 16}, "--context 24: "),
        ({"vocab_size": None}, ""),
    ],
)
def test_what_cannot_be_started_from_is_one_line_on_all_ranks(change, line, tokens, tmp_path):
    start = Path(write_start(tmp_path / "start", LLAMA))
    config = LLAMA | change
    if config["vocab_size"] is None:
        del config["vocab_size"]
        line = "has no vocab_size"
    (start / "config.json").write_text(json.dumps(config))
    said = torchrun(
        lambda: finetune(tokens, str(tmp_path / "run"), str(start), *SMALL),
        ranks=2, timeout=PATIENCE,
    )  # fmt: skip
    assert {kind for kind, _ in said} == {"stop"}
    assert line in said[1][1]
    assert len(said[1][1].splitlines()) == 1


def test_a_folder_without_weights_and_a_damaged_file_are_named(tmp_path):
    start = Path(write_start(tmp_path / "start", LLAMA))
    weights, model = script("weights"), script("models").model_of(start)
    with pytest.raises(ValueError, match=r"empty: no \*.safetensors there"):
        weights.load(model, tmp_path / "empty")
    file = start / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        weights.load(model, start)


GQA3 = {"num_attention_heads": 4, "num_key_value_heads": 3}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (LLAMA | GQA3, "num_attention_heads=4: must be a multiple of num_key_value_heads=3"),
        (LLAMA | {"head_dim": 7}, "head_dim=7: must be even"),
        (GPT2 | {"n_head": 5}, "n_embd=32: must be a multiple of n_head=5"),
        (LLAMA | {"rope_scaling": ROPE}, "rope_type='llama3' needs a number high_freq_factor"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope_type='linear' needs a number factor"),
        (LLAMA | {"rope_theta": None}, "rope_type='default' needs a number rope_theta"),
        (LLAMA | {"rope_parameters": {"full_attention": {}}}, "rope_parameters by layer"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (LLAMA | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_a_config_that_is_not_built_here_is_refused(config, line, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"^\S+config\.json: [^\n]+$") as refused:
        script("models").shape_of(tmp_path)
    assert line in str(refused.value)


def test_gpt2_is_read_by_the_general_names_too(tmp_path):
    """transformers accepts both; unread, the number of heads would be the usual 12."""
    names = {"n_embd": "hidden_size", "n_head": "num_attention_heads"}
    names |= {"n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings"}
    config = {names.get(name, name): value for name, value in GPT2.items()}
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    expected = script("models").shape_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert dataclasses.asdict(script("models").shape_of(tmp_path)) == dataclasses.asdict(expected)


def test_a_config_that_is_not_an_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json: has no fields$"):
        script("models").shape_of(tmp_path)


def refused(start: str | Path) -> str:
    """The line for files that don't fit their config.json."""
    with torch.device("meta"):
        model = script("models").model_of(start)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as found:
        script("weights").names(model, start)
    return str(found.value)


def change_files(start: str | Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = Path(start, "model.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_weights_in_a_format_that_needs_scales_are_refused(dtype, tmp_path):
    """They would be read as if all scales were 1."""
    start, name = write_start(tmp_path / "start", LLAMA), "model.layers.1.mlp.up_proj.weight"
    change_files(start, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    kind = {torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}[dtype]
    assert f"{name} is {kind}: only F64, F32, F16, BF16 are read here" in refused(start)


def test_a_tensor_that_the_model_does_not_have_is_refused(tmp_path):
    """It would be missing from the result. Biases that config.json leaves out are an example."""
    start, name = write_start(tmp_path / "start", LLAMA), "model.layers.1.mlp.up_proj.bias"
    change_files(start, lambda tensors: tensors.update({name: torch.zeros(48)}))
    assert f"model.safetensors has {name}, but config.json doesn't describe it" in refused(start)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_buffers_of_older_files_and_files_of_other_tensors_do_not_matter(config, tmp_path):
    start = write_start(tmp_path / "start", config)
    tokens, own = torch.arange(20).view(2, 10), {"layers.0.attention.wk.weight": torch.zeros(4)}
    expected = filled(start)(tokens)
    older = [
        "transformer.h.0.attn.bias",
        "transformer.h.0.attn.masked_bias",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ]
    change_files(start, lambda tensors: tensors.update({name: torch.zeros(4) for name in older}))
    save_file(own, Path(start, "consolidated.safetensors"))
    assert torch.equal(filled(start)(tokens), expected)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    """Such as what an earlier export has left. Which one would count?"""
    start = Path(write_start(tmp_path / "start", LLAMA))
    save_file({"model.norm.weight": torch.zeros(32)}, start / "model-00001-of-00002.safetensors")
    both = "model.norm.weight is in model-00001-of-00002.safetensors and in model.safetensors"
    assert f"{both}: move one of them away" in refused(start)


def test_a_head_that_is_not_the_embedding_is_refused_where_config_ties_them(tmp_path):
    start = Path(write_start(tmp_path / "start", CONFIGS["tied"]))
    tokens = torch.arange(20).view(2, 10)
    expected = filled(start)(tokens)

    def add_head(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change_files(start, add_head)
    assert torch.equal(filled(start)(tokens), expected)
    change_files(start, lambda tensors: tensors["lm_head.weight"][-1, -1].add_(1))
    line = "lm_head.weight isn't model.embed_tokens.weight: set tie_word_embeddings to false"
    assert line in refused(start)


def test_a_file_that_the_index_names_and_that_is_missing_is_named(tmp_path):
    model, weights = filled(write_start(tmp_path / "start", LLAMA)), script("weights")
    weights.LARGEST = 20_000  # bytes
    weights.save(model, tmp_path / "out", tmp_path / "start")
    (gone,) = (tmp_path / "out").glob("model-00002-of-*.safetensors")
    gone.unlink()
    line = refused(tmp_path / "out")
    assert f"{gone.name} isn't there, and model.safetensors.index.json has" in line
    (tmp_path / "out/model.safetensors.index.json").write_text("{}")
    assert "in the files, but config.json needs" in refused(tmp_path / "out")


def test_an_export_replaces_all_files_of_an_earlier_one(tmp_path):
    """transformers prefers model.safetensors, so one that is left would hide the new files."""
    start, out, weights = (
        write_start(tmp_path / "start", LLAMA),
        tmp_path / "out",
        script("weights"),
    )
    model = filled(start)
    out.mkdir()
    (out / "part-7.safetensors").write_text("of a save that was interrupted")
    for largest in (10**9, 20_000, 40_000, 10**9):
        weights.LARGEST = largest
        model.norm.weight.data += 1
        weights.save(model, out, start)
        assert torch.equal(filled(out).norm.weight, model.norm.weight)
        index = out / "model.safetensors.index.json"
        assert index.exists() == (len([*out.glob("*.safetensors")]) > 1)


def test_the_folder_of_the_result_is_no_start(tmp_path):
    """The frozen weights would have the adapters in them when it continues."""
    start, module = write_start(tmp_path / "model", LLAMA), script("finetune")
    fields = {one.name: one.default for one in dataclasses.fields(module.Settings)}
    given = fields | {"data": "", "run": str(tmp_path), "start": start, "context": 64}
    with pytest.raises(ValueError, match=r"model: is where the result goes\. Give a different RUN"):
        module.made(module.Settings(**given))


def test_flops_count_what_multiplies_and_what_is_frozen_less(tmp_path):
    models = script("models")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = models.model_of(tmp_path)
    model.context = 10
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    multiplied = sum(m.weight.numel() for m in linear)
    norms = sum(w.numel() for n, w in model.named_parameters() if "norm" in n)
    attention = 12 * 2 * 32 * 10
    assert model.flops() == 6 * (multiplied + norms) + attention
    model.requires_grad_(False)
    assert model.flops() == 4 * (multiplied + norms) + attention


# --- samples


def test_a_sample_is_what_the_model_finds_likeliest_and_repeats_by_its_seed(tmp_path):
    start, sample = write_start(tmp_path / "start", GPT2), script("sample").main
    model, tokens = filled(start), [*b"all"]
    for _ in range(5):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert sample(start, "all", 5, 0.0, 0) == bytes(tokens).decode(errors="replace")
    assert sample(start, "all", 9, 0.8, 1) == sample(start, "all", 9, 0.8, 1)
    assert sample(start, "all", 9, 5.0, 1) != sample(start, "all", 9, 5.0, 2)


def test_a_sample_needs_a_text_and_a_tokenizer(tmp_path):
    sample = script("sample").main
    with pytest.raises(ValueError, match="TEXT is empty"):
        sample(write_start(tmp_path / "start", GPT2), "", 5, 0.0, 0)
    start = write_start(tmp_path / "more", GPT2 | {"vocab_size": 300})
    with pytest.raises(ValueError, match=r"tokenizer\.json: isn.t there"):
        sample(start, "all", 5, 0.0, 0)


def with_tokenizer(folder: str | Path, words: dict[str, int]) -> str:
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(Path(folder, "tokenizer.json")))
    return str(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_sample_ends_where_the_model_ends_it(file, tmp_path):
    """What follows the end of a text belongs to a different one."""
    start, sample = write_start(tmp_path / "start", GPT2), script("sample").main
    given = Path(start, "config.json").read_text()
    model, tokens = filled(start), [*b"all"]
    for _ in range(9):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    end = tokens[5]
    place = tokens.index(end, 3)
    assert sample(start, "all", 9, 0.0, 0) == bytes(tokens).decode(errors="replace")
    for ends in (end, [end, 0]):
        told = {"eos_token_id": ends} | (json.loads(given) if file == "config.json" else {})
        Path(start, file).write_text(json.dumps(told))
        expected = bytes(tokens[:place]).decode(errors="replace")
        assert sample(start, "all", 9, 0.0, 0) == expected


def test_what_cannot_be_sampled_is_one_line(tmp_path, monkeypatch):
    sample, start = script("sample").main, write_start(tmp_path / "start", GPT2)
    small = write_start(tmp_path / "small", GPT2 | {"vocab_size": 100})
    with pytest.raises(ValueError, match=r"token 108, but the model has only 100$"):
        sample(small, "all", 5, 0.0, 0)
    with pytest.raises(ValueError, match=r"^--temperature -1.0: must be at least 0$"):
        sample(start, "all", 5, -1.0, 0)
    with pytest.raises(ValueError, match=r"^--tokens -1: must be at least 0$"):
        sample(start, "all", -1, 1.0, 0)
    for text in ("{", "[]", "\0"):
        Path(start, "generation_config.json").write_text(text)
        with pytest.raises(ValueError, match=r"^[^\n]*/generation_config\.json: [^\n]+$"):
            sample(start, "all", 5, 0.0, 0)
    Path(start, "generation_config.json").unlink()
    with_tokenizer(start, {"all": 256, "?": 0})
    with pytest.raises(ValueError, match=r"token 256, but the model has only 256$"):
        sample(start, "all", 5, 0.0, 0)
    Path(start, "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^[^\n]*tokenizer\.json: [^\n]+$"):
        sample(start, "all", 5, 0.0, 0)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"tokenizer\.json: needs `pip install tokenizers`$"):
        sample(start, "all", 5, 0.0, 0)


def test_all_options_are_explained():
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
        finetune("--help")
    text = " ".join(said.getvalue().split())
    assert "START is a folder with config.json" in text
    assert "--lora LORA rank of the adapters" in text
    assert "--width" not in text
    assert "--lr LR highest learning rate, reached after the warmup (default: 2e-05)" in text
