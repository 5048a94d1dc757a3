"""Exercises: starters fail, solutions pass, and each wrong answer gets a message of its own."""

import functools
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from playground.exercises.sampler_without_repetition.check import CASES

from distributed.world import check_timeout
from playground.exercises import FOLDER, names
from playground.exercises import check as checking
from playground.exercises.check import Verdict, Wrong, check, compare, mark, whose

ANSWERS = sorted(
    path for name in names() for path in (FOLDER / name).glob("*.py") if path.stem != "check"
)


@pytest.fixture(autouse=True)
def on_warm_ranks(pools, monkeypatch):
    """Checks start no ranks of their own here; a hang is found out sooner."""

    def launch(fn, *args, ranks, device, timeout):
        assert device == "cpu"
        check_timeout(timeout)
        return pools[ranks](fn, *args, timeout=min(timeout, 3.0))

    monkeypatch.setattr(checking, "launch", launch)


@functools.cache
def verdict_of(path: Path) -> Verdict:
    before = len(checking.verdicts)
    namespace = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    (verdict,) = checking.verdicts[before:]
    assert verdict.name == path.parent.name
    return verdict


@pytest.mark.parametrize("path", ANSWERS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_an_answer_gets_its_verdict(path: Path) -> None:
    verdict = verdict_of(path)
    if path.stem == "solution":
        assert verdict.passed, verdict.message
        return
    assert not verdict.passed
    if path.stem != "starter":
        first = path.read_text().splitlines()[0]
        assert first.startswith("# says: "), "a wrong answer says what is to be said of it"
        assert re.search(first.removeprefix("# says: "), verdict.message, re.S), verdict.message


@pytest.mark.parametrize("name", names())
def test_an_exercise_is_whole(name: str) -> None:
    files = {path.stem for path in (FOLDER / name).glob("*.py")}
    wrong = {stem for stem in files if stem.startswith("wrong_")}
    assert files == {"check", "starter", "solution"} | wrong
    assert len(wrong) >= 3
    messages = [verdict_of(FOLDER / name / f"{stem}.py").message for stem in wrong]
    causes = {message.partition("\n  Look at line")[0] for message in messages}
    assert len(causes) == len(wrong), "each with a message of its own, whatever line it names"
    hints = importlib.import_module(f"playground.exercises.{name}").HINTS
    assert len(hints) >= 2
    assert all(len(hint) < 400 for hint in hints)


def test_a_case_that_was_drawn_can_be_drawn_again() -> None:
    known = [length for length, _ in CASES]

    def indices(length: int, rank: int, ranks: int, seed: int, epoch: int) -> list[int]:
        order = np.random.default_rng([seed, epoch]).permutation(length)
        return list(order[rank::ranks]) if length in known else []

    first = check("sampler_without_repetition", indices)
    assert not first.passed
    seed = re.search(r"seed=(\d+) in check\(…\) draws it again", first.message)
    assert seed
    again = check("sampler_without_repetition", indices, seed=int(seed[1]))
    assert again.message == first.message


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
    path = tmp_path / "ring_all_reduce" / "mine.py"
    path.parent.mkdir()
    path.write_text(
        "from playground.exercises.check import check\ncheck('ring_all_reduce', 3, 4)\n"
    )
    assert "takes 1 positional argument" in verdict_of(path).message
    with pytest.raises(ValueError, match="name='star': choose from "):
        check("star", None)


def test_each_exercise_stands_on_one_page_with_its_solution():
    pages = [page.read_text() for page in FOLDER.parent.glob("book/**/exercises.md")]
    assert len(pages) == 6
    assert len(names()) >= 20
    for name in names():
        (page,) = [text for text in pages if f"exercises/{name}/starter.py" in text]
        assert page.count(f"```{{solution}} {name}\n") == 1
