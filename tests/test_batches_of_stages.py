"""The arithmetic of code/scripts: on 1 to 64 ranks every step has the whole batch, or none begins.

Rank 0 runs `main` in a process group that only pretends to have the others. The data set is no
multiple of the batch, so that something is left at the end of each epoch.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.testing._internal.distributed.fake_pg import FakeStore

from playground.lab.one_host import SCRIPTS, as_module

STAGES = ("ddp", "accumulate", "mixed", "fsdp", "compiled")
EXAMPLES, EPOCHS = 1000, 2


class Seen(nn.Module):
    """A model that notes how many examples it has been given since the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1, 1)])
        self.sizes: list[int] = []

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return self.blocks[0](x).mean()


def steps_of(
    stage: str, ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch, **names: object
) -> list[list[int]]:
    """For each step of `main` on rank 0 of many, the sizes of its pieces."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("LOCAL_RANK", "0")
    script, model, steps = as_module(SCRIPTS / f"{stage}.py"), Seen(), []
    pretend = partial(dist.init_process_group, "fake", rank=0, world_size=ranks, store=FakeStore())
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pretend())
    monkeypatch.setattr(nn.Module, "compile", lambda _: None)
    data = [(torch.ones(1), torch.ones(1))] * EXAMPLES
    names |= {"Adder": lambda: model, "Sums": lambda _: data}
    names["DistributedDataParallel"] = lambda model, **_: model  # it wants to see gradients arrive
    vars(script).update({"EPOCHS": EPOCHS, "dcp": Mock()} | names)

    def note(*_: object) -> None:
        if model.sizes:  # the first state of a checkpoint takes a step without data
            steps.append(model.sizes)
        model.sizes = []

    hook = register_optimizer_step_pre_hook(note)
    try:
        losses = script.main(*[str(folder)] * (stage in ("fsdp", "compiled")))
    finally:
        hook.remove()
    assert model.sizes == [], "nothing is left for the next epoch"
    assert len(losses) == len(steps)
    return steps


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "stage",
    [pytest.param(s, marks=pytest.mark.slow if s in ("mixed", "compiled") else ()) for s in STAGES],
)
def test_every_step_has_the_whole_batch_or_the_script_says_why_not(stage, tmp_path):
    script = (SCRIPTS / f"{stage}.py").read_text()
    batch, pieces = 128, 4 if "PIECES" in script else 1
    for ranks in (1, 2, 3, 4, 6, 7, 8, 16, 24, 32, 48, 63, 64):
        with pytest.MonkeyPatch.context() as patched:
            if batch % (ranks * pieces):
                with pytest.raises(AssertionError, match=rf"{ranks} .*BATCH|BATCH.* {ranks} "):
                    steps_of(stage, ranks, tmp_path, patched)
            else:
                expected = [[batch // ranks // pieces] * pieces] * (EXAMPLES // batch * EPOCHS)
                assert steps_of(stage, ranks, tmp_path, patched) == expected, ranks
        dist.destroy_process_group()


@pytest.mark.parametrize("stage", ["fsdp", "compiled"])
def test_it_goes_on_after_the_last_checkpoint_where_old_ones_were_deleted(
    stage, tmp_path, monkeypatch
):
    (tmp_path / "000003").mkdir()
    (tmp_path / "000003/.metadata").touch()
    dcp = Mock()
    steps = steps_of(stage, 2, tmp_path, monkeypatch, dcp=dcp, EPOCHS=6)
    assert len(steps) == 2 * (EXAMPLES // 128), "epochs 4 and 5"
    read, *_ = [call.kwargs["checkpoint_id"] for call in dcp.load.mock_calls]
    assert Path(read) == tmp_path / "000003"
    written = [Path(call.kwargs["checkpoint_id"]) for call in dcp.save.mock_calls]
    assert written == [tmp_path / "000004", tmp_path / "000005"]
