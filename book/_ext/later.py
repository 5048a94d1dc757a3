"""Pages without outputs yet are shown without them, if the build is told not to wait for them.

`make serve` tells it so by `BOOK_OUTPUTS=later`, where many pages would have to be executed first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from myst_nb.core.execute import NotebookClientBase
from sphinx.application import Sphinx
from sphinx.config import Config

from playground.build.execute import without_outputs
from playground.build.toc import pages_in_order


def leave_out(app: Sphinx, config: Config) -> None:
    if os.environ.get("BOOK_OUTPUTS") == "later":
        root = Path(app.srcdir)
        config.nb_execution_cache_path = str(root / "_build/.jupyter_cache")
        waiting = without_outputs(root, pages_in_order(root))
        config.nb_execution_excludepatterns = [f"{name}.md" for name in waiting]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", leave_out)
    # MyST-NB learns from an execution only which language the cells are in.
    NotebookClientBase.nb_source_code_lexer = lambda _: "ipython3"
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
