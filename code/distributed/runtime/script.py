"""Command line of a file that runs as a script, as one rank under torchrun, or as a page's cell.

`run_script(main)` turns the parameters of `main` into command-line options, and an invalid argument
into a one-line error. Under torchrun every rank runs the whole file. There, only rank 0 prints
outside of `launch`, and inside it every line is labelled with its rank.
"""

import argparse
import contextlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def to_bytes(size: str | int) -> int:
    """ "64MB" → 64,000,000; "64MiB" → 67,108,864. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]i?B|B)?", str(size))
    if not match:
        raise ValueError(f"size={size!r}: write it like 64MB (10⁶ bytes) or 64MiB (2²⁰ bytes)")
    return int(float(match[1]) * UNITS[match[2] or ""])


def reader_of(parameter: inspect.Parameter) -> Callable[[str], Any]:
    """The function that parses a parameter's text: its type, or `int` for `int | None`."""
    annotation = parameter.annotation
    types = get_args(annotation) if isinstance(annotation, UnionType) else [annotation]
    first = next(kind for kind in types if kind is not NoneType)
    return to_bool if first is bool else first


def to_bool(text: str) -> bool:
    """ "True" → True; "False" → False. Raises ArgumentTypeError for anything else."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: write True or False")
    return text.lower() == "true"


def run_script(main: Callable[..., Any]) -> None:
    """Call `main` with the options from the command line; in a cell, with its defaults."""
    if "__file__" not in main.__globals__:  # in a cell, the command line is the kernel's
        main()
        return
    parser = Parser(description=inspect.getdoc(main))
    for name, parameter in inspect.signature(main, eval_str=True).parameters.items():
        default, read = parameter.default, reader_of(parameter)
        parser.add_argument(f"--{name}", type=read, default=default, help=f"({default})")
    options = vars(parser.parse_args())
    try:
        with _only_rank_0_speaks():
            main(**options)
    except ValueError as error:  # a wrong argument, found before any rank started
        parser.error(str(error))


def under_torchrun() -> bool:
    """Whether torchrun or a similar launcher started this process as one rank."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


@contextlib.contextmanager
def _only_rank_0_speaks() -> Iterator[None]:
    quiet = under_torchrun() and os.environ["RANK"] != "0"
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        yield
