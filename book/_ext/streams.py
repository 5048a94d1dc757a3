"""Printed lines are whole in a built page, in however many pieces the kernel sent them.

A kernel sends what was printed when its buffer is looked at, be it in the middle of a line. MyST-NB
ends every piece with a newline; nbclient joins pieces as they are, if it is told to.
"""

from __future__ import annotations

from typing import Any

from nbclient import NotebookClient
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    NotebookClient.coalesce_streams = True  # neither MyST-NB nor its cache hands the option on
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
