"""The chart of the threshold agrees with the planner's schedules."""

import re

import pytest
import vl_convert

from distributed.planner.schedules import threshold
from distributed.runtime.trace import overlapped
from playground.show.threshold_chart import BILLIONS, LAYERS, LINKS, threshold_chart


@pytest.mark.parametrize("link", LINKS.values())
@pytest.mark.parametrize(("tokens", "teraflops"), [(512, 200), (8192, 400), (65536, 1000)])
def test_it_says_the_threshold_and_how_long_a_step_waits(tokens, teraflops, link):
    least = threshold(teraflops * 1e12, link * 1e9)
    svg = vl_convert.vega_to_svg(threshold_chart(tokens, teraflops, link).vega)
    (said,) = re.findall(r">hides from ([\d,]+) tokens on: with ([^<]*)</text>", svg)
    forward, send = 2 * BILLIONS * tokens / teraflops, 2 * 2 * BILLIONS / link * 1000
    ready = [forward + 2 * forward * layer / LAYERS for layer in range(1, LAYERS + 1)]
    wait = overlapped(ready, [send / LAYERS] * LAYERS, 3 * forward) - 3 * forward
    only_last = " for the last message" if wait < 1.001 * send / LAYERS else ""
    assert (tokens > least) == bool(only_last)
    shown = f"{wait:.1f}" if wait < 10 else f"{wait:,.0f}"
    assert said == (f"{least:,.0f}", f"{tokens:,} you wait {shown} ms{only_last}")


def test_the_books_two_networks_are_at_80_percent_of_line_rate():
    assert LINKS["eight ports at 80 %: 320 GB/s"] == 0.8 * 8 * 50
    assert LINKS["one port at 80 %: 40 GB/s"] == 0.8 * 50
