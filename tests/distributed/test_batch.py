"""A global batch shared out over ranks, micro-batches and rows: what fits, and what is fastest."""

import json
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed.planner.batch import Batch, divisors, shared_out, shares, ways, why_so_many
from distributed.planner.command import main
from distributed.planner.hardware import gpu
from distributed.planner.job import Job, cluster_of, memory_of, option
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, PRESETS
from distributed.planner.speed import achieved
from distributed.planner.strategy import plan, run_of

H100 = gpu("h100")
MODEL = PRESETS["llama-3-8b"]
SPEED = partial(achieved, H100, MODEL)


def eight_billion(ranks=64, context=8192, checkpoint="auto"):
    return Job(MODEL, context=context, checkpoint=checkpoint), cluster_of(H100, ranks, speed=4e14)


@given(st.integers(1, 10_000))
def test_divisors_are_all_and_descend(number):
    assert divisors(number) == [n for n in range(number, 0, -1) if number % n == 0]


@given(st.floats(1, 1e9), st.sampled_from([512, 8192]), st.integers(1, 1024))
def test_each_way_to_share_a_batch_has_the_same_rows_and_is_the_nearest(tokens, context, ranks):
    found = shares(Batch(tokens), context, ranks)
    (rows,) = {each * micro_batches for each, micro_batches in found}
    assert found[0] == (rows, 1)
    assert found[-1] == (1, rows)
    missed = abs(rows * context * ranks - tokens)
    assert rows == 1 or missed <= context * ranks / 2


@pytest.mark.parametrize("name", STACKS["pytorch"])
@pytest.mark.parametrize("ranks", [16, 64])
def test_no_other_micro_batch_and_no_other_checkpointing_that_fits_is_faster(name, ranks):
    """Against all of them, tried one by one."""
    job, cluster = eight_billion(ranks)
    batch = Batch(2.0**22, speed=SPEED)
    best = shared_out(job, name, cluster, H100.memory, batch)
    tried = []
    for checkpoint in CHECKPOINTS:
        for rows, micro_batches in shares(batch, 8192, ranks):
            this = job._replace(rows=rows, accumulate=micro_batches, checkpoint=checkpoint)
            speed = cluster._replace(speed=SPEED(this.tokens))
            tried.append(option(this, name, speed, H100.memory))
    fitting = [each for each in tried if each.fits]
    assert best.fits == bool(fitting)
    if fitting:
        assert best.step.total == pytest.approx(min(each.step.total for each in fitting))


def test_a_larger_micro_batch_than_the_chosen_one_does_not_fit_and_the_plan_says_so():
    job, cluster = eight_billion()
    found = plan(job, cluster, H100.memory, batch=Batch(2.0**22, speed=SPEED))
    best = found.recommended
    assert best.job.accumulate > 1
    assert best.job.rows * best.job.accumulate * 8192 * 64 == 2**22
    twice = best.job._replace(rows=2 * best.job.rows, accumulate=best.job.accumulate // 2)
    needs = sum(memory_of(twice, best.name, cluster, best.checkpoint).values())
    assert needs > H100.memory
    assert f"{best.job.accumulate} micro-batches of {best.job.rows:g} sequence" in found.why
    assert f"at a time would need {needs / 1e9:.0f} GB" in found.why
    assert run_of(best, 64, 1.0).tokens_per_second == pytest.approx(2**22 / best.step.total)


def test_a_batch_that_fits_at_once_is_not_accumulated():
    job, cluster = eight_billion(context=1024)
    found = plan(job, cluster, H100.memory, batch=Batch(64 * 1024.0 * 4, speed=SPEED))
    best = found.recommended
    assert (best.job.rows, best.job.accumulate) == (4, 1)
    assert "1 micro-batch of 4 sequences: the whole batch at once" in found.why


def test_rows_that_were_asked_for_stay_and_micro_batches_follow():
    job, cluster = eight_billion(context=2048)
    found = plan(job, cluster, H100.memory, batch=Batch(2.0**22, rows=2))
    assert {(each.job.rows, each.job.accumulate) for each in found.options} == {(2, 16)}
    assert "16 micro-batches of 2 sequences, as you asked" in found.why


def test_checkpointing_that_was_asked_for_stays():
    job, cluster = eight_billion(checkpoint="full")
    found = ways(job, "ZeRO-3", cluster, H100.memory, Batch(2.0**22, speed=SPEED))
    assert [each.checkpoint for each in found] == ["full"]


def test_heavier_checkpointing_with_larger_micro_batches_is_named_only_where_it_is_slower():
    job, cluster = eight_billion()
    batch = Batch(2.0**22, speed=SPEED)
    best = shared_out(job, "ZeRO-3", cluster, H100.memory, batch)
    said = why_so_many(best, cluster, H100.memory, batch)
    heavier = next(
        each
        for each in ways(job, "ZeRO-3", cluster, H100.memory, batch)
        if each.job.rows > best.job.rows
    )
    slower = heavier.step.total / best.step.total - 1
    assert slower > 0
    assert f"with {heavier.checkpoint} checkpointing" in said
    assert f"{slower:.1%} longer" in said


def test_cautions_are_about_the_rows_that_are_planned():
    job, cluster = eight_billion(ranks=64, context=512)
    assert plan(job, cluster, H100.memory).cautions, "one row is few tokens"
    found = plan(job, cluster, H100.memory, batch=Batch(64 * 16384.0, speed=SPEED))
    assert found.recommended.job.tokens >= 4096
    assert not found.cautions


def test_where_each_rank_takes_more_than_the_batch_has_the_plan_says_what_to_do():
    job, cluster = eight_billion(ranks=1024)
    found = plan(job, cluster, H100.memory, batch=Batch(1e6, speed=SPEED))
    best = found.recommended
    assert (best.job.rows, best.job.accumulate) == (1, 1)
    (caution,) = (each for each in found.cautions if "whole sequences" in each)
    assert f"a step has {1024 * 8192:,} tokens, not 1,000,000" in caution
    assert "fewer GPUs" in caution
    met = plan(job, cluster, H100.memory, batch=Batch(1024 * 8192.0, speed=SPEED))
    assert not [each for each in met.cautions if "whole sequences" in each]


def test_a_step_that_is_smaller_than_asked_for_is_told_too():
    job, cluster = eight_billion(ranks=64)
    asked = 1.4 * 64 * 8192  # a row for each rank, and not enough for two
    found = plan(job, cluster, H100.memory, batch=Batch(asked, speed=SPEED))
    (caution,) = (each for each in found.cautions if "whole sequences" in each)
    assert f"a step has {64 * 8192:,} tokens, not {asked:,.0f}" in caution


@pytest.mark.parametrize("tokens", [0, -1, math.inf, math.nan, 1e13])
def test_a_batch_that_makes_no_sense_is_named(tokens):
    job, cluster = eight_billion()
    with pytest.raises(ValueError, match="batch="):
        plan(job, cluster, H100.memory, batch=Batch(tokens))


def test_the_command_line_shares_a_batch_out(capsys):
    words = ["--model", "llama-3-8b", "--nodes", "8", "--context", "8192", "--batch", "4194304"]
    main([*words, "--explain"])
    said = capsys.readouterr().out
    assert "a step: 64 GPUs × 8 micro-batches × 1 sequence × 8,192 tokens = 4,194,304" in said
    main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {each["rows"] * each["accumulate"] for each in found["options"]} == {8}
    with pytest.raises(SystemExit):
        main([*words, "--accumulate", "4"])
    assert "accumulate=4: batch sets it, too" in capsys.readouterr().err
