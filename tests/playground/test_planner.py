"""The planner of a page: its form says what the command line says, and each copy of a plan runs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from distributed.plan import main
from distributed.planner.job import Option
from playground.build.tab import archive, standard
from playground.planner.answer import answer, html, planned, ways_out
from playground.planner.copies import command_line, deepspeed_json, torch_code, torchrun_line
from playground.planner.form import FIELDS, RECIPE_OF, SHAPE, query_of, state_of, words_of
from playground.planner.page import files, page

QUERIES = [
    "",
    "model=llama-3-8b&nodes=1",
    "model=gpt-2-124m&nodes=1&rows=8&context=1024&tokens=3e11",
    "model=own&width=2048&layers=24&heads=16&kv=16&ffn=8192&nodes=3&gpu=a100",
    "model=llama-3-405b&nodes=64&network=3200GB",
    "model=llama-3-8b&recipe=bf16-8-bit-adam-fp32-master-copy&nodes=4&network=50GB&stack=book",
    "gpu=4090&per_host=2&nodes=1&model=mpt-125m&fused_loss=on&speed=5e13&gpu_memory=20GiB",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_command_line_that_a_plan_is_copied_as_gives_that_plan(query, capsys):
    state = state_of(query)
    found, _, _, _ = planned(state)
    program, *words = shlex.split(command_line(words_of(state)))
    assert (program, words[:2]) == ("python", ["-m", "distributed.plan"])
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


WRONG = {
    "rows=-1": "rows",
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
        assert planned(state)[0].recommended is None
        ways = ways_out(state)
        assert len(ways) >= 2, query
        for said, new in ways:
            best = planned(new)[0].recommended
            assert best is not None
            assert said.endswith(f"{best.name} fits")
            assert query_of(new).replace("&", "&amp;") in html(state, planned(state))


# --- copies


class Small(torch.nn.Module):
    """As `parallelize` wants it: blocks in `layers`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def train(group, code):
    """The loss of each rank before and after a step, by the code that was copied."""
    names: dict = {}
    exec(compile(code, "copied.py", "exec"), names)
    torch.manual_seed(0)
    made = names["parallelize"](Small(), device="cpu")
    model, optimizer = made if isinstance(made, tuple) else (made, None)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = model(torch.ones(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


STRATEGIES = ["DDP", "ZeRO-1", "ZeRO-2", "HSDP", "ZeRO-3"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_copied_pytorch_trains_on_four_ranks(pools, name):
    for checkpoint, recipe in (
        ("none", "fp32, Adam"), ("selective", RECIPE_OF["bf16-adam-in-fp32-fp32-master-copy"]),
        ("full", "the same, gradients in fp32"),
    ):  # fmt: skip
        slugs = {value: key for key, value in RECIPE_OF.items()}
        state = state_of(f"nodes=2&per_host=2&model=mpt-125m&recipe={slugs[recipe]}")
        found, job, cluster, _ = planned(state)
        best = next(option for option in found.options if option.name == name)
        code = torch_code(best._replace(checkpoint=checkpoint), job, cluster)
        assert max(map(len, code.splitlines())) <= 92, code
        for losses in pools[4](train, code):
            assert losses[1] < losses[0], code


def options(query: str) -> list[tuple[Option, tuple]]:
    found, job, cluster, _ = planned(state_of(query))
    return [(option, (job, cluster)) for option in found.options]


def test_copied_settings_of_deepspeed_agree_with_each_other():
    for option, (job, cluster) in options("nodes=4&rows=2&accumulate=3"):
        said = json.loads(deepspeed_json(option, job, cluster))
        assert said["train_batch_size"] == 2 * 3 * 32
        assert said["zero_optimization"]["stage"] == {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2}.get(
            option.name, 3
        )
        assert said["bf16"]["enabled"]
        assert said["zero_optimization"].get("mics_shard_size", 8) == 8


@pytest.mark.parametrize(("query", "nodes"), [("nodes=4", 4), ("nodes=1&per_host=2", 1)])
def test_torchrun_understands_the_line(query, nodes):
    _, _, cluster, _ = planned(state_of(query))
    program, *words = shlex.split(torchrun_line(cluster))
    given = get_args_parser().parse_args(words)
    assert (program, given.training_script) == ("torchrun", "train.py")
    assert nodes * int(given.nproc_per_node) == cluster.ranks
    assert given.standalone or int(given.nnodes) == nodes


# --- what the page brings


def test_what_runs_in_a_tab_is_the_same_files_and_needs_neither_torch_nor_numpy(tmp_path):
    pyodide = Path(__file__).parents[2] / "node_modules/pyodide"
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
    assert {"plan.py", "schedules.py", "shapes.py", "speed.py", "hardware.py"} <= names


def test_each_control_has_a_label_and_a_place_for_its_message():
    text = page()
    for name in FIELDS:
        assert f'<label for="planner-{name}">' in text
        assert f'aria-describedby="planner-{name}-wrong"' in text
    assert json.loads(answer(""))["html"] in text
    assert [field.name for field in SHAPE] == ["layers", "width", "heads", "kv", "ffn", "words"]
    assert len(text) < 30_000
