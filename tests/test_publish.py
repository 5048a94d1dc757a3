"""What a published book has beside its pages."""

import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

from publish import (  # type: ignore[import-not-found]  # noqa: E402
    NOT_FOUND,
    metatags,
    sitemap,
)

ADDRESS = "https://example.org/book/"


def test_the_sitemap_has_the_address_of_every_page():
    tree = ElementTree.fromstring(sitemap(ADDRESS, ["a.html", "b/c&d.html"]).encode())
    assert [url[0].text for url in tree] == [f"{ADDRESS}a.html", f"{ADDRESS}b/c&d.html"]


def test_a_page_without_an_address_names_none():
    tags = metatags("Title", 'says "this"', "", "a.html", card=True)
    assert 'content="says &quot;this&quot;"' in tags
    assert "og:url" not in tags
    assert "og:image" not in tags


def test_a_page_with_an_address_has_a_card():
    tags = metatags("Title", "says", ADDRESS, "a.html", card=True)
    assert f'"og:image" content="{ADDRESS}_static/card.png"' in tags
    assert '"og:image:alt" content="A page of the book' in tags
    assert f'"og:url" content="{ADDRESS}a.html"' in tags


def test_the_page_for_404_asks_nothing_of_anybody():
    page = NOT_FOUND.format(title="Book", home="/book/index.html")
    assert 'href="/book/index.html"' in page
    assert "src=" not in page
    assert "http" not in page
