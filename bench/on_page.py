"""Measured sentences on the page *Running the book*: `main` of the modules that measure them."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.pairs import ROOT

PAGE = ROOT / "book/maintainers/running.md"


def main(
    name: str,
    doc: str | None,
    record: Path,
    measure: Callable[[], dict[str, Any]],
    sentence: Callable[[dict[str, Any]], str],
) -> None:
    """Measure and print; with `--record`, keep it, and write it between the page's marks."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=doc)
    parser.add_argument(
        "--record", action="store_true", help="keep the result, and update the page"
    )
    keep = parser.parse_args().record
    measured = measure()
    print(sentence(measured))
    if keep:
        record.write_text(json.dumps(measured, indent=1) + "\n")
        marks = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
        said = rf"\1{sentence(measured)}\n\2"
        PAGE.write_text(re.sub(marks, said, PAGE.read_text(), flags=re.S))
