"""`python -m playground.versions`: one site of the newest book and of its releases.

    python -m playground.versions --newest _build/html --releases _build/releases --to _build/site

The newest book stands at the root, the release `v1.2.3` under `v1.2/`: of several with the same two
numbers the last. `versions.json` at the root lists them for the switcher on every page
(`book/_static/versions.js`). A release is a zip of its built pages, named by its tag.
"""

import argparse
import json
import re
import shutil
import zipfile
from pathlib import Path

TAG = re.compile(r"v(\d+)\.(\d+)(?:\.(\d+))?")
LIST = "versions.json"


def numbers(tag: str) -> tuple[int, int, int] | None:
    """Of a tag of a release; None for another tag, such as `v1.0rc1`."""
    found = TAG.fullmatch(tag)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def folder_of(tag: str) -> str:
    """Where a release stands on the site: `v1.2.3` in `v1.2`. Raises ValueError for another tag."""
    found = numbers(tag)
    if found is None:
        raise ValueError(f"{tag!r} is no release: tag it like v1.2.3")
    return f"v{found[0]}.{found[1]}"


def last_of_each(tags: list[str]) -> list[str]:
    """The tags of releases that are shown, the newest first."""
    known = sorted((found, tag) for tag in tags if (found := numbers(tag)))
    return [*{folder_of(tag): tag for _, tag in known}.values()][::-1]


def assemble(newest: Path, releases: Path, to: Path) -> list[str]:
    """Put the site together; the folders of the releases that it has."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(newest, to)
    tags = last_of_each([file.stem for file in releases.glob("*.zip")])
    for tag in tags:
        with zipfile.ZipFile(releases / f"{tag}.zip") as pages:
            pages.extractall(to / folder_of(tag))
    listed = [{"name": "newest", "path": ""}]
    listed += [{"name": folder_of(tag), "path": f"{folder_of(tag)}/"} for tag in tags]
    (to / LIST).write_text(json.dumps(listed, indent=1) + "\n")
    return [folder_of(tag) for tag in tags]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.versions", description=__doc__)
    for name in ("newest", "releases", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    releases = assemble(options.newest, options.releases, options.to)
    print(f"{options.to}: the newest, and {', '.join(releases) or 'no releases'}")


if __name__ == "__main__":
    main()
