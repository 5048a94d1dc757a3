"""Dry run of a plan without GPUs: rank 0 of N, in one process, without memory or messages.

PyTorch's fake process group completes every collective immediately, and fake tensors have shapes
but no elements. So the code from `copies` runs at full size on a laptop, PyTorch's trackers report
the memory at the peak, and a dispatch mode adds up the bytes passed to each collective.

    FSDP2   is executed entirely in this way
    DDP     accesses its tensors' memory, which fake ones lack. A narrow model of real tensors gives
            the bytes per parameter, and fake tensors without DDP give the rest
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from distributed.cost import Cluster
from distributed.planner.job import Job, Option
from distributed.planner.memory import SHARED, Held
from distributed.planner.shapes import Model
from recipes.copies import torch_code

MakeModel = Callable[[], nn.Module]
COLLECTIVES = {  # operation → its name, and which of its tensors is the whole
    "c10d._allgather_base_": ("all-gather", 0),
    "c10d._reduce_scatter_base_": ("reduce-scatter", 1),
    "c10d.allreduce_": ("all-reduce", 0),
    "c10d.broadcast_": ("broadcast", 0),
}
STATES = "Parameter", "Gradient", "Optstate"  # the names in `MemTracker`
SMALL = 512  # bytes: up to this size, a message is a count or a norm, not part of the model


class Executed(NamedTuple):
    """Bytes at the peak of the second step, by purpose, and bytes passed to collectives."""

    memory: Held
    sent: Held

    @property
    def held(self) -> float:
        return sum(self.memory.values())


class Block(nn.Module):
    """A layer as `Model` counts it, without rotary positions, which would keep nothing more."""

    def __init__(self, model: Model):
        super().__init__()
        self.heads, self.kv, d = model.heads, model.kv, model.d
        wide, narrow = round(model.q_width), round(model.kv_width)
        if wide % self.heads:  # the width of a size alone, and its heads change no bytes
            self.heads = self.kv = 1
        # A norm without a bias; for RMSNorm PyTorch has one kernel on GPUs and many here
        self.norms = nn.ModuleList(nn.LayerNorm(d, bias=False) for _ in range(2))
        self.q, self.out = nn.Linear(d, wide, bias=False), nn.Linear(wide, d, bias=False)
        self.k, self.v = (nn.Linear(d, narrow, bias=False) for _ in range(2))
        self.up, self.down = (
            nn.Linear(d, model.ffn, bias=False),
            nn.Linear(model.ffn, d, bias=False),
        )
        self.gate = nn.Linear(d, model.ffn, bias=False) if model.gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, tokens, d)."""
        h = self.norms[0](x)
        parts = (self.q, self.heads), (self.k, self.kv), (self.v, self.kv)
        q, k, v = (of(h).unflatten(-1, (n, -1)).transpose(1, 2) for of, n in parts)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.kv != self.heads
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        h = F.silu(self.gate(h)) * self.up(h) if self.gate is not None else F.gelu(self.up(h))
        return x + self.down(h)


class Transformer(nn.Module):
    """A network with exactly the parameters of a `Model`; a call returns the loss."""

    def __init__(self, model: Model):
        super().__init__()
        self.words = nn.Embedding(model.vocab_size, model.d)
        self.places = nn.Embedding(model.positions, model.d) if model.positions else None
        self.layers = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.d, bias=False)
        self.head = nn.Linear(model.d, model.vocab_size, bias=False)
        if model.tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Both (rows, tokens)."""
        h = self.words(words)
        if self.places is not None:
            h = h + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1).float(), following.flatten())


class CountBytes(TorchDispatchMode):
    """Adds up the bytes of the tensors that are passed to collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Held = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(operation).removesuffix(".default")
        if name in COLLECTIVES:
            collective, whole = COLLECTIVES[name]
            given = args[whole] if isinstance(args[whole], list) else [args[whole]]
            size = sum(tensor.numel() * tensor.element_size() for tensor in given)
            if size > SMALL:
                self.sent[collective] = self.sent.get(collective, 0.0) + size
        return operation(*args, **(kwargs or {}))


@contextmanager
def world_of(ranks: int) -> Iterator[None]:
    """Rank 0 of a fake world. Raises RuntimeError inside a real one."""
    if dist.is_initialized():
        raise RuntimeError("there is a process group already: execute a plan in its own process")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Untracked:
    """Keeps a tracker from counting the tensors that DTensor makes up to learn a result's shape.

    Outside of a fake mode the tracker tells them from real ones by their mode. Inside of one
    DTensor takes the same mode, so whole tensors were counted where ranks have shards.
    """

    def __init__(self, tracker: MemTracker):
        self.tracker: Any = tracker
        self.mode: object = None

    def __enter__(self) -> None:
        self.mode, self.tracker._fake_mode_on_entry = self.tracker._fake_mode_on_entry, object()

    def __exit__(self, *_: object) -> None:
        self.tracker._fake_mode_on_entry = self.mode


def real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with real tensors: a mesh reads its own."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return called


class MicroBatches(list[Any]):
    """Micro-batches of a step, with a call before each: a tracker rejects a second forward pass."""

    def __init__(self, batches: list[Any], before_each: Callable[[], object]):
        super().__init__(batches)
        self.before_each = before_each

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.before_each()
            yield batch


def tracker_of(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> MemTracker:
    if isinstance(model, FSDPModule):
        of_shards = FSDPMemTracker(cast(nn.Module, model), optimizer)
        of_shards.track_inputs(batch)
        return of_shards
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *batch)
    return tracker


def second_step(names: dict[str, Any], make_model: MakeModel, batch: Any, job: Job) -> Executed:
    """Memory and traffic of `parallelize` and `train_step` once the optimizer has its states."""
    counter = CountBytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer = names["parallelize"](make_model, device="cpu")
        is_told = "device" in signature(names["train_step"]).parameters
        step = partial(names["train_step"], device="cpu") if is_told else names["train_step"]
        step(model, optimizer, [batch])  # one micro-batch is enough for the states
        tracker = tracker_of(model, optimizer, batch)
        untracked = Untracked(tracker)
        with mock.patch.object(ShardingPropagator, "_fake_mode_lock", untracked), counter, tracker:
            step(model, optimizer, MicroBatches([batch] * job.accumulate, tracker.reset_mod_stats))
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    held = {getattr(part, "value", part): float(size) for part, size in peak.items() if size}
    held.pop("Total")
    return Executed(held, counter.sent)


def names_of(code: str) -> dict[str, Any]:
    """The names that copied code defines; its mesh is created with real tensors."""
    names: dict[str, Any] = {}
    exec(compile(code, "copied.py", "exec"), names)
    if "init_device_mesh" in names:
        names["init_device_mesh"] = real(names["init_device_mesh"])
    return names


def words_of(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    shape = max(1, round(job.rows)), job.context
    words = torch.zeros(shape, dtype=torch.long)
    return words, words.clone()


def answered(names: dict[str, Any]) -> None:
    """DDP needs its all-reduce's result. The fake group's has none, so the bucket is used."""

    def plain(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer())
        return done(bucket.buffer())

    def halved(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        half = bucket.buffer().to(torch.bfloat16)
        dist.all_reduce(half)
        return done(bucket.buffer().copy_(half))

    def wrapped(model: nn.Module, **options: Any) -> nn.Module:
        found = nn.parallel.DistributedDataParallel(model, **options)
        if "bf16_compress_hook" not in names:
            found.register_comm_hook(None, plain)
        return found

    names["DistributedDataParallel"] = wrapped
    if "bf16_compress_hook" in names:
        names["bf16_compress_hook"] = halved


def done(result: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(result)
    return future


def no_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


class Unwrapped(nn.Module):
    """Stand-in for DDP with fake tensors: only the model. DDP keeps gradients in its buckets."""

    def __init__(self, model: nn.Module, **_: Any):
        super().__init__()
        self.module = model
        self.no_sync = nullcontext
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(no_gradient)

    def forward(self, *batch: Any) -> Any:
        return self.module(*batch)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Nothing is sent."""


def to_dtype(
    model: nn.Module, device: object = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """`nn.Module.to` for fake parameters, which it can't swap; they are on the device already."""
    if dtype is None:
        return model
    known: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            cast = known.setdefault(parameter, nn.Parameter(parameter.detach().to(dtype)))
            setattr(module, name, cast)
    return model


def execute(
    best: Option,
    job: Job,
    cluster: Cluster,
    make_model: MakeModel | None = None,
    layers: str = "layers",
) -> Executed:
    """Run a plan's PyTorch code from `copies` on rank 0 of the cluster's ranks, at full size.

    The default model is a `Transformer`. A different model has its blocks in `layers`, takes words
    and the words that follow, both (rows, context), and returns the loss. Raises RuntimeError if a
    process group exists already.
    """
    code = torch_code(best, job, cluster, layers)
    make = make_model or partial(Transformer, job.model)
    if best.name not in SHARED:
        return replicas(torch_code(best, job, cluster), code, make, job, cluster)
    with world_of(cluster.ranks), FakeTensorMode():
        return second_step(names_of(code), make, words_of(job), job)


def replicas(narrow: str, code: str, make: MakeModel, job: Job, cluster: Cluster) -> Executed:
    """DDP's states from a narrow model of real tensors; the rest from fake ones without DDP."""
    layers = min(max(4, cluster.ranks // 2), 64)  # so that each rank has enough tensors to optimize
    small = Model(layers, 192, 3, 3, 768, 768)
    names = names_of(narrow)
    answered(names)
    counter, few = CountBytes(), job._replace(rows=1, context=8)
    with world_of(cluster.ranks), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer = names["parallelize"](partial(Transformer, small), device="cpu")
        gradients: list[torch.Tensor] = []
        optimizer.register_step_pre_hook(
            lambda *_: gradients.extend(each.grad for each in model.parameters())
        )
        with counter:
            names["train_step"](model, optimizer, [words_of(few)] * job.accumulate, "cpu")
    own = getattr(optimizer, "optim", optimizer)  # of this rank's shard
    states = [each for found in own.state.values() for each in found.values()]
    with torch.device("meta"):
        larger = sum(each.numel() for each in make().parameters()) / small.parameters
    parts = dict(zip(STATES, ([*model.parameters()], gradients, states), strict=True))
    held = {part: larger * stored(tensors) for part, tensors in parts.items()}

    names = names_of(code)
    names["DistributedDataParallel"] = Unwrapped
    names["ZeroRedundancyOptimizer"] = lambda parameters, kind, **more: kind(parameters, **more)
    alone = world_of(cluster.ranks)  # its messages are never sent
    with alone, FakeTensorMode(), mock.patch.object(nn.Module, "to", to_dtype):
        whole = second_step(names, make, words_of(job), job)
    held |= {part: size for part, size in whole.memory.items() if part not in STATES}
    return Executed(held, {name: larger * size for name, size in counter.sent.items()})


def stored(tensors: list[torch.Tensor]) -> float:
    """Bytes of all storages; a storage that several tensors share counts once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return float(sum(storage.nbytes() for storage in storages.values()))
