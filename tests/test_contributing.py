"""The template of a chapter has the form that CONTRIBUTING.md describes, and chapters follow it."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEMPLATE = (ROOT / "docs/chapter.md").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [c["file"] for p in TOC["parts"] if p["caption"] != "Reference" for c in p["chapters"]]
CHAPTERS = [page for page in PAGES if not page.endswith("/exercises")]  # these have another form

PARTS = ["Predicted · measured · difference", "Traps", "Try it", "Further reading"]
PREDICTED = PARTS[0]
WITHOUT = {  # chapter → the part that it has not got, and why
    "first_steps/a_world_of_ranks": {
        PREDICTED: "its failures are counted in tables of their own",
        "Traps": "half of the chapter is about what goes wrong",
    },
    "ddp/uneven_data": {PREDICTED: "three ideas, each with its prediction beside it"},
    "training_well/waiting": {PREDICTED: "four ideas, each with its prediction beside it"},
    "at_scale/your_cluster": {PREDICTED: "files for other machines: nothing to measure here"},
}


def test_the_template_has_every_part_in_order():
    assert re.findall(r"^## (.*)$", TEMPLATE, re.M) == [
        "The idea", "The code", "Predicted · measured · difference", "Traps", "Try it",
        "Further reading",
    ]  # fmt: skip


def test_the_template_is_a_page_of_live_cells():
    head = yaml.safe_load(TEMPLATE.split("---")[1])
    assert head["kernelspec"]["name"] == "python3"
    assert "After this chapter you can" in TEMPLATE
    for cell in re.findall(r"^```\{code-cell\} python\n(.*?)^```", TEMPLATE, re.M | re.S):
        code = re.sub(r"^(---\n.*?^---|:.*)$", "", cell, flags=re.M | re.S)
        compile(code, "cell", "exec")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_the_form_of_the_template(chapter):
    text = (ROOT / f"{chapter}.md").read_text()
    assert text.split("---")[1] == TEMPLATE.split("---")[1], "the same head"
    opening = text.split("\n# ")[1].split("\n\n")[1]
    assert opening.startswith("After this chapter you ")
    found = [re.sub("A trap: .*", "Traps", title) for title in re.findall("^## (.*)$", text, re.M)]
    without = WITHOUT.get(chapter.removeprefix("book/"), {})
    wanted = [part for part in PARTS if part not in without]
    assert [title for title in found if title in PARTS] == wanted


@pytest.mark.parametrize("path", re.findall(r"`((?:code|tests|docs|book|bench)/[\w/.-]+)`", GUIDE))
def test_a_file_that_the_guide_names_is_there(path):
    assert (ROOT / path).exists()


def test_the_citation_names_the_version_of_the_project():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert cited["version"] == version[1]
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
