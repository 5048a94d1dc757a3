"""`python -m playground.build`: builds this book with Jupyter Book, for `make book`.

It starts in half the time of the command `jupyter-book` (see `playground/__init__.py`), and it
reads and writes pages on all cores, for which the command has no option. Warnings are errors, and
the build shows all of them.
"""

import gc
import os
import sys
from functools import partial

import jupyter_book.sphinx
from jupyter_book.cli.main import main

JOBS = (os.cpu_count() or 1) + 1  # the main process only prepares pages for the others

if __name__ == "__main__":
    gc.disable()  # document trees live until the end, so searching them is slow and useless
    build_sphinx = jupyter_book.sphinx.build_sphinx
    jupyter_book.sphinx.build_sphinx = partial(build_sphinx, jobs=JOBS)
    main(["build", ".", "-W", "--keep-going", *sys.argv[1:]])
