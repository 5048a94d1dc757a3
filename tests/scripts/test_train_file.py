"""code/scripts/train.py, in warm ranks: the same losses however it is started, stopped and shared.

What takes torchrun itself, or minutes, is in test_train_accidents.py.
"""

import gc
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from distributed import Group, launch
from distributed.planner.hardware import GPUS
from playground.lab.one_host import SCRIPTS, as_module


def signal_at(step: int, rank: int):
    """A fault: this rank gets SIGTERM as the step begins."""

    def fault(module: ModuleType, own: int) -> None:
        order = module.Tokens.order

        def and_signal(self: Any, at: int) -> torch.Tensor:
            if at == step and own == rank:
                os.kill(os.getpid(), signal.SIGTERM)
            return order(self, at)

        module.Tokens.order = and_signal

    return fault


def not_finite_at(step: int, rank: int):
    """A fault: this rank's loss is NaN in a step."""

    def fault(module: ModuleType, own: int) -> None:
        loss = module.Job.loss

        def and_nan(self: Any, piece: torch.Tensor) -> torch.Tensor:
            found = loss(self, piece)
            return found * torch.nan if self.step == step - 1 and own == rank else found

        module.Job.loss = and_nan

    return fault


def losses(said: list) -> list[float]:
    """Equal on all ranks, of a run to the end."""
    assert [kind for kind, _ in said] == ["losses"] * len(said), said
    (first,) = {tuple(found) for _, found in said}
    return list(first)


def listens_without_torchrun(group: Group, run: str) -> set[str]:
    """Addresses on which a rank that nothing else started lets others connect."""
    dist.destroy_process_group()
    script = as_module(SCRIPTS / "train.py")
    script.join(script.parse(("data", run)))
    connections = psutil.Process().net_connections()
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


def test_a_rank_without_torchrun_listens_on_loopback_alone(tmp_path: Path) -> None:
    (found,) = launch(listens_without_torchrun, str(tmp_path), ranks=1, device="cpu")
    assert found <= {"127.0.0.1"}


@pytest.mark.parametrize("how", [pytest.param("--no-ddp", marks=pytest.mark.slow), "--ddp"])
def test_a_run_that_is_stopped_goes_on_to_the_last_bit(how: str, train, tmp_path: Path) -> None:
    words = [how, "--steps=12", "--dropout=0.1"]
    expected = losses(train(*words, run="once"))
    assert len(expected) == 12
    step = random.SystemRandom().randrange(1, 12)
    stopped = train(*words, fault=signal_at(step, rank=1))
    line = f"stopped by a signal after saving step {step}: run the same command again to continue"
    assert stopped == [("stop 143", line)] * 2
    assert (tmp_path / "run/latest").read_text() == f"step-{step:08}"
    assert losses(train(*words)) == expected[step:], f"stopped after step {step}"


def test_the_curve_is_the_same_on_any_number_of_ranks(train, tmp_path: Path) -> None:
    """Replicas on one rank that compute activations again; shards on 2, then 4, then 3. Dropout,
    too: it follows the place in the batch."""
    words = ["--no-bf16", "--dropout=0.1", "--steps=12", "--micro=1"]
    expected = losses(train(*words, "--ddp", "--recompute", ranks=1, run="one"))
    for ranks, until in ((2, 4), (4, 8)):
        stopped = train(*words, ranks=ranks, fault=signal_at(until, rank=0))
        assert {kind for kind, _ in stopped} == {"stop 143"}
    assert losses(train(*words, ranks=3)) == pytest.approx(expected[8:], rel=1e-5)
    *_, record = map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines())
    *_, of_one = map(json.loads, (tmp_path / "one/log.jsonl").read_text().splitlines())
    assert record["step"] == of_one["step"] == 12
    assert record["val_loss"] == pytest.approx(of_one["val_loss"], rel=1e-5)


def test_nan_ends_all_ranks_and_the_last_good_checkpoint_stays(train, tmp_path: Path) -> None:
    said = train("--steps=12", fault=not_finite_at(7, rank=1))
    line = "step 7: the loss of rank 1 is nan. This state isn't saved"
    assert said == [("stop 1", line)] * 2
    assert (tmp_path / "run/latest").read_text() == "step-00000005"
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000005"]


@pytest.mark.slow
def test_old_checkpoints_go_when_a_new_one_is_whole(train, tmp_path: Path) -> None:
    losses(train("--steps=10", "--save-every=2", "--keep=2"))
    kept = sorted(path.parent.name for path in (tmp_path / "run").glob("step-*/.metadata"))
    assert kept == ["step-00000008", "step-00000010"]
    assert (tmp_path / "run/latest").read_text() == kept[-1]
    assert len([*(tmp_path / "run").glob("step-*")]) == 2


def test_a_run_that_was_sent_back_keeps_what_it_saves(train, tmp_path: Path) -> None:
    losses(train("--steps=6", "--save-every=2", "--keep=3"))
    (tmp_path / "run/latest").write_text("step-00000002")
    losses(train("--steps=4", "--save-every=2", "--keep=1"))
    kept = sorted(path.parent.name for path in (tmp_path / "run").glob("step-*/.metadata"))
    assert kept == ["step-00000004", "step-00000006"]
    assert (tmp_path / "run/latest").read_text() == "step-00000004"


def test_what_the_user_put_beside_the_checkpoints_is_left_alone(train, tmp_path: Path) -> None:
    for name in ("step-00000001-best", "step-notes"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run/step-00000001-best/.metadata").touch()
    losses(train("--steps=6", "--save-every=2", "--keep=1"))
    kept = {path.name for path in (tmp_path / "run").glob("step-*")}
    assert kept == {"step-00000001-best", "step-notes", "step-00000006"}


def test_what_was_begun_is_removed_and_what_is_gone_is_named(train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (begun := run / "step-00000003").mkdir(parents=True)
    (begun / "__0_0.distcp").write_bytes(b"half")
    assert len(losses(train("--steps=5"))) == 5
    assert not begun.exists()
    (run / "latest").write_text("step-00000099\n")
    line = f"rank 0: {run}/step-00000099 isn't there: correct or remove {run}/latest"
    assert train("--steps=7") == [("stop 1", line)] * 2


def test_a_gradient_that_is_not_finite_is_nobodys_but_named_with_its_step(train) -> None:
    def fault(module: ModuleType, own: int) -> None:
        backward = module.Job.backward

        def and_nan(self: Any, rows: torch.Tensor) -> torch.Tensor:
            loss = backward(self, rows)
            if self.step == 2 and own == 1:
                self.weights[0].grad.mul_(torch.nan)
            return loss

        module.Job.backward = and_nan

    line = "step 3: the norm of all gradients is nan. This state isn't saved"
    assert train("--steps=4", fault=fault) == [("stop 1", line)] * 2


def test_garbage_is_collected_where_all_ranks_report_or_validate_and_nowhere_else(train) -> None:
    def fault(module: ModuleType, own: int) -> None:
        train_all = module.Job.train

        def watched(self: Any) -> None:
            steps: list[int] = []

            def note(phase: str, info: dict[str, int]) -> None:
                steps.append(self.step)

            gc.callbacks.append(note)
            threshold = gc.get_threshold()
            gc.set_threshold(1, 1, 1)  # collect at nearly every object
            try:
                train_all(self)
            finally:
                gc.set_threshold(*threshold)
                gc.callbacks.remove(note)
            assert {*steps} == {4, 6, 8}, steps  # --log-every=4 --eval-every=6

        module.Job.train = watched

    losses(train("--steps=8", fault=fault))


@pytest.mark.slow
def test_what_a_checkpoint_does_not_fit_is_refused(train, tokens: str, tmp_path: Path) -> None:
    """Other data, another order of them, another network, and files that were cut off."""
    losses(train("--steps=5"))
    other = shutil.copytree(tokens, tmp_path / "other")
    (other / "train_1.bin").unlink()
    for words, line in {
        ("--seed=1",): r"but this run has --seed 1, --batch 12, \d+ sequences",
        ("--batch=24",): r"but this run has --seed 0, --batch 24, \d+ sequences",
        (): r"but this run has --seed 0, --batch 12, \d+ sequences",
        ("--width=32",): r"was not read: .*[Ss]ize mismatch",
    }.items():
        said = train("--steps=7", *words, data=tokens if words else str(other))
        assert {kind for kind, _ in said} == {"stop 1"}
        assert re.search(line, said[0][1]), said
        assert f"{tmp_path}/run/step-00000005 was " in said[0][1]
    for file in (tmp_path / "run/step-00000005").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:100])
    for file in (tmp_path / "run/step-00000005").glob("*.sha256"):
        file.unlink()  # as it was saved by a train.py that made none
    said = train("--steps=7")
    assert {kind for kind, _ in said} == {"stop 1"}
    assert said[0][1].startswith(f"{tmp_path}/run/step-00000005 was not read: ")


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[random.SystemRandom().randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


@pytest.mark.parametrize("pattern", ["__0_*.distcp", "__1_*.distcp", ".metadata"])
def test_a_flipped_bit_is_found_and_the_whole_checkpoint_before_it_is_named(
    pattern: str, train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["--steps=8", "--save-every=2", "--keep=0"]
    expected = losses(train(*words))
    (file,) = (run / "step-00000008").glob(pattern)
    flip_a_bit(file)
    (run / "step-00000006" / "__1_0.distcp").unlink()
    line = f"{run}/step-00000008 is damaged ({file.name}). step-00000004 is intact: "
    assert train(*words) == [("stop 1", line + "continue from it with --resume 4")] * 2
    assert train(*words, ranks=1) == [("stop 1", line + "continue from it with --resume 4")]
    assert losses(train(*words, "--resume=4")) == expected[4:]
    assert (run / "latest").read_text() == "step-00000008"


def test_a_job_that_is_started_again_does_not_go_back_a_second_time(train, tmp_path: Path) -> None:
    """The command is the same, with --resume."""
    losses(train("--steps=6", "--save-every=2", "--keep=0"))

    def again(module: ModuleType, own: int) -> None:
        os.environ["SLURM_RESTART_COUNT"] = "1"

    found = losses(train("--steps=7", "--save-every=2", "--keep=0", "--resume=2", fault=again))
    assert len(found) == 1


def test_a_step_that_was_not_saved_leaves_the_latest_one_as_it_is(train, tmp_path: Path) -> None:
    losses(train("--steps=6", "--save-every=2", "--keep=0"))
    line = f"rank 0: {tmp_path}/run/step-00000005 isn't there: correct or remove --resume"
    assert train("--steps=9", "--resume=5") == [("stop 1", line)] * 2
    assert (tmp_path / "run/latest").read_text() == "step-00000006"
    assert len(losses(train("--steps=7"))) == 1


def test_no_damaged_checkpoint_is_exported(train, tmp_path: Path) -> None:
    losses(train("--steps=5"))
    folder, export = tmp_path / "run/step-00000005", as_module(SCRIPTS / "export.py")
    export.main(str(folder), str(tmp_path / "whole.safetensors"))
    flip_a_bit(folder / "__1_0.distcp")
    with pytest.raises(
        SystemExit, match=r"step-00000005 is damaged: the checksum of __1_0\.distcp"
    ):
        export.main(str(folder), str(tmp_path / "damaged.safetensors"))
    assert not (tmp_path / "damaged.safetensors").exists()


def test_where_no_checkpoint_is_whole_it_says_how_to_begin_again(train, tmp_path: Path) -> None:
    losses(train("--steps=5"))
    (file,) = (tmp_path / "run/step-00000005").glob("__0_*.distcp")
    flip_a_bit(file)
    (_, said), _ = train("--steps=6")
    assert said.endswith(f"No earlier one is intact: delete {tmp_path}/run/latest to start again")


def told_twice_at(step: int):
    """A fault: all ranks get SIGTERM twice, as under Slurm: from it, and by way of torchrun."""

    def fault(module: ModuleType, own: int) -> None:
        order = module.Tokens.order

        def and_signals(self: Any, at: int) -> torch.Tensor:
            for _ in range(2 if at == step else 0):
                os.kill(os.getpid(), signal.SIGTERM)
            return order(self, at)

        module.Tokens.order = and_signals

    return fault


def test_a_second_sigterm_does_not_end_it_before_it_has_saved(train, tmp_path: Path) -> None:
    said = train("--steps=9", fault=told_twice_at(3))
    line = "stopped by a signal after saving step 3: run the same command again to continue"
    assert said == [("stop 143", line)] * 2
    assert (tmp_path / "run/latest").read_text() == "step-00000003"


def test_dropout_differs_between_ranks_and_the_order_between_epochs(tokens: str) -> None:
    module = as_module(SCRIPTS / "train.py")
    seeds = {module.seed_of(0, "dropout", step, place) for step in range(9) for place in range(9)}
    assert len(seeds) == 81
    data = module.Tokens("train", module.Settings(tokens, "run", context=16, batch=12), 256)
    steps = len(data) // 12
    epochs = [[data.order(e * steps + s).tolist() for s in range(steps)] for e in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        seen = [sequence for batch in epoch for sequence in batch]
        assert len({*seen}) == len(seen) == 12 * steps <= len(data)


@pytest.mark.parametrize("names", [
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
])  # fmt: skip
def test_srun_and_mpirun_start_the_ranks_of_one_job(names: tuple[str, ...]) -> None:
    module = as_module(SCRIPTS / "train.py")
    env = dict(zip(names, "592", strict=True)) | {"MASTER_ADDR": "a"}
    place = {"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "2", "MASTER_ADDR": "a"}
    assert module.without_torchrun(env) == place | {"MASTER_PORT": "29500"}
    assert module.without_torchrun(env | {"SLURM_JOB_ID": "123456"})["MASTER_PORT"] == "23456"


def test_slurm_names_the_host_where_ranks_meet() -> None:
    module = as_module(SCRIPTS / "train.py")
    env = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    assert module.without_torchrun(env)["MASTER_ADDR"] == "10.0.0.7"


def test_a_step_of_one_task_is_alone_in_a_job_of_many() -> None:
    """As in the shell that salloc opens on a host of the job."""
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}
    assert as_module(SCRIPTS / "train.py").without_torchrun(env)["WORLD_SIZE"] == "1"
    assert as_module(SCRIPTS / "check_cluster.py").who_am_i(env).ranks == 1


def test_ranks_that_do_not_know_where_to_meet_are_refused_in_one_line() -> None:
    module = as_module(SCRIPTS / "train.py")
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"}
    with pytest.raises(SystemExit, match=r"^train\.py: SLURM_NTASKS=2: use srun, or set MASTER"):
        module.without_torchrun(env)


def test_help_says_what_each_setting_is(capsys) -> None:
    module = as_module(SCRIPTS / "train.py")
    with pytest.raises(SystemExit):
        module.parse(("--help",))
    said = " ".join(capsys.readouterr().out.partition("positional arguments:")[2].split())
    for one in module.fields(module.Settings):
        if one.default is module.MISSING:
            assert re.search(rf"{one.name.upper()} \w+ \w+ ", said)
        else:
            what = rf"--{one.name.replace('_', '-')}(?:, --no-\S+| [A-Z_]+) \w.+? \w.+? "
            assert re.search(what + re.escape(f"(default: {one.default})"), said), one.name


@pytest.mark.parametrize("lr", [1e-5, 6e-4, 1e-2])
def test_the_learning_rate_decays_from_whatever_it_is(lr: float) -> None:
    module = as_module(SCRIPTS / "train.py")
    job = module.Job.__new__(module.Job)
    job.settings = module.parse(("data", "run", "--steps=20", "--warmup=2", f"--lr={lr}"))
    rates = []
    for job.step in range(21):
        rates.append(job.rate())
    assert rates[:2] == pytest.approx([lr / 2, lr])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(lr / 10)


def test_zero_means_never(train, tmp_path: Path) -> None:
    never = ["--eval-every=0", "--save-every=0"]
    assert len(losses(train(*never, "--steps=6"))) == 6
    assert not [*(tmp_path / "run").glob("step-*")]
    assert not (tmp_path / "run/latest").exists()
    losses(train("--eval-batches=0", "--steps=6", "--clip=0"))
    assert "val_loss" not in (tmp_path / "run/log.jsonl").read_text()
    train(*never, "--steps=9", run="other", fault=signal_at(3, rank=1))
    assert (tmp_path / "other/latest").read_text() == "step-00000003", "it was asked to save"


def test_without_clipping_it_learns_what_it_learns_far_below_the_limit(train) -> None:
    found = [losses(train("--steps=4", f"--clip={clip}", run=clip)) for clip in ("0", "1e9")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--micro=0", "--micro 0: must be at least 1"),
        ("--log-every=0", "--log-every 0: must be at least 1"),
        ("--save-every=-1", "--save-every -1: must be at least 0"),
        ("--lr=nan", "--lr nan: must be at least 0"),
        ("--min-lr-share=6e-5x", "argument --min-lr-share: invalid float value: '6e-5x'"),
        ("--min-lr-share=-0.1", "--min-lr-share -0.1: must be at least 0"),
        ("--min-lr=6e-5", "unrecognized arguments: --min-lr=6e-5"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(word: str, line: str, capsys) -> None:
    with pytest.raises(SystemExit):
        as_module(SCRIPTS / "train.py").parse(("data", "run", word))
    assert capsys.readouterr().err.splitlines()[-1].endswith(f" error: {line}")


def test_a_width_that_heads_cannot_share_is_one_line(train) -> None:
    line = "rank 0: --width 16: must be a multiple of --heads 3"
    assert train("--steps=1", "--heads=3") == [("stop 1", line)] * 2


def test_restarts_over_a_store_that_remembers_are_refused(monkeypatch) -> None:
    module = as_module(SCRIPTS / "train.py")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)
    with pytest.raises(SystemExit, match=r"^set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: "):
        module.join(module.Settings("data", "run"))


def test_peaks_are_those_of_the_book() -> None:
    peaks = as_module(SCRIPTS / "train.py").PEAKS
    for name, peak in peaks.items():
        assert round(GPUS[name.lower()].peak / 1e12) == peak


def test_a_batch_that_ranks_cannot_share_is_one_line(train, tmp_path: Path) -> None:
    said = train("--steps=1", "--micro=4", ranks=2)
    line = "--batch 12: must be a multiple of --micro 4 x 2 ranks; change one of them"
    assert said == [("stop 1", line)] * 2
    assert not (tmp_path / "run").exists()


def test_one_ranks_damaged_file_ends_all_of_them(train, tokens: str) -> None:
    """Found in the middle of an epoch, by whichever rank reads it."""

    def fault(module: ModuleType, own: int) -> None:
        order = module.Tokens.order

        def other(self: Any, step: int) -> torch.Tensor:
            if step == 2 and own == 1:
                self.files[0][1].fill_(300)
            return order(self, step)

        module.Tokens.order = other

    said = train("--steps=20", fault=fault)
    assert {kind for kind, _ in said} == {"stop 1"}
    (line,) = {line for _, line in said}
    assert line.startswith(f"rank 1: {tokens}/train_0.bin: token 300 after position ")
    assert line.endswith("but the model has only 256 (--vocab)")


def test_files_of_tokens_have_the_format_of_llm_c(tmp_path: Path) -> None:
    """256 int32, of which the first three say something, and the tokens as uint16."""
    texts = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in texts:
        path.write_text("é" * 50, "utf-8")
    as_module(SCRIPTS / "make_tokens.py").main([*map(str, texts)], str(tmp_path / "new/data"))
    written = ("é" * 50 + "\n" + "é" * 50).encode()  # 201 bytes: a twentieth is 10
    for name, tokens in (("train", written[:191]), ("val", written[191:])):
        found = (tmp_path / f"new/data/{name}.bin").read_bytes()
        header = struct.unpack("<256i", found[:1024])
        assert header == (20240520, 1, len(tokens), *[0] * 253)
        assert struct.unpack(f"<{len(tokens)}H", found[1024:]) == tuple(tokens)


def test_tokens_of_a_large_vocabulary_are_read_as_they_were_written(tmp_path: Path) -> None:
    """uint32, as llm.c has it for 128,256 words."""
    make, module = as_module(SCRIPTS / "make_tokens.py"), as_module(SCRIPTS / "train.py")
    (tmp_path / "a.txt").write_text("x" * 2000)
    make.bytes_of = lambda text: range(127_000, 127_000 + len(text))
    make.main([str(tmp_path / "a.txt")], str(tmp_path / "data"))
    head = (tmp_path / "data/train.bin").read_bytes()[:12]
    assert struct.unpack("<3i", head) == (20240801, 1, 1900)
    settings = module.Settings(str(tmp_path / "data"), "run", vocab=129_000, context=10, batch=4)
    rows = module.Tokens("train", settings, settings.vocab).read(torch.tensor([0, 3]))
    assert rows.tolist() == [[*range(127_000, 127_011)], [*range(127_030, 127_041)]]


def test_a_tokenizer_json_makes_the_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"all": 70_000, "reduce": 3, "?": 0}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("all reduce " * 40)
    make = as_module(SCRIPTS / "make_tokens.py")
    data = str(tmp_path / "data")
    make.main([str(tmp_path / "a.txt")], data, str(tmp_path / "tokenizer.json"))
    written = (tmp_path / "data/train.bin").read_bytes()[1024:]
    assert struct.unpack("<76I", written) == (70_000, 3) * 38
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^--tokenizer .*tokenizer\.json: ."):
        make.main([str(tmp_path / "a.txt")], data, str(tmp_path / "tokenizer.json"))


def test_what_make_tokens_cannot_read_is_one_line(tmp_path: Path) -> None:
    text, latin, empty = (tmp_path / f"{name}.txt" for name in ("a", "latin", "empty"))
    text.write_text("text")
    empty.write_text("")
    latin.write_bytes(b"gar\xe7on")
    for words, line in {
        (text, latin, "DATA"): f"{latin}: not UTF-8 (byte 0xe7 at 3). Convert it: iconv -f LATIN1",
        (text, "none.txt", "DATA"): "none.txt: No such file or directory",
        (text, tmp_path, "DATA"): f"{tmp_path}: Is a directory",
        (latin, text): f"{text}: is a file, but the last argument is DATA, the folder to write",
        (text, "DATA", "--tokenizer=none.json"): "--tokenizer none.json: ",
        (empty, "DATA"): f"{empty}: no text, so no tokens",
    }.items():
        command = [sys.executable, str(SCRIPTS / "make_tokens.py"), *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        (said,) = done.stderr.splitlines()
        assert said.startswith(f"make_tokens.py: {line}")
        assert not (tmp_path / "DATA").exists()


def test_a_file_of_no_tokens_takes_nothing_from_the_others(tmp_path: Path) -> None:
    module = as_module(SCRIPTS / "train.py")
    for name, numbers in {"val_a": range(41), "val_b": [], "val_c": range(100, 141)}.items():
        header = struct.pack("<256i", 20240520, 1, len(numbers), *[0] * 253)
        (tmp_path / f"{name}.bin").write_bytes(header + struct.pack(f"<{len(numbers)}H", *numbers))
    settings = module.Settings(str(tmp_path), "run", vocab=256, context=8, batch=4)
    tokens = module.Tokens("val", settings, settings.vocab)
    firsts = tokens.read(torch.arange(len(tokens)))[:, 0].tolist()
    assert firsts == [0, 8, 16, 24, 32, 100, 108, 116, 124, 132]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda file: file.unlink(), "no val*.bin there. make_tokens.py creates it"),
        (lambda file: file.write_bytes(b""), "its header is unknown"),
        (lambda file: file.write_bytes(b"x" * 5000), "its header is unknown"),
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), "damaged: "),
        (lambda file: file.write_bytes(file.read_bytes()[:1224]), "damaged: "),
    ],
)
def test_a_damaged_file_of_tokens_is_named(damage, line: str, tmp_path: Path) -> None:
    module = as_module(SCRIPTS / "train.py")
    file, numbers = tmp_path / "val.bin", list(range(200))
    file.write_bytes(
        struct.pack("<256i", 20240520, 1, 200, *[0] * 253) + struct.pack("<200H", *numbers)
    )
    settings = module.Settings(str(tmp_path), "run", vocab=256, context=10, batch=4)
    rows = module.Tokens("val", settings, settings.vocab).read(torch.tensor([0, 3]))
    assert rows.tolist() == [numbers[:11], numbers[30:41]]
    damage(file)
    with pytest.raises(ValueError, match=r".") as caught:
        module.Tokens("val", settings, settings.vocab)
    assert str(tmp_path) in str(caught.value)
    assert line in str(caught.value)
