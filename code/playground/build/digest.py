"""What the outputs of a page depend on: its cells, the code that they use, and the packages.

A page shows what its cells computed with this project's modules: those that they name, those that
these import, and so on. Its digest changes when one of them does, or a version of a package that
they import; and not with its prose, its styles or anything else. Python's version is not in it:
the tests hold that pages say the same on each.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from playground.build.pieces import LOAD

PACKAGES = ("distributed", "playground", "bench")
ROOT = Path(__file__).parents[3]
CELL = re.compile(r"^```\{code-cell\}.*?^```", re.M | re.S)
OPTIONS = re.compile(r"(?<=\n)(?:---\n[\s\S]*?\n---\n|(?::(?!load:).*\n)+)")
MODULE = re.compile(r"\b(?:distributed|playground|bench)(?:\.\w+)+")
FROM = re.compile(r"^\s*from ((?:distributed|playground|bench)[\w.]*) import (.+)$", re.M)
LOADED = re.compile(r"(?:code|exercises|engines)/[\w/]+\.\w+")
IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.M)
PIN = re.compile(r"^([\w-]+)==(\S+)", re.M)
NAMES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python"}  # import → package


def path_of(name: str) -> Path | None:
    """The file of a module of this project, by its dotted name; what comes after it is ignored."""
    package, *parts = name.split(".")
    folder = (ROOT if package == "bench" else ROOT / "code") / package
    if package == "playground" and parts[:1] == ["exercises"] and len(parts) > 2:
        folder, parts = ROOT, parts[:3]
    for part in parts:
        if not (folder / part).is_dir():
            files = (folder / f"{part}.py", folder / "__init__.py")  # or a name that a package has
            return next((file for file in files if file.exists()), None)
        folder = folder / part
    file = folder / "__init__.py"
    return file if file.exists() else None


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All that can be an import, without a look into expressions, which are most of a tree."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


@lru_cache(maxsize=1000)
def _imports_of(path: Path, changed_at: int) -> frozenset[Path]:
    found: set[Path | None] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {path_of(name) for name in names if name.split(".")[0] in PACKAGES}
    return frozenset(one for one in found if one)


def imports_of(path: Path) -> frozenset[Path]:
    """The files of this project that a module imports, wherever in it."""
    return _imports_of(path, path.stat().st_mtime_ns)


def cells_of(page: Path) -> str:
    """The code of the cells of a page, without what says how they look."""
    cells = CELL.findall(page.read_text("utf-8"))
    return "\n".join(OPTIONS.sub(_loads, cell) for cell in cells)


def _loads(options: re.Match[str]) -> str:
    """Of a cell's options, what it loads."""
    return "".join(f"{found[0]}\n" for found in LOAD.finditer(options[0]))


def used_by(page: Path) -> set[Path]:
    """All files of this project that decide what the cells of a page show."""
    cells = cells_of(page)
    names = set(MODULE.findall(cells))
    for module, imported in FROM.findall(cells):
        names |= {f"{module}.{name.split(' as ')[0].strip()}" for name in imported.split(",")}
    loaded = {ROOT / name for name in LOADED.findall(cells)}
    loaded |= {(page.parent / name.partition("#")[0]).resolve() for name in LOAD.findall(cells)}
    checks = {file.parent / "check.py" for file in loaded}
    found = {path_of(name) for name in names} | loaded | checks
    waiting = [path for path in found if path and path.exists()]
    used = set(waiting)
    while waiting:
        path = waiting.pop()
        new = (imports_of(path) if path.suffix == ".py" else set()) - used
        used |= new
        waiting += new
    recorded = (ROOT / "bench/recorded").glob("*.json")
    return used | {file for file in recorded if re.search(rf'"{file.stem}["./]', cells)}


def packages_used(texts: list[str]) -> dict[str, str]:
    """The packages that these texts import, with the versions that `requirements.txt` asks for."""
    pins = dict(PIN.findall((ROOT / "requirements.txt").read_text()))
    imported = {name for text in texts for name in IMPORT.findall(text)}
    names = {NAMES.get(name, name) for name in imported}
    return {name: pins[name] for name in sorted(names & pins.keys())}


def digest(page: Path) -> str:
    """Says whether the outputs of a page are as they would be now."""
    cells = cells_of(page)
    files = {path: path.read_bytes() for path in sorted(used_by(page))}
    sources = [data.decode() for path, data in files.items() if path.suffix == ".py"]
    whole = hashlib.sha256(f"{cells}\0{packages_used([cells, *sources])}".encode())
    for path, data in files.items():
        whole.update(f"{path.name}\0".encode() + data)
    return whole.hexdigest()
