"""Icons of the pages as a font of a few KB, and changes to the themes' styles.

The theme includes a script of 1.5 MB and a font of 150 KB with all icons of Font Awesome. The build
extracts the few icons that are used into a small font, which replaces both.
"""

import re
from base64 import b64encode
from io import BytesIO
from pathlib import Path

import pydata_sphinx_theme
import sphinx_book_theme
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
BOOK_THEME = Path(sphinx_book_theme.__file__).parent / "theme/sphinx_book_theme/static"
USED = ["angle-left", "angle-right", "bars", "circle-half-stroke", "list", "magnifying-glass"]
USED += ["moon", "sun"]

AFTER_A_TITLE = re.compile(r"~\s*\*")  # the replacement, like `*`, has no specificity

STYLE = """\
/* Made by book/_ext/icons.py from Font Awesome Free, SIL OFL 1.1. */
@font-face {{
  font-family: "Font Awesome 6 Free";
  font-weight: 900;
  src: url("data:font/woff;base64,{font}") format("woff");
}}
"""


def characters() -> set[int]:
    """Icons that our pages name, and those that the themes' styles insert."""
    styles = (THEME / "styles/pydata-sphinx-theme.css").read_text()
    styles += (BOOK_THEME / "styles/sphinx-book-theme.css").read_text()
    named = {}
    for rule in re.findall(r"([^{}]*\.fa-[^{}]*)\{[^{}]*content:\"\\([0-9a-f]+)\s*\"\}", styles):
        for name in re.findall(r"\.fa-([\w-]+):", rule[0]):
            named[name] = int(rule[1], 16)
    missing = set(USED) - set(named)
    if missing:
        raise ExtensionError(f"the theme has no icon {sorted(missing)}: see book/_ext/icons.py")
    others = re.sub(r"[^{}]*\.fa-[^{}]*\{[^{}]*\}", "", styles)
    written = {int(code, 16) for code in re.findall(r"\"\\([ef][0-9a-f]{3})", others)}
    return {named[name] for name in USED} | written


def style_sheet() -> str:
    from fontTools import subset  # imported late, because in most builds the style sheet exists

    options = subset.Options(flavor="woff")
    font = subset.load_font(THEME / "vendor/fontawesome/webfonts/fa-solid-900.ttf", options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=characters())
    cutter.subset(font)
    packed = BytesIO()
    subset.save_font(font, packed, options)
    return STYLE.format(font=b64encode(packed.getvalue()).decode())


def leave_out_fonts(static: Path) -> None:
    """Remove the fonts that icons.css replaces from the themes' styles; the files don't exist.

    Otherwise a browser that lays out a page before icons.css has loaded requests them.
    """
    for sheet in (static / "styles").glob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        sheet.write_text(re.sub(r"@font-face\{[^}]*/webfonts/[^}]*\}", "", text), encoding="utf-8")


def look_at_few_siblings(static: Path) -> None:
    """Exclude the spans of a listing from rules for elements after a title.

    A rule for any element after a title (`.title ~ *`) is tried on every span of a folded listing,
    and each try walks back to the first span. Ten thousand spans took a browser ten seconds.
    """
    for sheet in static.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        if (mended := AFTER_A_TITLE.sub("~:where(:not(span))", text)) != text:
            sheet.write_text(mended, encoding="utf-8")


def write_icons(app: Sphinx) -> None:
    target = Path(app.outdir, "_static", "icons.css")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(style_sheet())
