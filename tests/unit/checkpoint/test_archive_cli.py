"""The command line of cuo-archive, where no database is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuo_checkpoint import archive, archive_cli, errors

COMMANDS = [*archive_cli.cli.commands, "hold set", "keys rotate"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own environment names no database."""
    for name in [n for n in os.environ if n.startswith("CUO_")]:
        monkeypatch.delenv(name)


def fails(capsys: Any, *argv: str) -> tuple[int, str]:
    """The exit code and what was said; nothing may stand on stdout."""
    code = archive_cli.main(list(argv))
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return code, err


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_printed_and_ends_with_zero(capsys: Any, command: str) -> None:
    """Every command explains itself on stdout, in whole sentences, and by example."""
    assert archive_cli.main([*command.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert "Usage: cuo-archive" in told
    assert "..." not in told.replace("[ARGS]...", "")
    assert f"    cuo-archive {command}" in told


def test_help_loads_nothing_heavy() -> None:
    """Help needs neither SQLAlchemy, psycopg, pydantic nor LangGraph."""
    probe = (
        "import sys; from cuo_checkpoint.archive_cli import main; main(['--help']);"
        "heavy = {'sqlalchemy', 'psycopg', 'pydantic', 'langgraph', 'alembic'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "argv",
    [
        ["no-such-command"],
        ["status", "--no-such-flag"],
        ["verify"],
        ["verify", "--all", "--run", "x"],
        ["verify", "--all", "--tenant", "x"],
        ["verify", "--run", "not a run"],
        ["verify", "--tenant", "not a tenant"],
        [],
    ],
)
def test_misuse_is_64_with_a_sentence(capsys: Any, argv: list[str]) -> None:
    """click's own codes 1 and 2 never leave the program."""
    code, said = fails(capsys, *argv)
    assert code == 64
    assert (said.startswith("error: ") and said.count("\n") == 1) or "Usage:" in said


def test_an_option_in_the_wrong_place_is_shown_the_right_one(capsys: Any) -> None:
    """Those of the program stand before the command."""
    assert "cuo-archive --local status" in fails(capsys, "status", "--local")[1]


@pytest.mark.parametrize("argv", [["ensure-partitions"], ["status"], ["verify", "--all"]])
def test_no_local_database_by_accident(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str]
) -> None:
    """Without CUO_DATABASE_URL and without --local a command says so and starts nothing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    code, said = fails(capsys, *argv)
    assert code == 64
    assert "CUO_DATABASE_URL" in said
    assert "--local" in said
    assert list(tmp_path.iterdir()) == []


def test_two_databases_are_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """--local beside CUO_DATABASE_URL is a contradiction, not a preference."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql:///x")
    assert fails(capsys, "--local", "status")[0] == 64


def test_a_wrong_setting_is_named_without_its_value(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable; what it holds may be a secret."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql://user:s3cret@[")
    code, said = fails(capsys, "status")
    assert code == 64
    assert "CUO_DATABASE_URL" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("argv", [["ensure-partitions"], ["status"], ["verify", "--all"]])
def test_an_unreachable_store_is_69(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """No server: a sentence, and 69."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql://u:s3cret@/x?host=/nonexistent")
    code, said = fails(capsys, *argv)
    assert code == 69
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunUnknown("there is no such run"), 65),
        (errors.SchemaNotReady("the database holds no log.", remedy="Migrate it."), 69),
        (errors.InvalidIdentifier("run id", "is none"), 64),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("secret value"), 70),
    ],
)
def test_every_error_has_its_code(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """Errors raised below come out as a sentence and a code, bugs with a report id."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql:///x")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(archive, "status", fail)
    seen, said = fails(capsys, "status")
    assert seen == code
    if code == 70:
        assert "ZeroDivisionError" in said
        assert "report" in said
        assert "secret value" not in said
        assert fails(capsys, "status")[1] == said


def test_events_that_found_no_room_are_told(capsys: Any) -> None:
    """74 for a command that did its work; one that failed keeps its own code."""
    assert archive_cli.main(["--log", "/dev/full", "--version"]) == 74
    assert "/dev/full did not take the events" in capsys.readouterr().err
    assert fails(capsys, "--log", "/dev/full", "status")[0] == 64


def test_debug_shows_the_traceback_of_a_bug(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when asked for."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql:///x")
    monkeypatch.setattr(archive, "status", lambda *_, **__: 1 // 0)
    assert archive_cli.main(["--debug", "status"]) == 70
    assert "Traceback" in capsys.readouterr().err
