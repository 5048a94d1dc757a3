"""`python -m bench.bucket_sizes [--record]`: a step over the size of its buckets, on a real link.

Four hosts of `playground.lab.hosts`, with links that the kernel limits, train a network whose
computation only waits: so that messages and computation do not share a core. With `--record` the
result goes to `bench/recorded/bucket_sizes.json`, from where the chapter *Buckets* takes it.
"""

import argparse
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.pairs import ROOT
from distributed import Group, launch
from distributed.ddp import DistributedDataParallel
from distributed.runtime.script import run_script, under_torchrun
from distributed.workbench.emulated import emulated_network, train_step
from distributed.workbench.measure import all_reduce_times, fit, seconds
from playground.environment import environment
from playground.lab.hosts import laboratory

LAYERS, SIDE, STEP = 64, 90, 0.2  # 64 gradients of 32 kB; a step computes 0.2 s, a third forward
IN_A_BUCKET = (1, 2, 4, 8, 16, 32, 64)  # layers
BANDWIDTHS = ("100Mbit", "1000Mbit")
KEPT = ROOT / "bench/recorded/bucket_sizes.json"


def measure(group: Group, times: int) -> dict[str, Any]:
    """On one rank: α (s) and β (s/byte) of an all-reduce, and the seconds of a step."""
    layer = 4 * SIDE**2
    sizes = [layer * many for many in IN_A_BUCKET]
    models = [emulated_network(LAYERS, SIDE, STEP) for _ in range(len(sizes) + 1)]
    wrapped = [
        DistributedDataParallel(model, group, size, size)
        for model, size in zip(models, sizes, strict=False)
    ]
    for model, size in zip(wrapped, sizes, strict=True):
        train_step(model)
        assert len(model.buckets) == LAYERS * layer // size
    taken: list[list[float]] = []
    for _ in range(times):  # in turns, so that a drift of the machine meets all sizes
        steps = [seconds(group, partial(train_step, m), 1, 0)[0] for m in (*wrapped, models[-1])]
        taken.append(steps + all_reduce_times(group, sizes, 1))
    medians = [statistics.median(column) for column in zip(*taken, strict=True)]
    steps, computed = medians[: len(sizes)], medians[len(sizes)]
    alpha, beta = fit([1] * len(sizes), sizes, medians[len(sizes) + 1 :])
    rows = [{"bucket": b, "seconds": s} for b, s in zip(sizes, steps, strict=True)]
    return {"alpha": float(alpha), "beta": float(beta), "computed": computed, "steps": rows}


def inside(times: int = 13, json_to: str = "") -> None:
    """What each rank does, under torchrun."""
    found = launch(measure, times, device="cpu", timeout=300)[0]
    Path(json_to).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bucket_sizes", description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep the result in bench/recorded")
    options = parser.parse_args()
    found: dict[str, Any] = {"env": environment(), "ranks": 4, "layers": LAYERS}
    found["bytes"], found["step"] = LAYERS * 4 * SIDE**2, STEP
    for bandwidth in BANDWIDTHS:
        with tempfile.TemporaryDirectory() as folder, laboratory(4, bandwidth) as lab:
            to = Path(folder, "found.json")
            script = ["bench.bucket_sizes", "--json_to", str(to)]
            lab.torchrun(script, options=["-m"], env={"PYTHONPATH": str(ROOT)}, timeout=400)
            found[bandwidth] = json.loads(to.read_text())
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.record:
        KEPT.write_text(text)


if __name__ == "__main__":
    if under_torchrun():
        run_script(inside)
    else:
        main()
