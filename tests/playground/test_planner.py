"""The planner of a page: its form says what the command line says, and each copy of a plan runs."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import types
from functools import partial, partialmethod
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.checkpoint import checkpoint as with_checkpoint

from distributed.planner.command import main
from distributed.planner.config_json import read_fields, reads_as
from distributed.planner.hardware import GPUS
from distributed.planner.job import RECIPE, REDUCED_IN_FP32, Option
from distributed.planner.models import PUBLISHED
from distributed.planner.speed import RECOMPUTE
from playground.build.tab import archive, standard
from playground.planner.answer import (
    LINE,
    answer,
    between,
    copies,
    end_of,
    facts,
    html,
    planned,
    ways_out,
)
from playground.planner.form import FIELDS, RECIPE_OF, SHAPE, query_of, state_of, words_of
from playground.planner.page import files, page
from recipes.copies import command_line, deepspeed_json, torch_code, torchrun_line

QUERIES = [
    "",
    "model=llama-3-8b&nodes=1",
    "model=gpt-2-124m&nodes=1&rows=8&context=1024&tokens=3e11",
    "model=own&width=2048&layers=24&heads=16&kv=16&ffn=8192&nodes=3&gpu=a100",
    "model=llama-3-405b&nodes=64&network=3200GB",
    "model=llama-3-8b&recipe=bf16-8-bit-adam-fp32-master-copy&nodes=4&network=50GB&stack=book",
    "gpu=4090&per_host=2&nodes=1&model=mpt-125m&fused_loss=on&speed=5e13&gpu_memory=20GiB",
    "model=llama-3-8b&nodes=1&compile=on&checkpoint=none",
    "model=llama-3-8b&nodes=8&batch=4194304",
    "batch=4e6&rows=2&speed=4e14",
    "model=qwen3-30b-a3b&tokens=15T&batch=4M&speed=400T",
    "model=own&width=2560&head_dim=128&ffn=9728&tied=on&layers=36&nodes=2",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_command_line_that_a_plan_is_copied_as_gives_that_plan(query, capsys):
    state = state_of(query)
    found = planned(state).plan
    program, *words = shlex.split(command_line(words_of(state)))
    assert (program, words[:2]) == ("python", ["-m", "distributed.planner"])
    main([*words[2:], "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["recommended"] == (found.recommended.name if found.recommended else None)
    assert said["why"] == found.why
    assert [each["step_s"] for each in said["options"]] == [o.step.total for o in found.options]
    assert [each["bytes"] for each in said["options"]] == [o.memory for o in found.options]


@pytest.mark.parametrize("query", QUERIES)
def test_an_address_opens_with_its_plan(query):
    said = json.loads(answer(query))
    assert state_of(said["query"]) == state_of(query)
    assert json.loads(answer(f"?{said['query']}")) == said
    assert query_of(state_of("")) == ""
    assert said["said"].split(":")[0] in said["html"]


def test_a_plan_whose_step_waits_for_launches_says_so_on_the_page():
    assert "Caution: 512 tokens in a micro-batch" in json.loads(answer("context=512"))["html"]
    assert "Caution" not in json.loads(answer(""))["html"]


def test_a_plan_says_its_share_of_the_peak_and_what_tokens_cost():
    state = state_of("price=2&speed=4e14")
    found = planned(state)
    best, job = found.best, found.job
    assert best is not None
    said = dict(facts(found, state))
    computing = 1 - best.step.exposed / best.step.total
    mfu = 4e14 / GPUS["h100"].peak / (1 + RECOMPUTE[best.checkpoint]) * computing
    assert abs(float(said["MFU"].rstrip("%")) / 100 - mfu) < 0.01
    assert said["tokens/s per GPU"] == f"{job.tokens / best.step.total:,.0f}"
    hours = 1e6 * best.step.total / job.tokens / 3600
    assert said["per million tokens"] == f"{hours:.2g} GPU-hours"
    assert said["cost per million tokens"] == f"{2 * hours:.3g}"
    assert said["total cost"] == f"{2 * hours * 2e6:,.0f}"
    assert "total cost" not in dict(facts(found, state_of("speed=4e14")))
    assert words_of(state) == words_of(state_of("speed=4e14"))


def test_a_global_batch_is_shared_out_and_its_copies_say_the_same():
    state = state_of("model=llama-3-8b&batch=4194304")
    found = planned(state)
    best, job, cluster = found.best, found.job, found.assumed.cluster
    assert best is not None
    assert job == best.job
    assert job.accumulate > 1
    assert job.rows * job.accumulate * 8192 * cluster.ranks == 4194304
    assert dict(facts(found, state))["tokens per step"] == "4,194,304"
    assert f"{job.accumulate} micro-batches of {job.rows:g} sequence" in html(state, found)
    settings = json.loads(deepspeed_json(best, job, cluster))
    assert settings["train_batch_size"] * 8192 == 4194304
    assert settings["gradient_accumulation_steps"] == job.accumulate


WRONG = {
    "rows=-1": "rows",
    "price=free": "price",
    "rows=abc": "rows",
    "nodes=nan": "nodes",
    "nodes=1e400": "nodes",
    "nodes=2.5": "nodes",
    "nodes=1e9": "nodes",
    "tokens=": "tokens",
    "tokens=1e30": "tokens",
    "gpu=h1000": "gpu",
    "model=%3Cb%3E": "model",
    "recipe=fp8": "recipe",
    "checkpoint=some": "checkpoint",
    "network=fast": "network",
    "gpu_memory=80": "gpu_memory",  # bytes, without a unit: a number that fits nothing
    "network=400": "network",
    "model=own&heads=30": "heads",
    "model=own&kv=5": "kv",
    "speed=1e99": "speed",
    "stack=mine": "stack",
    "fused_loss=perhaps": "fused_loss",
    "per_host=0": "per_host",
    "accumulate=1e7": "accumulate",
    "batch=4e6&accumulate=8": "accumulate",
    "batch=0": "batch",
    "batch=1e13": "batch",
    "context=99999999999": "context",
    "model=own&layers=99999": "layers",
    "model=own&kv=0": "kv",
}


@pytest.mark.parametrize(("query", "field"), WRONG.items())
def test_what_makes_no_sense_is_one_line_at_its_field(query, field):
    errors = json.loads(answer(query)).get("errors", {})
    assert list(errors) == ([field] if field else [])
    assert all(0 < len(line) < 120 and "\n" not in line for line in errors.values())


def test_a_shape_that_is_not_asked_for_may_be_anything():
    assert "html" in json.loads(answer("model=llama-3-8b&layers=x"))


def test_every_way_out_fits():
    for query in ("model=llama-3-405b&nodes=64", "nodes=1&model=llama-3-8b&per_host=1", "nodes=1"):
        state = state_of(query)
        assert planned(state).best is None
        ways = ways_out(state)
        assert len(ways) >= 2, query
        for said, new in ways:
            best = planned(new).best
            assert best is not None
            assert said.endswith(f"{best.name} fits")
            assert query_of(new).replace("&", "&amp;") in html(state, planned(state))


# --- a file that is chosen

QWEN = PUBLISHED["qwen3-8b"]["config"] | {"torch_dtype": "bfloat16", "eos_token_id": [151645, 1]}


def of_file(config: object, **more: str) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    return urlencode({"model": "file", "config": text} | more)


def test_a_chosen_file_plans_as_the_preset_of_the_same_model(tmp_path, capsys):
    file = json.loads(answer(of_file(QWEN, nodes="2")))
    preset = json.loads(answer("model=qwen3-8b&nodes=2"))
    assert file["said"] == preset["said"]
    assert "config.json: 8.19 billion parameters" in file["html"]
    assert "torch_dtype" not in file["query"]
    assert json.loads(answer(file["query"])) == file  # the address is the plan
    line = command_line(words_of(state_of(file["query"])))
    assert "--model config.json --gpu h100 --nodes 2" in line
    assert line in file["html"]
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    words = shlex.split(line)[3:]
    main(["--model", str(tmp_path / "config.json"), *words[2:], "--json"])
    assert json.loads(capsys.readouterr().out)["why"] in file["said"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_address_has_only_those_fields_of_a_file_that_its_shape_depends_on(name):
    config = PUBLISHED[name]["config"]
    query = json.loads(answer(of_file(config | {"architectures": ["X"]})))["query"]
    kept = json.loads(state_of(query)["config"])
    assert read_fields(kept) == read_fields(config)
    assert len(query) < 600
    for field in kept:
        fewer = {key: value for key, value in kept.items() if key != field}
        assert not reads_as(fewer, read_fields(config))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "choose a file, the config.json of your model"),
        ("{", "isn't JSON"),
        ("[1]", "has no fields"),
        ("\0" * 50, "isn't JSON"),
        ({"model_type": "mamba"}, "isn't a transformer"),
        ({"model_type": "llama", "hidden_size": 4096}, "there is no num_hidden_layers in it"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_beside_it(text, said):
    errors = json.loads(answer(of_file(text)))["errors"]
    assert list(errors) == ["config"]
    assert said in errors["config"]


def test_a_file_that_is_read_as_something_else_is_a_caution_and_one_not_asked_for_is_forgotten():
    html = json.loads(answer(of_file(QWEN | {"model_type": "mine", "head_dim": 128})))["html"]
    assert "Caution: model_type &#x27;mine&#x27; is read as if it were like Llama&#x27;s." in html
    assert json.loads(answer("model=llama-3-8b&config=nonsense"))["query"] == "model=llama-3-8b"


def test_both_ends_of_a_band_have_one_unit():
    assert between(8.61, 13.25) == "8.61 to 13.25 s"
    assert between(0.01, 0.02) == "10 to 20 ms"
    assert between(0.05, 0.2) == "50 ms to 0.20 s"


# --- bars


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0, 1000))
def test_what_needs_more_has_a_longer_bar_and_none_is_cut(one, other, third):
    less, more, most = sorted([one, other, third])
    assert 0 <= end_of(less, most) <= end_of(more, most) <= 1 + 1e-9
    if more > 1.01 * less + 1e-3:
        assert end_of(less, most) < end_of(more, most)
    assert end_of(1, most) == pytest.approx(LINE)


def test_a_bar_shows_that_1369_gb_is_more_than_190():
    html = json.loads(answer(""))["html"]
    rows = re.findall(r'aria-label="[^"]*">((?:<i [^>]*></i>)+)</span><span>([\d,]+) GB', html)
    ends = {
        size: sum(float(width) for width in re.findall(r"width:([\d.]+)%", parts))
        for parts, size in rows
    }
    assert ends["1,369"] == pytest.approx(100, abs=0.1)
    assert 100 * LINE < ends["190"] < 0.8 * ends["1,369"]
    assert ends["46"] < 100 * LINE
    assert "Right of the line, the scale is logarithmic" in html


# --- copies


class Small(torch.nn.Module):
    """As `parallelize` wants it: blocks in `layers`, and a loss comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.to(self.first.weight.dtype))
        for layer in self.layers:
            x = x + layer(x)
        return x.float().square().mean()


def compress(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    half = bucket.buffer().to(torch.bfloat16).float()
    dist.all_reduce(half)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().copy_(half / dist.get_world_size()))
    return future


def names_of(code: str) -> dict[str, Any]:
    """What copied code defines. PyTorch has no 8-bit Adam: another stands in for torchao's."""
    optim = types.ModuleType("torchao.optim")
    optim.AdamW8bit = type("AdamW8bit", (torch.optim.AdamW,), {})  # type: ignore[attr-defined]
    sys.modules["torchao.optim"] = optim
    names: dict[str, Any] = {}
    exec(compile(code, "copied.py", "exec"), names)
    if "bf16_compress_hook" in names:  # PyTorch's is for GPUs alone
        names["bf16_compress_hook"] = compress
    return names


def train(group, code):
    """The loss of each rank before and after ten steps, and its optimizer, by copied code."""
    names = names_of(code)
    torch.manual_seed(0)
    model, optimizer = names["parallelize"](Small, device="cpu")
    step = names["train_step"]
    if "device" in inspect.signature(step).parameters:
        step = partial(step, device="cpu")
    x = torch.ones(4, 8)
    before = float(model(x).detach())
    for _ in range(10):  # a single one of 1e-4 is lost where there are bf16 weights alone
        step(model, optimizer, [(x,), (x,)])
    return before, float(model(x).detach()), type(optimizer).__name__


STRATEGIES = ["DDP", "ZeRO-1", "ZeRO-2", "HSDP", "ZeRO-3"]


def code_of(name: str, recipe: str, checkpoint: str = "none", more: str = "") -> str:
    slugs = {value: key for key, value in RECIPE_OF.items()}
    state = state_of(f"nodes=2&per_host=2&model=mpt-125m&recipe={slugs[recipe]}{more}")
    found = planned(state)
    job, cluster = found.job, found.assumed.cluster
    best = next(option for option in found.plan.options if option.name == name)
    return torch_code(best._replace(checkpoint=checkpoint), job, cluster)


MIXED = RECIPE_OF["bf16-adam-in-fp32-fp32-master-copy"]
COPIED = [
    (name, checkpoint, recipe)
    for name in STRATEGIES
    for checkpoint, recipe in (
        ("none", "fp32, Adam"), ("selective", MIXED), ("full", REDUCED_IN_FP32),
        ("none", "fp32, SGD"), ("none", "fp32, SGD with momentum"),
        ("none", "bf16, Adam in fp32, no master copy"),
        ("none", "bf16, 8-bit Adam, fp32 master copy"),
    )
]  # fmt: skip
SOON = {("ZeRO-3", "selective", MIXED)}


@pytest.mark.parametrize(
    ("name", "checkpoint", "recipe"),
    [pytest.param(*row, marks=() if row in SOON else pytest.mark.slow) for row in COPIED],
)
def test_copied_pytorch_trains_on_four_ranks(pools, name, checkpoint, recipe):
    code = code_of(name, recipe, checkpoint)
    assert max(map(len, code.splitlines())) <= 92, code
    expected = "SGD" if "SGD" in recipe else "AdamW8bit" if "8-bit" in recipe else "AdamW"
    for before, after, optimizer in pools[4](train, code):
        assert after < before, code
        assert optimizer == ("ZeroRedundancyOptimizer" if name == "ZeRO-1" else expected)
        assert expected in code


@pytest.mark.parametrize("name", ["DDP", pytest.param("ZeRO-1", marks=pytest.mark.slow)])
def test_copied_code_needs_only_what_torchrun_sets(tmp_path, name):
    """No process group: who copies the text has none yet."""
    script = tmp_path / "copied.py"
    made = 'parallelize(lambda: torch.nn.Linear(2, 2), device="cpu")'
    script.write_text(f"{code_of(name, 'fp32, Adam')}\n\nmodel, _ = {made}\nprint(model)\n")
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, script], env=os.environ | where, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.stdout.startswith("DistributedDataParallel("), done.stderr


def train_compiled(group, code):
    """With PyTorch's graphs and no kernels: those take a compiler minutes."""
    quick = partialmethod(torch.nn.Module.compile, backend="aot_eager")
    with mock.patch.object(torch.nn.Module, "compile", quick):
        return train(group, code)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_copied_pytorch_compiles_each_block_and_trains(pools, name):
    code = code_of(name, RECIPE, "full", "&compile=on")
    assert code.count("layer.compile()") == 1
    assert "compile" not in code_of(name, RECIPE, "full")
    for before, after, _ in pools[4](train_compiled, code):
        assert after < before, code


def test_copied_code_reads_as_people_sort_it():
    for name in STRATEGIES:
        code = code_of(name, "bf16, 8-bit Adam, fp32 master copy", "selective")
        command = [sys.executable, "-m", "ruff", "check", "--select", "E,F,I", "--stdin-filename",
                   "copied.py", "-"]  # fmt: skip
        done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + code


def kept_by(code: str, layer: torch.nn.Module, width: int) -> list[str]:
    """The operations whose results a selectively checkpointed layer keeps."""
    names, kept = names_of(code), []
    policy = names["create_selective_checkpoint_contexts"]

    def spied(choose):
        def chosen(context, operation, *args, **kwargs):
            found = choose(context, operation, *args, **kwargs)
            if found == CheckpointPolicy.MUST_SAVE and not context.is_recompute:
                kept.append(operation.name())
            return found

        return policy(chosen)

    names["create_selective_checkpoint_contexts"] = spied
    x = torch.ones(2, width, requires_grad=True)
    with_checkpoint(layer, x, use_reentrant=False, context_fn=names["keep_half"]).sum().backward()
    return kept


@pytest.mark.parametrize("bias", [False, True])
def test_selective_checkpointing_keeps_every_second_product_with_a_bias_or_without(bias):
    layer = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=bias) for _ in range(4)))
    code = code_of("ZeRO-3", "fp32, Adam", "selective")
    assert kept_by(code, layer, 8) == ["aten::addmm" if bias else "aten::mm"] * 2


def accumulate(group, code):
    """How often DDP reduced in a step of three micro-batches."""
    names = names_of(code)
    model, optimizer = names["parallelize"](Small, device="cpu")
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    names["train_step"](model, optimizer, [(torch.ones(4, 8),)] * 3, device="cpu")
    return len(reduced)


def test_copied_ddp_reduces_once_in_a_step_as_the_plan_counts(pools):
    assert pools[2](accumulate, code_of("DDP", "fp32, Adam")) == [1, 1]


def options(query: str) -> list[tuple[Option, tuple]]:
    found = planned(state_of(query))
    return [(option, (found.job, found.assumed.cluster)) for option in found.plan.options]


def test_copied_settings_of_deepspeed_agree_with_each_other():
    for option, (job, cluster) in options(
        "nodes=4&rows=2&accumulate=3&recipe=bf16-adam-in-fp32-fp32-master-copy"
    ):
        said = json.loads(deepspeed_json(option, job, cluster))
        assert said["train_batch_size"] == 2 * 3 * 32
        assert said["zero_optimization"]["stage"] == {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2}.get(
            option.name, 3
        )
        assert said["bf16"]["enabled"]
        assert said["zero_optimization"].get("zero_hpz_partition_size", 8) == 8
        assert said["optimizer"]["type"] == "AdamW"
        of_pytorch = torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
        assert said["optimizer"]["params"]["weight_decay"] == of_pytorch
        assert said["gradient_clipping"] == 1


@pytest.mark.parametrize(
    ("recipe", "names", "word"),
    [
        ("bf16-8-bit-adam-fp32-master-copy", STRATEGIES, "8-bit"),
        ("bf16-adam-in-fp32-no-master-copy", STRATEGIES, "master copy"),
        ("bf16-fp32-master-copy-and-gradients", ["DDP"], "stage 0"),
    ],
)
def test_what_deepspeeds_file_cannot_say_it_says(recipe, names, word):
    for option, (job, cluster) in options(f"nodes=2&recipe={recipe}"):
        said = deepspeed_json(option, job, cluster)
        assert (word in said and "{" not in said) == (option.name in names)


def test_copied_settings_have_the_optimizer_that_was_chosen():
    for option, (job, cluster) in options("nodes=2&recipe=fp32-sgd-with-momentum&model=mpt-125m"):
        said = json.loads(deepspeed_json(option, job, cluster))
        assert said["optimizer"] == {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
        assert said.get("zero_allow_untested_optimizer", False) == (option.name != "DDP")


@pytest.mark.parametrize(("query", "nodes"), [("nodes=4", 4), ("nodes=1&per_host=2", 1)])
def test_torchrun_understands_the_line(query, nodes):
    cluster = planned(state_of(query)).assumed.cluster
    program, *words = shlex.split(torchrun_line(cluster))
    given = get_args_parser().parse_args(words)
    assert (program, given.training_script) == ("torchrun", "train.py")
    assert nodes * int(given.nproc_per_node) == cluster.ranks
    assert given.standalone or int(given.nnodes) == nodes


# --- what the page brings


def test_what_runs_in_a_tab_is_the_same_files_and_needs_neither_torch_nor_numpy(tmp_path):
    pyodide = Path(__file__).parents[2] / "book/web/node_modules/pyodide"
    (tmp_path / "python.zip").write_bytes(archive(standard(pyodide)))
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from playground.planner import answer\n"
        "assert sys.argv[1] in answer.__file__ and not {'torch', 'numpy'} & set(sys.modules)\n"
        "print(answer.answer(''))"
    )
    command = [sys.executable, "-I", "-c", code, str(tmp_path / "python.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == answer(""), done.stderr
    names = {path.name for path in files()}
    assert {"command.py", "schedules.py", "shapes.py", "speed.py", "hardware.py"} <= names


def test_each_control_has_a_label_and_a_place_for_its_message():
    text = page()
    for name in FIELDS:
        assert f'<label for="planner-{name}">' in text
        assert f'aria-describedby="planner-{name}-wrong"' in text
    assert json.loads(answer(""))["html"] in text
    numbers = ["layers", "width", "heads", "kv", "ffn", "vocab"]
    assert [field.name for field in SHAPE] == [*numbers, "head_dim", "tied"]
    assert len(text) < 30_000


# --- GPUs without bf16, and fp32


def test_a_gpu_without_bf16_has_copies_that_say_so_or_use_fp16():
    state = state_of("model=gpt-2-124m&gpu=v100&context=1024&nodes=1")
    found = planned(state)
    assert "fp16, fp32 master copy and gradients with loss scaling" in html(state, found)
    assert found.best is not None
    texts = copies(found, state)
    assert "has no bf16" in texts["PyTorch"]
    assert "bfloat16" not in texts["PyTorch"]
    state |= {"recipe": "bf16-adam-in-fp32-fp32-master-copy"}
    texts = copies(planned(state), state)
    settings = json.loads(texts["DeepSpeed"])
    assert settings["fp16"] == {"enabled": True}
    assert "bf16" not in settings


def test_mfu_in_fp32_is_a_share_of_the_peak_in_fp32():
    state = state_of("model=llama-3.2-1b&nodes=1&recipe=fp32-adam&context=2048")
    assert 10 < float(dict(facts(planned(state), state))["MFU"].rstrip("%")) < 100


def test_a_plan_beyond_what_was_measured_has_no_band_on_the_page():
    state = state_of("model=llama-3.2-1b&nodes=1&recipe=fp32-adam&context=2048")
    found = planned(state)
    assert not {"band of a step", "band of the days"} & {name for name, _ in facts(found, state)}
    assert "The bands: none, because the plan goes beyond what was measured" in html(state, found)
    assert "Caution: products in fp32: no published run" in html(state, found)


def test_copied_code_reduces_in_fp32_by_default_as_the_book_does_and_so_does_the_plan():
    state = state_of("nodes=2&model=llama-3-8b")
    found = planned(state)
    job, cluster = found.job, found.assumed.cluster
    assert found.best is not None
    code = torch_code(found.best, job, cluster)
    flat = " ".join(code.split())
    policy = "MixedPrecisionPolicy( param_dtype=torch.bfloat16, reduce_dtype=torch.float32 )"
    assert policy in flat
    assert job.recipe.gradients == 4
    assert "To start from a checkpoint, see finetune.py" in flat
    of_bf16 = planned(state | {"recipe": "bf16-adam-in-fp32-fp32-master-copy"})
    assert of_bf16.best is not None
    assert "reduce_dtype=torch.bfloat16" in torch_code(of_bf16.best, of_bf16.job, cluster)


def test_the_page_uses_the_words_of_the_field():
    """Two readers called the old ones cryptic, or translated."""
    text = page() + "".join(json.loads(answer(query))["html"] for query in QUERIES)
    for label in (
        "network bandwidth per host (bytes/s)", "global batch (tokens)", "KV heads", "MLP width",
        "sequences per GPU", "sequence length (tokens)", "lightest that fits", "from config.json",
        "custom", "fused loss", "this book&#x27;s code", "\u00d7 the GPU's memory",
        "full attention",
    ):  # fmt: skip
        assert label in text, label
    for old in (
        "a second<", "of all<", "network of", "heads of keys", "in a row", "rows", "what there is",
        "whole row", "isn't planned", "a shape of your own",
    ):  # fmt: skip
        assert old not in re.sub(r"<[^>]*>", "<", text), old


def test_an_example_is_one_click_away():
    assert '<a class="planner-way" href="?model=llama-3-8b&amp;nodes=2">8B on two hosts' in page()
    assert planned(state_of("model=llama-3-8b&nodes=2")).best is not None
