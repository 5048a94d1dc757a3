"""The planner against what was published, and the data that say what was."""

import math
import statistics

import pytest

from distributed.hardware import gpu
from distributed.peak_memory import GPT, activations
from distributed.published import CASES, rows
from distributed.shapes import CHECKPOINTS, PRESETS, gpt, of_size
from distributed.speed import RECOMPUTE, achieved
from distributed.validation import Errors, implied_bandwidth, predict, runs, scaling

EVERY = runs()


def test_there_are_enough_rows_from_enough_sources_and_each_says_where_it_is_from():
    known = rows()
    assert len(known) >= 60
    sources = {row["source"] for row in known}
    assert len(sources) >= 6
    for row in known:
        assert row["section"]
        assert row["unit"] in ("tokens/s/GPU", "TFLOP/s/GPU", "efficiency")
        assert float(row["value"]) > 0
    uses = {use: {r["source"] for r in known if r["use"] == use} for use in ("calibrate", "test")}
    assert not uses["calibrate"] & uses["test"]
    assert abs(len(uses["calibrate"]) - len(uses["test"])) <= 2


def test_the_median_is_within_8_percent_and_nine_in_ten_within_20():
    found = Errors.of(run.error for run in EVERY)
    assert found.of_rows >= 60
    assert found.median <= 0.08
    assert found.nine_in_ten <= 0.20


def test_scaling_from_one_host_to_many_is_within_5_percent():
    found = Errors.of(error for _, _, error in scaling(EVERY))
    assert found.of_rows >= 40
    assert found.median <= 0.05


def test_a_source_that_had_no_part_in_any_constant():
    apart = [run for run in EVERY if run.source == "fms-fsdp"]
    assert {run.row["use"] for run in apart} == {"test"}
    assert Errors.of(run.error for run in apart).worst <= 0.15


def test_all_that_ran_fits_by_the_planner_too():
    assert [run.row for run in EVERY if not run.option.fits] == []


def test_memory_that_was_published():
    stated = [run for run in EVERY if run.row["memory"] and "compile" in run.row["note"]]
    assert len(stated) == 2
    for run in stated:
        assert run.option.needs / 2**30 == pytest.approx(float(run.row["memory"]), rel=0.05)


def test_a_link_of_one_port_explains_the_rows_that_no_speed_explains():
    """The same 17 GB/s into a host, whatever the number of GPUs: the step waits for a link."""
    bound = [run for run in runs("TFLOP/s/GPU") if run.published < 100]
    assert len(bound) == 4
    for run in bound:
        assert implied_bandwidth(run) == pytest.approx(16.6e9, rel=0.1)


def test_the_corrected_row_and_the_median_of_ddp():
    vgg = [case for case in CASES if case.name == "VGG-16"]
    assert [round(case.compute, 4) for case in vgg] == [round(64 / 154, 4)] * 2
    assert min(case.deviation for case in CASES) < 0 < max(case.deviation for case in CASES)
    assert abs(statistics.median(case.deviation for case in CASES)) <= 0.08


@pytest.mark.parametrize("name", ["GPT-3 XL", "GPT-3 6.7B", "GPT-3 13B", "GPT-3 175B"])
def test_activations_are_those_of_this_books_transformer(name):
    shape = GPT[name]
    model = gpt(shape.layers, shape.d, shape.heads)
    ours = activations(shape, 1, 2)
    assert model.activations(shape.t, "none", 2, scores=2) == pytest.approx(ours, rel=0.01)
    checkpointed = activations(shape, 1, 2, checkpoint=True)
    assert model.activations(shape.t, "full", 2, scores=2) == pytest.approx(checkpointed, rel=0.02)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-2-13b", 13.02), ("llama-2-70b", 68.98), ("llama-3-8b", 8.03),
     ("llama-3-70b", 70.55), ("llama-3-405b", 405.85), ("gpt-2-124m", 0.124), ("gpt-530b", 529.6),
     ("mpt-7b", 6.658859), ("mpt-70b", 64.862437), ("tinyllama-1.1b", 1.1)],
)  # fmt: skip
def test_parameters_are_those_that_are_published(name, billions):
    assert PRESETS[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("parameters", [1e7, 1e8, 1e9, 7e9, 70e9, 1e12])
def test_a_model_of_a_size_has_about_that_size(parameters):
    assert of_size(parameters).parameters == pytest.approx(
        parameters, rel=0.1 if parameters > 5e7 else 5
    )


def test_less_checkpointing_keeps_more_and_costs_less_time():
    for model in PRESETS.values():
        kept = [model.activations(4096, checkpoint) for checkpoint in CHECKPOINTS]
        assert kept == sorted(kept, reverse=True)
    assert [RECOMPUTE[c] for c in CHECKPOINTS] == sorted(RECOMPUTE.values())
    with pytest.raises(ValueError, match="checkpoint='half': choose none, selective, full"):
        PRESETS["mpt-7b"].activations(1, "half")


def test_the_speed_is_that_of_published_runs_on_one_host():
    """The constants of `speed` are a fit, and this is what they were fitted to."""
    fitted = [run for run in EVERY if run.source == "llm-foundry" and run.one_host]
    assert Errors.of(run.error for run in fitted).median < 0.05
    model = PRESETS["mpt-7b"]
    assert 0 < achieved(gpu("h100"), model, 1) < achieved(gpu("h100"), model, 1e5) < 989e12
    assert math.isfinite(predict(rows()[0]).predicted)
