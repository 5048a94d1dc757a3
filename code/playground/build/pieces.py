"""Cells that load a module, or parts of one: `:load: ../../code/distributed/dp.py#shard`.

MyST-NB's own option loads whole files. The words after `#`, separated by commas, name functions,
classes or constants of the file. The cell contains them in the order in which they are named.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # takes a second to import, and a build without stale pages doesn't need it
    from nbformat import NotebookNode

LOAD = re.compile(r"^:?load: *(\S+)$", re.M)  # in a cell's options, in either of their two forms


def load(page: Path, what: str) -> str:
    """The code for a cell of the page whose option `:load:` is `what`.

    Raises ValueError if the file doesn't define one of the names.
    """
    file, _, names = what.partition("#")
    path = (page.parent / file).resolve()
    text = path.read_text(encoding="utf-8")
    if not names:
        return text
    found = _pieces(text)
    if unknown := [name for name in names.split(",") if name not in found]:
        raise ValueError(
            f"{page.name} loads {what}, but {path.name} doesn't define {', '.join(unknown)}"
        )
    return "\n\n\n".join(found[name] for name in names.split(","))


def _pieces(text: str) -> dict[str, str]:
    """Source of each top-level definition of a module: name → text."""
    lines, found = text.splitlines(), dict[str, str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(line.lineno for line in node.decorator_list)])
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            first, names = node.lineno, [ast.unparse(target) for target in targets]
        else:
            continue
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def read_page(path: Path) -> NotebookNode:
    """Read a page as a notebook."""
    from myst_nb.core.read import read_myst_markdown_notebook

    teach_myst_nb()
    return read_myst_markdown_notebook(path.read_text(encoding="utf-8"), path=path)


def teach_myst_nb() -> None:
    """Extend MyST-NB's reader so that it also loads parts of files."""
    import myst_nb.core.read

    def read(nb_path: str | Path, file_name: str, token: Any, body_lines: list[str]) -> list[str]:
        try:
            return load(Path(nb_path), file_name).split("\n")
        except (OSError, ValueError) as error:
            raise myst_nb.core.read._LoadFileParsingError(str(error)) from error

    myst_nb.core.read._load_code_from_file = read
