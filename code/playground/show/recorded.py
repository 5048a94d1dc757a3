"""Recordings of `python -m bench --record NAME`, which pages show with their stamp."""

import json
from pathlib import Path
from typing import Any

from playground.show.tables import Table

FOLDER = Path(__file__).parents[3] / "bench/recorded"


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one recorded run; each has the keys that `bench.pairs.compare` lists."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def names() -> list[str]:
    """The recorded runs that are lists of such rows; the others have forms of their own."""
    found = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [name for name in found if isinstance(rows(name), list)]


def stamp(row: dict[str, Any]) -> str:
    """Where, with what and when a row was measured."""
    env = row["env"]
    where = env["gpu"] or f"{env['cores']} cores of {env['cpu']}"
    return f"{where}, torch {env['torch']}, {env['date']}, commit {env['commit']}"


def comparison(name: str, titles: dict[str, str]) -> Table:
    """Ours beside the peer, for the rows that `titles` names (id → words), in its order."""
    found = {row["id"]: row for row in rows(name)}
    table = [
        (
            title,
            f"{found[row]['ours_s'] * 1e3:.1f} ms",
            f"{found[row]['peer']}: {found[row]['peer_s'] * 1e3:.1f} ms",
            f"{found[row]['ratio']:.2f} ({found[row]['ratio_low']:.2f} to "
            f"{found[row]['ratio_high']:.2f}, {found[row]['pairs']} pairs)",
        )
        for row, title in titles.items()
    ]
    header = ["", "this book", "compared with", "its time ÷ ours, by pairs"]
    note = f"The last column is the median of the pairs. {stamp(found[next(iter(titles))])}"
    return Table(header, table, note)
