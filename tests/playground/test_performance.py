"""The page of recorded benchmarks leaves no row out, and excuses none without a reason."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from playground.show import performance, recorded

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book/maintainers/performance.md").read_text()
ROWS = [row for name in recorded.names() for row in recorded.rows(name)]


def row(id="zero3/shared/mlp/r2", ratio=1.0, ours=1.0):
    return {"id": id, "ratio": ratio, "ours_s": ours}


def test_every_recorded_row_is_in_a_table_of_the_page():
    names = dict(re.findall(r'^(\w+) = "([^"]*\*)"$', PAGE, re.M))
    ways = re.search(r"for way in \((.*?)\)\)", PAGE, re.S)
    assert ways
    names["messages"] = ",".join(f"all_reduce/{way}/*" for way in re.findall(r"\w+", ways[1]))
    tables = re.findall(r'performance\.details\("(\w+)"(?:, (\w+))?\)', PAGE)
    for name in recorded.names():
        patterns = [names[of] if of else "*" for run, of in tables if run == name]
        shown = [row["id"] for pattern in patterns for row in performance.chosen(name, pattern)]
        assert sorted(shown) == sorted(row["id"] for row in recorded.rows(name))


def test_the_details_are_the_rows_the_reasons_and_the_command(capsys):
    performance.details("ddp", "ddp_by_hand/*")
    said = capsys.readouterr().out
    assert "ddp_by_hand/mlp/r2" in said
    assert "because" in said
    assert "--record ddp" in said
    performance.details("launching")
    assert "because" not in capsys.readouterr().out


def test_rows_that_are_bound_by_memory_say_their_share_of_the_bandwidth(monkeypatch):
    one = recorded.rows("collectives")[0] | {"memory_share": 0.62}
    monkeypatch.setattr(recorded, "rows", lambda name: [one, recorded_row_without_share(one)])
    shown = performance.table("collectives")
    column = shown.header.index("share of memory bandwidth")
    assert [row[column] for row in shown.rows] == ["62%", "—"]


def recorded_row_without_share(row):
    return {key: value for key, value in row.items() if key != "memory_share"}


@pytest.mark.parametrize("recorded_row", ROWS, ids=lambda row: row["id"])
def test_a_row_below_its_aim_has_a_reason(recorded_row):
    if performance.verdict(recorded_row) != performance.REACHED:
        assert performance.aim_of(recorded_row)["why"].endswith(".")


@pytest.mark.parametrize("aim", performance.AIMS, ids=lambda aim: aim["rows"])
def test_an_aim_is_about_a_row_that_was_recorded(aim):
    assert [row for row in ROWS if performance.aim_of(row) is aim]


def test_the_verdicts():
    assert performance.verdict(row(ratio=2.0)) == performance.REACHED
    assert performance.verdict(row(ratio=1.9)) == performance.MISSED
    assert performance.verdict(row("world/call/r4", ours=0.004)) == performance.REACHED
    assert performance.verdict(row("world/call/r4", ours=0.006)) == performance.MISSED
    assert performance.verdict(row("nobody/asked", ratio=0.9)) == performance.MISSED


def test_a_stamp_names_the_gpu_and_without_one_the_processor():
    env = {"gpu": None, "cores": 2, "cpu": "EPYC", "torch": "2.13.0", "date": "2026-11-24"}
    env |= {"commit": "0ce031f"}
    rest = "torch 2.13.0, 2026-11-24, commit 0ce031f"
    assert recorded.stamp({"env": env}) == f"2 cores of EPYC, {rest}"
    assert recorded.stamp({"env": env | {"gpu": "H100"}}) == f"H100, {rest}"


def test_the_command_runs_every_row_of_its_run():
    from bench.__main__ import PARTS

    known = [name for part in PARTS for name, _ in part.cases()]
    for name in recorded.names():
        patterns = performance.command(name).split("'")[1].split(",")
        chosen = {k for k in known if any(fnmatch(k, pattern) for pattern in patterns)}
        assert chosen >= {row["id"] for row in recorded.rows(name)}
