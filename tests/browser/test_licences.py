"""A built book names whatever in it others wrote, and has the words of each licence beside it."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

from notices import PARTS  # type: ignore[import-not-found]  # noqa: E402

OWN = {path.name for path in (ROOT / "book/_static").iterdir()} | {"tab.json", "card.png"}
TRACES = ROOT / "book/_static/traces"
OWN |= {path.name for name in ("slow-*", "gpu-day-*") for path in TRACES.glob(name)}  # our jobs'


def test_each_file_that_others_wrote_has_its_licence(small_book: Path) -> None:
    static = small_book / "_static"
    named = {file for part in PARTS for pattern in part.files for file in static.glob(pattern)}
    files = {file for file in static.rglob("*") if file.is_file()}
    strange = {file.relative_to(static) for file in files - named if file.name not in OWN}
    assert {path for path in strange if path.parts[0] != "licences"} == set()

    page = (small_book / "licences.html").read_text()
    for part in PARTS:
        found = [file for pattern in part.files for file in static.glob(pattern)]
        assert found, f"{part.name}: the book has nothing of it"
        assert f">{part.name}</a>" in page.replace("&#x27;", "'")
    linked = set(re.findall(r'href="(_static/licences/[^"]+)"', page))
    assert len(linked) == len(PARTS) + 2
    assert all((small_book / file).read_text().strip() for file in linked)
    assert 'href="licences.html"' in (small_book / "index.html").read_text()
