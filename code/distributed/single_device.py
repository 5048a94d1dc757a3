"""One device: a two-layer network whose forward and backward pass are written out by hand.

    h[b, f] = relu(Σ_d x[b, d] W0[d, f])        y[b, o] = Σ_f h[b, f] W1[f, o]

Later chapters change what happens between devices. This is what happens on each of them.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

Array = Any  # a NumPy array or a torch tensor: every line below means the same for both
Arrays = dict[str, Array]


class Sizes(NamedTuple):
    """b examples in a batch, d inputs, f hidden units, o outputs."""

    b: int
    d: int
    f: int
    o: int


SIZES = {"full": Sizes(5120, 2048, 1024, 2048), "page": Sizes(640, 256, 128, 256)}


class SingleDevice:
    """The network: its weights, and its forward and backward pass.

    `weights` holds `layer_0/weights` W0[d, f] and `layer_1/weights` W1[f, o], NumPy arrays or torch
    tensors. `group` connects this device to others: it is None here, and the classes of later
    chapters use it. Raises ValueError if W0 and W1 have different numbers of hidden units f.
    """

    def __init__(self, weights: Arrays, group: Any = None):
        w0, w1 = weights["layer_0/weights"], weights["layer_1/weights"]
        if w0.shape[1] != w1.shape[0]:
            raise ValueError(
                f"W0[d, f] = {list(w0.shape)} and W1[f, o] = {list(w1.shape)}: f differs"
            )
        self.weights = weights
        self.group = group

    def forward(self, x: Array) -> Array:
        """x[b, d] → y[b, o]; keeps x and h, which backward needs."""
        w0, w1 = self.weights["layer_0/weights"], self.weights["layer_1/weights"]
        if x.ndim != 2 or x.shape[1] != w0.shape[0]:
            raise ValueError(f"x is {list(x.shape)}, W0[d, f] needs [b, {w0.shape[0]}]")
        self.x = x
        self.h = relu(einsum("bd,df->bf", x, w0))
        return einsum("bf,fo->bo", self.h, w1)

    def backward(self, grads: Array) -> Arrays:
        """dy[b, o] → dW1[f, o] = Σ_b h[b, f] dy[b, o], and dW0[d, f] = Σ_b x[b, d] dh[b, f]."""
        w1 = self.weights["layer_1/weights"]
        dh = einsum("bo,fo->bf", grads, w1) * (self.h > 0)
        return {
            "layer_0/weights": einsum("bd,bf->df", self.x, dh),
            "layer_1/weights": einsum("bf,bo->fo", self.h, grads),
        }

    def step(self, grads: Arrays, learning_rate: float) -> None:
        """W ← W − learning_rate · dW, in place: plain stochastic gradient descent."""
        for name, weight in self.weights.items():
            weight -= learning_rate * grads[name]


def einsum(formula: str, a: Array, b: Array) -> Array:
    """np.einsum or torch.einsum, depending on the type of the arrays."""
    if isinstance(a, torch.Tensor):
        return torch.einsum(formula, a, b)
    return np.einsum(formula, a, b, optimize=True)  # optimize: a matrix product, not loops


def relu(z: Array) -> Array:
    """max(z, 0)."""
    return z * (z > 0)


def cross_entropy(y: Array, labels: Array, examples: float) -> tuple[float, Array]:
    """loss = −Σ_b log softmax(y)[b, label_b] / examples, and its gradient dy[b, o].

    `examples` is the number to average over: the rows of y, if this device has the whole batch.
    """
    library: Any = torch if isinstance(y, torch.Tensor) else np
    y = y - library.amax(y, 1, keepdims=True)  # no exponential overflows now
    exponentials = library.exp(y)
    sums = exponentials.sum(1, keepdims=True)
    rows = library.arange(len(labels))
    loss = (library.log(sums[:, 0]) - y[rows, labels]).sum() / examples
    grads = exponentials / sums
    grads[rows, labels] -= 1
    return float(loss), grads / float(examples)  # a NumPy scalar would turn float32 into float64


def initial_weights(sizes: Sizes, seed: int = 0, dtype: str = "float32") -> Arrays:
    """W0[d, f], W1[f, o] ~ N(0, 2/inputs) (He et al. 2015, §2.2) as NumPy arrays."""
    random = np.random.default_rng(seed)
    return {
        "layer_0/weights": random.normal(0, (2 / sizes.d) ** 0.5, (sizes.d, sizes.f)).astype(dtype),
        "layer_1/weights": random.normal(0, (2 / sizes.f) ** 0.5, (sizes.f, sizes.o)).astype(dtype),
    }


def as_torch(arrays: Arrays, device: Any = "cpu") -> Arrays:
    """The same values as torch tensors on `device`."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def train(
    model: SingleDevice,
    data: Iterable[tuple[Array, Array]],
    learning_rate: float,
    examples: float | None = None,
) -> list[float]:
    """One step of gradient descent per batch (x, labels); returns each loss before its step.

    `examples` is the divisor of `cross_entropy`; by default, the number of rows in each batch.
    """
    losses = []
    for x, labels in data:
        loss, grads = cross_entropy(model.forward(x), labels, examples or len(labels))
        model.step(model.backward(grads), learning_rate)
        losses.append(loss)
    return losses


def main() -> None:
    """Check the gradients by hand against autograd, then learn to read digits."""
    from distributed.workbench.data import batches, digits

    sizes = SIZES["page"]
    weights = as_torch(initial_weights(sizes, dtype="float64"))
    x, dy = (torch.randn(sizes.b, n, dtype=torch.float64) for n in (sizes.d, sizes.o))
    model = SingleDevice(weights)
    model.forward(x)
    by_hand = model.backward(dy)

    for weight in weights.values():
        weight.requires_grad_()
    model.forward(x).backward(dy)
    for name, weight in weights.items():
        torch.testing.assert_close(by_hand[name], weight.grad, rtol=1e-12, atol=1e-12)
        shape = list(weight.shape)
        print(f"{name} {shape}: the gradient by hand is autograd's, to 12 digits")

    images, labels = digits()
    model = SingleDevice(initial_weights(Sizes(b=256, d=64, f=128, o=10)))
    rows = batches(len(images), batch=256, steps=100)
    losses = train(model, ((images[r], labels[r]) for r in rows), learning_rate=0.5)
    right = (model.forward(images).argmax(1) == labels).mean()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps; {right:.1%} read right")
    assert losses[-1] < losses[0] / 4


if __name__ == "__main__":
    main()
