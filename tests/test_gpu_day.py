"""The day a GPU is there: steps have deadlines, and nothing that was found is lost."""

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from bench import gpu_day, gpu_day_steps
from bench.gpu_day import Command, run_all, steps
from bench.gpu_day_steps import SMALL, WAYS, known, rates, train

from distributed.planner.hardware import GPUS

STAMP = {"commit": "abc"}
MUTE = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]"
HANG = "import time; time.sleep(1000)"


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a day of steps of our own."""
    monkeypatch.setattr(gpu_day, "WORK", tmp_path)
    monkeypatch.setattr(gpu_day, "GRACE", 0.2)
    return tmp_path


def step(day: Path, name: str, code: str, limit: float = 60) -> Command:
    """Python code that finds `FOUND`, a path."""
    found = day / f"found-{name}"
    return Command(name, [sys.executable, "-c", f"FOUND = {str(found)!r}; {code}"], limit, found)


def kept_of(day: Path) -> dict:
    return json.loads((day / "kept.json").read_text())


def test_a_step_is_kept_when_it_ends_and_the_next_runs_after_a_failure(
    day: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # as on most machines
    write = """open(FOUND, 'w').write('{"x": 1}')"""
    look = f"import json; assert 'first' in json.load(open({str(day / 'kept.json')!r}))"
    given = [step(day, "first", write), step(day, "fails", "print('why'); 1 / 0")]
    given += [step(day, "looks", look), step(day, "last", write)]
    assert not run_all(given, day / "kept.json", STAMP, minutes=5)
    kept = kept_of(day)
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
    given = [step(day, "hangs", code, limit=3), step(day, "next", "pass")]
    assert not run_all(given, day / "kept.json", STAMP, minutes=5)
    kept = kept_of(day)
    assert kept["hangs"]["failed"] == "at its deadline"
    assert kept["hangs"]["x"] == 1
    assert kept["next"]["ok"]


def test_after_the_last_minute_no_step_begins_and_none_goes_on(day: Path) -> None:
    given = [step(day, "hangs", HANG), step(day, "late", "pass")]
    assert not run_all(given, day / "kept.json", STAMP, minutes=0.01)
    assert kept_of(day)["hangs"]["failed"] == "at its deadline"
    assert kept_of(day)["late"]["failed"] == "not run: 0.01 minutes were over"


def test_what_another_call_kept_stays(day: Path) -> None:
    assert run_all([step(day, "one", "pass")], day / "kept.json", STAMP, minutes=1)
    assert run_all([step(day, "two", "pass")], day / "kept.json", STAMP, minutes=1)
    assert [*kept_of(day)] == ["one", "two"]


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_all_steps_fit_into_the_time_of_a_lent_gpu(gpus: int, tmp_path: Path) -> None:
    every = steps(tmp_path, gpus)
    assert sum(step.limit for step in every) <= 60 * gpu_day.MINUTES == 2400
    assert max(step.limit for step in every) <= 600
    assert len({step.name for step in every}) == len(every)
    assert {step.name.split("/")[-1] for step in every if step.name.startswith("train/")} == {*WAYS}


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


def test_rates_are_of_what_is_moved_and_multiplied(no_gpu: None) -> None:
    found = rates()
    assert {*found["flop_per_s"]} == {"bfloat16", "float32"}
    assert {*found["bytes_per_s"]} == {"read", "written", "copied"}
    assert min(found["bytes_per_s"].values()) > 0


@pytest.mark.parametrize(
    "way", ["fsdp2", *(pytest.param(w, marks=pytest.mark.slow) for w in WAYS if w != "fsdp2")]
)
def test_a_step_holds_at_least_what_the_formula_says_of_its_states(way: str, no_gpu: None) -> None:
    found = train("mpt-1b", way)
    _, recipe = WAYS[way]
    held = recipe.total - (recipe.parameters if way == "fsdp2" else 0)  # gathered a block at a time
    assert found["measured"]["bytes"] > held * SMALL.parameters
    assert found["measured"]["bytes"] < 3 * found["predicted"]["bytes"]
    assert found["measured"]["tokens_per_s"] > 0
    assert found["predicted_bytes"]["optimizer states"] == recipe.states * SMALL.parameters


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


@pytest.mark.slow
def test_each_step_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_day", "--dry-run", "--to", str(tmp_path)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_day.main() == 0
    kept = json.loads((tmp_path / "gpu_day.json").read_text())
    assert [*kept] == [step.name for step in steps(tmp_path, 0)]
    assert all(each["ok"] for each in kept.values())
    assert {kept[f"script/{name}"]["steps"] for name in ("single", "ddp", "fsdp")} == {32}
    with gzip.open(tmp_path / kept["trace"]["file"], "rt") as trace:
        names = {event["name"] for event in json.load(trace)["traceEvents"]}
    assert "aten::mm" in names or "aten::addmm" in names


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
gpu_day.steps = lambda *_: [gpu_day.Command("one", [sys.executable, "-c", tell], 900, folder / "x")]
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
