"""What is known to fail, and why: the only place where the fuzzer forgives a draw."""

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.draws import ZERO3, Draw


class Known(NamedTuple):
    fits: Callable[[Draw], bool]
    reason: str


def in_stages(draw: Draw, stages: tuple[str, ...]) -> bool:
    return any(segment.strategy in stages for segment in draw.segments)


def unlike(draw: Draw) -> bool:
    """Whether ranks leave out different things."""
    passes = [one for segment in draw.segments for step in segment.steps for one in step]
    return any(len({*one.without}) > 1 for one in passes)


KNOWN = [
    Known(
        lambda draw: (
            draw.odd == "backward passes that fail" and in_stages(draw, ZERO3) and unlike(draw)
        ),
        "in ZeRO-3, ranks whose backward passes fail have gathered different blocks",
    ),
    Known(
        lambda draw: draw.odd == "weight of a block that is not called" and in_stages(draw, ZERO3),
        "ZeRO-3's schedule gathers only a block that is called",
    ),
    Known(
        lambda draw: (
            draw.odd in ("average of the weights", "deep copies of the module")
            and in_stages(draw, ZERO3)
        ),
        "in ZeRO-3, a copy of the module has NaN and the same hooks",
    ),
    Known(
        lambda draw: draw.odd == "compiled blocks" and in_stages(draw, ("zero2", *ZERO3)),
        "Dynamo reads the values of a gradient that is spread over the ranks",
    ),
]


def known(draw: Draw) -> str:
    """The reason why this draw may fail, or "" if it may not."""
    return next((one.reason for one in KNOWN if one.fits(draw)), "")
