"""What checks an exercise. Each has its own folder: `exercises/NAME/check.py` is imported as
`playground.exercises.NAME.check`, here and on the ranks that it starts.

`check` runs it, and has the tools of all checks; `submission` runs it on a file, from the shell.
Checks use `watch` (what a rank sends and receives), `suspects` (mistakes known by their numbers)
and `silent` (what the exercises on silent bugs share). `mistakes` reads the wrong answers that an
exercise must tell apart, and the unusual ones that it must accept.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "exercises"
__path__.append(str(FOLDER))


def names() -> list[str]:
    """All exercises."""
    return sorted(path.parent.name for path in FOLDER.glob("*/check.py"))
