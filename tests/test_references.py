"""Whoever is cited stands in the bibliography, with the year and the title that the page gives."""

import re
from pathlib import Path

import pytest
from pybtex.database import parse_file

ROOT = Path(__file__).parents[1]
ENTRIES = parse_file(str(ROOT / "book/references.bib")).entries
FILES = [*(ROOT / "book").rglob("*.md"), *(ROOT / "code/distributed").glob("*.py")]
IN_TEXT = r"\b([A-Z]\w+)(?: et al\.|(?:, [A-Z]\w+)*,? and [A-Z]\w+),?\s\(?((?:19|20)\d\d)\b"
IN_A_LIST = r"([A-Z]\w+)[^*;\n]*, \*([^*]+)\*\s+\((\d{4})\)"


def words(title: str) -> str:
    """A title without what does not count: capitals, braces, hyphens."""
    return re.sub(r"[^a-z0-9]+", " ", title.lower().replace("{", "").replace("}", "")).strip()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_paper_that_a_file_cites_is_in_the_bibliography(file):
    text = file.read_text()
    for name, year in re.findall(IN_TEXT, text):
        assert f"{name.lower()}{year}" in ENTRIES, f"{name} {year}"
    for name, title, year in re.findall(IN_A_LIST, text):
        entry = ENTRIES[f"{name.lower()}{year}"]
        assert words(title) in words(entry.fields["title"]), title


def test_the_patterns_find_the_ways_in_which_pages_cite():
    ways = "Li et al. (2020), Goyal et al. 2017, Patarasuk and Yuan 2009, as Thakur et al.\n2005"
    assert len(re.findall(IN_TEXT, ways)) == 4
    assert re.findall(IN_A_LIST, "- He, Zhang, Ren and Sun, *Delving* (2015)") == [
        ("He", "Delving", "2015")
    ]


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_says_who_what_and_when(key):
    entry = ENTRIES[key]
    assert entry.persons["author"]
    assert entry.fields["title"]
    assert re.fullmatch(r"\d{4}", entry.fields["year"])
    if "eprint" in entry.fields:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.fields["eprint"])
