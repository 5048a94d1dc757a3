"""`python -m playground.build`: Jupyter Book on this book, as `make book` starts it.

It starts in half the time of the command `jupyter-book` (`playground/__init__.py` says why). A
warning is an error, and all of them are shown.
"""

import sys

from jupyter_book.cli.main import main

if __name__ == "__main__":
    main(["build", ".", "-W", "--keep-going", *sys.argv[1:]])
