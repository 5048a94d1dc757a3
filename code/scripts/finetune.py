"""Continue the training of a model, whole or with adapters (LoRA), on 1 to N GPUs.

    python make_tokens.py *.txt DATA --tokenizer START/tokenizer.json
    torchrun --nproc-per-node 8 finetune.py DATA RUN START --lora 16 --steps 300 --lr 2e-4

START is a folder with config.json and *.safetensors of GPT-2, Llama, Mistral, Qwen2 or Qwen3, as on
Hugging Face. The result is in RUN/model, in the same form. Start it again after a stop, and it
continues. It has the options of train.py, and needs that file, models.py and weights.py in its
folder. A whole model needs a small rate, such as --lr 1e-5, and adapters one about ten times that.
"""

import math
from dataclasses import MISSING, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import train
from models import Conv1D, Model, model_of
from torch import nn
from weights import load, names, save, whole

RESULT = "model"  # folder in RUN
OF_ITS_MODEL = ("vocab", "width", "layers", "heads", "dropout")  # here START says these
DEFAULTS = dict(steps=300, batch=64, micro=4, lr=2e-5, warmup=20, decay=0.0)
DEFAULTS |= dict(eval_every=100, save_every=100)
OWN = [
    ("start", str, train.option(MISSING, "folder of the model to start from")),
    (
        "lora",
        int,
        train.option(0, "rank of the adapters on a frozen model; 0: train the whole model", 0),
    ),
    (
        "alpha",
        float,
        train.option(32.0, "strength of the adapters: they add alpha / rank times B A x", 0),
    ),
]


def inherited() -> list[tuple[str, Any, Any]]:
    """Options of train.py that don't describe its model."""
    found = []
    for one in fields(train.Settings):
        if one.name not in OF_ITS_MODEL:
            default = DEFAULTS.get(one.name, one.default)
            found.append((one.name, one.type, field(default=default, metadata=one.metadata)))
    return found


(DATA, RUN, *OTHERS) = inherited()
Settings = make_dataclass("Settings", [DATA, RUN, *OWN, *OTHERS], frozen=True)


class Lora(nn.Module):
    """y = W x + alpha / rank B A x (Hu et al. 2021): W [out, in] is frozen, A and B are trained.

    A [rank, in] begins at random and B [out, rank] at 0, so the first step sees the model as it is.
    """

    def __init__(self, base: nn.Module, rank: int, alpha: float):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.empty(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    def change(self) -> torch.Tensor:
        """What is added to the base's weight, in its layout. Collective if sharded."""
        change = self.scale * whole(self.lora_b) @ whole(self.lora_a)
        return change.T if isinstance(self.base, Conv1D) else change


def add_adapters(model: Model, rank: int, alpha: float, dtype: torch.dtype) -> None:
    """Freeze all weights, in that dtype, and wrap each linear layer of the blocks."""
    for weight in model.parameters():
        weight.requires_grad = False
        weight.data = weight.data.to(dtype)
    for block in model.blocks:
        for name, part in [*block.named_modules()]:
            if isinstance(part, nn.Linear | Conv1D):
                owner, _, last = name.rpartition(".")
                setattr(block.get_submodule(owner), last, Lora(part, rank, alpha))


@torch.no_grad()
def fill(model: Model, settings: Any) -> None:
    """Weights from START, and of the adapters A at random and B 0."""
    load(model, settings.start)
    for name, weight in model.named_parameters():
        if name.endswith("lora_b"):
            weight.zero_()
        elif name.endswith("lora_a"):
            seed, bound = train.seed_of(settings.seed, name), 1 / math.sqrt(weight.shape[1])
            train.draw(weight, seed, nn.init.uniform_, -bound, bound)


def made(settings: Any) -> Model:
    """The model of START on the meta device. Raises ValueError before anything is read."""
    model, start = model_of(settings.start), Path(settings.start).resolve()
    if start == Path(settings.run, RESULT).resolve():
        raise ValueError(f"{settings.start}: is where the result goes. Give a different RUN")
    if settings.context > model.shape.longest:
        limit = f"at most {model.shape.longest} for {settings.start}"
        raise ValueError(f"--context {settings.context}: must be {limit}")
    names(model, settings.start)
    model.context, model.recompute = settings.context, settings.recompute
    if settings.lora:
        # A base that isn't trained needs no more digits than it is multiplied with
        dtype = torch.bfloat16 if settings.bf16 else torch.float32
        add_adapters(model, settings.lora, settings.alpha, dtype)
    model.init = partial(fill, model, settings)
    return model


class Job(train.Job):
    SETTINGS, MODEL = Settings, staticmethod(made)

    def order(self) -> str:
        settings = self.settings
        adapters = f"--lora {settings.lora}, --alpha {settings.alpha}"
        return f"{super().order()}, {adapters}, {Path(settings.start).resolve().name}"

    def train(self) -> None:
        super().train()
        model, folder = self.model, Path(self.settings.run, RESULT)
        save(model.module if self.settings.ddp else model, folder, self.settings.start)
        if self.rank == 0:
            line = f"saved the trained model as {folder}, in the format of {self.settings.start}"
            print(line, flush=True)


if __name__ == "__main__":
    train.run(Job, __doc__)
