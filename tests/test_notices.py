"""Whatever the book hands on that others wrote is named, with the words of its licence."""

import sys
from pathlib import Path

import pytest
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

from notices import PARTS, words  # type: ignore[import-not-found]  # noqa: E402

PACKAGES = ROOT / "book/web/node_modules"
NEEDED = {  # what a licence of a kind says
    "MIT": "to deal in the Software without restriction",
    "BSD-3-Clause": "Neither the name",
    "BSD-2-Clause": "Redistributions in binary form must reproduce",
    "ISC": "Permission to use, copy, modify, and/or distribute this software",
    "Apache-2.0": "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
    "MPL-2.0": "3.2. Distribution of Executable Form",
    "PSF-2.0": "PSF hereby grants Licensee a nonexclusive, royalty-free, world-wide",
    "OFL-1.1": "The goals of the Open Font License",
    "CC-BY-4.0": "CC BY 4.0",
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_words_of_each_licence_are_there(part) -> None:
    said = " ".join(" ".join(words(text, PACKAGES) for text in part.texts).split())
    for kind in part.licence.split(" AND "):
        assert NEEDED[kind] in said
    assert "opyright" in said


@pytest.mark.parametrize(
    "text", ["npm:vega/NONE", "pip:sphinx/NONE", "pip:none/X", f"{PARTS[5].texts[0]}#no such words"]
)
def test_a_package_that_brings_no_licence_is_no_book(text: str) -> None:
    with pytest.raises(ExtensionError):
        words(text, PACKAGES)
