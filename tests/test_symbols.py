"""The code names beside the symbols are names of the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book/reference/symbols.md").read_text()
ROWS = [line.split("|")[3] for line in PAGE.splitlines() if line.startswith("| $")]
NAMES = re.findall(r"`(\w+)\.([\w.]+)(?:\((\w+)\))?`", " ".join(ROWS))


def attributes(node: ast.ClassDef) -> set[str]:
    """Fields of a record, and what methods write to `self`."""
    written = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    given = {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    return given | {name.removeprefix("self.") for name in written}


@pytest.mark.parametrize(
    ("module", "name", "argument"), [n for n in NAMES if n[0] != "parameter"], ids="-".join
)
def test_a_code_name_is_in_its_module(module, name, argument):
    tree = ast.parse((ROOT / f"code/distributed/{module}.py").read_text())
    first, *rest = name.split(".")
    defined = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    node = defined[first]
    if rest:
        assert isinstance(node, ast.ClassDef)
        assert rest[0] in attributes(node)
    if argument:
        assert isinstance(node, ast.FunctionDef)
        assert argument in {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}


def test_names_are_found():
    assert len(NAMES) > 20
