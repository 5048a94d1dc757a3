"""Your model and your data. Nothing here depends on ranks, and all stages use it as it is."""

import torch
from torch import nn
from torch.utils.data import Dataset


class Sums(Dataset):
    """All sums of two numbers below 100, as digits: 27 + 95 = 122 is 2 7 9 5 1 2 2."""

    def __init__(self, part: str):
        shuffled = torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).tolist()
        self.pairs = shuffled[:4096] if part == "train" else shuffled[9001:]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = divmod(self.pairs[index], 100)
        digits = torch.tensor([int(digit) for digit in f"{a:02}{b:02}{a + b:03}"])
        return digits[:-1], digits[1:]  # each digit, and the one that follows it


class Adder(nn.Module):
    """A small transformer that writes the next digit; called, it gives the loss."""

    def __init__(self, width: int = 32, depth: int = 2):
        super().__init__()
        self.digit = nn.Embedding(10, width)
        self.place = nn.Parameter(0.1 * torch.randn(6, width))
        block = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, **block) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, digits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the sum's digits. Those of the two numbers can't be predicted."""
        h = self.digit(digits) + self.place
        mask = nn.Transformer.generate_square_subsequent_mask(6, digits.device, h.dtype)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        logits = self.head(h[:, 3:]).flatten(0, 1)
        if logits.dtype == torch.bfloat16:  # precise enough to compute with, but not to average
            logits = logits.float()
        return nn.functional.cross_entropy(logits, following[:, 3:].flatten())
