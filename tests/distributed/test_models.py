"""Models by name, by a config.json, by their numbers, and by a module of the reader's own."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.cost import Cluster, Link
from distributed.planner.command import SHORT, arguments, main, model_shaped, read
from distributed.planner.config_json import DEFAULTS, read_config, read_fields
from distributed.planner.job import Job, memory_of, work_of
from distributed.planner.memory import sent
from distributed.planner.models import MODELS, PUBLISHED, model_named
from distributed.planner.shapes import CHECKPOINTS, Experts, Model
from recipes.executed import Transformer

CLUSTER = Cluster(8, 8, Link(0, 1e11), Link(0, 1e11), 4e14)
LLAMA = PUBLISHED["llama-3.1-8b"]["config"]


# --- published counts


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_number_of_parameters(name):
    known = PUBLISHED[name]
    assert MODELS[name].parameters == pytest.approx(known["parameters"], rel=0.005)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_number_of_parameters_tells_whether_embeddings_are_tied(name):
    model, parameters = MODELS[name], PUBLISHED[name]["parameters"]
    other = model._replace(tied=not model.tied)
    assert 2 * abs(model.parameters - parameters) < abs(other.parameters - parameters)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "active" in PUBLISHED[name]])
def test_active_parameters_are_those_published_with_one_embedding_or_two_or_none(name):
    model, active = MODELS[name], PUBLISHED[name]["active"]
    embeddings = 2 * model.vocab_size * model.d
    assert 0.97 * (model.active - embeddings) <= active <= 1.03 * model.active


def test_every_preset_says_who_published_its_shape_and_its_count():
    from importlib.resources import files

    text = files("distributed.planner").joinpath("configs.json").read_text(encoding="utf-8")
    sources = json.loads(text)["sources"]
    assert len(PUBLISHED) >= 20
    ways = ("source", "counted_by", "active_by")
    named = {known[by] for known in PUBLISHED.values() for by in ways if by in known}
    assert named == sources.keys()


@pytest.mark.parametrize("said", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "qwen3-8b", "Qwen3_8B"])
def test_a_preset_has_its_repositorys_name_too(said):
    assert model_named(said).model == MODELS["qwen3-8b"]


# --- config.json


@pytest.mark.parametrize("name", ["qwen3-8b", "gpt-oss-20b", "deepseek-v3", "gemma-3-4b"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_file_and_its_folder_are_planned_as_the_preset_is(name, as_folder, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]["config"]))
    path = tmp_path if as_folder else tmp_path / "config.json"
    said = []
    for model in (name, str(path)):
        main(["--model", model, "--nodes", "16", "--json"])
        said.append(json.loads(capsys.readouterr().out))
        assert said[-1]["assumed"].pop("model") == model
    assert said[0] == said[1]


def test_values_that_a_file_leaves_out_are_those_of_its_class():
    """Gemma 3's files name neither heads nor vocabulary, which includes 64 tokens for images."""
    own = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text = own | {"model_type": "gemma3_text", "sliding_window": 1024}
    found = read_fields({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert found.model._replace(vocab_size=262144) == MODELS["gemma-3-4b"]
    assert found.model.vocab_size == DEFAULTS["gemma3_text"]["vocab_size"]
    assert found.notes == ("only the language model is planned, not vision",)


def test_a_language_model_is_tied_as_the_whole_is_unless_it_says_otherwise():
    text = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    for whole in (True, False):
        fields = {"model_type": "a_vlm", "text_config": text, "tie_word_embeddings": whole}
        assert read_fields(fields).model.tied == whole


def test_gpt_2s_names_are_understood():
    fields = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None}
    assert read_fields(fields).model == MODELS["gpt-2-124m"]


@pytest.mark.parametrize(
    ("fields", "window", "local"),
    [
        ({"sliding_window": 4096, "model_type": "mistral"}, 4096, 1),
        ({"sliding_window": None, "model_type": "mistral"}, 0, 0),
        ({"sliding_window": 4096, "use_sliding_window": False, "model_type": "qwen2"}, 0, 0),
        (
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 24,
             "model_type": "qwen2"}, 4096, 8 / 32,
        ),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 4096, 16 / 32),
        ({"sliding_window": 1024, "model_type": "gemma3_text"}, 1024, 27 / 32),
        (
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 16},
            8, 1 / 2,
        ),
    ],
)  # fmt: skip
def test_windows_are_those_of_the_layers_that_have_them(fields, window, local):
    model = read_fields(LLAMA | fields).model
    assert (model.window, model.local) == (window, pytest.approx(local))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "mamba", "state_size": 16}, "'mamba' isn't a transformer: layers of a sta"),
        ({"model_type": "falcon_mamba"}, "isn't a transformer: layers of a state space (Mamba)"),
        ({"model_type": "nemotron_h"}, "isn't a transformer: layers of a state space (Mamba)"),
        (LLAMA | {"mamba_d_conv": 4}, "(it has mamba_d_conv): layers of a state space (Mamba)"),
        ({"model_type": "qwen3_next"}, "layers of linear attention (DeltaNet"),
        (LLAMA | {"linear_num_key_heads": 16}, "(it has linear_num_key_heads): layers of linear"),
        (LLAMA | {"layer_types": ["linear_attention", "full_attention"]}, "linear attention"),
        ({"text_config": {"model_type": "qwen3_5_text"}}, "layers of linear attention (DeltaNet"),
        ({"model_type": "rwkv5"}, "layers of linear attention (DeltaNet, RWKV"),
        ({"model_type": "recurrent_gemma"}, "most layers are recurrent"),
        ({"model_type": "lfm2"}, "most layers are convolutions"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "has an encoder and a decoder"),
        ({"model_type": "bert"}, "isn't a language model that predicts the next token"),
        ({"model_type": "llama"}, "there is no num_hidden_layers in it: add it to the file"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size='4096': give a whole number"),
        (LLAMA | {"num_attention_heads": 30}, "num_attention_heads=30: 4,096 is no multiple"),
        (LLAMA | {"num_key_value_heads": 5}, "num_key_value_heads=5: 32 heads are no multiple"),
        (LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 9}, "there are 8 experts"),
    ],
)
def test_what_is_no_transformer_or_no_config_is_refused_with_the_reason(fields, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="model=") as refused:
        read_config(str(tmp_path))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(data=st.data())
def test_a_damaged_config_is_a_shape_or_a_value_error(data):
    name = data.draw(st.sampled_from([*PUBLISHED]))
    more = ("layer_types", "mlp_only_layers", "text_config", "n_shared_experts", "model_type")
    fields = dict(PUBLISHED[name]["config"])
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    value = leaf | st.lists(leaf, max_size=3) | st.dictionaries(st.text(), leaf, max_size=2)
    for _ in range(data.draw(st.integers(1, 3))):
        fields[data.draw(st.sampled_from([*fields, *more]))] = data.draw(value)
    try:
        model = read_fields(fields).model
    except ValueError:
        return
    assert model.parameters > 0
    assert model.flops(2048) > 0
    assert [model.kept(checkpoint) > 0 for checkpoint in CHECKPOINTS] == [True] * 3


@pytest.mark.parametrize(
    ("text", "said"), [("{", "isn't JSON"), ("[1]", "has no fields"), (None, "No such file")]
)
def test_a_file_that_cannot_be_read_is_named(text, said, tmp_path, capsys):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit):
        main(["--model", str(path)])
    error = capsys.readouterr().err
    assert all(each in error for each in (said, str(path)))
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["Qwen/Qwen9-8B", "mixtral-9x9b", "gemma"])
def test_an_unknown_model_is_sent_to_config_json_before_a_neighbor(name):
    with pytest.raises(ValueError, match="is not a preset") as refused:
        model_named(name)
    said = str(refused.value)
    assert said.index("config.json") < said.index("--shape")
    assert "presets with" not in said or said.index("--shape") < said.index("presets with")


# --- what a shape needs


def test_a_mixture_holds_and_sends_all_experts_and_computes_with_those_that_are_active():
    """Mixtral: 46.7 billion in memory and on the wires, 12.9 billion for each token."""
    mixtral, active = MODELS["mixtral-8x7b"], 12.88e9
    job = Job(mixtral, context=4096)
    assert memory_of(job, "DDP", CLUSTER, "none")["gradients"] == pytest.approx(
        4 * 46.7e9, rel=0.01
    )
    assert sent(job, "ZeRO-3", CLUSTER)["reduce-scatter"] == pytest.approx(2 * 46.7e9, rel=0.01)
    looked_up = mixtral.vocab_size * mixtral.d
    attention = 12 * mixtral.layers * mixtral.d * 4096
    assert mixtral.flops(4096) == pytest.approx(6 * (active - looked_up) + attention, rel=0.001)
    work = work_of(job, CLUSTER, "none")
    assert sum(work.shares) == pytest.approx(1)
    assert sum(work.parameters) == pytest.approx(2 * 46.7e9, rel=0.01)


def test_experts_that_are_all_active_are_one_wide_network_and_a_router():
    dense = Model(4, 256, 4, 4, 1024, 1000)
    mixed = dense._replace(ffn=0, experts=Experts(4, 4, 256))
    assert mixed.idle == 0
    assert mixed.parameters == dense.parameters + 4 * 256 * 4
    assert mixed.kept("full") == dense.kept("full")
    assert mixed.kept("none") == dense.kept("none") + 2 * 4 * 256  # sorted tokens, and results


def test_shared_experts_and_dense_layers_count_as_themselves():
    mixed = Model(4, 256, 4, 4, 1024, 1000, experts=Experts(8, 2, 128, shared=256, dense=1 / 4))
    one = 3 * 256
    network = one * 1024 + 3 * (one * (8 * 128 + 256) + 256 * 8)
    assert 4 * mixed.network == pytest.approx(network)
    assert mixed.idle == pytest.approx(3 * one * 6 * 128)


@pytest.mark.parametrize("window", [1, 3, 16, 64, 100])
def test_a_window_counts_the_pairs_that_it_has_as_a_whole_row_does(window):
    t = 64
    pairs = sum(min(i + 1, window) for i in range(t)), sum(i + 1 for i in range(t))
    model = Model(2, 256, 4, 4, 1024, 1000, window=window, local=1.0)
    seen = model.seen(t) * (t + 1) / t  # a row's pairs are t (t + 1)/2, and count as t²/2
    assert seen / t == pytest.approx(pairs[0] / pairs[1], abs=2.5 / t)
    whole = model._replace(local=0.0).flops(t)
    assert whole - model.flops(t) == pytest.approx(12 * 2 * 256 * (t - model.seen(t)))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v2-lite", "qwen3-0.6b", "mixtral-8x7b"])
def test_less_checkpointing_keeps_more(name):
    kept = [MODELS[name].kept(checkpoint) for checkpoint in CHECKPOINTS]
    assert kept == sorted(kept, reverse=True)


# --- --shape


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("24,896,14,2,4864,151936,tied", "qwen2.5-0.5b"),
        ("16,2048,32,8,8192,128256,tied", "llama-3.2-1b"),
        ("36,2560,32,8,9728,151936,head_dim=128,tied", "qwen3-4b"),
        ("36,2560,32,8,9728,151936, tied, head_dim=128", "qwen3-4b"),
        ("36,4096,32,8,12288,151936,head_dim=128", "qwen3-8b"),
    ],
)
def test_a_shape_knows_tied_embeddings_and_the_width_of_a_head(shape, name):
    assert model_shaped(shape) == MODELS[name]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("36,2560,33,11,9728,151936", "give the width of a head, such as head_dim=128"),
        (
            "24,896,14,2,4864,151936,untied",
            "'untied' is not known; after them, if needed, head_dim=128",
        ),
        ("24,896,14,2,4864,151936,head_dim=0", "'head_dim=0' is not known"),
        ("24,896,14,2,4864", "six whole numbers above 0; after them"),
    ],
)
def test_a_shape_that_is_not_understood_is_told_what_may_follow(shape, said):
    with pytest.raises(ValueError, match="=") as refused:
        model_shaped(shape)
    assert said in str(refused.value)


@pytest.mark.parametrize("head_dim", [0, 48])
def test_the_executed_network_has_the_shapes_parameters(head_dim):
    model = Model(2, 128, 4, 2, 344, 1000, True, True, 0, head_dim)
    with torch.device("meta"):
        network = Transformer(model)
    assert sum(each.numel() for each in network.parameters()) == model.parameters


def test_a_network_without_a_recipe_is_not_executed(capsys):
    with pytest.raises(SystemExit):
        main(["--model", "gpt-oss-20b", "--nodes", "8", "--execute"])
    assert "no recipe for a mixture of experts" in capsys.readouterr().err


def test_a_preset_plans_like_its_shape():
    both = (["--model", "qwen3-4b"], ["--shape", "36,2560,32,8,9728,151936,head_dim=128,tied"])
    jobs = [read(arguments().parse_args(given))[0] for given in both]
    assert jobs[0] == jobs[1]


# --- the answer begins with what it assumed


def answered(capsys, *words):
    main([*words, "--explain"])
    text = capsys.readouterr().out
    main([*words, "--json"])
    return text, json.loads(capsys.readouterr().out)["assumed"]


def test_an_answer_begins_with_what_it_assumed(capsys):
    text, found = answered(capsys, "--model", "mixtral-8x7b", "--nodes", "16", "--context", "4096")
    head = " ".join(text[: text.index("largest parts")].split())
    for said in (
        "model mixtral-8x7b: 46.70 billion parameters, 12.88 billion active; 32 layers of width",
        "2 of 8 experts per token, MLP width 14,336; vocabulary of 32,000, not tied to the head",
        "attention 32 heads of 128, 8 KV heads; full attention",
        "step sequences of 4,096 tokens; bf16, fp32 master copy and gradients; PyTorch, eager",
        "GPUs 128 × H100 SXM5 80 GB, 79.1 GiB (84.9 GB) usable; 8 per host",
        "400 GB/s per host between hosts (all its ports, one way), planned with 80% of that",
        "by a curve fitted to published runs on this GPU",
    ):
        assert said in head
    wanted = {"parameters": 46.7e9, "active_parameters": 12.88e9, "host_bandwidth": 400e9}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-3)
    assert found["experts"] == {
        "routed": 8, "active": 2, "ffn": 14336, "shared": 0, "dense": 0
    }  # fmt: skip
    assert (found["layers"], found["width"], found["vocab_size"]) == (32, 4096, 32000)
    assert (found["tied"], found["heads"], found["kv_heads"], found["head_dim"]) == (
        False, 32, 8, 128
    )  # fmt: skip
    assert (found["context"], found["gpus"], found["measured_curve"]) == (4096, 128, True)


@pytest.mark.parametrize(
    ("words", "said", "is_measured"),
    [
        (["--gpu", "mi300x"], "no measured curve, but that of the H100", False),
        (["--gpu", "4090"], "no measured curve, but that of the A100", False),
        (["--gpu", "h100-pcie"], "no measured curve, but that of the H100", False),
        (["--gpu", "mi300x", "--speed", "6e14"], "600 of 1,307 TFLOP/s, as --speed says", True),
        (["--gpu", "a100"], "fitted to published runs on this GPU", True),
    ],
)
def test_an_answer_says_whether_its_speed_was_measured(words, said, is_measured, capsys):
    text, found = answered(capsys, "--params", "1e9", *words)
    assert said in " ".join(text.split())
    assert found["measured_curve"] == is_measured


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-oss-20b", "12 of 24 layers have a window of 128 tokens"),
        ("deepseek-v3", "keys and values from 512 numbers (latent attention)"),
        ("deepseek-v3", "and a shared 2,048; 3 layers with MLP width 18,432 (gated)"),
        ("qwen2.5-0.5b", "494 million parameters, all active"),
        ("llama-3.2-1b", "vocabulary of 128,256, tied to the head"),
    ],
)
def test_an_answer_says_what_is_unusual_in_a_model(name, said, capsys):
    text, _ = answered(capsys, "--model", name, "--nodes", "2")
    assert said in " ".join(text.split())


# --- numbers as people write them, and a GPU of the reader's own


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--params", "8b"], "parameters", 8e9),
        (["--params", "8B"], "parameters", 8e9),
        (["--params", "8e9"], "parameters", 8e9),
        (["--params", "350M"], "parameters", 350e6),
        (["--params", "1.3 B"], "parameters", 1.3e9),
        (["--speed", "400T"], "speed", 4e14),
        (["--network", "400Gbit", "--gpus", "16"], "host_bandwidth", 50e9),
    ],
)
def test_numbers_may_be_written_as_people_do(words, field, value, capsys):
    main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)["assumed"][field]
    assert found == pytest.approx(value, rel=0.01)


def test_tokens_of_a_step_and_of_a_training_may_be_4m_and_15t(capsys):
    said = []
    for batch, tokens in (("4M", "15T"), ("4e6", "15e12")):
        main(["--params", "1B", "--batch", batch, "--tokens", tokens, "--json"])
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]


H100 = """
name = "H100 of mine"
tflops = 989
memory = "79.11GiB"
inside = "450GB"
network = "3200Gbit"
per_host = 8
"""


def test_a_gpu_in_a_file_plans_as_the_same_one_by_name(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(H100)
    said = []
    for words in (["--gpu", "h100"], ["--gpu-file", str(tmp_path / "own.toml")]):
        main(["--model", "llama-3-8b", "--nodes", "2", "--batch", "4M", *words, "--json"])
        said.append(json.loads(capsys.readouterr().out))
    assert said[1]["assumed"]["gpu"] == "H100 of mine"
    assert not said[1]["assumed"]["measured_curve"]
    bands = [[each.pop("step_s_band") for each in one["options"]] for one in said]
    assert said[0]["options"] == said[1]["options"]
    for (low, high), (least, most) in zip(*bands, strict=True):  # nothing was measured on mine
        assert least <= low < high < most


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tflops = 989\n", "", "there is no tflops; it needs name, tflops"),
        ("tflops", "flops = 1\ntflops", "flops is not known"),
        ("989", '"989"', "tflops='989': give a number"),
        ("= 8", "= 8.5", "per_host=8.5: give a whole number"),
        ("450GB", "450", "inside='450': write it with its unit"),
        ("= 8", "= 0", "per_host=0: give 1 to"),
        ("tflops = 989", "tflops 989", "line"),
    ],
)
def test_a_file_that_describes_no_gpu_says_which_field(old, new, said, tmp_path, capsys):
    path = tmp_path / "own.toml"
    path.write_text(H100.replace(old, new))
    with pytest.raises(SystemExit):
        main(["--gpu-file", str(path)])
    error = capsys.readouterr().err
    assert f"gpu_file={str(path)!r}: " in error
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("short", ["bf16-8bit", "fp32", "bf16"])
def test_a_recipe_has_a_short_name(short, capsys):
    said = []
    for recipe in (short, SHORT[short]):
        main(["--params", "1B", "--recipe", recipe, "--json"])
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    assert said[0]["assumed"]["recipe"] == SHORT[short]


def test_every_option_has_help_and_the_margin_says_its_default(capsys):
    assert all(len(action.help or "") > 15 for action in arguments(with_all=True)._actions)
    with pytest.raises(SystemExit):
        main(["--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    assert "(default: h100)" in said
    assert "(default: 10%)" in said
