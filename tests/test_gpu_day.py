"""Nine minutes on a GPU: steps share the time, and nothing that was found is lost."""

import gzip
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from bench import gpu_day, gpu_day_steps
from bench.gpu_day import Kept, Step, run_all, steps
from bench.gpu_day_steps import measure_series, rank_zero, rates, records

from distributed.planner.hardware import GPUS
from playground.planner.executed_cases import cases
from playground.planner.measured_cases import SHAPES, Point, known, point_of

STAMP = {"commit": "abc"}
MUTE = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]"
HANG = "import time; time.sleep(1000)"


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a day of steps of our own."""
    monkeypatch.setattr(gpu_day, "WORK", tmp_path)
    monkeypatch.setattr(gpu_day, "GRACE", 0.2)
    return tmp_path


def step(day: Path, name: str, code: str, weight: float = 1) -> Step:
    """Python code that writes `FOUND`, a path."""
    found = day / f"found-{name}.json"
    return Step(name, [sys.executable, "-c", f"FOUND = {str(found)!r}; {code}"], weight, found)


def run_for(day: Path, minutes: float, *chosen: Step) -> dict:
    """What is kept when these steps have had so many minutes."""
    run_all(chosen, Kept(day / "kept.json", STAMP), minutes)
    return json.loads((day / "kept.json").read_text())


def test_a_step_is_kept_when_it_ends_and_the_next_runs_after_a_failure(
    day: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # as on most machines
    write = """open(FOUND, 'w').write('{"x": 1}')"""
    look = f"import json; assert 'first' in json.load(open({str(day / 'kept.json')!r}))"
    given = [step(day, "first", write), step(day, "fails", "print('why'); 1 / 0")]
    given += [step(day, "looks", look), step(day, "last", write)]
    assert not run_all(given, Kept(day / "kept.json", STAMP), minutes=5)
    kept = json.loads((day / "kept.json").read_text())
    assert [(name, each["ok"]) for name, each in kept.items()] == [
        ("first", True), ("fails", False), ("looks", True), ("last", True)
    ]  # fmt: skip
    assert kept["first"]["x"] == 1
    assert all(each["env"] == STAMP for each in kept.values())
    assert kept["fails"]["said"][0] == "why"
    assert "ZeroDivisionError" in kept["fails"]["said"][-1]


@pytest.mark.parametrize("before", [pytest.param("pass", marks=pytest.mark.slow), MUTE])
def test_a_step_that_hangs_is_ended_and_what_it_had_found_is_kept(day: Path, before: str) -> None:
    code = f"""{before}; print(open(FOUND, 'w').write('{{"x": 1}}'), flush=True); {HANG}"""
    kept = run_for(day, 0.2, step(day, "hangs", code), step(day, "next", "pass", weight=3))
    assert kept["hangs"]["problem"] == "at its time limit"
    assert kept["hangs"]["x"] == 1
    assert kept["next"]["ok"]


def test_what_a_step_finds_is_kept_while_it_runs(day: Path) -> None:
    """So it is there even if this program itself is killed."""
    look = """
import json, time
open(FOUND, 'w').write('{"x": 1}')
while 'looks' not in (json.load(open(KEPT)) if os.path.exists(KEPT) else {}): time.sleep(0.05)
"""
    code = f"import os; KEPT = {str(day / 'kept.json')!r}; exec({look!r})"
    assert run_for(day, 5, step(day, "looks", code))["looks"]["ok"]


def test_time_that_a_step_does_not_need_goes_to_those_after_it(day: Path) -> None:
    kept = run_for(day, 1, *(step(day, name, "pass") for name in ("one", "two", "three")))
    limits = [kept[name]["limit_s"] for name in ("one", "two", "three")]
    assert limits[0] == pytest.approx(20, abs=0.5)
    assert limits[0] < limits[1] < limits[2] <= 60


def test_after_the_last_minute_no_step_starts(day: Path) -> None:
    kept = run_for(day, 0.01, step(day, "hangs", f"{MUTE}; {HANG}", 1e9), step(day, "late", "pass"))
    assert kept["hangs"]["problem"] == "at its time limit"
    assert kept["late"]["problem"] == "not run: 0.01 minutes were over"


def test_what_another_call_kept_stays(day: Path) -> None:
    assert [*run_for(day, 1, step(day, "one", "pass"))] == ["one"]
    assert [*run_for(day, 1, step(day, "two", "pass"))] == ["one", "two"]


def test_all_logs_are_in_one_file(day: Path) -> None:
    run_for(day, 1, step(day, "one", "print('said')"), step(day, "two", "pass"))
    with tarfile.open(day / gpu_day.LOGS) as tar:
        assert {"found-one.log", "found-two.log"} <= {*tar.getnames()}
        assert (tar.extractfile("found-one.log") or sys.stdin.buffer).read() == b"said\n"


def test_the_steps_fit_into_nine_minutes_with_the_shares_that_were_planned(tmp_path: Path) -> None:
    every = steps(tmp_path)
    weights = {step.name: step.weight for step in every}
    assert [*weights] == [
        "rates", *(f"curves/{name}" for name in SHAPES if name != "tiny"), "rank_zero", "traces",
        "train_script", "tests",
    ]  # fmt: skip
    assert sum(weights.values()) <= 60 * gpu_day.MINUTES - 4 * gpu_day.GRACE
    assert weights["tests"] <= 140
    assert len({step.found for step in every}) == len(every)


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA H100 PCIe", 79.1, "h100-pcie"),
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "a100"),
        ("Tesla V100-SXM2-16GB", 15.8, "v100"),
        ("NVIDIA GeForce RTX 4090", 23.6, "4090"),
        ("NVIDIA A100-PCIE-40GB", 39.4, None),
        ("NVIDIA GeForce GTX 1080", 8.0, None),
    ],
)
def test_a_gpu_is_known_by_what_cuda_calls_it(name: str, gib: float, expected: str | None) -> None:
    assert known(name, gib * 2**30) == (GPUS[expected] if expected else None)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_day_steps, "CUDA", False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def results(tmp_path: Path) -> gpu_day_steps.Kept:
    return gpu_day_steps.Kept(tmp_path / "found.json", 600)


def test_rates_are_of_what_is_moved_and_multiplied(no_gpu: None, tmp_path: Path) -> None:
    rates(results(tmp_path))
    found = json.loads((tmp_path / "found.json").read_text())
    assert {*found["flop_per_s"]} == {"bf16", "tf32"}
    assert len(found["bytes_per_s"]) == 6
    assert min(found["bytes_per_s"].values()) > 0


@pytest.fixture
def alone(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one rank."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    gpu_day_steps.join_alone()
    yield
    torch.distributed.destroy_process_group()


def test_a_series_grows_until_memory_runs_out(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = gpu_day_steps.timed

    def with_room_for_two(step: Callable[[], object], left: float) -> list[float]:
        if step.args[0][0][0].shape[0] > 2:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError
        return timed(step, left)

    monkeypatch.setattr(gpu_day_steps, "timed", with_room_for_two)
    kept = results(tmp_path)
    points = [Point("tiny", "ZeRO-3", False, "none", rows) for rows in (1, 2, 4, 8)]
    measure_series(kept, points)
    found = kept.found["points"]
    assert [point_of(row) for row in found] == points[:3]
    assert [row.get("out_of_memory", False) for row in found] == [False, False, True]
    assert all(0 < row["step_s"] <= max(row["steps_s"]) for row in found[:2])


def test_rank_zero_runs_the_programs_that_were_executed_without_memory(
    no_gpu: None, tmp_path: Path
) -> None:
    """So the planned, the executed and the measured number are of one program."""
    kept = results(tmp_path)
    rank_zero(kept)
    assert all(row["bytes"] > 0 for row in kept.found["ranks"])
    every = {(case.model, case.gpus, case.strategy, case.checkpoint) for case in cases()}
    assert {*gpu_day_steps.RANK_ZERO} <= every


def test_the_log_of_train_py_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert records(log) == []
    log.write_text('{"tokens_per_s": 1}\n{"val_loss": 2}\n{"tokens_per_s": 3}\n{"tok')
    assert [record["tokens_per_s"] for record in records(log)] == [1, 3]


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_for_one_gpu_holds_at_least_the_states(name: str) -> None:
    one, shape = GPUS["h100"], SHAPES[name][0]
    for strategy in ("DDP", "ZeRO-3"):
        point = Point(name, strategy, False, "none", 1)
        assert point.planned_bytes(one) > 12 * shape.parameters
        assert point.flops / one.peak < point.planned_seconds(one) < 1


def test_without_a_gpu_it_says_so_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["gpu_day", "--to", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu_day.main()
    assert ended.value.code == 1
    assert "finds no CUDA GPU here; try --dry-run" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_it_needs_no_package_that_a_lent_machine_lacks() -> None:
    """Neither the steps, nor the tests on GPUs while they are collected."""
    lacks = ["IPython", "altair", "ipykernel", "jsonschema", "jupyter_server", "nbclient"]
    lacks += ["nbformat", "playwright", "py_spy", "sphinx", "vl_convert"]
    program = f"""
import sys
sys.modules |= dict.fromkeys({lacks})
import bench.gpu_day, bench.gpu_day_steps, pytest
sys.exit(pytest.main(["tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=gpu_day.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_each_step_runs_on_a_cpu(tmp_path: Path) -> None:
    day = [sys.executable, "-m", "bench.gpu_day", "--dry-run", "--to", str(tmp_path)]
    subprocess.run([*day, "--minutes", "20"], cwd=gpu_day.ROOT, check=True)
    kept = json.loads((tmp_path / "gpu_day.json").read_text())
    assert [*kept] == [step.name for step in steps(tmp_path, is_dry=True)]
    assert all(each["ok"] for each in kept.values())
    points = [point_of(row) for row in kept["curves/tiny"]["points"]]
    assert len(points) == 9
    assert sum(point.compiled for point in points) == 1
    for trace in kept["traces"]["traces"]:
        names = {name for name, *_ in operators(tmp_path / trace["file"])}
        assert "aten::mm" in names or "aten::addmm" in names
    assert kept["train_script"]["runs"][0]["tokens_per_s"] > 0


def operators(trace: Path) -> list[tuple[str, float]]:
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    return [(event["name"], event["dur"]) for event in events if event.get("cat") == "cpu_op"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_day_that_is_ended_leaves_no_step_behind(day: Path, ending: signal.Signals) -> None:
    code = f"""
import sys
from pathlib import Path
from bench import gpu_day
folder = Path({str(day)!r})
gpu_day.WORK = folder
tell = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
gpu_day.steps = lambda *_: [gpu_day.Step("one", [sys.executable, "-c", tell], 1, folder / "one.x")]
sys.argv = ["gpu_day", "--dry-run", "--to", str(folder)]
gpu_day.main()
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=gpu_day.ROOT, stderr=subprocess.PIPE)
    log = day / "one.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert owner.poll() is None
        time.sleep(0.05)
    pid = int(log.read_text())
    owner.send_signal(ending)
    owner.communicate()
    assert not psutil.pid_exists(pid)
