"""The template of a chapter has the form that CONTRIBUTING.md describes, and chapters follow it."""

import re
from pathlib import Path

import pytest
import yaml

from playground.build.toc import taught

ROOT = Path(__file__).parents[1]
TEMPLATE = (ROOT / "book/_templates/chapter.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
LAST = ["Remember", "Test yourself", "Further reading"]  # how every chapter ends


def test_the_template_is_a_page_of_live_cells():
    head = yaml.safe_load(TEMPLATE.split("---")[1])
    assert head["kernelspec"]["name"] == "python3"
    for cell in re.findall(r"^```\{code-cell\} python\n(.*?)^```", TEMPLATE, re.M | re.S):
        code = re.sub(r"^(---\n.*?^---|:.*)$", "", cell, flags=re.M | re.S)
        compile(code, "cell", "exec")


@pytest.mark.parametrize("page", ["book/_templates/chapter", *taught(ROOT)])
def test_a_chapter_begins_with_a_question_and_ends_with_what_to_remember(page):
    text = (ROOT / f"{page}.md").read_text()
    assert text.split("---")[1] == TEMPLATE.split("---")[1], "the same head"
    opening = text.split("\n# ")[1].split("\n## ")[0]
    assert "?" in opening
    titles = re.findall(r"^## (.*)$", text, re.M)
    assert [title for title in titles if title in LAST] == LAST
    (remember,) = re.findall(r"^## Remember\n(.*?)^## ", text, re.M | re.S)
    assert len(re.findall(r"^- ", remember, re.M)) == 3
    (questions,) = re.findall(r"^## Test yourself\n(.*?)^## ", text, re.M | re.S)
    assert ":class: dropdown" in questions, "answers are there, folded"


@pytest.mark.parametrize("path", re.findall(r"`((?:code|tests|docs|book|bench)/[\w/.-]+)`", GUIDE))
def test_a_file_that_the_guide_names_is_there(path):
    assert (ROOT / path).exists()


def test_the_citation_names_the_version_of_the_project():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert cited["version"] == version[1]
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
