"""The map of the book and the reference of its modules, which are made and not written."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

import pages  # type: ignore[import-not-found]  # noqa: E402


def function(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def record(text: str) -> ast.ClassDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def test_every_module_is_in_the_reference_once_and_under_its_chapter():
    found = [entry for part in pages.modules_by_part(ROOT).values() for entry in part]
    modules = [path.stem for path, _ in found]
    assert sorted(modules) == sorted(p.stem for p in ROOT.glob("code/distributed/[!_]*.py"))
    assert dict((path.stem, page) for path, page in found)["zero3"] == "book/zero/zero3"


def test_every_chapter_says_in_its_first_sentence_what_it_is_for():
    for files in pages.chapters(ROOT).values():
        for file in files:
            said = pages.purpose((ROOT / f"{file}.md").read_text())
            assert said[0].isupper() or not said[0].isalpha(), file
            assert said.endswith((".", ":")), file
            assert not said.startswith(pages.AFTER)


def test_the_purpose_is_the_first_sentence_without_its_beginning():
    page = "# Title\n\nAfter this chapter you can count\nall bytes. More.\n\n## Next\n"
    assert pages.purpose(page) == "Count all bytes."


def test_a_signature_is_what_a_caller_writes():
    assert pages.arguments(function("def f(self, a: int, *, b=2): ..."), True) == "a: int, *, b=2"
    assert pages.arguments(function("def f(a, b): ..."), False) == "a, b"
    assert (
        pages.fields(record("class R(NamedTuple):\n  a: int\n  b: int = 1"))
        == "(a: int, b: int = 1)"
    )
    assert pages.fields(record("class C:\n  def __init__(self, n): ...")) == "(n)"
    assert pages.fields(record("class C: ...")) == ""


def test_a_docstring_stays_plain_text():
    blocks = pages.docstring_nodes("One `x` *here*.\n\n    x[n] → y[n]\n\nEnd.")
    assert [type(block).__name__ for block in blocks] == ["paragraph", "literal_block", "paragraph"]
    assert blocks[0].astext() == "One x *here*."
    assert blocks[1].astext() == "    x[n] → y[n]"
