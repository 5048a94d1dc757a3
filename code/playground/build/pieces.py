"""Cells that load a module, or some pieces of it: `:load: ../../code/distributed/dp.py#shard`.

MyST-NB's own option loads whole files. What comes after `#` names functions, classes or constants
of the file, with commas; they stand in the cell in the order in which they are named.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a second of imports, which a build without stale pages does not need
    from nbformat import NotebookNode

LOAD = re.compile(r"^:?load: *(\S+)$", re.M)  # in a cell's options, of either form


def load(page: Path, what: str) -> str:
    """The text that the cell of a page gets which loads `what`.

    Raises ValueError where a file has no piece of that name.
    """
    file, _, names = what.partition("#")
    path = (page.parent / file).resolve()
    text = path.read_text(encoding="utf-8")
    if not names:
        return text
    found = _pieces(text)
    if unknown := [name for name in names.split(",") if name not in found]:
        raise ValueError(f"{page.name} loads {what}, but {path.name} has no {', '.join(unknown)}")
    return "\n\n\n".join(found[name] for name in names.split(","))


def _pieces(text: str) -> dict[str, str]:
    """The text of each name that a module defines at its top."""
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
    """A page as a notebook."""
    from myst_nb.core.read import read_myst_markdown_notebook

    teach_myst_nb()
    return read_myst_markdown_notebook(path.read_text(encoding="utf-8"), path=path)


def teach_myst_nb() -> None:
    """Let MyST-NB's reader load pieces, too."""
    import myst_nb.core.read

    def read(nb_path: str | Path, file_name: str, token: Any, body_lines: list[str]) -> list[str]:
        try:
            return load(Path(nb_path), file_name).split("\n")
        except (OSError, ValueError) as error:
            raise myst_nb.core.read._LoadFileParsingError(str(error)) from error

    myst_nb.core.read._load_code_from_file = read
