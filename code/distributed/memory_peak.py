"""Peak memory of a training step: what exists at each moment, and a loss that lowers the peak.

    between two steps             parameters, Adam's moments                 4Ψ + 8Ψ
    after the layers              the same, activations                      + 4T(16dL + 2d)
    in the loss                   the same, logits, their logarithms         + 8Tv
    in the loss's backward pass   the same, but 12 bytes for each logit      + 4Tv: the peak
    after the backward pass       parameters, moments, gradients             4Ψ + 8Ψ + 4Ψ

The bytes are for fp32. T tokens go through L layers of width d, and each gets a score (a *logit*)
for each of v words. A layer of a GPT keeps 16d numbers per token: inputs and results of two norms
(4d), queries, keys, values and attention's result (4d), and two results of width 4d (8d).

A token's loss needs only its own logits. So `chunked_cross_entropy` makes them for `rows` tokens at
a time, and makes them again in the backward pass: 12 · rows · v bytes at the peak, and not 12Tv.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from distributed.runtime.script import run_script

IGNORED = -100  # target of a token without a loss, as in PyTorch
Held = dict[str, float]  # purpose → bytes
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Sizes(NamedTuple):
    """Sizes of a GPT, and T, the tokens that one rank trains on in a step."""

    tokens: int
    layers: int
    d: int
    vocab_size: int
    parameters: int  # Ψ, with the last layer's weight[v, d] or the embedding that is the same


def timeline(sizes: Sizes, rows: int | None = None) -> dict[str, Held]:
    """Bytes at five moments of a step, by purpose; `rows` are those of a chunked loss, at least d.

    What is small is left out: two numbers per token and norm, one per token and head, and what an
    operation needs only while it runs.
    """
    tokens, layers, d, v, parameters = sizes
    between = {"parameters": 4.0 * parameters, "optimizer states": 8.0 * parameters}
    after_layers = between | {"activations": 4.0 * tokens * (16 * d * layers + 2 * d)}
    scores = 4.0 * v * (rows or tokens)
    # In chunks, gradients add up while later chunks are computed: of weight[v, d], of hidden[T, d]
    sums = {"gradients": 4.0 * d * (v + tokens)} if rows else {}
    return {
        "between two steps": between,
        "after the layers": after_layers,
        "in the loss": after_layers | {"logits": 2 * scores},
        "in the loss's backward pass": after_layers | {"logits": 3 * scores} | sums,
        "after the backward pass": between | {"gradients": 4.0 * parameters},
    }


def whole_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """hidden[T, d], weight[v, d], targets[T] → mean loss, with the logits[T, v] of all tokens."""
    return F.cross_entropy((hidden @ weight.T).float(), targets, ignore_index=IGNORED)


def chunked_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, rows: int = 1024
) -> torch.Tensor:
    """The same loss and gradients, with the logits[rows, v] of `rows` tokens at a time.

    A chunk's logits are freed when its loss is known, and computed again in the backward
    pass, so this layer takes 8vd operations per token, not 6vd. Losses are added in fp32.
    """

    def summed_loss(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = (hidden @ weight.T).float()
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

    chunks = zip(hidden.split(rows), targets.split(rows), strict=True)
    losses = [checkpoint(summed_loss, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.stack(losses).sum() / (targets != IGNORED).sum()


def main() -> None:
    """Train a small GPT with both losses: predicted and measured MB at each moment."""
    rows = 128
    chunked = partial(chunked_cross_entropy, rows=rows)
    ways: list[tuple[int | None, Loss]] = [(None, whole_cross_entropy), (rows, chunked)]
    peaks = []
    for chunk, loss in ways:
        sizes, history = measured_step(loss)
        print(f"logits of {chunk or sizes.tokens:,} tokens at a time: predicted and measured MB")
        found = moments(history)
        for moment, held in timeline(sizes, chunk).items():
            predicted, measured = sum(held.values()), sum(found[moment].values())
            print(f"  {moment:29}{predicted / 1e6:7.1f}{measured / 1e6:7.1f}")
            assert abs(measured / predicted - 1) < 0.01, moment
        peaks.append(max(sum(held.values()) for _, held in history))
        assert peaks[-1] == sum(found["in the loss's backward pass"].values())
    saved = 12 * (sizes.tokens - rows) * sizes.vocab_size - 4 * sizes.d * sizes.vocab_size
    assert abs((peaks[0] - peaks[1]) / saved - 1) < 0.03


def moments(history: list[tuple[str, Held]]) -> dict[str, Held]:
    """The five moments of `timeline`, in what `measured_step` has seen."""
    found: dict[str, Held] = {}
    for moment, held in history:  # in each part of a step the largest, but what the last one leaves
        largest = sum(found.get(moment, {}).values())
        if moment == "after the backward pass" or sum(held.values()) > largest:
            found[moment] = held
    return found


def measured_step(loss: Loss, batch: int = 8) -> tuple[Sizes, list[tuple[str, Held]]]:
    """Sizes of a small GPT, and the bytes after each operation of its second step, by purpose.

    Beside the bytes is the moment of `timeline` that the operation leads to, or "optimizer".
    """
    from distributed.workbench.memory_meter import MemoryUse
    from distributed.workbench.transformer import Config, make_model

    config = Config(v=4000, t=128, d=128, layers=4)
    model = make_model(config)
    weight = model.head.weight
    model.head = torch.nn.Identity()  # type: ignore[assignment]  # it returns hidden[b, t, d]
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters)
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(config.v, (batch, config.t + 1), generator=draw)

    def purposes() -> dict[str, list[torch.Tensor]]:
        states = [tensor for state in optimizer.state.values() for tensor in state.values()]
        gradients = [p.grad for p in parameters if p.grad is not None]
        return {"parameters": parameters, "optimizer states": states, "gradients": gradients}

    history: list[tuple[str, Held]] = []

    class Recorder(MemoryUse):
        moment = ""

        def enter(self, moment: str, others: str = "temporary") -> None:
            """What is made from here on leads to this moment, and is for that purpose."""
            self.moment, self.current = moment, others

        def leave_loss(self) -> None:
            """Only two gradients are left of what the loss has made: of weight and of hidden."""
            self.enter("after the backward pass")
            for key, (storage, purpose) in self.made.items():
                if purpose == "logits":
                    self.made[key] = storage, "temporary"

        def now(self) -> dict[str, int]:
            found = super().now()
            history.append((self.moment, {**found}))
            return found

    use = Recorder(purposes)

    def forward() -> torch.Tensor:
        use.enter("after the layers", "activations")
        hidden = model(words[:, :-1]).flatten(0, 1)
        hidden.register_hook(lambda _: use.leave_loss())
        use.enter("in the loss", "logits")
        return loss(hidden, weight, words[:, 1:].flatten())

    def step() -> None:
        optimizer.zero_grad()
        history.clear()
        use.enter("between two steps")
        use.now()
        mean = forward()
        use.enter("in the loss's backward pass", "logits")
        mean.backward()
        use.enter("optimizer")
        optimizer.step()

    step()  # makes Adam's moments
    with use:
        step()
    count = sum(p.numel() for p in parameters)
    return Sizes(batch * config.t, config.layers, config.d, config.v, count), history


if __name__ == "__main__":
    run_script(main)
