"""Content security policy: what a page may load and which scripts it may run.

Everything comes from the host that served the page. Scripts are files of the book, or were in the
page when it was built, so that the policy lists their hashes. Neither eval nor event handlers in
attributes are allowed. Styles need `unsafe-inline`, because MathJax, CodeMirror and matplotlib's
drawings write styles into the page while they run. Pictures from a kernel are `data:` URLs, and a
downloaded notebook is a `blob:` URL.

Our server sends the policy as a header. A host of plain files sends no such header, so the head of
each page also contains the policy.
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
COMPILE = "'wasm-unsafe-eval'"  # WebAssembly and nothing else
FILES = ("script-src", "style-src", "img-src", "font-src")  # of a page opened as a file


def policy(more: Mapping[str, tuple[str, ...]]) -> str:
    """The whole policy, with `more` sources for some directives."""
    names = [*POLICY, *(name for name in more if name not in POLICY)]
    said = {name: " ".join((POLICY.get(name, ""), *more.get(name, ()))).strip() for name in names}
    return "; ".join(f"{name} {sources}" for name, sources in said.items())


def hashes_of(page: bytes) -> tuple[str, ...]:
    """Hashes of the inline scripts of a page."""
    found = {b64encode(sha256(script).digest()).decode() for script in INLINE.findall(page)}
    return tuple(f"'sha256-{value}'" for value in sorted(found))


def with_policy(page: bytes, binder: str = "") -> bytes:
    """A built page with the policy in its head.

    Without a server, the page itself compiles Python for its workers. With a `binder` (its
    address), cells run on a machine whose name isn't known in advance.
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
