"""What checks an exercise. Each has its own folder: `exercises/NAME/check.py` is imported as
`playground.exercises.NAME.check`, here and on the ranks that it starts."""

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "exercises"
__path__.append(str(FOLDER))


def names() -> list[str]:
    """All exercises."""
    return sorted(path.parent.name for path in FOLDER.glob("*/check.py"))
