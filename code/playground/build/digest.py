"""Digest of the inputs to a page's outputs: its cells, the code that they reach, and the packages.

A page shows what its cells compute with this project's code: the functions and classes that they
name, those that these name, and so on (`reach.py`). The digest changes if one of those does, or the
version of a package that they import. It doesn't depend on prose, styles, functions that the page
never calls, or anything else. It doesn't depend on the version of Python either, because tests
check that pages have the same results with each.
"""

import hashlib
import re
from pathlib import Path

from playground.build.pieces import LOAD
from playground.build.reach import OURS, ROOT, WORD, Mention, Unit, files_of, of_program, reached

CELL = re.compile(r"^```\{code-cell\}.*?^```", re.M | re.S)
OPTIONS = re.compile(r"(?<=\n)(?:---\n[\s\S]*?\n---\n|(?::(?!load:).*\n)+)")
FROM = re.compile(r"^\s*from ((?:distributed|recipes|playground|bench)[\w.]*) import (.+)$", re.M)
RUN = re.compile(r"-m ((?:distributed|recipes|playground|bench)[\w.]*)")
LOADED = re.compile(r"(?:code|exercises)/[\w/]+\.\w+")
IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.M)
MAGIC = re.compile(r"^( *)(?:[%!].*|```.*|:?load: .*|---)$", re.M)  # lines that aren't Python
PIN = re.compile(r"^([\w-]+)==(\S+)", re.M)
NAMES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python"}  # import → package


def cells_of(page: Path) -> str:
    """Code of a page's cells, without their display options."""
    cells = CELL.findall(page.read_text("utf-8"))
    return "\n".join(OPTIONS.sub(_loads, cell) for cell in cells)


def _loads(options: re.Match[str]) -> str:
    """The lines of a cell's options that load files."""
    return "".join(f"{found[0]}\n" for found in LOAD.finditer(options[0]))


def used_by(page: Path) -> tuple[set[Path], list[Unit]]:
    """This project's code and data that affect a page's cells: whole files, and units of code.

    A cell that loads or runs a file runs all of it. A cell that loads pieces runs only those.
    """
    cells = cells_of(page)
    whole = {ROOT / name for name in LOADED.findall(cells)} | files_of(RUN.findall(cells))
    mentions, modules = _of_cells(cells, page)
    for file, _, pieces in (name.partition("#") for name in LOAD.findall(cells)):
        path = (page.parent / file).resolve()
        if pieces:
            modules |= {path}
            mentions |= {Mention(name, path) for name in pieces.split(",")}
        else:
            whole.add(path)
    whole |= {file.parent / "check.py" for file in whole}
    whole = {file for file in whole if file.exists()}
    for file in whole:
        if file.suffix == ".py":
            named, imported = of_program(file.read_text(encoding="utf-8"), file)
            mentions, modules = mentions | named, modules | imported
    units = reached(mentions, modules)
    read = "\n".join([cells, *(unit.text for unit in units)])
    recorded = (ROOT / "bench/recorded").glob("*.json")
    data = [*recorded, *(ROOT / "code/distributed").rglob("*.csv")]
    return whole | {file for file in data if re.search(rf'"{file.stem}["./]', read)}, units


def _of_cells(cells: str, page: Path) -> tuple[frozenset[Mention], frozenset[Path]]:
    """Names and imports in the cells; every word counts as a name if they can't be parsed."""
    try:
        return of_program(MAGIC.sub(r"\1pass", cells), page)
    except SyntaxError:
        names = {*OURS.findall(cells)}
        for module, imported in FROM.findall(cells):
            names |= {f"{module}.{name.split(' as ')[0].strip()}" for name in imported.split(",")}
        return frozenset(map(Mention, WORD.findall(cells))), files_of(names)


def packages_used(texts: list[str]) -> dict[str, str]:
    """Packages that these texts import, with their versions in `requirements.txt`."""
    pins = dict(PIN.findall((ROOT / "requirements.txt").read_text()))
    imported = {name for text in texts for name in IMPORT.findall(text)}
    names = {NAMES.get(name, name) for name in imported}
    return {name: pins[name] for name in sorted(names & pins.keys())}


def digest(page: Path) -> str:
    """Digest of everything that affects a page's outputs."""
    cells = cells_of(page)
    whole, units = used_by(page)
    parts = {(file, 0): file.read_bytes() for file in whole}
    parts |= {(unit.file, unit.line): unit.text.encode() for unit in units}
    programs = [data.decode() for (file, _), data in parts.items() if file.suffix == ".py"]
    sums = hashlib.sha256(f"{cells}\0{packages_used([cells, *programs])}".encode())
    for file, line in sorted(parts):
        sums.update(f"{file.name}\0".encode() + parts[file, line])
    return sums.hexdigest()
