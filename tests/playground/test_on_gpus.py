"""What pages show of a day on a GPU: all of it if it is recorded, and not a word if it isn't."""

import json
from pathlib import Path
from typing import Any

import pytest

from distributed.planner.hardware import GPUS
from playground.planner import measured_cases
from playground.planner.executed_cases import case_of, executed_table
from playground.planner.executed_cases import recorded as executed_plans
from playground.planner.measured_cases import SHAPES, Point
from playground.show.on_gpus import last_test_run, on_one_gpu, one_run
from playground.trace_reader import page

ENV = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "date": "2026-01-01", "commit": "abc"}
H100 = GPUS["h100"]
SLOWER = 1.25  # than planned, all that is measured below


def measured(point: Point) -> dict[str, Any]:
    """A row as if the plan were right about memory, and too optimistic about time."""
    size = point.planned_bytes(H100)
    seconds = SLOWER * point.planned_seconds(H100)
    sizes = {"bytes": size, "reserved_bytes": 1.05 * size}
    return point._asdict() | sizes | {"step_s": seconds, "steps_s": [seconds] * 3}


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A made-up day. What a test changes in it has to be written with `keep`."""
    monkeypatch.setattr(measured_cases, "KEPT", tmp_path / "gpu_day.json")
    found: dict[str, Any] = {
        "rates": {
            "flop_per_s": {"bf16": {"4096": 6e14, "8192": 7e14}, "tf32": {"4096": 4e14}},
            "bytes_per_s": {"HBM read": 3e12},
        },
        "rank_zero": {"ranks": []},
        "traces": {},
        "train_script": {"runs": []},
        "tests": {"passed": 60, "failed": 1, "skipped": 9, "gpus": 1},
    }
    for model in SHAPES:
        ways = [("DDP", False), ("ZeRO-3", False), ("DDP", True)]
        points = [Point(model, *way, "none", rows) for way in ways for rows in (1, 2)]
        rows = [measured(point) for point in points]
        rows.append(Point(model, "DDP", True, "none", 4)._asdict() | {"out_of_memory": True})
        found[f"curves/{model}"] = {"points": rows}
    run = Point("gpt-2-124m", "ZeRO-3", False, "none", 16, 4)
    rate = run.tokens * 4 / run.planned_seconds(H100) / SLOWER
    found["train_script"]["runs"] = [run._asdict() | {"tokens_per_s": rate, "mfu": 0.4}]
    (row,) = [row for row in executed_plans()["rows"] if row["gpus"] == 64][:1]
    found["rank_zero"]["ranks"] = [case_of(row)._asdict() | {"bytes": 12.3e9}]
    keep(found)
    return found


def keep(found: dict[str, Any]) -> None:
    stamped = {
        step: {"gpu_bytes": H100.memory} | each | {"env": ENV} for step, each in found.items()
    }
    measured_cases.KEPT.write_text(json.dumps(stamped))


def test_without_a_record_pages_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_cases, "KEPT", tmp_path / "gpu_day.json")
    assert [*on_one_gpu(), *one_run(), *last_test_run()] == []
    assert "on a GPU" not in executed_table(executed_plans()["rows"]).header
    assert page.examples() == page.EXAMPLES


def test_a_step_that_found_nothing_takes_nothing_else_away(day: dict[str, Any]) -> None:
    for step in (f"curves/{next(iter(SHAPES))}", "train_script", "tests", "rank_zero", "rates"):
        day[step] = {"ok": False, "problem": "at its time limit"}
    keep(day)
    _, *figures, memory = on_one_gpu()
    assert [figure.axes[0].get_title() for figure in figures] == [*SHAPES][1:]
    assert len(memory.rows) == 2 * 2
    assert one_run() == last_test_run() == []


def test_measured_points_stand_beside_the_planner_s_curve(day: dict[str, Any]) -> None:
    _, *figures, _, _, _ = on_one_gpu()
    assert [figure.axes[0].get_title() for figure in figures] == [*SHAPES]
    planned, *ways = figures[0].axes[0].lines
    assert planned.get_label() == "planned"
    assert [line.get_label() for line in ways] == [
        "DDP, eager", "DDP, compiled blocks", "FSDP2, eager", "FSDP2, compiled blocks"
    ]  # fmt: skip
    eager = ways[0].get_ydata()
    assert eager == pytest.approx([share / SLOWER for share in planned.get_ydata()])


def test_the_table_of_memory_has_the_largest_micro_batch_that_fitted(day: dict[str, Any]) -> None:
    memory = on_one_gpu()[-3]
    assert {row[2] for row in memory.rows} == {2}
    assert {row[-1] for row in memory.rows} == {"0%"}
    size = Point("gpt-2-124m", "ZeRO-3", False, "none", 2).planned_bytes(H100)
    row = next(row for row in memory.rows if row[0] == "gpt-2-124m, FSDP2")
    assert row[3:6] == [f"{size / 1e9:.1f} GB"] * 2 + [f"{1.05 * size / 1e9:.1f} GB"]
    assert "Half of all 9 programs, compiled ones included, are within 0%" in memory.note
    assert "NVIDIA H100" in memory.note


def test_rates_and_the_run_of_train_py_are_beside_their_references(day: dict[str, Any]) -> None:
    rates = on_one_gpu()[-1]
    assert rates.rows[0] == ["products of matrices in bf16, 8192 × 8192", "700 TFLOP/s"]
    assert "989 TFLOP/s" in rates.note
    (row,) = one_run()[1].rows
    assert row[3:] == ["+25%", "40%"]


def test_executed_plans_get_a_column_for_rank_zero_on_a_gpu(day: dict[str, Any]) -> None:
    table = executed_table(executed_plans()["rows"])
    assert table.header[-1] == "on a GPU"
    assert sorted(row[-1] for row in table.rows)[-2:] == ["", "12.3 GB"]
    assert "NVIDIA H100" in table.note


def test_the_tests_on_gpus_are_counted(day: dict[str, Any]) -> None:
    (said,) = last_test_run()
    assert "60 tests passed, 1 failed, 9 skipped on 1 × NVIDIA H100" in said.data


def test_traces_of_the_day_are_examples_of_the_reader(
    day: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "TRACES", tmp_path)
    (tmp_path / "gpu-day-ddp.json.gz").touch()
    found = {said: names for said, names in page.examples().items() if said not in page.EXAMPLES}
    assert found == {"one step of DDP (1 × NVIDIA H100 80GB HBM3)": ["gpu-day-ddp"]}
