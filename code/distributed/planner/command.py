"""Plan a training run: which strategies fit, how long a step takes, which to take and why.

    python -m distributed.planner --model qwen3-8b --gpu h100 --nodes 2 --context 8192 --tokens 1T

An answer begins with what it assumes, as text or JSON. The rule by which it recommends is that of
`strategy`.
"""

import math
import re
import textwrap
from argparse import SUPPRESS, Action, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from functools import partial
from typing import Any

from distributed.cost import Cluster
from distributed.model_states import RECIPES, Recipe
from distributed.planner.answer import (
    WIDE,
    Answer,
    Asked,
    answered,
    as_json,
    as_text,
    fill,
    in_full,
)
from distributed.planner.assumed import Assumed
from distributed.planner.batch import Batch
from distributed.planner.config_json import Read
from distributed.planner.gpu_file import EXAMPLE, read_gpu
from distributed.planner.hardware import GPUS, Gpu, gpu
from distributed.planner.job import REDUCED_IN_FP32, SHORT, Job, cluster_of
from distributed.planner.limits import (
    check_speed,
    number,
    rate,
    share,
    size,
    whole_or_split,
    within,
)
from distributed.planner.links import KINDS, inside_of
from distributed.planner.models import MODELS, SHAPE, model_named
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, Model, llama, of_size
from distributed.planner.speed import achieved, peak_of, products_in
from distributed.planner.strategy import Plan
from distributed.runtime.script import Parser

USAGE = "%(prog)s --model MODEL --gpu GPU --gpus GPUS [other options]"
DESCRIPTION = """\
Plan a training run: which strategies fit, how long a step takes, which to take.

examples:
  all of Qwen3-8B on a host with eight 4090s (add --lora 16 to train only adapters):
    --model qwen3-8b --gpu 4090 --gpus 8 --per-host 8 --context 4096 --batch 262144
  your model from Hugging Face on 64 H100s, 1T tokens:
    --model FOLDER/config.json --nodes 8 --context 8192 --batch 4M --tokens 1T
  your own network, with the speed that you measured:
    --module package.module:function --gpu a100 --gpus 8 --speed 180T

If nothing fits, the answer says what would.
A number that can't be trusted has a caution."""
SHORT_WORDS = """\
in an answer:
  DDP         every GPU keeps everything; ZeRO-1 shards the optimizer's states
  ZeRO-2      shards gradients, too; ZeRO-3 also parameters; HSDP is ZeRO-3 in each host
  fits        paper: it fits, but leaves less than a tenth of the memory free
  checkpoint  what to recompute; selective: every other product of a layer; full: all
  batch       micro-batches of a GPU in a step × sequences in each
  step        time of an optimizer step
  waits       share of a step in which a GPU waits for messages
"""
WORDS = f"""\
{SHORT_WORDS}
in an answer with --explain:
  gathered    parameters of other ranks, there for as long as a layer needs them
  buckets     gradients on their way to other ranks
  casts       copies of the weights in 16 bits
  allowance   for CUDA, NCCL and the allocator
"""
PRESETS = fill(", ".join(MODELS), initial_indent="  ", subsequent_indent="  ")
EPILOG = f"presets for --model:\n{PRESETS}\n\n{WORDS}\n"
EPILOG += "a file for --gpu-file:\n"
EPILOG += textwrap.indent(EXAMPLE, "  ")
# What --help lists; --help-all lists the rest, too
MOST_USED = {
    *("--model", "--lora", "--gpu", "--gpus", "--nodes", "--per-host"),
    *("--context", "--batch", "--tokens", "--explain", "--help", "--help-all"),
}
SHAPE_MORE = (
    "; after them, if needed, head_dim=128, the width of a head, and tied, if the last layer is the"
    " embedding"
)


def model_shaped(text: str) -> Model:
    """A network like Llama's by its numbers: "32,4096,32,8,14336,128256" is Llama 3 8B.

    After them may come "head_dim=128", the width of a head, and "tied" if the last layer is the
    embedding. Raises ValueError for anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers, more = parts[: len(SHAPE.split(","))], parts[len(SHAPE.split(",")) :]
    whole = r"[1-9]\d{0,8}"
    if len(numbers) != len(SHAPE.split(",")) or not all(re.fullmatch(whole, p) for p in numbers):
        raise ValueError(f"shape={text!r}: give {SHAPE}, six whole numbers above 0{SHAPE_MORE}")
    tied, head_dim = False, 0
    for word in more:
        if word == "tied":
            tied = True
        elif found := re.fullmatch(rf"head_dim=({whole})", word):
            head_dim = int(found[1])
        else:
            raise ValueError(f"shape={text!r}: {word!r} is not known{SHAPE_MORE}")
    layers, width, heads, kv, ffn, vocab_size = map(int, numbers)
    if layers > 10_000:
        raise ValueError(f"layers={layers}: give 1 to 10,000")
    if not head_dim and width % heads:
        way = "give the width of a head, such as head_dim=128"
        raise ValueError(f"heads={heads}: a width of {width:,} isn't a multiple of it; {way}")
    if heads % kv:
        raise ValueError(f"kv={kv}: {heads} heads aren't a multiple of it")
    model = llama(layers, width, heads, kv, ffn, vocab_size)
    return model._replace(tied=tied, head_dim=0 if heads * head_dim == width else head_dim)


def counted(said: str) -> float:
    """A number of the command line, such as 8B. Raises ArgumentTypeError."""
    try:
        return number(said)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def whole_tokens(said: str) -> int:
    """A number of tokens. Raises ArgumentTypeError for 4k, by which some mean 4,000."""
    try:
        return int(said)
    except ValueError:
        if found := re.fullmatch(r"(\d+)[kK]", said):
            thousands = int(found[1])
            both = f"{1000 * thousands:,} or {1024 * thousands:,}"
            raise ArgumentTypeError(f"{said!r} may mean {both}: write the number") from None
        raise ArgumentTypeError(f"invalid int value: {said!r}") from None


class HelpAll(Action):
    """Prints the help with all options and ends the program."""

    def __call__(self, parser: Any, *_: Any) -> None:
        arguments(with_all=True).print_help()
        parser.exit()


def arguments(with_all: bool = False) -> Parser:
    """The command line, whose help shows all options or those that are used most."""
    parser = Parser(
        prog="python -m distributed.planner",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG if with_all else SHORT_WORDS,
        formatter_class=partial(RawDescriptionHelpFormatter, max_help_position=22, width=WIDE),
    )
    parser._negative_number_matcher = re.compile(r"-[\d.]+(e[-+]?\d+)?$")  # -2e12 is one, too
    groups = {
        "what you train": add_model,
        "what you have": add_gpus,
        "a step": add_step,
        "the answer": add_answer,
    }
    for title, add_options in groups.items():
        add_options(partial(add_option, parser.add_argument_group(title), with_all))
    return parser


def add_option(group: Any, with_all: bool, *names: str, help: str, **options: Any) -> None:
    """An option of a group, without a line in the help unless it is used most."""
    shown = help if with_all or MOST_USED & {*names} else SUPPRESS
    group.add_argument(*names, help=shown, **options)


def add_model(add: Callable) -> None:
    add("--model", help="a preset, like llama-3.1-8b, or the path of a Hugging Face config.json")
    add("--params", type=counted, help="number of parameters of a GPT, like 8B (default: 7B)")
    add("--shape", help=f"a network like Llama's by its numbers: {SHAPE}{SHAPE_MORE}")
    add("--module", help="package.module:function that makes your network, without arguments")
    add(
        "--lora",
        type=int,
        metavar="RANK",
        help="rank of LoRA's adapters beside every matrix of the layers, with all else frozen "
        "(default: all parameters are trained)",
    )
    add(
        "--trainable",
        metavar="SHARE",
        help="share of the parameters that are trained, like 0.5%%, the same in every layer "
        "(default: 100%%)",
    )
    add(
        "--recipe",
        default=REDUCED_IN_FP32,
        help="dtypes and optimizer; "
        + "; ".join(f"{short}: {name}" for short, name in SHORT.items())
        + " (default: bf16-fp32-gradients)",
    )
    add(
        "--tf32",
        action="store_true",
        help='products of fp32 recipes in TF32, as by torch.set_float32_matmul_precision("high") '
        "(default: in fp32)",
    )


def add_gpus(add: Callable) -> None:
    add("--gpu", help=f"kind of GPU: {', '.join(GPUS)} (default: h100)")
    add("--gpu-file", metavar="FILE", help="any other GPU, in lines like those below")
    add("--gpus", type=int, help="total number of GPUs (default: 8)")
    add("--nodes", type=int, help="number of full hosts, instead of --gpus")
    add("--per-host", type=int, help="number of GPUs in a host (default: the usual for the GPU)")
    add(
        "--gpu-memory",
        metavar="MEMORY",
        help="of a GPU, like 80GB (10⁹) or 80GiB (2³⁰) (default: the GPU's)",
    )
    add("--reserve", default="10%", help="share of the memory to leave free (default: 10%%)")
    add(
        "--interconnect",
        metavar="RATE",
        help=f"links inside a host: {', '.join(KINDS)}, by data sheet; or the rate that you "
        "measured on one GPU, per second and in one direction, like 20GB (default: the GPU's)",
    )
    add(
        "--network",
        metavar="RATE",
        help="bandwidth of all ports of a host together, per second and in one direction, like "
        "400GB or 3200Gbit (default: the usual for the GPU)",
    )
    add("--speed", type=counted, help="measured FLOP/s of a GPU, like 400T (default: from a curve)")


def add_step(add: Callable) -> None:
    add(
        "--context",
        type=whole_tokens,
        default=2048,
        help="sequence length in tokens (default: 2048)",
    )
    add(
        "--batch",
        type=counted,
        help="tokens per step, across all GPUs, like 4M; sets the micro-batches",
    )
    add(
        "--sequences",
        "--rows",
        dest="rows",
        metavar="SEQUENCES",
        type=counted,
        help="number of sequences in a micro-batch of a GPU, or 1/n if n GPUs share one "
        "(default: 1; --batch chooses)",
    )
    add("--accumulate", type=int, default=1, help="micro-batches of a step (default: 1)")
    add(
        "--checkpoint",
        default="auto",
        help=f"activations to recompute: {', '.join(CHECKPOINTS)} (default: auto, the least)",
    )
    add(
        "--fused-loss",
        action="store_true",
        help="loss computed in one kernel, which takes less memory",
    )
    add("--compile", action="store_true", help="blocks compiled by torch.compile")
    add("--stack", default="pytorch", help=f"library: {', '.join(STACKS)} (default: pytorch)")


def add_answer(add: Callable) -> None:
    add(
        "--tokens",
        type=counted,
        help="tokens of the training, like 15T; adds its days",
    )
    add("--explain", action="store_true", help="add all assumptions, reasons, and evidence")
    add("--help-all", action=HelpAll, nargs=0, help="show all options, presets, and words")
    add("--json", action="store_true", help="answer as JSON, for programs")
    add(
        "--measure",
        action="store_true",
        help="only time a layer of the model on this machine's GPU or CPU, and print the --speed "
        "to plan with; not for mixtures of experts, latent attention, or split sequences",
    )
    add(
        "--execute",
        action="store_true",
        help="also run each strategy that fits in PyTorch, as rank 0 of all ranks, without GPUs "
        "(takes some seconds), and print its memory beside the plan's; not for adapters, frozen "
        "parameters, fused losses, compiled blocks, mixtures of experts, latent attention, split "
        "sequences, recipes in bf16 alone, or other stacks than pytorch",
    )


def read(given: Any, found: Read | None = None) -> tuple[Job, Cluster, float]:
    """The job, the cluster, and bytes of a GPU. Raises ValueError, naming the argument."""
    assumed = understood(given, found).assumed
    return assumed.job, assumed.cluster, assumed.memory


def understood(given: Any, found: Read | None = None) -> Asked:
    """What the command line asks for. Raises ValueError, naming the argument.

    `found` is the model if it was read already; by default, the command line says which it is.
    """
    one = gpu_asked(given)
    recipe = recipe_of(given)
    ways = ("model", "params", "shape", "module")
    named = [name for name in ways if getattr(given, name) is not None]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} are given: give only one, which sets the model")
    found = found or model_of(given)
    model = found.model
    per_host = one.per_host if given.per_host is None else given.per_host
    within("per_host", per_host)
    if given.nodes is not None and given.gpus is not None:
        raise ValueError("nodes and gpus are given: give only one, which sets the number of GPUs")
    if given.nodes is not None and not 1 <= given.nodes <= 1e7:
        raise ValueError(f"nodes={given.nodes:g}: give 1 to 1e+07")
    gpus = per_host * given.nodes if given.nodes else 8 if given.gpus is None else given.gpus
    rows = 1.0 if given.rows is None else given.rows
    for name, value in (("gpus", gpus), ("sequences", rows), ("context", given.context)):
        within(name, value)
    rows = whole_or_split(rows, gpus)
    if given.tokens is not None:
        within("tokens", given.tokens)
    if given.lora is not None and given.trainable is not None:
        raise ValueError("lora and trainable are given: give only one, which sets what is trained")
    if given.lora is not None:
        within("lora", given.lora)
    trainable = 1.0 if given.trainable is None else share("trainable", given.trainable)
    within("trainable", trainable)
    job = Job(
        model, rows, given.context, given.accumulate, given.checkpoint,
        recipe, given.fused_loss, given.compile,
        lora=given.lora or 0, trainable=trainable,
    )  # fmt: skip
    speed = given.speed
    check_tf32(given, one)
    if speed is None:  # to measure it, the GPU's peak isn't needed
        speed = 0.0
        if not given.measure:
            speed = achieved(one, model, job.tokens, job.compiled, known_peak(given, one))
    else:
        peak = peak_of(one, recipe, given.tf32) or math.inf
        check_speed(speed, peak, f"the {one.name} in {products_in(one, recipe, given.tf32)}")
    network = None if given.network is None else rate("network", given.network)
    memory = one.memory if given.gpu_memory is None else size("gpu_memory", given.gpu_memory)
    cluster = cluster_of(one, gpus, per_host, network, speed)
    inside = inside_of(given.interconnect, one)
    cluster = cluster._replace(inside=inside.link)
    name = given.model or given.module or ("" if given.shape else "a GPT of this size")
    assumed = Assumed(job, cluster, memory, one, name, given.stack, given.speed, inside, given.tf32)
    return Asked(assumed, found.notes)


def check_tf32(given: Any, one: Gpu) -> None:
    """Raise ValueError if TF32 is asked for and the recipe or the GPU can't use it."""
    if given.tf32 and recipe_of(given).parameters != 4:
        way = "choose --recipe fp32, or leave it out"
        raise ValueError(f"tf32: rounds products of fp32 numbers; {way}")
    if given.tf32 and given.gpu_file is None and not one.tf32:
        raise ValueError(f"tf32: the {one.name} has none; leave it out")


def known_peak(given: Any, one: Gpu) -> float:
    """The GPU's FLOP/s in the recipe's number format. Raises ValueError if it isn't known."""
    if peak := peak_of(one, recipe_of(given), given.tf32):
        return peak
    field, name = ("tflops_tf32", "TF32") if given.tf32 else ("tflops_fp32", "fp32")
    raise ValueError(
        f"recipe: add {field}, its peak in {name}, to the file of the {one.name}, or give --speed"
    )


def recipe_of(given: Any) -> Recipe:
    """The recipe by its short name or its name in full. Raises ValueError."""
    recipe = SHORT.get(given.recipe, given.recipe)
    if recipe not in RECIPES:
        raise ValueError(f"recipe={given.recipe!r}: choose one of {', '.join(SHORT)}")
    return RECIPES[recipe]


def gpu_asked(given: Any) -> Gpu:
    """The GPU that is named, or described in a file."""
    if given.gpu_file is None:
        return gpu("h100" if given.gpu is None else given.gpu)
    if given.gpu is not None:
        raise ValueError("gpu and gpu_file are given: give only one, which sets the GPU")
    return read_gpu(given.gpu_file)


def model_of(given: Any) -> Read:
    """The one model that is asked for: a file or a preset, a shape, a module, or a size."""
    if given.model is not None:
        return model_named(given.model)
    if given.shape is not None:
        return Read(model_shaped(given.shape))
    if given.module is not None:
        from recipes.own import own

        found = own(given.module)
        return Read(found.model, found.notes)
    parameters = 7e9 if given.params is None else given.params
    within("params", parameters)
    return Read(of_size(parameters))


def batch_of(given: Any, model: Model) -> Batch | None:
    """What `--batch` asks for. Raises ValueError if `--accumulate` says something, too."""
    if given.batch is None:
        return None
    within("batch", given.batch)
    if given.accumulate != 1:
        raise ValueError(
            f"accumulate={given.accumulate}: batch sets it, too; give only one of them"
        )
    speed = None
    if given.speed is None:
        one = gpu_asked(given)
        speed = partial(achieved, one, model, compiled=given.compile, peak=known_peak(given, one))
    return Batch(given.batch, given.rows, speed)


def answer_to(given: Any) -> Answer:
    """The answer to a command line. Raises ValueError, naming the argument."""
    asked = understood(given)
    batch = batch_of(given, asked.assumed.job.model)
    return answered(asked, batch, share("reserve", given.reserve))


def planned(words: str) -> Plan:
    """The plan for a command line of these words. Raises ValueError, naming the argument."""
    return answer_to(arguments().parse_args(words.split())).plan


def main(argv: list[str] | None = None) -> None:
    """The command line: see --help."""
    parser = arguments()
    given = parser.parse_args(argv)
    try:
        if given.measure:
            from recipes.timed import Timed

            timed = Timed(understood(given).assumed.job, given.tf32)
            print(f"{timed.name}:\n--speed {timed.speed():.3g}")
            return
        answer = answer_to(given)
        found, assumed = answer.plan, answer.assumed
        executed = None
        if given.execute:
            from recipes import beside

            executed = beside.beside(found.options, *assumed[:2], given.stack, given.module)
    except (ValueError, OverflowError, ImportError) as error:
        parser.error(str(error))
    tokens = given.tokens or 0.0
    if given.json:
        print(as_json(answer, tokens, executed and beside.as_dict(executed)))
        return
    print(in_full(answer, tokens) if given.explain else as_text(answer, tokens))
    if executed is not None:
        print(f"\n{beside.as_table(executed, assumed.cluster.ranks)}")


if __name__ == "__main__":
    main(None if "__file__" in globals() else [])  # in a cell the command line is the kernel's
