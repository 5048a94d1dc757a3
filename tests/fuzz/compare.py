"""Whether ranks compute what one device computes, or refuse in one line."""

import tempfile
from typing import Any

import torch
from tests.fuzz.alone import Alone
from tests.fuzz.draws import Draw
from tests.fuzz.events import ODD
from tests.fuzz.known import known
from tests.fuzz.network import wide
from tests.fuzz.on_ranks import play

from distributed.runtime.report import RankError, RanksHang

DIVERGED = 1e6  # a training that goes this far makes large what is only rounding


class Differs(AssertionError):
    """What ranks computed is not what one device computes."""


def compare(draw: Draw, number: int, results: list[dict[str, Any]], expected: Any) -> None:
    """Raise Differs for the first thing that is not as on one device."""
    where = f"in segment {number}"
    slack = 0.0  # what parameters of few bits may add to a loss
    for name, value in expected["values"].items():
        if value.dtype != torch.float64:
            off = expected["bounds"][name].sum().item()
            if draw.param_dtype:  # cast, they are the next number up or down
                off += torch.finfo(getattr(torch, draw.param_dtype)).eps * value.abs().sum().item()
            slack += 5 * off
    if any(part.low == "autocast" for part in draw.parts):
        slack += 0.2  # a sum of three is rounded to bfloat16
    for rank, found in enumerate(results):
        if found["values"].keys() != expected["values"].keys():
            raise Differs(f"{where}, rank {rank}: names differ")
        for place, (ours, theirs) in enumerate(
            zip(found["losses"], expected["losses"][rank], strict=True)
        ):
            if not abs(ours - theirs) <= 1e-10 * max(1.0, abs(theirs)) + slack:
                raise Differs(f"{where}, rank {rank}: loss {place} is {ours}, not {theirs}")
        for name, value in found["values"].items():
            wanted = expected["values"][name]
            off = (wide(value) - wide(wanted)).abs()
            if not (off <= expected["bounds"][name]).all():
                raise Differs(f"{where}, rank {rank}: {name} is {value}, not {wanted}")
            if not torch.equal(value, results[0]["values"][name]):
                raise Differs(f"{where}: {name} of rank {rank} is not rank 0's")
        for name, value in found["buffers"].items():
            wanted = expected["buffers"][rank][name]
            if not torch.allclose(wide(value), wide(wanted), rtol=1e-10, atol=1e-10):
                raise Differs(f"{where}, rank {rank}: buffer {name} is {value}, not {wanted}")
        for name, value in found["others"].items():
            wanted = expected["others"][name]
            if not torch.allclose(value, wanted, rtol=1e-10, atol=1e-10):
                raise Differs(f"{where}, rank {rank}: {name} is {value}, not {wanted}")


def refused(number: int, results: list[dict[str, Any]]) -> str:
    """What all ranks say; Differs if some do not, or if a step was made before."""
    told = [found.get("refused", "") for found in results]
    if any(told) and not all(told):
        raise Differs(f"only some ranks refuse: {told}")
    if told[0] and any(found["steps"] for found in results):
        raise Differs(f"refused after {results[0]['steps']} steps: {told[0]}")
    return told[0]


def check(worlds: Any, draw: Draw, timeout: float = 60.0, fault: str = "") -> str:
    """Play a draw on `worlds[ranks]`; what refuses it, or "" if all is as on one device.

    Raises Differs otherwise, RankError if a rank raises, RanksHang if ranks do not end; but for
    what is known to fail, which is returned.
    """
    try:
        return play_all(worlds, draw, timeout, fault)
    except (Differs, RankError, RanksHang):
        if reason := known(draw):
            return f"known to fail: {reason}"
        raise


def play_all(worlds: Any, draw: Draw, timeout: float, fault: str) -> str:
    alone, saved = Alone(draw), None
    with tempfile.TemporaryDirectory() as folder:
        for number, segment in enumerate(draw.segments):
            run = worlds[segment.ranks]
            results = run(play, draw, number, saved, folder, fault, timeout=timeout)
            if said := refused(number, results):
                run.kill()  # some ranks may have begun to gather what others have not
                return said
            expected = alone.run_segment(number)
            if any(not abs(loss) < DIVERGED for losses in expected["losses"] for loss in losses):
                return f"not compared: on one device a loss is above {DIVERGED:.0e}"
            compare(draw, number, results, expected)
            saved = results[0]["saved"]
    if ODD[draw.odd].must_refuse:
        raise Differs(f"{draw.odd}: not refused")
    return ""
