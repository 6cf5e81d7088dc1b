"""What an operator reads when the database says no."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import SettingInvalid, StoreUnavailable, WriteRefused
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.translating import is_connection_loss, translated

BAD = [
    "postgresql://user:hunter2@[bad",
    "postgresql://user:hunter2%zz@host/db",
    "password=hunter2 nonsense=1",
    "hunter2",
]


@pytest.mark.parametrize("conninfo", BAD)
def test_a_connection_string_that_is_none_is_refused_at_once_and_not_quoted(conninfo: str) -> None:
    """libpq quotes the string, password and all; it must reach neither error, cause nor log."""
    for make in (PostgresCheckpointer, RunReader):
        with pytest.raises(SettingInvalid) as refused:
            make(conninfo, tenant_id="00000000-0000-0000-0000-00000000000a")
        assert "hunter2" not in str(refused.value)
        assert refused.value.__cause__ is None
    with pytest.raises(psycopg.ProgrammingError) as theirs:
        psycopg.connect(conninfo)
    assert "hunter2" not in str(translated(theirs.value))


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (pg.ReadOnlySqlTransaction, "primary"),
        (pg.QueryCanceled, "statement_timeout"),
        (pg.LockNotAvailable, "lock_timeout"),
        (pg.DiskFull, "Free space"),
        (pg.TooManyConnections, "max_connections"),
        (pg.OutOfMemory, "max_locks_per_transaction"),
        (pg.IdleInTransactionSessionTimeout, "idle_in_transaction_session_timeout"),
    ],
)
def test_what_says_nothing_of_the_row_is_no_refusal_of_it(
    error: type[psycopg.Error], next_step: str
) -> None:
    """It names the state and what to do; the call may be repeated as it is."""
    said = translated(error("why"))
    assert isinstance(said, StoreUnavailable)
    assert next_step in str(said)
    assert error.sqlstate in str(said)
    assert "why" in str(said)


def test_a_pool_that_is_used_up_is_not_a_server_that_is_gone() -> None:
    """The remedy is another: more connections, not another URL."""
    assert "max_connections" in str(translated(PoolTimeout("couldn't get a connection")))


def test_an_error_without_words_is_translated_too() -> None:
    """Drivers and poolers send such."""
    assert isinstance(translated(psycopg.DataError()), WriteRefused)


def test_a_session_ended_for_idling_in_a_transaction_is_a_lost_connection() -> None:
    """A host that paused between two statements may repeat them on another connection."""
    assert is_connection_loss(pg.IdleInTransactionSessionTimeout("terminating"))
    assert not is_connection_loss(pg.QueryCanceled("statement timeout"))
