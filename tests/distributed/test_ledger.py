"""The ledger of a 7B Llama against what counts bytes: PyTorch's tracker, and this book's meter."""

import pytest
import torch
from pools import launch_with_clock
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

from distributed.ddp import DistributedDataParallel
from distributed.model_states import RECIPES, STAGES
from distributed.planner.hardware import GPUS
from distributed.planner.job import RECIPE, Job, cluster_of, option
from distributed.planner.memory import held, ledger
from distributed.planner.shapes import LOGARITHM, PLAIN, PRESETS, Model
from distributed.workbench.memory_meter import MemoryUse
from distributed.workbench.training import Alone
from distributed.zero import Zero1
from recipes.executed import Transformer, execute

SEVEN = PRESETS["llama-2-7b"]
SMALL = Model(layers=4, d=128, heads=4, kv=2, ffn=352, vocab_size=1000)
IN_FP32 = "fp32, Adam"


RARE = pytest.mark.slow


def bytes_of_a_score(dtype, in_fp32, tokens=16, words=20_000, d=4):
    """By PyTorch's tracker: after the forward pass, and at the peak."""
    x = torch.zeros(tokens, d, dtype=dtype, requires_grad=True)
    matrix = torch.zeros(words, d, dtype=dtype, requires_grad=True)
    following = torch.zeros(tokens, dtype=torch.long)
    tracker = MemTracker()
    tracker.track_external(x, matrix, following)
    given = x.nbytes + matrix.nbytes + following.nbytes
    with tracker:
        logits = x @ matrix.T
        loss = F.cross_entropy(logits.float() if in_fp32 else logits, following)
        del logits
        kept = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
        loss.backward()
    most = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return [(found - given) / (tokens * words) for found in (kept, most)]


@pytest.mark.parametrize(
    ("dtype", "in_fp32", "times"),
    [(torch.bfloat16, True, 1), (torch.float32, False, 1), (torch.bfloat16, False, 0.5)],
)
def test_a_words_score_takes_what_the_planner_counts(dtype, in_fp32, times):
    """The loss in fp32, wherever the logits come from; one in bf16 would take half."""
    kept, most = bytes_of_a_score(dtype, in_fp32)
    assert kept == pytest.approx(times * LOGARITHM, rel=0.01)
    assert most == pytest.approx(times * PLAIN, rel=0.01)


@pytest.mark.parametrize(
    ("name", "checkpoint", "rows", "gpus"),
    [
        pytest.param("ZeRO-2", "none", 1, 8, marks=RARE),
        pytest.param("ZeRO-3", "none", 1, 8, marks=RARE),  # and on *Your script, sharded*
        pytest.param("ZeRO-2", "selective", 1, 64, marks=RARE),
        pytest.param("ZeRO-3", "none", 1, 64, marks=RARE),
        pytest.param("ZeRO-3", "full", 4, 8, marks=RARE),
        pytest.param("ZeRO-3", "full", 4, 64, marks=RARE),
    ],
)
def test_a_7b_llama_in_fsdp2_is_within_three_percent_of_pytorchs_tracker(
    name, checkpoint, rows, gpus
):
    job = Job(SEVEN, rows, 4096, 1, checkpoint, RECIPES[RECIPE])
    cluster = cluster_of(GPUS["h100"], gpus, speed=4e14)
    found = execute(option(job, name, cluster, 1e15), job, cluster)
    assert sum(ledger(job, name, cluster, checkpoint).values()) == pytest.approx(
        found.held, rel=0.03
    )


def peak_of_the_book(group, stage, rows, context):
    """Bytes when most is there, in a step that has its states, and gradients of a pass before."""
    torch.manual_seed(0)
    model = Transformer(SMALL)
    if stage:
        dtypes = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
        trained = Zero1(model, torch.optim.Adam, group, **dtypes)
    else:
        model = DistributedDataParallel(model, group)
        trained = Alone(model, torch.optim.Adam)
    words = torch.zeros(rows, context, dtype=torch.long)
    model(words, words).backward()
    trained.step()
    model(words, words).backward()
    with MemoryUse(trained.tensors) as use:
        loss = model(words, words)
        with use.phase("backward"):
            loss.backward()
    return use.peak


@pytest.mark.parametrize(("stage", "recipe"), [pytest.param(0, IN_FP32, marks=RARE), (1, RECIPE)])
def test_ddp_and_zero_1_are_within_three_percent_of_this_books_meter(stage, recipe):
    rows, context = 2, 256
    found = launch_with_clock(peak_of_the_book, stage, rows, context, ranks=4, timeout=120)[0]
    job = Job(SMALL, rows, context, 1, "none", RECIPES[recipe])
    cluster = cluster_of(GPUS["h100"], 4)
    planned = ledger(job, STAGES[stage], cluster, "none", "book")
    assert sum(planned.values()) == pytest.approx(sum(found.values()), rel=0.03), (planned, found)
    assert planned["logits"] > 0.1 * planned["activations"]


def test_the_ledgers_lines_are_the_plan_with_logits_apart():
    cluster = cluster_of(GPUS["h100"], 64)
    for name in (*STAGES, "HSDP"):
        for stack in ("pytorch", "megatron", "deepspeed", "book"):
            job = Job(SEVEN, 2, 4096)
            lines = ledger(job, name, cluster, "none", stack)
            logits, plan = lines.pop("logits"), held(job, name, cluster, "none", stack)
            assert plan == lines | {"activations": lines["activations"] + logits}
            assert logits == job.tokens * SEVEN.vocab_size * (10 if stack == "megatron" else 12)
