"""Prose of the pages has no hype and no filler. How it reads is for people to judge."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "book").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILLER = [
    r"basically", r"obviously", r"needless to say", r"in order to",
    r"note that", r"important to note", r"worth noting", r"it should be noted", r"trivially",
    r"seamless\w*", r"powerful", r"blazing\w*", r"cutting-edge", r"state-of-the-art",
    r"leverag\w+", r"utili[sz]e\w*", r"delve\w*", r"game-chang\w+", r"as we all know",
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


def test_code_may_say_what_it_likes():
    assert "delve" not in prose("```\ndelve\n```\n`delve`\n")
    assert prose("a\n```\nb\n```\ndelve").splitlines()[4] == "delve"
