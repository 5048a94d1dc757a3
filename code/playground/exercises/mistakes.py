"""Typical mistakes in an exercise, from `exercises/NAME/wrong.toml`, which has a table per mistake:

    [never_divides]
    mistake = 'The gradients are not divided.'
    says = 'All rows count alike, but .* 8 times'
    old = '"sum") / count'
    new = '"sum")'

`says` is a regular expression that the verdict matches. `old` occurs exactly once in solution.py
and is replaced by `new`. For several replacements there are tables `[[never_divides.replace]]`,
each with `old` and `new`. An answer that has little in common with the solution is given in full as
`whole`.

`exercises/NAME/right.toml`, which is optional, contains answers that are right but unusual, because
a check once rejected them. Instead of `mistake` and `says`, their tables have `unusual`, which
describes what is unusual.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from playground.exercises import FOLDER


class WrongAnswer(NamedTuple):
    """An answer with one mistake: description, pattern of the verdict, and the whole file."""

    mistake: str
    says: str
    code: str


def wrong_answers(name: str) -> dict[str, WrongAnswer]:
    """Wrong answers to an exercise, by name.

    Raises ValueError for a table with unknown keys, or one that doesn't fit solution.py.
    """
    return {
        stem: WrongAnswer(said["mistake"], said["says"], code)
        for stem, said, code in _answers(name, "wrong.toml", ("mistake", "says"))
    }


def right_answers(name: str) -> dict[str, str]:
    """Right but unusual answers to an exercise, by name, as whole files. Raises as above."""
    if not (FOLDER / name / "right.toml").exists():
        return {}
    return {stem: code for stem, _, code in _answers(name, "right.toml", ("unusual",))}


def _answers(
    name: str, file: str, words: Sequence[str]
) -> Iterator[tuple[str, dict[str, str], str]]:
    """Tables of a file: name, texts under the keys `words`, and the code that it describes."""
    solution = (FOLDER / name / "solution.py").read_text(encoding="utf-8")
    tables = tomllib.loads((FOLDER / name / file).read_text(encoding="utf-8"))
    for stem, table in tables.items():
        said = {word: table[word] for word in words if isinstance(table.get(word), str)}
        rest = {key: value for key, value in table.items() if key not in said}
        try:
            if len(said) < len(words):
                raise ValueError(f"give {' and '.join(words)}; it has {', '.join(table)}")
            yield stem, said, _code(rest, solution)
        except (KeyError, ValueError) as error:
            raise ValueError(f"exercises/{name}/{file}, [{stem}]: {error}") from None


def _code(table: Mapping[str, Any], solution: str) -> str:
    match dict(table):
        case {"whole": str(whole), **rest} if not rest:
            return whole
        case {"old": str(old), "new": str(new), **rest} if not rest:
            return replaced(solution, [(old, new)])
        case {"replace": list(tables), **rest} if not rest:
            return replaced(solution, [(each["old"], each["new"]) for each in tables])
    raise ValueError(
        f"give one of: old and new; tables replace; whole; beside its words it has "
        f"{', '.join(table)}"
    )


def replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Replace each `old` by its `new`. All of them refer to the original text.

    Raises ValueError unless each `old` occurs in it exactly once, and none overlaps another.
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
    for at, old, new in reversed(places):  # from the end, so that earlier positions stay valid
        text = text[:at] + new + text[at + len(old) :]
    return text
