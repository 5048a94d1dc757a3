"""The cheat sheet on paper."""

import io
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from pypdf import PdfReader


@pytest.mark.slow
def test_the_cheat_sheet_is_one_sheet_of_a4_or_letter(browser: Browser, built: Path) -> None:
    page = browser.new_page()
    page.goto((built / "book/reference/cheat_sheet.html").as_uri())
    for options in ({"format": "A4"}, {"format": "Letter"}):
        sheets = PdfReader(io.BytesIO(page.pdf(**options))).pages
        assert len(sheets) == 1
        assert "H100 SXM5 80 GB" in sheets[0].extract_text()
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 730, "height": 1060})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    page.close()
