"""What was recorded of executed plans: of today's text, and within 3% of today's plan."""

import pytest

from playground.planner.executed_cases import (
    LEDGER,
    case_of,
    cases,
    difference,
    executed_table,
    recorded,
)

ROWS = recorded()["rows"]


def name(row):
    return ", ".join(map(str, case_of(row)))


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_was_executed_is_what_is_planned_and_copied_today(row):
    """Otherwise run `python -m bench.executed_plans` again."""
    case = case_of(row)
    assert row["code"] == case.digest
    assert abs(difference(row)) < 0.03
    assert row["sent"] == pytest.approx(case.sent, rel=1e-3)


def test_the_ledger_s_rows_are_of_today_s_text_and_near_today_s_plan():
    rows = recorded()["ledger"]
    assert [case_of(row) for row in rows] == list(LEDGER)
    for case, row in zip(LEDGER, rows, strict=True):
        assert case.job.tokens == 4096
        assert row["code"] == case.digest
        assert abs(sum(case.held.values()) / sum(row["held"].values()) - 1) < 0.04


def test_each_case_is_one_of_those_that_are_planned_and_stands_once():
    found = [case_of(row) for row in ROWS]
    assert len(set(found)) == len(found) >= 5
    assert set(found) <= set(cases())
    assert len(list(cases())) == 5 * 2 * 3 * 4


def test_the_table_says_what_was_planned_and_what_was_executed():
    lines = executed_table(ROWS[:3]).rows
    for row, line in zip(ROWS, lines, strict=False):
        planned, executed = (float(size.removesuffix(" GB")) for size in line[4:6])
        assert planned == pytest.approx(sum(case_of(row).held.values()) / 1e9, abs=0.05)
        assert executed == pytest.approx(sum(row["held"].values()) / 1e9, abs=0.05)
