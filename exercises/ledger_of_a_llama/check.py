"""Compare each line of a GPU's memory with the chapters' ledger, for several Llamas."""

from collections.abc import Callable
from typing import Any

from distributed.model_states import RECIPES, STAGES, per_rank
from distributed.planner.hardware import GPUS
from distributed.planner.job import RECIPE, Job, cluster_of
from distributed.planner.memory import ledger as of_the_book
from distributed.planner.shapes import PRESETS, Model, llama
from playground.exercises.check import Draw, Wrong
from playground.exercises.suspects import recognise

LINES = ("states", "gathered", "buckets", "layers", "logits")
HINTS = [
    "Each line is a number of elements times the bytes of one. For the states, split the paper's "
    "16 bytes into groups, and decide which groups each stage divides.",
    "For each operation in a layer, ask what its backward pass needs: two norms, attention, and "
    "the gated MLP. With fewer heads for keys and values, those two are narrower than d.",
    "With `checkpoint`, count the input of every layer, and add the whole layer that's being "
    "recomputed. Activations aren't divided by the ranks. Why not?",
]
LOOK = {"layers": "layers", "logits": "logits"}
CASES = [
    ("llama-2-7b", 4096, 1, 0, False),
    ("llama-2-7b", 4096, 8, 1, False),
    ("llama-3-8b", 8192, 8, 2, False),
    ("llama-2-70b", 4096, 64, 3, True),
    ("llama-2-7b", 4096, 1, 3, False),
]


def expected(
    model: Model, tokens: int, ranks: int, stage: int, checkpoint: bool
) -> dict[str, float]:
    kept = "full" if checkpoint else "none"
    job = Job(model, 1, tokens)
    found = of_the_book(job, STAGES[stage], cluster_of(GPUS["h100"], ranks), kept, "book")
    states = per_rank(model.parameters, ranks, stage, RECIPES[RECIPE])
    return {
        "states": sum(states.values()),
        "gathered": found.get("gathered", 0.0),
        "buckets": found.get("buckets", 0.0),
        "layers": found["activations"],
        "logits": found["logits"],
    }


def suspects(
    line: str, model: Model, tokens: int, ranks: int, stage: int, checkpoint: bool
) -> dict[str, float]:
    """What typical mistakes give on this line."""
    right = expected(model, tokens, ranks, stage, checkpoint)[line]
    known = {"that is in GB: return bytes": right / 1e9}
    psi, two = model.parameters, 2.0 * tokens
    every = model.kept("none")
    if line == "states":
        if stage == 1:
            known["gradients are divided only from ZeRO-2 on"] = right - 2 * psi + 2 * psi / ranks
        known["that is what DDP holds: nothing is divided"] = 16 * psi
        known["that is everything divided by the ranks"] = 16 * psi / ranks
        over = ranks if stage else 1
        known["the master copy is missing"] = right - 4 * psi / over
    if line == "gathered" and right:
        known["that counts one layer, but the next one is gathered ahead"] = right - 2 * model.block
        known["the root stays gathered, too"] = right - 2 * model.root
    if line == "buckets" and right:
        known["count the larger of two: a layer's gradients, or the root's"] = 2 * min(
            model.block, model.root
        )
    if line == "layers":
        times = 1 if checkpoint else model.layers
        wide = 2 * model.d * (1 - model.kv / model.heads)
        if ranks > 1:
            known["that is divided by the ranks, but each rank has these tokens to itself"] = (
                right / ranks
            )
        if wide:
            known["keys and values are taken to be as wide as queries"] = right + two * times * wide
        known["the MLP is counted without its gate, as 2 · ffn"] = (
            right - two * times * 2 * model.ffn
        )
        known["the 2 d elements per token outside the layers are missing"] = (
            right - two * 2 * model.d
        )
        if checkpoint:
            known["the layer that is being recomputed is missing"] = right - two * every
            known["that is what all layers keep without checkpointing"] = two * (
                model.layers * every + 2 * model.d
            )
    if line == "logits":
        known["that counts the bf16 logits, but the loss adds fp32 copies and gradients"] = (
            right / 6
        )
        known["that counts the fp32 logits, but not their logarithms and gradients"] = right / 3
    return known


def drawn(draw: Draw) -> tuple[Model, int, int, int, bool]:
    """A Llama of any shape, with fewer heads for keys than for queries."""
    kv, d = draw(1, 8), 128 * draw(8, 64)
    model = llama(draw(4, 80), d, kv * draw(2, 8), kv, 256 * draw(8, 96), 1000 * draw(8, 128))
    return model, 1024 * draw(1, 16), 2 ** draw(1, 9), draw(0, 3), bool(draw(0, 1))


def check(ledger: Callable[..., Any], *, draw: Draw) -> str:
    for name, *case in CASES:
        compare(ledger, name, PRESETS[name], *case)
    for _ in range(12):
        compare(ledger, "drawn", *drawn(draw))
    rows = ledger(PRESETS["llama-2-7b"], 4096, 8, 3, False)
    return (
        "Right: every line, for five Llamas and twelve random ones. On each of 8 GPUs with ZeRO-3, "
        f"a 7B Llama takes {sum(rows.values()) / 1e9:.1f} GB, and {rows['layers'] / 1e9:.1f} GB of "
        "that are its layers' activations."
    )


def compare(
    ledger: Callable[..., Any],
    name: str,
    model: Model,
    tokens: int,
    ranks: int,
    stage: int,
    checkpoint: bool,
) -> None:
    case = model, tokens, ranks, stage, checkpoint
    found, right = ledger(*case), expected(*case)
    if not isinstance(found, dict) or set(found) != set(LINES):
        keys = sorted(found) if isinstance(found, dict) else repr(found)
        raise Wrong(f"ledger(...) returns {keys}: return a dict with {', '.join(LINES)}")
    again = ", checkpointed" if checkpoint else ""
    for line in LINES:
        size = float(found[line])
        if abs(size - right[line]) <= 1e-9 * max(1.0, right[line]):
            continue
        words = recognise(size, suspects(line, *case), 1e-9)
        said = words or f"that is {(size - right[line]) / 1e9:+.4g} GB"
        raise Wrong(
            f"{name}, {model.parameters / 1e9:.3g} billion parameters, {STAGES[stage]} on {ranks} "
            f"ranks, {tokens:,} tokens{again}: {line} should be {right[line] / 1e9:.4g} GB, not "
            f"{size / 1e9:.4g}: {said}"
        )
