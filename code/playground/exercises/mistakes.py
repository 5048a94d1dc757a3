"""The mistakes that an exercise knows, from `exercises/NAME/wrong.toml`. Each has a table there:

    [never_divides]
    mistake = 'Nobody divides.'
    says = 'All rows count alike, but .* 8 times'
    old = '"sum") / count'
    new = '"sum")'

`says` is a regular expression that the verdict matches. `old` stands once in solution.py, and `new`
takes its place. Several replacements are tables `[[never_divides.replace]]`, each with `old` and
`new`. An answer that shares little with the solution is there as a whole: `whole`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from playground.exercises import FOLDER


class WrongAnswer(NamedTuple):
    """An answer with one mistake: what it is, what is to be said of it, and the whole file."""

    mistake: str
    says: str
    code: str


def wrong_answers(name: str) -> dict[str, WrongAnswer]:
    """The wrong answers to an exercise, by name.

    Raises ValueError for a table that has other keys than these, or that does not fit solution.py.
    """
    solution = (FOLDER / name / "solution.py").read_text(encoding="utf-8")
    tables = tomllib.loads((FOLDER / name / "wrong.toml").read_text(encoding="utf-8"))
    found = {}
    for stem, table in tables.items():
        try:
            code = _code(table, solution)
            found[stem] = WrongAnswer(table["mistake"], table["says"], code)
        except (KeyError, ValueError) as error:
            raise ValueError(f"exercises/{name}/wrong.toml, [{stem}]: {error}") from None
    return found


def _code(table: Mapping[str, Any], solution: str) -> str:
    match dict(table):
        case {"mistake": str(), "says": str(), "whole": str(whole), **rest} if not rest:
            return whole
        case {"mistake": str(), "says": str(), "old": str(old), "new": str(new), **rest} if (
            not rest
        ):
            return replaced(solution, [(old, new)])
        case {"mistake": str(), "says": str(), "replace": list(tables), **rest} if not rest:
            return replaced(solution, [(each["old"], each["new"]) for each in tables])
    raise ValueError(
        "give mistake, says, and one of: old and new; tables replace; whole; "
        f"it has {', '.join(table)}"
    )


def replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """The text with each `old` replaced by its `new`, all of them as they stand in the text.

    Raises ValueError unless each `old` stands in it once, and none within another.
    """
    for old, _ in pairs:
        if text.count(old) != 1:
            raise ValueError(
                f"old={old!r} stands {text.count(old)} times in the solution, not once"
            )
    places = sorted((text.index(old), old, new) for old, new in pairs)
    for (at, old, _), (following, other, _) in pairwise(places):
        if at + len(old) > following:
            raise ValueError(f"old={old!r} and old={other!r} overlap in the solution")
    for at, old, new in reversed(places):  # from the back: what is before stays where it is
        text = text[:at] + new + text[at + len(old) :]
    return text
