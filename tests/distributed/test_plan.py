"""Models of memory and time, and the planner: against measurements, closed forms and nonsense."""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.cost import (
    Cluster,
    Link,
    all_reduce,
    half_ring,
    in_turn,
    slowest,
    step_ddp,
    step_zero,
)
from distributed.model_states import RECIPES, STAGES, Recipe, total
from distributed.peak_memory import GPT, Shape, activations, bytes_at_peak
from distributed.plan import INTERCONNECTS, LIMITS, main, measure_module, plan, shape_for
from distributed.published import CASES
from distributed.runtime.trace import overlapped
from distributed.workbench.memory_meter import MemoryUse
from distributed.workbench.transformer import Config, make_model

HOST = Cluster(8, 8, Link(1e-5, 1e10), Link(1e-4, 1e9), 1e12)
times = st.lists(st.floats(0, 1), min_size=1, max_size=30)

MODELS = [
    "hardware",
    "model_states",
    "peak_memory",
    "choose_stage",
    "cost",
    "scaling",
    "published",
    "plan",
]


# --- memory


@pytest.mark.parametrize(
    ("name", "billions"), [("GPT-3 small", 0.125), ("GPT-3 XL", 1.3), ("GPT-3 6.7B", 6.7),
                           ("GPT-3 13B", 13.0), ("GPT-3 175B", 175.0)]
)  # fmt: skip
def test_parameters_are_those_of_gpt_3s_paper(name, billions):
    assert GPT[name].parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("layers", "d", "heads", "t"), [(1, 64, 4, 32), (3, 96, 2, 48)])
def test_parameters_and_activations_are_those_of_our_transformer(layers, d, heads, t):
    shape, rows = Shape(layers, d, heads, t, 50), 4
    model = make_model(Config(v=50, t=t, d=d, layers=layers, heads=heads))
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    with MemoryUse(lambda: {"parameters": model.parameters()}) as use:
        loss = model.loss(torch.randint(50, (rows, t + 1)))
        found = use.now()["activations"]
    del loss
    assert found == pytest.approx(activations(shape, rows, 4), rel=0.01)


def test_a_checkpoint_keeps_the_inputs_and_one_layer():
    shape = Shape(10, 64, 4, 32, 1)
    per_layer = activations(shape, 1, 4) - activations(shape._replace(layers=9), 1, 4)
    kept = activations(shape, 1, 4, checkpoint=True)
    kept_9 = activations(shape._replace(layers=9), 1, 4, checkpoint=True)
    assert kept - kept_9 == 4 * 32 * 64
    assert kept < activations(shape, 1, 4) / 3
    assert per_layer == 4 * 32 * (16 * 64 + 8)


@given(st.sampled_from([*RECIPES.values()]), st.integers(1, 64), st.integers(0, 3))
def test_states_are_memorys_and_the_rest_is_named(recipe, ranks, stage):
    shape = Shape(4, 128, 4, 64, 100)
    found = bytes_at_peak(shape, 2, ranks, stage, recipe)
    extra = {"activations", "gathered", "buckets"}
    states = sum(size for name, size in found.items() if name not in extra)
    assert states == pytest.approx(total(shape.parameters, ranks, stage, recipe))
    assert ("gathered" in found) == (stage == 3)
    with_allowance = bytes_at_peak(shape, 2, ranks, stage, recipe, allowance=0.1)
    assert sum(with_allowance.values()) == pytest.approx(1.1 * sum(found.values()))


# --- time


@given(st.integers(2, 64), st.floats(1, 1e9))
def test_an_all_reduce_in_a_host_is_two_half_rings(ranks, size):
    cluster = HOST._replace(ranks=ranks, per_host=64)
    expected = 2 * (ranks - 1) * (1e-5 + size / ranks / 1e10)
    assert all_reduce(cluster, size) == pytest.approx(expected)
    assert all_reduce(cluster, size) == pytest.approx(2 * half_ring(cluster, size))


@pytest.mark.parametrize("per_host", [1, 8])
def test_between_many_hosts_a_tree_is_faster_than_a_ring(per_host):
    many = HOST._replace(ranks=per_host * 1024, per_host=per_host)
    assert all_reduce(many, 1e6) < 2 * 1023 * 1e-4
    assert all_reduce(many, 1e6) > 2 * math.log2(1024) * 1e-4


def test_a_prediction_takes_work_for_each_bucket_and_none_for_ranks():
    def lines_run(ranks, buckets):
        count = 0

        def trace(frame, *_):
            nonlocal count
            ours = "distributed" in frame.f_code.co_filename
            count += ours
            return trace if ours else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            step_ddp(HOST._replace(ranks=ranks, jitter=0.05), 1e12, [1e6] * buckets)
        finally:
            sys.settrace(before)
        return count

    assert lines_run(64, 200) == lines_run(16_384, 200)
    one, two, three = (lines_run(16_384, buckets) for buckets in (200, 400, 600))
    assert 0 < two - one == three - two


@given(times, times)
def test_overlapped_against_bounds(ready, messages):
    n = min(len(ready), len(messages))
    ready, messages = sorted(ready[:n]), messages[:n]
    end = overlapped(ready, messages, ready[-1])
    assert end >= max(ready[-1], ready[0] + sum(messages)) * (1 - 1e-12)
    assert end <= (ready[-1] + sum(messages)) * (1 + 1e-12)
    assert overlapped(ready, [0.0] * n, ready[-1]) == ready[-1]


@given(times)
def test_blocks_in_turn_take_the_slower_of_gather_and_compute(seconds):
    n = len(seconds)
    assert in_turn(0, [0.0] * n, seconds, [0.0] * n) == pytest.approx(sum(seconds))
    assert in_turn(0, seconds, [0.0] * n, [0.0] * n) == pytest.approx(sum(seconds))
    both = in_turn(0, seconds, seconds, [0.0] * n)
    assert sum(seconds) - 1e-9 <= both <= 2 * sum(seconds) + 1e-9


def test_a_gather_hides_beside_the_block_before():
    # Each block computes for 2 and is gathered in 1: only the first gather is waited for.
    assert in_turn(0.0, [1.0] * 5, [2.0] * 5, [0.0] * 5) == 11
    # The other way round: the link never rests, and the last block computes alone.
    assert in_turn(0.0, [2.0] * 5, [1.0] * 5, [0.0] * 5) == 11
    # Gradients leave beside the next block; the last one's are waited for.
    assert in_turn(0.0, [0.0] * 5, [2.0] * 5, [1.0] * 5) == 11


def test_a_step_without_messages_is_its_computation():
    fast = HOST._replace(inside=Link(0.0, math.inf))
    for step in (
        step_ddp(fast, 1e12, [1e6] * 3),
        *(step_zero(fast, 1e12, s, [1e6] * 3) for s in (1, 2, 3)),
    ):
        assert step.total == pytest.approx(1.0)
        assert step.communication == 0
        assert step.exposed == pytest.approx(0)


def test_bytes_of_the_stages_are_in_the_times():
    """On a link without latency DDP, ZeRO-1, 2 and 3 send 2Ψ, 2Ψ, 2Ψ, and nearly 3Ψ."""
    link = HOST._replace(inside=Link(0.0, 1e9))
    blocks = [1e6] * 50
    ddp = step_ddp(link, 1.0, blocks).communication
    assert ddp == pytest.approx(2 * 7 / 8 * 50e6 / 1e9)
    sent = [step_zero(link, 1.0, stage, blocks).communication / ddp for stage in (1, 2, 3)]
    assert sent == [pytest.approx(1), pytest.approx(1), pytest.approx(1.5 - 1 / 50)]


def test_the_slowest_of_many():
    assert slowest(HOST, 1.0) == 1.0
    assert slowest(HOST._replace(jitter=0.1, ranks=1), 1.0) == 1.0
    many = HOST._replace(jitter=0.05, ranks=10_000)
    largest = torch.randn(50, 10_000, generator=torch.Generator().manual_seed(0)).max(1).values
    assert slowest(many, 1.0) == pytest.approx(1 + 0.05 * largest.mean().item(), rel=0.03)


# --- the planner


def test_the_guessed_shape_has_about_the_parameters():
    for parameters in (1e8, 7e9, 70e9, 1e12):
        shape = shape_for(parameters, 2048)
        assert 12 * shape.layers * shape.d**2 == pytest.approx(parameters, rel=0.1)


@given(
    parameters=st.floats(1e6, 1e12), hosts=st.integers(1, 64), memory=st.floats(1e9, 1e12),
    rows=st.floats(0.1, 64), checkpoint=st.booleans(),
)  # fmt: skip
def test_the_recommended_fits_and_none_that_fits_is_much_faster(
    parameters, hosts, memory, rows, checkpoint
):
    cluster = Cluster(8 * hosts, 8, INTERCONNECTS["nvlink"], Link(1e-5, 5e10), 4e14)
    found = plan(parameters, cluster, memory, rows, checkpoint=checkpoint)
    fitting = [o for o in found.options if sum(o.memory.values()) <= memory]
    assert [o for o in found.options if o.fits] == fitting
    assert len(found.options) == 4 + (hosts > 1)
    if not fitting:
        assert found.recommended is None
        assert "nothing fits" in found.why
        return
    assert found.recommended in fitting
    assert found.recommended.step.total <= 1.01 * min(o.step.total for o in fitting)
    assert all(0 < o.efficiency <= 1 + 1e-9 for o in found.options)


def run(*arguments):
    command = [sys.executable, "-m", "distributed.plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_models_of_cost_are_plain_python():
    """They run wherever there is a Python: without torch, NumPy or anything else installed."""
    program = """
import importlib, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [sys.argv[1]]
for name in sys.argv[2:]:
    importlib.import_module(f"distributed.{name}")
try:
    importlib.import_module("numpy")
except ImportError:
    sys.exit(0)
sys.exit("there is a NumPy here: this proved nothing")
"""
    code = str(Path(plan.__code__.co_filename).parents[1])
    command = [sys.executable, "-I", "-S", "-c", program, code, *MODELS]
    subprocess.run(command, check=True, timeout=60)


def test_the_command_line_and_its_json():
    done = run("--params", "70e9", "--gpus", "8", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [o["name"] for o in found["options"]] == list(STAGES)
    assert found["recommended"] is None
    states = ("parameters", "gradients", "master copy", "optimizer states")
    zero_2 = sum(found["options"][2]["bytes"][part] for part in states)
    assert zero_2 == pytest.approx(262.5e9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0"], "gpus=0: give 1 to 1e+08"),
        (["--params", "-1"], "params=-1"),
        (["--gpu-memory", "80XB"], "size='80XB'"),
        (["--recipe", "fp4"], "recipe='fp4': choose one of"),
        (["--module", "distributed.nothing:make"], "module='distributed.nothing:make'"),
        (["--params", "inf"], "params=inf: give 1 to 1e+16"),
        (["--params", "nan"], "params=nan: give 1 to 1e+16"),
        (["--params", "1e308"], "params=1e+308: give 1 to 1e+16"),
        (["--params", "1e-5"], "params=1e-05: give 1 to 1e+16"),
        (["--context", "1000000000000"], "context=1e+12: give 1 to 1e+09"),
        (["--words", "1000000000000"], "words=1e+12: give 1 to 1e+09"),
        (["--network", "0GB", "--gpus", "16"], "network=0: give 1 to 1e+16"),
        (["--gpus", "12"], "gpus=12: hosts of per_host=8 would not all be full"),
        (["--gpus", "eight"], "argument --gpus: invalid int value: 'eight'"),
        (["--interconnect", "infiniband"], "argument --interconnect: invalid choice"),
        (["--words", "0"], "words=0: give 1 to 1e+09"),
        (["--allowance", "-1"], "allowance=-1: give 0 to 10"),
        (["--allowance", "nan"], "allowance=nan: give 0 to 10"),
        (["--allowance", "inf"], "allowance=inf: give 0 to 10"),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("end", [0, 1])
def test_the_ends_of_all_limits_make_numbers_that_json_has(end, capsys):
    within = ("params", "gpus", "rows", "context", "speed", "words", "allowance")
    given = {name: LIMITS[name][end] for name in within}
    whole = {"gpus", "context", "words"}
    for checkpoint in ([], ["--checkpoint"]):
        options = [f"--{n}={int(v) if n in whole else v}" for n, v in given.items()]
        main([*options, "--per-host=1", "--json", *checkpoint])
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert len(found["options"]) >= len(STAGES)


def test_a_prediction_stands_beside_how_far_such_predictions_were_off(capsys):
    off = [case.predicted / case.efficiency - 1 for case in CASES]
    assert min(off) > 0, "all too optimistic"
    main([])
    text = capsys.readouterr().out.splitlines()[-1]
    assert f"{len(off)} of {len(off)} published runs scaled worse" in text
    assert f"{statistics.median(off):+.1%} (median)" in text
    main(["--json"])
    assert json.loads(capsys.readouterr().out)["efficiency_too_high_by"] == statistics.median(off)


def gpt_2_in_the_small():
    return make_model(Config(v=50_000, t=32, d=256, layers=5, heads=4))


def test_a_module_tells_its_parameters_and_its_shape():
    plain, _ = measure_module("distributed.simple_ddp:make_network", 2048)
    assert plain == 64 * 128 + 128 * 2 + 128 + 1290
    count, shape = measure_module(f"{__name__}:gpt_2_in_the_small", 64)
    assert (shape.layers, shape.d, shape.t, shape.v) == (5, 256, 64, 50_000)
    assert count == sum(p.numel() for p in gpt_2_in_the_small().parameters())


def test_words_and_the_allowance_take_memory():
    few, many = (plan(1e9, HOST, 80e9, words=words, allowance=0).options[0] for words in (1, 50257))
    logits = 2 * 2048 * 50256  # bytes
    assert many.memory["activations"] - few.memory["activations"] == logits
    with_loss = plan(1e9, HOST, 80e9, allowance=0.1).options[0].memory
    assert with_loss["allowance"] == pytest.approx(0.1 * sum(many.memory.values()))


def test_why_names_what_fits_and_was_passed_over():
    nvlink = HOST._replace(inside=INTERCONNECTS["nvlink"], speed=4e14)
    found = plan(7e9, nvlink, 80e9)
    assert found.recommended is found.options[3]
    assert "DDP would not fit" in found.why
    slower = found.options[1].step.total / found.options[3].step.total - 1
    assert f"ZeRO-1 fits, too: {slower:.0%} slower" in found.why


def test_seven_billion_on_eight_fit_in_zero_1(capsys):
    main(["--params", "7e9", "--gpus", "8", "--gpu-memory", "60GB"])
    said = capsys.readouterr().out
    assert "ZeRO-1" in said
    assert [line.split()[2] for line in said.splitlines()[1:5]] == ["no", "yes", "yes", "yes"]


def test_recipes_scale_the_memory():
    small = plan(1e9, HOST, 80e9, recipe="bf16, 8-bit Adam, fp32 master copy").options[0]
    large = plan(1e9, HOST, 80e9).options[0]
    assert large.memory["optimizer states"] - small.memory["optimizer states"] == pytest.approx(6e9)
    assert Recipe(2, 2, 4, 8).total == 16
