"""What the chart of BatchNorm over ranks draws is what torch's BatchNorm makes of each share."""

import re

import pytest
import torch
import vl_convert

from playground.show.norm_chart import NUMBERS, norm_chart


def number(said: str) -> float:
    return float(said.replace("−", "-"))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_means_and_normalised_numbers_are_those_of_each_ranks_rows(ranks):
    shares = torch.tensor(NUMBERS, dtype=torch.float64).view(ranks, -1)
    svg = vl_convert.vega_to_svg(norm_chart(ranks).vega)
    said = rf">{16 // ranks} rows on each of {ranks} ranks: means from ([^\s<]+) to ([^\s<]+)<"
    ((low, high),) = re.findall(said, svg)
    means = shares.mean(1).tolist()
    assert [number(low), number(high)] == pytest.approx([min(means), max(means)], abs=0.006)
    norm = torch.nn.BatchNorm1d(1, eps=1e-12).double()
    expected = [x for share in shares for x in norm(share[:, None]).flatten().tolist()]
    drawn = [number(x) for x in re.findall(r"above: 1; normed: (−?[\d.]+); below", svg)]
    assert drawn[: len(NUMBERS)] == pytest.approx(expected, abs=1e-6)  # the threads between both
    assert (len(set(drawn)) == 2) == (ranks == 8)  # of two rows it is always -1 and 1
