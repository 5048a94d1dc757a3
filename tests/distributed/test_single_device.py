"""The network by hand, against torch's autograd and torch's own loss."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from distributed.single_device import (
    SIZES,
    SingleDevice,
    Sizes,
    as_torch,
    cross_entropy,
    initial_weights,
    train,
)
from distributed.workbench.data import batches, digits

small = st.builds(Sizes, *(st.integers(1, 9) for _ in range(4)))


def test_the_full_size_is_the_one_that_the_chapter_names():
    assert SIZES["full"][:3] == (5120, 2048, 1024)


@given(sizes=small, library=st.sampled_from(["numpy", "torch"]), seed=st.integers(0, 2**32 - 1))
def test_gradients_equal_those_of_autograd(sizes, library, seed):
    random = np.random.default_rng(seed)
    weights = initial_weights(sizes, seed, "float64")
    x, labels = random.normal(size=(sizes.b, sizes.d)), random.integers(0, sizes.o, sizes.b)

    w = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    y = torch.relu(torch.tensor(x) @ w["layer_0/weights"]) @ w["layer_1/weights"]
    expected = torch.nn.functional.cross_entropy(y, torch.tensor(labels))
    expected.backward()

    if library == "torch":
        weights, x, labels = as_torch(weights), torch.tensor(x), torch.tensor(labels)
    model = SingleDevice(weights)
    loss, dy = cross_entropy(model.forward(x), labels, sizes.b)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, grads in model.backward(dy).items():
        np.testing.assert_allclose(grads, w[name].grad, rtol=1e-10, atol=1e-14)


def test_the_loss_survives_outputs_that_overflow_an_exponential():
    y = np.array([[1e4, 0.0]])
    loss, grads = cross_entropy(y, np.array([1]), 1)
    assert loss == 1e4
    np.testing.assert_array_equal(grads, [[1.0, -1.0]])


def test_digits_are_scikit_learns():
    data = load_digits()
    images, labels = digits("float64")
    np.testing.assert_array_equal(images, data.data / 16)
    np.testing.assert_array_equal(labels, data.target)


def test_numpy_and_torch_learn_the_same_curve():
    images, labels = digits("float64")
    weights = initial_weights(Sizes(64, 64, 16, 10), dtype="float64")
    rows = [*batches(len(images), 64, 20)]
    tensors = as_torch({name: w.copy() for name, w in weights.items()})
    by_torch = train(
        SingleDevice(tensors),
        [(torch.tensor(images[r]), torch.tensor(labels[r])) for r in rows],
        0.5,
    )
    by_numpy = train(SingleDevice(weights), [(images[r], labels[r]) for r in rows], 0.5)
    np.testing.assert_allclose(by_numpy, by_torch, rtol=1e-12)
    assert by_numpy[-1] < by_numpy[0]


@given(examples=st.integers(1, 60), data=st.data(), steps=st.integers(0, 12))
def test_batches_repeat_no_example_within_a_pass(examples, data, steps):
    batch = data.draw(st.integers(1, examples))
    drawn = [*batches(examples, batch, steps)]
    assert [len(rows) for rows in drawn] == [batch] * steps
    a_pass = examples // batch
    for start in range(0, steps, a_pass):
        rows = np.concatenate(drawn[start : start + a_pass])
        assert len({*rows.tolist()}) == len(rows)


@pytest.mark.parametrize("batch", [0, -1, 11])
def test_a_batch_that_the_data_cannot_fill_is_refused(batch):
    with pytest.raises(ValueError, match=f"batch={batch}: choose 1 to 10"):
        next(batches(10, batch, 1))


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"W0\[d, f\] = \[4, 3\] and W1\[f, o\] = \[2, 5\]"):
        SingleDevice({"layer_0/weights": np.ones((4, 3)), "layer_1/weights": np.ones((2, 5))})
    model = SingleDevice(initial_weights(Sizes(1, 4, 3, 2)))
    for x in (np.ones((7, 5)), np.ones(4), torch.ones(1, 1, 4)):
        with pytest.raises(ValueError, match=r"W0\[d, f\] needs \[b, 4\]"):
            model.forward(x)
