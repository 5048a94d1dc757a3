"""Which of what a page asks for the browser may load and run.

All from the host that the page came from, none of it from elsewhere. Scripts are files of the book
or stand in the page as it was built, which the hash of each says; there is no eval and no handler
in an attribute. `unsafe-inline` for styles is needed: MathJax, CodeMirror and matplotlib's drawings
write styles into the page as they work. Pictures from a kernel are `data:`, a downloaded notebook
is `blob:`.

Our server says so in a header. A host of files sends none, so each page has it in its head, too.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "media-src": "'self' data:",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
}
INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
HEAD = re.compile(rb"<head>\s*(?:<meta charset=[^>]*>)?", re.IGNORECASE)
COMPILE = "'wasm-unsafe-eval'"  # WebAssembly, and nothing else
FILES = ("script-src", "style-src", "img-src", "font-src")  # of a page that is opened as a file


def policy(more: Mapping[str, tuple[str, ...]]) -> str:
    """All of it, with `more` for some directives."""
    names = [*POLICY, *(name for name in more if name not in POLICY)]
    said = {name: " ".join((POLICY.get(name, ""), *more.get(name, ()))).strip() for name in names}
    return "; ".join(f"{name} {sources}" for name, sources in said.items())


def hashes_of(page: bytes) -> tuple[str, ...]:
    """The scripts that stand in a page."""
    found = {b64encode(sha256(script).digest()).decode() for script in INLINE.findall(page)}
    return tuple(f"'sha256-{value}'" for value in sorted(found))


def with_policy(page: bytes, binder: str = "") -> bytes:
    """A built page with the policy in its head.

    Where no server answers, the page itself compiles Python for its workers. With a `binder`, an
    address, cells run on a machine whose name nobody knows before.
    """
    if b'http-equiv="Content-Security-Policy"' in page:
        return page
    more: dict[str, tuple[str, ...]] = dict.fromkeys(FILES, ("file:",))
    more["script-src"] += hashes_of(page) + ((COMPILE,) if b" data-live" in page else ())
    if binder:
        safe = ("https:", "wss:")
        more["connect-src"] = safe if binder.startswith("https:") else (*safe, "http:", "ws:")
    meta = f'\n<meta http-equiv="Content-Security-Policy" content="{policy(more)}">'
    return HEAD.sub(lambda found: found[0] + meta.encode(), page, count=1)
