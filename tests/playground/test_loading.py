"""The chart of what loading takes, against the formula."""

import re

import pytest
import vl_convert

from distributed.planner.shapes import PRESETS
from playground.show.loading import MODELS, WAYS, host_bytes, loading_chart


@pytest.mark.parametrize(("model", "doublings"), [("Llama 3 8B", 3), ("Llama 3 70B", 1)])
def test_the_bars_are_the_formulas(model, doublings):
    svg = vl_convert.vega_to_svg(loading_chart(model, doublings).vega)
    found = dict(re.findall(r'way: ([^;"]+); GB: ([\d.,]+)"', svg))  # of each bar
    expected = host_bytes(PRESETS[MODELS[model]], 2**doublings, 4)
    for way, size in zip(WAYS, expected, strict=True):
        assert found[way] == f"{size / 1e9:,.1f}"
        assert (f"{size / 1e9:,.1f} GB, too much<" in svg) == (size > 256e9)


def test_only_a_whole_model_on_each_rank_takes_more_with_more_ranks():
    few, many = (host_bytes(PRESETS["llama-3-8b"], ranks, 2) for ranks in (1, 8))
    assert many == [8 * few[0], few[1], few[2]]
