"""Order of the book, from `_toc.yml`. Modules may use each other only in this order."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

MAINTAINERS = "For maintainers"  # the front page leaves this part out
LOOKED_UP = ("Reference", "Appendices", MAINTAINERS)  # parts that aren't read in order
EXERCISES = ("/exercises", "/silent_bugs")


def table_of_contents(root: Path) -> dict[str, Any]:
    path = root / "_toc.yml"
    return dict(_read(path, path.stat().st_mtime_ns))


@lru_cache  # a build calls it some two hundred times
def _read(path: Path, changed_at: int) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def first_page(root: Path) -> str:
    """The page before all parts, as a path without suffix, like all pages here."""
    return str(table_of_contents(root)["root"])


def chapters(root: Path) -> dict[str, list[str]]:
    """The pages of each part, in order."""
    parts = table_of_contents(root).get("parts", [])
    return {part["caption"]: [c["file"] for c in part["chapters"]] for part in parts}


def taught(root: Path) -> list[str]:
    """Chapters that are read from top to bottom, which excludes exercises and reference pages."""
    parts = [files for caption, files in chapters(root).items() if caption not in LOOKED_UP]
    return [file for files in parts for file in files if not file.endswith(EXERCISES)]


def core_path(root: Path) -> dict[str, str]:
    """The chapters that `{core-path}` on the front page lists: page → its result, in order.

    Empty if the front page has no such list, as in a small book.
    """
    text = (root / f"{first_page(root)}.md").read_text("utf-8")
    block = re.search(r"^```\{core-path\}\n(.+?)^```", text, re.M | re.S)
    if block is None:
        return {}
    pages = {Path(name).name: name for name in pages_in_order(root)}
    lines = [line.split(": ", 1) for line in block[1].splitlines()]
    if wrong := [name for name, _ in lines if name not in pages]:
        raise ValueError(f"{first_page(root)}.md, core path: not in _toc.yml: {', '.join(wrong)}")
    return {pages[name]: result for name, result in lines}


def pages_in_order(root: Path) -> list[str]:
    """All pages of the book, starting with the first. A small book has chapters but no parts."""
    alone = table_of_contents(root).get("chapters", [])
    parts = chapters(root).values()
    return [first_page(root), *(c["file"] for c in alone), *(f for files in parts for f in files)]
