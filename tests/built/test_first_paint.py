"""What a browser needs before it shows a page's text: the page and its styles, no script."""

import gzip
import re

THEME = {  # in the head of each page; and more, by what stands on it
    "documentation_options.js", "doctools.js", "sphinx_highlight.js", "clipboard.min.js",
    "copybutton.js", "sphinx-book-theme.js", "togglebutton.js", "design-tabs.js",
}  # fmt: skip
SEARCH = {"searchtools.js", "language_data.js", "searchindex.js"}


def test_a_page_waits_for_no_script_and_for_few_styles(built):
    for page in built.glob("book/**/*.html"):
        text = page.read_text(encoding="utf-8")
        head = text.partition("</head>")[0]
        assert "THEBE_JS_URL" not in text, "a script would fetch another thebe from another host"
        scripts = re.findall(r"<script[^>]*\ssrc=[^>]*>", head)
        names = {re.search(r'src="(?:[^"?]*/)?([^"?/]*)', script)[1] for script in scripts}
        assert names >= THEME, page
        assert not names & SEARCH, "only the page of the search uses them"
        assert all(" defer" in script or " async" in script for script in scripts), page
        before, *_ = head.partition('rel="stylesheet"')
        assert all(script in before for script in scripts), "it would wait for styles"
        sheets = re.findall(r'<link rel="stylesheet"[^>]*href="([^"?]*)', head)
        texts = [(page.parent / sheet).read_bytes() for sheet in sheets]
        assert not any(b"@import" in text for text in texts), "the browser would learn of it late"
        assert sum(len(gzip.compress(text)) for text in texts) <= 110_000


def test_the_site_has_nothing_that_no_page_loads(built):
    files = [path.relative_to(built).as_posix() for path in (built / "_static").rglob("*")]
    assert "_static/scripts/bootstrap.js" in files
    assert not [name for name in files if name.endswith((".map", ".ttf", ".mo", "fontawesome.js"))]


def test_no_style_asks_for_a_file_that_is_not_there(built):
    """A browser that lays out the page before the last style has come would ask for it."""
    for sheet in (built / "_static").rglob("*.css"):
        urls = re.findall(r"url\(\s*[\"']?([^\"')]+)", sheet.read_text(encoding="utf-8"))
        files = {url.partition("?")[0].partition("#")[0] for url in urls if ":" not in url}
        assert not [file for file in files if file and not (sheet.parent / file).exists()], sheet


def test_no_style_is_tried_against_all_that_comes_before_a_span(built):
    """Each span of a folded listing would look for a title among all spans before it."""
    for sheet in (built / "_static").rglob("*.css"):
        assert not re.search(r"~\s*\*", sheet.read_text(encoding="utf-8")), sheet
