"""Libraries that each cell of a page needs and a reader's tab lacks, from the cell's syntax.

A cell needs the libraries that it imports, and those of every earlier cell whose names it uses. The
build reads them from the page. If a reader edits a cell, the tab's Python finds out itself whether
it has a library.
"""

import ast
import symtable
from collections.abc import Callable, Sequence

from playground.build.tab import CARRIED, IN_THE_TAB, OURS, imported, modules

OFFERED = {f"distributed.{name}": None for name in ("launch", "world", "Group")}  # the package's

Lack = Callable[[str], str | None]  # dotted name → the library that it needs, None if a tab has it


def lack_in(standard: frozenset[str]) -> Lack:
    """The libraries that are missing in a tab whose Python has these standard modules."""
    known = modules(standard) | IN_THE_TAB | OFFERED

    def lack(name: str) -> str | None:
        top, *_ = parts = name.split(".")
        if top not in OURS:
            return None if top in standard or top in CARRIED else top
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((known[prefix] for prefix in prefixes if prefix in known), top)

    return lack


def needs(cells: Sequence[tuple[str, bool]], lack: Lack) -> list[list[str]]:
    """Libraries that each of a page's cells needs and lacks. A cell is its code, and whether it is
    independent, which means that it uses no other cell and no other cell uses it."""
    missing: dict[str, list[str]] = {}  # name from above → libraries it needs
    found: list[list[str]] = []
    for code, stands_alone in cells:
        try:
            tree, scope = ast.parse(code), symtable.symtable(code, "cell", "exec")
        except SyntaxError:  # a magic of IPython, or a cell that is meant to fail
            found.append([])
            continue
        lacking = dict.fromkeys(filter(None, map(lack, imported(ast.walk(tree)))))
        made, used = names(scope)
        if not stands_alone:
            lacking |= dict.fromkeys(
                lib for name in sorted(used - made) for lib in missing.get(name, [])
            )
            for name in made:
                missing[name] = [*lacking]
        found.append([*lacking])
    return found


def names(scope: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Names that a cell defines, and names that it or one of its functions looks up."""
    # Python 3.14 runs a comprehension in the cell's own scope, but its variables end with it.
    symbols = [one for one in scope.get_symbols() if not getattr(one, "is_comp_iter", bool)()]
    made = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}
    used = {one.get_name() for one in symbols if one.is_referenced()}
    inside = [*scope.get_children()]
    while inside:
        table = inside.pop()
        used |= {one.get_name() for one in table.get_symbols() if one.is_global()}
        inside += table.get_children()
    return made, used
