"""PowerSGD: send two thin matrices instead of a gradient (Vogels et al. 2019, algorithm 1).

    M[a, b] = gradient + error{partial over ranks}
    P[a, r] = all_reduce(M Q[b, r]), made orthogonal;   Q[b, r] = all_reduce(Mᵀ P)
    mean of M ≈ P Qᵀ: nearly the closest matrix of rank r, with r(a + b) elements instead of ab

Q is kept from step to step, so one multiplication per step is enough (*warm start*). Both sums are
linear in M, so they can be all-reduced, and the ranks don't have to gather each other's messages.
"""

import torch

from distributed import Group, launch
from distributed.compressors import Gradients, at_least_float32, finite
from distributed.runtime.script import run_script


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
            flat = group.all_reduce(torch.cat([w.reshape(-1) for w in whole]), "avg")
            for gradient, mean in zip(whole, flat.split([w.numel() for w in whole]), strict=True):
                gradient.copy_(mean.view(gradient.shape))

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
    """Average the same matrices several times; a warm start gets closer to the best rank-r form."""
    from distributed.ring_group import RingGroup
    from distributed.runtime.trace import Trace

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
