"""`python -m bench.spelling [--record]`: a run on two ranks that learns to spell.

It spells numbers that it has never seen every hundred steps, and goes on from one checkpoint with
the optimizer's states and without them. With `--record` the result goes to
`bench/recorded/spelling.json`, from where the chapter *A real run* takes it.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.pairs import ROOT
from distributed import world
from distributed.ddp.train_text import save, share_right, spell, train
from distributed.workbench.number_names import lines, split
from distributed.workbench.transformer import CharTransformer, Config, Text
from playground.environment import environment

RANKS, BATCH, STEPS, LOOK, STOP, GO_ON = 2, 64, 1500, 100, 300, 30
SHOWN = (483, 17)
KEPT = ROOT / "bench/recorded/spelling.json"


def loaded(text: Text, weights: dict[str, torch.Tensor]) -> CharTransformer:
    model = CharTransformer(Config(v=len(text.characters)))
    model.load_state_dict(weights)
    return model


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], rate: float) -> float:
    """The mean distance that a weight went, in learning rates."""
    far = torch.cat([(after[name] - before[name]).flatten().abs() for name in before])
    return (far.mean() / rate).item()


def measure(quick: bool = False) -> dict[str, Any]:
    """The curve with its looks, and the two ways to go on from step STOP."""
    torch.set_num_threads(1)  # the parent spells; more threads are in each other's way
    written, (_, unseen) = lines(), split()
    text, rate = Text(written), 3e-3
    steps = 2 * STOP if quick else STEPS
    looks, spent = [], 0.0
    found: dict[str, Any] = {"env": environment(), "ranks": RANKS, "batch": BATCH, "rate": rate}
    with tempfile.TemporaryDirectory() as folder, world(RANKS, device="cpu") as run:
        path, at_stop = Path(folder, "run.pt"), Path(folder, "stop.pt")
        for until in range(LOOK, steps + 1, LOOK):
            begun = time.perf_counter()
            losses, weights = run(train, written, until, BATCH, str(path), LOOK, rate)[0]
            spent += time.perf_counter() - begun
            model = loaded(text, weights)
            looks.append(
                {
                    "step": until,
                    "seconds": spent,
                    "right": share_right(model, text, unseen[:50]),
                    "said": {n: spell(model, text, n) for n in (*unseen[:2], *SHOWN)},
                }
            )
            print(looks[-1], flush=True)
            if until == STOP:
                shutil.copy(path, at_stop)
        go_on = {}
        for way in ("with", "without"):
            state = torch.load(at_stop)
            start = state["model"]
            if way == "without":
                state["optimizer"]["state"] = {}
            save(path, state)
            _, after = run(train, written, STOP + 1, BATCH, str(path), 10**6, rate)[0]
            losses_on, _ = run(train, written, STOP + GO_ON, BATCH, str(path), 10**6, rate)[0]
            go_on[way] = {"losses": losses_on[STOP:], "moved": moved(start, after, rate)}
    return {**found, "losses": losses, "looks": looks, "stop": STOP, "go_on": go_on}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spelling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    found = measure(options.quick)
    print(json.dumps(found["go_on"], indent=1))
    if options.record:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
