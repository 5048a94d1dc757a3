"""Packages without code, for tests of what pip does with others."""

import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str = "1", about: str = "") -> Path:
    """A wheel; `about` is more of its metadata, such as what it requires."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    said = f"Name: {name}\nVersion: {version}\n{about}"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\n{said}")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path
