"""A cell loads a module, or pieces of it by name."""

from pathlib import Path

import pytest

from playground.build.digest import digest
from playground.build.pieces import load, read_page

MODULE = '''\
"""A module."""

import functools

LIMIT = 3


@functools.cache
def first(x):
    return x


class Second:
    y = 1


if __name__ == "__main__":
    print(first(1))
'''
HEAD = "---\nkernelspec: {name: python3, display_name: Python 3}\n---\n\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    page = tmp_path / "page.md"
    page.write_text(f"{HEAD}# Title\n\n```{{code-cell}} python\n:load: mine.py#first\n```\n")
    return page


def test_a_whole_module_comes_as_it_is(page: Path) -> None:
    assert load(page, "mine.py") == MODULE


def test_a_piece_comes_with_its_decorators(page: Path) -> None:
    assert load(page, "mine.py#first") == "@functools.cache\ndef first(x):\n    return x"


def test_pieces_come_in_the_order_asked_for(page: Path) -> None:
    assert load(page, "mine.py#Second,LIMIT") == "class Second:\n    y = 1\n\n\nLIMIT = 3"


def test_a_piece_that_is_not_there_is_named(page: Path) -> None:
    with pytest.raises(
        ValueError, match=r"page.md loads mine.py#first,third, but .* doesn't define"
    ):
        load(page, "mine.py#first,third")


@pytest.mark.parametrize("options", [":load: {}\n", "---\nload: {}\ntags: [hide-cell]\n---\n"])
def test_the_reader_gives_a_cell_its_piece_and_the_digest_knows_the_file(page, options) -> None:
    cell = options.format("mine.py#Second")
    page.write_text(f"{HEAD}# Title\n\n```{{code-cell}} python\n{cell}```\n")
    (loaded,) = (cell for cell in read_page(page).cells if cell.cell_type == "code")
    assert loaded.source == "class Second:\n    y = 1"
    before = digest(page)
    (page.parent / "mine.py").write_text(MODULE.replace("y = 1", "y = 2"))
    assert digest(page) != before
