"""Every file for DeepSpeed that *Copy as* gives, executed with DeepSpeed itself on processors."""

import importlib.util
import json
import os
import warnings
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distributed import launch
from distributed.model_states import RECIPES
from distributed.planner.hardware import GPUS
from distributed.planner.job import Job, cluster_of, option
from distributed.planner.schedules import STACKS
from distributed.planner.shapes import CHECKPOINTS, PRESETS
from recipes.copies import deepspeed_json

ROWS, ACCUMULATE, STEPS, WIDTH = 2, 3, 3, 16
CLUSTER = cluster_of(
    GPUS["h100"], 4, 2, speed=4e14
)  # two hosts of two: HSDP has a host to shard in
FASTER = {"AdamW": 1e-2, "SGD": 0.1}  # so that a step of this small network is seen in its loss
STAGES = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "HSDP": 3, "ZeRO-3": 3}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None and os.environ.get("CI") != "true",
        reason="DeepSpeed is not installed: make .venv/.installed-all",
    ),
]


def text_of(name: str, recipe: str, kept: str) -> str:
    job = Job(PRESETS["mpt-125m"], ROWS, 1024, ACCUMULATE, kept, RECIPES[recipe])
    return deepspeed_json(option(job, name, CLUSTER, 1e15, "deepspeed"), job, CLUSTER)


EVERY = list(product(STACKS["deepspeed"], RECIPES, CHECKPOINTS))
# Two ways of checkpointing have one text: the model does it
TEXTS = sorted({text for case in EVERY if (text := text_of(*case)).startswith("{")})


class Small(nn.Module):
    """Checkpoints its blocks, where it is told to."""

    def __init__(self, checkpoints: bool = False):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(2))
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=True) if self.checkpoints else block(x))
        return self.last(x)


def batches(rank: int) -> torch.Tensor:
    """All micro-batches of a rank: (micro-batches, rows, width). Ranks differ, and steps do not."""
    dice = torch.Generator().manual_seed(rank)
    return torch.randn(ACCUMULATE, ROWS, WIDTH, generator=dice).repeat(STEPS, 1, 1)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 1).float().square().mean()


def adam(settings: dict) -> bool:
    return settings["optimizer"]["type"] == "AdamW"


def train(group, texts: list[str]) -> list[dict]:
    """What DeepSpeed understands of each text, and this rank's losses."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(group.rank)}
    os.environ |= {"RANK": str(group.rank), "WORLD_SIZE": str(group.size)}
    deepspeed = importlib.import_module("deepspeed")
    # An all-reduce of its own for processors would have to be compiled: gloo is here
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    warnings.simplefilter("ignore", FutureWarning)  # of the names of collectives, in each step
    found = []
    for text in texts:
        settings = json.loads(text)
        own = settings["optimizer"]["params"]
        own["lr"] = FASTER[settings["optimizer"]["type"]]
        if adam(settings):
            own["torch_adam"] = True  # its fused kernel is one for GPUs
        torch.manual_seed(0)
        model = Small("checkpoint" in settings.get("comment", ""))
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=settings
        )
        losses = []
        for x in batches(group.rank):
            loss = loss_of(engine, x.to(torch.bfloat16 if "bf16" in settings else torch.float32))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        found.append(
            {
                "stage": engine.zero_optimization_stage(),
                "shards inside": engine.zero_hpz_partition_size(),
                "rows": engine.train_micro_batch_size_per_gpu(),
                "micro-batches": engine.gradient_accumulation_steps(),
                "steps": engine.global_steps,
                "clips at": engine.gradient_clipping(),
                "dtypes": engine.get_data_types(),
                "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__,
                "losses": losses,
            }
        )
    return found


@pytest.fixture(scope="module")
def executed() -> dict[str, list[dict]]:
    """Of each text what each of four ranks found."""
    each = launch(train, TEXTS, ranks=4, device="cpu", timeout=900)
    return {text: [rank[number] for rank in each] for number, text in enumerate(TEXTS)}


def on_one_device(settings: dict) -> list[list[float]]:
    """Losses of all ranks' micro-batches, trained by PyTorch in fp32."""
    torch.manual_seed(0)
    model, of_ranks = Small(), [batches(rank) for rank in range(4)]
    if adam(settings):
        decay = settings["optimizer"]["params"]["weight_decay"]
        optimizer = torch.optim.AdamW(model.parameters(), lr=FASTER["AdamW"], weight_decay=decay)
    else:
        momentum = settings["optimizer"]["params"].get("momentum", 0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=FASTER["SGD"], momentum=momentum)
    if "bf16" in settings and settings["zero_optimization"]["stage"] == 0:
        # DeepSpeed makes the optimizer's states by a step with gradients of 0, which Adam counts
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    losses: list[list[float]] = [[] for _ in of_ranks]
    for micro in range(STEPS * ACCUMULATE):
        for mine, all_of_rank in zip(losses, of_ranks, strict=True):
            loss = loss_of(model, all_of_rank[micro])
            (loss / (4 * ACCUMULATE)).backward()
            mine.append(loss.item())
        if (micro + 1) % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize(("name", "recipe", "kept"), EVERY)
def test_deepspeed_does_what_its_file_was_made_for(name, recipe, kept, executed):
    text = text_of(name, recipe, kept)
    if not text.startswith("{"):
        assert text.endswith(".")
        assert "DeepSpeed" in text
        return
    settings, sizes = json.loads(text), RECIPES[recipe]
    computes = torch.bfloat16 if sizes.parameters == 2 else torch.float32
    sums = torch.bfloat16 if sizes.gradients == 2 else torch.float32
    expected = on_one_device(settings)
    # After a step in bf16 weights are rounded, and so is what is computed with them
    rounding = 0.03 if computes == torch.bfloat16 else 1e-4
    for found, losses in zip(executed[text], expected, strict=True):
        assert found["stage"] == STAGES[name]
        assert found["shards inside"] == (2 if name == "HSDP" else 1)
        assert (found["rows"], found["micro-batches"]) == (ROWS, ACCUMULATE)
        assert (found["steps"], found["clips at"]) == (STEPS, 1.0)
        assert found["dtypes"] == (computes, sums)
        assert found["optimizer"] == settings["optimizer"]["type"]
        assert found["losses"] == pytest.approx(losses, rel=rounding)
        assert sum(found["losses"][-ACCUMULATE:]) < sum(found["losses"][:ACCUMULATE])
