"""The outputs of pages: what their cells printed and drew when they last ran.

They come along with the book, so that a page is complete the moment it is built: a file for each
page in `book/outputs`, recorded by `make outputs`. A page is *stale* when its cells, or code that
they use, have changed since. A build executes a stale page, and keeps what came of it in
`_build/outputs`, in the same form. Which of the two a page shows is decided by its digest.

A file has the digest, the stamp of the machine, and for each cell its outputs (as in a notebook)
and whether they vary: from run to run, because the cell measures something, or from processor to
processor, because a long training magnifies the rounding of each sum.
"""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from playground.build.digest import ROOT, digest

Output = dict[str, Any]  # one output of a cell, as nbformat has it
Record = dict[str, Any]  # "digest", "stamp", "cells": [{"outputs": [Output], "varies": bool}]

ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
OF_A_CELL = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")
TEMPORARY = re.compile(r"/tmp/tmp\w{8}\b")
QUANTITY = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+−]?\d+)?")
SPEED = r"(?:[kMGT]?(?:B|bit|FLOP|flop)|tokens)/s"
UNIT_OF_TIME = re.compile(rf"\s?(?:[µmn]?s|min(?:utes)?|h|{SPEED}|seconds)\b")
WHO_RAISED = re.compile(r"RankError: (rank \d+) (raised \w+).*", re.DOTALL)
LINE = re.compile(r"(\w\.py(?::|\", line |, line ))\d+")  # moves with what is written above it
NEAR = 1e-3  # numbers of two machines may differ by this share: they add up in other orders
TINY = 1e-5  # below it a number is the error of a sum, and differs by more


def recorded(root: Path, name: str) -> Path:
    """Where the outputs of a page stand that came with the book."""
    return root / "book/outputs" / f"{name.removeprefix('book/')}.json"


def computed(root: Path, name: str) -> Path:
    """Where those stand that a build has computed."""
    return root / "_build/outputs" / f"{name}.json"


def load(path: Path) -> Record:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def save(path: Path, record: Record) -> None:
    """Write it, whole or not at all; if it says what is there already, leave that as it is."""
    text = json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def digest_in(path: Path) -> str:
    """The digest in a file of outputs; without reading all of it."""
    if not path.exists():
        return ""
    with path.open(encoding="utf-8") as file:
        found = re.search(r'"digest": "(\w+)"', file.read())
    return found[1] if found else ""


def has_cells(page: Path) -> bool:
    return "```{code-cell}" in page.read_text(encoding="utf-8")


def fresh(root: Path, name: str) -> Path | None:
    """The file with the outputs of a page as it is now; None if it is stale or has no cells."""
    page = root / f"{name}.md"
    if not has_cells(page):
        return None
    wanted = digest(page)
    paths = (recorded(root, name), computed(root, name))
    return next((path for path in paths if digest_in(path) == wanted), None)


def stale(root: Path, pages: list[str]) -> list[str]:
    """Those of these pages that have to be executed."""
    return [n for n in pages if has_cells(root / f"{n}.md") and fresh(root, n) is None]


# --- what is kept of an output ---


def kept(output: Output) -> Output:
    """An output without what is of this process and this machine alone, long texts by lines."""
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
    """The output as a notebook has it."""
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


# --- what two runs have to agree on ---


def said(outputs: list[Output]) -> str:
    """What a reader reads of the outputs of a cell: text and tables; of a picture, that it is.

    Lines of ranks come in any order, so they are sorted.
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
    """Which sorts of output a cell has. Printed lines come in any number of pieces, and warnings
    and bars on stderr with the machine's mood."""
    found = {o.get("name") or "/".join(sorted(o.get("data", [o["output_type"]]))) for o in outputs}
    return found - {"stderr"}


def agree(one: list[Output], other: list[Output], varies: bool = False) -> bool:
    """Do two runs of a cell say the same, apart from what it measures?

    A cell that varies has to put out the same sorts of output. Of any other, the words have to be
    the same, and numbers too: to the rounding of another machine, and but for times and speeds.
    When several ranks fail, the error is of whichever was first: of another rank's only the kind
    has to be the same.
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
        return one == other  # something was counted
    a, b = (float(text.replace("−", "-").replace(",", "")) for text in (one, other))
    return abs(a - b) <= max(NEAR * max(abs(a), abs(b)), TINY)


def differences(old: Record, new: Record) -> list[int]:
    """The cells (from 0) of a page on which two runs do not agree."""
    if len(old["cells"]) != len(new["cells"]):
        return list(range(max(len(old["cells"]), len(new["cells"]))))
    pairs = zip(old["cells"], new["cells"], strict=True)
    return [
        number
        for number, (a, b) in enumerate(pairs)
        if not agree(a["outputs"], b["outputs"], a["varies"] or b["varies"])
    ]


def merged(old: Record, new: Record, same_code: bool = True) -> Record:
    """The new record of a page, which now knows which of its cells vary.

    With the same code, cells that put out two different things do. With other code a cell varies
    if its counterpart did before: the cell that says the same but for its numbers, or that is at
    the same place between two of these and puts out the same sorts of output. That one run agrees
    with the last is no sign that a cell doesn't measure.
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
    """What a cell says, but for its numbers."""
    return QUANTITY.sub("#", said(outputs))
