"""What a browser must have before it shows the text of a page: the page and one small style sheet.

How long that takes on a slow phone is measured by `bench/phone.py`.
"""

import gzip
import re
import sys
from pathlib import Path

import pytest
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

from styles import cut, rules_in  # type: ignore[import-not-found]  # noqa: E402

THEME = {  # in the head of each page; and more, by what stands on it
    "documentation_options.js", "doctools.js", "sphinx_highlight.js", "clipboard.min.js",
    "copybutton.js", "sphinx-book-theme.js", "togglebutton.js", "design-tabs.js",
}  # fmt: skip
SEARCH = {"searchtools.js", "language_data.js", "searchindex.js"}


def test_a_page_waits_for_one_style_sheet_and_for_no_script(built):
    for page in built.glob("book/**/*.html"):
        head = page.read_text(encoding="utf-8").partition("</head>")[0]
        scripts = re.findall(r"<script[^>]*\ssrc=[^>]*>", head)
        names = {re.search(r'src="(?:[^"?]*/)?([^"?/]*)', script)[1] for script in scripts}
        assert names >= THEME, page
        assert not names & SEARCH, "only the page of the search uses them"
        assert all(" defer" in script or " async" in script for script in scripts), page
        (sheet,) = re.findall(r'<link rel="stylesheet"[^>]*href="([^"?]*)', head)
        assert "<script>" not in head.partition('rel="stylesheet"')[2], "it would wait for styles"
        style = (page.parent / sheet).read_text(encoding="utf-8")
        assert "@import" not in style, "the browser would learn of it late"
        assert len(gzip.compress(style.encode())) <= 40_000


SHEET = """@charset "utf-8";.a,.b .c{color:red}
@media print{.gone{x:1}.a:not(.gone){content:"} .a{"}}@media screen{.gone{x:1}}
#here[data-x=".gone"],p>a:is(.gone,.b){x:2}@font-face{src:url(data:x;y)}.w\\:1{x:3}"""


def test_a_sheet_that_is_not_css_is_refused():
    with pytest.raises(ExtensionError, match="a style sheet cannot be read: "):
        rules_in(".a{color:red}}")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({"a", "here"}, [".a{color:red}", '@media print{.a:not(.gone){content:"} .a{"}}', "#here"]),
        ({"b", "c"}, [".b .c{color:red}", "p>a:is(.gone,.b){x:2}"]),
        (set(), ['@charset "utf-8";', "p>a:is(.gone,.b){x:2}", "@font-face{src:url(data:x;y)}"]),
    ],
)
def test_rules_stay_that_can_match_something(words, kept):
    text = cut(rules_in(SHEET), words)
    assert all(part in text for part in kept), text
    assert "screen" not in text
    assert "{.gone" not in text
