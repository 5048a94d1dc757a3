"""The one file to copy: train a transformer on your tokens, on 1 to N GPUs (or CPUs, to try it).

    python make_tokens.py *.txt DATA
    torchrun --nproc-per-node 8 train.py DATA RUN --batch 512 --micro 16   (or srun, or mpirun)

Start it again, on any number of ranks that divides the batch, and it continues. SIGTERM and Ctrl+C
make it save and exit. Every random number follows from the seed, its purpose, the step and its
place in the global batch, so no generator is saved, and the number of ranks makes no difference.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import math
import os
import shutil
import signal
import struct
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

PEAKS = dict(A100=312, H100=989, H200=989, B200=2250, MI300X=1307, L40S=362)  # TFLOP/s, bf16, SXM


def option(default: Any, what: str, least: float = -math.inf) -> Any:
    """A setting, its text in --help, and its minimum."""
    return field(default=default, metadata={"what": what, "least": least})


@dataclass(frozen=True)
class Settings:
    """All options: `--log-every 5` sets log_every, and `--no-bf16` turns off a flag that is on."""

    data: str = option(MISSING, "folder of the tokens: train*.bin and val*.bin")
    run: str = option(MISSING, "folder for checkpoints and the log, which all hosts see")
    vocab: int = option(50304, "size of the vocabulary, more than the largest token", 1)
    context: int = option(1024, "tokens per sequence", 1)
    width: int = option(768, "elements of a token's vector, a multiple of --heads", 1)
    layers: int = option(12, "number of blocks", 1)
    heads: int = option(12, "attention heads per block", 1)
    dropout: float = option(0.0, "share of activations set to zero in training", 0)
    steps: int = option(20_000, "steps of the whole training, including those before a restart", 0)
    batch: int = option(512, "sequences per step, on all ranks together", 1)
    micro: int = option(16, "sequences that a rank processes at a time", 1)
    lr: float = option(6e-4, "highest learning rate, reached after the warmup", 0)
    min_lr_share: float = option(0.1, "learning rate at the end, as a share of --lr", 0)
    warmup: int = option(700, "steps in which the learning rate rises from 0", 0)
    decay: float = option(0.1, "weight decay of matrices and embeddings", 0)
    clip: float = option(1.0, "largest norm of all gradients together; 0: no clipping", 0)
    seed: int = option(0, "seed of all random numbers")
    ddp: bool = option(False, "a replica on every rank, instead of shards (FSDP2)")
    bf16: bool = option(True, "computation in bf16; weights and sums stay in fp32")
    recompute: bool = option(False, "recomputed activations in the backward pass: less memory")
    compile: bool = option(False, "torch.compile for each block: slow to start, then faster")
    deterministic: bool = option(False, "the same bits in every run, also on GPUs; slower")
    timeout: int = option(600, "longest time of a collective, in seconds", 1)
    log_every: int = option(10, "steps between lines of the log", 1)
    eval_every: int = option(500, "steps between validations; 0: never", 0)
    eval_batches: int = option(20, "batches per validation, always the same; 0: never", 0)
    save_every: int = option(500, "steps between checkpoints; 0: never, unless a signal ends it", 0)
    keep: int = option(2, "number of checkpoints to keep; 0: all", 0)
    resume: int = option(-1, "step to continue after, at the job's first start; -1: the latest", -1)


class Stop(Exception):
    """End all ranks in the same way, with a line for the user and an exit status."""

    def __init__(self, line: str, status: int = 1):
        super().__init__(line)
        self.status = status


def agree(problem: str | None) -> None:
    """Raise Stop on all ranks if any of them has a problem. Every rank must call it."""
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    for rank, found in enumerate(problems):
        if found:
            raise Stop(f"rank {rank}: {found}")


def tried(function: Callable, *args: Any) -> tuple[Any, str | None]:
    """The result of the call, and the problem with a file or a setting, which is for `agree`."""
    try:
        return function(*args), None
    except (OSError, ValueError) as error:
        return None, str(error)


def any_rank(*flags: bool) -> list[bool]:
    """Which flags are true on any rank. It runs on CPUs, so it doesn't wait for a GPU's work."""
    found = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.bool().tolist()


def seed_of(*what: int | str) -> int:
    return zlib.crc32(repr(what).encode())


# --- The data: files of tokens, mapped into memory. It needs neither a loader nor its processes.


class Tokens:
    """The sequences in all files of a part: `context` tokens and the one that follows them."""

    def __init__(self, part: str, settings: Settings, vocab: int):
        self.settings, self.vocab, self.epoch = settings, vocab, -1
        paths = sorted(Path(settings.data).glob(f"{part}*.bin"))
        self.files = [(path, self.map(path)) for path in paths]
        if not self.files:
            raise ValueError(f"{settings.data}: no {part}*.bin there. make_tokens.py creates it")
        counts = [max(0, len(tokens) - 1) // settings.context for _, tokens in self.files]
        self.starts = torch.tensor([0, *counts]).cumsum(0)
        if len(self) < settings.batch:
            few = f"{settings.data}/{part}*.bin have only {len(self)} sequences"
            raise ValueError(f"--batch {settings.batch}: {few}")

    def map(self, path: Path) -> torch.Tensor:
        """Tokens in uint16 or uint32, after a header of 1 KiB: the format of llm.c."""
        with path.open("rb") as file:
            head = file.read(1024)
        magic, _, tokens = struct.unpack("<iii", head[:12]) if len(head) == 1024 else (0, 0, 0)
        dtype = {20240520: torch.uint16, 20240801: torch.uint32}.get(magic)
        if dtype is None:
            raise ValueError(f"{path}: not a file of tokens, or damaged: its header is unknown")
        size, there = 1024 + tokens * dtype.itemsize, path.stat().st_size
        if there != size:
            raise ValueError(f"{path}: damaged: {there} bytes, but {tokens} tokens take {size}")
        count, behind = size // dtype.itemsize, 1024 // dtype.itemsize
        return torch.from_file(str(path), shared=False, size=count, dtype=dtype)[behind:]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def order(self, step: int) -> torch.Tensor:
        """The sequences of a step. [batch]"""
        settings = self.settings
        epoch, place = divmod(step, len(self) // settings.batch)
        if epoch != self.epoch:
            shuffler = torch.Generator().manual_seed(seed_of(settings.seed, "order", epoch))
            self.epoch, self.shuffled = epoch, torch.randperm(len(self), generator=shuffler)
        return self.shuffled[place * settings.batch : (place + 1) * settings.batch]

    def read(self, sequences: torch.Tensor) -> torch.Tensor:
        """[sequences, context + 1], int64, on the CPU"""
        rows = []
        for sequence in sequences.tolist():
            file = int(torch.searchsorted(self.starts, sequence, right=True)) - 1
            path, tokens = self.files[file]
            start = (sequence - int(self.starts[file])) * self.settings.context
            row = tokens[start : start + self.settings.context + 1].long()
            if row.max() >= self.vocab:
                what = f"token {int(row.max())} after position {start}"
                raise ValueError(f"{path}: {what}, but the model has only {self.vocab} (--vocab)")
            rows.append(row)
        return torch.stack(rows)


# --- The model. YOURS HERE: blocks, vocab, init(), flops(), and forward(tokens, targets) → the loss


class Block(nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        width, self.heads, self.dropout = settings.width, settings.heads, settings.dropout
        if width % self.heads:
            raise ValueError(f"--width {width}: must be a multiple of --heads {self.heads}")
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # [b, t, 3, heads, d]
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [b, heads, t, d]
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), dropout)


class Model(nn.Module):
    def __init__(self, settings: Settings):
        super().__init__()
        self.settings, self.vocab = settings, settings.vocab
        self.token = nn.Embedding(settings.vocab, settings.width)
        self.place = nn.Embedding(settings.context, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width, bias=False)
        self.head = nn.Linear(settings.width, settings.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            again = self.settings.recompute and self.training
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        logits = self.head(self.norm(x)).float()  # bf16 is enough to compute with, not to average
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def init(self) -> None:
        for name, weight in self.named_parameters():
            deep = 2 * self.settings.layers if name.endswith(("out.weight", "down.weight")) else 1
            mean, std = (1, 0) if "norm" in name else (0, 0.02 / math.sqrt(deep))
            draw(weight, seed_of(self.settings.seed, name), nn.init.normal_, mean, std)

    def flops(self) -> int:
        """FLOP per token, forward and backward: 6 per weight that multiplies, plus attention."""
        settings = self.settings
        looked_up = (settings.vocab + settings.context) * settings.width
        weights = sum(weight.numel() for weight in self.parameters()) - looked_up
        return 6 * weights + 12 * settings.layers * settings.width * settings.context


def draw(weight: torch.Tensor, seed: int, how: Callable, *limits: float) -> None:
    """Fill a weight with nn.init's `how`. Each rank draws all of it, and keeps its shard."""
    own = torch.Generator(weight.device).manual_seed(seed)
    whole = how(torch.empty(weight.shape, device=weight.device), *limits, generator=own)
    if isinstance(weight, DTensor):
        whole = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
    weight.detach().copy_(whole)


def distribute(model: Any, settings: Settings, device: torch.device) -> nn.Module:
    """Move the model from the meta device to this rank's. Only with DDP does it hold all."""
    if settings.compile:
        for block in model.blocks:  # equal blocks share what was compiled
            block.compile()
    if not settings.ddp:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16 if settings.bf16 else None, torch.float32)
        for part in (*model.blocks, model):  # the root last: it takes what no block has
            fully_shard(part, mesh=mesh, mp_policy=policy)
    # Your buffers are empty after this, and tied weights are untied (--ddp): fix both in `init`
    model.to_empty(device=device)
    model.init()
    if settings.ddp:
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    return model


# --- Checkpoints: RUN/step-00000500, …, and RUN/latest, which names the last complete one.


def checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Checkpoints:
    """Written in a thread, which needs its own collectives. All ranks call all methods."""

    OURS = "step-" + 8 * "[0-9]"  # a different name, such as step-00000500-best, is the user's

    def __init__(self, settings: Settings):
        self.folder, self.keep, self.rank = Path(settings.run), settings.keep, dist.get_rank()
        self.group = dist.new_group(backend="gloo", timeout=timedelta(hours=1))
        self.saving: Future | None = None
        self.thread = ThreadPoolExecutor(1)
        restarts = {os.environ.get(f"{by}_RESTART_COUNT", "0") for by in ("TORCHELASTIC", "SLURM")}
        resume = settings.resume if restarts == {"0"} else -1
        self.asked = f"step-{resume:08}" if resume >= 0 else ""

    def latest(self) -> Path | None:
        """Rank 0 looks, and all ranks must see the same folder: their hosts may not share it."""
        named, file = [""], self.folder / "latest"
        if self.rank == 0:
            named = [self.asked or (file.read_text().strip() if file.exists() else "")]
            for folder in self.folder.glob(self.OURS):
                if not (folder / ".metadata").exists():  # it was never completed
                    shutil.rmtree(folder)
        dist.broadcast_object_list(named)
        if not named[0]:
            return None
        folder = self.folder / named[0]
        missing = f"{folder} isn't there: correct or remove {'--resume' if self.asked else file}"
        agree(None if (folder / ".metadata").exists() else missing)
        if self.asked and self.rank == 0:
            self.publish(self.asked)
        return folder

    def damaged(self, folder: Path) -> list[str]:
        """Files that aren't what was written. The ranks divide the reading."""
        own = sorted(folder.glob("*.sha256"))[self.rank :: dist.get_world_size()]
        sums = {one.stem: (one.read_text(), tried(checksum, one.with_suffix(""))[0]) for one in own}
        bad = [name for name, (sum, found) in sums.items() if sum not in ("", found)]
        of_all = [bad] * dist.get_world_size()
        dist.all_gather_object(of_all, bad)
        return [name for each in of_all for name in each]

    def way_out(self, folder: Path) -> str:
        """The intact checkpoint before a damaged one."""
        names = [[file.parent.name for file in self.folder.glob(f"{self.OURS}/.metadata")]]
        dist.broadcast_object_list(names)
        for name in sorted(names[0], reverse=True):
            if name < folder.name and not self.damaged(self.folder / name):
                return f"{name} is intact: continue from it with --resume {int(name[5:])}"
        return f"No earlier one is intact: delete {self.folder}/latest to start again"

    def save(self, state: dict[str, Any], step: int) -> None:
        """Copy it now, and write it while training continues; `finish` makes it the latest."""
        self.finish()
        self.path = self.folder / f"step-{step:08}"
        if self.rank == 0:  # an incomplete one; others write only after rank 0 has planned
            shutil.rmtree(self.path, ignore_errors=True)
        saving = dcp.async_save(state, checkpoint_id=self.path, process_group=self.group)
        self.saving = self.thread.submit(self.add_checksums, saving)

    def add_checksums(self, saving: Future) -> None:
        """Beside each file that this rank has written, when all ranks have."""
        saving.result()
        also = [self.path / ".metadata"] if self.rank == 0 else []
        for file in [*self.path.glob(f"__{self.rank}_*.distcp"), *also]:
            Path(f"{file}.sha256").write_text(checksum(file))

    def writing(self) -> bool:
        return self.saving is not None and not self.saving.done()

    def finish(self) -> None:
        """Wait until all ranks have written, then name it the latest, and then delete old ones."""
        if self.saving is None:
            return
        problem = None
        try:
            self.saving.result()
            if self.rank == 0:
                self.publish(self.path.name)
        except (dcp.CheckpointException, OSError) as error:  # unclear if the disk is full
            free = f"{shutil.disk_usage(self.folder).free / 2**30:.3f} GiB are free there"
            problem = f"{self.path} was not written ({free}): {str(error).splitlines()[-1]}"
            if self.rank == 0:
                shutil.rmtree(self.path, ignore_errors=True)
        self.saving = None
        agree(problem)

    def publish(self, name: str) -> None:
        fresh = self.folder / "latest.new"
        with fresh.open("w") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.folder / "latest")
        whole = sorted(file.parent for file in self.folder.glob(f"{self.OURS}/.metadata"))
        for old in [one for one in whole if one.name <= name][: -self.keep]:
            (old / ".metadata").unlink()  # first, so the rest doesn't look complete
            shutil.rmtree(old)


# --- The job: one process per GPU, and each of them does all of this


class Job:
    SETTINGS: Any = Settings
    MODEL: Any = Model  # finetune.py has others
    OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)  # frozen: not saved

    def __init__(self, settings: Any, device: torch.device, signals: Sequence[int]):
        self.settings, self.device, self.signals = settings, device, signals
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.pieces, left = divmod(settings.batch, self.ranks * settings.micro)
        if left or not self.pieces:
            unit = f"a multiple of --micro {settings.micro} x {self.ranks} ranks"
            raise Stop(f"--batch {settings.batch}: must be {unit}; change one of them")
        files, problem = tried(self.open_files)
        agree(problem)
        shared = Path(settings.run, "settings.json").exists()
        agree(None if shared else f"{settings.run} is not the folder that rank 0 sees: share it")
        model, self.data, self.val = files
        dealt = torch.arange(settings.batch).view(self.pieces, self.ranks, settings.micro)
        self.own = dealt[:, self.rank].flatten()  # this rank's places in each batch
        self.flops = model.flops()
        self.model = distribute(model, settings, device)
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        wide = {"params": [w for w in self.weights if w.ndim > 1], "weight_decay": settings.decay}
        rest = {"params": [w for w in self.weights if w.ndim < 2], "weight_decay": 0.0}  # norms
        self.optimizer = torch.optim.AdamW([wide, rest], betas=(0.9, 0.95), fused=True)
        self.checkpoints, self.step, self.saved = Checkpoints(settings), 0, -1  # steps done, saved
        self.resume()
        self.recent: list[torch.Tensor] = []  # loss and norm of steps since the last look
        self.history: list[float] = []  # the mean loss of each step of this run
        self.restart_clock()

    def open_files(self) -> tuple[Any, Tokens, Tokens]:
        run, settings = Path(self.settings.run), self.settings
        if self.rank == 0:
            run.mkdir(parents=True, exist_ok=True)
            (run / "settings.json").write_text(json.dumps(asdict(settings), indent=1))
        with torch.device("meta"):
            model = self.MODEL(settings)
        return model, *(Tokens(part, settings, model.vocab) for part in ("train", "val"))

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=self.OPTIONS)
        return {"model": model, "optimizer": optimizer, "step": self.step, "order": self.order()}

    def order(self) -> str:
        """The settings that determine the order of the data, besides the step."""
        settings = self.settings
        return f"--seed {settings.seed}, --batch {settings.batch}, {len(self.data)} sequences"

    def resume(self) -> None:
        if (folder := self.checkpoints.latest()) is None:
            return
        if bad := self.checkpoints.damaged(folder):
            raise Stop(f"{folder} is damaged ({bad[0]}). {self.checkpoints.way_out(folder)}")
        state = self.state()
        try:
            dcp.load(state, checkpoint_id=folder, process_group=self.checkpoints.group)
        except dcp.CheckpointException as error:  # on all ranks alike
            raise Stop(f"{folder} was not read: {str(error).splitlines()[-1]}") from None
        if state["order"] != self.order():
            raise Stop(f"{folder} was saved with {state['order']}, but this run has {self.order()}")
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts, options=self.OPTIONS)
        self.step = self.saved = state["step"]
        if self.rank == 0:
            print(f"continues after step {self.step}", flush=True)

    def save(self) -> None:
        if self.saved != self.step:
            self.look()  # which ends the run if a loss isn't finite
            self.checkpoints.save(self.state(), self.step)
            self.saved = self.step

    def train(self) -> None:
        settings = self.settings
        while self.step < settings.steps:
            rows, problem = tried(self.data.read, self.data.order(self.step)[self.own])
            flags = bool(self.signals), problem is not None, self.checkpoints.writing()
            asked, damaged, writing = any_rank(*flags)
            if damaged:
                agree(problem)
            if not writing:
                self.checkpoints.finish()
            if asked:
                self.save()
                self.checkpoints.finish()
                why = f"stopped by a signal after saving step {self.step}"  # so not status 0
                raise Stop(f"{why}: run the same command again to continue", 128 + signal.SIGTERM)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate()
            loss = self.backward(rows)
            norm = nn.utils.clip_grad_norm_(self.weights, settings.clip or math.inf)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            self.recent.append(torch.stack([loss, norm]))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.due(settings.log_every):
                self.report()
            if settings.eval_batches and self.due(settings.eval_every):
                self.validate()
            if self.due(settings.save_every):
                self.save()
                self.restart_clock()
        self.checkpoints.finish()

    def due(self, every: int) -> bool:
        """Every `every` steps, and after the last one; never if it's 0."""
        return every > 0 and (self.step % every == 0 or self.step == self.settings.steps)

    def rate(self) -> float:
        """Learning rate: linear warmup, then half a cosine down."""
        settings = self.settings
        if self.step < settings.warmup:
            return settings.lr * (self.step + 1) / settings.warmup
        through = (self.step - settings.warmup) / max(1, settings.steps - settings.warmup)
        lowest = settings.lr * settings.min_lr_share
        return lowest + (settings.lr - lowest) * (1 + math.cos(math.pi * through)) / 2

    def backward(self, rows: torch.Tensor) -> torch.Tensor:
        """Add up the gradients of this rank's pieces, and return the loss. []

        Shards are reduced after each piece, so that no rank holds whole gradients.
        """
        settings, total = self.settings, torch.zeros((), device=self.device)
        for number, piece in enumerate(self.to_device(rows)):
            last = number == self.pieces - 1
            place = number * self.ranks + self.rank  # of the piece, in the batch
            torch.manual_seed(seed_of(settings.seed, "dropout", self.step, place))
            with self.model.no_sync() if settings.ddp and not last else nullcontext():
                loss = self.loss(piece) / self.pieces
                loss.backward()
            total += loss.detach()
        return total

    def loss(self, piece: torch.Tensor) -> torch.Tensor:
        ddp = self.settings.ddp and self.settings.bf16  # shards have their own policy
        with torch.autocast(self.device.type, torch.bfloat16, enabled=ddp):
            return self.model(piece[:, :-1], piece[:, 1:])

    def to_device(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = rows.pin_memory() if self.device.type == "cuda" else rows  # so no copy waits
        return rows.to(self.device, non_blocking=True).split(self.settings.micro)

    def look(self) -> None:
        """Fetch the losses of all ranks since the last look, and stop if one isn't finite."""
        if not self.recent:
            return
        own, self.recent = torch.stack(self.recent), []
        of_all = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(of_all, own)
        seen = torch.stack(of_all, -1).cpu()  # [steps, 2, ranks]
        for place, what, rank in (~seen.isfinite()).nonzero().tolist():
            step, value = self.step - len(seen) + place + 1, seen[place, what, rank].item()
            name = "the norm of all gradients" if what else f"the loss of rank {rank}"
            raise Stop(f"step {step}: {name} is {value}. This state isn't saved")
        self.history += seen[:, 0].mean(1).tolist()
        self.norm = seen[-1, 1, 0].item()

    @torch.no_grad()
    def validate(self) -> None:
        """The mean loss of the same sequences each time, on any number of ranks."""
        self.look()
        settings, total = self.settings, torch.zeros((), device=self.device)
        batches = min(settings.eval_batches, len(self.val) // settings.batch)
        self.model.eval()
        for batch in range(batches):
            rows, problem = tried(self.val.read, batch * settings.batch + self.own)
            agree(problem)
            for piece in self.to_device(rows):
                total += self.loss(piece) / (self.pieces * self.ranks * batches)
        self.model.train()
        dist.all_reduce(total)
        self.say(f"val loss {total.item():.4f}", {"val_loss": total.item()})
        gc.collect()
        self.restart_clock()

    def restart_clock(self) -> None:
        self.since, self.timed_from = time.perf_counter(), self.step

    def report(self) -> None:
        self.look()  # waits for the GPU, so the clock measures its work
        loss, rate = self.history[-1], self.optimizer.param_groups[0]["lr"]
        tokens = (self.step - self.timed_from) * self.settings.batch * self.settings.context
        speed = tokens / (time.perf_counter() - self.since)
        record = {"loss": loss, "norm": self.norm, "lr": rate, "tokens_per_s": speed}
        line = f"loss {loss:.4f} · norm {self.norm:.2f} · lr {rate:.1e} · {speed:,.0f} tokens/s"
        if self.device.type == "cuda":
            record["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            line += f" · peak {record['peak_gib']:.1f} GiB"
            peaks = [peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()]
            if peaks:
                record["mfu"] = speed * self.flops / (self.ranks * peaks[0] * 1e12)
                line += f" · MFU {record['mfu']:.1%}"
        self.say(line, record)
        gc.collect(1)  # young objects, on all ranks at the same time
        self.restart_clock()

    def say(self, line: str, record: dict[str, Any]) -> None:
        """A line to read, and one of JSON. If a step was repeated, the last line counts."""
        if self.rank == 0:
            print(f"step {self.step} · {line}", flush=True)
            try:
                with Path(self.settings.run, "log.jsonl").open("a") as file:
                    file.write(json.dumps({"step": self.step, **record}) + "\n")
            except OSError as error:  # the disk is full, but training can continue
                print(error, file=sys.stderr)
            # YOUR LOGGER HERE: wandb.log(record, step=self.step)


def without_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables, from those of a different launcher; without one, a single rank."""
    kinds = [  # the rank, how many there are, and its number on its host
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # of srun
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ]
    found = [names for names in kinds if names[0] in env and names[1] in env]
    if not found:
        return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    rank, ranks, local = found[0]
    number = env.get(local) or env.get("PMI_LOCAL_RANK") or env.get("SLURM_LOCALID") or "0"
    meet = env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR") or ""
    if env[ranks] != "1" and not meet:
        sys.exit(f"train.py: {ranks}={env[ranks]}: use srun, or set MASTER_ADDR to rank 0's host")
    port = 20000 + int(env.get("SLURM_JOB_ID", 9500)) % 10000  # each job's own; else 29500
    place = {"RANK": env[rank], "LOCAL_RANK": number, "WORLD_SIZE": env[ranks]}
    return place | {"MASTER_ADDR": meet, "MASTER_PORT": env.get("MASTER_PORT") or str(port)}


def join(settings: Settings) -> torch.device:
    """Meet the other ranks. Gloo, next to NCCL, is for checkpoints, `agree` and `any_rank`."""
    meet: dict[str, Any] = {"timeout": timedelta(seconds=settings.timeout)}
    if "RANK" not in os.environ:
        os.environ |= without_torchrun(os.environ)
        if os.environ["WORLD_SIZE"] == "1":  # no other rank has to reach it
            meet |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    recorder = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    recorder["TORCH_FR_DUMP_TEMP_FILE"] = f"{settings.run}/collectives_of_rank_"
    os.environ |= recorder | dict(os.environ)  # if one hangs, each rank writes what NCCL did last
    share = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # github.com/pytorch/pytorch/issues/135712
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) and not os.environ.get(share):
        sys.exit(f"set {share}=1: otherwise, restarted ranks wait for dead ones, and hang")
    device, backend, where = torch.device("cpu"), "gloo", "gloo · no GPU found, so on CPUs"
    if torch.cuda.is_available():  # some clusters show a rank only its own GPU
        local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
        where = f"nccl · {torch.cuda.get_device_name()}"
    if not dist.is_initialized():  # Ray has done it
        own = device if device.type == "cuda" else None
        dist.init_process_group(backend, device_id=own, **meet)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks · {where}", flush=True)
    return device


def parse(words: tuple[str, ...], kind: Any = Settings, about: Any = __doc__) -> Any:
    as_is, flag = argparse.RawDescriptionHelpFormatter, argparse.BooleanOptionalAction
    parser = argparse.ArgumentParser(description=about, formatter_class=as_is, allow_abbrev=False)
    for one in fields(kind):
        name, given, what = "--" + one.name.replace("_", "-"), one.default, one.metadata["what"]
        how: dict[str, Any] = {"action": flag} if one.type is bool else {"type": one.type}
        if given is MISSING:
            parser.add_argument(one.name, metavar=one.name.upper(), help=what)
        else:
            parser.add_argument(name, default=given, **how).help = f"{what} (default: {given})"
    settings = kind(**vars(parser.parse_args(words)))
    for one in fields(settings):
        value, least = getattr(settings, one.name), one.metadata["least"]
        if not isinstance(value, str) and not value >= least:
            parser.error(f"--{one.name.replace('_', '-')} {value}: must be at least {least}")
    return settings


def watch_signals() -> list[int]:
    """Signals received so far; a step is finished first. A second Ctrl+C ends it immediately."""
    come: list[int] = []

    def note(number: int, _: Any) -> None:
        come.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # not SIGTERM: torchrun repeats Slurm's

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive torchrun
    return come


def main(*words: str, signals: Sequence[int] = (), kind: Any = Job, about: Any = __doc__) -> list:
    """Train, and return the mean loss of each step of this run. Raises Stop on all ranks."""
    settings = parse(words, kind.SETTINGS, about)
    device = join(settings)
    torch.set_float32_matmul_precision("high")
    if settings.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    job = kind(settings, device, signals)
    gc.disable()  # it would stop each rank in a different step, and all others wait
    try:
        job.train()
    except Stop:
        job.checkpoints.finish()  # the last good one may not be written yet
        raise
    finally:
        gc.enable()
    return job.history


def run(kind: Any = Job, about: Any = __doc__) -> None:
    status = 0
    try:
        main(*sys.argv[1:], signals=watch_signals(), kind=kind, about=about)
    except Stop as stop:
        status = stop.status
        if dist.get_rank() == 0:
            print(f"{Path(sys.argv[0]).name}: {stop}", file=sys.stderr)
    dist.destroy_process_group()  # not before the model is gone: that can hang
    sys.exit(status)


if __name__ == "__main__":
    run()
