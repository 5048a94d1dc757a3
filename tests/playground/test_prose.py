"""The check for English that reads as translated finds what it should, and only in prose."""

import pytest

from playground.build.prose import MOST, RULES, checked, hits, main
from playground.build.toc import pages_in_order

BEFORE_AND_AFTER = {  # a rule → a sentence that it finds, and how it should read
    "a crowd": ("Nobody waits for rank 2.", "No rank waits for rank 2."),
    "things that stand": ("The names stand in the log.", "It stands for a sum, listed in the log."),
    "an old adverb": ("They wait for ever.", "They wait forever."),
    "another for different": ("It adds in another order.", "It adds in a different order."),
    "a negated noun": ("Six is no power of two.", "There is no power of two. It is no longer six."),
    "a clause as subject": ("What is sent has x's dtype.", "What is sent? Messages of x's dtype."),
    "an inverted clause": ("Between. Below is the sum.", "Between. The sum is below."),
    "a thing that feels": ("The buffer is forgotten.", "We forget to free the buffer."),
    "a long aside": (
        "It works (but only if every single rank calls it in the same order as the others).",
        "It works ({doc}`buckets`), but only if all ranks call it (`--all`).",
    ),
    "arithmetic in words": ("It sends half as much again.", "It sends 1.5 times as much."),
}


def found(tmp_path, text, name="page.md"):
    path = tmp_path / name
    path.write_text(text)
    return [hit.rule for hit in hits(path)[0]]


def test_each_rule_has_an_example():
    assert {*BEFORE_AND_AFTER} == {*RULES}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_reads_as_translated_and_not_what_is_english(rule, tmp_path):
    before, after = BEFORE_AND_AFTER[rule]
    assert found(tmp_path, before) == [rule]
    assert found(tmp_path, after) == []


def test_a_page_s_code_formulas_and_roles_are_not_prose(tmp_path):
    text = "---\nwho: nobody\n---\n# T\n\n`nobody` $\\text{nobody}$ {doc}`nobody`\n\n"
    text += "```{code-cell} python\nnobody = 1\n```\n\n$$ nobody $$\n"
    assert found(tmp_path, text) == []


def test_lists_tables_notes_and_answers_are(tmp_path):
    text = "- nobody\n\n| a |\n|---|\n| nobody |\n\n"
    text += "```{admonition} Answer\n:class: dropdown\nHere is nobody.\n```\n"
    assert found(tmp_path, text) == ["a crowd"] * 3


def test_a_hit_has_its_line(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# T\n\nOne.\n\n```{note}\nNobody.\n```\n")
    assert [hit.line for hit in hits(path)[0]] == [6]


def test_docstrings_comments_and_help_texts_of_python_are_read(tmp_path):
    text = '"""Nobody.\n\n    nobody = 1\n\nText.\n"""\n'
    text += 'add("--x", help="for " "nobody")  # nobody\nnobody = 1\n'
    assert found(tmp_path, text, "file.py") == ["a crowd"] * 3


def test_a_file_fails_with_more_hits_than_allowed_and_they_are_shown(tmp_path, capsys):
    path = tmp_path / "page.md"
    path.write_text("Nobody. " + "word " * int(1000 / MOST - 2))
    assert main([str(path)]) == 1
    assert f"{path}:1: a crowd: Nobody" in capsys.readouterr().out
    path.write_text("Nobody. " + "word " * int(1000 / MOST + 2))
    assert main([str(path)]) == 0


def test_the_pages_to_check_are_of_the_book(tmp_path):
    from playground.build.digest import ROOT

    pages = {ROOT / f"{name}.md" for name in pages_in_order(ROOT)}
    assert {*checked(ROOT)} <= pages
    assert ROOT / "book/ddp/overlap.md" in checked(ROOT)
