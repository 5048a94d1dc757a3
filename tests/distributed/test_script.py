"""`run_script`: the parameters of a `main` as options of a command line."""

import pytest

from distributed.runtime import script

seen: list[dict] = []


def main(flag: bool = True, name: str = "x", n: int | None = None, rate: float = 1) -> None:
    """Note what was given."""
    seen.append({"flag": flag, "name": name, "n": n, "rate": rate})


def run(monkeypatch, *argv):
    monkeypatch.setattr("sys.argv", ["script.py", *argv])
    script.run_script(main)
    return seen.pop()


def test_without_options_the_defaults_hold(monkeypatch):
    assert run(monkeypatch) == {"flag": True, "name": "x", "n": None, "rate": 1}


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--flag", "False"], {"flag": False}),
        (["--flag", "true"], {"flag": True}),
        (["--n", "3"], {"n": 3}),
        (["--rate", "0.5"], {"rate": 0.5}),
        (["--name", "3"], {"name": "3"}),
    ],
)
def test_an_option_has_the_type_of_its_parameter(monkeypatch, argv, found):
    assert found.items() <= run(monkeypatch, *argv).items()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--flag", "perhaps"], "argument --flag: 'perhaps': write True or False"),
        (["--n", "many"], "argument --n: invalid int value: 'many'"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_option(monkeypatch, capsys, argv, message):
    with pytest.raises(SystemExit):
        run(monkeypatch, *argv)
    assert capsys.readouterr().err == f"script.py: error: {message}\n"
