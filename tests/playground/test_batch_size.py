"""The chart of steps saved, against the module's formula."""

import math
import re

import pytest
import vl_convert

from distributed.large_batch import more_steps
from playground.show.batch_size import COUNTS, speedup_chart


@pytest.mark.parametrize(("noise", "examples"), [(5000, 32), (1e6, 256), (25, 8)])
def test_the_curve_is_the_modules(noise, examples):
    svg = vl_convert.vega_to_svg(speedup_chart(noise, examples).vega)
    curve = re.search(r'line: steps saved"[^>]* d="([^"]+)"', svg)
    assert curve
    heights = [float(y) for y in re.findall(r"[ML][\d.]+,([\d.]+)", curve[1])]
    for ranks, height in zip(COUNTS, heights, strict=True):
        times = more_steps(noise, examples, ranks * examples)
        assert height == pytest.approx(240 * (1 - math.log2(times) / 10), abs=0.01)
