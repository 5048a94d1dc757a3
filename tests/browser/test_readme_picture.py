"""The picture in the README is of today's front page: a cell that ran, with its output."""

import re
from pathlib import Path

import numpy as np
from live_page import LivePage
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser
from serving import running_server

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "book/_static/page.png"
SIZE = {"width": 1200, "height": 630}
WORDS = """() => [...document.querySelectorAll("h2, p, .cell, .bd-links > ul > li, .toc-entry")]
  .filter((one) => {
    const { top, bottom, height } = one.getBoundingClientRect();
    return height && top >= 0 && bottom <= innerHeight;
  })
  .map((one) => one.innerText).join("\\n")"""


def words_of(page: LivePage) -> str:
    """The words in view, without times, with the lines of ranks in order."""
    text = re.sub(r"[\d.]+ s\b", "… s", page.page.evaluate(WORDS))
    return "\n".join(sorted(line.strip() for line in text.splitlines() if line.strip()))


def take_picture(browser: Browser, built: Path, to: Path) -> str:
    """Run the first cell, write the picture with its words in it, and return the words."""
    with running_server(built, warm=True) as server:
        context = browser.new_context(viewport=SIZE, reduced_motion="reduce", color_scheme="light")
        context.request.get(server.open_url)
        page = LivePage(context.new_page(), server.url).open("book/index.html")
        page.run_and_wait(0)
        page.cell(0).evaluate("cell => scrollBy(0, cell.getBoundingClientRect().top - 170)")
        page.page.mouse.move(0, 0)
        page.page.wait_for_timeout(500)  # the side bars follow
        said, pixels = words_of(page), page.page.screenshot()
        context.close()
    to.write_bytes(pixels)
    notes = PngInfo()
    notes.add_text("words", said.encode("ascii", "backslashreplace").decode())
    with Image.open(to) as image:
        image.quantize(128).save(to, pnginfo=notes, optimize=True)
    return str(Image.open(to).text["words"])  # type: ignore[attr-defined]


def coarse(path: Path) -> np.ndarray:
    """What is left of a picture if letters are not told apart: a grid of grays."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L").resize((40, 21)), dtype=float)


def test_the_picture_in_the_readme_shows_todays_front_page(browser: Browser, built: Path) -> None:
    today = ROOT / "_build/page.png"
    said = take_picture(browser, built, today)
    assert "my gradient is now" in said
    with Image.open(PICTURE) as image:
        kept, size = image.text.get("words"), image.size  # type: ignore[attr-defined]
    update = f"the front page has changed: look at {today}, and copy it to {PICTURE}"
    assert size == tuple(SIZE.values())
    assert kept == said, update
    assert np.abs(coarse(PICTURE) - coarse(today)).mean() < 8, update
