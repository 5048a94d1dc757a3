"""Forget the outputs of pages whose code has changed, before a build.

A page shows what its cells computed with this project's modules. It is stale when one of those
changed: one that its cells name, or one that such a module imports, and so on. What a page itself
says is Jupyter Book's own business: it executes a page anew when its cells have changed.
"""

import ast
import hashlib
import json
import re
from pathlib import Path

PACKAGES = ("distributed", "playground", "bench")
ROOT = Path(__file__).parents[3]
CELL = re.compile(r"^```\{code-cell\}.*?^```", re.M | re.S)
MODULE = re.compile(r"\b(?:distributed|playground|bench)(?:\.\w+)+")
FROM = re.compile(r"^\s*from ((?:distributed|playground|bench)[\w.]*) import (.+)$", re.M)
LOADED = re.compile(r"(?:code|exercises|engines)/[\w/]+\.\w+")


def path_of(name: str) -> Path | None:
    """The file of a module of this project, by its dotted name; what comes after it is ignored."""
    package, *parts = name.split(".")
    folder = (ROOT if package == "bench" else ROOT / "code") / package
    if package == "playground" and parts[:1] == ["exercises"] and len(parts) > 2:
        folder, parts = ROOT, parts[:3]
    for part in parts:
        if not (folder / part).is_dir():
            file = folder / f"{part}.py"
            return file if file.exists() else None
        folder = folder / part
    file = folder / "__init__.py"
    return file if file.exists() else None


def imports_of(path: Path) -> set[Path]:
    """The files of this project that a module imports, wherever in it."""
    found: set[Path | None] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {path_of(name) for name in names if name.split(".")[0] in PACKAGES}
    return {one for one in found if one}


def used_by(page: Path) -> set[Path]:
    """All files of this project that decide what the cells of a page show."""
    cells = "\n".join(CELL.findall(page.read_text()))
    names = set(MODULE.findall(cells))
    for module, imported in FROM.findall(cells):
        names |= {f"{module}.{name.split(' as ')[0].strip()}" for name in imported.split(",")}
    loaded = {ROOT / name for name in LOADED.findall(cells)}
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


def digest(page: Path) -> str:
    """Says whether a page is as it was: of the packages, and of all files that it uses."""
    whole = hashlib.sha256()
    for path in [ROOT / "requirements.txt", *sorted(used_by(page))]:
        whole.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def forget(pages: list[Path], build: Path) -> None:
    """Remove what the build keeps of these pages, so that it executes them anew."""
    from jupyter_cache import get_cache

    cache = get_cache(build / ".jupyter_cache")
    stale = {str(page) for page in pages}
    for record in cache.list_cache_records():
        if record.uri in stale:
            cache.remove_cache(record.pk)
    for page in pages:
        name = page.relative_to(ROOT).with_suffix(".doctree")
        (build / ".doctrees" / name).unlink(missing_ok=True)


def main(build: Path = ROOT / "_build") -> None:
    kept = build / ".digests.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    now = {str(page.relative_to(ROOT)): digest(page) for page in sorted(ROOT.glob("book/**/*.md"))}
    stale = [name for name, found in now.items() if before.get(name) != found]
    forget([ROOT / name for name in stale], build)
    kept.write_text(json.dumps(now, indent=1))
    if before and stale:
        print(f"to be executed anew: {', '.join(Path(name).stem for name in stale)}")


if __name__ == "__main__":
    main()
