"""What the chart of the threshold says is what the planner's schedules find."""

import re

import pytest
import vl_convert

from distributed.planner.schedules import threshold
from distributed.runtime.trace import overlapped
from playground.show.threshold_chart import LINKS, threshold_chart


@pytest.mark.parametrize("link", LINKS.values())
@pytest.mark.parametrize(("tokens", "teraflops"), [(512, 100), (8192, 400), (65536, 1000)])
def test_it_says_the_threshold_and_what_a_step_of_32_layers_waits(tokens, teraflops, link):
    least = threshold(teraflops * 1e12, link * 1e9)
    svg = vl_convert.vega_to_svg(threshold_chart(tokens, teraflops, link).vega)
    (said,) = re.findall(r">hides from ([\d,]+) tokens on: with ([^<]*)</text>", svg)
    forward, send = 2 * 7 * tokens / teraflops, 2 * 2 * 7 / link * 1000
    ready = [forward + 2 * forward * layer / 32 for layer in range(1, 33)]
    wait = overlapped(ready, [send / 32] * 32, 3 * forward) - 3 * forward
    only_last = ", the last message" if wait < 1.001 * send / 32 else ""
    assert (tokens > least) == bool(only_last)
    assert said == (f"{least:,.0f}", f"{tokens:,}, {wait:,.0f} ms wait{only_last}")
