"""Your own network: the shape that the planner needs, read from the module.

`package.module:function` makes it on the meta device, and is called without arguments. A model with
a `config` of Hugging Face's library has its shape there. Any other is read from its matrices, and
refused if they don't account for its parameters.
"""

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.planner.config_json import Read, read_fields
from distributed.planner.shapes import Model

Row = nn.ModuleList | nn.Sequential
WAY = "plan by --model with its config.json, or by --shape"
NO_TOKENS = ("pos", "type", "segment")  # in the names of embeddings that aren't the vocabulary's
HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads")
UNKNOWN = 0.01  # share of the parameters that may be in neither blocks, embeddings nor head
CLEAR = 4  # times as long as every other table the vocabulary's has to be, if no head names it


class Own(NamedTuple):
    """The network that `--module` named: its maker, its shape, and the path to its blocks."""

    make: Any  # () → nn.Module, called once for every model
    model: Model
    blocks: str  # as Python says it, "transformer.h"
    notes: tuple[str, ...] = ()


class Matrix(NamedTuple):
    """A product in a block: width of its inputs, and of its outputs."""

    inputs: int
    outputs: int


def own(path: str) -> Own:
    """The transformer that `path`, package.module:function, makes.

    The layers are the largest row of equal blocks as wide as the vocabulary's embedding. Raises
    ValueError if the module doesn't exist, isn't a transformer, or isn't understood.
    """
    make, module = made_on_meta(path)
    try:
        return read_module(make, module)
    except ValueError as error:
        raise ValueError(f"module={path!r}: {error}") from None


def read_module(make: Any, module: nn.Module) -> Own:
    """Shape and blocks of a module. Raises ValueError for one that isn't understood."""
    count = parameters_of(module)
    if not count:
        raise ValueError(f"{type(module).__name__} has no parameters")
    if (configured := of_config(module, count)) is not None:
        width = configured.model.d
        return Own(make, configured.model, longest_row(module, width), configured.notes)
    refuse_experts(module)
    vocab_size, d = vocabulary(module).weight.shape
    name = longest_row(module, d)
    if not name:
        raise ValueError(f"no transformer: it has no row of equal blocks of width {d:,}; {WAY}")
    blocks = module.get_submodule(name)
    for inner, part in module.named_modules():
        if inner.startswith(f"{name}.") and isinstance(part, nn.Conv1d):
            raise ValueError(
                f"its blocks have convolutions ({inner}), as state spaces have; "
                "plan another model, or one of this size with --params"
            )
    left = outside(module, name)
    vocabularies = [at for at, each in left.items() if {*each.shape} == {vocab_size, d}]
    for at in vocabularies:
        del left[at]
    positions = [at for at, each in left.items() if is_table(module, at, each, d)]
    rows = sum(left.pop(at).numel() // d for at in positions)
    refuse_rest(left, count)
    model = of_block(next(iter(blocks.children())), d)
    return Own(
        make,
        model._replace(
            layers=len(list(blocks.children())),
            vocab_size=vocab_size,
            tied=len(vocabularies) == 1,
            positions=rows,
        ),
        name,
    )


def of_config(module: nn.Module, count: int) -> Read | None:
    """The shape in a `config` like that of Hugging Face's models; None without one.

    Raises ValueError if it counts other parameters than the module has.
    """
    fields: object = getattr(getattr(module, "config", None), "to_dict", dict)()
    if not isinstance(fields, dict) or "model_type" not in fields:
        return None
    found = read_fields(fields)
    if abs(found.model.parameters / count - 1) > UNKNOWN:
        counts = f"{found.model.parameters / 1e9:.2f} billion parameters, and it has"
        raise ValueError(f"its config counts {counts} {count / 1e9:.2f}; {WAY}")
    return found


def vocabulary(module: nn.Module) -> nn.Embedding:
    """The embedding of tokens: the one that has the head's shape, else the longest by far.

    Raises ValueError if there is none, or more than one may be it.
    """
    tables = {name: m for name, m in module.named_modules() if isinstance(m, nn.Embedding)}
    if not tables:
        raise ValueError(f"no transformer: it has no embedding; {WAY}")
    linears = {
        (part.out_features, part.in_features)
        for part in module.modules()
        if isinstance(part, nn.Linear)
    }
    headed = [each for each in tables.values() if tuple(each.weight.shape) in linears]
    if len({tuple(each.weight.shape) for each in headed}) == 1:
        return headed[0]
    named = [m for name, m in tables.items() if not any(word in name for word in NO_TOKENS)]
    longest, *others = sorted(named or tables.values(), key=lambda each: -each.num_embeddings)
    if others and others[0].num_embeddings * CLEAR > longest.num_embeddings:
        several = " and ".join(f"{each.num_embeddings:,}" for each in (longest, others[0]))
        raise ValueError(f"two embeddings may be the vocabulary's, of {several} rows; {WAY}")
    return longest


def rows_of(module: nn.Module) -> dict[str, nn.Module]:
    """Every row of parts that have as many parameters as each other, by its name."""
    return {n: part for n, part in module.named_modules() if isinstance(part, Row) and alike(part)}


def longest_row(module: nn.Module, d: int) -> str:
    """The name of the row of blocks: of those of width d the one with the most parameters.

    Of rows with as many, it is the one with the most parts: a row of one stage isn't its blocks.
    """
    rows = {
        name: row
        for name, row in rows_of(module).items()
        if any(d in each.shape for each in row.parameters() if each.ndim > 1)
    }
    size = {name: (parameters_of(row), len(list(row.children()))) for name, row in rows.items()}
    return max(rows, key=lambda name: size[name], default="")


def refuse_experts(module: nn.Module) -> None:
    """Raise ValueError for a mixture of experts: its matrices don't say how many are active."""
    way = "plan by --model with its config.json, which says how many of them are active"
    blocks = {
        f"{name}.{number}": part
        for name, row in module.named_modules()
        if isinstance(row, Row)
        for number, part in row.named_children()
    }
    for name, row in rows_of(module).items():
        of = [block for at, block in blocks.items() if name.startswith(f"{at}.")]
        has_more = any(parameters_of(block) > parameters_of(row) for block in of)
        several = len(list(row.children())) > 1
        if has_more and several and all(is_network(part) for part in row.children()):
            raise ValueError(f"it has a mixture of experts ({name}); {way}")
    for name, each in module.named_parameters():
        if each.ndim == 3 and "expert" in name:
            raise ValueError(f"it has a mixture of experts ({name}); {way}")


def is_network(part: nn.Module) -> bool:
    """Whether all its matrices go from one width to another, or back."""
    widths = [(each.inputs, each.outputs) for each in matrices(part)]
    return len(widths) > 1 and len({*widths}) == 2 == len({tuple(sorted(w)) for w in widths}) + 1


def matrices(part: nn.Module) -> Iterator[Matrix]:
    """The products of a part, in the order in which they are declared."""
    for each in part.modules():
        if isinstance(each, nn.Linear):
            yield Matrix(each.in_features, each.out_features)
        elif isinstance(each, nn.MultiheadAttention) and each.in_proj_weight is not None:
            yield Matrix(each.embed_dim, 3 * each.embed_dim)


def of_block(block: nn.Module, d: int) -> Model:
    """A model of one such block: what its matrices say, else a GPT's of as many parameters."""
    size = parameters_of(block)
    named = (getattr(part, name, None) for part in block.modules() for name in HEADS)
    heads = next((each for each in named if isinstance(each, int) and each > 0), 0)
    found = of_matrices(list(matrices(block)), d, heads)
    if found is not None and abs(found.block / size - 1) < UNKNOWN:
        return found
    ffn = round((size / d - 4 * d - 2) / 2)
    if ffn < 1:
        raise ValueError(
            f"no transformer: a block of {size:,} parameters is too small for width {d:,}; {WAY}"
        )
    heads = heads if heads and d % heads == 0 else max(1, d // 128)
    return Model(1, d, heads, heads, ffn, 1, False)


def of_matrices(every: list[Matrix], d: int, heads: int) -> Model | None:
    """Grouped queries, the width of a head, and a gate, as far as a block's matrices say."""
    ups = [each.outputs for each in every if each.inputs == d]
    downs = [each.inputs for each in every if each.outputs == d]
    networks = [f for f in downs if f != d and (f in ups or 2 * f in ups)]
    if not networks:
        return None
    ffn = max(networks)
    gated = ups.count(ffn) > 1 or 2 * ffn in ups
    rest = [width for width in ups if width not in (ffn, 2 * ffn)]
    q_widths = [width for width in downs if width != ffn] or [d]
    q_width = q_widths[0]
    if q_width == d and d in rest:
        rest.remove(d)  # the output's: it has as many inputs
    if rest == [q_width] or not rest:
        return None
    narrow = [width for width in rest if width != q_width]
    kv_width = (rest[0] - q_width) / 2 if len(rest) == 1 else min(narrow or rest)
    head_dim = q_width // heads if heads and q_width % heads == 0 else 0
    if not head_dim or kv_width % head_dim:
        wanted = (128, 64, 32, 16, 8, 4, 2, 1)
        head_dim = next(w for w in wanted if q_width % w == 0 and kv_width % w == 0)
    kv = round(kv_width / head_dim)
    if kv < 1:
        return None
    heads = q_width // head_dim
    return Model(1, d, heads, kv, ffn, 1, gated, head_dim=0 if q_width == d else head_dim)


def outside(module: nn.Module, blocks: str) -> dict[str, nn.Parameter]:
    """Parameters that aren't in the blocks, each once."""
    return {n: each for n, each in module.named_parameters() if not n.startswith(f"{blocks}.")}


def is_table(module: nn.Module, name: str, parameter: nn.Parameter, d: int) -> bool:
    """Whether a parameter has rows of width d that are looked up, as positions may be.

    It is an embedding's, or the model's own and no linear layer's.
    """
    owner = module.get_submodule(name.rpartition(".")[0])
    is_product = isinstance(owner, nn.Linear | nn.Conv2d)
    return parameter.ndim > 1 and parameter.shape[-1] == d and not is_product


def refuse_rest(left: dict[str, nn.Parameter], count: int) -> None:
    """Raise ValueError if many parameters are in no blocks and no table: the plan lacks them."""
    rest = sum(each.numel() for each in left.values())
    if rest <= UNKNOWN * count:
        return
    places: dict[str, int] = {}
    for name, each in left.items():
        place = name.partition(".")[0]
        places[place] = places.get(place, 0) + each.numel()
    most = max(places, key=lambda place: places[place])
    said = f"{rest / 1e9:.3g} of {count / 1e9:.3g} billion parameters"
    nowhere = "are in neither its blocks, its embeddings nor its head"
    raise ValueError(f"{said} {nowhere} (most in {most!r}); {WAY}")


def made_on_meta(path: str) -> tuple[Any, nn.Module]:
    """What makes a module, and one that it made on the meta device. Raises ValueError."""
    way = "give package.module:function"
    package, _, name = path.partition(":")
    try:
        make = getattr(importlib.import_module(package), name)
        with torch.device("meta"):
            module = make()
    except SystemExit as end:
        raise ValueError(f"module={path!r}: it ended with {end!r}; {way}") from None
    except Exception as error:  # a user's code may raise anything
        said = f"{error}; " if package and name else ""
        raise ValueError(f"module={path!r}: {said}{way}") from None
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={path!r}: {module!r} is no module of torch; {way} that makes one")
    return make, module


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def alike(row: nn.Module) -> bool:
    """Whether all parts have as many parameters, and some."""
    sizes = {parameters_of(part) for part in row.children()}
    return len(sizes) == 1 and sizes != {0}
