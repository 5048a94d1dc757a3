"""Trainings drawn at random are as on one device, and the draws find faults that are planted."""

import pytest
from tests.fuzz.compare import Differs, check
from tests.fuzz.draws import draw
from tests.fuzz.events import ODD, drawn
from tests.fuzz.faults import FAULTS
from tests.fuzz.layers import LAYERS
from tests.fuzz.optimizers import OPTIMIZERS, SCHEDULES

from distributed.runtime.report import RankError, RanksHang

QUICK, ALL = 14, 1000


@pytest.mark.parametrize(
    "number", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, ALL))]
)
def test_a_draw_is_as_on_one_device_or_refused(pools, number):
    made = drawn(number)
    print(f"to repeat it: python -m tests.fuzz {number}\n{made}")
    check(pools, made)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_within_100_draws(pools, fault):
    for number in range(100):
        try:
            check(pools, draw(number), fault=fault)
        except (Differs, RankError, RanksHang):
            check(pools, draw(number))  # it is the fault that is found
            return
    pytest.fail("no draw finds it")


def test_every_odd_use_is_drawn():
    assert {drawn(number).odd for number in range(ALL)} == {*ODD}


def test_every_layer_optimizer_and_schedule_is_drawn():
    draws = [drawn(number) for number in range(ALL)]
    assert {part.layer for one in draws for part in one.parts} == {"", *LAYERS}
    assert {one.optimizer for one in draws} == {*OPTIMIZERS}
    assert {one.schedule for one in draws} == {*SCHEDULES}
