"""How a page looks, to who reads it in another way than we do: by ear, at night, on a phone."""

import gzip
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from live_page import LivePage

AXE = (Path(__file__).parents[2] / "book/web/node_modules/axe-core/axe.min.js").read_text()
BY_THEME = ["color-contrast", "link-in-text-block"]  # what another theme may change
AFTER_A_PRESS = ("/thebe/", "/live-thebe.js", "/api/")
# Code is thousands of words in a few colours. Of each kind one word is enough to be looked at.
KEEP_ONE_OF_EACH_KIND = """() => {
  const seen = new Set();
  const words = document.querySelectorAll("main :is(pre, .sig) :is(span, em):not([id])");
  for (const word of [...words].reverse()) { // what stands inside, first
    const around = [word, word.parentElement, word.closest(".cell, .sig, details, .live-output")];
    const kind = around.map((node) => node?.className).join("|");
    if (seen.has(kind) && !word.childElementCount) word.replaceWith(word.textContent);
    else seen.add(kind);
  }
}"""


def violations(live: LivePage, rules: list[str] | None = None) -> list[str]:
    """What axe finds: the rule, and what breaks it."""
    if not live.page.evaluate("'axe' in window"):
        live.page.evaluate(AXE)
    options = {"resultTypes": ["violations"], "preload": False}
    result = live.page.evaluate(
        "options => axe.run(document, options)", options | ({"runOnly": rules} if rules else {})
    )
    return [
        f"{violation['impact']} {violation['id']}: {node['html'][:200]}\n{node['failureSummary']}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]


def set_theme(live: LivePage, theme: str) -> None:
    live.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)


def violations_in_both_themes(live: LivePage) -> list[str]:
    """The same at the end of a visit: most of the page's code is plain after it."""
    live.page.evaluate(KEEP_ONE_OF_EACH_KIND)
    live.page.wait_for_timeout(350)  # after 300 ms of calm, the theme looks for what scrolls
    found = []
    for theme, rules in (("light", None), ("dark", BY_THEME)):
        set_theme(live, theme)
        found += [f"{theme}: {problem}" for problem in violations(live, rules)]
    return found


def needs_scrolling_sideways(live: LivePage) -> list[str]:
    """Where the page is wider than its window: on a phone, or with letters of twice the size.

    Zoom of the page halves the window, in its own pixels; of the text alone, it doubles the fonts.
    """
    size = live.page.viewport_size
    assert size is not None
    found = []
    for name, width, letters in (("phone", 390, 100), ("zoom", 640, 100), ("letters", 1280, 200)):
        live.page.set_viewport_size({"width": width, "height": size["height"]})
        wide = live.page.evaluate(
            """letters => {
              document.documentElement.style.fontSize = `${letters}%`;
              return document.documentElement.scrollWidth;
            }""",
            letters,
        )
        found += [f"{name}: {wide} px in a window of {width}"] if wide > width else []
    live.page.evaluate("document.documentElement.style.fontSize = ''")
    live.page.set_viewport_size(size)
    return found


def take_pictures(live: LivePage, folder: Path, name: str, part: str) -> None:
    """Three pictures of a part of a page, for people to look at: light, dark, on a phone."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        set_theme(live, theme)
        live.page.set_viewport_size({"width": width, "height": 900})
        live.page.locator(part).locator("visible=true").first.evaluate(
            "part => part.scrollIntoView({ block: 'center' })"
        )
        kind = theme if width > 390 else "phone"
        live.page.screenshot(path=folder / f"{name}-{kind}.png", animations="disabled")
    live.page.set_viewport_size({"width": 1280, "height": 720})


@cache
def compressed(file: Path) -> int:
    return len(gzip.compress(file.read_bytes()))


def weight_before_a_press(live: LivePage, folder: Path) -> dict[str, int]:
    """Bytes of each file that the page has loaded by itself, as a static host would send them.

    Such a host compresses what it sends; fonts and pictures stay as large as they are.
    """
    book = f"{live.url.rstrip('/')}/"
    own = [url.removeprefix(book) for url in live.requests if url.startswith(book)]
    paths = {unquote(urlsplit(url).path) for url in own}
    files = {path for path in paths if not any(part in f"/{path}" for part in AFTER_A_PRESS)}
    return {path: compressed(folder / path) for path in files if (folder / path).is_file()}
