"""A built book names whatever in it others wrote, with the words of each license, in one file."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

from notices import PARTS  # type: ignore[import-not-found]  # noqa: E402

OWN = {path.name for path in (ROOT / "book/_static").iterdir()} | {"tab.json", "card.png"}
TRACES = ROOT / "book/_static/traces"
OWN |= {path.name for name in ("slow-*", "gpu-day-*") for path in TRACES.glob(name)}  # our jobs'


def test_each_file_that_others_wrote_has_its_license(small_book: Path) -> None:
    static = small_book / "_static"
    named = {file for part in PARTS for pattern in part.files for file in static.glob(pattern)}
    files = {file for file in static.rglob("*") if file.is_file()}
    assert {str(f.relative_to(static)) for f in files - named if f.name not in OWN} == set()

    text = (small_book / "licenses.txt").read_text()
    for part in PARTS:
        found = [file for pattern in part.files for file in static.glob(pattern)]
        assert found, f"{part.name}: the book has nothing of it"
        assert f"{part.name}\n{part.licence}\n{part.source}\n" in text
    assert "CC BY 4.0" in text.partition("=" * 80)[0]
    assert 'href="licenses.txt"' in (small_book / "index.html").read_text()
