"""The charts of mixed precision, moved to random places, against torch's own rounding."""

import random
import re

import pytest
import torch
import vl_convert

from playground.show.rounding import AFTER_ONE, by_power, rounding_chart, scale_chart


def text_of(chart) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", vl_convert.vega_to_svg(chart.vega)))


@pytest.mark.parametrize("dtype", AFTER_ONE)
def test_a_sum_lands_where_torch_rounds_it(dtype):
    places = random.Random(0)
    for _ in range(10):
        update = places.uniform(-0.0125, 0.0125)
        exact = torch.tensor(1 + update, dtype=torch.float64)
        landed = exact.to(getattr(torch, dtype)).item()
        assert f"becomes {landed:.4f}" in text_of(rounding_chart(update, dtype)), update


@pytest.mark.parametrize("scale", [0, 3, 8])
def test_the_share_of_zeros_is_that_of_float16(scale):
    gradient = torch.logspace(-12, -6, 997)
    gradient[::2] *= -1
    zero = (gradient.double() * 2**scale).half().eq(0).double().mean().item()
    chart = scale_chart({"first layer": by_power(gradient)}, scale)
    assert f"of the first layer {zero:.0%} become zero" in text_of(chart)


def test_elements_are_counted_between_powers_of_two():
    assert by_power(torch.tensor([0.0, 1.0, -1.5, 2.0, 0.75])) == {-1: 1, 0: 2, 1: 1}
