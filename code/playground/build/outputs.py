"""Outputs of pages: what their cells printed and drew when they last ran.

They are part of the book, so a page is complete as soon as it is built. `make outputs` records one
file per page in `book/outputs`. A page is *stale* if its cells, or code that they use, have changed
since then. A build executes a stale page and keeps the outputs in `_build/outputs`, in the same
form. A page shows the file whose digest is that of its current code.

A file contains the digest, the stamp of the machine, and for each cell its outputs (as in a
notebook) and whether they vary. They vary from run to run if the cell measures something, and from
processor to processor if a long training amplifies the rounding of each sum.
"""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from playground.build.digest import ROOT, digest

Output = dict[str, Any]  # one output of a cell, in nbformat's form
Record = dict[str, Any]  # "digest", "stamp", "cells": [{"outputs": [Output], "varies": bool}]

ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
OF_A_CELL = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")
TEMPORARY = re.compile(r"/tmp/tmp\w{8}\b")
QUANTITY = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+−]?\d+)?")
SPEED = r"(?:[kMGT]?(?:B|bit|FLOP|flop)|tokens)/s"
UNIT_OF_TIME = re.compile(rf"\s?(?:[µmn]?s|min(?:utes)?|h|{SPEED}|seconds)\b")
WHO_RAISED = re.compile(r"RankError: (rank \d+) (raised \w+).*", re.DOTALL)
LINE = re.compile(r"(\w\.py(?::|\", line |, line ))\d+")  # changes if lines are added above
NEAR = 1e-3  # relative; machines add in different orders, so numbers differ
TINY = 1e-5  # smaller numbers are errors of sums, which differ by more


def recorded(root: Path, name: str) -> Path:
    """File with the recorded outputs of a page, which are part of the book."""
    return root / "book/outputs" / f"{name.removeprefix('book/')}.json"


def computed(root: Path, name: str) -> Path:
    """File with the outputs that a build has computed for a page."""
    return root / "_build/outputs" / f"{name}.json"


def load(path: Path) -> Record:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def save(path: Path, record: Record) -> None:
    """Write a file atomically; leave it untouched if it already has this content.

    Each cell is one line, so that a diff shows which cells have changed.
    """

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    cells = ",\n".join(map(line, record["cells"]))
    others = "".join(f',\n"{k}": {line(record[k])}' for k in sorted(record) if k != "cells")
    text = f'{{"cells": [\n{cells}\n]{others}}}\n'
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def digest_in(path: Path) -> str:
    """The digest in a file of outputs, without parsing the file."""
    if not path.exists():
        return ""
    with path.open(encoding="utf-8") as file:
        found = re.search(r'"digest": "(\w+)"', file.read())
    return found[1] if found else ""


def has_cells(page: Path) -> bool:
    return "```{code-cell}" in page.read_text(encoding="utf-8")


def fresh(root: Path, name: str) -> Path | None:
    """The file whose outputs fit the current page; None if it is stale or has no cells."""
    page = root / f"{name}.md"
    if not has_cells(page):
        return None
    wanted = digest(page)
    paths = (recorded(root, name), computed(root, name))
    return next((path for path in paths if digest_in(path) == wanted), None)


def stale(root: Path, pages: list[str]) -> list[str]:
    """Those of these pages that must be executed."""
    return [n for n in pages if has_cells(root / f"{n}.md") and fresh(root, n) is None]


# --- recorded form of an output ---


def kept(output: Output) -> Output:
    """An output without traces of one process or machine, and with its text split into lines."""
    new: Output = {k: v for k, v in output.items() if k not in ("execution_count", "metadata")}
    if "text" in new:
        new["text"] = _lines(new["text"])
    if "evalue" in new:
        new["evalue"] = _neutral(new["evalue"])
    if "traceback" in new:
        new["traceback"] = [_neutral(line) for line in new["traceback"]]
    if "data" in new:
        new["data"] = {
            kind: _lines(data) if isinstance(data, str) else data
            for kind, data in new["data"].items()
        }
    if output.get("metadata"):
        new["metadata"] = output["metadata"]
    return new


def _neutral(text: str) -> str:
    text = OF_A_CELL.sub("/tmp/cell.py", text.replace(f"{ROOT}/", ""))
    return ADDRESS.sub("0x…", TEMPORARY.sub("/tmp/…", text))


def _lines(text: str) -> list[str]:
    return _neutral(text).splitlines(keepends=True)


def whole(output: Output) -> Output:
    """An output in the form that notebooks have."""
    new = {"metadata": {}, **output} if "data" in output else dict(output)
    if output["output_type"] == "execute_result":
        new["execution_count"] = None
    if isinstance(new.get("text"), list):
        new["text"] = "".join(new["text"])
    if "data" in new:
        new["data"] = {
            kind: "".join(data) if isinstance(data, list) and kind != "application/json" else data
            for kind, data in new["data"].items()
        }
    return new


# --- comparison of two runs ---


def said(outputs: list[Output]) -> str:
    """The text that a reader sees in the outputs of a cell, with a placeholder for a picture.

    Lines of ranks arrive in any order, so they are sorted.
    """
    parts = []
    for output in outputs:
        data = output.get("data", {})
        if "text" in output:
            lines = "".join(output["text"]).splitlines()
            of_ranks = sorted(line for line in lines if line.startswith("[rank "))
            parts += [*(line for line in lines if not line.startswith("[rank ")), *of_ranks]
        elif output["output_type"] == "error":
            parts.append(f"{output['ename']}: {output['evalue']}")
        elif "text/html" in data:
            parts.append(re.sub(r"<[^>]*>", " ", "".join(data["text/html"])))
        elif "image/svg+xml" in data:
            parts.append("[picture]")
        else:
            parts.append("".join(data.get("text/plain", [])))
    return LINE.sub(r"\1…", "\n".join(parts))


def kinds(outputs: list[Output]) -> set[str]:
    """Kinds of output of a cell. A run may print in any number of pieces, and may or may not put
    warnings and progress bars on stderr, so neither counts."""
    found = {o.get("name") or "/".join(sorted(o.get("data", [o["output_type"]]))) for o in outputs}
    return found - {"stderr"}


def agree(one: list[Output], other: list[Output], varies: bool = False) -> bool:
    """Whether two runs of a cell have the same result, apart from measurements.

    A cell that varies must have the same kinds of output in both. Any other cell must have the same
    words and the same numbers, up to rounding on different machines, and except for times and
    speeds. If several ranks fail, the first one's error is shown. If that is a different rank in
    the two runs, only the kind of error must be the same.
    """
    if kinds(one) != kinds(other):
        return False
    if varies:
        return True
    a, b = said(one), said(other)
    first = [found[1] for text in (a, b) if (found := WHO_RAISED.search(text))]
    if len({*first}) == 2:
        a, b = (WHO_RAISED.sub(r"\2", text) for text in (a, b))
    if QUANTITY.sub("#", a).split() != QUANTITY.sub("#", b).split():
        return False
    pairs = zip(QUANTITY.finditer(a), QUANTITY.finditer(b), strict=True)
    return all(UNIT_OF_TIME.match(a, m.end()) or _near(m[0], n[0]) for m, n in pairs)


def _near(one: str, other: str) -> bool:
    if one == other or not any(sign in one + other for sign in ".e"):
        return one == other  # a count
    a, b = (float(text.replace("−", "-").replace(",", "")) for text in (one, other))
    return abs(a - b) <= max(NEAR * max(abs(a), abs(b)), TINY)


def differences(old: Record, new: Record) -> list[int]:
    """Numbers (from 0) of the cells of a page in which two runs disagree."""
    if len(old["cells"]) != len(new["cells"]):
        return list(range(max(len(old["cells"]), len(new["cells"]))))
    pairs = zip(old["cells"], new["cells"], strict=True)
    return [
        number
        for number, (a, b) in enumerate(pairs)
        if not agree(a["outputs"], b["outputs"], a["varies"] or b["varies"])
    ]


def merged(old: Record, new: Record, same_code: bool = True) -> Record:
    """The new record of a page, with its varying cells marked by comparison with the old one.

    With the same code, a cell varies if its two outputs differ. With different code, a cell varies
    if the corresponding old cell did. That is the cell with the same output apart from its numbers,
    or else the cell in the same position between two such cells with the same kinds of output. One
    run that agrees with the last doesn't prove that a cell measures nothing.
    """
    if same_code:
        for a, b in zip(old["cells"], new["cells"], strict=True):
            b["varies"] = a["varies"] or b["varies"] or a["outputs"] != b["outputs"]
        return new
    before, after = ([_form(cell["outputs"]) for cell in r["cells"]] for r in (old, new))
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for _, start, end, begin, stop in blocks:
        if end - start == stop - begin:
            pairs = zip(old["cells"][start:end], new["cells"][begin:stop], strict=True)
            for a, b in pairs:
                b["varies"] = a["varies"] and kinds(a["outputs"]) == kinds(b["outputs"])
    return new


def _form(outputs: list[Output]) -> str:
    """The text of a cell's outputs with every number replaced."""
    return QUANTITY.sub("#", said(outputs))
