"""`python -m distributed.planner --execute`: a plan beside what its recipe holds and sends."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from distributed.planner.command import main
from distributed.planner.shapes import of_size
from recipes.beside import PEAKS, WithLoss, as_python
from recipes.own import own

SMALL = ["--shape", "6,512,8,8,2048,8192", "--gpus", "16", "--context", "512"]


def said(capsys, *words):
    main([*words, "--execute", "--json"])
    return json.loads(capsys.readouterr().out)["executed"]


@pytest.mark.slow
def test_each_strategy_that_fits_is_executed_and_differs_by_less_than_5_percent(capsys):
    found = said(capsys, *SMALL)
    assert [each["name"] for each in found] == ["DDP", "ZeRO-1", "ZeRO-2", "HSDP", "ZeRO-3"]
    for each in found:
        assert abs(each["difference"]) < 0.05
        assert each["executed"]["sent"] == pytest.approx(each["planned"]["sent"], rel=1e-3)
        mine, theirs = each["planned"]["held"], each["executed"]["held"]
        assert mine["parameters"] == pytest.approx(theirs["parameters"], rel=1e-3)
        # ZeroRedundancyOptimizer deals whole tensors: rank 0 has a little more than its part
        even = 0.1 if each["name"] == "ZeRO-1" else 1e-3
        assert mine["optimizer states"] == pytest.approx(theirs["optimizer states"], rel=even)


@pytest.mark.slow
def test_the_table_says_planned_executed_and_the_difference(capsys):
    main([*SMALL, "--checkpoint", "full", "--gpu-memory", "1850MB", "--execute"])
    *_, table = capsys.readouterr().out.split("\n\n")
    header, *lines = table.removesuffix(f"{PEAKS}\n").splitlines()
    where = lines.pop()
    assert header.split() == ["GB", "planned", "executed", "difference"]
    assert where.startswith("executed as rank 0 of 16 in a fake world, torch ")
    assert max(map(len, lines)) <= 72
    names = [line.split(",")[0] for line in lines if not line.startswith(" ")]
    assert names == ["ZeRO-2", "HSDP", "ZeRO-3"]  # what fits, and nothing else
    assert all(line.endswith("%") for line in lines if "given to" in line)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.mixes = nn.Linear(256, 1024, bias=False)

    def forward(self, x):
        return x + self.second(self.first(x).relu()) + self.mixes(x)[..., :256]


class Mine(nn.Module):
    """As people have it: blocks deep inside, scores that come back."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.stages = nn.ModuleList(
            [nn.ModuleDict({"h": nn.Sequential(*(Block() for _ in range(4)))})]
        )
        self.head = nn.Linear(256, 1000, bias=False)

    def forward(self, words):
        return self.head(self.stages[0]["h"](self.embed(words)))


class ForItsLoss(Mine):
    """nanoGPT's manner: scores and a loss."""

    def forward(self, words, targets):
        scores = super().forward(words)
        return scores, nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Reads(Mine):
    """It looks at an element: without memory there is none."""

    def forward(self, words):
        found = super().forward(words)
        return found / float(found.detach().max())


def mine():
    return Mine()


def reads():
    return Reads()


@pytest.mark.slow
def test_a_module_of_your_own_is_executed_itself(capsys):
    """Parameters are its own, not those of the shape that was measured."""
    found = said(capsys, "--module", f"{__name__}:mine", "--gpus", "8", "--context", "128")
    assert [each["name"] for each in found] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    count = sum(each.numel() for each in Mine().parameters())
    for each in found:
        shares = 1 if each["name"] in ("DDP", "ZeRO-1") else 8
        held = each["executed"]["held"]
        assert held["parameters"] == pytest.approx(4 * count / shares, rel=0.01)
        states = 8 * count / (1 if each["name"] == "DDP" else 8)
        assert held["optimizer states"] == pytest.approx(states, rel=0.02)
    gathers = found[-1]["executed"]["sent"]["all-gather"]
    block = sum(each.numel() for each in Block().parameters())
    assert gathers == pytest.approx(2 * (count + 4 * block), rel=0.01)  # the root's stay


def test_a_module_that_looks_at_elements_says_so_in_a_line(capsys):
    words = ["--module", f"{__name__}:reads", "--gpus", "8", "--context", "128", "--execute"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "cannot be executed without its GPUs" in message
    assert message.count("\n") == 1


def test_a_size_alone_is_executed_though_its_width_is_no_multiple_of_its_heads(capsys):
    assert of_size(3e7).d % of_size(3e7).heads
    (found,) = said(capsys, "--params", "30M", "--context", "1024", "--gpus", "1")
    assert abs(found["difference"]) < 0.05


def test_a_sequence_longer_than_learned_positions_is_refused_in_one_line(capsys):
    words = ["--model", "gpt-2-124m", "--context", "2048", "--gpus", "1", "--execute"]
    with pytest.raises(SystemExit):
        main(words)
    message = capsys.readouterr().err
    assert "context=2048: the model has 1,024 learned positions" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stack", "megatron"], "stack='megatron': --execute runs PyTorch's recipes alone"),
        (["--fused-loss"], "fused_loss: PyTorch's own loss is executed"),
        (["--compile"], "compile: nothing is compiled in a fake world"),
        (["--rows", "0.5"], "sequences=0.5: give a whole number to execute"),
    ],
)
def test_what_cannot_be_executed_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, *words, "--execute"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_blocks_are_found_where_they_are():
    found = own(f"{__name__}:mine")
    assert (found.blocks, found.model.layers, found.model.d) == ("stages.0.h", 4, 256)
    assert as_python(f"model.{found.blocks}") == "model.stages[0].h"
    assert as_python("model.") == "model"


class AsAnObject(Mine):
    """transformers' manner."""

    def forward(self, words, labels=None):
        return SimpleNamespace(loss=None, logits=super().forward(words))


def test_a_loss_is_taken_or_made_from_scores():
    words = torch.randint(1000, (2, 16))
    weights = Mine().state_dict()
    losses = []
    for kind in (Mine, ForItsLoss, AsAnObject):
        model = kind()
        model.load_state_dict(weights)
        with torch.no_grad():
            losses.append(float(WithLoss(model)(words, words)))
            expected = nn.functional.cross_entropy(
                Mine.forward(model, words).flatten(0, 1), words.flatten()
            )
    assert losses == pytest.approx([float(expected)] * 3)
