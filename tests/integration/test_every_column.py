"""No column of the evidence can be changed unseen: the catalog says which columns there are.

A superuser with every trigger off changes one column of one row, of every table and in every way the
catalog knows; each must be named by `verify` in its own run, hold, leaf or head. A column that a later
migration adds is tried without a word here, and fails until a digest covers it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from aged_log import graph
from langgraph.types import Command

from cuo_checkpoint import PostgresCheckpointer, archive, keys, retention
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant

RING = KeyRing((keys.generate("test"),))
IN_A_RUN = (
    "cuo_langgraph_checkpoints",
    "cuo_langgraph_writes",
    "cuo_memory_audit",
    "cuo_thread_tombstones",
    "cuo_seal_leaves",
)
"""Tables in which each change is made to a row of a run of its own."""

HOLDS, HEADS = "cuo_holds", "cuo_seal_heads"
COLUMNS = (
    "SELECT column_name AS name, udt_name AS type FROM information_schema.columns"
    " WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position"
)
OTHER = {
    "uuid": "gen_random_uuid()",
    "text": "coalesce({c}, '') || 'x'",
    "bpchar": "repeat('e', 32)",
    "int4": "coalesce({c}, 0) + 1000",
    "int8": "coalesce({c}, 0) + 1000",
    "jsonb": "'{{\"forged\": true}}'",
    "bytea": "sha256('forged')",
    "timestamptz": "{c} + interval '1 microsecond'",
}
"""Another value for each type the tables use; a new type must be given one."""


def change(conn: psycopg.Connection[Any], table: str, column: dict[str, Any], row: str) -> None:
    """Changes one column of the row at this place."""
    value = sql.SQL(OTHER[column["type"]]).format(c=sql.Identifier(column["name"]))  # type: ignore[arg-type]
    done = conn.execute(
        sql.SQL("UPDATE {} SET {} = {} WHERE tableoid::text || ctid::text = %s").format(
            sql.Identifier(table), sql.Identifier(column["name"]), value
        ),
        [row],
    )
    assert done.rowcount == 1, (table, column)


class Walk:
    """One sealed log in which each column of each table was changed somewhere."""

    def __init__(self, cluster: Any, database: str, folder: Path) -> None:
        self.app = cluster.dsn(database, "cyberos_app")
        self.auditor = cluster.dsn(database, "cyberos_auditor")
        self.archiver = cluster.dsn(database, "cyberos_archiver")
        self.tenant, self.folder = uuid.uuid4(), HeadFolder(folder)
        self.changed: dict[tuple[str, str], str] = {}
        with psycopg.connect(cluster.dsn(database), row_factory=dict_row) as conn:
            self.columns = {
                table: conn.execute(COLUMNS, [table]).fetchall()
                for table in (*IN_A_RUN, HOLDS, HEADS)
            }
            self.fill()
            conn.execute("SET session_replication_role = replica")
            self.without_checks(conn)
            for table in IN_A_RUN:
                for column in self.columns[table]:
                    run = self.appended_by(conn, table, self.runs.pop())
                    self.changed[table, column["name"]] = str(run)
                    self.change(conn, table, column, "run_id = %s", run)
            for column in self.columns[HOLDS]:
                hold = self.holds.pop()
                self.changed[HOLDS, column["name"]] = str(hold)
                self.change(conn, HOLDS, column, "hold_id = %s", hold)
            for number, column in enumerate(self.columns[HEADS], start=1):
                self.changed[HEADS, column["name"]] = f"head {number}"
                self.change(conn, HEADS, column, "head_no = %s", number)
        report = archive.verify(self.auditor, tenant_id=self.tenant)
        found = check_tenant(self.auditor, self.tenant, keys=RING.believed, folder=self.folder)
        self.said = [
            *(f"run {v.run_id}: {problem}" for v in report.broken for problem in v.problems),
            *(f"run {f.run_id}: {f.text}" for f in found.findings),
        ]

    def fill(self) -> None:
        """A finished run with an answer and a tombstone for each column, holds, and many heads."""
        with PostgresCheckpointer(self.app, tenant_id=self.tenant, max_connections=2) as store:
            made = graph(store)
            self.runs = []
            heads = len(self.columns[HEADS])
            for number in range(sum(len(self.columns[table]) for table in IN_A_RUN)):
                run, thread = uuid.uuid4(), f"thread {number}"
                config: Any = {"configurable": {"thread_id": thread, "run_id": run}}
                made.invoke({"ask": True}, config, durability="sync")
                made.invoke(Command(resume="yes"), config, durability="sync")
                store.delete_thread(thread)
                self.runs.append(run)
                if number < heads:
                    self.seal()
        self.holds = [
            retention.place_hold(self.archiver, self.tenant, None, reason=f"case {n}", by="clerk")
            for n in range(len(self.columns[HOLDS]))
        ]
        self.seal()

    def appended_by(self, conn: psycopg.Connection[Any], table: str, run: uuid.UUID) -> Any:
        """The run whose chain speaks of the row: a tombstone is told by a run of its own."""
        if table != "cuo_thread_tombstones":
            return run
        found = conn.execute(
            "SELECT t.run_id FROM cuo_thread_tombstones t JOIN cuo_runs r USING (tenant_id, thread_id)"
            " WHERE r.run_id = %s",
            [run],
        ).fetchone()
        assert found is not None
        return found["run_id"]

    def seal(self) -> None:
        with Sealer(self.auditor, ring=RING, folder=self.folder) as sealer:
            assert sealer.seal(self.tenant).heads

    def without_checks(self, conn: psycopg.Connection[Any]) -> None:
        """A superuser is not stopped by a CHECK or a key either."""
        for table in self.columns:
            for row in conn.execute(
                "SELECT conname AS name FROM pg_constraint WHERE conrelid = %s::regclass"
                " AND contype IN ('c', 'f')",
                [table],
            ).fetchall():
                conn.execute(
                    sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
                        sql.Identifier(table), sql.Identifier(row["name"])
                    )
                )

    def change(
        self, conn: psycopg.Connection[Any], table: str, column: Any, where: str, key: Any
    ) -> None:
        found = conn.execute(
            sql.SQL(
                "SELECT tableoid::text || ctid::text AS row FROM {} WHERE tenant_id = %s AND "
            ).format(sql.Identifier(table))
            + sql.SQL(where)  # type: ignore[arg-type]
            + sql.SQL(" ORDER BY created_at LIMIT 1" if table.startswith("cuo_l") else " LIMIT 1"),
            [self.tenant, key],
        ).fetchone()
        assert found is not None, (table, key)
        change(conn, table, column, found["row"])


@pytest.fixture(scope="module")
def walk(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """Everything is changed and judged once."""
    name = f"cuo_walked_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {cluster.template} OWNER cyberos_owner")
    yield Walk(cluster, name, tmp_path_factory.mktemp("heads"))
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("table", [*IN_A_RUN, HOLDS, HEADS])
def test_every_column_of_every_table_is_covered(walk: Walk, table: str) -> None:
    """Each change is named where it was made."""
    names = [column["name"] for column in walk.columns[table]]
    assert len(names) >= 7
    unseen = [
        name for name in names if not any(walk.changed[table, name] in text for text in walk.said)
    ]
    assert unseen == []


def test_every_table_of_evidence_was_walked(walk: Walk, admin_dsn: str) -> None:
    """A table that a later migration adds must be walked too, or be said to be derived."""
    with psycopg.connect(admin_dsn) as conn:
        there = {
            name
            for (name,) in conn.execute(
                "SELECT c.relname FROM pg_class c WHERE c.relkind IN ('r', 'p')"
                " AND c.relnamespace = 'public'::regnamespace AND NOT c.relispartition"
            ).fetchall()
        }
    derived = {"cuo_runs", "cuo_threads", "cuo_alembic_version"}
    assert there - derived == {*IN_A_RUN, HOLDS, HEADS}
