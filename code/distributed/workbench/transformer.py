"""A small character-level transformer: the model that the chapters on DDP and ZeRO train.

It is the decoder of Vaswani et al. (2017) with a norm before each part: attention, then a two-layer
network, each added to its input. It fits on a laptop, and has every part that large ones have.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import distributed
from distributed.runtime.script import run_script


@dataclass(frozen=True)
class Config:
    """Sizes: v characters, context length t, width d, and the numbers of layers and heads."""

    v: int = 96
    t: int = 32
    d: int = 64
    layers: int = 2
    heads: int = 4
    tied: bool = True  # the last layer is the embedding, transposed


class Block(nn.Module):
    """x[b, t, d] → x[b, t, d]: attention over the past, then a two-layer network 4d wide."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(config.d), nn.LayerNorm(config.d)
        self.attend = nn.Linear(config.d, 3 * config.d)
        self.project = nn.Linear(config.d, config.d)
        self.widen = nn.Linear(config.d, 4 * config.d)
        self.narrow = nn.Linear(4 * config.d, config.d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.attend(self.norm_1(x)).split(d, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x))))


class CharTransformer(nn.Module):
    """characters[b, t] (whole numbers below v) → logits[b, t, v] of the next characters."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.v, config.d)
        self.position = nn.Embedding(config.t, config.d)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.d)
        self.head = nn.Linear(config.d, config.v, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if config.tied:
            self.head.weight = self.embed.weight

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.embed(characters) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))

    def loss(self, characters: torch.Tensor) -> torch.Tensor:
        """`text_loss` of this model; for a wrapped model, pass its wrapper to `text_loss`."""
        return text_loss(self, characters)


def text_loss(model: nn.Module, characters: torch.Tensor) -> torch.Tensor:
    """characters[b, t + 1] → mean cross-entropy of each character, given those before it."""
    logits = model(characters[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())


def make_model(config: Config, seed: int = 0) -> CharTransformer:
    """A model with the same weights for the same seed, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CharTransformer(config)


class Text:
    """A text as integers: encodes characters to numbers, and decodes them."""

    def __init__(self, text: str):
        self.characters = sorted(set(text))
        self.number = {character: i for i, character in enumerate(self.characters)}
        self.data = self.encode(text)

    def encode(self, text: str) -> torch.Tensor:
        return torch.tensor([self.number[character] for character in text])

    def decode(self, numbers: torch.Tensor) -> str:
        return "".join(self.characters[i] for i in numbers.tolist())

    def batches(self, b: int, t: int, steps: int, seed: int = 0) -> Iterator[torch.Tensor]:
        """`steps` batches x[b, t + 1], cut out at positions that depend only on the seed."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            starts = torch.randint(len(self.data) - t, (b,), generator=generator)
            yield torch.stack([self.data[start : start + t + 1] for start in starts.tolist()])


def corpus() -> str:
    """The text of this book: the Markdown of its pages."""
    book = Path(distributed.__file__).parents[2] / "book"
    pages = sorted(book.rglob("*.md"))
    if not pages:
        raise FileNotFoundError(f"no pages in {book}: give Text() a text of your own")
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def main(steps: int = 30) -> None:
    """Train on one device for a few steps, on the text of this book."""
    text = Text(corpus())
    config = Config(v=len(text.characters))
    model = make_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in text.batches(16, config.t, steps):
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text.data):,} letters")
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    run_script(main)
