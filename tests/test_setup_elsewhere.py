"""Other people's machines: the container, and the workflows that try the book on them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# Published with the specification of such files (devcontainers/spec), under the licence beside it.
SCHEMA = ROOT / "tests/devcontainer/devContainer.base.schema.json"
LIFE = ("initialize", "onCreate", "updateContent", "postCreate", "postStart", "postAttach")


def without_comments(text: str) -> str:
    """JSON as other programs know it; `//` stays within quotes."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda found: found[1] or "", text)


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    return json.loads(without_comments((ROOT / ".devcontainer/devcontainer.json").read_text()))


def test_the_container_is_described_as_its_specification_says(container: dict[str, Any]) -> None:
    validator = Draft201909Validator(json.loads(SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(container)] == []
    assert list(validator.iter_errors(container | {"forwardPort": [8123]})), "it knows its names"
    assert list(validator.iter_errors(container | {"forwardPorts": "8123"}))


def test_the_container_is_set_up_by_the_readmes_commands(container: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text()
    commands = {line for block in re.findall(r"```sh\n(.*?)```", readme, re.S)
                for line in block.splitlines()}  # fmt: skip
    own = [container[f"{name}Command"] for name in LIFE if f"{name}Command" in container]
    assert own
    assert set(own) <= commands


def test_the_container_shows_the_port_that_the_server_takes(container: dict[str, Any]) -> None:
    from playground.server.address import USUAL_PORT

    assert container["forwardPorts"] == [USUAL_PORT]
    assert list(container["portsAttributes"]) == [str(USUAL_PORT)]


def test_the_container_has_a_python_that_the_book_runs_on(container: dict[str, Any]) -> None:
    version = re.fullmatch(r"python:(3\.\d+)-bookworm", container["image"])
    assert version
    assert version[1] in ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_actions_by_commit(path: Path) -> None:
    """A tag can be moved to other code; the comment says which one it was."""
    for line in path.read_text().splitlines():
        if "uses:" in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line


def test_the_tests_run_on_macos_too() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    (job,) = [job for job in jobs.values() if str(job["runs-on"]).startswith("macos")]
    assert any("make test" in step.get("run", "") for step in job["steps"])
