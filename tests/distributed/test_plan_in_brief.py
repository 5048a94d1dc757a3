"""An answer of the planner without --explain: what was assumed, a table, and what to do."""

import re

import pytest

from distributed.planner.answer import WIDE
from distributed.planner.command import main

CARDS = "--model qwen3-8b --gpu 4090 --gpus 8 --per-host 8 --context 4096"
LLAMA = "--model llama-3-70b --nodes 8 --context 8192"


def lines_of(words: str, capsys: pytest.CaptureFixture) -> list[str]:
    main(words.split())
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("words", [CARDS, f"{CARDS} --lora 16", LLAMA, "--gpus 1 --params 1B"])
def test_it_begins_with_what_was_assumed_and_is_short(words, capsys):
    lines = lines_of(words, capsys)
    topics = [line.split()[0] for line in lines[: lines.index("")]]
    assert [each for each in topics if each != "links"] == ["model", "step", "GPUs", "speed"]
    (result,) = (number for number, line in enumerate(lines) if "; recommended: " in line)
    assert result <= 12
    assert max(map(len, lines)) <= WIDE
    assert len([line for line in lines if not line.startswith(("caution", "  "))]) <= 16
    assert lines[-1].endswith("--explain")


def test_a_plan_has_its_margin_its_call_and_its_time(capsys):
    said = "\n".join(lines_of(f"{LLAMA} --batch 4194304 --tokens 2T", capsys))
    assert "recommended: ZeRO-3\n  it leaves 9 GB free" in said
    assert "  in PyTorch: fully_shard(block)" in said
    assert re.search(r"\n2T tokens: .* \(planned: 489.1 days\)", said)
    assert re.search(r"\nHSDP .* 8 × 1 .*\nZeRO-3 .* 4 × 2 ", said)
    assert not re.search("largest parts|published", said)


def test_the_speed_is_that_of_the_chosen_micro_batch(capsys):
    """GPUs are faster with two sequences at a time, so a batch's speed isn't that of one."""
    of_batch, of_one, of_two = (
        next(line for line in lines_of(f"{LLAMA} {words}", capsys) if line.startswith("speed"))
        for words in ("--batch 4194304", "--rows 1", "--rows 2")
    )
    assert of_batch == of_two != of_one


def test_without_a_plan_it_says_what_is_missing_and_what_fits(capsys):
    said = "\n".join(lines_of(f"{CARDS} --batch 256K", capsys))
    assert "of 25.4 GB; recommended: none, because even ZeRO-3 needs 30.9 of 25.4 GB" in said
    assert "  try ZeRO-3 with its states offloaded to the host" in said
    assert "  or change the training: LoRA adapters (--lora 16, 15.9 GB)" in said
    assert not re.search("tokens/s|caution", said)


def test_a_speed_that_nobody_measured_is_marked(capsys):
    assert "(not measured)" in " ".join(lines_of(f"{CARDS} --lora 16", capsys))
    assert "(not measured)" not in " ".join(lines_of(f"{CARDS} --lora 16 --speed 80T", capsys))
    assert "(not measured)" not in " ".join(lines_of(LLAMA, capsys))


def test_every_caution_is_there_with_its_first_clause(capsys):
    brief = " ".join(" ".join(lines_of(f"{CARDS} --lora 16", capsys)).split())
    full = lines_of(f"{CARDS} --lora 16 --explain", capsys)
    cautions = [line for line in full if line.startswith("caution")]
    assert len(cautions) == 3 == brief.count("caution: ")
    assert all(line.rstrip() in brief for line in cautions)
    assert "measure a step, and pass its speed" not in brief


def test_a_plan_that_fits_on_paper_only_says_so_and_what_to_try(capsys):
    words = "--model llama-3-8b --gpus 8 --gpu-memory 50GB --context 4096 --checkpoint none"
    said = " ".join(" ".join(lines_of(words, capsys)).split())
    assert "caution: ZeRO-3 fits on paper only, so expect to run out of memory" in said
    assert "try a fused loss (--fused-loss), which brings 46.6 GB down to 42.2 GB" in said


def test_micro_batches_that_were_asked_for_are_said(capsys):
    said = "\n".join(lines_of(f"{LLAMA} --batch 4194304 --sequences 1", capsys))
    assert "  8 micro-batches of 1 sequence, as you asked" in said


def test_what_fits_with_a_single_micro_batch_says_so(capsys):
    said = "\n".join(lines_of(CARDS, capsys))
    assert "  or with a single micro-batch, change the training: LoRA adapters" in said
