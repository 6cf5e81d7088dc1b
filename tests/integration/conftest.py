"""What the store's tests share: one migrated database, and a lens that proves what it holds."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import inspect
import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import row_schemas
from aged_log import NOW, AgedLog, utc
from database_clock import DatabaseClock

from cuo_checkpoint import AuditKind, PostgresCheckpointer
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import ChainLink, verify_links
from cuo_checkpoint.serde import text_to_tree

OWNER = "cyberos_owner"
APP = "cyberos_app"
STORE_KINDS = {kind.value for kind in AuditKind}
# Columns a digest quotes as they are; ids, times and digests are spelled out beside them.
LOG_COLUMNS = (
    "checkpoint_ns",
    "edge_from",
    "edge_to",
    "kind",
    "lg_checkpoint_id",
    "lg_parent_id",
    "node_name",
    "ordinal",
    "phase",
    "seq",
    "step",
    "thread_id",
    "trace_id",
)
WRITE_COLUMNS = (
    "channel",
    "checkpoint_ns",
    "idx",
    "lg_checkpoint_id",
    "seq",
    "task_id",
    "task_path",
    "thread_id",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A migrated database and the ways into it."""

    admin: str
    owner: str
    app: str
    auditor: str


@pytest.fixture(scope="session")
def shared_place(cluster: Any) -> Iterator[Place]:
    """One clone of the template for every test that keeps to tenants of its own."""
    name = f"cuo_shared_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(cluster.template), sql.Identifier(OWNER)
            )
        )
    yield Place(
        cluster.dsn(name),
        cluster.dsn(name, OWNER),
        cluster.dsn(name, APP),
        cluster.dsn(name, "cyberos_auditor"),
    )
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )


@pytest.fixture
def make_store(
    shared_place: Place, tenant_id: str
) -> Iterator[Callable[..., PostgresCheckpointer]]:
    """Makes stores for this test's tenant, as cyberos_app; they are closed at its end."""
    made: list[PostgresCheckpointer] = []

    def make(dsn: str | None = None, **options: Any) -> PostgresCheckpointer:
        options.setdefault("tenant_id", tenant_id)
        options.setdefault("max_connections", 4)
        store = PostgresCheckpointer(dsn or shared_place.app, **options)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., PostgresCheckpointer]) -> PostgresCheckpointer:
    """A store with the defaults."""
    return make_store()


@pytest.fixture
def lens(shared_place: Place, tenant_id: str) -> Iterator[Lens]:
    """Looks at this test's tenant in the shared database, and proves it sound when the test ends."""
    found = Lens(shared_place.admin, tenant_id)
    yield found
    found.prove()


@pytest.fixture
def lens_of() -> Callable[[str, str], Lens]:
    """A lens on any tenant of any database."""
    return Lens


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Each behaviour holds for blocking and for awaiting callers."""
    return str(request.param)


@pytest.fixture
def drive(colour: str) -> Callable[..., Any]:
    """Calls a method of a graph or store in the test's colour: drive(graph, "invoke", ...).

    Graphs run with durability "sync" unless told otherwise, so that rows arrive in order.
    """

    def call(target: Any, method: str, *args: Any, **options: Any) -> Any:
        if method == "invoke":
            options.setdefault("durability", "sync")
        if colour == "sync":
            result = getattr(target, method)(*args, **options)
            return list(result) if inspect.isgenerator(result) else result

        async def run() -> Any:
            store = getattr(target, "checkpointer", target)
            try:
                result = getattr(target, f"a{method}")(*args, **options)
                if inspect.isasyncgen(result):
                    return [item async for item in result]
                return await result
            finally:
                if isinstance(store, PostgresCheckpointer):
                    await store.aclose()

        return asyncio.run(run())

    return call


@pytest.fixture(scope="session")
def aged_template(cluster: Any) -> Iterator[str]:
    """A database with months of 2018 and the last two years, and a clock that can be set."""
    name = f"cuo_aged_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {cluster.template} OWNER cyberos_owner")
    clock = DatabaseClock(cluster.dsn(name))
    clock.months(utc(2018, 3, 1), utc(2018, 3, 2))
    clock.months(utc(2025, 10, 1), NOW)
    yield name
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def aged(cluster: Any, aged_template: str) -> Iterator[AgedLog]:
    """This test's clone of it."""
    name = f"cuo_aged_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {aged_template} OWNER cyberos_owner")
    yield AgedLog(cluster, name)
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Eye:
    """One connection a database for all lenses: a test looks some twenty times, in autocommit."""

    dsn: str = ""
    conn: psycopg.Connection[dict[str, Any]] | None = None

    @classmethod
    def query(cls, dsn: str, text: str, params: Any) -> list[dict[str, Any]]:
        """Rows of a query; looks again when the server closed the connection meanwhile."""
        while True:
            fresh = cls.conn is None or cls.conn.closed or cls.dsn != dsn
            if fresh:
                cls.close()
                cls.dsn, cls.conn = dsn, psycopg.connect(dsn, row_factory=dict_row, autocommit=True)
            assert cls.conn is not None
            try:
                return cls.conn.execute(text, params).fetchall()
            except psycopg.OperationalError:
                if fresh or not cls.conn.closed:
                    raise

    @classmethod
    def close(cls) -> None:
        if cls.conn is not None:
            cls.conn.close()
            cls.conn = None


@pytest.fixture(scope="session", autouse=True)
def eye() -> Iterator[None]:
    """Shut when the tests end."""
    yield
    Eye.close()


class Lens:
    """Reads one tenant's rows as a superuser: for looking, never for acting."""

    def __init__(self, admin_dsn: str, tenant_id: str) -> None:
        self.dsn = admin_dsn
        self.tenant = uuid.UUID(tenant_id)

    def query(self, text: str, *params: Any) -> list[dict[str, Any]]:
        """Rows of a query in which $T stands for the tenant."""
        spelled = text.replace("$T", f"'{self.tenant}'")
        return Eye.query(self.dsn, spelled, params or None)

    def rows(self, thread: str | None = None) -> list[dict[str, Any]]:
        """Log rows in order of arrival, states in full."""
        return self.query(
            "SELECT *, state_json::text AS state_text, langgraph::text AS langgraph_text"
            " FROM cuo_checkpoints_full WHERE tenant_id = $T"
            " AND (%s::text IS NULL OR thread_id = %s) ORDER BY thread_id, seq",
            thread,
            thread,
        )

    def events(self, thread: str | None = None, *, causal: bool = False) -> list[str]:
        """Log rows in one word each: started, >a (entered), <a (completed), a->b, done, failed:X.

        In order of arrival; `causal` sorts each run's rows by (step, phase, ordinal) instead.
        """
        rows = self.rows(thread)
        if causal:
            order = {run: i for i, run in enumerate(dict.fromkeys(r["run_id"] for r in rows))}
            rows.sort(
                key=lambda r: (
                    order[r["run_id"]],
                    r["step"] if r["step"] is not None else -9,
                    r["phase"],
                    r["checkpoint_ns"],
                    r["ordinal"],
                )
            )
        return [_word(row) for row in rows]

    def audit(self, *kinds: str) -> list[dict[str, Any]]:
        """Audit rows in order, all kinds or the named ones."""
        return self.query(
            "SELECT * FROM cuo_memory_audit WHERE tenant_id = $T"
            " AND (cardinality(%s::text[]) = 0 OR kind = ANY (%s)) ORDER BY run_id, chain_seq",
            list(kinds),
            list(kinds),
        )

    def prove(self) -> None:
        """Chains, digests, lineage and index tables of the tenant agree with one another."""
        rows = self.rows()
        self._lineage(rows)
        self._digests(rows)
        self._writes()
        self._chains(rows)
        self._shapes()

    def _shapes(self) -> None:
        """Rows are as the shipped schemas say; of each kind the first of every shape of theirs."""
        seen: set[Any] = set()
        for row in self.audit():
            body = json.loads(row["body"])
            supervisors = row["kind"].startswith("cuo.") and row["kind"] not in STORE_KINDS
            if supervisors and "row_v" not in body:
                continue  # a store's test wrote words of its own into the outbox
            shape = (row["kind"], tuple(sorted((k, type(v).__name__) for k, v in body.items())))
            if shape not in seen:
                seen.add(shape)
                row_schemas.check(row)

    def _lineage(self, rows: list[dict[str, Any]]) -> None:
        by_id = {row["checkpoint_id"]: row for row in rows}
        assert len(by_id) == len(rows), "an id stands twice"
        for row in rows:
            parent = row["parent_checkpoint_id"]
            if parent is not None:
                assert parent in by_id, f"parent of {_word(row)} is missing"
                assert by_id[parent]["seq"] < row["seq"], f"{_word(row)} precedes its parent"
        roots = Counter(r["run_id"] for r in rows if r["parent_checkpoint_id"] is None)
        assert all(n == 1 for n in roots.values()), f"runs with several roots: {roots}"
        assert set(roots) == {r["run_id"] for r in rows}, "a run has no root"
        for thread in {r["thread_id"] for r in rows}:
            seqs = [r["seq"] for r in rows if r["thread_id"] == thread]
            assert len(set(seqs)) == len(seqs), "a seq stands twice in a thread"

    def _digests(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            state = _digest(row["state_text"])
            assert state == row["state_sha256"], f"state of {_word(row)}"
            if row["langgraph_text"] is not None:
                assert _digest(row["langgraph_text"]) == row["langgraph_sha256"]
            said = {name: row[name] for name in LOG_COLUMNS} | {
                "checkpoint_id": str(row["checkpoint_id"]),
                "created_at": _time(row["created_at"]),
                "langgraph_sha256": _hex(row["langgraph_sha256"]),
                "parent_checkpoint_id": _text(row["parent_checkpoint_id"]),
                "run_id": str(row["run_id"]),
                "state_sha256": _hex(row["state_sha256"]),
                "tenant_id": str(row["tenant_id"]),
            }
            assert hashlib.sha256(canonical_bytes(said)).digest() == row["row_sha256"], _word(row)

    def _writes(self) -> None:
        writes = self.query(
            "SELECT *, value::text AS value_text FROM cuo_langgraph_writes WHERE tenant_id = $T"
            " ORDER BY seq, idx"
        )
        sets: dict[tuple[str, int], bytes] = {}
        for row in writes:
            assert _digest(row["value_text"]) == row["value_sha256"]
            said = {name: row[name] for name in WRITE_COLUMNS} | {
                "created_at": _time(row["created_at"]),
                "run_id": str(row["run_id"]),
                "tenant_id": str(row["tenant_id"]),
                "value_sha256": _hex(row["value_sha256"]),
            }
            assert hashlib.sha256(canonical_bytes(said)).digest() == row["row_sha256"]
            key = (row["thread_id"], row["seq"])
            sets[key] = sets.get(key, b"") + row["row_sha256"]
        told = {
            body["sha256"] for row in self.audit("write_set") for body in [json.loads(row["body"])]
        }
        assert told == {hashlib.sha256(joined).hexdigest() for joined in sets.values()}

    def _chains(self, rows: list[dict[str, Any]]) -> None:
        runs = {r["run_id"]: r for r in self.query("SELECT * FROM cuo_runs WHERE tenant_id = $T")}
        links: dict[uuid.UUID, list[ChainLink]] = {}
        told: Counter[str] = Counter()
        for row in self.audit():
            links.setdefault(row["run_id"], []).append(
                ChainLink(row["chain_seq"], row["row_bytes"], row["prev_sha256"], row["row_sha256"])
            )
            if row["kind"] == "cuo.checkpoint_written":
                told[json.loads(row["body"])["row_sha256"]] += 1
        for run_id, chain in links.items():
            head = verify_links(self.tenant, run_id, chain)
            assert head == runs[run_id]["chain_head"]
            assert len(chain) == runs[run_id]["chain_seq"]
        assert told == Counter(r["row_sha256"].hex() for r in rows), "one audit row per log row"
        counts = Counter(r["run_id"] for r in rows)
        assert {k: r["log_rows"] for k, r in runs.items() if r["log_rows"]} == dict(counts)


def _word(row: dict[str, Any]) -> str:
    prefix = f"{row['checkpoint_ns'].split(':')[0]}/" if row["checkpoint_ns"] else ""
    kind = row["kind"]
    if kind == "edge_traversed":
        return f"{prefix}{row['edge_from']}->{row['edge_to']}"
    if kind == "run_failed":
        return f"{prefix}failed:{row['langgraph']['error']['type']}"
    words = {
        "run_started": "started",
        "run_completed": "done",
        "node_entered": f">{row['node_name']}",
        "node_completed": f"<{row['node_name']}",
    }
    return prefix + words[kind]


def _digest(text: str) -> bytes:
    return hashlib.sha256(canonical_bytes(text_to_tree(text))).digest()


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _text(value: uuid.UUID | None) -> str | None:
    return None if value is None else str(value)


def _time(value: Any) -> str:
    return str(value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
