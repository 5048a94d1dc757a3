"""Checks of the exercises. Each exercise has a folder, and `exercises/NAME/check.py` is imported as
`playground.exercises.NAME.check`, both here and on the ranks that it starts.

`check` runs a check and has the tools that checks share; `submission` runs one on a file, from the
shell. Checks use `watch` (what a rank sends and receives), `suspects` (mistakes recognized by their
numbers) and `silent` (tools for silent bugs). `mistakes` reads the wrong
answers that an exercise must distinguish, and the unusual ones that it must accept.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "exercises"
__path__.append(str(FOLDER))


def names() -> list[str]:
    """All exercises."""
    return sorted(path.parent.name for path in FOLDER.glob("*/check.py"))
