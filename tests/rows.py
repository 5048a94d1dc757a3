"""Which rows of a large matrix `make test` runs; `make test-all` runs all of them.

Most faults need one or two values to meet. So a few rows are enough in which each pair of values
meets at least once (with two columns: each value once): a covering array, found greedily.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any

import pytest


def covering(**columns: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize by all rows, slow those that no pair of values needs.

    A column is an argument and its values, or (`name__partition`) several arguments and tuples of
    values. If the values come in a dictionary, a row is named after its keys.
    """
    strength = 2 if len(columns) > 2 else 1
    named = [
        [*values.items()] if isinstance(values, Mapping) else [(_name(v), v) for v in values]
        for values in columns.values()
    ]
    rows = [*product(*map(enumerate, named))]

    def meetings(row: tuple[tuple[int, Any], ...]) -> set[tuple[tuple[int, int], ...]]:
        cells = [(column, number) for column, (number, _) in enumerate(row)]
        return {*combinations(cells, strength)}

    left, kept = set().union(*map(meetings, rows)), set[int]()
    while left:
        best = max(range(len(rows)), key=lambda number: len(left & meetings(rows[number])))
        left -= meetings(rows[best])
        kept.add(best)
    names = [name.split("__") for name in columns]
    parameters = []
    for number, row in enumerate(rows):
        values: list[Any] = []
        for several, (_, (_, value)) in zip(names, row, strict=True):
            values += [value] if len(several) == 1 else value
        marks = () if number in kept else pytest.mark.slow
        name = "-".join(name for _, (name, _) in row)
        parameters.append(pytest.param(*values, marks=marks, id=name))
    return pytest.mark.parametrize([name for several in names for name in several], parameters)


def _name(value: Any) -> str:
    return value.__name__ if callable(value) else str(value)
