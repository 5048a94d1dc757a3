"""The exact files that every install takes: `constraints.txt`, and what pip makes of it."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from wheels import write_wheel

ROOT = Path(__file__).parents[1]
ENTRY = r"^([\w.-]+)==(\S+).*?\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)"
CONSTRAINTS = (ROOT / "requirements/constraints.txt").read_text()
PINNED = {name: version for name, version, _ in re.findall(ENTRY, CONSTRAINTS, re.MULTILINE)}
OWN = "data-parallelism-that-runs"


def test_every_line_is_one_version_with_the_hashes_of_its_files():
    lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    assert len(PINNED) > 150
    assert len(PINNED) == sum(not line.startswith("    --hash") for line in lines)
    assert "torch" not in PINNED, "the builds of one version differ from index to index"


def test_it_names_no_place_to_download_from():
    assert not re.search(r"://|-index|find-links", CONSTRAINTS)


ASKED = [ROOT / "requirements.txt", *sorted(ROOT.glob("requirements/*.txt"))]
ASKED.remove(ROOT / "requirements/constraints.txt")


@pytest.mark.parametrize("path", ASKED, ids=lambda path: path.stem)
def test_it_has_what_is_asked_for(path):
    """After a change of a requirement it is `make constraints` that brings it here."""
    asked = re.findall(r"^([\w.-]+)(?:\[\w+\])?(?:==([\w.]+))?", path.read_text(), re.MULTILINE)
    assert asked
    for name, version in asked:
        if name != "torch":
            assert PINNED[canonicalize_name(name)] == version or not version


def test_nothing_else_is_installed():
    # In a new Python: setuptools, which another test may import, brings packages of its own.
    listed = (
        "from importlib.metadata import distributions as d; [print(x.name, x.version) for x in d()]"
    )
    said = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, check=True
    )
    pairs = map(str.split, said.stdout.splitlines())
    found = {canonicalize_name(name): version for name, version in pairs}
    # uv makes the constraints
    others = found.keys() - {"torch", OWN, "uv"}
    assert {name: found[name] for name in others} == {name: PINNED.get(name) for name in others}


@pytest.mark.parametrize("exchanged", [None, "asked", "needed"])
def test_pip_takes_no_other_file(exchanged, tmp_path):
    """Nor of what comes only because another package needs it, which `requirements.txt` is silent
    about."""
    files = [write_wheel(tmp_path, "asked", about="Requires-Dist: needed\n")]
    files += [write_wheel(tmp_path, "needed")]
    (tmp_path / "requirements.txt").write_text("asked==1\ntorch==1\n")
    (tmp_path / "requirements").mkdir()
    hashes = {path.name.split("-")[0]: hashlib.sha256(path.read_bytes()) for path in files}
    lines = [f"{name}==1 --hash=sha256:{hash_.hexdigest()}\n" for name, hash_ in hashes.items()]
    (tmp_path / "requirements/constraints.txt").write_text("".join(lines))
    if exchanged:
        write_wheel(tmp_path, exchanged, about="Requires-Dist: needed\nSummary: exchanged\n")
    (tmp_path / "requirements/install.py").write_bytes(
        (ROOT / "requirements/install.py").read_bytes()
    )
    target = tmp_path / "target"  # with a PyTorch that has no hash, as install.py leaves it
    target.mkdir()
    with zipfile.ZipFile(write_wheel(tmp_path, "torch")) as archive:
        archive.extractall(target)
    (tmp_path / "torch-1-py3-none-any.whl").unlink()
    done = subprocess.run(
        [sys.executable, "requirements/install.py", "requirements.txt"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
        env=os.environ | {
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path),
            "PIP_PREFIX": str(tmp_path / "there"), "PYTHONPATH": str(target),
        },
    )  # fmt: skip
    there = [path.name for path in (tmp_path / "there").rglob("*.dist-info")]
    if exchanged:
        assert done.returncode == 1
        assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
        assert there == []
    else:
        assert done.returncode == 0, done.stderr
        assert sorted(there) == ["asked-1.dist-info", "needed-1.dist-info"]
