"""The order of the book, from `_toc.yml`; modules may use each other in this order only."""

from pathlib import Path

import yaml


def pages_in_order(root: Path) -> list[str]:
    """The pages of the book by their paths without an ending, the first page first."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
