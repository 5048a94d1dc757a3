"""Reachability: which functions and classes of this project a program can use, found from names.

A name is looked up among the definitions of its module, then among the module's imports. An
attribute can be a method of any reached class, or a definition in a module that is imported as a
whole. So can a string that is a single word (`getattr(group, "all_reduce")`). This finds more than
what actually runs, and misses only names that are assembled at run time.

A method is reached if it is named, or if Python or a library calls it: `__init__`, `_repr_html_`,
and all methods of a class that extends a library's class (`forward`, `step`). Statements of a
module other than definitions run when it is imported. The method is that of Bacon and Sweeney,
"Fast Static Analysis of C++ Virtual Function Calls" (1996), who consider the classes that are
instantiated, where this considers the classes that are named.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("distributed", "recipes", "playground", "bench")
ROOT = Path(__file__).parents[3]
WORD = re.compile(r"[A-Za-z_]\w*")
OURS = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
PLAIN = {"ABC", "Enum", "Exception", "Generic", "NamedTuple", "Protocol", "StrEnum", "object"}
KNOWN = {"authenticated", "cache", "classmethod", "contextmanager", "dataclass", "getter"}
KNOWN |= {"lru_cache", "no_grad", "property", "setter", "staticmethod"}  # these register nothing
LIBRARY = "a library's"  # replaces the name of a library's base class
MAIN = "__name__ == '__main__'"


class Mention(NamedTuple):
    """A name in code: of a definition in `file`, of an attribute, or, with neither, of anything."""

    name: str
    file: Path | None = None
    is_attribute: bool = False


class Unit(NamedTuple):
    """A definition, a method, or the statements of a module that run at import."""

    file: Path
    line: int
    text: str
    name: str  # "" if it is reached without being named
    owner: str  # the class, for a method
    bases: frozenset[str] | None  # base classes, for a class
    mentions: frozenset[Mention]
    imports: frozenset[Path]


class Names(NamedTuple):
    """Meaning of names in a module: its definitions, its imports, and modules imported whole."""

    file: Path
    defined: set[str]
    imported: dict[str, Mention]
    modules: dict[str, Path]


def path_of(name: str) -> Path | None:
    """File of one of our modules, given a dotted name that may continue beyond the module."""
    package, *parts = name.split(".")
    folder = (ROOT if package == "bench" else ROOT / "code") / package
    if package == "playground" and (ROOT / Path(*parts[:2])).is_dir() and len(parts) > 2:
        folder, parts = ROOT, parts[:3]  # exercises/NAME/check.py
    for part in parts:
        if not (folder / part).is_dir():
            files = (folder / f"{part}.py", folder / "__init__.py")  # or a name in a package
            return next((file for file in files if file.exists()), None)
        folder = folder / part
    file = folder / "__init__.py"
    return file if file.exists() else None


def files_of(names: Iterable[str]) -> frozenset[Path]:
    """Files of those of these dotted names that are ours."""
    found = {path_of(name) for name in names if name.split(".")[0] in PACKAGES}
    return frozenset(path for path in found if path)


def imports_of(path: Path) -> frozenset[Path]:
    """This project's files that a module imports, at the top or inside functions."""
    return _imports_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1000)
def _imports_of(path: Path, changed_at: int) -> frozenset[Path]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return files_of(name for node in nodes for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _names(path: Path, tree: ast.Module) -> Names:
    names = Names(path, set(), {}, {})
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _one_name(node):
            names.defined.add(_one_name(node))
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            _take_in(part, names)
    return names


def _take_in(node: ast.Import | ast.ImportFrom, names: Names) -> None:
    """Add the names that an import defines in a module."""
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        dotted = f"{module}.{alias.name}" if module else alias.name
        file = path_of(dotted) if dotted.split(".")[0] in PACKAGES else None
        if file is None:
            continue
        if not module or file != path_of(module):
            names.modules[alias.asname or alias.name.split(".")[0]] = file
        else:
            names.imported[alias.asname or alias.name] = Mention(alias.name, file)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree that have an effect at run time: no docstrings, no annotations."""
    waiting: list[ast.AST] = [node]
    while waiting:
        one = waiting.pop()
        if _is_text(one) or isinstance(one, ast.arg):
            continue
        yield one
        returned = getattr(one, "returns", None)
        waiting += [child for child in ast.iter_child_nodes(one) if child is not returned]


def _mentions(node: ast.AST, names: Names) -> Iterator[Mention]:
    """Names in one node. If cells both define and import the same name, both meanings count."""
    if isinstance(node, ast.Name):
        if node.id in names.defined:
            yield Mention(node.id, names.file)
        if node.id in names.imported:
            yield names.imported[node.id]
    elif isinstance(node, ast.Attribute):
        yield Mention(node.attr, is_attribute=True)
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in names.modules:
            is_direct = root is node.value  # otherwise in a submodule of it
            yield Mention(node.attr, names.modules[root.id] if is_direct else None)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if WORD.fullmatch(node.value):
            yield Mention(node.value, is_attribute=True)
            if node.value in names.defined:
                yield Mention(node.value, names.file)
        elif "import " in node.value:  # the source of a program
            yield from map(Mention, WORD.findall(node.value))


def _unit(
    lines: list[str], nodes: list[ast.stmt], names: Names, name: str, owner: str = ""
) -> Unit:
    """These statements as one unit, without imports and docstrings."""
    mentions, imports, texts = set[Mention](), set[str](), []
    for node in nodes:
        for part in _code(node):
            mentions |= {*_mentions(part, names)}
            imports |= {*_imported(part)}
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                imports |= {*OURS.findall(part.value)}
        if not _is_text(node) and not isinstance(node, ast.Import | ast.ImportFrom):
            texts.append("\n".join(lines[_first(node) - 1 : node.end_lineno]))
    line = _first(nodes[0]) if nodes else 0
    files = files_of(imports)
    return Unit(names.file, line, "\n".join(texts), name, owner, None, frozenset(mentions), files)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _registers_nothing(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a definition has no effect unless it is named."""
    ends = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list}
    return ends <= KNOWN


def _of_class(lines: list[str], node: ast.ClassDef, names: Names) -> list[Unit]:
    """The head of a class with its attributes, and each of its methods."""
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    rest = [n for n in node.body if n not in methods]
    head = _unit(lines, rest, names, node.name)
    outside = [*node.bases, *node.keywords, *node.decorator_list]
    named = {m for part in outside for child in ast.walk(part) for m in _mentions(child, names)}
    bases = frozenset(_base(each, names) for each in node.bases)
    text = "\n".join([*lines[_first(node) - 1 : _first(node.body[0]) - 1], head.text])
    head = head._replace(line=_first(node), text=text, bases=bases, mentions=head.mentions | named)
    return [head, *(_unit(lines, [m], names, m.name, node.name) for m in methods)]


def _base(node: ast.expr, names: Names) -> str:
    """Name of a base class if it is ours or in `PLAIN`; LIBRARY if it is from another package."""
    dotted = ast.unparse(node).partition("[")[0]
    root, _, name = dotted.partition(".")
    if root in names.imported and not name:
        return names.imported[root].name
    is_ours = root in names.modules if name else root in names.defined
    last = dotted.rpartition(".")[2]
    return last if is_ours or last in PLAIN else LIBRARY


def _one_name(node: ast.Assign | ast.AnnAssign) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    first = targets[0]
    return first.id if len(targets) == 1 and isinstance(first, ast.Name) else ""


@lru_cache(maxsize=1000)
def _units_of(path: Path, changed_at: int) -> tuple[tuple[Unit, ...], Names]:
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    names, found, at_import = _names(path, tree), list[Unit](), list[ast.stmt]()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _registers_nothing(node):
            found += _of_class(lines, node, names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _registers_nothing(node):
            found.append(_unit(lines, [node], names, node.name))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _one_name(node):
            found.append(_unit(lines, [node], names, _one_name(node)))
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == MAIN):
            at_import.append(node)
    return (_unit(lines, at_import, names, ""), *found), names


def units_of(path: Path) -> tuple[Unit, ...]:
    """Units of one of our modules, without its `if __name__ == "__main__"`."""
    return _units_of(path, path.stat().st_mtime_ns)[0]


def names_of(path: Path) -> Names:
    return _units_of(path, path.stat().st_mtime_ns)[1]


def found_at(mention: Mention) -> Mention:
    """Follow imports to the file that defines a name; without a file if none is found."""
    while mention.file is not None:
        names = names_of(mention.file)
        if mention.name in names.defined:
            return mention
        mention = names.imported.get(mention.name, Mention(mention.name))
    return mention


@lru_cache(maxsize=1000)
def of_program(program: str, file: Path) -> tuple[frozenset[Mention], frozenset[Path]]:
    """Names in a program that isn't one of our modules, and the files that it imports."""
    tree = ast.parse(program)
    names = _names(file, tree)
    mentions = frozenset(m for node in _code(tree) for m in _mentions(node, names))
    imports = files_of(name for node in ast.walk(tree) for name in _imported(node))
    return mentions - {Mention(name, file) for name in names.defined}, imports


def reached(mentions: Iterable[Mention], files: Iterable[Path]) -> list[Unit]:
    """All units that a program with these names and imports can reach."""
    mentioned = {found_at(one) for one in mentions}
    modules, opened = {file for file in files if file.suffix == ".py"}, set[Path]()
    found, waiting = list[Unit](), list[Unit]()
    bases = dict[str, frozenset[str]]()  # of each class of these modules

    def extends_a_library(name: str, below: frozenset[str] = frozenset()) -> bool:
        if name in below or name not in bases:
            return True
        return any(extends_a_library(base, below | {name}) for base in bases[name] - PLAIN)

    def is_named(name: str, file: Path) -> bool:
        return Mention(name, file) in mentioned or Mention(name) in mentioned

    def runs(unit: Unit) -> bool:
        by_python = unit.name.startswith("_") and unit.name.endswith("_")  # or by IPython
        if not unit.owner:
            return not unit.name or by_python or is_named(unit.name, unit.file)
        calls = {Mention(unit.name), Mention(unit.name, is_attribute=True)}
        called = not calls.isdisjoint(mentioned) or by_python or extends_a_library(unit.owner)
        return is_named(unit.owner, unit.file) and called

    while True:
        for path in modules - opened:
            for unit in units_of(path):
                waiting.append(unit)
                if unit.bases is not None:
                    bases[unit.name] = bases.get(unit.name, frozenset()) | unit.bases
        opened |= modules
        new = [unit for unit in waiting if runs(unit)]
        if not new:
            return found
        waiting = [unit for unit in waiting if not runs(unit)]
        found += new
        for unit in new:
            mentioned |= {found_at(one) for one in unit.mentions}
            modules = modules | unit.imports
