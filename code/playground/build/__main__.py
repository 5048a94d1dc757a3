"""`python -m playground.build`: Jupyter Book on this book, as `make book` starts it.

It starts in half the time of the command `jupyter-book` (`playground/__init__.py` says why), and
reads and writes pages on all cores, which that has no option for. A warning is an error, and all of
them are shown.
"""

import gc
import os
import sys
from functools import partial

import jupyter_book.sphinx
from jupyter_book.cli.main import main

JOBS = (os.cpu_count() or 1) + 1  # while pages are written, the first only prepares them

if __name__ == "__main__":
    gc.disable()  # trees of documents stay to the end: to look for garbage there takes very long
    build_sphinx = jupyter_book.sphinx.build_sphinx
    jupyter_book.sphinx.build_sphinx = partial(build_sphinx, jobs=JOBS)
    main(["build", ".", "-W", "--keep-going", *sys.argv[1:]])
