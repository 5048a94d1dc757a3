"""Choices of the planner page: as form fields, as an address, and as command-line options.

An address contains only choices that differ from the defaults: `model=llama-3-8b&nodes=2`. Every
choice is an option of `python -m distributed.planner`, so a single command line gives the same
plan.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from distributed.model_states import RECIPES
from distributed.planner.answer import Asked
from distributed.planner.assumed import WHOSE
from distributed.planner.batch import Batch
from distributed.planner.command import arguments, batch_of, understood
from distributed.planner.config_json import Read, fields_of, needed, read_fields
from distributed.planner.hardware import GPUS
from distributed.planner.job import REDUCED_IN_FP32
from distributed.planner.limits import number, rate, size
from distributed.planner.models import MODELS as KNOWN
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS

OWN = "own"  # the model whose shape is typed into fields
FILE = "file"  # the model that a `config.json` describes, whose text is the field "config"
NAME = "config.json"  # of that file, in the command line


class Field(NamedTuple):
    """One field. `kind` is "choice", "file", "whole", "number", "size", "rate" or "yes"."""

    name: str
    label: str
    default: str
    kind: str
    choices: Mapping[str, str] = {}  # value → what the reader sees
    slider: tuple[int, int] = (0, 0)  # from 2 to the one power to 2 to the other
    hint: str = ""
    most: float = math.inf


def slug(text: str) -> str:
    """A text for an address: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def millions(parameters: float) -> str:
    return f"{parameters / 1e9:,.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


MODELS = {
    name: f"{name} · {millions(model.parameters)}"
    for name, model in sorted(KNOWN.items(), key=lambda item: item[1].parameters)
}
RECIPE_OF = {slug(name): name for name in RECIPES}
assert WHOSE.keys() == STACKS.keys()

SHAPE = (  # in the order in which --shape has them; the last two may be left out
    Field("layers", "layers", "32", "whole", most=10_000),
    Field("width", "width", "4096", "whole", most=10**8),
    Field("heads", "heads", "32", "whole", most=10**6),
    Field("kv", "KV heads", "8", "whole", most=10**6),
    Field("ffn", "MLP width", "14336", "whole", most=10**8),
    Field("vocab", "vocabulary", "128256", "whole", most=10**8),
    Field("head_dim", "head width", "", "whole", hint="width / heads", most=10**8),
    Field("tied", "tied embeddings", "", "yes"),
)
FIRST = (
    Field(
        "model", "model", "llama-3-70b", "choice",
        MODELS | {FILE: "from config.json", OWN: "custom"},
    ),
    Field("config", "or its config.json", "", "file"),
    Field("gpu", "GPU", "h100", "choice", {key: one.name for key, one in GPUS.items()}),
    Field("recipe", "precision", slug(REDUCED_IN_FP32), "choice", RECIPE_OF),
    Field(
        "checkpoint", "checkpointing", "auto", "choice",
        {"auto": "lightest that fits"} | {name: name for name in CHECKPOINTS},
    ),
    Field("nodes", "hosts", "8", "whole", slider=(0, 11)),
    Field("rows", "sequences per GPU", "1", "number", slider=(0, 7)),
    Field("context", "sequence length (tokens)", "8192", "whole", slider=(9, 17)),
    Field("tokens", "tokens to train on", "2e12", "number"),
)  # fmt: skip
MORE = (
    Field("batch", "global batch (tokens)", "", "number", hint="such as 4e6"),
    Field("accumulate", "micro-batches per step", "1", "whole", slider=(0, 7)),
    Field("per_host", "GPUs per host", "", "whole", hint="the usual number"),
    Field("network", "network bandwidth per host (bytes/s)", "", "rate", hint="such as 400GB"),
    Field("gpu_memory", "memory per GPU", "", "size", hint="such as 80GB"),
    Field("speed", "measured FLOP/s per GPU", "", "number", hint="such as 4e14"),
    Field("stack", "library", "pytorch", "choice", WHOSE),
    Field("fused_loss", "fused loss", "", "yes"),
    Field("compile", "torch.compile", "", "yes"),
    Field("price", "price per GPU-hour", "", "number", hint="such as 2.5", most=10**6),
)
FIELDS = {field.name: field for field in (*FIRST, *SHAPE, *MORE)}
FIELD_OF = {
    "sequences": "rows",
    "gpus": "nodes",
    "params": "model",
    "shape": "layers",
    "inside": "gpu",
}


class WrongError(ValueError):
    """A choice that can't be used; names its field."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


def state_of(query: str) -> dict[str, str]:
    """Value of every field, from the address or by default. Unknown fields are ignored.

    Of a `config.json`, only the fields that the shape depends on are kept, and only if it is asked
    for: the address is to be short.
    """
    given = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
    state = {name: given.get(name, field.default).strip() for name, field in FIELDS.items()}
    if state["model"] != FILE:
        return state | {"config": ""}
    try:
        fewest = json.dumps(needed(fields_of(state["config"])), separators=(",", ":"))
    except ValueError:
        return state  # `read_file` says what is wrong with it
    return state | {"config": fewest}


def read_file(state: Mapping[str, str]) -> Read | None:
    """The model of the chosen file, if one is asked for. Raises WrongError."""
    if state["model"] != FILE:
        return None
    if not state["config"]:
        raise WrongError("config", "choose a file, the config.json of your model")
    try:
        return read_fields(fields_of(state["config"]))
    except ValueError as error:
        raise WrongError("config", str(error)) from None


def query_of(state: Mapping[str, str]) -> str:
    """The address of a state, with the choices that differ from the defaults."""
    return urlencode({k: v for k, v in state.items() if v != FIELDS[k].default})


def check_field(field: Field, value: str) -> None:
    """Raise WrongError for a value of the wrong kind. `plan` checks how large it may be."""
    if not value and not field.default:
        return
    if field.kind == "choice" and value not in field.choices:
        raise WrongError(field.name, f"{value!r} is not known: choose one of the list")
    if field.kind == "yes" and value != "on":
        raise WrongError(field.name, f"{value!r}: on, or nothing")
    if field.kind in ("size", "rate"):
        try:
            {"size": size, "rate": rate}[field.kind](field.name, value)
        except ValueError as error:
            raise wrong(error) from None
    if field.kind in ("whole", "number"):
        try:
            count = number(value)
        except ValueError as error:
            raise WrongError(field.name, str(error)) from None
        if not count > 0 or math.isinf(count):
            raise WrongError(field.name, f"{value}: give a number above 0")
        if count > field.most:
            raise WrongError(field.name, f"{value}: give at most {field.most:,}")
        if field.kind == "whole" and count != int(count):
            raise WrongError(field.name, f"{value}: give a whole number")


def words_of(state: Mapping[str, str]) -> list[str]:
    """The words of the command line. Raises WrongError, naming the field."""
    for name, value in state.items():
        is_shown = FIELDS[name] not in SHAPE or state["model"] == OWN
        if is_shown:
            check_field(FIELDS[name], value)

    if state["model"] == OWN:
        numbers = [f"{number(state[field.name]):.0f}" for field in SHAPE if field.default]
        more = [f"head_dim={number(state['head_dim']):.0f}"] if state["head_dim"] else []
        more += ["tied"] if state["tied"] else []
        words = ["--shape", ",".join(numbers + more)]
    elif state["model"] == FILE:
        words = ["--model", NAME]
    else:
        words = ["--model", state["model"]]
    words += ["--gpu", state["gpu"]]
    usual = vars(arguments().parse_args([])) | {"rows": 1}
    for name, value in state.items():
        field = FIELDS[name]
        if field in SHAPE or name in ("model", "config", "gpu", "price") or not value:
            continue  # a price changes no plan
        option = "--sequences" if name == "rows" else f"--{name.replace('_', '-')}"
        if field.kind == "yes":
            words.append(option)
        elif name == "recipe":
            words += [option, RECIPE_OF[value]] if RECIPE_OF[value] != REDUCED_IN_FP32 else []
        elif field.kind == "whole":
            words += [option, f"{number(value):.0f}"] if number(value) != usual[name] else []
        elif field.kind == "number":
            words += [option, value] if number(value) != usual[name] else []
        elif value != usual[name]:
            words += [option, value]
    return words


def asked(state: Mapping[str, str]) -> tuple[Asked, Batch | None]:
    """What this state asks the planner for. Raises WrongError, naming the field."""
    found = read_file(state)
    try:
        given = arguments().parse_args(words_of(state))
        known = understood(given, found)
        return known, batch_of(given, known.assumed.job.model)
    except WrongError:
        raise
    except (ValueError, OverflowError) as error:
        raise wrong(error) from None


def wrong(error: Exception) -> WrongError:
    """The planner's own complaint, `name=value: what to give`, as that of a field."""
    name, _, rest = str(error).partition("=")
    return WrongError(FIELD_OF.get(name, name if name in FIELDS else "model"), rest or str(error))
