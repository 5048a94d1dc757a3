"""The real run: the same on any number of ranks, and through a stop, to the bit."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice

import psutil
import pytest
import torch

from distributed.ddp.train_text import main, rows_of_steps, save, share_right, spell, train
from distributed.runtime.script import run_script
from distributed.workbench.number_names import lines, name_of, split
from distributed.workbench.transformer import (
    CharTransformer,
    Config,
    Text,
    make_model,
    text_loss,
)
from playground.server.limits import has_ended

WRITTEN = "All ranks add their numbers; every rank has the sum of all ranks' numbers. " * 20


def plain(steps, batch):
    """A loop of PyTorch's on the same batches: its losses."""
    text = Text(WRITTEN)
    model = make_model(Config(v=len(text.characters)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
    batches = rows_of_steps(text, model.config, batch, torch.Generator().manual_seed(0))
    for rows in islice(batches, steps):
        optimizer.zero_grad()
        loss = text_loss(model, rows)
        loss.backward()
        optimizer.step()
        yield loss.item()


def test_losses_are_the_same_on_any_number_of_ranks(pools):
    alone, _ = pools[1](train, WRITTEN, 12, 8)[0]
    assert alone == pytest.approx([*plain(12, 8)], rel=1e-3)
    assert alone[-1] < alone[0]
    for ranks in (2, 4):
        losses, _ = pools[ranks](train, WRITTEN, 12, 8)[0]
        # Rounding of float32, carried along by training.
        assert losses == pytest.approx(alone, rel=1e-3)
        assert losses[0] == pytest.approx(alone[0], rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(pools, ranks, tmp_path):
    losses, weights = pools[ranks](train, WRITTEN, 12, 8)[0]
    path = str(tmp_path / "run.pt")
    pools[ranks](train, WRITTEN, 9, 8, path, 4)  # its last checkpoint is of step 8
    state = torch.load(path)
    assert state["losses"] == losses[:8]
    torch.save(state | {"losses": [0.0] * 8}, path)  # a mark: these steps are not taken again
    resumed, after = pools[ranks](train, WRITTEN, 12, 8, path, 4)[0]
    assert resumed == [0.0] * 8 + losses[8:]
    for name, tensor in weights.items():
        assert torch.equal(tensor, after[name]), name


def test_a_crash_while_saving_leaves_the_checkpoint_before(tmp_path):
    path = tmp_path / "run.pt"
    save(path, {"step": 1})

    class Unwritable:
        def __reduce__(self):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save(path, {"step": 2, "bad": Unwritable()})
    assert torch.load(path) == {"step": 1}


@pytest.mark.slow
def test_interrupted_from_the_keyboard_it_leaves_a_checkpoint_and_no_process(tmp_path):
    path = tmp_path / "run.pt"
    command = [
        sys.executable,
        "-m",
        "distributed.ddp.train_text",
        "--ranks",
        "2",
        "--steps",
        "100000",
    ]
    command += ["--checkpoint", str(path), "--save_every", "5"]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    give_up = time.monotonic() + 60
    while not path.exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    os.kill(run.pid, signal.SIGINT)
    run.communicate(timeout=60)
    state = torch.load(path)
    assert len(state["losses"]) % 5 == 0
    give_up = time.monotonic() + 60
    while not all(map(has_ended, processes_of(run.pid))):  # the fork server ends by itself
        assert time.monotonic() < give_up, "a process is left"
        time.sleep(0.05)


def processes_of(group: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "3"], "batch=64: 3 ranks need a multiple"),
        (["--steps", "0"], "steps=0, save_every=50: 1 or more"),
        (["--checkpoint", "/nowhere/x.pt"], "checkpoint='/nowhere/x.pt': there is no such folder"),
    ],
)
def test_wrong_options_are_one_line(options, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train_text.py", *options])
    with pytest.raises(SystemExit) as ended:
        run_script(main)
    errors = capsys.readouterr().err
    assert (ended.value.code, errors.count("\n")) == (2, 1)
    assert message in errors


def test_a_number_is_spelled_with_the_characters_of_the_text():
    text = Text(lines(200))
    assert text.decode(text.encode("483 four")) == "483 four"
    model = make_model(Config(v=len(text.characters)))
    said = spell(model, text, 483)
    assert len(said) <= model.config.t
    assert set(said) <= set(text.characters) - {"\n"}
    assert share_right(model, text, [483]) == (said == name_of(483))


def test_names_of_numbers_and_those_that_no_line_has():
    assert [name_of(n) for n in (0, 13, 40, 99, 100, 219)] == [
        "zero", "thirteen", "forty", "ninety-nine", "one hundred", "two hundred nineteen",
    ]  # fmt: skip
    learn, held_out = split()
    assert sorted(learn + held_out) == list(range(1000))
    assert not {int(line.split()[0]) for line in lines(3000).splitlines()} & set(held_out)
    with pytest.raises(ValueError, match="n=1000"):
        name_of(1000)


def test_the_model_sees_only_the_past_and_ties_its_last_layer():
    model = make_model(Config(v=10, t=8, d=16, heads=2))
    assert model.head.weight is model.embed.weight
    x = torch.randint(10, (1, 8), generator=torch.Generator().manual_seed(0))
    later = x.clone()
    later[0, 5:] = (later[0, 5:] + 1) % 10
    assert torch.equal(model(x)[0, :5], model(later)[0, :5])
    assert not torch.equal(model(x)[0, 5:], model(later)[0, 5:])
    untied = CharTransformer(Config(v=10, tied=False))
    assert untied.head.weight is not untied.embed.weight
