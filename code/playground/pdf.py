"""`python -m playground.pdf --html _build/html --to _build/book.pdf`: the whole book on paper.

Each built page is printed by the system's Chromium in the order of the book, and the parts are
joined, with a bookmark for each page. It needs what the tests need: playwright and pypdf.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path

from playground.toc import pages_in_order

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def print_pages(html: Path, names: list[str], to: Path) -> int:
    """Print pages into one file; how many sheets it has."""
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader, PdfWriter

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise FileNotFoundError(f"no browser on this machine: none of {', '.join(BROWSERS)}")
    book = PdfWriter()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        for name in names:
            file = html / f"{name}.html"
            page.goto(file.absolute().as_uri(), wait_until="load")
            page.evaluate("window.MathJax?.startup?.promise")
            page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
            sheet = page.pdf(
                format="A4",
                scale=0.8,
                margin={"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
            )
            printed = PdfReader(io.BytesIO(sheet))
            first = len(book.pages)
            book.append(printed, import_outline=False)
            book.add_outline_item(title=page.title().split(" — ")[0], page_number=first)
        browser.close()
    with to.open("wb") as written:
        book.write(written)
    return len(book.pages)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.pdf", description=__doc__)
    parser.add_argument("--html", type=Path, default=Path("_build/html"))
    parser.add_argument("--to", type=Path, default=Path("_build/book.pdf"))
    options = parser.parse_args()
    names = pages_in_order(Path(__file__).parents[2])
    missing = [name for name in names if not (options.html / f"{name}.html").exists()]
    if missing:
        sys.exit(f"{options.html} lacks {missing[0]}.html: say `make book` first")
    sheets = print_pages(options.html, names, options.to)
    print(f"{options.to}: {len(names)} pages of the book on {sheets} sheets")


if __name__ == "__main__":
    main()
