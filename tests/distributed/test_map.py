"""The functions to which the map's "Where to look" sends are those that a run goes through."""

import sys
import threading
from pathlib import Path

import torch

from distributed.bucketed_ddp import BucketedDDP
from distributed.ring_group import RingGroup
from distributed.zero import Zero3
from distributed.zero.checkpoint import save
from playground.build.modules import WHERE

PACKAGE = Path(__file__).parents[2] / "code/distributed"


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))


def functions_called(group, folder):
    """Names, as the map has them, of what this rank calls; what had called it is among them."""
    called = []

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            module = path.relative_to(PACKAGE).with_suffix("")
            called.append(f"{module}.{frame.f_code.co_qualname}")

    frame = sys._getframe()
    while frame:
        note(frame, "call", None)
        frame = frame.f_back
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        RingGroup(group).all_reduce(torch.ones(8))
        x = torch.ones(2, 4)
        BucketedDDP(network(), group)(x).sum().backward()
        zero = Zero3(network(), torch.optim.SGD, group, lr=0.1)
        zero.module(x).sum().backward()
        zero.step()
        save(zero, folder, 1)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return called


def test_a_run_goes_through_each_function_of_the_map_in_the_order_that_it_says(pools, tmp_path):
    for called in pools[2](functions_called, str(tmp_path)):
        for what, functions in WHERE.items():
            inside = [f for f in functions.split() if f != "launching.launch"]  # of the caller
            found = [called.index(f) for f in inside if f in called]
            assert len(found) == len(inside), f"{what}: {functions} is not called"
            assert found == sorted(found), f"{what}: {functions} in another order"
