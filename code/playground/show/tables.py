"""Tables for pages: HTML on a page, aligned text in a terminal."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

UNIT = r"\S{1,3}|[kMGT]?(bit|B)/s|[MGTP]FLOP/s"
QUANTITY = re.compile(rf"[-+−\d.,e]+(\s?({UNIT}))?")  # a number, with a unit or without
SIGNED_ZERO = re.compile(r"[-+](0(\.0+)?(\s?[^\s\d.]{1,3})?)")


class Table:
    """Rows under a header. Numbers are right-aligned, and line breaks in a value are kept.

    A number that was rounded to zero has no sign. The `note` is shown below the table, and often
    gives the source of the numbers.
    """

    def __init__(self, header: Sequence[str], rows: Iterable[Sequence[Any]], note: str = ""):
        self.header, self.note = list(header), note
        self.rows = [[_unsigned(value) for value in row] for row in rows]
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{len(row)} values under {len(self.header)} headings: {row}")

    def _repr_html_(self) -> str:
        columns = zip(self.header, *self.rows, strict=True)
        head = "".join(_heading(name, any(map(_is_quantity, cells))) for name, *cells in columns)
        body = "".join(f"<tr>{''.join(map(self._cell, row))}</tr>" for row in self.rows)
        note = f'<p class="table-note">{escape(self.note)}</p>' if self.note else ""
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f'<table class="table">{table}</table>{note}'

    def _cell(self, value: Any) -> str:
        text = escape(str(value)).replace("\n", "<br>")
        if not _is_quantity(value):
            return f"<td>{text}</td>"
        text = re.sub(r"^-|(?<=e)-", "−", text)
        return f'<td class="text-right">{text}</td>'

    def __repr__(self) -> str:
        lines = [[str(value).replace("\n", " ") for value in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.header, *lines, strict=True)]
        return "\n".join(
            "  ".join(
                value.ljust(width) for value, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in [self.header, *lines]
        ) + f"\n{self.note}" * bool(self.note)


def _heading(name: str, of_numbers: bool) -> str:
    if not name:
        return "<td></td>"
    return (
        f'<th class="text-right">{escape(name)}</th>' if of_numbers else f"<th>{escape(name)}</th>"
    )


def _is_quantity(value: Any) -> bool:
    return isinstance(value, int | float) or QUANTITY.fullmatch(str(value)) is not None


def _unsigned(value: Any) -> Any:
    zero = SIGNED_ZERO.fullmatch(value) if isinstance(value, str) else None
    return zero[1] if zero else value
