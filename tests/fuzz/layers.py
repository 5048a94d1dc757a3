"""Real modules for the fuzzer's blocks: a table of layers, x[b, width], raw[b, 3] → y[b, width].

A layer is in float64 and smooth, so that rounding stays where it is. What it cannot do is in its
row; an event that needs that is drawn without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

VOCABULARY = 5


def ids_of(raw: torch.Tensor) -> torch.Tensor:
    """raw[b, 3] → integers below VOCABULARY, of the same shape."""
    return (raw * 10).long() % VOCABULARY


class Sequence(nn.Module):
    """A module over sequences, which takes the batch for one: [b, width] → [1, b, width]."""

    def __init__(self, inner: nn.Module, inputs: int = 1):
        super().__init__()
        self.inner, self.inputs = inner.double(), inputs

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        output = self.inner(*[x[None]] * self.inputs)
        return output[0][0] if isinstance(output, tuple) else output[0]


def attention(width: int, **options: Any) -> nn.Module:
    heads = 2 if width % 2 == 0 else 1
    return Sequence(nn.MultiheadAttention(width, heads, batch_first=True, **options), inputs=3)


def encoder(width: int, **options: Any) -> nn.Module:
    return Sequence(
        nn.TransformerEncoderLayer(width, 1, 4, 0.0, F.gelu, batch_first=True, **options)
    )


def decoder(width: int) -> nn.Module:
    return Sequence(
        nn.TransformerDecoderLayer(width, 1, 4, 0.0, F.gelu, batch_first=True), inputs=2
    )


def recurrent(make: type[nn.Module], width: int, hidden: int, **options: Any) -> nn.Module:
    return Sequence(make(width, hidden, batch_first=True, **options))


class Lookup(nn.Module):
    """Rows of an embedding, in order, or of an EmbeddingBag, added up."""

    def __init__(self, width: int, make: type[nn.Module], **options: Any):
        super().__init__()
        self.inner = make(VOCABULARY, width, **options).double()

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        ids = ids_of(raw)
        return self.inner(ids[:, 0] if isinstance(self.inner, nn.Embedding) else ids)


class WeightedBags(Lookup):
    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return self.inner(ids_of(raw), per_sample_weights=raw.abs())


class RaggedBags(Lookup):
    """Bags of three rows, of none, and so on."""

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        starts = [6 * (i // 2) + 3 * (i % 2) for i in range(len(raw))]
        return self.inner(ids_of(raw).flatten(), torch.tensor(starts).clamp(max=3 * len(raw)))


class TiedLookup(Lookup):
    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x, self.inner.weight)
        return super().forward(x, raw) + scores.tanh() @ self.inner.weight


class Convolution(nn.Module):
    """Convolutions in channels_last, and a norm between them; pixels are multiples of x."""

    def __init__(self, width: int, norm: Callable[[], nn.Module]):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, 4, 3, padding=1), norm(), nn.GELU(), nn.ConvTranspose2d(4, width, 2)
        )
        self.inner.double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        pixels = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.3, -0.2]], dtype=x.dtype)
        image = (x[..., None, None] * pixels).contiguous(memory_format=torch.channels_last)
        return self.inner(image).mean((2, 3))


class Linear(nn.Module):
    """A linear layer, changed by `change`."""

    def __init__(self, width: int, change: Callable[[nn.Module], nn.Module]):
        super().__init__()
        self.inner = change(nn.Linear(width, width).double())

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class LowRank(Linear):
    """LoRA: what is trained is added to a frozen base."""

    def __init__(self, width: int):
        super().__init__(width, lambda inner: inner.requires_grad_(False))
        self.a = nn.Parameter(torch.rand(1, width, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(width, 1, dtype=torch.float64))

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return super().forward(x, raw) + x @ self.a.t() @ self.b.t()


class Uncalled(Linear):
    """Its weight is used, and the module that has it is not called."""

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.inner.weight, self.inner.bias)


class Experts(nn.Module):
    """Each row goes to one expert of four, which its input chooses; one without rows is skipped."""

    def __init__(self, width: int, skips: bool):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width).double() for _ in range(4))
        self.gate = nn.Linear(width, 4).double()
        self.skips = skips

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        chosen, weights = ids_of(raw)[:, 0] % 4, self.gate(x).softmax(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = (chosen == i).nonzero(as_tuple=True)
            if len(rows) or not self.skips:
                y = y.index_add(0, rows, expert(x[rows]) * weights[rows, i, None])
        return y


class Lists(nn.Module):
    """A ParameterList and a ParameterDict: among them an empty parameter and a transposed one."""

    def __init__(self, width: int):
        super().__init__()
        rand = partial(torch.rand, dtype=torch.float64)
        self.listed = nn.ParameterList([rand(width), rand(0, 2), rand(())])
        self.named = nn.ParameterDict({"transposed": rand(3, width).t(), "back": rand(3, width)})

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        vector, empty, scalar = self.listed
        back = (x @ self.named["transposed"]).tanh() @ self.named["back"]
        return (back + vector) * scalar + empty.sum()


class Parts(nn.Module):
    """Two parameters in one storage: next to each other, or in the same place."""

    def __init__(self, width: int, overlap: bool):
        super().__init__()
        both = torch.rand(2 * width, dtype=torch.float64)
        self.first = nn.Parameter(both[:width])
        self.second = nn.Parameter(both[:width] if overlap else both[width:])

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        return (x * self.first).tanh() * self.second


class Complex(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, width, dtype=torch.complex128))

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        y = x.to(self.weight.dtype) @ self.weight
        return y.real + y.imag.tanh()


class Buffers(nn.Module):
    """Buffers of all kinds; what is saved also changes in training."""

    def __init__(self, width: int):
        super().__init__()
        made = {
            "integer": torch.tensor([0, 1]),
            "small": torch.tensor([1, 2], dtype=torch.int8),
            "boolean": torch.tensor([True, False]),
            "narrow": torch.ones(2, dtype=torch.float16),
            "complex": torch.ones(2, dtype=torch.complex64),
            "empty": torch.ones(0, 3),
            "transposed": torch.rand(3, width, dtype=torch.float64).t(),
            "nothing": None,
        }
        for name, value in made.items():
            self.register_buffer(name, value)
        self.register_buffer("unsaved", torch.rand(width).double(), persistent=False)

    def forward(self, x: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.integer += ids_of(raw).sum()
                self.small += 1
                self.boolean ^= bool(ids_of(raw).sum() % 2)
                self.narrow.add_(1.0)
                self.complex.mul_(1j)
                self.transposed.mul_(0.5).add_(raw.sum())
        y = x * self.unsaved + self.transposed.sum(1).tanh() + self.integer.sum() % 3
        return y * (self.complex.real.sum() + self.narrow.sum()) * (1 + self.boolean.sum())


@dataclass(frozen=True)
class Layer:
    make: Callable[[int], nn.Module]
    leaves_out: bool = False  # whether parameters can be without a gradient, on some ranks
    is_refused: bool = False  # whether a wrapper may refuse it
    # What programs do that it cannot: "second derivative", "pickle", "empty batch", "cast",
    # "flatten" (it has strides), "scale", "join" (its buffers depend on what each rank has seen),
    # "two forwards" (the graph keeps buffers, and DDP's next forward pass writes into them)
    cannot: frozenset[str] = field(default_factory=frozenset)


def row(make: Callable[..., nn.Module], *cannot: str, **options: bool) -> Layer:
    return Layer(make, cannot=frozenset(cannot), **options)


SECOND, EMPTY, PICKLE, CAST, JOIN = "second derivative", "empty batch", "pickle", "cast", "join"
FLATTEN, SCALE, TWO = "flatten", "scale", "two forwards"
CONVOLUTION = (SECOND, EMPTY, FLATTEN)
BATCH_NORM = (*CONVOLUTION, JOIN, TWO)
LAYERS: dict[str, Layer] = {
    "attention": row(attention, EMPTY),
    "attention with dimensions of its own": row(lambda w: attention(w, kdim=w, vdim=w), EMPTY),
    "attention with more biases": row(lambda w: attention(w, add_bias_kv=True), EMPTY),
    "encoder": row(encoder, SECOND, EMPTY),
    "encoder, norm first": row(lambda w: encoder(w, norm_first=True, bias=False), SECOND, EMPTY),
    "decoder": row(decoder, SECOND, EMPTY),
    "LSTM": row(lambda w: recurrent(nn.LSTM, w, w, num_layers=2), EMPTY),
    "LSTM with projections": row(lambda w: recurrent(nn.LSTM, w, w + 1, proj_size=w), EMPTY),
    "GRU": row(lambda w: recurrent(nn.GRU, w, w), EMPTY),
    "embedding": row(lambda w: Lookup(w, nn.Embedding)),
    "embedding, padded": row(lambda w: Lookup(w, nn.Embedding, padding_idx=0)),
    "embedding, scaled": row(lambda w: Lookup(w, nn.Embedding, scale_grad_by_freq=True), SECOND),
    "embedding, tied": row(lambda w: TiedLookup(w, nn.Embedding)),
    "embedding, sparse": row(lambda w: Lookup(w, nn.Embedding, sparse=True), is_refused=True),
    "embedding, max_norm": row(lambda w: Lookup(w, nn.Embedding, max_norm=1.0), is_refused=True),
    "bags": row(lambda w: Lookup(w, nn.EmbeddingBag), SECOND, EMPTY),
    "bags, max": row(lambda w: Lookup(w, nn.EmbeddingBag, mode="max"), SECOND, EMPTY),
    "bags, weighted": row(lambda w: WeightedBags(w, nn.EmbeddingBag, mode="sum"), SECOND, EMPTY),
    "bags, ragged": row(lambda w: RaggedBags(w, nn.EmbeddingBag), SECOND, EMPTY),
    "BatchNorm": row(lambda w: Convolution(w, lambda: nn.BatchNorm2d(4)), *BATCH_NORM),
    "BatchNorm of all": row(
        lambda w: Convolution(w, lambda: nn.BatchNorm2d(4, momentum=None)), *BATCH_NORM
    ),
    "GroupNorm": row(lambda w: Convolution(w, lambda: nn.GroupNorm(2, 4)), *CONVOLUTION),
    "InstanceNorm": row(
        lambda w: Convolution(w, lambda: nn.InstanceNorm2d(4, affine=True)), *CONVOLUTION
    ),
    "InstanceNorm, tracked": row(
        lambda w: Convolution(w, lambda: nn.InstanceNorm2d(4, track_running_stats=True)),
        *BATCH_NORM,
    ),
    "orthogonal": row(lambda w: Linear(w, parametrizations.orthogonal), PICKLE, CAST, SECOND, TWO),
    "spectral_norm": row(
        lambda w: Linear(w, parametrizations.spectral_norm), PICKLE, JOIN, SECOND, TWO
    ),
    "LoRA": row(LowRank),
    "uncalled": row(lambda w: Uncalled(w, lambda inner: inner)),
    "experts": row(lambda w: Experts(w, skips=False), EMPTY),
    "experts, some skipped": row(lambda w: Experts(w, skips=True), EMPTY, leaves_out=True),
    "lists": row(Lists, FLATTEN),
    "parts of a storage": row(lambda w: Parts(w, overlap=False)),
    "the same storage": row(lambda w: Parts(w, overlap=True), is_refused=True),
    "complex": row(Complex, CAST, SCALE, is_refused=True),
    "buffers": row(Buffers, CAST, EMPTY, JOIN, TWO),
}
