"""Weights in and out of a folder as on Hugging Face: `*.safetensors`, whole or in several files.

    load(model, "FOLDER")           each rank reads its own shards of each tensor, and no more
    save(model, "OUT", "FOLDER")    rank 0 writes whole tensors, with what else FOLDER has

Both are collective: all ranks call them. It needs `pip install safetensors`.
"""

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from models import Model, fields_of
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.tensor import DTensor

LARGEST = 5 * 10**9  # bytes of a file
ROWS = 4096  # of a matrix, to compare at a time
HEAD = "lm_head.weight"
ADAPTER = ("lora_a", "lora_b")  # parameters that no file has
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # masks, angles: computed
ONE, MANY = "model.safetensors", "model-{}-of-{}.safetensors"
INDEX = "model.safetensors.index.json"
BESIDE = ("*.json", "*.model", "*.txt", "*.jinja")  # config, tokenizer, chat template


class Tensor(NamedTuple):
    """What a file says about one of its tensors."""

    shape: list[int]
    dtype: str  # such as "BF16"
    file: Path


def tensors_in(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of all files, by their names. Raises ValueError if a name is in two files."""
    found: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                own = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        except Exception as error:  # SafetensorError isn't an OSError
            raise ValueError(f"{file}: {error}") from None
        for name, part in own.items():
            if name in found:
                both = f"{name} is in {found[name].file.name} and in {file.name}"
                raise ValueError(f"{folder}: {both}: move one of them away")
            found[name] = Tensor(part.get_shape(), part.get_dtype(), file)
    if not found:
        raise ValueError(f"{folder}: no *.safetensors there")
    return found


def names(model: Model, folder: str | Path) -> dict[str, str]:
    """Each parameter's name in the files of the folder, by its name in the model.

    Raises ValueError for the first that isn't there, or has another shape, and for a tensor beside
    them that the model doesn't have: it would be missing from what `save` writes.
    """
    there = tensors_in(folder)
    # Some files leave the prefix out. Here, a layer with an adapter is a level deeper.
    prefix = model.prefix if any(name.startswith(model.prefix) for name in there) else ""
    found = {}
    for name, weight in model.named_parameters():
        if name.endswith(ADAPTER):
            continue
        plain = name.replace(".base.", ".")
        own = found[name] = plain if plain.startswith("lm_head.") else prefix + plain
        if own not in there or there[own].shape != [*weight.shape]:
            is_there = f"{own} is {there[own].shape}" if own in there else missing(own, folder)
            raise ValueError(f"{folder}: {is_there}, but config.json needs {[*weight.shape]}")
        if there[own].dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ValueError(f"{folder}: {own} is {there[own].dtype}: only {known} are read here")
    used = {there[own].file for own in found.values()}
    for own in sorted(there.keys() - found.values()):
        if own == HEAD and model.shape.tied:
            embedding = prefix + next(name for name in found if name.startswith(("wte", "embed")))
            if not equal(there, own, embedding):
                line = f"{own} isn't {embedding}: set tie_word_embeddings to false in config.json"
                raise ValueError(f"{folder}: {line}")
        elif there[own].file in used and not own.endswith(BUFFERS):
            what = f"{there[own].file.name} has {own}"
            raise ValueError(f"{folder}: {what}, but config.json doesn't describe it")
    return found


def missing(name: str, folder: str | Path) -> str:
    """Why a tensor is in none of the files."""
    index = Path(folder, INDEX)
    if index.exists():
        file = fields_of(index).get("weight_map", {}).get(name)
        if file and not Path(folder, file).exists():
            return f"{file} isn't there, and {INDEX} has {name} in it"
    return f"no {name} in the files"


def equal(there: dict[str, Tensor], one: str, other: str) -> bool:
    """Whether two tensors of the files are the same, read a few rows at a time."""
    shape, first, second = there[one].shape, there[one].file, there[other].file
    if shape != there[other].shape:
        return False
    with safe_open(first, framework="pt") as a, safe_open(second, framework="pt") as b:
        for row in range(0, shape[0], ROWS):
            rows = slice(row, row + ROWS)
            if not torch.equal(a.get_slice(one)[rows], b.get_slice(other)[rows]):
                return False
    return True


def load(model: Model, folder: str | Path) -> None:
    """Fill the parameters: on any device, of any dtype, plain or sharded. Raises ValueError."""
    own = dict(model.named_parameters())
    state = {there: own[name].detach() for name, there in names(model, folder).items()}
    reader = HuggingFaceStorageReader(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is meant to be
        dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())


def whole(weight: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on each rank. Collective if it is sharded."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()


def merged(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter by its name, whole, with its adapter added. In fp32, and one at a time."""
    adapters = {name: part for name, part in model.named_modules() if hasattr(part, "lora_a")}
    for name, weight in model.named_parameters():
        if name.endswith(ADAPTER):
            continue
        value, owner = whole(weight).float(), name.removesuffix(".base.weight")
        if owner != name and owner in adapters:
            value = value + adapters[owner].change().float()
        yield name, value


def save(model: Model, folder: str | Path, source: str | Path) -> None:
    """Whole weights in the dtypes of `source`, in files of at most LARGEST bytes, and an index."""
    folder, source = Path(folder), Path(source)
    there, known = tensors_in(source), names(model, source)
    rank = dist.get_rank() if dist.is_initialized() else 0
    files: list[dict[str, torch.Tensor]] = [{}]
    sizes: list[int] = []

    def write() -> None:
        part = files[-1]
        sizes.append(sum(tensor.nbytes for tensor in part.values()))
        save_file(part, folder / f"part-{len(files)}.safetensors", metadata={"format": "pt"})
        files[-1] = dict.fromkeys(part, torch.empty(0))  # only the names are needed from here on

    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("part-*.safetensors"):  # of a save that was interrupted
            old.unlink()
    for name, value in merged(model):
        if rank:
            continue
        value = value.to("cpu", DTYPES[there[known[name]].dtype]).contiguous()
        if files[-1] and sum(t.nbytes for t in files[-1].values()) + value.nbytes > LARGEST:
            write()
            files.append({})
        files[-1][known[name]] = value
    if rank == 0:
        write()
        finish(folder, source, [list(part) for part in files], sum(sizes))
    if dist.is_initialized():
        dist.barrier()


def finish(folder: Path, source: Path, files: list[list[str]], size: int) -> None:
    """Replace an earlier result, write the index, and copy the tokenizer and the like."""
    for pattern in BESIDE:
        for file in source.glob(pattern):
            if file.name != INDEX:
                shutil.copyfile(file, folder / file.name)  # without its permissions
    for pattern in (ONE, MANY.format(*2 * ["?????"]), INDEX):
        for old in folder.glob(pattern):
            old.unlink()
    where = {}
    for number, contents in enumerate(files, start=1):
        name = MANY.format(f"{number:05}", f"{len(files):05}") if len(files) > 1 else ONE
        (folder / f"part-{number}.safetensors").replace(folder / name)
        where |= dict.fromkeys(contents, name)
    if len(files) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=1))
