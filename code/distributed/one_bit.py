"""Sign compression: one bit per element and a scale, and a problem that needs error feedback.

    g_r → sign(g_r) · mean |g_r| → messages → mean over ranks
    L_r(x, y) = a_r x²/2 + b_r xy + y²/2, on four ranks; their mean is x²/8 + y²/2

In the mean, rank 0's 4x outweighs the −x of three ranks. With one bit per element, x counts as
much as y on every rank, and three signs outvote one, so x goes uphill. Error feedback keeps the
part that the bit left out, and sends it later (after Karimireddy et al. 2019, §3).
"""

import torch

from distributed import Group, launch
from distributed.compressors import Compressor, Gradients, WithMemory, at_least_float32
from distributed.runtime.script import run_script

A, B = (4.0, -1.0, -1.0, -1.0), (1.0, -1.0, 1.0, -1.0)  # of each rank; their means: 1/4 and 0


class Sign(WithMemory):
    """Send one bit per element and one scale: (n/8 + 4)(N − 1) bytes from each rank.

    The scale has x's dtype: 4 bytes for float32. The sum is made in float32 or wider.
    An element becomes its sign times the mean size of all (Karimireddy et al. 2019, algorithm 1).
    Seide et al. 2014 have two values per column; signSGD has no scale (see `SignOnly`).
    """

    def send(self, group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().mean()
        packed = pack(x >= 0)
        mine = torch.cat([packed, scale.view(1).view(torch.uint8)])
        all_of_them = group.all_gather(mine, mine.new_empty(group.size * len(mine)))
        mean = torch.zeros_like(x, dtype=at_least_float32(x))
        for message in all_of_them.view(group.size, -1):
            bits, scale_of_rank = message[: len(packed)], message[len(packed) :].clone()
            mean += (unpack(bits, len(x)).to(mean.dtype) * 2 - 1) * scale_of_rank.view(x.dtype)
        return (mean / group.size).to(x.dtype), torch.where(x >= 0, scale, -scale)


def pack(bits: torch.Tensor) -> torch.Tensor:
    """bits[n] → bytes[⌈n/8⌉]."""
    padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8).to(torch.uint8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1).to(torch.uint8)


def unpack(packed: torch.Tensor, n: int) -> torch.Tensor:
    """bytes[⌈n/8⌉] → bits[n]."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).view(-1)[:n].bool()


class SignOnly(WithMemory):
    """Send signs only, without their size (signSGD, Bernstein et al. 2018).

    Here the votes are averaged; the paper takes the sign of their sum.
    """

    def send(self, group: Group, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return group.all_reduce(x.sign(), "avg"), x.sign()


def descend(
    group: Group, compressor: Compressor | None, steps: int = 200, rate: float = 0.1
) -> list[float]:
    """One of four ranks: |(x, y)| after each step from (1, 1). The minimum is at (0, 0).

    Without a compressor, whole gradients are averaged. Raises ValueError unless there are 4 ranks.
    """
    if group.size != len(A):
        raise ValueError(f"{group.size} ranks: this problem is one for {len(A)}")
    a, b, w, owner = A[group.rank], B[group.rank], torch.ones(2), torch.zeros(2)
    path = []
    for _ in range(steps):
        x, y = w.tolist()
        gradient = torch.tensor([a * x + b * y, b * x + y])
        if compressor:
            compressor.average(group, Gradients(gradient, [gradient], [owner]))
        else:
            gradient = group.all_reduce(gradient, "avg")
        w -= rate * gradient
        path.append(w.norm().item())
    return path


def main() -> None:
    """Descend with whole gradients, and with one bit, with and without error feedback."""
    ways = {"whole": None, "one bit": Sign(), "no memory": Sign(error_feedback=False)}

    def all_ways(group: Group) -> dict[str, float]:
        return {name: descend(group, way, 100)[-1] for name, way in ways.items()}

    distances = launch(all_ways, ranks=len(A), device="cpu")[0]
    for name, distance in distances.items():
        print(f"{name:10} from 1.41 to {distance:.2f} in 100 steps")
    assert max(distances["whole"], distances["one bit"]) < 0.5
    assert distances["no memory"] > 3


if __name__ == "__main__":
    run_script(main)
