"""Which stage: the first that fits, and why."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distributed.choose_stage import choose
from distributed.model_states import RECIPES, total

PAPER = RECIPES["bf16, Adam in fp32, fp32 master copy"]


@pytest.mark.parametrize(
    ("billions", "ranks", "stage"),
    [(4.9, 8, 0), (5.1, 8, 1), (14, 8, 1), (15, 8, 2), (20, 8, 2), (25, 8, 3), (45, 8, None)],
)
def test_sixteen_bytes_in_eighty_gigabytes(billions, ranks, stage):
    assert choose(billions * 1e9, ranks, 80e9, PAPER).stage == stage


@given(
    parameters=st.floats(1e6, 1e12),
    ranks=st.integers(1, 4096),
    memory=st.floats(1e9, 1e12),
    activations=st.floats(0, 1e11),
    recipe=st.sampled_from([*RECIPES.values()]),
)
def test_it_fits_and_the_stage_before_does_not(parameters, ranks, memory, activations, recipe):
    found = choose(parameters, ranks, memory, recipe, activations)
    room = memory - activations
    if found.stage is None:
        assert total(parameters, ranks, 3, recipe) > room * (1 - 1e-9)
    else:
        assert total(parameters, ranks, found.stage, recipe) <= room * (1 + 1e-9)
    if found.stage:
        assert total(parameters, ranks, found.stage - 1, recipe) > room * (1 - 1e-9)


@given(st.floats(1e9, 1e12), st.integers(1, 64))
def test_the_ranks_that_would_do_do(parameters, ranks):
    found = choose(parameters, ranks, 10e9, PAPER)
    assume(found.stage is None)
    enough = int(found.why.split(": ")[1].split()[0])
    assert choose(parameters, enough, 10e9, PAPER).stage is not None
    assert choose(parameters, enough // 2, 10e9, PAPER).stage is None


def test_a_host_that_is_enough_is_hsdp():
    assert "HSDP" in choose(28e9, 64, 60e9, PAPER, per_host=8).why
    assert "HSDP" not in choose(28e9, 64, 60e9, PAPER).why
    assert "HSDP" not in choose(60e9, 64, 80e9, PAPER, per_host=8).why


def test_what_would_fit_too_is_named_with_its_cost():
    zero_1, zero_2 = (choose(n * 1e9, 8, 80e9, PAPER).why for n in (7, 20))
    assert "passed over: ZeRO-2 sends in every backward pass" in zero_1
    assert "ZeRO-3 sends half more" in zero_1
    assert "passed over: ZeRO-3 sends half more" in zero_2


def test_blocks_count_for_stage_3_only():
    small = choose(30e9, 8, 80e9, PAPER).needs
    large = choose(30e9, 8, 80e9, PAPER, largest_block=1e9).needs
    assert [b - a for a, b in zip(small, large, strict=True)] == [0, 0, 0, 6e9]


def test_when_activations_alone_are_too_much():
    assert "checkpoint activations" in choose(1e9, 8, 10e9, PAPER, activations=11e9).why


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": 0}, "memory: above 0"),
        ({"activations": -1}, "activations"),
        ({"per_host": 9}, "per_host=9: choose 1 to 8"),
        ({"ranks": 0}, "ranks=0"),
    ],
)
def test_nonsense(wrong, message):
    numbers = {"parameters": 1e9, "ranks": 8, "memory": 80e9, "recipe": PAPER, **wrong}
    with pytest.raises(ValueError, match=message):
        choose(**numbers)
