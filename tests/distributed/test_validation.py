"""The planner against what was published, and the data that say what was."""

import math
import statistics
from unittest import mock

import pytest

from distributed.model_states import RECIPES
from distributed.planner import speed
from distributed.planner.hardware import gpu
from distributed.planner.job import RECIPE
from distributed.planner.published import (
    CASES,
    FITTED,
    HELD_OUT,
    LONG,
    NEVER,
    WRAPPED,
    failures,
    rows,
)
from distributed.planner.shapes import CHECKPOINTS, PRESETS, of_size
from distributed.planner.speed import EAGER, RECOMPUTE, STRAGGLERS, achieved, has_curve
from distributed.planner.validation import (
    MODELS,
    TOO_LARGE,
    Errors,
    grouped,
    held_out,
    implied_bandwidth,
    judge,
    predict,
    runs,
    scaling,
    spread,
    verdicts,
    way_of,
)

EVERY = runs()
MEMORY = ("out of memory", "ran")
FAILED = ("days", "interruptions", "unexpected interruptions")
UNITS = (
    "tokens/s/GPU", "TFLOP/s/GPU", "efficiency", "s/step", *MEMORY, *FAILED
)  # fmt: skip
JUDGED = {
    (row["source"], row["model"], row["strategy"], row["unit"], row["gpus"]): verdict
    for verdict in verdicts()
    for row in [verdict.row]
}
ZERO = ("Rajbhandari et al. 2020", "megatron-1.6b", "DDP", "out of memory", "128")
TUTORIAL = ("DeepSpeed, docs/_tutorials/zero.md", "megatron-1.5b", "DDP", "out of memory", "8")
LARGEST = ("Rajbhandari et al. 2020", "gpt-1.4b", "DDP", "ran", "128")
# Planned to fit, but published as out of memory: 14 GiB more than counted, in code of 2020 that
# keeps the scores of attention; why isn't known.
ISSUE = ("DeepSpeed, issue 477", "megatron-4.7b", "ZeRO-2", "out of memory", "32")


def test_there_are_enough_rows_from_enough_sources_and_each_says_where_it_is_from():
    known = rows()
    assert len(known) >= 60
    sources = {row["source"] for row in known}
    assert len(sources) >= 6
    for row in known:
        assert row["section"]
        assert row["unit"] in UNITS
        assert float(row["value"]) > 0
    uses = {use: {r["source"] for r in known if r["use"] == use} for use in ("calibrate", "test")}
    assert not uses["calibrate"] & uses["test"]
    assert len(uses["test"]) > len(uses["calibrate"])


def test_half_of_the_newly_published_rows_are_never_used_for_fitting():
    """Every second one in the order of the file, whatever the planner says of it."""
    new = [row for row in rows() if row["use"] in ("held out", FITTED, NEVER)]
    assert len(new) >= 20
    assert [row["use"] == NEVER for row in new] == [True, False] * (len(new) // 2)
    fitted = [row for row in new if row["use"] == FITTED]
    assert all(has_curve(gpu(row["gpu"])) for row in fitted)
    assert not [row for row in new if row["use"] == "held out" and has_curve(gpu(row["gpu"]))]
    assert all(row["section"][-1] == ")" or row["section"][-4:].isdigit() for row in new)  # dated
    assert len({row["source"].split(",")[0] for row in new}) >= 10
    assert {"h100", "a100", "h200", "b200", "mi300x"} == {row["gpu"] for row in new}
    assert len({row["strategy"] for row in new}) == 5
    assert {row["use"] for row in rows("tokens/s/GPU")} == {"calibrate", FITTED, LONG, *HELD_OUT}


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
    apart = [run for run in EVERY if run.source == "fms-fsdp" and run.row["use"] == "test"]
    assert len(apart) == 8
    assert Errors.of(run.error for run in apart).worst <= 0.16


def test_rows_that_nothing_was_fitted_to_are_within_8_percent_in_the_median():
    """And nine of ten within 25%, and those on H100s without a bias of 8%."""
    apart = held_out(EVERY)
    assert len({run.source for run in apart}) >= 10
    found = Errors.of(run.error for run in apart)
    assert found.of_rows >= 40
    assert found.median < 0.08
    assert found.nine_in_ten < 0.25
    errors = {(kind, name): errors for kind, name, errors in grouped(apart)}
    assert abs(errors["GPU", "h100"].bias) < 0.08
    assert abs(errors["blocks", "eager"].bias) < 0.08
    assert {"ZeRO-1", "HSDP", "ZeRO-3"} <= {name for kind, name in errors if kind == "strategy"}
    assert errors["fitting", "never"].of_rows == 25
    assert sum(each.of_rows for (kind, _), each in errors.items() if kind == "GPUs") == len(apart)


# --- what is fitted to several hosts and to eager blocks


def errors_with(rows_of: list[dict[str, str]], eager: float, stragglers: float) -> list[float]:
    """Errors of these rows, if the two constants were these."""
    with (
        mock.patch.dict(speed.EAGER, {"h100": eager}),
        mock.patch.object(speed, "STRAGGLERS", stragglers),
    ):
        return [predict(row).error for row in rows_of]


def distance(errors: list[float]) -> float:
    return sum(abs(math.log1p(error)) for error in errors)


SPEEDS = rows("tokens/s/GPU")
FITTING = [
    row
    for row in SPEEDS
    if row["use"] == FITTED
    or (row["use"] == "calibrate" and int(row["gpus"]) > int(row["per_host"]))
]


@pytest.mark.parametrize(
    ("eager", "stragglers"),
    [(0.0, 0.002), (0.0, -0.002), (0.02, 0.0), (-0.02, 0.0), (0.02, 0.002), (-0.02, -0.002)],
)
def test_both_constants_are_the_best_for_the_rows_that_may_be_fitted(eager, stragglers):
    """By least absolute deviations, on a scale on which twice and half are as far."""
    best = distance(errors_with(FITTING, EAGER["h100"], STRAGGLERS))
    assert best < distance(errors_with(FITTING, EAGER["h100"] + eager, STRAGGLERS + stragglers))


def test_both_constants_help_rows_that_nothing_was_ever_fitted_to():
    never = [row for row in SPEEDS if row["use"] == NEVER and has_curve(gpu(row["gpu"]))]
    before, after = errors_with(never, 1.0, 0.0), errors_with(never, EAGER["h100"], STRAGGLERS)
    assert Errors.of(after).median < 0.75 * Errors.of(before).median
    assert Errors.of(after).nine_in_ten < Errors.of(before).nine_in_ten
    assert distance(after) < 0.85 * distance(before)
    for alone in (errors_with(never, EAGER["h100"], 0.0), errors_with(never, 1.0, STRAGGLERS)):
        assert distance(after) < distance(alone) < distance(before)
    many = [row for row in never if int(row["gpus"]) >= 256]
    assert distance(errors_with(many, 1.0, STRAGGLERS)) < distance(errors_with(many, 1.0, 0.0))
    eager = [row for row in never if (way_of(row), row["gpu"]) == ("eager", "h100")]
    only = errors_with(eager, EAGER["h100"], 0.0)
    assert Errors.of(only).median < 0.5 * Errors.of(errors_with(eager, 1.0, 0.0)).median


def test_no_constant_tells_small_steps_apart_because_the_rows_for_it_disagree():
    """A launch of a kernel would make small models slower than planned; of three sources with
    models below two billion parameters, two are faster, and one that isn't is of early 2023."""
    small = [run for run in EVERY if run.row["use"] in (FITTED, NEVER)
             and MODELS[run.row["model"]].parameters < 2e9]  # fmt: skip
    bias = {
        source: statistics.median(run.error for run in small if run.source == source)
        for source in {run.source for run in small}
    }
    assert {source: error > 0 for source, error in bias.items()} == {
        "llm.c": False,
        "OLMo-core": False,
        "nanoGPT": True,
    }
    assert not [run for run in small if way_of(run.row) == "eager"]


def test_only_rows_of_the_source_that_speed_names_are_marked_as_fitted():
    fitted = {run.source for run in EVERY if run.row["use"] == "calibrate"}
    assert fitted == {"llm-foundry"}
    assert "runs of llm-foundry" in str(speed.__doc__)


def test_all_that_ran_fits_by_the_planner_too_but_for_one_that_is_named():
    assert [run.source for run in EVERY if not run.option.fits] == [TOO_LARGE]


def test_there_are_enough_published_cases_out_of_memory_from_enough_sources():
    cases = [verdict.row for verdict in verdicts() if not verdict.ran]
    assert len(cases) >= 5
    assert len({row["source"].split(",")[0] for row in cases}) >= 4
    assert len(JUDGED) == len(verdicts())


@pytest.mark.parametrize("name", JUDGED, ids=", ".join)
def test_fits_or_not_as_published_but_for_one_that_is_named(name):
    assert JUDGED[name].right == (name != ISSUE)


def test_a_second_copy_of_the_gradients_tells_what_ran_from_what_did_not():
    """Megatron-LM's of 2020: with 16 bytes per parameter instead of 20, all three would fit."""
    for name, fits in ((ZERO, False), (TUTORIAL, False), (LARGEST, True)):
        assert (JUDGED[name].needs <= JUDGED[name].memory) == fits
        plain = judge(JUDGED[name].row, RECIPES[RECIPE])
        assert plain.needs <= plain.memory


def test_memory_that_was_published():
    stated = [run for run in EVERY if run.row["memory"] and "compile" in run.row["note"]]
    stated = [run for run in stated if run.source != TOO_LARGE]
    assert len(stated) == 3
    for run in stated:  # what an allocator reserved, not what tensors need: our allowance is 5%
        assert -0.08 < run.option.needs / 2**30 / float(run.row["memory"]) - 1 < 0.05


def test_a_link_of_one_port_explains_the_rows_that_no_speed_explains():
    """The same 17 GB/s into a host, whatever the number of GPUs: the step waits for a link."""
    bound = [run for run in runs("TFLOP/s/GPU") if run.published < 100]
    assert len(bound) == 4
    for run in bound:
        assert implied_bandwidth(run) == pytest.approx(16.6e9, rel=0.1)


def test_the_corrected_row_and_the_median_of_ddp():
    vgg = [case for case in CASES if case.name == "VGG-16"]
    assert [round(case.compute, 4) for case in vgg] == [round(64 / 154, 4)] * 2
    # Nothing but the slowest link and latency is counted, so no step is faster than predicted.
    assert min(case.deviation for case in CASES) > 0
    assert statistics.median(case.deviation for case in CASES) <= 0.05


def test_a_third_to_a_half_of_a_slow_down_is_there_before_any_message():
    """The base row of that benchmark is "no ddp"; its row of one GPU with DDP is another."""
    shares = {steps.model.split(",")[0]: steps.from_wrapping for steps in WRAPPED}
    assert {name: round(100 * share) for name, share in shares.items()} == {
        "ResNet-50": 43,
        "ResNet-101": 53,
        "ResNeXt-50 32x4d": 17,
        "ResNeXt-101 32x8d": 29,
    }
    for steps in WRAPPED:
        cases = [case for case in CASES if case.name == steps.model and case.ranks == steps.gpus]
        assert all(abs(case.efficiency * (1 + steps.slowdown) - 1) < 1e-4 for case in cases)


def test_a_large_run_fails_every_three_hours_and_the_causes_add_up():
    found = failures()
    assert (found.all, found.unexpected, found.gpus) == (466, 419, 16_384)
    assert sum(int(row["value"]) for row in rows("unexpected interruptions")) == found.unexpected
    assert found.between() / 3600 == pytest.approx(3.09, abs=0.01)
    assert found.between(8) == 2048 * found.between()


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 6.74), ("llama-2-13b", 13.02), ("llama-2-70b", 68.98), ("llama-3-8b", 8.03),
     ("llama-3-70b", 70.55), ("llama-3-405b", 405.85), ("gpt-2-124m", 0.124), ("gpt-530b", 529.6),
     ("mpt-7b", 6.658859), ("mpt-70b", 64.862437), ("tinyllama-1.1b", 1.1)],
)  # fmt: skip
def test_parameters_are_those_that_are_published(name, billions):
    assert PRESETS[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt-2-774m", 0.774), ("megatron-1.5b", 1.56), ("megatron-1.6b", 1.6), ("megatron-4b", 4.2),
     ("megatron-13b", 12.7), ("mingpt-175b", 174.6), ("t5-2.28b", 2.28), ("t5-11b", 11),
     ("gpt-1.4b", 1.4), ("gpt-6.2b", 6.2), ("baichuan-13b", 13.2649),
     ("baichuan-2-13b", 12.94 * 2**30 / 1e9)],
)  # fmt: skip
def test_parameters_of_models_published_for_their_memory(name, billions):
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


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


def test_a_spread_of_errors_is_said_in_whole_percent():
    assert spread([-0.05, 0.12]) == "took 5% less to 12% more time than planned"
    assert spread([0.86, 0.14]) == "took 14 to 86% more time than planned"
    assert spread([0.051, 0.052]) == "took 5% more time than planned"
    assert spread([-0.2]) == "took 20% less time than planned"
