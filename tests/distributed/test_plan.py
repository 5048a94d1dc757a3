"""Models of memory and time, and the planner: against measurements, closed forms and nonsense."""

import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planning import asked_for
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from distributed import planner
from distributed.cost import (
    Cluster,
    Link,
    all_reduce,
    reduce_scatter_time,
    slowest,
    step_ddp,
)
from distributed.model_states import RECIPES, STAGES, total
from distributed.planner import measures
from distributed.planner.command import arguments, main, planned, read
from distributed.planner.hardware import gpu
from distributed.planner.job import (
    ALLOWANCE,
    CONTEXT,
    WIRE,
    Job,
    cluster_of,
    memory_of,
    option,
    work_of,
)
from distributed.planner.limits import LIMITS, SLOWEST
from distributed.planner.memory import sent
from distributed.planner.models import MODELS as MODELS_BY_NAME
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import LOGARITHM, PLAIN, PRESETS, gpt, of_size
from distributed.planner.speed import EAGER, STRAGGLERS, achieved, longer
from distributed.planner.strategy import plan, run_of
from distributed.planner.streams import Work, simulate
from distributed.planner.validation import held_out, runs, way_of
from distributed.runtime.trace import overlapped
from distributed.workbench.memory_meter import MemoryUse
from distributed.workbench.transformer import Config, make_model
from recipes.own import own

HOST = Cluster(8, 8, Link(1e-5, 1e10), Link(1e-4, 1e9), 1e12)
times = st.lists(st.floats(0, 1), min_size=1, max_size=30)

PLANNER = Path(planner.__file__).parent
MODELS = [
    "model_states", "cost", "scaling",
    *(f"planner.{one.stem}" for one in sorted(PLANNER.glob("[!_]*.py"))),
]  # fmt: skip


# --- memory


@pytest.mark.parametrize(
    ("model", "billions"), [(gpt(12, 768, 12), 0.125), (gpt(24, 2048, 24), 1.3),
                            (PRESETS["gpt-3-6.7b"], 6.7), (PRESETS["gpt-3-13b"], 13.0),
                            (PRESETS["gpt-3-175b"], 175.0)]
)  # fmt: skip
def test_parameters_are_those_of_gpt_3s_paper(model, billions):
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("layers", "d", "heads", "t"), [(1, 64, 4, 32), (3, 96, 2, 48)])
def test_parameters_and_activations_are_those_of_our_transformer(layers, d, heads, t):
    """But for biases, and for what norms and attention keep beside vectors of width d."""
    shape, tokens = gpt(layers, d, heads, 50, t), 4 * t
    model = make_model(Config(v=50, t=t, d=d, layers=layers, heads=heads))
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    biases = sum(size for name, size in sizes.items() if name.endswith("bias"))
    assert sum(sizes.values()) - biases == shape.parameters
    with MemoryUse(lambda: {"parameters": model.parameters()}) as use:
        loss = model.loss(torch.randint(50, (4, t + 1)))
        found = use.now()["activations"]
    del loss
    expected = shape.activations(tokens, size=4, scores=LOGARITHM)
    left_out = 4 * tokens * (layers * (4 + heads) + 2)  # two of each norm, and one of each head
    assert found == pytest.approx(expected + left_out, rel=0.01)
    assert found == pytest.approx(expected, rel=0.02)


def test_a_checkpoint_keeps_the_inputs_and_one_layer():
    ten, tokens = gpt(10, 64, 4, vocab_size=1), 32
    nine = ten._replace(layers=9)
    kept = {c: ten.activations(tokens, c, 4) for c in ("none", "full")}
    of_a_layer = {c: kept[c] - nine.activations(tokens, c, 4) for c in kept}
    assert of_a_layer == {"none": 4 * tokens * 16 * 64, "full": 4 * tokens * 64}
    inputs_and_one = 4 * tokens * (10 + 16) * 64
    ends = 4 * tokens * 2 * 64 + tokens * PLAIN
    assert kept["full"] == inputs_and_one + ends
    assert kept["full"] < kept["none"] / 3


@given(st.sampled_from([*RECIPES.values()]), st.integers(1, 64), st.integers(0, 3))
def test_states_are_those_of_the_formula_and_the_rest_is_named(recipe, ranks, stage):
    job = Job(gpt(4, 128, 4, 100, 64), rows=2, context=64, recipe=recipe)
    found = memory_of(job, STAGES[stage], HOST._replace(ranks=ranks), "none", "book")
    extra = {"activations", "gathered", "buckets", "allowance"}
    states = sum(size for name, size in found.items() if name not in extra)
    assert states == pytest.approx(total(job.model.parameters, ranks, stage, recipe))
    assert ("gathered" in found) == (stage == 3 and ranks > 1)
    assert ("buckets" in found) == (stage >= 2 and ranks > 1)
    allowance = found.pop("allowance")
    assert allowance == pytest.approx(ALLOWANCE * sum(found.values()) + CONTEXT)


@pytest.mark.parametrize("stack", ["pytorch", "megatron", "book"])
def test_zero_3_holds_two_gathered_blocks_and_the_root(stack):
    """One block computes while the next one arrives."""
    job = Job(PRESETS["llama-2-7b"])
    found = memory_of(job, "ZeRO-3", HOST, "none", stack)
    size = job.recipe.parameters
    assert found["gathered"] == (2 * job.model.block + job.model.root) * size


# --- time


@given(st.integers(2, 64), st.floats(1, 1e9))
def test_an_all_reduce_in_a_host_is_a_reduce_scatter_and_an_all_gather(ranks, size):
    cluster = HOST._replace(ranks=ranks, per_host=64)
    expected = 2 * (ranks - 1) * (1e-5 + size / ranks / 1e10)
    assert all_reduce(cluster, size) == pytest.approx(expected)
    assert all_reduce(cluster, size) == pytest.approx(2 * reduce_scatter_time(cluster, size))


@pytest.mark.parametrize("per_host", [1, 4, 8])
def test_a_host_has_a_port_for_each_of_its_gpus(per_host):
    one = gpu("h100")
    cluster = cluster_of(one, 16, per_host)
    assert cluster.between.bandwidth == pytest.approx(WIRE * per_host * one.network)
    assert cluster_of(one, 16, per_host, network=1e9).between.bandwidth == pytest.approx(WIRE * 1e9)


@pytest.mark.parametrize("per_host", [1, 8])
def test_between_many_hosts_a_tree_is_faster_than_a_ring(per_host):
    many = HOST._replace(ranks=per_host * 1024, per_host=per_host)
    assert all_reduce(many, 1e6) < 2 * 1023 * 1e-4
    assert all_reduce(many, 1e6) > 2 * math.log2(1024) * 1e-4


def test_an_all_reduce_over_hosts_is_as_fast_as_their_ports_and_counts_each_latency():
    cluster = Cluster(64, 8, Link(3e-6, 360e9), Link(1e-5, 320e9), 1.0)
    latency = 14 * 3e-6 + 2 * 3 * 1e-5  # of a ring in a host, and of a tree over eight
    assert all_reduce(cluster, 0) == pytest.approx(latency)
    assert all_reduce(cluster, 3e9) == pytest.approx(latency + 2 * 63 / 64 * 3 / 320)
    assert all_reduce(cluster._replace(ranks=16), 0) == pytest.approx(14 * 3e-6 + 2 * 1e-5)


def test_a_reduce_scatter_over_hosts_pays_every_step_of_its_ring():
    """A tree has no counterpart for it in NCCL: 512 ranks wait for 511 steps."""
    cluster = Cluster(64, 8, Link(3e-6, 360e9), Link(1e-5, 320e9), 1.0)
    latency = 56 * 3e-6 + 7 * 1e-5
    assert reduce_scatter_time(cluster, 0) == pytest.approx(latency)
    assert reduce_scatter_time(cluster, 3e9) == pytest.approx(latency + 63 / 64 * 3 / 320)
    many = cluster._replace(ranks=512)
    assert reduce_scatter_time(many, 0) == pytest.approx(448 * 3e-6 + 63 * 1e-5)


@given(st.sampled_from([1, 2, 8, 16, 64, 4096]), st.sampled_from([1, 8]), st.floats(1, 1e9))
def test_the_planner_and_the_cost_of_a_step_have_one_all_reduce(ranks, per_host, size):
    cluster = Cluster(ranks, per_host, Link(3e-6, 360e9), Link(1e-5, 320e9), 1.0)
    work = Work(cluster, [size] * 4, [size] * 4, [0.25] * 4, 1 / 3, 2 / 3)
    planned, step = simulate(STACKS["pytorch"]["DDP"], work), step_ddp(cluster, 1.0, [size] * 4)
    assert planned.total == pytest.approx(step.total)


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


def test_a_step_without_messages_is_its_computation():
    fast = HOST._replace(inside=Link(0.0, math.inf))
    step = step_ddp(fast, 1e12, [1e6] * 3)
    assert step.total == pytest.approx(1.0)
    assert step.communication == 0
    assert step.exposed == pytest.approx(0)


def test_bytes_of_ddp_are_in_its_time():
    """On a link without latency: each rank sends 2 (N − 1)/N times the gradients."""
    link = HOST._replace(inside=Link(0.0, 1e9))
    ddp = step_ddp(link, 1.0, [1e6] * 50).communication
    assert ddp == pytest.approx(2 * 7 / 8 * 50e6 / 1e9)


def test_the_slowest_of_many():
    assert slowest(HOST, 1.0) == 1.0
    assert slowest(HOST._replace(jitter=0.1, ranks=1), 1.0) == 1.0
    many = HOST._replace(jitter=0.05, ranks=10_000)
    largest = torch.randn(50, 10_000, generator=torch.Generator().manual_seed(0)).max(1).values
    assert slowest(many, 1.0) == pytest.approx(1 + 0.05 * largest.mean().item(), rel=0.03)


# --- the planner


def seven_billion(rows=1, **more):
    one, job = gpu("h100"), Job(of_size(7e9), rows, **more)
    return job, cluster_of(one, 8, speed=achieved(one, job.model, job.tokens)), one.memory


def test_seven_billion_on_eight_gpus_take_fsdp_in_pytorch_for_its_zero_1_has_fp32_everywhere():
    job, cluster, memory = seven_billion()
    found = plan(job, cluster, memory)
    assert found.recommended.name == "ZeRO-3"
    assert "ZeRO-2 also fits and is just as fast" in found.why
    assert "DDP doesn't fit; ZeRO-1 fits on paper only" in found.why
    assert found.options[1].checkpoint == "full"
    needs = memory_of(job, "ZeRO-1", cluster, "none")
    assert needs["parameters"] + needs["gradients"] == 8 * job.model.parameters
    assert needs["casts"] == 2 * job.model.multiplied
    assert sum(needs.values()) == pytest.approx(95.4e9, rel=1e-3)


def test_seven_billion_on_eight_gpus_take_zero_1_in_megatron_and_the_margin_is_said():
    """ZeRO-3 is not 25% faster: its optimizer gathers beside the next forward pass."""
    found = plan(*seven_billion(), "megatron")
    assert found.recommended.name == "ZeRO-1"
    assert "DDP doesn't fit" in found.why
    zero_3 = found.options[-1].step.total
    assert abs(zero_3 / found.recommended.step.total - 1) < 0.01
    assert "ZeRO-3 also fits and is just as fast" in found.why


def test_seven_billion_with_this_books_listings_take_zero_3():
    """They gather after the step, beside no computation: that is where the old answer came from."""
    found = plan(*seven_billion(), "book")
    assert found.recommended.name == "ZeRO-3"
    assert 0.01 < found.options[1].step.total / found.recommended.step.total - 1 < 0.5


def test_seventy_billion_on_64_gpus_hide_their_messages():
    """One port of 400 Gbit/s for a whole host makes 26% of the same plan, eight of them 99%."""
    job = Job(of_size(70e9), rows=1)
    speed = 400e12
    eight = plan(job, cluster_of(gpu("h100"), 64, speed=speed), 80e9).recommended
    one = plan(job, cluster_of(gpu("h100"), 64, network=50e9, speed=speed), 80e9).recommended
    assert (eight.name, one.name) == ("ZeRO-3", "ZeRO-3")
    assert eight.step.efficiency > 0.98
    assert one.step.efficiency < 0.35


@given(
    parameters=st.floats(1e6, 1e12), hosts=st.integers(1, 64), memory=st.floats(1e9, 1e12),
    rows=st.floats(0.1, 64), checkpoint=st.sampled_from(["auto", "none", "selective", "full"]),
    stack=st.sampled_from([*STACKS]),
)  # fmt: skip
def test_the_recommended_fits_and_none_that_fits_is_much_faster(
    parameters, hosts, memory, rows, checkpoint, stack
):
    cluster = cluster_of(gpu("h100"), 8 * hosts, speed=4e14)
    found = plan(Job(of_size(parameters), rows, checkpoint=checkpoint), cluster, memory, stack)
    fitting = [o for o in found.options if sum(o.memory.values()) <= memory]
    assert [o for o in found.options if o.fits] == fitting
    assert len(found.options) == len(STACKS[stack]) - ("HSDP" in STACKS[stack] and hosts == 1)
    assert all(0 < o.step.efficiency <= 1 + 1e-9 for o in found.options)
    if not fitting:
        assert found.recommended is None
        assert "nothing fits" in found.why
        return
    with_reserve = [o for o in fitting if o.needs <= 0.9 * memory]
    assert found.recommended in (with_reserve or fitting)
    fastest = min(o.step.total for o in with_reserve or fitting)
    assert found.recommended.step.total <= 1.02 * fastest
    assert any("fits on paper only" in each for each in found.cautions) == (not with_reserve)


def test_a_plan_that_leaves_little_memory_free_fits_on_paper_only(capsys):
    """Two hosts, 8,192 tokens: ZeRO-2 would take 84.75 of 84.92 GB, and ZeRO-3 70 as fast."""
    words = ["--model", "llama-3-8b", "--nodes", "2", "--context", "8192"]
    said = {}
    for reserve in ("0", "10%", "0.1"):
        main([*words, "--reserve", reserve, "--json"])
        found = json.loads(capsys.readouterr().out)
        said[reserve] = {each["name"]: each for each in found["options"]}, found["recommended"]
    assert said["10%"] == said["0.1"]
    memory = gpu("h100").memory
    tight, roomy = said["0"][0]["ZeRO-2"], said["10%"][0]["ZeRO-2"]
    assert 0.99 < sum(tight["bytes"].values()) / memory <= 1
    assert (tight["checkpoint"], tight["on_paper"]) == ("none", False)
    assert (roomy["checkpoint"], roomy["on_paper"]) == ("selective", False)
    chosen = said["10%"][0][said["10%"][1]]
    assert sum(chosen["bytes"].values()) <= 0.9 * memory


def test_of_fsdps_three_kinds_the_one_with_the_least_memory_wins_a_tie():
    """They differ by an argument, so memory decides; DDP is simpler, and wins a tie with them."""
    job, memory = Job(PRESETS["llama-3-8b"], context=8192), gpu("h100").memory
    cluster = cluster_of(gpu("h100"), 16, speed=achieved(gpu("h100"), job.model, job.tokens))
    found = plan(job, cluster, memory)
    hsdp, zero_3 = found.options[3:]
    assert abs(hsdp.step.total / zero_3.step.total - 1) < 0.02
    assert hsdp.needs > zero_3.needs
    assert found.recommended is zero_3
    slow = Job(PRESETS["gpt-2-124m"], 16, 1024)
    small = plan(slow, cluster_of(gpu("h100"), 8, speed=1e13), memory)
    assert max(each.step.total for each in small.options) < 1.02 * small.options[0].step.total
    assert small.recommended.name == "DDP"


def test_if_nothing_else_fits_what_fits_on_paper_is_taken_with_a_caution(capsys):
    words = ["--model", "llama-3-8b", "--gpu-memory", "27GB", "--fused-loss", "--recipe", "bf16"]
    words += ["--checkpoint", "full"]
    main(words)
    said = capsys.readouterr().out
    assert re.search(r"^ZeRO-3 +25 paper", said, re.MULTILINE)
    assert "recommended: ZeRO-3" in said
    assert "caution: ZeRO-3 fits on paper only, so expect to run out of memory: it leaves " in said
    main([*words, "--reserve", "1%"])
    assert "paper" not in capsys.readouterr().out


def test_the_least_checkpointing_that_fits_is_taken():
    job, cluster, memory = seven_billion(rows=4)
    for each in plan(job, cluster, memory, reserve=0).options:
        if each.fits and each.checkpoint != "none":
            less = {"selective": "none", "full": "selective"}[each.checkpoint]
            assert sum(memory_of(job, each.name, cluster, less).values()) > memory


def test_what_takes_just_all_of_the_memory_fits():
    job, cluster = Job(PRESETS["llama-2-7b"]), cluster_of(gpu("h100"), 8, speed=4e14)
    needs = sum(memory_of(job, "ZeRO-3", cluster, "none").values())
    full, short = (option(job, "ZeRO-3", cluster, memory) for memory in (needs, needs - 1))
    assert (full.checkpoint, full.fits) == ("none", True)
    assert (short.checkpoint != "none", short.fits) == (True, True)
    assert not option(job._replace(checkpoint="none"), "ZeRO-3", cluster, needs - 1).fits


def test_a_strategy_that_does_not_fit_has_no_step_time(capsys):
    main(["--model", "llama-3-8b", "--gpus", "8", "--explain"])
    said = capsys.readouterr().out
    assert re.search(r"^DDP +\d+ no +full +- +-  ", said, re.MULTILINE)
    assert re.search(r"^ZeRO-3 +\d+ yes +none +[\d.]+s +[\d.]+%  ", said, re.MULTILINE)


def test_days_and_gpu_hours_are_tokens_over_tokens_per_second():
    job, cluster, memory = seven_billion()
    found = run_of(plan(job, cluster, memory).recommended, 8, 2e12)
    assert found.days * 86400 * found.tokens_per_second == pytest.approx(2e12)
    assert found.gpu_hours == pytest.approx(found.days * 24 * 8)


def run(*arguments):
    command = [sys.executable, "-m", "distributed.planner", *arguments]
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
    code = str(PLANNER.parents[1])
    command = [sys.executable, "-I", "-S", "-c", program, code, *MODELS]
    subprocess.run(command, check=True, timeout=60)


def test_the_command_line_and_its_json():
    done = run("--params", "70e9", "--gpus", "8", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [o["name"] for o in found["options"]] == list(STAGES)
    assert found["recommended"] is None
    states = ("parameters", "gradients", "master copy", "optimizer states")
    zero_1 = sum(found["options"][1]["bytes"][part] for part in states)
    assert zero_1 == pytest.approx(9 * of_size(70e9).parameters)  # 4 + 4 + 8/8


def test_a_preset_on_nodes_for_tokens(capsys):
    preset = ["--model", "llama-3-70b", "--gpu", "h100", "--nodes", "8", "--tokens", "2e12"]
    main([*preset, "--explain"])
    said = capsys.readouterr().out
    assert "recommended: ZeRO-3" in said
    assert "2T tokens: " in said
    assert max(map(len, said.splitlines())) <= 88
    main([*preset, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["run"]) == {"tokens_per_second", "days", "gpu_hours", "days_band"}
    assert PRESETS["llama-3-70b"].parameters == pytest.approx(70.6e9, rel=0.001)
    table = said[said.index("largest parts") :]
    rows = [line.split()[:3] for line in table.splitlines()[1:]]
    for row, each in zip(rows, found["options"], strict=False):
        size = sum(each["bytes"].values()) / 1e9
        assert row == [each["name"], f"{size:.0f}", "yes" if each["fits"] else "no"]
    reason = found["why"].split("; ")[0]
    assert f"recommended: ZeRO-3\n  {reason}\n" in said


def leaves():
    sys.exit(0)


def no_module():
    return 7


def nothing_to_train():
    return nn.ReLU()


def convolutions():
    return nn.Sequential(*(nn.Conv2d(64, 64, 3) for _ in range(4)), nn.Flatten())


def two_numbers():
    return nn.Linear(2, 2)


def without_blocks():
    return nn.Sequential(nn.Embedding(50_000, 256), nn.Linear(256, 50_000))


def small_under_large_words():
    """Blocks that are no transformer's: narrower than the embedding by far."""
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    return nn.ModuleDict({"words": nn.Embedding(50_000, 256), "blocks": blocks})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0"], "gpus=0: give 1 to 1e+08"),
        (["--nodes", "0"], "nodes=0: give 1 to 1e+07"),
        (["--nodes", "2", "--gpus", "16"], "nodes and gpus are given"),
        (["--params", "-1"], "params=-1: give 1 to 1e+16"),
        (["--params", "0"], "params=0: give 1 to 1e+16"),
        (["--params", "nan"], "params=nan: give 1 to 1e+16"),
        (["--params", "1e400"], "params=inf: give 1 to 1e+16"),
        (["--params", "1e308"], "params=1e+308: give 1 to 1e+16"),
        (["--params", "7e9", "--model", "llama-3-8b"], "model and params are given"),
        (
            ["--gpu", "h1000"],
            "gpu='h1000' is not known: describe it in a file for --gpu-file; did you mean h100",
        ),
        (
            ["--model", "llama3-70b"],
            "model='llama3-70b' is not a preset: give the path of the model's config.json, or its",
        ),
        (["--gpu-memory", "80XB"], "gpu_memory='80XB': write it with its unit, like 80GB or 80GiB"),
        (["--gpu-memory", "80"], "gpu_memory='80': write it with its unit"),
        (["--network", "400"], "network='400': write it with its unit, like 400GB or 400Gbit"),
        (["--network", ""], "network='': write it with its unit"),
        (["--model", ""], "model='' is not a preset: give the path"),
        (["--shape", "32,4096,30,30,11008,32000"], "heads=30: a width of 4,096 isn't a multiple"),
        (["--shape", "32,4096,32,5,11008,32000"], "kv=5: 32 heads aren't a multiple"),
        (["--module", ""], "module='': give package.module:function"),
        (["--module", f"{__name__}:leaves"], ":leaves': it ended with SystemExit(0)"),
        (["--module", f"{__name__}:no_module"], "is no module of torch"),
        (["--module", f"{__name__}:nothing_to_train"], "has no parameters"),
        (["--module", f"{__name__}:convolutions"], "no transformer: it has no embedding"),
        (["--module", f"{__name__}:two_numbers"], "no transformer: it has no embedding"),
        (
            ["--module", f"{__name__}:without_blocks"],
            "no transformer: it has no row of equal",
        ),
        (
            ["--module", f"{__name__}:small_under_large_words"],
            "no transformer: it has no row of equal blocks of width 256",
        ),
        (["--recipe", "fp4"], "recipe='fp4': choose one of fp32-sgd, fp32-momentum, fp32, "),
        (["--module", "distributed.nothing:make"], "module='distributed.nothing:make'"),
        (["--context", "1000000000000"], "context=1e+12: give 1 to 1e+09"),
        (["--context", "0"], "context=0: give 1 to 1e+09"),
        (["--rows", "nan"], "sequences=nan: give 1e-06 to 1e+09"),
        (["--accumulate", "0"], "accumulate=0: give 1 to 1e+06"),
        (["--speed", "-1"], "speed=-1: a GPU has at least 1e+08 FLOP/s"),
        (["--reserve", "some"], "reserve='some': write it like 10% or 0.1"),
        (["--lora", "0"], "lora=0: give 1 to 100000"),
        (["--lora", "8", "--trainable", "1%"], "lora and trainable are given"),
        (["--trainable", "some"], "trainable='some': write it like 10% or 0.1"),
        (["--trainable", "0"], "trainable=0: give 1e-09 to 1"),
        (["--lora", "8", "--execute"], "lora: the recipes that are executed train everything"),
        (["--reserve", "100%"], "reserve=1: give 0 to 0.9"),
        (["--params", "8x"], "argument --params: '8x' is not a number: write it like 8e9, 8B"),
        (["--gpu", "h100", "--gpu-file", "own.toml"], "gpu and gpu_file are given"),
        (["--gpu-file", "no.toml"], "gpu_file='no.toml': No such file"),
        (["--tokens", "-2e12"], "tokens=-2e+12: give 1 to 1e+18"),
        (["--network", "0GB", "--gpus", "16"], "network=0: give 1 to 1e+16"),
        (["--per-host", "0"], "per_host=0: give 1 to 1e+06"),
        (["--gpus", "12"], "gpus=12: hosts of per_host=8 would not all be full"),
        (["--gpus", "eight"], "argument --gpus: invalid int value: 'eight'"),
        (["--interconnect", "infiniband"], "interconnect='infiniband': choose nvlink, pcie"),
        (["--checkpoint", "some"], "checkpoint='some': choose auto, none, selective, full"),
        (["--stack", "jax"], "stack='jax': choose pytorch, megatron, deepspeed"),
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
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_the_ends_of_all_limits_make_numbers_that_json_has(end, checkpoint, capsys):
    within = ("params", "gpus", "sequences", "context", "accumulate")
    whole = {"gpus", "context", "accumulate"}
    given = {name: LIMITS[name][end] for name in within}
    given |= {"sequences": max(1, given["sequences"]), "speed": (SLOWEST, gpu("h100").peak)[end]}
    options = [f"--{n}={int(v) if n in whole else v}" for n, v in given.items()]
    main([*options, "--per-host=1", "--json", f"--checkpoint={checkpoint}"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert len(found["options"]) >= (len(STAGES) if end else 1)


def gpt_2_in_the_small():
    return make_model(Config(v=50_000, t=32, d=256, layers=5, heads=4))


def test_a_module_tells_its_shape():
    model = own(f"{__name__}:gpt_2_in_the_small").model
    assert (model.layers, model.d, model.vocab_size) == (5, 256, 50_000)
    count = sum(p.numel() for p in gpt_2_in_the_small().parameters())
    assert model.parameters == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    "said", ["400Gbit", "400 Gbit/s", "400Gbps", "400gbit", "400gbps", "50GB", "50GB/s"]
)
def test_a_network_is_said_in_bits_or_bytes(said):
    _, cluster, _ = read(arguments().parse_args(["--gpus", "16", "--network", said]))
    assert cluster.network.bandwidth == pytest.approx(WIRE * 50e9)


def test_on_one_gpu_there_is_one_row(capsys):
    main(["--gpus", "1", "--params", "1e8", "--explain"])
    said = capsys.readouterr().out
    assert "one GPU: nothing to share" in said
    assert not any(name in said for name in ("ZeRO", "HSDP"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--params 7e9 --context 512", ["512 tokens in a micro-batch"]),
        ("--params 7e9 --context 2048", []),
        ("--model gpt-2-124m --context 1024", ["a layer of "]),
        ("--model gpt-2-124m --rows 16 --context 1024", []),
        ("--model gpt-2-124m --context 256 --gpus 1", ["256 tokens", "a layer of "]),
    ],
)
def test_a_step_that_waits_for_launches_is_cautioned_of(words, said, capsys):
    main([*words.split(), "--json"])
    cautions = json.loads(capsys.readouterr().out)["cautions"]
    found = [each for each in cautions if "launching kernels" in each]
    assert len(found) == bool(said)
    assert all(each in found[0] for each in said)
    main([*words.split(), "--explain"])
    assert ("launching kernels" in capsys.readouterr().out) == bool(said)


def test_compiled_blocks_keep_less_where_they_have_swiglu_and_are_faster_on_h100s(capsys):
    cluster = cluster_of(gpu("h100"), 8, speed=4e14)
    for name, less in (("llama-2-7b", 2 * 2048 * 11008 * 32), ("gpt-3-6.7b", 0)):
        for stack in ("pytorch", "megatron"):
            eager, compiled = (
                memory_of(Job(PRESETS[name], compiled=c), "DDP", cluster, "none", stack)
                for c in (False, True)
            )
            # A compiled layer casts a norm's output once for all matrices that read it
            readers = {"llama-2-7b": 3 + 2, "gpt-3-6.7b": 3 + 1}[name]  # of a layer's two norms
            casts = (readers - 2) * 4096 * 2 * 2048 * 32
            more = less + casts * (stack == "pytorch")
            assert eager["activations"] - compiled["activations"] == pytest.approx(more, abs=1)
        again = [memory_of(Job(PRESETS[name], compiled=c), "DDP", cluster, "full") for c in (0, 1)]
        assert again[0] == again[1]
    steps = []
    for words in ([], ["--compile"]):
        main(["--model", "llama-2-7b", *words, "--json"])
        steps.append(json.loads(capsys.readouterr().out))
        ours = "yours are" if words else "yours aren't"
        assert f"compiled blocks ({ours}): " in steps[-1]["published"][-1]
    eager, compiled = (each["options"][-1]["compute_s"] for each in steps)
    assert compiled / eager == pytest.approx(EAGER["h100"])


@pytest.mark.parametrize("batch", ["", " --batch 4M"])
def test_a_measured_speed_is_what_a_plan_computes_with(capsys, batch):
    """Also with a global batch, for which a speed follows from the curve unless one is given."""
    plans = [
        asked_for(f"--model llama-3-8b --nodes 2 --speed {speed}{batch}", capsys)["options"]
        for speed in ("200T", "400T")
    ]
    slow, fast = ({plan["name"]: plan["compute_s"] for plan in found} for found in plans)
    assert slow == pytest.approx({name: 2 * seconds for name, seconds in fast.items()}, rel=1e-3)


def test_what_is_known_of_a_planned_time_is_counted_from_published_rows(capsys):
    apart = held_out(runs())
    of_zero3 = [run.error for run in apart if run.option.name == "ZeRO-3"]
    assert 0 < len(of_zero3) < len(apart)
    median = statistics.median(map(abs, of_zero3))
    main(["--model", "llama-2-7b", "--stack", "megatron", "--explain"])
    said = capsys.readouterr().out
    counted = f"{len(of_zero3)} runs of ZeRO-3, on GPUs of any kind: half of them"
    flat = " ".join(said.split())
    assert f"published: {counted} were planned within {100 * median:.1f}%, median error" in flat
    assert not [run for run in apart if run.option.name == "DDP"]
    main(["--model", "mpt-1b", "--explain"])
    flat = " ".join(capsys.readouterr().out.split())
    assert "published: no run of DDP: nothing to compare the planned time with" in flat
    (compiled,) = re.findall(r"compiled blocks \(yours aren't\): ([\d.]+)% faster in 2 pairs", said)
    titan = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
    values = [float(run.row["value"]) for run in runs() if run.row["source"] == titan]
    gains = [values[1] / values[0] - 1, values[3] / values[2] - 1]
    assert float(compiled) == pytest.approx(100 * statistics.median(gains), abs=0.1)


def test_an_answer_says_how_far_eager_and_compiled_runs_like_it_were_off(capsys):
    """On A100s both have one curve; on H100s eager blocks are slower by what was fitted."""
    apart = {way: [run for run in held_out(runs()) if way_of(run.row) == way]
             for way in ("eager", "compiled")}  # fmt: skip
    times = {}
    for name, generation in (("h100", ("h100", "h200")), ("a100", ("a100",))):
        for way, words in (("eager", []), ("compiled", ["--compile"])):
            main(["--model", "llama-3-8b", "--gpu", name, *words, "--explain"])
            said = " ".join(capsys.readouterr().out.split())
            assert f"a curve fitted to published runs on this GPU, for {way} blocks" in said
            alike = [run for run in apart[way] if run.row["gpu"] in generation]
            bias = statistics.median(run.error for run in alike)
            off = f"median error: {100 * abs(bias):.1f}% too {'fast' if bias > 0 else 'slow'}"
            like = f"{len(alike)} runs, {way} like yours, on {name.upper()}s"
            assert re.search(rf"{like}[^(]* \([^)]*\): {off}", said)
            found = asked_for(
                " ".join(["--model llama-3-8b --checkpoint none --gpu", name, *words]), capsys
            )
            times[name, way] = found["options"][-1]["compute_s"]
        share = times[name, "compiled"] / times[name, "eager"]
        assert share == pytest.approx(EAGER[name])
        if EAGER[name] == 1:
            assert "on A100s, eager and compiled blocks are planned equally fast" in said
            assert "--compile changes the plan's memory, not its time" in said
        else:
            share = f"{100 * EAGER[name]:.0f}% of the speed of compiled ones"
            assert f"on H100s, eager blocks are planned with {share}" in said
            assert f"the planner assumes {100 / EAGER[name] - 100:.1f}% more speed" in said
    main(["--model", "llama-3-8b", "--speed", "400T", "--explain"])
    assert "curve" not in capsys.readouterr().out


@given(st.integers(1, 8), st.integers(1, 2048))
def test_a_step_on_several_hosts_waits_for_the_slowest_and_one_host_does_not(per_host, hosts):
    cluster = HOST._replace(ranks=per_host * hosts, per_host=per_host)
    job = Job(gpt(2, 128, 4, 100, 64))
    alone, many = (work_of(job, each, "none").compute for each in (HOST, cluster))
    assert many / alone == pytest.approx(1 + STRAGGLERS * math.log2(hosts))
    assert longer(8, 8) == longer(1, 8) == longer(4, 8) == 1


def test_an_answer_says_what_several_hosts_wait_for(capsys):
    main(["--model", "llama-3-8b", "--nodes", "4", "--explain"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"waiting for the slowest of all hosts makes it {2 * STRAGGLERS:.1%} slower" in said
    main(["--model", "llama-3-8b", "--nodes", "1", "--explain"])
    assert "slowest" not in capsys.readouterr().out
    found = asked_for("--model llama-3-8b --nodes 4", capsys)
    assert found["assumed"]["wait_for_stragglers"] == pytest.approx(2 * STRAGGLERS)


def test_words_take_memory_and_a_fused_loss_takes_less():
    job, cluster, _ = seven_billion()
    plain, fused = (
        memory_of(job._replace(fused_loss=f), "DDP", cluster, "none")["activations"]
        for f in (False, True)
    )
    assert plain - fused == pytest.approx(10 * 2048 * job.model.vocab_size)


@pytest.mark.parametrize(
    ("words", "measures", "arguments"),
    [
        # One row of 32,768 tokens, 150,000 words in its loss
        ("--model qwen3-8b --context 32768", ["a fused loss"], ["--fused-loss"]),
        (
            "--model llama-3-8b --context 8192 --rows 2 --checkpoint none --fused-loss",
            ["selective checkpointing"],
            ["--checkpoint", "selective"],
        ),
        ("--model llama-3-8b --gpus 1", ["ZeRO-3 over 4 GPUs"], ["--gpus", "4"]),
        (
            "--model llama-3-8b --rows 16 --context 8192 --fused-loss",
            ["8 sequences at a time instead of 16"],
            ["--sequences", "8", "--accumulate", "2"],
        ),
        (
            "--model llama-3-8b --rows 16 --context 8192 --fused-loss --accumulate 3",
            ["8 sequences at a time instead of 16"],
            ["--sequences", "8", "--accumulate", "6"],
        ),
        ("--params 70e9", ["ZeRO-3 with its states offloaded to the host"], []),
        (
            "--model llama-3-8b --context 200000 --fused-loss",
            ["each sequence split over 2 GPUs"],
            ["--sequences", "0.5"],
        ),
        (
            "--model llama-3-405b --stack megatron --gpus 16",
            ["ZeRO-3 over 512 GPUs"],
            ["--gpus", "512"],
        ),
    ],
)
def test_if_nothing_fits_the_first_measure_that_is_enough_is_named(
    words, measures, arguments, capsys
):
    """In the order fused loss, recomputation, ZeRO-3, fewer rows, offload, splitting a row."""
    found = asked_for(words, capsys)
    assert found["recommended"] is None
    tried = found["next_to_try"]
    assert (tried["measures"], tried["arguments"]) == (measures, arguments)
    least = min(sum(each["bytes"].values()) for each in found["options"])
    room = 0.9 * gpu("h100").memory
    assert tried["bytes"] <= room < least == pytest.approx(tried["bytes_before"])
    brought = f"brings {least / 1e9:.1f} GB down to {tried['bytes'] / 1e9:.1f} GB"
    assert f"try {measures[0]}" in found["why"]
    assert brought in found["why"]
    main([*words.split(), "--explain"])
    assert brought in " ".join(capsys.readouterr().out.split())
    if not arguments:
        return
    changed = asked_for(" ".join([words, *arguments]), capsys)  # the later one counts
    fitting = {each["name"]: sum(each["bytes"].values()) for each in changed["options"]}
    assert fitting[tried["strategy"]] == pytest.approx(tried["bytes"])
    assert changed["next_to_try"] is None


def test_a_long_row_with_many_words_needs_38_6_gb_with_a_fused_loss(capsys):
    tried = asked_for("--model qwen3-8b --context 32768", capsys)["next_to_try"]
    assert [round(tried[name] / 1e9, 1) for name in ("bytes_before", "bytes")] == [90.9, 38.6]


def test_what_is_offloaded_is_in_the_hosts_memory(capsys):
    """FSDP2's shards of parameters, gradients and both of Adam's states: 16 bytes for each."""
    found = asked_for("--params 70e9", capsys)
    tried = found["next_to_try"]
    assert tried["host_bytes"] == pytest.approx(16 * of_size(70e9).parameters)
    job, cluster = Job(of_size(70e9), offload=True), cluster_of(gpu("h100"), 8)
    for stack in ("pytorch", "deepspeed"):
        here = memory_of(job, "ZeRO-3", cluster, "full", stack)
        assert here["parameters"] == here["optimizer states"] == here["gradients"] == 0
    assert "the planner doesn't estimate its time" in found["why"]


def test_if_no_measure_is_enough_the_smallest_set_is_named(capsys):
    found = asked_for("--model llama-3-8b --context 1000000 --fused-loss", capsys)["next_to_try"]
    offload, split = found["measures"]
    assert "offloaded" in offload
    assert split == "each sequence split over 8 GPUs"
    assert asked_for("--params 1e16 --rows 1e6 --context 1000000", capsys)["next_to_try"] is None


def test_what_fits_on_paper_only_names_the_measure_that_frees_the_reserve(capsys):
    words = "--model qwen3-8b --context 28000"
    found = asked_for(words, capsys)
    assert found["options"][-1]["on_paper"]
    assert found["next_to_try"]["arguments"] == ["--fused-loss"]
    assert "try a fused loss (--fused-loss)" in found["cautions"][0]
    assert asked_for("--model llama-3-8b --context 8192", capsys)["next_to_try"] is None


# --- what is trained


def test_loras_adapters_are_rank_times_inputs_and_outputs_of_each_matrix():
    """Llama 3 8B with rank 16 has the 41,943,040 that PEFT prints for all linear layers."""
    model = PRESETS["llama-3-8b"]
    assert Job(model, lora=16).trained == 41_943_040
    assert Job(gpt(3, 64, 4), lora=8).trained == 3 * 8 * (4 * (64 + 64) + 2 * (64 + 256))
    moe = MODELS_BY_NAME["mixtral-8x7b"]
    experts = 8 * 3 * (4096 + 14336)
    of_attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    assert moe.adapters(4) == 4 * (experts + of_attention)
    assert moe.adapters(4, active=True) == 4 * (experts / 4 + of_attention)


@pytest.mark.parametrize("more", [{"lora": 16}, {"trainable": 0.005}])
@pytest.mark.parametrize("stack", [*STACKS])
def test_gradients_and_states_are_only_there_for_what_is_trained(more, stack):
    job, whole = Job(PRESETS["llama-3-8b"], **more), Job(PRESETS["llama-3-8b"])
    cluster = cluster_of(gpu("h100"), 8)
    for name in STACKS[stack]:
        part, all_of_it = (memory_of(each, name, cluster, "full", stack) for each in (job, whole))
        share = job.trained / whole.trained
        states = all_of_it["optimizer states"]
        assert part["optimizer states"] == pytest.approx(share * states)
        assert part["master copy"] == pytest.approx(share * all_of_it["master copy"])
        assert part["gradients"] <= 1.01 * share * all_of_it["gradients"] or stack == "pytorch"
        assert part["gradients"] <= 4 * job.trained
        n = 8 if name == "ZeRO-3" or (stack == "pytorch" and name in ("ZeRO-2", "HSDP")) else 1
        if name != "HSDP":
            kept = 4 if stack == "pytorch" else 2  # the frozen ones stay in bf16
            expected = (kept * job.trained + 2 * job.frozen) / n
            assert part["parameters"] == pytest.approx(expected)


@pytest.mark.parametrize("more", [{"lora": 16}, {"trainable": 0.005}])
def test_gradients_are_sent_only_for_what_is_trained(more):
    job = Job(PRESETS["llama-3-8b"], accumulate=2, **more)
    cluster = cluster_of(gpu("h100"), 16)
    assert sent(job, "DDP", cluster) == {"all-reduce": 2 * job.trained}
    assert sent(job, "ZeRO-1", cluster)["broadcast"] == 4 * job.trained
    of_fsdp = sent(job, "ZeRO-2", cluster)
    assert of_fsdp == {
        "all-gather": 2 * job.parameters,  # once a step, and also the frozen ones: all compute
        "reduce-scatter": 2 * 2 * job.trained,
    }
    assert sent(job, "HSDP", cluster)["all-reduce"] == pytest.approx(2 * job.trained / 8)
    slow = cluster_of(gpu("h100"), 16, network=1e9, speed=4e14)
    waits = option(job, "DDP", slow, 1e12).step.exposed
    assert waits < option(Job(job.model, accumulate=2), "DDP", slow, 1e12).step.exposed / 20


def test_a_frozen_weight_has_no_gradient_to_compute():
    """2 + 2 operations for each parameter instead of 2 + 4; attention's products stay."""
    model = PRESETS["llama-3-8b"]
    forward, backward = Job(model).flops()
    assert forward + backward == pytest.approx(model.flops(2048))
    assert backward == pytest.approx(2 * forward)
    frozen_forward, frozen_backward = Job(model, trainable=1e-9).flops()
    assert frozen_forward == pytest.approx(forward)
    assert backward - frozen_backward == pytest.approx(2 * model.multiplied)
    of_lora = Job(model, lora=16)
    assert sum(of_lora.flops()) == pytest.approx(
        model.flops(2048) - 2 * model.multiplied + 6 * of_lora.trained
    )
    moe = MODELS_BY_NAME["mixtral-8x7b"]
    saved = sum(Job(moe).flops()) - sum(Job(moe, trainable=1e-9).flops())
    assert saved == pytest.approx(2 * (moe.multiplied - moe.idle))
    cluster = cluster_of(gpu("h100"), 8, speed=4e14)
    steps = [option(each, "DDP", cluster, 1e12).step.compute for each in (Job(model), of_lora)]
    assert 0.66 < steps[1] / steps[0] < 0.72


def test_lora_is_in_the_answer_and_in_its_json(capsys):
    words = ["--model", "llama-3-8b", "--lora", "16"]
    main([*words, "--explain"])
    said = " ".join(capsys.readouterr().out.split())
    assert "trained 42 million parameters, 0.52%: LoRA of rank 16 beside every matrix" in said
    assert "recommended: DDP" in said
    assumed = asked_for(" ".join(words), capsys)["assumed"]
    assert (assumed["lora_rank"], assumed["trained_parameters"]) == (16, 41_943_040)
    assert assumed["frozen_parameters"] == assumed["parameters"]
    half = asked_for("--model llama-3-8b --trainable 0.5%", capsys)["assumed"]
    assert half["trained_parameters"] == pytest.approx(0.005 * half["parameters"])
    main(["--model", "llama-3-8b", "--explain"])
    assert "trained" not in capsys.readouterr().out


# --- the call behind each strategy


def called(group, calls):
    """What each call of PyTorch makes of a small model, on four ranks."""
    names = {
        "torch": torch,
        "DistributedDataParallel": nn.parallel.DistributedDataParallel,
        "ZeroRedundancyOptimizer": ZeroRedundancyOptimizer,
        "fully_shard": fully_shard,
        "init_device_mesh": init_device_mesh,
    }
    made = {}
    for name, call in calls.items():
        block = nn.Linear(8, 8)
        here = names | {"block": block, "model": nn.Sequential(block)}
        result = eval(call.replace('"cuda"', '"cpu"'), here)
        shape = None
        if isinstance(result, FSDPModule):
            shape = tuple(block.weight.device_mesh.shape)
            stays = block._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is None
        else:
            stays = None
        made[name] = type(result).__name__, shape, stays
    return made


def test_the_call_of_each_strategy_is_in_the_answer_and_is_pytorchs(pools, capsys):
    """A reader of PyTorch's documentation finds no ZeRO-2 there."""
    words = "--model llama-3-8b --gpus 4 --per-host 2 --gpu h200"
    main([*words.split(), "--explain"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 88
    assert "\n  ZeRO-2  fully_shard(block, reshard_after_forward=False)" in said
    calls = {each["name"]: each["call"] for each in asked_for(words, capsys)["options"]}
    flat = " ".join(said.split())
    fits = {each["name"] for each in asked_for(words, capsys)["options"] if each["fits"]}
    assert "DDP" not in fits
    for name, call in calls.items():  # what doesn't fit needs no call
        assert (" ".join(call.split()) in flat) == (name in fits)
    found = pools[4](called, calls)[0]
    assert found == {
        "DDP": ("DistributedDataParallel", None, None),
        "ZeRO-1": ("ZeroRedundancyOptimizer", None, None),
        "ZeRO-2": ("FSDPLinear", (4,), True),
        "HSDP": ("FSDPLinear", (2, 2), False),
        "ZeRO-3": ("FSDPLinear", (4,), False),
    }


@pytest.mark.parametrize("stack", [*STACKS])
def test_each_strategy_of_each_library_has_a_call(stack, capsys):
    found = asked_for(f"--model llama-3-8b --nodes 2 --stack {stack}", capsys)["options"]
    assert [each["name"] for each in found if each["call"]] == [*STACKS[stack]]
    assert all("{" not in each["call"] or stack == "deepspeed" for each in found)


# --- numbers as people write them


def test_numbers_are_read_as_people_write_them():
    words = "--params 8b --batch 4M --tokens 15T --speed 400T --gpu-memory 80gb"
    given = arguments().parse_args(words.split())
    assert (given.params, given.batch, given.tokens, given.speed) == (8e9, 4e6, 15e12, 4e14)
    assert read(given)[2] == 80e9
    assert read(arguments().parse_args(["--gpu-memory", "80gib"]))[2] == 80 * 2**30


def test_words_are_planned_as_the_command_answers_them(capsys):
    """With a batch that is shared out, a stack, a reserve, and all cautions."""
    words = "--model gpt-oss-20b --nodes 2 --batch 1M --stack megatron --reserve 30%"
    found, answer = planned(words), asked_for(words, capsys)
    assert found.reserve == 0.3
    assert found.recommended.name == answer["recommended"]
    assert [*found.cautions] == answer["cautions"] != []
    shared = [(each.job.rows, each.job.accumulate) for each in found.options]
    assert shared == [(each["rows"], each["accumulate"]) for each in answer["options"]]
    assert [each.step.total for each in found.options] == [
        each["step_s"] for each in answer["options"]
    ]
    with pytest.raises(ValueError, match="nodes and gpus are given"):
        planned("--nodes 2 --gpus 16")


@pytest.mark.parametrize("said", ["50Gb", "50gb"])
def test_a_unit_that_may_mean_bits_or_bytes_is_refused(said, capsys):
    with pytest.raises(SystemExit):
        main(["--network", said, "--gpus", "16"])
    assert f"network={said!r}: write it with its unit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "ways", "neighbor"),
    [
        (["--model", "llama-9"], ["config.json", "--shape"], "llama-3-8b"),
        (["--model", "Qwen/Qwen9-8B"], ["config.json", "--shape"], "qwen3-8b"),
        (["--gpu", "l4"], ["--gpu-file"], "l40s"),
    ],
)
def test_what_is_not_known_points_to_a_way_out_before_it_suggests_a_neighbor(
    words, ways, neighbor, capsys
):
    with pytest.raises(SystemExit):
        main(words)
    said = capsys.readouterr().err
    places = [said.index(each) for each in (*ways, neighbor)]
    assert places == sorted(places)


def test_a_host_holds_the_offloaded_states_of_its_own_gpus_alone():
    job = Job(PRESETS["llama-3-8b"], offload=True)
    hosts = [
        measures.tried(measures.Setting(job, cluster_of(gpu("h100"), ranks, 8)), (), 1e12, 0).host
        for ranks in (8, 64)
    ]
    assert hosts[0] > 1e9
    assert hosts[0] == pytest.approx(hosts[1] * 8)
