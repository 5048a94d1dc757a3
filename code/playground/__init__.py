"""What runs the book: the local server, the live kernels, figures."""

import sys

# `jsonschema` would read grammars for addresses in foreign scripts: 2 s of every build and of every
# start of the server, for a check that nothing here asks for. It takes this for "not installed".
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
