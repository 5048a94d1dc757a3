"""Sign and low-rank compression: send a little of every element, and keep the rest for later.

    sign:      g_r → sign(g_r) · mean |g_r| → messages → mean over ranks
    PowerSGD:  M[a, b] = gradient + error{partial over ranks}
               P[a, r] = all_reduce(M Q[b, r]), made orthogonal;  Q[b, r] = all_reduce(Mᵀ P)
               mean of M ≈ P Qᵀ: r(a + b) elements instead of ab (Vogels et al. 2019, algorithm 1)

P Qᵀ is nearly the closest matrix of rank r. Q is kept from step to step, so one multiplication per
step is enough (*warm start*). Both sums are linear in M, so they can be all-reduced. Signs can't:
each rank gathers the others' messages.

Both need error feedback. A problem for four ranks shows it for signs (after Karimireddy et al.
2019, §3): L_r(x, y) = a_r x²/2 + b_r xy + y²/2, and their mean is x²/8 + y²/2. In the mean, rank
0's 4x outweighs the −x of three ranks. With one bit per element, x counts as much as y on every
rank, and three signs outvote one, so x goes uphill.
"""

import torch

from distributed import Group, launch
from distributed.compressors import Compressor, Gradients, WithMemory, at_least_float32, finite
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
    """Send signs only, and average them (signSGD, Bernstein et al. 2018: the sign of the sum)."""

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


class PowerSGD:
    """Average matrices by their rank-r approximation, and vectors as they are.

    A parameter with more dimensions is a matrix of its first dimension by all others. If a rank-r
    form wouldn't be smaller, the gradient is sent whole.
    """

    def __init__(
        self, rank: int = 2, error_feedback: bool = True, warm_start: bool = True, seed: int = 0
    ):
        if rank < 1:
            raise ValueError(f"rank={rank}: a matrix has rank 1 or more")
        self.rank, self.error_feedback, self.warm_start = rank, error_feedback, warm_start
        self.seed = seed  # the same Q on every rank, and whatever bucket a parameter is in
        self.q: dict[int, torch.Tensor] = {}
        self.draws: dict[int, int] = {}
        self.memory: dict[int, torch.Tensor] = {}

    def average(self, group: Group, bucket: Gradients) -> None:
        """bucket.buffer[n]{partial over ranks} → approximately its mean, in place."""
        matrices, whole = {}, []
        for parameter, gradient in zip(bucket.parameters, bucket.views, strict=True):
            a, b = as_matrix(gradient).shape
            if self.rank * (a + b) < a * b:
                matrices[id(parameter)] = gradient
            else:
                whole.append(gradient)
        if matrices:
            self._average_matrices(group, matrices, bucket.buffer.dtype)
        if whole:
            means = reduced(group, dict(enumerate(whole)), bucket.buffer.dtype)
            for i, gradient in enumerate(whole):
                gradient.copy_(means[i])

    def _average_matrices(
        self, group: Group, gradients: dict[int, torch.Tensor], dtype: torch.dtype
    ) -> None:
        """Compute and keep errors in float32 or wider; send P and Q in the gradients' `dtype`."""
        matrices = {key: as_matrix(g).to(at_least_float32(g)) for key, g in gradients.items()}
        if self.error_feedback:
            for key in matrices.keys() & self.memory.keys():
                matrices[key] = matrices[key] + self.memory[key]
        for key, m in matrices.items():
            if key not in self.q or not self.warm_start:
                self.draws[key] = self.draws.get(key, 0) + 1
                generator = torch.Generator().manual_seed(self.seed + self.draws[key])
                drawn = torch.randn(m.shape[1], self.rank, generator=generator)
                self.q[key] = drawn.to(m.device, m.dtype)
        p = reduced(group, {key: m @ self.q[key] for key, m in matrices.items()}, dtype)
        p = {key: torch.linalg.qr(each).Q for key, each in p.items()}
        q = reduced(group, {key: m.T @ p[key] for key, m in matrices.items()}, dtype)
        for key, m in matrices.items():
            close = p[key] @ q[key].T
            self.q[key] = finite(q[key])
            if self.error_feedback:
                self.memory[key] = finite(m - close)
            gradients[key].copy_(close.view(gradients[key].shape))


def as_matrix(gradient: torch.Tensor) -> torch.Tensor:
    """gradient[a, ...] → [a, b]; a vector → [1, b]. A copy where strides demand it."""
    return gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(1, -1)


def reduced(
    group: Group, parts: dict[int, torch.Tensor], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """The mean over ranks of several matrices, in one message of that dtype."""
    flat = torch.cat([part.reshape(-1) for part in parts.values()])
    mean = group.all_reduce(flat.to(dtype), "avg").to(flat.dtype)
    means = mean.split([part.numel() for part in parts.values()])
    return {key: mean.view(parts[key].shape) for key, mean in zip(parts, means, strict=True)}


def elements_to_send(shapes: list[tuple[int, int]], rank: int) -> int:
    """Elements that are all-reduced for matrices[a, b]; a ring sends 2(N − 1)/N of them."""
    return sum(min(a * b, rank * (a + b)) for a, b in shapes)


def main(ranks: int = 4, a: int = 400, b: int = 300, steps: int = 4) -> None:
    """Descend by signs with and without error feedback; then PowerSGD, with and without warm start.

    A warm start gets closer to the best rank-r form of the same matrices in each step.
    """
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace

    ways = {"whole": None, "one bit": Sign(), "no memory": Sign(error_feedback=False)}

    def all_ways(group: Group) -> dict[str, float]:
        return {name: descend(group, way, 100)[-1] for name, way in ways.items()}

    distances = launch(all_ways, ranks=len(A), device="cpu")[0]
    for name, distance in distances.items():
        print(f"{name:10} from 1.41 to {distance:.2f} in 100 steps")
    assert max(distances["whole"], distances["one bit"]) < 0.5
    assert distances["no memory"] > 3

    def approach(group: Group, rank: int, warm_start: bool) -> tuple[list[float], float, int]:
        rings, power = RingGroup(group), PowerSGD(rank, False, warm_start)
        generator = torch.Generator().manual_seed(group.rank)
        left, right = (torch.randn(n, 8, generator=generator) for n in (a, b))
        mine = left @ torch.diag(2.0 ** -torch.arange(8)) @ right.T
        mean = group.all_reduce(mine.clone(), "avg")
        best = (torch.linalg.svdvals(mean)[rank:].norm() / mean.norm()).item()
        parameter, errors = torch.zeros(a, b), []
        for _ in range(steps):
            x = mine.clone()
            rings.trace = trace = Trace(group.rank)
            power.average(rings, Gradients(x.view(-1), [x], [parameter]))
            errors.append(((x - mean).norm() / mean.norm()).item())
        return errors, best, trace.sent

    for rank in (1, 4):
        for warm_start in (True, False):
            errors, best, sent = launch(approach, rank, warm_start, ranks=ranks, device="cpu")[0]
            shown = ", ".join(f"{error:.3f}" for error in errors)
            print(f"rank {rank}, warm start {warm_start}: off by {shown}; at best {best:.3f}")
            assert min(errors) > best * 0.999, "no matrix of this rank is closer"
            expected = 2 * 4 * (ranks - 1) * elements_to_send([(a, b)], rank) / ranks
            assert abs(sent - expected) <= 2 * 2 * 4 * ranks  # the parts of a ring are rounded


if __name__ == "__main__":
    run_script(main)
