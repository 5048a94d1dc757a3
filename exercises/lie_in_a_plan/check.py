"""A plan with one false number: which one contradicts the others?"""

from collections.abc import Callable
from typing import Any, NamedTuple

from distributed.planner.hardware import gpu
from distributed.planner.shapes import PRESETS
from playground.exercises.check import Draw, Wrong

HINTS = [
    "Three claims follow from the facts alone: the states take 16 bytes per parameter, divided by "
    "the GPUs, the activations take 2 bytes per element, and held_gb is the sum.",
    "step_s, tokens_per_s, days, and mfu each give the duration of a step. Convert all four into "
    "seconds.",
    "Three of the four agree. If you compare all of them with the first one, and that one is "
    "false, you'll reject the three true ones.",
]
LIES = {  # claim → why it is false, and by which factor
    "states_gb": ("it leaves out the master copy, with 12 bytes per parameter", 12 / 16),
    "activations_gb": ("it counts fp32, with 4 bytes per element", 2.0),
    "held_gb": ("the sum leaves out a part of the other two lines", 0.7),
    "step_s": ("it is the computing time, without the time that ranks wait", 0.8),
    "tokens_per_s": ("it is for a cluster with an eighth more GPUs", 9 / 8),
    "days": ("it includes a tenth for failures without saying so", 1.1),
    "mfu": ("it counts recomputation, so it is HFU, 8/6 of MFU", 8 / 6),
}
FACTS = (
    "parameters", "gpus", "tokens_each", "tokens", "flops_each", "peak", "layers", "d", "kept",
)  # fmt: skip


class Case(NamedTuple):
    name: str
    facts: dict[str, float]
    claims: dict[str, float]
    wrong: str


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def case_of(model: str, gpus: int, context: int, tokens: float, mfu: float, wrong: str) -> Case:
    """A plan whose claims are true, except for one."""
    shape, one = PRESETS[model], gpu("h100")
    values = (
        shape.parameters, gpus, context, tokens, shape.flops(context), one.peak, shape.layers,
        shape.d, shape.kept("none"),
    )  # fmt: skip
    facts = dict(zip(FACTS, values, strict=True))
    step = facts["flops_each"] * context / (mfu * one.peak)
    rate = gpus * context / step
    states = 16 * shape.parameters / gpus / 1e9
    left = 2 * facts["kept"] * shape.layers * context / 1e9
    claims = {
        "states_gb": states,
        "activations_gb": left,
        "held_gb": states + left,
        "step_s": step,
        "tokens_per_s": rate,
        "days": tokens / rate / 86400,
        "mfu": mfu,
    }
    claims[wrong] *= LIES[wrong][1]
    name = f"{model} on {gpus} GPUs"
    return Case(name, facts, {key: three_digits(each) for key, each in claims.items()}, wrong)


CASES = [
    case_of("llama-2-7b", 8, 4096, 1e11, 0.45, "mfu"),
    case_of("llama-3-8b", 64, 8192, 1e12, 0.38, "states_gb"),
    case_of("llama-2-70b", 64, 4096, 2e12, 0.40, "tokens_per_s"),
]


def drawn(draw: Draw, wrong: str) -> Case:
    models = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-2-70b")
    model, gpus = models[draw(0, 3)], 8 * draw(1, 32)
    context, tokens = 1024 * draw(2, 8), 1e11 * draw(1, 40)
    return case_of(model, gpus, context, tokens, draw(25, 55) / 100, wrong)


def check(lie: Callable[..., Any], *, draw: Draw) -> str:
    for case in [*CASES, *(drawn(draw, wrong) for wrong in LIES)]:
        found = lie(dict(case.facts), dict(case.claims))
        if found != case.wrong:
            raise Wrong(why(case, found))
    return "Right: in these three plans and in seven random ones, one for each false claim."


def why(case: Case, found: Any) -> str:
    told = ", ".join(f"{name} {value:g}" for name, value in case.claims.items())
    said = f"{case.name}: {told}. "
    if found not in case.claims:
        return f"{said}{found!r} isn't a claim: return one of {', '.join(case.claims)}"
    about_time = ("step_s", "tokens_per_s", "days", "mfu")
    truth = f"The false claim is {case.wrong}: {LIES[case.wrong][0]}"
    if case.wrong in about_time and found in about_time:
        return f"{said}You chose {found}, but two other claims agree with it. {truth}"
    if found == "held_gb":
        return f"{said}You chose held_gb, but it is the sum of what follows from the facts. {truth}"
    return f"{said}You chose {found}, but it follows from the facts. {truth}"
