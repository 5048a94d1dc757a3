"""The planner as people call it, by words of its command line."""

import json
from typing import Any

import pytest

from distributed.planner.command import main


def asked_for(words: str, capsys: pytest.CaptureFixture) -> dict[str, Any]:
    """The answer in JSON."""
    main([*words.split(), "--json"])
    return json.loads(capsys.readouterr().out)


def said_of(words: str, capsys: pytest.CaptureFixture) -> str:
    """The answer in text with all reasons, in one line."""
    main([*words.split(), "--explain"])
    return " ".join(capsys.readouterr().out.split())


def refused(words: str, capsys: pytest.CaptureFixture) -> str:
    """The one line that says what is wrong with the words."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said
