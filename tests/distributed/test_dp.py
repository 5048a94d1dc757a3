"""Data parallelism, against one device on the whole batch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import covering

from distributed.dp import DataParallel, main, shard, train_data_parallel
from distributed.runtime.script import run_script
from distributed.single_device import (
    SingleDevice,
    Sizes,
    as_torch,
    cross_entropy,
    initial_weights,
    train,
)
from distributed.workbench.data import batches, digits

ROOT = Path(__file__).parents[2]
# The ranks add the same numbers in another order. Each of the few hundred additions behind one
# number rounds by at most half a unit in the last place: 2⁻²⁴ in float32, 2⁻⁵³ in float64.
TOLERANCE = {"float32": 2e-5, "float64": 4e-14}


def test_data_parallel_overrides_backward_alone():
    own = {name for name in vars(DataParallel) if not name.startswith("__")}
    assert own == {"backward"}
    assert DataParallel.__bases__ == (SingleDevice,)


@given(rows=st.integers(0, 200), ranks=st.integers(1, 40))
def test_shards_are_disjoint_whole_and_equal_but_for_one_row(rows, ranks):
    shards = [shard(np.arange(rows), rank, ranks) for rank in range(ranks)]
    assert np.concatenate(shards).tolist() == [*range(rows)]
    lengths = [len(part) for part in shards]
    assert max(lengths) - min(lengths) <= 1


def gradients_of_a_share(group, weights, x, labels, library):
    mine = shard(np.arange(len(x)), group.rank, group.size)
    x, labels = x[mine], labels[mine]
    if library == "torch":
        weights, (x, labels) = as_torch(weights), as_torch({"x": x, "y": labels}).values()
    model = DataParallel(weights, group)
    _, dy = cross_entropy(
        model.forward(x),
        labels,
        examples=group.all_reduce(np.array([float(len(mine))]), op="avg")[0],
    )
    return {name: np.asarray(grads) for name, grads in model.backward(dy).items()}


@given(
    ranks=st.integers(1, 8),
    rows_more=st.integers(0, 20),
    sizes=st.builds(Sizes, *(st.integers(1, 9) for _ in range(4))),
    dtype=st.sampled_from(["float32", "float64"]),
    library=st.sampled_from(["numpy", "torch"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_average_over_ranks_is_the_gradient_of_the_whole_batch(
    pools, ranks, rows_more, sizes, dtype, library, seed
):
    b = ranks + rows_more
    random = np.random.default_rng(seed)
    x = random.normal(size=(b, sizes.d)).astype(dtype)
    labels = random.integers(0, sizes.o, b)
    weights = initial_weights(sizes, seed, dtype)
    alone = SingleDevice(weights)
    expected = alone.backward(cross_entropy(alone.forward(x), labels, b)[1])

    results = pools[ranks](gradients_of_a_share, weights, x, labels, library)
    for result in results:
        for name, grads in result.items():
            assert grads.dtype == dtype
            largest = max(abs(expected[name]).max(), 1e-3)
            np.testing.assert_allclose(grads, expected[name], atol=TOLERANCE[dtype] * largest)
            np.testing.assert_array_equal(grads, results[0][name], "replicas differ")


@covering(ranks__batch=[(4, 50), (3, 64), (2, 64), (1, 64)], dtype=["float32", "float64"])
def test_several_ranks_learn_the_curve_of_one_device(ranks, batch, dtype):
    losses, replicas = train_data_parallel(ranks, batch, 60, dtype, device="cpu")
    images, labels = digits(dtype)
    alone = SingleDevice(initial_weights(Sizes(batch, 64, 128, 10), dtype=dtype))
    rows = batches(len(images), batch, 60)
    expected = train(alone, ((images[r], labels[r]) for r in rows), 0.5)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[dtype])
    assert losses[-1] < losses[0] / 3, "it learns"
    for weights in replicas:
        for name, weight in weights.items():
            assert (weight == replicas[0][name]).all(), "replicas stay equal to the bit"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--ranks 0", "ranks=0: a world has 1 rank or more"),
        ("--ranks -1", "ranks=-1: a world has 1 rank or more"),
        ("--batch 3", "batch=3: choose 4 (one example per rank) to 1797"),
        ("--batch 1798", "batch=1798: choose 4 (one example per rank) to 1797"),
        ("--device tpu", "device='tpu': choose 'auto', 'cpu' or 'cuda'"),
        ("--dtype int8", "dtype='int8': choose 'float32' or 'float64'"),
        ("--library jax", "library='jax': choose 'torch' or 'numpy'"),
        ("--steps 0", "steps=0"),
    ],
)
def test_a_wrong_option_ends_in_one_line_before_a_rank_starts(wrong, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dp.py", *wrong.split()])
    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"dp.py: error: {message}")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_the_script_itself_ends_so():
    done = subprocess.run(
        [sys.executable, "code/distributed/dp.py", "--ranks", "0"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert (done.stdout, done.stderr) == ("", "dp.py: error: ranks=0: a world has 1 rank or more\n")


def losses_in(text: str) -> list[str]:
    return re.findall(r"^ *\d+   (\d\.\d{8})", text, re.MULTILINE)


@pytest.mark.slow
def test_torchrun_and_the_script_print_the_same_losses():
    script = subprocess.run(
        [sys.executable, "code/distributed/dp.py", "--steps", "20"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    torchrun = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
         "code/distributed/dp.py", "--steps", "20"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert "4 ranks · gloo · CPU\n" in script.stdout
    assert "4 ranks · gloo · CPU · torchrun\n" in torchrun.stdout
    assert len(losses_in(script.stdout)) == 5
    assert losses_in(torchrun.stdout) == losses_in(script.stdout)
