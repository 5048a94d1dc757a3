"""What is known to fail, and why: the only place where the fuzzer forgives a draw."""

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.draws import Draw


class Known(NamedTuple):
    fits: Callable[[Draw], bool]
    reason: str


KNOWN: list[Known] = []


def known(draw: Draw) -> str:
    """The reason why this draw may fail, or "" if it may not."""
    return next((one.reason for one in KNOWN if one.fits(draw)), "")
