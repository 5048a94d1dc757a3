"""Software that runs the book: the local server, the live kernels, the build, and figures."""

import sys

# With it, `jsonschema` reads grammars for internationalized addresses: 2 s per build and per start
# of the server, for a check that we don't use. None makes it count as "not installed".
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
