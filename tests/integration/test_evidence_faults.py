"""The archive's commands when something is in their way: no room, no right, a loose key, Ctrl-C."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cuo_checkpoint import CheckpointWriter, archive_cli, evidence_cli, export_rows
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.run_check import RunChecker


@pytest.fixture
def run(store: Any) -> uuid.UUID:
    """A run of three rows."""
    run, writer = uuid.uuid4(), CheckpointWriter(store)
    for number in range(3):
        writer.write(run, "node_entered", {"n": number}, node_name="n")
    return run


@pytest.fixture
def place(
    run: uuid.UUID, shared_place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Path:
    """A folder with a key and a place for heads, all named by the environment."""
    (tmp_path / "heads").mkdir()
    assert archive_cli.main(["keys", "new", str(tmp_path / "seal.key"), "--name", "acme-1"]) == 0
    monkeypatch.setenv("CUO_DATABASE_URL", shared_place.auditor)
    monkeypatch.setenv("CUO_SEAL_KEY", str(tmp_path / "seal.key"))
    monkeypatch.setenv("CUO_EXPORT_DIR", str(tmp_path / "heads"))
    capsys.readouterr()
    return tmp_path


def call(capsys: Any, *argv: Any) -> tuple[int, str, str]:
    code = archive_cli.main([str(word) for word in argv])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def forked(before: Callable[[], Any], *argv: Any) -> int:
    """The command's code in a process of its own, after `before` was done to it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            before()
            code = archive_cli.main([str(word) for word in argv])
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def without_room() -> None:
    """From now on this process may write no file of more than 100 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def interrupted_at(module: Any, name: str, by: int = signal.SIGINT) -> Callable[[], None]:
    """Whoever calls this function is interrupted, as by Ctrl-C."""

    def interrupt(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), by)
        time.sleep(5)

    return lambda: setattr(module, name, interrupt)


def final(folder: Path) -> list[str]:
    """Names below the folder, drafts too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("full", [True, False])
def test_a_folder_that_cannot_be_written(
    full: bool, place: Path, tenant_id: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Ends with 69 and leaves no half head; what was signed is exported by the next call."""
    seal = ["seal", "--tenant", tenant_id]
    if full:
        assert forked(without_room, *seal) == 69
    else:
        monkeypatch.setenv("CUO_EXPORT_DIR", "/proc")
        code, _, err = call(capsys, *seal)
        assert (code, "cannot write to /proc/" in err) == (69, True)
        monkeypatch.setenv("CUO_EXPORT_DIR", str(place / "heads"))
    assert final(place / "heads") == []
    code, out, _ = call(capsys, *seal)
    assert (code, out) == (0, f"{tenant_id}  0 heads sealed, 1 leaves, 1 exported\n")
    assert final(place / "heads") == [f"{tenant_id}/00000001.{kind}" for kind in ("leaves", "note")]
    assert call(capsys, "verify", "--tenant", tenant_id)[0] == 0


@pytest.mark.parametrize("full", [True, False])
def test_a_bundle_that_cannot_be_written(
    full: bool, run: uuid.UUID, place: Path, tenant_id: str, capsys: Any
) -> None:
    """Ends with 69 and leaves nothing behind, no draft either."""
    argv = ["export", "--run", run, "--tenant", tenant_id, "--out"]
    if full:
        assert forked(without_room, *argv, place / "bundle") == 69
    else:
        code, _, err = call(capsys, *argv, "/proc/bundle")
        assert (code, "cannot write /proc/bundle" in err) == (69, True)
    assert [path.name for path in place.iterdir() if "bundle" in path.name] == []
    assert call(capsys, *argv, place / "bundle")[0] == 0


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read(mode: int, place: Path, tenant_id: str, capsys: Any) -> None:
    """Nothing is signed with it, and what to do is said."""
    (place / "seal.key").chmod(mode)
    code, out, err = call(capsys, "seal", "--tenant", tenant_id)
    assert (code, out, "chmod 600" in err) == (64, "", True)
    assert final(place / "heads") == []
    for command in (["rotate", "--name", "x"], ["public"]):
        code, _, err = call(capsys, "keys", command[0], place / "seal.key", *command[1:])
        assert (code, "chmod 600" in err) == (64, True)


def test_ctrl_c(run: uuid.UUID, place: Path, tenant_id: str, capsys: Any) -> None:
    """Ends with 130; what was finished stands, and the next call goes on."""
    seal = ["seal", "--tenant", tenant_id]
    assert forked(interrupted_at(HeadFolder, "write"), *seal) == 130
    assert final(place / "heads") == []
    assert call(capsys, *seal)[:2] == (0, f"{tenant_id}  0 heads sealed, 1 leaves, 1 exported\n")
    export = ["export", "--run", run, "--tenant", tenant_id, "--out", place / "bundle"]
    assert forked(interrupted_at(export_rows, "log_lines"), *export) == 130
    assert [path.name for path in place.iterdir() if "bundle" in path.name] == []
    assert call(capsys, *export)[0] == 0
    verify = ["verify", "--tenant", tenant_id]
    assert forked(interrupted_at(RunChecker, "log_row"), *verify) == 130
    assert call(capsys, *verify)[0] == 0


def test_the_draft_of_a_killed_export_is_removed_by_the_next(
    run: uuid.UUID, place: Path, tenant_id: str, capsys: Any
) -> None:
    """And that is said, on stderr."""
    export = ["export", "--run", run, "--tenant", tenant_id, "--out", place / "bundle", "--json"]
    killed = interrupted_at(export_rows, "log_lines", signal.SIGKILL)
    assert forked(killed, *export) == -signal.SIGKILL
    (left,) = [path.name for path in place.iterdir() if "bundle" in path.name]
    code, out, err = call(capsys, *export)
    assert (code, json.loads(out)["runs"], f"removed {left}: " in err) == (0, 1, True)
    assert [path.name for path in place.iterdir() if "bundle" in path.name] == ["bundle"]


def test_long_commands_tell_how_far_they_are(
    place: Path, tenant_id: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On stderr, so that stdout stays what was asked for."""
    monkeypatch.setattr(evidence_cli, "_PROGRESS_AFTER", 0.0)
    code, _, err = call(capsys, "seal", "--tenant", tenant_id)
    assert (code, "runs followed to their heads ..." in err) == (0, True)
    code, _, err = call(capsys, "verify", "--tenant", tenant_id)
    assert (code, "runs verified ..." in err, "leaves compared ..." in err) == (0, True, True)
    from cuo_checkpoint import archive

    newest = archive.status(os.environ["CUO_DATABASE_URL"])["now"][:7]
    argv = ["export", "--month", newest, "--tenant", tenant_id, "--out", place / "month"]
    code, out, err = call(capsys, *argv)
    assert (code, "1 of about 1 runs written ..." in err) == (0, True)
    assert "runs written" not in out


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Every command there is, with its words."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


@pytest.mark.parametrize(("name", "command"), list(commands(archive_cli.cli)))
def test_help_teaches(name: str, command: click.Command, capsys: Any) -> None:
    """What a command does, what each option means; and JSON from whatever tells something."""
    assert command.help
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not one.help] == []
    assert any("--json" in one.opts for one in options) is (name != "metrics")
    assert archive_cli.main([*name.split(), "--help"]) == 0
    assert command.help.split(".")[0].split()[0] in capsys.readouterr().out
