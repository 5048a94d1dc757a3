"""What each cell of a page needs that Python in a reader's tab has not got, from its syntax.

A cell needs the libraries that it imports, and those of a cell above whose names it uses. It is
read when the book is built: what a reader imports in an edit, the tab's Python finds or does not.
"""

import ast
import symtable
from collections.abc import Callable, Sequence

from playground.build.tab import CARRIED, IN_THE_TAB, OURS, imported, modules

OFFERED = {f"distributed.{name}": None for name in ("launch", "world", "Group")}  # by the package

Lack = Callable[[str], str | None]  # a dotted name → the library that it takes; None: it is there


def lack_in(standard: frozenset[str]) -> Lack:
    """What a tab lacks whose Python has these modules."""
    known = modules(standard) | IN_THE_TAB | OFFERED

    def lack(name: str) -> str | None:
        top, *_ = parts = name.split(".")
        if top not in OURS:
            return None if top in standard or top in CARRIED else top
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((known[prefix] for prefix in prefixes if prefix in known), top)

    return lack


def needs(cells: Sequence[tuple[str, bool]], lack: Lack) -> list[list[str]]:
    """The libraries that each of a page's cells needs. A cell is its code, and whether it stands
    alone: then it uses no other, and no other uses it."""
    missing: dict[str, list[str]] = {}  # a name that is not there → the libraries that it takes
    found: list[list[str]] = []
    for code, stands_alone in cells:
        try:
            tree, scope = ast.parse(code), symtable.symtable(code, "cell", "exec")
        except SyntaxError:  # a magic of IPython, or meant to fail
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
    """The names that a cell leaves behind, and those that it or one of its functions looks up."""
    # Python 3.14 runs a comprehension in the cell's own scope, though its names end with it.
    symbols = [one for one in scope.get_symbols() if not getattr(one, "is_comp_iter", bool)()]
    made = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}
    used = {one.get_name() for one in symbols if one.is_referenced()}
    inside = [*scope.get_children()]
    while inside:
        table = inside.pop()
        used |= {one.get_name() for one in table.get_symbols() if one.is_global()}
        inside += table.get_children()
    return made, used
