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

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from models import Model
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.tensor import DTensor

LARGEST = 5 * 10**9  # bytes of a file
ADAPTER = ("lora_a", "lora_b")  # parameters that no file has
BESIDE = ("*.json", "*.model", "*.txt", "*.jinja")  # config, tokenizer, chat template


def tensors_in(folder: str | Path) -> dict[str, tuple[list[int], str]]:
    """The name of each tensor, its shape and its dtype as the files say it ("BF16")."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    found[name] = part.get_shape(), part.get_dtype()
        except Exception as error:  # SafetensorError isn't an OSError
            raise ValueError(f"{file}: {error}") from None
    if not found:
        raise ValueError(f"{folder}: no *.safetensors there")
    return found


def names(model: Model, folder: str | Path) -> dict[str, str]:
    """Each parameter's name in the files of the folder, by its name in the model.

    Raises ValueError for the first that isn't there, or has another shape.
    """
    there = tensors_in(folder)
    # Some files leave the prefix out. Here, a layer with an adapter is a level deeper.
    prefix = model.prefix if any(name.startswith(model.prefix) for name in there) else ""
    found = {}
    for name, weight in model.named_parameters():
        if name.endswith(ADAPTER):
            continue
        plain = name.replace(".base.", ".")
        found[name] = plain if plain.startswith("lm_head.") else prefix + plain
        shape, _ = there.get(found[name], (None, ""))
        if shape != list(weight.shape):
            is_there = f"{found[name]} is {shape}" if shape else f"no {found[name]} in the files"
            raise ValueError(f"{folder}: {is_there}, but config.json needs {[*weight.shape]}")
    return found


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
    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16}
    files: list[dict[str, torch.Tensor]] = [{}]
    sizes: list[int] = []

    def write() -> None:
        part = files[-1]
        sizes.append(sum(tensor.nbytes for tensor in part.values()))
        save_file(part, folder / f"part-{len(files)}.safetensors", metadata={"format": "pt"})
        files[-1] = dict.fromkeys(part, torch.empty(0))  # only the names are needed from here on

    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    for name, value in merged(model):
        if rank:
            continue
        value = value.to("cpu", dtypes.get(there[known[name]][1], torch.bfloat16)).contiguous()
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
    """Give the files their final names, write the index, and copy the tokenizer and the like."""
    for pattern in BESIDE:
        for file in source.glob(pattern):
            if file.name != "model.safetensors.index.json":
                shutil.copy(file, folder)
    where = {}
    for number, contents in enumerate(files, start=1):
        last = f"model-{number:05}-of-{len(files):05}" if len(files) > 1 else "model"
        (folder / f"part-{number}.safetensors").replace(folder / f"{last}.safetensors")
        where |= dict.fromkeys(contents, f"{last}.safetensors")
    if len(files) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
