"""Exercises: starters fail, solutions pass, and each wrong answer gets a message of its own."""

import contextlib
import functools
import importlib
import os
import re
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from playground.exercises.sampler_without_repetition.check import CASES

from distributed import launching
from distributed.runtime.caller import World, check_timeout
from playground.build.toc import EXERCISES, pages_in_order
from playground.exercises import FOLDER, mistakes, names
from playground.exercises import check as checking
from playground.exercises.check import (
    Draw,
    Verdict,
    Wrong,
    check,
    compare,
    has_started,
    mark,
    on_ranks,
    whose,
)
from playground.exercises.mistakes import replaced, right_answers, wrong_answers
from playground.exercises.submission import verdict_on

WRONG = {name: wrong_answers(name) for name in names()}
MISTAKES = [(name, mistake) for name in names() for mistake in WRONG[name]]
UNUSUAL = [(name, stem) for name in names() for stem in right_answers(name)]


@pytest.fixture(autouse=True)
def on_warm_ranks(pools, monkeypatch):
    """Checks start no ranks of their own here; a hang is found out sooner."""

    @contextlib.contextmanager
    def world(ranks, device):
        assert device == "cpu"

        def run(fn, *args, timeout=60.0):
            check_timeout(timeout)
            soon = timeout if fn is has_started else min(timeout, 3.0)
            return pools[ranks](fn, *args, timeout=soon)

        yield run

    monkeypatch.setattr(checking, "world", world)
    draw_with(monkeypatch, 0)


def draw_with(monkeypatch, seed: int) -> None:
    """Checks draw the cases of this seed: a test says the same each time it runs."""
    monkeypatch.setattr(checking, "secrets", SimpleNamespace(randbelow=lambda most: seed))


@pytest.fixture(scope="module")
def verdict_on_mistake(tmp_path_factory):
    """The verdict on a wrong answer of `wrong.toml`, each checked once."""
    folder = tmp_path_factory.mktemp("wrong")

    @functools.cache
    def verdict(name: str, mistake: str) -> Verdict:
        path = folder / name / f"{mistake}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(WRONG[name][mistake].code)
        return verdict_on(name, path)

    return verdict


@pytest.mark.parametrize("name", names())
def test_the_solution_is_right_and_the_starter_is_not(name: str, monkeypatch) -> None:
    draws = []

    def draw(seed: int) -> Draw:
        draws.append(Draw(seed))
        return draws[-1]

    monkeypatch.setattr(checking, "Draw", draw)
    solution = verdict_on(name, FOLDER / name / "solution.py")
    assert solution.passed, solution.message
    assert draws[0].used, "an answer that knows the shown case only would pass"
    assert not verdict_on(name, FOLDER / name / "starter.py").passed


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_gets_its_verdict(name: str, mistake: str, verdict_on_mistake) -> None:
    verdict = verdict_on_mistake(name, mistake)
    assert not verdict.passed
    assert re.search(WRONG[name][mistake].says, verdict.message, re.S), verdict.message


@pytest.mark.parametrize(("name", "stem"), UNUSUAL)
def test_an_unusual_answer_is_right(name: str, stem: str, tmp_path) -> None:
    path = tmp_path / f"{stem}.py"
    path.write_text(right_answers(name)[stem])
    verdict = verdict_on(name, path)
    assert verdict.passed, verdict.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "accumulate_without_sync",
        "choose_a_strategy",
        "communication_ratio",
        "debug_a_hang",
        "fewest_ranks",
        "ledger_of_a_llama",
        "lie_in_a_plan",
        "read_a_trace",
    ],
)
def test_verdicts_hold_whatever_is_drawn(name: str, tmp_path, monkeypatch) -> None:
    """In 16% of all cases two mistakes of read_a_trace had looked the same, and CI drew one."""
    for seed in range(1, 20):
        draw_with(monkeypatch, seed)
        verdict = verdict_on(name, FOLDER / name / "solution.py")
        assert verdict.passed, verdict.message
        for mistake, wrong in WRONG[name].items():
            (tmp_path / mistake).write_text(wrong.code)
            verdict = verdict_on(name, tmp_path / mistake)
            assert not verdict.passed, mistake
            assert re.search(wrong.says, verdict.message, re.S), verdict.message


@pytest.mark.parametrize("name", names())
def test_an_exercise_is_whole(name: str, verdict_on_mistake) -> None:
    files = {path.name for path in (FOLDER / name).iterdir() if path.is_file()}
    assert files - {"right.toml"} == {"check.py", "starter.py", "solution.py", "wrong.toml"}
    assert len(WRONG[name]) >= 3
    messages = [verdict_on_mistake(name, mistake).message for mistake in WRONG[name]]
    causes = {message.partition("\n  Look at line")[0] for message in messages}
    assert len(causes) == len(messages), "each with a message of its own, whatever line it names"
    hints = importlib.import_module(f"playground.exercises.{name}.check").HINTS
    assert len(hints) >= 2
    assert all(len(hint) < 400 for hint in hints)


@pytest.mark.parametrize(("name", "shift"), [("ring_all_reduce", 1), ("ring_reduce_scatter", 0)])
def test_the_steps_in_a_hint_complete_the_part_that_the_hints_promise(name, shift) -> None:
    """By "s = 1 … N − 1" a reader of ring_all_reduce completed a different part on each rank."""
    hints = " ".join(importlib.import_module(f"playground.exercises.{name}.check").HINTS)
    first, before_n = map(int, re.search(r"s = (\d) … N − (\d)", hints).groups())
    for ranks in range(2, 7):
        parts = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # whose numbers are in it
        for s in range(first, ranks - before_n + 1):
            sent = [set(parts[rank][(rank - s) % ranks]) for rank in range(ranks)]
            for rank in range(ranks):
                parts[rank][(rank - s - 1) % ranks] |= sent[rank - 1]
        for rank in range(ranks):
            assert parts[rank][(rank + shift) % ranks] == {*range(ranks)}


def test_replacements_are_made_where_they_stand_in_the_solution() -> None:
    assert replaced("a = b + 1\nc = a\n", [("c", "b"), ("b +", "c -")]) == "a = c - 1\nb = a\n"
    for pairs, message in (
        ([("d", "e")], "stands 0 times in the solution, not once"),
        ([("a", "e")], "stands 2 times in the solution, not once"),
        ([("= b", "= e"), ("b +", "e +")], "overlap in the solution"),
    ):
        with pytest.raises(ValueError, match=message):
            replaced("a = b + 1\nc = a\n", pairs)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("whole = ''", r"\[odd\]: give mistake and says; it has whole"),
        ("mistake = 'none'\nsays = ''", r"\[odd\]: give one of: old and new"),
        ("mistake = 'both'\nsays = ''\nwhole = ''\nold = ''\nnew = ''", "give one of"),
        ("mistake = 'gone'\nsays = ''\nold = 'gone'\nnew = ''", "old='gone' stands 0 times"),
    ],
)
def test_a_table_that_does_not_fit_is_named(table, message, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/solution.py").write_text("answer = 1\n")
    (tmp_path / "mine/wrong.toml").write_text(f"[odd]\n{table}\n")
    monkeypatch.setattr(mistakes, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=message):
        wrong_answers("mine")


def test_a_case_that_was_drawn_can_be_drawn_again() -> None:
    known = [length for length, _ in CASES]

    def indices(length: int, rank: int, ranks: int, seed: int, epoch: int) -> list[int]:
        order = np.random.default_rng([seed, epoch]).permutation(length)
        return list(order[rank::ranks]) if length in known else []

    first = check("sampler_without_repetition", indices)
    assert not first.passed
    seed = re.search(r"seed=(\d+) in check\(…\) repeats it", first.message)
    assert seed
    again = check("sampler_without_repetition", indices, seed=int(seed[1]))
    assert again.message == first.message


class SlowToStart(World):
    """Ranks that start 1.5 s late, as on a busy machine."""

    def __init__(self, ranks: int, device: str, threads: int | None = None):
        super().__init__(ranks, device, threads)
        pids = [process.pid for process in self.processes]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]).start()


def test_the_time_limit_of_an_answer_starts_when_its_ranks_have_started(monkeypatch):
    monkeypatch.setattr(launching, "World", SlowToStart)
    monkeypatch.setattr(checking, "world", launching.world)
    assert on_ranks(lambda group: group.rank, ranks=1, timeout=1.0) == [0]


def look(group, x):
    half = group.size / 2
    total = group.all_reduce(x)
    return total / half  # not the mean


def test_the_line_with_a_known_cause_is_named() -> None:
    where = {"is the sum": "reduce|all_reduce", "nowhere": "broadcast"}
    said = checking._suspicious_line("it is the sum", where, [3, look])
    at = look.__code__.co_firstlineno + 2
    assert said == f"\n  Look at line {at}: total = group.all_reduce(x)"
    for message in ("something else", "nowhere"):
        assert checking._suspicious_line(message, where, [3, look]) == ""


def test_whose_numbers_are_in_a_sum():
    assert whose(sum(map(mark, range(4))), 4) == ""
    assert whose(mark(0) + 2 * mark(2), 3) == (
        "what rank 1 gave is missing; what rank 2 gave is in it 2 times"
    )
    assert "was it divided" in whose(mark(1) / 3, 3)
    assert "many times over" in whose(mark(2) * 8, 3)
    assert whose(mark(0), 2, expected=[1, 0]) == ""
    assert "nan is no sum" in whose(float("nan"), 2)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1.0, 2.5], r"w\[1\] is 2.5, and should be 2, 1.25 times it"),
        ([1.0], r"w has the shape \[1\], not \[2\]"),
        (None, "returns nothing"),
        ([1.0, float("nan")], r"w\[1\] is nan"),
    ],
)
def test_a_difference_is_named(found, message):
    with pytest.raises(Wrong, match=message):
        compare("w", found, [1.0, 2.0])
    compare("w", [1.0, 2.0], [1.0, 2.0])


def test_an_error_in_an_answer_is_told_with_its_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from playground.exercises.check import check\ncheck('ring_all_reduce', 3, 4)\n"
    )
    assert "takes 1 positional argument" in verdict_on("ring_all_reduce", path).message
    with pytest.raises(ValueError, match="name='star': choose from "):
        check("star", None)


def test_each_exercise_stands_on_one_page_with_its_solution():
    root = FOLDER.parent
    files = [page for page in pages_in_order(root) if page.endswith(EXERCISES)]
    pages = [(root / f"{page}.md").read_text() for page in files]
    assert len(pages) == 6
    assert len(names()) >= 20
    for name in names():
        (page,) = [text for text in pages if f"exercises/{name}/starter.py" in text]
        assert page.count(f"```{{solution}} {name}\n") == 1
