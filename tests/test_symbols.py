"""Every letter of a formula is on the page of symbols, and the code names beside them exist."""

import ast
import re
from pathlib import Path

import pytest

from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book/reference/glossary.md").read_text()
GREEK = "alpha beta gamma delta epsilon eta theta kappa lambda mu rho sigma tau phi omega Psi Sigma"
ROWS = [line.split("|")[3] for line in PAGE.splitlines() if line.startswith("| $")]
# No letters of a formula: words, and the space after a line.
WORDS = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\{[^}]*\}|\\\\\[\w*\]")
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
    (path,) = (ROOT / "code/distributed").rglob(f"{module}.py")
    tree = ast.parse(path.read_text())
    first, *rest = name.split(".")
    defined = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    node = defined[first]
    if rest:
        assert isinstance(node, ast.ClassDef)
        assert rest[0] in attributes(node)
    if argument:
        assert isinstance(node, ast.FunctionDef)
        assert argument in {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}


def letters(page: str) -> set[str]:
    """Of all formulas of a page: Latin letters, and Greek ones by their names."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page, flags=re.M | re.S)
    formulas = " ".join(re.findall(r"\$\$?([^$]+)\$\$?", text))
    found = set(re.findall(r"\\[A-Za-z]+|[A-Za-z]", WORDS.sub(" ", formulas)))
    return {name for name in found if len(name) == 1 or name[1:] in GREEK.split()}


def test_letters_are_found():
    assert letters(r"$\alpha + \mathrm{tr}(A_{b})$ `$c$` and $$d$$") == {r"\alpha", "A", "b", "d"}


@pytest.mark.parametrize(
    "page", [ROOT / f"{page}.md" for page in pages_in_order(ROOT)], ids=lambda page: page.stem
)
def test_every_letter_of_a_formula_is_on_the_page(page):
    assert letters(page.read_text()) <= letters(PAGE)
