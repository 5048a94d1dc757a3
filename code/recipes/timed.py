"""Speed of a GPU on a model's layers: what `--measure` prints and `--speed` takes.

A layer's forward and backward pass, without messages, loss, or optimizer, because a plan counts
these separately. FLOP are counted as in `Model.flops`: recomputation isn't, and attention is.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from distributed.planner.job import Job
from recipes.executed import Block

LAYERS = 2  # so that launching one can overlap with running the other
WARM_UPS, LONG = 3, 2.0  # passes that aren't timed; seconds that are
MOST = 100  # passes that are timed, at most


class Timed:
    """The layers of a job with their input, on this machine's GPU, or on its CPU in fp32.

    Raises ValueError for a job whose layers `Block` doesn't have.
    """

    def __init__(self, job: Job, tf32: bool = False):
        if job.model.experts or job.model.latent:
            what = "mixtures of experts" if job.model.experts else "latent attention"
            way = "time a step of your own model, and pass what it achieves as --speed"
            raise ValueError(f"measure: it can't time {what}; {way}")
        if job.rows != int(job.rows):
            raise ValueError(f"sequences={job.rows:g}: give a whole number to measure")
        # As `Block` computes: without windows, and with heads that are all of one width
        width = job.model.head_dim or max(1, job.model.d // job.model.heads)
        self.job, self.model = job, job.model._replace(window=0, local=0.0, head_dim=width)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.float32
        if self.device.type == "cuda" and job.recipe.parameters == 2:
            has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
            self.dtype = torch.bfloat16 if has_bf16 else torch.float16
        self.tf32 = tf32 and self.device.type == "cuda"

    @property
    def name(self) -> str:
        """What is timed, on what, and in which number format."""
        job, where = self.job, "this CPU"
        if self.device.type == "cuda":
            where = torch.cuda.get_device_name()
        rows = f"{job.rows:g} sequence{'s' * (job.rows > 1)} of {job.context:,} tokens"
        kind = "compiled" if job.compiled else "eager"
        numbers = "TF32" if self.tf32 else str(self.dtype).removeprefix("torch.")
        return f"a layer of width {job.model.d:,}, {rows}, {kind}, in {numbers}, on {where}"

    @property
    def flops(self) -> float:
        """FLOP of a layer's two passes over a micro-batch."""
        more, fewer = (self.model._replace(layers=n).flops(self.job.context) for n in (2, 1))
        return self.job.tokens * (more - fewer)

    def passes(self) -> Callable[[], None]:
        """A call of it runs both passes of `LAYERS` layers."""
        job = self.job
        with self.device:
            layers: nn.Module = nn.Sequential(*(Block(self.model) for _ in range(LAYERS)))
            layers = layers.to(self.dtype)
            x = torch.randn(int(job.rows), job.context, job.model.d, dtype=self.dtype)
        if job.compiled:
            layers.compile()
        x.requires_grad_()

        def both() -> None:
            layers(x).sum().backward()

        return both

    def speed(self) -> float:
        """FLOP/s: the mean of about two seconds. Raises ValueError if this machine can't run it."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        try:
            both = self.passes()
            self.seconds(both, WARM_UPS)
            times = max(1, min(MOST, int(LONG / self.seconds(both, 1))))
            return LAYERS * self.flops / self.seconds(both, times)
        except RuntimeError as error:  # there isn't enough memory, or no compiler
            first = str(error).strip().partition("\n")[0]
            raise ValueError(f"measure: {self.name} can't be run here: {first}") from None
        finally:
            torch.set_float32_matmul_precision(before)

    def seconds(self, both: Callable[[], None], times: int) -> float:
        """The mean of this many calls; a GPU is waited for before and after them, not between."""

        def clock() -> float:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter()

        begun = clock()
        for _ in range(times):
            both()
        return (clock() - begun) / times
