"""Lessons that a lesson needs: those that it imports, and those that they import.

    python -m playground.build.needs_of_modules

prints them for each lesson, with their lines of code together, and updates the count on a page.
Empty lines, comments and docstrings aren't lines of code. Every lesson needs `runtime`. Imports of
a demonstration or for a type checker don't count.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

from playground.build.reach import ROOT
from playground.build.tab import imports_of

PAGE = "book/maintainers/running.md"
SENTENCE = r"\d+ of the \d+ need only\n`runtime/` and at most one other"  # on that page


def needs(root: Path) -> dict[str, set[str]]:
    """Module → lessons without which it can't be imported."""
    paths = {path.stem: path for path in sorted(root.glob("code/distributed/[!_]*.py"))}
    direct = {
        name: {used.split(".")[1] for used in imports_of(path) if used.startswith("distributed.")}
        & {*paths}
        for name, path in paths.items()
    }
    found = {}
    for name in paths:
        needed, new = set[str](), direct[name]
        while new:
            needed |= new
            new = set[str]().union(*(direct[other] for other in new)) - needed
        found[name] = needed
    return found


def share(needed: dict[str, set[str]]) -> tuple[int, int]:
    """Number of lessons that need at most one other, and number of lessons."""
    return sum(len(each) <= 1 for each in needed.values()), len(needed)


def sentence(needed: dict[str, set[str]]) -> str:
    """The sentence on *Running the book* with these numbers."""
    few, all_of_them = share(needed)
    return f"{few} of the {all_of_them} need only\n`runtime/` and at most one other"


def lines_of_code(path: Path) -> int:
    """Number of lines without empty lines, comments and docstrings."""
    source = path.read_text(encoding="utf-8")
    spaces = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    held = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in spaces:
            held |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node):
            text = node.body[0]
            held -= {*range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    return len(held)


def lines_with_needs(root: Path, name: str, others: set[str]) -> int:
    """Lines of code of a lesson and of the lessons that it needs."""
    return sum(lines_of_code(root / f"code/distributed/{each}.py") for each in {name, *others})


def main() -> None:
    """Print a line per lesson, the shortest list first, and update the page's sentence."""
    needed, page = needs(ROOT), ROOT / PAGE
    page.write_text(re.sub(SENTENCE, sentence(needed), page.read_text("utf-8")), "utf-8")
    for name in sorted(needed, key=lambda name: (len(needed[name]), name)):
        others = sorted(needed[name])
        total = lines_with_needs(ROOT, name, needed[name])
        print(f"{name:26}{total:6} lines  {len(others):2} others  {', '.join(others)}")
    print(sentence(needed).replace("\n", " "))


if __name__ == "__main__":
    main()
