"""What the chart of the threshold says is what the planner's schedules find."""

import re

import pytest
import vl_convert

from distributed.planner.schedules import threshold
from playground.show.threshold_chart import LINKS, threshold_chart


@pytest.mark.parametrize("link", LINKS.values())
@pytest.mark.parametrize(("tokens", "teraflops"), [(512, 100), (8192, 400), (65536, 1000)])
def test_messages_wait_below_the_threshold_and_not_above(tokens, teraflops, link):
    least = threshold(teraflops * 1e12, link * 1e9)
    svg = vl_convert.vega_to_svg(threshold_chart(tokens, teraflops, link).vega)
    (said,) = re.findall(r">hides from ([\d,]+) tokens on: with ([^<]*)</text>", svg)
    forward, send = 2 * 7 * tokens / teraflops, 2 * 2 * 7 / link * 1000
    late = max(0.0, forward + 2 * forward / 32 + send - 3 * forward)
    waits = f", {late:,.0f} ms wait" if late else " nothing waits"  # as the bars show it
    assert tokens > least or late
    assert said == (f"{least:,.0f}", f"{tokens:,}{waits}")
