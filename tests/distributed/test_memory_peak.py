"""A step's memory: five moments as predicted, and a loss in chunks that changes only the memory."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.memory_peak import (
    IGNORED,
    Sizes,
    chunked_cross_entropy,
    main,
    measured_step,
    moments,
    timeline,
    whole_cross_entropy,
)
from distributed.planner.shapes import PLAIN, gpt
from distributed.workbench.memory_meter import MemoryUse


def inputs(tokens=37, d=5, v=11, dtype=torch.float32, ignored=0):
    draw = torch.Generator().manual_seed(tokens)
    hidden, weight = (
        torch.randn(n, d, generator=draw).to(dtype).requires_grad_() for n in (tokens, v)
    )
    targets = torch.randint(v, (tokens,), generator=draw)
    targets[:ignored] = IGNORED
    return hidden, weight, targets


def loss_and_gradients(loss, given):
    hidden, weight, targets = given
    value = loss(hidden, weight, targets)
    return value, *torch.autograd.grad(value, [hidden, weight])


@given(st.integers(1, 40), st.integers(1, 50), st.data())
def test_in_chunks_the_loss_and_both_gradients_are_the_same(tokens, rows, data):
    given = inputs(tokens, ignored=data.draw(st.integers(0, tokens - 1)))
    whole = loss_and_gradients(whole_cross_entropy, given)
    chunked = loss_and_gradients(partial(chunked_cross_entropy, rows=rows), given)
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_a_batch_without_targets_has_no_mean_as_in_pytorch():
    given = inputs(ignored=37)
    assert whole_cross_entropy(*given).isnan()
    assert chunked_cross_entropy(*given, rows=8).isnan()


@pytest.mark.parametrize("autocast", [False, True])
def test_logits_in_bf16_have_their_losses_added_in_fp32(autocast):
    given = inputs(64, dtype=torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        whole, chunked = (
            loss_and_gradients(loss, given)
            for loss in (whole_cross_entropy, partial(chunked_cross_entropy, rows=8))
        )
    assert whole[0].dtype == chunked[0].dtype == torch.float32
    torch.testing.assert_close(chunked[0], whole[0])
    torch.testing.assert_close(chunked[1:], whole[1:], rtol=2e-2, atol=2e-3)


def test_without_gradients_one_chunk_exists_at_a_time():
    given = inputs(1024, v=500)
    with torch.no_grad(), MemoryUse(lambda: {"inputs": given}) as use:
        assert not chunked_cross_entropy(*given, rows=16).requires_grad
    assert use.peak["activations"] < 1.1 * 2 * 4 * 16 * 500


def test_each_moment_is_predicted_within_a_hundredth():
    main()


def test_more_tokens_cost_logits_only_if_the_loss_is_whole():
    def growth(loss):
        (one, a), (two, b) = (measured_step(loss, batch) for batch in (2, 4))
        tokens = two.tokens - one.tokens
        found = [moments(h)["in the loss's backward pass"].get("logits", 0) for h in (a, b)]
        return (found[1] - found[0]) / (4 * tokens * one.vocab_size)

    assert growth(whole_cross_entropy) == pytest.approx(3, abs=0.01)
    assert growth(partial(chunked_cross_entropy, rows=64)) < 0.05


def test_the_planner_has_the_same_formula():
    model = gpt(layers=6, d=64, heads=4, vocab_size=1000, positions=0)
    sizes = Sizes(100, 6, 64, 1000, round(model.parameters))
    held = timeline(sizes)["in the loss's backward pass"]
    assert held["activations"] == model.activations(100, size=4, scores=0)
    assert held["logits"] == 100 * PLAIN * 1000


def test_in_chunks_tokens_and_logits_no_longer_multiply():
    sizes = Sizes(tokens=4096, layers=2, d=64, vocab_size=32_000, parameters=10**6)
    more = sizes._replace(tokens=2 * 4096)
    first, second = (timeline(s, rows=128)["in the loss's backward pass"] for s in (sizes, more))
    assert first["logits"] == second["logits"] == 12 * 128 * 32_000
