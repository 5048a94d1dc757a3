"""If nothing fits, a plan names all that is enough, and how many GB are missing."""

import pytest
from planning import asked_for, said_of

CARDS = "--model qwen3-8b --gpu 4090 --gpus 8 --per-host 8 --context 4096"


def test_recipes_and_adapters_that_fit_are_named_each_with_its_memory(capsys):
    found = asked_for(CARDS, capsys)
    assert found["recommended"] is None
    others = {" ".join(each["arguments"]): each for each in found["others_to_try"]}
    assert list(others) == ["--recipe bf16-8bit", "--recipe bf16-no-master", "--lora 16"]
    said = said_of(CARDS, capsys)
    assert "with a single micro-batch, these also fit, but" in said
    for words, each in others.items():
        assert f"({words}, {each['bytes'] / 1e9:.1f} GB)" in said
        changed = asked_for(f"{CARDS} {words}", capsys)
        fitting = {option["name"]: sum(option["bytes"].values()) for option in changed["options"]}
        assert fitting[each["strategy"]] == pytest.approx(each["bytes"])
        assert changed["recommended"]


def test_an_answer_without_a_plan_has_no_calls_no_evidence_and_no_cautions_about_times(capsys):
    said = said_of(CARDS, capsys)
    assert "nothing fits" in said
    for about_times in ("the calls in", "published", "curve was fitted", "step may wait"):
        assert about_times not in said
    assert not asked_for(CARDS, capsys)["cautions"]


def test_several_micro_batches_leave_less_room(capsys):
    """8-bit Adam fits with one, but gradients that wait for the next one take 4 bytes / 8."""
    others = asked_for(f"{CARDS} --batch 256K", capsys)["others_to_try"]
    assert [" ".join(each["arguments"]) for each in others] == [
        "--recipe bf16-no-master",
        "--lora 16",
    ]
    assert "these also fit, but" in said_of(f"{CARDS} --batch 256K", capsys)


def test_what_does_not_fit_is_not_named(capsys):
    assert asked_for("--model llama-3-405b --gpus 8", capsys)["others_to_try"] == []
    megatron = asked_for("--params 13e9 --gpus 2 --stack megatron", capsys)
    assert megatron["recommended"] is None
    assert megatron["others_to_try"] == []
    assert asked_for("--model llama-3-8b", capsys)["others_to_try"] == []
    adapted = asked_for("--model llama-3-70b --lora 16 --gpus 2 --context 8192", capsys)
    assert "--lora 16" not in [" ".join(e["arguments"]) for e in adapted["others_to_try"]]


def test_the_missing_memory_is_said(capsys):
    words = "--model llama-3.1-8b --gpus 8 --context 4096 --gpu 4090 --per-host 4"
    found = asked_for(words, capsys)
    least = min(sum(each["bytes"].values()) for each in found["options"])
    room = found["assumed"]["gpu_memory"]
    assert least > room
    missing = f"needs the least, {least / 1e9:.1f} GB, which is {(least - room) / 1e9:.1f} GB more"
    assert missing in found["why"]
    assert f"than there is ({least / room:.2f} ×)" in found["why"]
