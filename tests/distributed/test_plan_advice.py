"""If nothing fits, a plan names all that is enough, and how many GB are missing."""

import json

import pytest

from distributed.planner.command import main

CARDS = "--model qwen3-8b --gpu 4090 --gpus 8 --per-host 8 --context 4096"


def asked_for(words, capsys):
    main([*words.split(), "--json"])
    return json.loads(capsys.readouterr().out)


def test_recipes_and_adapters_that_fit_are_named_each_with_its_memory(capsys):
    found = asked_for(CARDS, capsys)
    assert found["recommended"] is None
    others = {" ".join(each["arguments"]): each for each in found["others_to_try"]}
    assert list(others) == ["--recipe bf16-8bit", "--recipe bf16-no-master", "--lora 16"]
    main(CARDS.split())
    said = " ".join(capsys.readouterr().out.split())
    assert "also enough, but training changes: " in said
    for words, each in others.items():
        assert f"({words}, {each['bytes'] / 1e9:.1f} GB)" in said
        changed = asked_for(f"{CARDS} {words}", capsys)
        fitting = {option["name"]: sum(option["bytes"].values()) for option in changed["options"]}
        assert fitting[each["strategy"]] == pytest.approx(each["bytes"])
        assert changed["recommended"]


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
