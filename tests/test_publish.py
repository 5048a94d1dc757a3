"""What a published book has beside its pages."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from playground.versions import folder_of, last_of_each

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

from publish import (  # type: ignore[import-not-found]  # noqa: E402
    NOT_FOUND,
    metatags,
    place_of,
    sitemap,
)

ADDRESS = "https://example.org/book/"


def test_the_sitemap_has_the_address_of_every_page():
    tree = ElementTree.fromstring(sitemap(ADDRESS, ["a.html", "b/c&d.html"]).encode())
    assert [url[0].text for url in tree] == [f"{ADDRESS}a.html", f"{ADDRESS}b/c&d.html"]


def test_a_page_without_an_address_names_none():
    tags = metatags("Title", 'says "this"', "", "a.html", card=True)
    assert 'content="says &quot;this&quot;"' in tags
    assert "og:url" not in tags
    assert "og:image" not in tags


def test_a_page_with_an_address_has_a_card():
    tags = metatags("Title", "says", ADDRESS, "a.html", card=True)
    assert f'"og:image" content="{ADDRESS}_static/card.png"' in tags
    assert '"og:image:alt" content="A page of the book' in tags
    assert f'"og:url" content="{ADDRESS}a.html"' in tags


def test_the_page_for_404_asks_nothing_of_anybody():
    page = NOT_FOUND.format(title="Book", home="/book/index.html")
    assert 'href="/book/index.html"' in page
    assert "src=" not in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("version", "address", "says"),
    [
        ("", ADDRESS, {}),
        ("newest", ADDRESS, {"data-version": "newest", "data-list": "versions.json"}),
        ("v1.2.3", f"{ADDRESS}v1.2/", {"data-version": "v1.2", "data-list": "../versions.json"}),
    ],
)
def test_a_version_knows_its_place_and_where_the_list_of_all_lies(version, address, says):
    assert place_of(ADDRESS.rstrip("/"), version) == (address, says)
    assert place_of("", version) == ("", says)


# --- the workflow ---

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text())
JOBS = WORKFLOW["jobs"]


def steps_with(words: str) -> list[dict]:
    return [step for step in JOBS["build"]["steps"] if words in json.dumps(step)]


def test_only_main_is_published_and_a_pull_request_is_kept_to_look_at():
    assert "refs/heads/main" in JOBS["deploy"]["if"]
    assert JOBS["deploy"]["needs"] == "build"
    (site,) = steps_with("upload-pages-artifact")
    assert site["if"] == "github.ref == 'refs/heads/main'"
    assert site["with"]["path"] == "_build/site"
    (preview,) = steps_with("preview-")
    assert preview["if"] == "github.event_name == 'pull_request'"
    assert preview["with"]["path"] == "_build/html"


def test_a_tag_builds_its_pages_and_keeps_them_with_the_release():
    assert WORKFLOW[True]["push"]["tags"] == ["v*"]  # YAML reads the key `on` so
    (build,) = steps_with("BOOK_VERSION")
    assert build["run"] == "make book"
    assert "github.ref_type == 'tag' && github.ref_name" in build["env"]["BOOK_VERSION"]
    release = JOBS["release"]
    assert (release["if"], release["needs"]) == ("github.ref_type == 'tag'", "build")
    script = release["steps"][-1]["run"]
    assert 'gh release upload "$TAG" site.zip' in script
    assert "gh workflow run pages.yml --ref main" in script


def test_no_job_may_write_more_than_it_needs():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    may = {name: {k for k, v in job["permissions"].items() if v == "write"}
           for name, job in JOBS.items()}  # fmt: skip
    assert may == {
        "build": set(), "deploy": {"pages", "id-token"}, "release": {"contents", "actions"}
    }  # fmt: skip


FAKE_GH = """\
#!/bin/sh
case "$2" in
  list) printf 'v0.1.0\\nv0.1.1\\nv0.2.0\\nempty\\n' ;;
  download) [ "$3" != empty ] && cp "$SITES/$3.zip" "$7" ;;
esac
"""


def test_the_workflows_script_puts_releases_beside_the_newest(tmp_path):
    """With a stand-in for GitHub's command; everything else is what the workflow runs."""
    (step,) = steps_with("playground.versions")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gh").write_text(FAKE_GH)
    (tmp_path / "bin/gh").chmod(0o755)
    for name in (".ci", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    for tag in ("v0.1.0", "v0.1.1", "v0.2.0"):
        with zipfile.ZipFile(tmp_path / f"{tag}.zip", "w") as pages:
            pages.writestr("book/index.html", f"pages of {tag}")
    (tmp_path / "_build/html").mkdir(parents=True)
    (tmp_path / "_build/html/index.html").write_text("newest pages")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "SITES": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "release empty has no pages" in done.stdout
    site = tmp_path / "_build/site"
    assert (site / "index.html").read_text() == "newest pages"
    assert (site / "v0.1/book/index.html").read_text() == "pages of v0.1.1", "the last of two"
    assert json.loads((site / "versions.json").read_text()) == [
        {"name": "newest", "path": ""},
        {"name": "v0.2", "path": "v0.2/"},
        {"name": "v0.1", "path": "v0.1/"},
    ]


def test_a_version_of_two_digits_comes_after_one_of_one():
    assert last_of_each(["v0.9.0", "v0.10.2", "v0.10.11", "v1.0rc1", "draft"]) == [
        "v0.10.11", "v0.9.0"
    ]  # fmt: skip


def test_a_tag_that_is_no_release_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=re.escape("'v1.0rc1' is no release: tag it like v1.2.3")):
        folder_of("v1.0rc1")
