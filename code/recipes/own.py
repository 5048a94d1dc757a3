"""Your own network: the shape that the planner needs, read from the module.

`package.module:function` makes it on the meta device, and is called without arguments.
"""

import importlib
from typing import Any, NamedTuple

import torch
from torch import nn

from distributed.planner.shapes import Model

Row = nn.ModuleList | nn.Sequential


class Own(NamedTuple):
    """The network that `--module` named: its maker, its shape, and the path to its blocks."""

    make: Any  # () → nn.Module, called once for every model
    model: Model
    blocks: str  # as Python says it, "transformer.h"


def own(path: str) -> Own:
    """The transformer that `path`, package.module:function, makes.

    The layers are the longest row of equal blocks. Width and vocabulary come from the first
    embedding, and the width of the feed-forward network from the other parameters of a block.
    Raises ValueError if the module doesn't exist or isn't a transformer.
    """
    make, module = made_on_meta(path)
    count = parameters_of(module)
    if not count:
        raise ValueError(f"module={path!r}: {type(module).__name__} has no parameters")
    none = f"module={path!r}: no transformer: "
    way = "; plan by --params or --shape"
    embedding = next((part for part in module.modules() if isinstance(part, nn.Embedding)), None)
    if embedding is None:
        raise ValueError(f"{none}it has no embedding{way}")
    rows = {name: part for name, part in module.named_modules() if isinstance(part, Row)}
    name = max((name for name in rows if alike(rows[name])), key=lambda n: len(rows[n]), default="")
    blocks = rows.get(name)
    if blocks is None or not alike(blocks):
        raise ValueError(f"{none}it has no row of equal blocks{way}")
    (vocab_size, d), block = embedding.weight.shape, parameters_of(blocks[0])
    ffn = round((block / d - 4 * d - 2) / 2)
    if ffn < 1:
        raise ValueError(f"{none}a block of {block:,} parameters is too small for width {d}{way}")
    rest = count - len(blocks) * block
    tied = rest < 1.5 * vocab_size * d
    positions = max(0, round(rest / d - (1 if tied else 2) * vocab_size - 1))
    heads = max(1, d // 128)
    model = Model(len(blocks), d, heads, heads, ffn, vocab_size, False, tied, positions)
    return Own(make, model, name)


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


def alike(row: Row) -> bool:
    """Whether all parts have as many parameters, and some."""
    sizes = {parameters_of(part) for part in row}
    return len(sizes) == 1 and sizes != {0}
