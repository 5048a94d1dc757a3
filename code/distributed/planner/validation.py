"""The planner against published training runs: the error of every row, and what fitted.

    absolute   tokens/s per GPU from the shape, the GPU and the network alone
    scaling    many hosts against one host of the same source: the node is calibrated, links are not
    memory     configurations published as out of memory, and the largest that ran

The constants of `speed` were fitted to llm-foundry's rows marked "calibrate", each on one host. For
image models, this mark means the host that `scaling` starts from. Its EAGER and STRAGGLERS were
fitted to rows marked "fitted", and the latter also to llm-foundry's rows of several hosts. No
constant depends on rows marked "test", "held out" or "never", and none may ever be fitted to the
last of these. Rows marked "long" have more than 8,192 tokens in a sequence, and are in no statistic
of the others.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from distributed.cost import Cluster, Link
from distributed.model_states import RECIPES, Recipe
from distributed.planner.hardware import GIB, GPUS, Gpu, gpu
from distributed.planner.job import RECIPE, Job, Option, cluster_of, memory_of, option
from distributed.planner.models import MODELS as KNOWN
from distributed.planner.published import HELD_OUT, LONG, NEVER, rows
from distributed.planner.shapes import PRESETS, Model, gpt, llama, of_size
from distributed.planner.speed import EAGER, achieved, curve_name, has_curve, is_fitted
from distributed.runtime.script import run_script

# Whose code ran the configurations that did or didn't fit; the others trained Megatron's models
STACK = {"Zhao et al. 2023": "pytorch", "Hugging Face": "pytorch", "LlamaFactory": "deepspeed"}
# Whose code ran at the published speeds; PyTorch's if the source isn't listed. InternLM and llm.c
# reduce bf16 gradients in the last backward pass and gather bf16 parameters, as Megatron does
RAN = {"InternLM": "megatron", "llm.c": "megatron"}
# Memory of GPUs that have more than ours of that name (bytes), as their sources say
LARGER = {"torchtitan, pull request 1690": 95.0 * GIB}
# A run that the planner says doesn't fit: TorchTitan's selective checkpointing keeps no product of
# an expert (its `activation_checkpoint.py` counts `aten.mm` only), the planner's every second one
TOO_LARGE = "PithTrain"
OTHERS = {
    "bf16 for everything, Adam": Recipe(2, 2, 0, 4),  # of KempnerForge
    # Megatron-LM in 2020: `FP16_Optimizer` copies fp16 gradients to its fp32 parameters (`.grad`).
    # §3.2 of the ZeRO paper counts such a copy, too: 6 GB for 1.5 billion parameters
    "fp16, and an fp32 copy of the gradients": Recipe(2, 2 + 4, 4, 8),
}
IS_COMPILED = {"compiled": True, "eager": False, "not said": None}
MODELS = KNOWN | {
    "gpt-2-350m": gpt(24, 1024, 16, positions=1024),
    "gpt-2-774m": gpt(36, 1280, 20, positions=1024),
    "mingpt-175b": gpt(96, 12288, 96, 50000),
    "gpt-5b": gpt(24, 4096, 32, 50304),  # paxml, contrib/gpu/scripts_gpu/configs.py
    "internlm-7b": llama(32, 4096, 32, 32, 11008, 103168),  # InternLM, configs/7B_sft.py
    # OLMo-core, nn/transformer/config.py: shapes of Llama, with the words of dolma2, padded
    "olmo-core-1b": llama(18, 2048, 16, 16, 5632, 100352),
    "olmo-core-7b": llama(32, 4096, 32, 32, 11008, 100352),
    "olmo-core-8b": llama(32, 4096, 32, 8, 14336, 100352),
    "olmo-core-13b": llama(40, 5120, 40, 40, 13824, 100352),
    # Layers and widths of the ZeRO paper's table 4 and of DeepSpeed's tutorials, words padded
    "megatron-1.5b": gpt(48, 1600, 16, 50304, 1024),
    "megatron-1.6b": gpt(34, 1920, 16, 50304, 1024),
    "megatron-4b": gpt(64, 2304, 16, 50304, 1024),
    "megatron-4.7b": gpt(40, 3072, 24, 50304, 2048),
    "megatron-10b": gpt(50, 4096, 32, 50304, 1024),
    "megatron-13b": gpt(62, 4096, 32, 50304, 1024),
    # Only a size is known: a different architecture (T5), or no published shape
    "t5-2.28b": of_size(2.28e9, 32128, 0),
    "t5-11b": of_size(11e9, 32128, 0),
    "gpt-1.4b": of_size(1.4e9, positions=1024),
    "gpt-6.2b": of_size(6.2e9, positions=1024),
    # README of the first; a quarter of the second in fp32 is the 12.94 GiB of its message
    "baichuan-13b": Model(40, 5120, 40, 40, 13696, 64000),
    "baichuan-2-13b": Model(40, 5120, 40, 40, 13696, 125696),
}


class Run(NamedTuple):
    """A published run of a transformer, and the planner's tokens/s per GPU for it."""

    row: dict[str, str]
    published: float
    predicted: float
    option: Option

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def source(self) -> str:
        return self.row["source"].split(",")[0]

    @property
    def gpus(self) -> int:
        return int(self.row["gpus"])

    @property
    def one_host(self) -> bool:
        return self.gpus <= int(self.row["per_host"])


def job_of(row: dict[str, str]) -> Job:
    return Job(
        MODELS[row["model"]],
        int(row["rows"]),
        int(row["context"]),
        int(row["accumulate"]),
        row["checkpoint"],
        (RECIPES | OTHERS)[row["recipe"] or RECIPE],
        row["loss"] == "fused",
        way_of(row) == "compiled",
    )


def predict(row: dict[str, str], memory: float | None = None) -> Run:
    """A row's predicted throughput; `memory` is bytes per GPU (default: what the GPU has)."""
    one, job = gpu(row["gpu"]), job_of(row)
    room = memory or LARGER.get(row["source"], one.memory)
    stack = RAN.get(row["source"].split(",")[0], "pytorch")
    n, per_host = int(row["gpus"]), int(row["per_host"])
    speed = achieved(one, job.model, job.tokens, IS_COMPILED[way_of(row)])
    cluster = cluster_of(one, n, per_host, float(row["network"]) * 1e9, speed)
    found = option(job, row["strategy"], cluster, room, stack)
    rate = job.accumulate * job.tokens / found.step.total
    if row["unit"] == "TFLOP/s/GPU":  # this unit counts recomputed forward passes
        rate *= job.model.flops(job.context) * (4 / 3 if job.checkpoint == "full" else 1) / 1e12
    return Run(row, float(row["value"]), rate, found)


def runs(unit: str = "tokens/s/GPU") -> list[Run]:
    """All published runs of transformers in this unit, but for those with long sequences."""
    return [predict(row) for row in rows(unit) if row["use"] != LONG]


def scaling(all_runs: Iterable[Run]) -> list[tuple[Run, Run, float]]:
    """Runs on many hosts, each with a run of the same kind on few, and the error of their ratio.

    The second run has the fewest GPUs available, and the nearest micro-batch.
    """
    known, found = list(all_runs), []
    alike = ("source", "gpu", "model", "context", "checkpoint", "note")
    for run in known:
        others = [
            each
            for each in known
            if each.gpus < run.gpus and all(each.row[key] == run.row[key] for key in alike)
        ]
        if run.one_host or not others:
            continue
        few = min(
            others, key=lambda each: (each.gpus, abs(int(each.row["rows"]) - int(run.row["rows"])))
        )
        ratio = run.predicted / few.predicted / (run.published / few.published) - 1
        found.append((run, few, ratio))
    return found


def implied_bandwidth(run: Run) -> float:
    """Bytes/s per host, if a published step consisted only of its messages.

    ZeRO-3 gathers parameters twice and reduces gradients once: 3 · 2Ψ bytes into every host.
    """
    row, model = run.row, PRESETS[run.row["model"]]
    job = job_of(row)
    flops = model.flops(job.context) * job.tokens * (4 / 3 if job.checkpoint == "full" else 1)
    return 3 * 2 * model.parameters / (flops / (run.published * 1e12))


class Verdict(NamedTuple):
    """A published configuration, the bytes per GPU that the planner counts, and the GPU's bytes."""

    row: dict[str, str]
    needs: float
    memory: float

    @property
    def ran(self) -> bool:
        return self.row["unit"] == "ran"

    @property
    def right(self) -> bool:
        return self.ran == (self.needs <= self.memory)


def judge(row: dict[str, str], recipe: Recipe | None = None) -> Verdict:
    """Whether a row fits; its value is its GPU's memory. `recipe` defaults to the row's."""
    job = job_of(row)
    job = job._replace(recipe=recipe or job.recipe)
    link = Link(0.0, 1.0)  # memory does not depend on it
    cluster = Cluster(int(row["gpus"]), int(row["per_host"]), link, link, 1.0)
    stack = STACK.get(row["source"].split(",")[0], "megatron")
    needs = sum(memory_of(job, row["strategy"], cluster, row["checkpoint"], stack).values())
    return Verdict(row, needs, float(row["value"]) * GIB)


def verdicts() -> list[Verdict]:
    """Configurations published as out of memory, and those from the same sources that ran."""
    return [judge(row) for row in rows() if row["unit"] in ("out of memory", "ran")]


class Errors(NamedTuple):
    """Errors over a number of rows: the absolute median, 90th percentile, worst, and the bias."""

    of_rows: int
    median: float
    nine_in_ten: float
    worst: float
    bias: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> "Errors":
        signed = list(errors)
        sizes = sorted(abs(error) for error in signed)
        tenth = sizes[min(len(sizes) - 1, round(0.9 * len(sizes)))]
        return cls(
            len(sizes), statistics.median(sizes), tenth, sizes[-1], statistics.median(signed)
        )

    def in_words(self) -> str:
        """How far planned speeds are off, for people."""
        if self.of_rows == 1:
            return f"planned {in_percent(self.bias)}"
        half = f"half of them were planned within {100 * self.median:.1f}%"
        return f"{half}, median error: {in_percent(self.bias)}"

    def __str__(self) -> str:
        shares = f"{self.median:.1%}, nine in ten {self.nine_in_ten:.1%}, worst {self.worst:.1%}"
        return f"{self.of_rows:3} rows: median {shares}, bias {self.bias:+.1%}"


def held_out(runs: Iterable[Run]) -> list[Run]:
    """Runs whose speed no constant depends on."""
    return [run for run in runs if run.row["use"] in HELD_OUT]


def ranks_of(run: Run) -> str:
    """Number of GPUs, in three sizes."""
    if run.one_host:
        return "one host"
    return "9 to 255 GPUs" if run.gpus < 256 else "256 GPUs and more"


# What a run may be grouped by: a name, and what says to which group a run belongs
GROUPS: dict[str, Callable[[Run], str]] = {
    "strategy": lambda run: run.row["strategy"],
    "GPU": lambda run: run.row["gpu"],
    "blocks": lambda run: way_of(run.row),
    "GPUs": ranks_of,
    "fitting": lambda run: "never" if run.row["use"] == NEVER else "not yet",
}


def grouped(runs: Iterable[Run]) -> list[tuple[str, str, Errors]]:
    """Errors of each group of runs, by all of GROUPS."""
    every, found = list(runs), []
    for kind, group_of in GROUPS.items():
        for name in sorted({group_of(run) for run in every}):
            errors = Errors.of(run.error for run in every if group_of(run) == name)
            found.append((kind, name, errors))
    return found


def gains_of_compiling() -> list[float]:
    """Speedups of compiled blocks, from pairs of rows that differ in nothing else."""
    every = [row for row in rows() if "torch.compile" in row["note"]]
    apart = {key: "" for key in ("value", "memory")}
    found = []
    for row in every:
        eager = row | apart | {"note": row["note"].replace("torch.compile", "eager")}
        found += [
            float(row["value"]) / float(each["value"]) - 1
            for each in rows(row["unit"])
            if each | apart == eager
        ]
    return found


def way_of(row: dict[str, str]) -> str:
    """Whether a row's source says that it ran compiled or eager: a key of IS_COMPILED."""
    if "torch.compile" in row["note"]:
        return "compiled"
    return "eager" if "eager" in row["note"] else "not said"


def of_the_curve(compiled: bool, one: Gpu) -> list[str]:
    """How eager and compiled blocks differ in a plan for this generation of GPUs, and by how much
    held-out runs like the user's were planned too fast or too slow."""
    curve = curve_name(one)
    if EAGER[curve] == 1:
        said = [f"on {curve.upper()}s, eager and compiled blocks are planned equally fast"]
    else:
        share = f"{100 * EAGER[curve]:.0f}% of the speed of compiled ones"
        said = [f"on {curve.upper()}s, eager blocks are planned with {share}"]
    ours = "compiled" if compiled else "eager"
    apart = [
        row
        for row in rows("tokens/s/GPU")
        if row["use"] in HELD_OUT
        and way_of(row) == ours
        and has_curve(gpu(row["gpu"]))
        and curve_name(gpu(row["gpu"])) == curve
    ]
    if not apart:
        return said
    of_ours = Errors.of(predict(row).error for row in apart)
    models, sources = ({row[key] for row in apart} for key in ("model", "source"))
    count = f"{len(apart)} runs, {ours} like yours"
    ran_on = dict.fromkeys(row["gpu"].split("-")[0] for row in apart)
    is_other = one not in [gpu(name) for name in ran_on] and not is_fitted(one)
    count += f", {'but ' * is_other}on {' and '.join(f'{name.upper()}s' for name in ran_on)}"
    count += f" ({len(models)} model{'s' * (len(models) > 1)}"
    count += f", {len(sources)} source{'s' * (len(sources) > 1)})"
    return [*said, f"{count}: median error: {in_percent(of_ours.bias)}"]


def in_percent(bias: float) -> str:
    return f"{100 * abs(bias):.1f}% too {'fast' if bias > 0 else 'slow'}"


def spread(errors: Iterable[float]) -> str:
    """From the smallest error to the largest: "took 5% less to 12% more time than planned"."""
    ends = [round(100 * each) for each in errors]
    low, high = min(ends), max(ends)
    words = [f"{abs(end)}% {'less' if end < 0 else 'more'}" for end in (low, high)]
    if low * high > 0:
        words[0] = f"{abs(low)}"
    return f"took {words[-1] if low == high else ' to '.join(words)} time than planned"


def evidence(
    names: Sequence[str], compiled: bool = False, is_curve: bool = True, one: Gpu = GPUS["h100"]
) -> list[str]:
    """How far planned times are off, by published speeds that nothing was fitted to.

    Covers these strategies, eager or compiled blocks, and the speedup from compiling on GPUs like
    `one`. `is_curve` is false if the speed was measured instead of taken from the curve.
    """
    apart = [row for row in rows("tokens/s/GPU") if row["use"] in HELD_OUT]
    said, without = [], []
    if not names:  # no time was planned
        return []
    for name in names:
        errors = [predict(row).error for row in apart if row["strategy"] == name]
        if errors:
            of = Errors.of(errors)
            runs_of = f"{of.of_rows} run{'s' * (of.of_rows > 1)} of {name}"
            said.append(f"{runs_of}, on GPUs of any kind: {of.in_words()}")
        else:
            without.append(name)
    if without:
        said.append(f"no run of {', '.join(without)}: nothing to compare the planned time with")
    if is_curve:
        said += of_the_curve(compiled, one)
    if gains := gains_of_compiling():
        ours = "yours are" if compiled else "yours aren't"
        gain = f"{100 * statistics.median(gains):.1f}% faster in {len(gains)} pairs"
        faster = 1 / EAGER[curve_name(one)] - 1
        if not is_curve or not faster:
            planned = "--compile changes the plan's memory, not its time"
        else:
            planned = f"with --compile, the planner assumes {100 * faster:.1f}% more speed"
        said.append(f"compiled blocks ({ours}): {gain} of runs; {planned}")
    return said


def main() -> None:
    """Print errors by source, by group and of scaling, and how many verdicts on memory agree."""
    every = runs()
    apart = held_out(every)
    for source in dict.fromkeys(run.source for run in every):
        print(f"{source:14}", Errors.of(run.error for run in every if run.source == source))
    print(f"{'all':14}", Errors.of(run.error for run in every))
    print(f"{'held out':14}", Errors.of(run.error for run in apart))
    for kind, name, errors in grouped(apart):
        print(f"  {kind:9}{name:18}", errors)
    print(f"{'scaling':14}", Errors.of(error for _, _, error in scaling(every)))
    fits = sum(run.option.fits for run in every)
    print(f"{fits} of {len(every)} runs that are published fit by the planner, too")
    assert all(run.option.fits for run in every if run.source != TOO_LARGE)
    judged = verdicts()
    for ran, name in ((True, "that ran fit"), (False, "as out of memory do not")):
        mine = [verdict for verdict in judged if verdict.ran == ran]
        print(f"{sum(verdict.right for verdict in mine)} of {len(mine)} published {name}")
    assert all(verdict.right for verdict in judged if verdict.ran)


if __name__ == "__main__":
    run_script(main)
