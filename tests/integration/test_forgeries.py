"""Forgeries by a superuser with every trigger off, each on a run of its own in one sealed log.

All are judged at once, by `verify` on the live database with its exported heads and by the verifier
that a month's bundle carries; a forgery must be named in its own run by both, or is listed as what
stays invisible, and then must be so.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from aged_log import graph
from bundle_command import check, fit_sums, read, write
from langgraph.types import Command

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive, digests, keys, readiness
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.export import export_month, export_run
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.merkle import Tree
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant

RING = KeyRing((keys.generate("test"),))
LOG, AUDIT, WRITES = "cuo_langgraph_checkpoints", "cuo_memory_audit", "cuo_langgraph_writes"
Conn = psycopg.Connection[dict[str, Any]]


def again(table: str, key: str, change: str) -> Callable[[Conn, uuid.UUID], None]:
    """A second copy of one row of the run, changed a little."""

    def attack(conn: Conn, run: uuid.UUID) -> None:
        conn.execute(
            f"INSERT INTO {table} SELECT (jsonb_populate_record(t, {change})).* FROM {table} t"
            f" WHERE run_id = %s ORDER BY {key} LIMIT 1",
            [run],
        )

    return attack


def edit(table: str, change: str, where: str) -> Callable[[Conn, uuid.UUID], None]:
    """Changes columns of the run's rows."""

    def attack(conn: Conn, run: uuid.UUID) -> None:
        done = conn.execute(f"UPDATE {table} SET {change} WHERE run_id = %s AND {where}", [run])
        assert done.rowcount > 0

    return attack


def another_answer(conn: Conn, run: uuid.UUID) -> None:
    """The person's answer says no instead of yes, with every digest of its row made to fit."""
    row = conn.execute(
        f"SELECT * FROM {WRITES} WHERE run_id = %s AND channel = '__resume__'", [run]
    ).fetchone()
    assert row is not None
    value = canonical_bytes(["no"]).decode()
    row["value_sha256"] = digests.document_sha256(value)
    conn.execute(
        f"UPDATE {WRITES} SET value = %s::jsonb, value_sha256 = %s, row_sha256 = %s"
        " WHERE run_id = %s AND channel = '__resume__'",
        [value, row["value_sha256"], digests.write_row_sha256(row), run],
    )


def hidden_by_a_tombstone(conn: Conn, run: uuid.UUID) -> None:
    """A tombstone that nobody asked for hides the run from LangGraph."""
    (found,) = conn.execute("SELECT * FROM cuo_runs WHERE run_id = %s", [run]).fetchall()
    row = {
        "tenant_id": found["tenant_id"],
        "tombstone_id": uuid.uuid4(),
        "thread_id": found["thread_id"],
        "kind": "delete_run",
        "hidden_run_id": run,
        "up_to_seq": 99,
        "run_id": run,
        "created_at": found["newest_at"],
    }
    row["row_sha256"] = digests.tombstone_row_sha256(row)
    names = ", ".join(row)
    marks = ", ".join(["%s"] * len(row))
    conn.execute(
        f"INSERT INTO cuo_thread_tombstones ({names}) VALUES ({marks})", list(row.values())
    )


def to_another_tenant(conn: Conn, run: uuid.UUID) -> None:
    """The run is moved to a tenant of the forger's, whole."""
    for table in (LOG, AUDIT, WRITES, "cuo_runs"):
        conn.execute(f"UPDATE {table} SET tenant_id = gen_random_uuid() WHERE run_id = %s", [run])


EARLIER = "jsonb_build_object('created_at', created_at - interval '1 millisecond')"
FORGERIES: dict[str, tuple[Callable[[Conn, uuid.UUID], None], str, str]] = {
    "another answer": (another_answer, "pending writes of task", "pending writes are missing or"),
    "a tombstone nobody asked for": (
        hidden_by_a_tombstone,
        "tombstone",
        "was added: no chain row speaks of it",
    ),
    "a chain row told twice": (
        again(AUDIT, "chain_seq DESC", EARLIER),
        "stands there a second time",
        "is not in its place",
    ),
    "a log row told twice": (
        again(LOG, "seq", EARLIER),
        "no chain row speaks of it",
        "was added: no chain row speaks of it",
    ),
    "a row moved to another thread": (
        edit(LOG, "thread_id = 'other'", "kind = 'node_entered'"),
        "a column was changed",
        "was changed: columns and digest disagree",
    ),
    "a row's cause exchanged": (
        edit(LOG, "parent_checkpoint_id = gen_random_uuid()", "kind = 'node_completed'"),
        "a column was changed",
        "was changed: columns and digest disagree",
    ),
    "a state shared with another row": (
        edit(
            LOG,
            "state_json = jsonb_build_object('$state_of', checkpoint_id)",
            "kind = 'node_entered' AND NOT state_json ? '$state_of'",
        ),
        "the state it shares is not there",
        "the state it shares is not there",
    ),
    "what a chain row says, in its column alone": (
        edit(AUDIT, 'body = \'{"outcome":"run_failed"}\'', "kind = 'close'"),
        "column for 'body' is not what its bytes say",
        "columns are not what its bytes say",
    ),
    "a chain row's trace": (
        edit(AUDIT, "trace_id = repeat('e', 32)", "chain_seq = 2"),
        "column for 'trace_id' is not what its bytes say",
        "time or trace is not what its bytes say",
    ),
    "a run moved to another tenant": (to_another_tenant, "is missing; it was sealed", "is missing"),
    "a log row moved in time": (
        edit(LOG, "created_at = created_at - interval '1 minute'", "kind = 'run_started'"),
        "a column was changed",
        "was changed: columns and digest disagree",
    ),
    "a seal's quoted digest": (
        edit("cuo_seal_leaves", "row_sha256 = sha256('x')", "true"),
        "was changed there; the exported one stands",
        "its proof does not lead to the signed head",
    ),
}
INVISIBLE: dict[str, Callable[[Conn, uuid.UUID], None]] = {
    "a number spelled otherwise": edit(
        LOG, "state_json = jsonb_set(state_json, '{n}', '1.0')", "state_json ->> 'n' = '1'"
    ),
}


class Court:
    """The log with all forgeries in it, and what both verifiers said of each run."""

    def __init__(self, cluster: Any, database: str, folder: Path) -> None:
        self.admin, self.app = cluster.dsn(database), cluster.dsn(database, "cyberos_app")
        self.auditor = cluster.dsn(database, "cyberos_auditor")
        self.tenant, self.folder = uuid.uuid4(), folder
        self.runs = {name: self.run(name) for name in (*FORGERIES, *INVISIBLE, "untouched")}
        (folder / "heads").mkdir()
        self.heads = HeadFolder(folder / "heads")
        self.key = folder / "trusted.keys"
        self.key.write_text("".join(f"{key}\n" for key in RING.believed))
        assert self.seal() == len(self.runs)
        with psycopg.connect(self.admin, row_factory=dict_row) as conn:
            conn.execute("SET session_replication_role = replica")
            for name, forge in {
                **{n: f for n, (f, _, _) in FORGERIES.items()},
                **INVISIBLE,
            }.items():
                forge(conn, self.runs[name])
            now = conn.execute("SELECT now() AS now").fetchall()[0]["now"]
        report = archive.verify(self.auditor, tenant_id=self.tenant)
        found = check_tenant(self.auditor, self.tenant, keys=RING.believed, folder=self.heads)
        self.live = {verdict.run_id: list(verdict.problems) for verdict in report.broken}
        for finding in found.findings:
            assert finding.run_id is not None
            self.live.setdefault(finding.run_id, []).append(finding.text)
        self.bundle = folder / "month"
        export_month(self.auditor, self.tenant, Month.of(now), self.bundle)
        code, self.said = check(self.bundle, "--key", self.key)
        assert code == 65

    def seal(self) -> int:
        with Sealer(self.auditor, ring=RING, folder=self.heads) as sealer:
            return sealer.seal(self.tenant).leaves

    def run(self, name: str) -> uuid.UUID:
        run = uuid.uuid4()
        config: Any = {"configurable": {"thread_id": name, "run_id": run}}
        with PostgresCheckpointer(self.app, tenant_id=self.tenant, max_connections=2) as store:
            if name in INVISIBLE:
                CheckpointWriter(store).write(run, "node_entered", {"n": 1}, node_name="n")
                return run
            made = graph(store)
            made.invoke({"ask": True}, config, durability="sync")
            made.invoke(Command(resume="yes"), config, durability="sync")
        return run

    def in_bundle(self, run: uuid.UUID) -> list[str]:
        return [text for text in self.said["problems"] if text.startswith(f"run {run}")]


@pytest.fixture(scope="module")
def court(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    """Everything is forged and judged once."""
    name = f"cuo_forged_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {cluster.template} OWNER cyberos_owner")
    yield Court(cluster, name, tmp_path_factory.mktemp("court"))
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(court: Court, name: str) -> None:
    """In its run, for what it is, by both verifiers."""
    _, live, bundle = FORGERIES[name]
    run = court.runs[name]
    assert any(live in text for text in court.live.get(run, [])), court.live.get(run)
    assert any(bundle in text for text in court.in_bundle(run)), court.in_bundle(run)


@pytest.mark.parametrize("name", [*INVISIBLE, "untouched"])
def test_nothing_is_said_of_a_run_that_says_the_same(court: Court, name: str) -> None:
    """1 and 1.0 are one number in RFC 8785; and no forgery spoils another run's verdict."""
    assert court.live.get(court.runs[name]) is None
    assert court.in_bundle(court.runs[name]) == []


def test_an_older_seal_of_a_run_shows_in_a_months_bundle_only(court: Court, tmp_path: Path) -> None:
    """Cut back to an earlier seal, with that seal's proof: a run's bundle alone cannot know better."""
    run = court.runs["untouched"]
    with psycopg.connect(court.admin, row_factory=dict_row) as conn:
        leaves = conn.execute(
            "SELECT * FROM cuo_seal_leaves WHERE tenant_id = %s ORDER BY leaf_index", [court.tenant]
        ).fetchall()
    (old,) = [leaf for leaf in leaves if leaf["run_id"] == run]
    with PostgresCheckpointer(court.app, tenant_id=court.tenant, max_connections=1) as store:
        CheckpointWriter(store).write(
            run, "node_entered", {"n": 2}, node_name="late", thread_id="untouched"
        )
    assert court.seal() == 1
    with psycopg.connect(court.admin, row_factory=dict_row) as conn:
        hashes = conn.execute(
            "SELECT leaf_sha256 FROM cuo_seal_leaves WHERE tenant_id = %s ORDER BY leaf_index",
            [court.tenant],
        ).fetchall()
    tree = Tree(row["leaf_sha256"] for row in hashes)

    def cut_back(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_bytes())
        proofs = json.loads((bundle / "proofs.json").read_bytes())
        rows = read(bundle / "audit.ndjson")
        gone = [r for r in rows if r["run_id"] == str(run) and r["chain_seq"] > old["chain_seq"]]
        write(bundle / "audit.ndjson", [row for row in rows if row not in gone])
        lost = {json.loads(r["row"])["body"].get("checkpoint_id") for r in gone}
        log = read(bundle / "log.ndjson")
        write(bundle / "log.ndjson", [row for row in log if row["checkpoint_id"] not in lost])
        manifest["rows"]["audit"] -= len(gone)
        manifest["rows"]["log"] -= 1
        (told,) = [told for told in manifest["runs"] if told["run_id"] == str(run)]
        told["chain_rows"] -= len(gone)
        leaf = json.loads(proofs[str(run)]["leaf"])
        leaf |= {
            "at": leaf["at"] and _time(old["head_at"]),
            "chain_seq": old["chain_seq"],
            "row_sha256": old["row_sha256"].hex(),
            "sealed_at": _time(old["sealed_at"]),
        }
        path = [node.hex() for node in tree.inclusion(old["leaf_index"])]
        proofs[str(run)] = {
            "index": old["leaf_index"],
            "leaf": canonical_bytes(leaf).decode(),
            "path": path,
        }
        (bundle / "proofs.json").write_bytes(canonical_bytes(proofs))
        (bundle / "manifest.json").write_bytes(canonical_bytes(manifest))
        fit_sums(bundle)

    alone, month = tmp_path / "run", tmp_path / "month"
    export_run(court.auditor, court.tenant, run, alone)
    export_month(court.auditor, court.tenant, Month.of(old["sealed_at"]), month)
    for bundle in (alone, month):
        cut_back(bundle)
    assert check(alone, "--key", court.key)[0] == 0
    said = check(month, "--key", court.key)[1]["problems"]
    assert any(f"run {run}: is shortened: sealed up to chain row" in text for text in said)


def _time(at: Any) -> str:
    return str(at.astimezone().strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def test_the_owner_needs_ddl_to_change_a_row_and_ddl_is_seen(
    admin_dsn: str, owner_dsn: str, app_dsn: str, auditor_dsn: str, tenant_id: str
) -> None:
    """Becoming the owner switches nothing off; an owner who does is named at start and by verify."""
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id, max_connections=1) as store:
        CheckpointWriter(store).write(uuid.uuid4(), "node_entered", {"n": 1}, node_name="n")
    change = f"UPDATE {LOG} SET node_name = 'x'"
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute("SET ROLE cyberos_owner")
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        for attempt in (change, f"DELETE FROM {LOG}", f"TRUNCATE {LOG}"):
            with pytest.raises(psycopg.Error, match="append-only"):
                conn.execute(attempt)
    with psycopg.connect(owner_dsn, autocommit=True) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SET session_replication_role = replica")
        conn.execute(f"ALTER TABLE {LOG} DISABLE TRIGGER USER")
        assert conn.execute(change).rowcount == 1
    found = {f.name: f for f in readiness.check(app_dsn) if not f.ok}
    assert LOG in found["append-only triggers"].detail
    report = archive.verify(auditor_dsn, tenant_id=uuid.UUID(tenant_id))
    assert "a column was changed" in report.broken[0].problems[0]
