"""Write a checkpoint of train.py to one file: python export.py RUN/step-00000500 w.safetensors

The file has the weights by their names, without the optimizer. Any number of ranks may have saved
them. This takes one process, memory for all weights, and `pip install safetensors`.
"""

import hashlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

PART = "model."  # of the names in a checkpoint; "optimizer." is the other one


def weights_in(folder: str) -> dict[str, torch.Tensor]:
    """All weights of a checkpoint, whole. Raises FileNotFoundError if there isn't one."""
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    weights: dict[str, Any] = {}
    for name, entry in saved.items():
        if name.startswith(PART) and isinstance(entry, TensorStorageMetadata):
            weights[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is meant to be
    dcp.load(weights, checkpoint_id=folder, no_dist=True)
    return {name.removeprefix(PART): weight for name, weight in weights.items()}


def damaged(folder: str) -> str | None:
    """The first file that isn't what train.py has written, by the checksum beside it."""
    for recorded in sorted(Path(folder).glob("*.sha256")):
        with recorded.with_suffix("").open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if recorded.read_text() not in ("", found):
            return recorded.stem
    return None


def main(folder: str, file: str) -> None:
    if not Path(folder, ".metadata").exists():
        sys.exit(f"{folder}: not a complete checkpoint (no .metadata). RUN/latest names one")
    if name := damaged(folder):
        sys.exit(f"{folder} is damaged: the checksum of {name} is wrong. Export a different step")
    weights = weights_in(folder)
    save_file(weights, file, metadata={"format": "pt", "from": str(folder)})
    count = sum(weight.numel() for weight in weights.values())
    print(f"{file}: {len(weights)} tensors, {count:,} weights")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
