"""What is kept of one rank's trace: who was busy when, with what, and who asked for it.

A GPU's kernels and copies, the steps, what Python waited for; and for a job without a GPU, its
operators and gloo's collectives. Times are microseconds on that rank's clock.
"""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed.read_trace.events import Event, Events, TraceError
from distributed.read_trace.intervals import Stretches, union
from distributed.read_trace.messages import Collective, called

COMMUNICATION = re.compile(
    r"nccl|^rccl|^(one|two)_shot_all_reduce|multimem_all|nvshmem|^hccl", re.IGNORECASE
)
STEP = re.compile(r"ProfilerStep#(\d+)$")
LOADER = re.compile(r"enumerate\(DataLoader\)|load_batch|wait_for_batch|next_batch|get_batch", re.I)
SYNCHRONIZE = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
GRADIENT = "torch::autograd::AccumulateGrad"
OTHER_DEVICES = ("mtia", "xpu", "hpu", "privateuse1")


class Kernel(NamedTuple):
    """Something that a GPU did: `kind` is compute, communication or copy."""

    start: float
    end: float
    name: str
    kind: str
    stream: int
    correlation: int


class ProfilerStep(NamedTuple):
    number: int
    start: float
    end: float


@dataclass
class RankTrace:
    """One rank's trace, as far as it is needed."""

    name: str
    rank: int = -1  # −1: the file does not say
    ranks: int = 0  # 0: the file does not say
    backend: str = ""
    device: str = ""
    events: int = 0
    begin: float = 0.0  # µs of the first event that is kept, on a clock that recordings share
    steps: list[ProfilerStep] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    launched: dict[int, float] = field(default_factory=dict)  # correlation → when Python asked
    loading: Stretches = field(default_factory=list)
    synchronizing: Stretches = field(default_factory=list)
    waiting: list[tuple[float, float, str]] = field(default_factory=list)  # .item() and the like
    asking: Stretches = field(default_factory=list)  # Python starts a collective
    gradients: list[float] = field(default_factory=list)  # when each parameter's became complete
    operators: array = field(default_factory=lambda: array("d"))  # start, end, start, end, …
    notes: list[str] = field(default_factory=list)

    @property
    def is_gpu(self) -> bool:
        return bool(self.kernels)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps, as the profiler counts them."""
        return [step.number for step in self.steps]

    def busy(self, kind: str) -> Stretches:
        """When at least one kernel (without a GPU, operator or collective) of a kind ran."""
        if self.is_gpu:
            return union((k.start, k.end) for k in self.kernels if k.kind == kind)
        if kind == "compute":
            return union(zip(self.operators[::2], self.operators[1::2], strict=True))
        return union((c.start, c.end) for c in self.collectives) if kind != "copy" else []


class Collector:
    """Takes the events of one file; `finish` gives what was kept of them."""

    def __init__(self, name: str) -> None:
        self.trace = RankTrace(name)
        self.names: dict[str, str] = {}  # one string for each name, however often it comes
        self.others: set[str] = set()
        self.takers: dict[str, Callable[[str, float, float, Event], None]] = {
            "kernel": self.take_kernel,
            "gpu_memcpy": self.take_copy,
            "memcpy": self.take_copy,
            "gpu_memset": self.take_copy,
            "memset": self.take_copy,
            "cuda_runtime": self.take_call,
            "cuda_driver": self.take_call,
            "runtime": self.take_call,
            "user_annotation": self.take_annotation,
            "cpu_op": self.take_operator,
            "operator": self.take_operator,
        }

    def take(self, event: Event) -> None:
        """Keep what is needed of an event."""
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        taker = self.takers.get(category)
        if taker is None:
            if category.startswith(OTHER_DEVICES):
                self.others.add(category.split("_")[0])
            return
        try:
            start = float(event["ts"])
            end = start + float(event.get("dur", 0))
        except (KeyError, TypeError, ValueError):
            return
        name = str(event.get("name", ""))
        taker(self.names.setdefault(name, name), start, end, event)

    def take_kernel(self, name: str, start: float, end: float, event: Event) -> None:
        args = event.get("args") or {}
        is_message = COMMUNICATION.search(name) is not None
        kind = "communication" if is_message else "compute"
        self.keep(name, start, end, kind, args)
        if is_message:
            self.trace.collectives.append(called(name, start, end, args))

    def take_copy(self, name: str, start: float, end: float, event: Event) -> None:
        self.keep(name, start, end, "copy", event.get("args") or {})

    def keep(self, name: str, start: float, end: float, kind: str, args: dict[str, Any]) -> None:
        stream, correlation = args.get("stream", 0), args.get("correlation", 0)
        stream = stream if isinstance(stream, int) else 0
        self.trace.kernels.append(Kernel(start, end, name, kind, stream, int(correlation or 0)))

    def take_call(self, name: str, start: float, end: float, event: Event) -> None:
        if SYNCHRONIZE.match(name):
            self.trace.synchronizing.append((start, end))
        correlation = (event.get("args") or {}).get("correlation")
        if correlation:
            self.trace.launched[int(correlation)] = start

    def take_annotation(self, name: str, start: float, end: float, event: Event) -> None:
        if step := STEP.match(name):
            self.trace.steps.append(ProfilerStep(int(step[1]), start, end))
        elif LOADER.search(name):
            self.trace.loading.append((start, end))
        elif name.startswith("nccl:"):
            self.trace.asking.append((start, end))
        elif name.startswith("gloo:"):
            self.trace.collectives.append(called(name, start, end, event.get("args") or {}))

    def take_operator(self, name: str, start: float, end: float, event: Event) -> None:
        if name == GRADIENT:
            self.trace.gradients.append(end)
        elif name in WAITING:
            self.trace.waiting.append((start, end, name))
        elif LOADER.search(name):
            self.trace.loading.append((start, end))
        if name.startswith(("c10d::", "record_param_comms")):
            self.trace.asking.append((start, end))
        else:
            self.trace.operators.extend((start, end))

    def finish(self, events: Events) -> RankTrace:
        """The trace, in order. Raises TraceError where it has nothing that we know."""
        trace, header = self.trace, events.header
        trace.events = events.count
        trace.notes += events.notes
        told = header.get("distributedInfo")
        if isinstance(told, dict):
            trace.rank = int(told.get("rank", -1))
            trace.ranks = int(told.get("world_size", 0))
            trace.backend = str(told.get("backend", ""))
        if trace.rank < 0 and (named := re.search(r"rank[-_ ]?(\d+)", trace.name, re.I)):
            trace.rank = int(named[1])
        devices = header.get("deviceProperties") or [{}]
        trace.device = str(devices[0].get("name", "")) if isinstance(devices, list) else ""
        if self.others and not trace.kernels:
            names = ", ".join(sorted(self.others)).upper()
            raise TraceError(f"{trace.name} is of {names}: only GPUs and CPUs can be read so far")
        if not trace.kernels and not trace.operators:
            raise TraceError(f"{trace.name} has neither kernels nor operators: was anything run?")
        trace.kernels.sort()
        trace.collectives.sort()
        trace.gradients.sort()
        trace.steps.sort(key=lambda step: step.start)
        starts = [step.start for step in trace.steps[:1]]
        starts += [min(trace.operators[::2])] if trace.operators else [trace.kernels[0].start]
        base = header.get("baseTimeNanoseconds", 0)
        trace.begin = min(starts) + (base / 1e3 if isinstance(base, int | float) else 0.0)
        trace.loading = union(trace.loading)
        trace.asking = union(trace.asking)
        trace.synchronizing = union(trace.synchronizing)
        if trace.is_gpu:
            trace.operators = array("d")
        else:
            trace.notes.append(
                "No GPU events: what counts here are operators on the CPU and gloo's collectives."
            )
        self.check_steps()
        return trace

    def check_steps(self) -> None:
        trace = self.trace
        pairs = zip(trace.steps, trace.steps[1:], strict=False)
        crossing = [(a, b) for a, b in pairs if b.start < a.end - 0.05 * (a.end - a.start)]
        if crossing:
            a, b = crossing[0]
            trace.notes.append(
                f"Steps {a.number} and {b.number} overlap, so the whole trace is read as one step."
            )
            trace.steps = []
        elif not trace.steps:
            trace.notes.append(
                "No ProfilerStep#: call profiler.step() after each step. "
                "The whole trace is read as one."
            )
