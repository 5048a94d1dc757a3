"""The mistakes that an exercise knows, from `exercises/NAME/wrong.toml`. Each has a table there:

    [never_divides]
    mistake = 'Nobody divides.'
    says = 'All rows count alike, but .* 8 times'
    old = '"sum") / count'
    new = '"sum")'

`says` is a regular expression that the verdict matches. `old` stands once in solution.py, and `new`
takes its place. Several replacements are tables `[[never_divides.replace]]`, each with `old` and
`new`. An answer that shares little with the solution is there as a whole: `whole`.

`exercises/NAME/right.toml`, if there is one, has unusual but right answers, which a check refused
once. Their tables have `unusual`, which says what is unusual, instead of `mistake` and `says`.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
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
    return {
        stem: WrongAnswer(said["mistake"], said["says"], code)
        for stem, said, code in _answers(name, "wrong.toml", ("mistake", "says"))
    }


def right_answers(name: str) -> dict[str, str]:
    """The unusual but right answers to an exercise: whole files, by name. Raises as above."""
    if not (FOLDER / name / "right.toml").exists():
        return {}
    return {stem: code for stem, _, code in _answers(name, "right.toml", ("unusual",))}


def _answers(
    name: str, file: str, words: Sequence[str]
) -> Iterator[tuple[str, dict[str, str], str]]:
    """Each table of a file: its name, what it says under these words, and the code it describes."""
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
