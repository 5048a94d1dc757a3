"""What a page hands to Python in a reader's tab: those of our modules that need no library.

A module is among them if all that it imports when it is imported is Python's own, or among them
too. What a function of it imports later, as a `main` does, does not count.
"""

import ast
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cloudpickle

from playground.build.digest import path_of

CODE = Path(__file__).parents[2]
PACKAGES = ("distributed", "playground")
OFFERED = ("distributed", "playground/planner", "playground/show", "playground/tab")
CARRIED = {"cloudpickle": Path(cloudpickle.__file__).parent}  # libraries that come along
IN_THE_TAB = {"distributed.world": None}  # `playground.tab.world` stands in for it


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a module imports as soon as it is imported itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_ours = node.module.split(".")[0] in PACKAGES
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if is_ours else [node.module]


def name_of(path: Path) -> str:
    """The dotted name of one of our modules."""
    return ".".join(path.relative_to(CODE).with_suffix("").parts).removesuffix(".__init__")


def is_offered(path: Path) -> bool:
    """Whether a file is one that cells may import, or the package of such."""
    name = path.relative_to(CODE).as_posix()
    return name.startswith(tuple(f"{one}/" for one in OFFERED)) or path.name == "__init__.py"


@cache
def lacks(path: Path) -> str | None:
    """The first library that a module needs, directly or not; None where it needs none."""
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in PACKAGES:
            found = path_of(name)
            lacking = lacks(found) if found and found != path else None
            if found and not is_offered(found):
                lacking = name
        else:
            lacking = None if top in sys.stdlib_module_names or top in CARRIED else top
        if lacking:
            return lacking
    return None


def modules() -> dict[str, str | None]:
    """Each of our modules that a cell may import → the library that it lacks in a tab."""
    paths = [path for folder in OFFERED for path in sorted((CODE / folder).rglob("*.py"))]
    return {name_of(path): lacks(path) for path in paths} | IN_THE_TAB


def archive() -> bytes:
    """The modules that lack nothing, in a zip: the same bytes for the same files."""
    held, known = io.BytesIO(), modules()
    files = {path.relative_to(CODE): path for path in sorted(CODE.rglob("*.py"))}
    chosen = {at: path for at, path in files.items() if known.get(name_of(path), "") is None}
    chosen |= {path.relative_to(CODE): path for path in sorted(CODE.glob("distributed/*.csv"))}
    chosen[Path("playground/__init__.py")] = CODE / "playground/__init__.py"
    for name, folder in CARRIED.items():
        chosen |= {Path(name, file.name): file for file in sorted(folder.glob("*.py"))}
    del chosen[Path("distributed/world.py")]
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        for at, path in chosen.items():
            entry = zipfile.ZipInfo(at.as_posix(), (1980, 1, 1, 0, 0, 0))
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return held.getvalue()


def digest(packed: bytes, pyodide: Path) -> str:
    """Names these modules with this Pyodide."""
    lock = (pyodide / "pyodide-lock.json").read_bytes()
    return hashlib.sha256(packed + lock).hexdigest()[:16]


def memory(packed: bytes, pyodide: Path, named: str) -> bytes | None:
    """The memory of a Python that has started with these modules, gzipped; None without Node.

    To make it takes some seconds, so it is kept beside the other packages, until it is another one.
    """
    node = shutil.which("node") or shutil.which(Path(sys.executable).parent / "node")
    if node is None:
        return None
    kept = pyodide.parent / ".cache" / f"python-memory-{named}.gz"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        for old in kept.parent.glob("python-memory-*.gz"):
            old.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            ours, out = Path(folder, "python.zip"), Path(folder, "memory")
            ours.write_bytes(packed)
            script = Path(__file__).with_name("python_memory.mjs")
            command = [str(word) for word in (node, script, pyodide, ours, out)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"Pyodide did not start: {done.stderr[-2000:]}")
            whole = gzip.compress(out.read_bytes(), 6, mtime=0)
            made = Path(folder, kept.name)
            made.write_bytes(whole)
            shutil.move(made, kept)
    return kept.read_bytes()


def facts(named: str, started: bytes | None) -> str:
    """What a page has to know before it starts Python, as JSON; `named` is the digest."""
    known = {
        "digest": named,
        "memory": len(started) / 1e6 if started else 0,  # MB
        "modules": modules(),
        "standard": sorted(sys.stdlib_module_names),
        "carried": sorted(CARRIED),
    }
    return json.dumps(known, separators=(",", ":"))
