"""The chart of a step says what the formula says, wherever its sliders stand."""

import json
import re

import pytest
import vl_convert

from distributed.runtime.trace import overlapped
from playground.show.step_chart import BACKWARD, BYTES, FORWARD, overlap_chart


def last_label(buckets: int, link: float) -> int:
    """What the chart says of the overlapped step (ms)."""
    svg = vl_convert.vega_to_svg(json.loads(json.dumps(overlap_chart(buckets, link).vega)))
    said = [int(word) for word in re.findall(r">(\d+) ms<", svg)]
    return min(said)


@pytest.mark.parametrize("buckets", [1, 2, 8, 32])
@pytest.mark.parametrize("link", [30.0, 100.0, 400.0, 3000.0])
def test_the_chart_follows_the_buckets_as_the_formula_does(buckets, link):
    message = 1.5 * BYTES * 8 / 1e3 / link / buckets
    ready = [FORWARD + BACKWARD * (i + 1) / buckets for i in range(buckets)]
    expected = overlapped(ready, [message] * buckets, FORWARD + BACKWARD)
    assert last_label(buckets, link) == pytest.approx(expected, abs=0.51)
