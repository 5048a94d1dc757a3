"""Bands of planned times: what they are made of, and how many held-out runs they cover."""

import json
import random

import pytest

from distributed.planner.band import ENOUGH, Band, band_of, four_of_five, known
from distributed.planner.command import main
from distributed.planner.hardware import GPUS
from distributed.planner.published import HELD_OUT, NEVER
from distributed.planner.validation import Run, held_out, runs, scaling
from playground.planner.answer import answer

EVERY = runs()
STRATEGIES = ("DDP", "ZeRO-1", "ZeRO-2", "HSDP", "ZeRO-3")


def covered(some: list[Run]) -> int:
    return sum(band_of(GPUS[run.row["gpu"]], run.row["strategy"]).covers(run.error) for run in some)


def test_bands_cover_four_of_five_runs_that_nothing_was_ever_fitted_to():
    """No band is made of them, so this is what a new run may expect."""
    never = [run for run in EVERY if run.row["use"] == NEVER]
    assert len(never) >= 20
    assert not {NEVER} & {run.row["use"] for run in known()}
    assert covered(never) >= 0.8 * len(never)


def test_bands_cover_four_of_five_of_all_held_out_runs():
    apart = held_out(EVERY)
    assert covered(apart) >= 0.8 * len(apart)


def test_bands_of_a_measured_speed_cover_four_of_five_pairs_of_held_out_runs():
    pairs = [(many, error) for many, _, error in scaling(EVERY) if many.row["use"] in HELD_OUT]
    never = [pair for pair in pairs if pair[0].row["use"] == NEVER]
    for some in (pairs, never):
        inside = [band_of(GPUS["h100"], run.row["strategy"], True).covers(e) for run, e in some]
        assert sum(inside) >= 0.8 * len(some) > 2


@pytest.mark.parametrize("name", ["a100", "h100", "b200"])
def test_a_measured_speed_has_a_narrower_band(name):
    band, without = band_of(GPUS[name], "ZeRO-3", True), band_of(GPUS[name], "ZeRO-3")
    assert band.high - band.low < without.high - without.low
    assert band == band_of(GPUS["h100"], "ZeRO-3", True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["b200", "mi300x", "h100-pcie"])
def test_a_gpu_without_a_measured_curve_has_a_wider_band(name, strategy):
    measured, unknown = band_of(GPUS["h100"], strategy), band_of(GPUS[name], strategy)
    assert unknown.high - unknown.low > measured.high - measured.low
    assert "without a measured curve" in unknown.in_words()
    mine = GPUS[name]._replace(name="a GPU from a file")
    assert band_of(mine, strategy) == unknown


def test_of_nine_errors_a_band_has_all_and_of_nineteen_it_leaves_two_out():
    assert four_of_five([i / 10 for i in range(9)], "") == Band(1, 1.8, 9, "")
    assert four_of_five([i / 10 for i in range(19)][::-1], "") == Band(1.1, 1 + 1.7, 19, "")


def test_a_new_error_of_the_same_kind_is_inside_four_times_of_five():
    """Whatever the distribution is: here one with a long tail, and the fewest runs."""
    chance, inside = random.Random(0), 0
    for _ in range(2000):
        errors = [chance.lognormvariate(0, 1) for _ in range(ENOUGH + 1)]
        inside += four_of_five(errors[1:], "").covers(errors[0])
    assert inside / 2000 == pytest.approx(0.8, abs=0.03)


def test_few_runs_of_a_strategy_extend_the_band_of_all():
    whole = Band(0.9, 1.2, 30, "on H100s")
    assert whole.extended([0.5, 0.0], "of DDP") == Band(0.9, 1.5, 2, "of DDP")
    assert whole.extended([], "of DDP") == Band(0.9, 1.2, 0, "of DDP")
    assert "none of them is of DDP" in whole.extended([], "of DDP").in_words()
    said = whole.in_words()
    assert said.startswith("80% of 30 published runs on H100s took between 10% less and 20")


ASKED = ["--model", "llama-3-8b", "--nodes", "2", "--context", "8192", "--tokens", "15T"]


def test_the_command_and_its_json_have_the_band(capsys):
    main([*ASKED, "--json"])
    said = json.loads(capsys.readouterr().out)
    band = band_of(GPUS["h100"], said["recommended"])
    assert said["band"] == band._asdict() | {"words": band.in_words()}
    days = said["run"]["days"]
    assert said["run"]["days_band"] == [band.low * days, band.high * days]
    for each in said["options"]:
        low, high = each["step_s_band"]
        assert low < each["step_s"] < high
    main([*ASKED, "--explain"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"{band.low * days:,.0f} to {band.high * days:,.0f} days" in text
    assert f"(planned: {days:,.1f} days)" in text
    assert "band: 80% of" in text
    main([*ASKED, "--speed", "400T", "--explain"])
    assert "planned from a run on few GPUs" in " ".join(capsys.readouterr().out.split())


def test_the_page_shows_the_band_of_a_step_and_of_the_days():
    html = json.loads(answer("model=llama-3-8b&nodes=2&tokens=15T"))["html"]
    assert "<dt>band of a step</dt>" in html
    assert "<dt>band of the days</dt>" in html
    assert f"The bands: {band_of(GPUS['h100'], 'ZeRO-3').in_words()}." in html
    measured = json.loads(answer("model=llama-3-8b&nodes=2&speed=4e14"))["html"]
    assert "planned from a run on few GPUs" in measured
    unknown = json.loads(answer("model=llama-3-8b&nodes=2&gpu=mi300x"))["html"]
    assert "without a measured curve" in unknown
