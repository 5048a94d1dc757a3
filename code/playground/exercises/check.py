"""Check a reader's answer to an exercise, and say what is wrong with it.

    check("ring_all_reduce", ring_all_reduce)

`exercises/NAME/check.py` contains the check of an exercise: `check(answer, draw=…)` raises `Wrong`
with a message that gives the rank, the number, and the difference. After its fixed cases it draws
random ones, so an answer made for the fixed cases fails. `HINTS` lists hints, each more helpful
than the last. The optional `LOOK` maps words of a message to the name in the answer to look at. The
folder also contains the starter that the page shows, the solution, and the typical mistakes.

    python -m playground.exercises.check ring_all_reduce FILE --json

checks a file from the shell (see `submission`).
"""

import ast
import importlib
import inspect
import math
import re
import secrets
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distributed import Group, world
from distributed.runtime.report import RankError, RanksHang
from playground.exercises import names


class Wrong(Exception):
    """The answer is wrong; the message says why."""


class Verdict:
    """Result of a check: whether the answer passed, and a message for the reader."""

    def __init__(self, name: str, passed: bool, message: str):
        self.name, self.passed, self.message = name, passed, message

    def _repr_html_(self) -> str:
        kind, sign = ("passed", "✓") if self.passed else ("wrong", "✗")
        return (
            f'<div class="verdict verdict-{kind}" role="status" data-exercise="{self.name}" '
            f'data-passed="{str(self.passed).lower()}"><span aria-hidden="true">{sign}</span>'
            f"<pre>{escape(self.message)}</pre></div>"
        )

    def __repr__(self) -> str:
        return f"{'right' if self.passed else 'not yet'}: {self.message}"


class Draw:
    """Random cases. The same seed draws the same cases, so a failed one can be repeated."""

    def __init__(self, seed: int):
        self.seed, self.random, self.used = seed, np.random.default_rng(seed), False

    def __call__(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`."""
        self.used = True
        return int(self.random.integers(least, most + 1))


def check(name: str, *answer: Any, seed: int | None = None) -> Verdict:
    """Check an answer; the verdict shows itself in a page. Raises ValueError for no such exercise.

    `seed` draws the random cases of a verdict that named it, once more.
    """
    if name not in names():
        raise ValueError(f"name={name!r}: choose from {', '.join(names())}")
    module = importlib.import_module(f"playground.exercises.{name}.check")
    draw = Draw(secrets.randbelow(10**6) if seed is None else seed)
    try:
        verdict = Verdict(name, True, module.check(*answer, draw=draw) or "Right.")
    except Wrong as error:
        said = f"{error}{_suspicious_line(str(error), getattr(module, 'LOOK', {}), answer)}"
        if draw.used:
            said += f"\n  If this case was random, seed={draw.seed} in check(…) repeats it."
        verdict = Verdict(name, False, said)
    except NotImplementedError:
        verdict = Verdict(name, False, "Nothing is here yet: replace `raise NotImplementedError`.")
    except Exception as error:
        verdict = Verdict(name, False, f"{type(error).__name__}: {error}{line_of(error)}")
    return verdict


def line_of(error: BaseException) -> str:
    """The line of the answer on which it was raised, if it was there."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[2])
    theirs = [
        f for f in frames
        if not f.filename.startswith(ours)
        and "site-packages" not in f.filename
        and Path(f.filename).name != "check.py"
    ]  # fmt: skip
    return (
        f"\n  at line {theirs[-1].lineno}, in {theirs[-1].name}: {theirs[-1].line}"
        if theirs
        else ""
    )


def _suspicious_line(message: str, look: Mapping[str, str], answer: Sequence[Any]) -> str:
    """The line of the answer with the name that `look` has for these words; empty without one."""
    wanted = next((name for words, name in look.items() if re.search(words, message)), None)
    for function in answer if wanted else ():
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):  # not from a cell or a file
            continue
        for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "end_lineno", 0)):
            known = getattr(node, "attr", None) or getattr(node, "id", None)
            if known and re.fullmatch(wanted or "", known):
                at = getattr(node, "end_lineno", 1)
                return f"\n  Look at line {first + at - 1}: {lines[at - 1].strip()}"
    return ""


# --- tools for checks


def on_ranks(fn: Callable[..., Any], *args: Any, ranks: int, timeout: float = 15.0) -> list[Any]:
    """Each rank's result of `fn(group, *args)`; what goes wrong on ranks becomes `Wrong`.

    `timeout` (s) limits the call alone. The ranks start before it, however long a busy machine
    takes.
    """
    with world(ranks, device="cpu") as run:
        run(has_started)
        try:
            return run(fn, *args, timeout=timeout)
        except RanksHang as error:
            stands = str(error).partition("\n")[2]
            raise Wrong(
                f"With {ranks} ranks, it never finishes. The ranks are here:\n{stands}"
            ) from None
        except RankError as error:
            if "NotImplementedError" in str(error):
                raise NotImplementedError from None
            lines = [line for line in str(error).splitlines() if "code/playground/" not in line]
            raise Wrong(f"With {ranks} ranks: " + "\n".join(lines)) from None


def has_started(group: Group) -> None:
    """The first call of a world returns when all its ranks have met."""


BASE = 8  # each rank gives BASE**rank: the digits of a sum say who is in it, and how often


def mark(rank: int) -> float:
    """What this rank adds to a sum, so that `whose` can find it again."""
    return float(BASE**rank)


def whose(total: float, ranks: int, expected: Sequence[int] | None = None) -> str:
    """What is wrong with a sum of marks, in words; empty if each rank is in it once.

    `expected` says how often each rank should be in it.
    """
    expected = [1] * ranks if expected is None else expected
    if not math.isfinite(total) or total != int(total) or total < 0 or total >= BASE**ranks * BASE:
        return f"{total:g} is no sum of what the ranks gave: was it divided, or added to itself?"
    digits = [int(total) // BASE**rank % BASE for rank in range(ranks)]
    if int(total) >= BASE**ranks:
        return "what the ranks gave is in it many times over"
    said = []
    for rank, (found, right) in enumerate(zip(digits, expected, strict=True)):
        if found != right:
            often = {0: "is missing", 1: "is in it once"}.get(found, f"is in it {found} times")
            wanted = {0: "should not be in it", 1: "should be in it once"}.get(
                right, f"not {right}"
            )
            said.append(
                f"what rank {rank} gave {often}" + (f", and {wanted}" if right != 1 else "")
            )
    return "; ".join(said)


def compare(name: str, found: Any, expected: Any, tolerance: float = 1e-6, where: str = "") -> None:
    """Raise `Wrong` with the largest difference unless `found` is `expected`, within tolerance."""
    if found is None:
        raise Wrong(f"{where}{name}: the function returns nothing (None)")
    a, b = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (found, expected))
    if a.shape != b.shape:
        raise Wrong(f"{where}{name} has the shape {list(a.shape)}, not {list(b.shape)}")
    if not a.size:
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    off = np.abs(a - b)
    off = np.where(np.isfinite(off), off, np.inf)
    scale = max(np.abs(b).max(), 1e-30)
    if off.max() > tolerance * scale:
        at = np.unravel_index(off.argmax(), off.shape)
        place = f"[{', '.join(map(str, at))}]" if a.ndim else ""
        ratio = a[at] / b[at] if b[at] else np.inf
        times = f", {ratio:.4g} times it" if np.isfinite(ratio) and abs(ratio) < 1e4 else ""
        raise Wrong(f"{where}{name}{place} is {a[at]:.6g}, and should be {b[at]:.6g}{times}")


if __name__ == "__main__":
    # With -m this module is loaded twice, and checks raise the `Wrong` of the other copy.
    from playground.exercises.submission import main

    raise SystemExit(main())
