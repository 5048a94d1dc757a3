"""Whoever is cited stands in the bibliography, and whoever stands there is cited on a page."""

import importlib
import re
from pathlib import Path

import pytest
from pybtex.database import parse_file
from sphinxcontrib.bibtex.citation_target import parse_citation_targets

from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[1]
ENTRIES = parse_file(str(ROOT / "book/references.bib")).entries
PAGES = [ROOT / f"{page}.md" for page in pages_in_order(ROOT)]
FILES = [*PAGES, *(ROOT / "code/distributed").rglob("*.py")]
CELL = r"^(`{3,})\{code-cell\}.*?^\1"
CITATION = r"\{cite:[tp]\}`([^`]+)`"
BY_HAND = r"\b([A-Z]\w+)(?: et al\.|(?:, [A-Z]\w+)*,? (?:and|&) [A-Z]\w+),?\s\(?((?:19|20)\d\d)\b"
WITH_TITLE = r"\{cite:t\}`(\w+)(?:\{[^}]*\})?`,\s+\*([^*]+)\*"


@pytest.fixture
def citations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    return importlib.import_module("citations")


def keys(text: str) -> list[str]:
    return [t.key for found in re.findall(CITATION, text) for t in parse_citation_targets(found)]


def words(title: str) -> str:
    """A title without what does not count: capitals, braces, hyphens."""
    return re.sub(r"[^a-z0-9]+", " ", title.lower().replace("{", "").replace("}", "")).strip()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_paper_that_a_file_cites_is_in_the_bibliography(file):
    text = file.read_text()
    for key in keys(text):
        assert key in ENTRIES
    for name, year in re.findall(BY_HAND, text):
        assert f"{name.lower()}{year}" in ENTRIES, f"{name} {year}"
    for key, title in re.findall(WITH_TITLE, text):
        assert words(title) in words(ENTRIES[key].fields["title"]), title


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_cites_by_a_link_and_not_by_hand(page):
    prose = re.sub(CELL, "", page.read_text(), flags=re.M | re.S)
    assert not re.findall(BY_HAND, prose)
    assert not re.findall(r"\*\s+\((?:19|20)\d\d\)", prose), "a title with its year"


def test_every_entry_is_cited_on_a_page():
    cited = {key for page in PAGES for key in keys(page.read_text())}
    assert sorted(set(ENTRIES) - cited) == []


def test_the_patterns_find_the_ways_in_which_files_cite():
    ways = "Li et al. (2020), Goyal et al. 2017, Patarasuk & Yuan 2009, as Thakur et al.\n2005"
    assert len(re.findall(BY_HAND, ways)) == 4
    assert keys("{cite:p}`{after}li2020{§4},goyal2017` and {cite:t}`young1974`") == [
        "li2020", "goyal2017", "young1974",
    ]  # fmt: skip
    assert re.findall(WITH_TITLE, "- {cite:t}`he2015{§2.2}`, *Delving*: why") == [
        ("he2015", "Delving")
    ]


def test_a_citation_says_who_when_and_where(citations):
    def said(kind: str, target: str) -> str:
        return citations.in_words(kind, target, ENTRIES)

    assert said("t", "goyal2017{§2}") == "Goyal et al. (2017, §2)"
    assert said("t", "patarasuk2009") == "Patarasuk and Yuan (2009)"
    assert said("t", "sergeev2018") == "Sergeev and Del Balso (2018)"
    assert said("t", "brown2020") == "Brown et al. (2020)"  # and others
    assert said("p", "{after}young1974,he2015{§2}") == "(after Young, 1974; He et al., 2015, §2)"


def test_no_two_entries_have_one_name(citations):
    assert len({citations.name_of(entry) for entry in ENTRIES.values()}) == len(ENTRIES)


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_says_who_what_when_and_where(key):
    entry = ENTRIES[key]
    assert entry.persons["author"]
    assert entry.fields["title"]
    assert re.fullmatch(r"\d{4}", entry.fields["year"])
    assert {"journal", "booktitle", "publisher", "eprint"} & set(entry.fields)
    if "eprint" in entry.fields:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.fields["eprint"])
