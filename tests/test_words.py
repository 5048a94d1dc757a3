"""Prose of the pages has no filler and no long sentence: it says what it says, or goes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "book").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILLER = [
    r"simply", r"basically", r"obviously", r"of course", r"needless to say", r"in order to",
    r"note that", r"important to note", r"worth noting", r"it should be noted", r"trivially",
    r"seamless\w*", r"powerful", r"blazing\w*", r"cutting-edge", r"state-of-the-art",
    r"leverag\w+", r"utili[sz]e\w*", r"delve\w*", r"game-chang\w+", r"as we all know",
    r"just(?! (before|after|as|above|below))",
]  # fmt: skip
EMOJI = r"[\U0001F300-\U0001FAFF\u2600-\u27BF]"
CODE = r"^(`{3,}|~{3,}|:{3,}).*?^\1|`[^`\n]+`|<!--.*?-->"


def prose(text: str) -> str:
    """A page without its listings, so that lines keep their numbers."""
    return re.sub(CODE, lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_filler(page):
    for number, line in enumerate(prose(page.read_text()).splitlines(), start=1):
        words = re.search(rf"\b({'|'.join(FILLER)})\b", line, re.I) or re.search(EMOJI, line)
        assert not words, f"{page.name}:{number}: {words[0]!r} in {line!r}"


def sentences(text: str) -> list[str]:
    """Of paragraphs: a title, a table or a list begins a new one."""
    text = re.sub(r"^\$\$.*?^\$\$", "\n\n", prose(text.split("---", 2)[-1]), flags=re.M | re.S)
    parts = re.split(r"\n\s*\n|^\s*(?:[-|:#].*?$|\d+\. )", text, flags=re.M)
    return [" ".join(one.split()) for part in parts for one in re.split(r"(?<=[.?!])\s+", part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_sentence_is_short(page):
    assert not [one for one in sentences(page.read_text()) if len(one.split()) > 45]


def test_sentences_are_found():
    text = "---\na: b\n---\n# Title\n\nOne two.\nThree\nfour?\n\n1. Five\n- six. seven"
    assert list(filter(None, sentences(text))) == ["One two.", "Three four?", "Five"]


def test_code_may_say_what_it_likes():
    assert "just" not in prose("```\njust\n```\n`just`\n")
    assert prose("a\n```\nb\n```\njust").splitlines()[4] == "just"
