"""The cells of a page, read without running them: what a kernel would only find after minutes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from playground.build.digest import CELL
from playground.build.pieces import LOAD, load
from playground.build.tab import imported
from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (ROOT / f"{name}.md" for name in pages_in_order(ROOT))
    if CELL.search(page.read_text())
]
REMOVED = re.compile(r"^:?tags:.*\bremove-cell\b", re.M)
OPTIONS = re.compile(r"\A(?:---\n[\s\S]*?\n---\n|(?::.*\n)+)")


def program(page: Path, live: bool) -> str:
    """All cells of a page in one text, the modules that they load included; or the `live` ones.

    A cell with the tag `remove-cell` is not on the page, so that no reader can run it.
    """
    parts = []
    for cell in CELL.findall(page.read_text()):
        if live and REMOVED.search(cell):
            continue
        body = cell.partition("\n")[2].removesuffix("```")
        if loads := LOAD.search(body):
            body = load(page, loads[1])
        parts.append(OPTIONS.sub("", body))
    return "\n\n".join(parts)


@pytest.mark.parametrize("live", [False, True], ids=["all", "live"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "book")))
def test_each_name_that_a_cell_uses_has_come_on_its_page(page: Path, live: bool) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input=program(page, live), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "book")))
def test_a_page_needs_no_tool_of_the_tests(page: Path) -> None:
    """A reader who changes code has the page executed, and has not installed them."""
    tools = re.findall(r"^[\w-]+", (ROOT / "requirements/dev.txt").read_text(), re.M)
    names = imported(ast.walk(ast.parse(program(page, live=False))))
    assert {name.split(".")[0] for name in names}.isdisjoint(
        tool.replace("-", "_") for tool in tools
    )
