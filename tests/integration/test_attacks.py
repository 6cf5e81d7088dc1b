"""What a superuser can do behind the triggers, and what is said of it.

Each attack is judged by both verifiers together, as `cuo-archive verify` does: the one that
recomputes what the database holds, and the one that holds it against the exported heads.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from bundle_command import check

from cuo_checkpoint import (
    CheckpointWriter,
    PostgresCheckpointer,
    archive,
    chain,
    digests,
    keys,
    retention,
)
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.errors import SealRefused
from cuo_checkpoint.export import export_month
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.leaves import origin_of
from cuo_checkpoint.merkle import Tree, leaf_hash
from cuo_checkpoint.notes import Checkpoint
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant
from cuo_checkpoint.seal_findings import FindingKind
from cuo_checkpoint.seal_restore import declare_restore

RING = KeyRing((keys.generate("test"),))
SAY_DROPPED = (
    "INSERT INTO cuo_memory_audit (tenant_id, run_id, chain_seq, kind, trace_id, body, row_bytes,"
    " prev_sha256, row_sha256, created_at) SELECT gen_random_uuid(), gen_random_uuid(), 1,"
    " 'month_dropped', repeat('0', 32), '{\"month\":\"' || coalesce(%(month)s::text,"
    " to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')) || '\"}', '', sha256(''), sha256(''),"
    " now() + interval '1 month'"
)
STATES = [{"n": i, "text": "đ" * 10} for i in range(6)]


class Log:
    """A database of its own with three sealed runs of one tenant, and what verifies it."""

    def __init__(self, admin: str, app: str, auditor: str, tenant: uuid.UUID, folder: Path) -> None:
        self.admin, self.auditor, self.tenant = admin, auditor, tenant
        self.folder = HeadFolder(folder)
        self.store = PostgresCheckpointer(app, tenant_id=str(tenant), max_connections=2)
        self.writer = CheckpointWriter(self.store)
        self.runs = [self.write(4) for _ in range(3)]
        self.seal()
        self.write(2, self.runs[0])
        self.seal()

    def write(self, rows: int, run: uuid.UUID | None = None) -> uuid.UUID:
        run = run or uuid.uuid4()
        for state in STATES[:rows]:
            self.writer.write(run, "node_entered", state, node_name="n")
        return run

    def seal(self, ring: KeyRing = RING) -> None:
        with Sealer(self.auditor, ring=ring, folder=self.folder) as sealer:
            assert sealer.seal(self.tenant).ok

    def attack(self, *statements: str, **params: Any) -> None:
        """As a superuser with every trigger off. %(t)s is the tenant, %(r)s and %(s)s two runs."""
        given = {"t": self.tenant, "r": self.runs[0], "s": self.runs[1]} | params
        with self.replica() as conn:
            for statement in statements:
                conn.execute(statement, given)  # type: ignore[arg-type]

    def replica(self) -> psycopg.Connection[dict[str, Any]]:
        conn = psycopg.connect(self.admin, row_factory=dict_row)
        conn.execute("SET session_replication_role = replica")
        return conn

    def found(
        self, heads: Any = (), keys: Any = RING.believed
    ) -> tuple[list[str], list[tuple[FindingKind, str]]]:
        """What the chains' verifier says, and what the seals' says."""
        report = archive.verify(self.auditor, tenant_id=self.tenant)
        said = [problem for verdict in report.broken for problem in verdict.problems]
        check = check_tenant(self.auditor, self.tenant, keys=keys, folder=self.folder, heads=heads)
        json.dumps(check.to_json())
        assert check.ok == all(
            f.kind
            in (FindingKind.DECLARED_LOSS, FindingKind.DROPPED_MONTH, FindingKind.VOUCHED_LATER)
            for f in check.findings
        )
        return said + report.strays, [(f.kind, f.text) for f in check.findings]

    def relink(self, run: uuid.UUID, change: Callable[[dict[str, Any]], None]) -> None:
        """Rewrites a run's chain whole: changes what rows say, recomputes every digest and the index."""
        with self.replica() as conn:
            rows = conn.execute(
                "SELECT * FROM cuo_memory_audit WHERE run_id = %s ORDER BY chain_seq", [run]
            ).fetchall()
            head = chain.genesis(self.tenant, run)
            for row in rows:
                said = json.loads(row["row_bytes"])
                change(said)
                data = canonical_bytes(said)
                digest = chain.link(head, data)
                conn.execute(
                    "UPDATE cuo_memory_audit SET row_bytes = %s, body = %s, prev_sha256 = %s,"
                    " row_sha256 = %s WHERE run_id = %s AND chain_seq = %s",
                    [
                        data,
                        canonical_bytes(said["body"]).decode(),
                        head,
                        digest,
                        run,
                        row["chain_seq"],
                    ],
                )
                head = digest
            conn.execute("UPDATE cuo_runs SET chain_head = %s WHERE run_id = %s", [head, run])

    def rename_node(self, run: uuid.UUID) -> dict[str, str]:
        """Changes every log row of a run with fitting digests; returns old digests with the new."""
        new: dict[str, str] = {}
        with self.replica() as conn:
            for row in conn.execute(
                "SELECT * FROM cuo_langgraph_checkpoints WHERE run_id = %s", [run]
            ).fetchall():
                old = row["row_sha256"].hex()
                digest = digests.log_row_sha256({**row, "node_name": "forged"})
                new[old] = digest.hex()
                conn.execute(
                    "UPDATE cuo_langgraph_checkpoints SET node_name = 'forged', row_sha256 = %s"
                    " WHERE checkpoint_id = %s",
                    [digest, row["checkpoint_id"]],
                )
        return new

    def cut(self, run: uuid.UUID, keep: int) -> None:
        """Cuts a chain after `keep` rows, with its log rows and a fitting index."""
        self.attack(
            "DELETE FROM cuo_langgraph_checkpoints l USING cuo_memory_audit a WHERE a.run_id = %(x)s"
            " AND a.chain_seq > %(keep)s AND (a.body::jsonb ->> 'checkpoint_id')::uuid ="
            " l.checkpoint_id",
            "DELETE FROM cuo_memory_audit WHERE run_id = %(x)s AND chain_seq > %(keep)s",
            "UPDATE cuo_runs r SET chain_seq = %(keep)s, chain_head = (SELECT row_sha256 FROM"
            " cuo_memory_audit a WHERE a.run_id = r.run_id AND chain_seq = %(keep)s), log_rows ="
            " (SELECT count(*) FROM cuo_langgraph_checkpoints l WHERE l.run_id = r.run_id)"
            " WHERE run_id = %(x)s",
            x=run,
            keep=keep,
        )

    def bundle(self, out: Path) -> list[str]:
        """What the verifier of a bundle of this month, exported now, says."""
        with psycopg.connect(self.admin) as conn:
            (now,) = conn.execute("SELECT now()").fetchone() or (None,)
        export_month(self.auditor, self.tenant, Month.of(now), out)
        trusted = out.with_name(f"{out.name}.keys")
        trusted.write_text("".join(f"{key}\n" for key in RING.believed))
        code, said = check(out, "--key", trusted)
        assert code == (65 if said["problems"] else 0)
        return list(said["problems"])

    def forget(self, run: uuid.UUID) -> None:
        """Removes a run with everything that speaks of it."""
        for table in ("cuo_langgraph_checkpoints", "cuo_memory_audit", "cuo_runs"):
            self.attack(f"DELETE FROM {table} WHERE run_id = %(x)s", x=run)

    def drop_month(self) -> None:
        """Drops the current month of every table, and the index of what was in it."""
        with psycopg.connect(self.admin) as conn:
            names = conn.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON"
                " c.oid = inhrelid WHERE c.relkind = 'r' AND c.relname LIKE"
                " '%' || to_char(now() AT TIME ZONE 'UTC', '_YYYY_MM')"
            ).fetchall()
            for (name,) in names:
                conn.execute(f"DROP TABLE {name}")
        assert len(names) == 3
        self.attack("DELETE FROM cuo_runs", "DELETE FROM cuo_threads")


@pytest.fixture
def log(
    admin_dsn: str, app_dsn: str, auditor_dsn: str, tenant_id: str, tmp_path: Path
) -> Iterator[Log]:
    """Three sealed runs: the first sealed twice, at chain rows 5 and 7."""
    (tmp_path / "heads").mkdir()
    made = Log(admin_dsn, app_dsn, auditor_dsn, uuid.UUID(tenant_id), tmp_path / "heads")
    assert made.found() == ([], [])
    yield made
    made.store.close()


def kinds(found: list[tuple[FindingKind, str]]) -> list[FindingKind]:
    return [kind for kind, _ in found]


def test_an_edited_row(log: Log) -> None:
    """The row is named; the chain, and so the seal, still stand."""
    log.attack(
        "UPDATE cuo_langgraph_checkpoints SET node_name = 'x' WHERE run_id = %(r)s AND seq = 2"
    )
    said, sealed = log.found()
    assert any("(seq 2): a column was changed" in problem for problem in said)
    assert sealed == []


def test_an_edited_chain_row(log: Log) -> None:
    """The first chain row that does not fit is named."""
    log.attack(
        "UPDATE cuo_memory_audit SET row_bytes = convert_to(replace(convert_from(row_bytes, 'UTF8'),"
        ' \'"node_name":"n"\', \'"node_name":"m"\'), \'UTF8\') WHERE run_id = %(r)s AND chain_seq = 3'
    )
    assert "chain row 3: bytes and digest disagree" in log.found()[0]


def test_a_deleted_row(log: Log) -> None:
    """A log row, and a chain row that was itself sealed."""
    log.attack(
        "DELETE FROM cuo_langgraph_checkpoints WHERE checkpoint_id = (SELECT checkpoint_id FROM"
        " cuo_langgraph_checkpoints WHERE run_id = %(s)s ORDER BY seq OFFSET 1 LIMIT 1)"
    )
    log.attack("DELETE FROM cuo_memory_audit WHERE run_id = %(r)s AND chain_seq = 5")
    said, sealed = log.found()
    assert any("is missing" in problem and "log row" in problem for problem in said)
    assert "chain row 5: row is missing" in said
    assert sealed == [
        (
            FindingKind.MISSING_ROW,
            f"run {log.runs[0]}: chain row 5, which was sealed, is missing",
        )
    ]


@pytest.mark.parametrize(("keep", "sealed"), [(6, 7), (3, 7)])
def test_a_cut_tail(log: Log, keep: int, sealed: int) -> None:
    """Cut with its log rows and index, a chain agrees with itself: only the seal shows it."""
    log.cut(log.runs[0], keep)
    said, found = log.found()
    assert said == []
    text = f"run {log.runs[0]} is shortened: sealed up to chain row {sealed}, it ends at {keep}"
    assert found == [(FindingKind.SHORTENED_RUN, text)]


def test_reordered_rows(log: Log) -> None:
    """Two rows that change places are named by the first of them."""
    log.attack(
        "UPDATE cuo_memory_audit SET chain_seq = 7 - chain_seq WHERE run_id = %(r)s"
        " AND chain_seq IN (3, 4)"
    )
    assert "chain row 3: does not follow the row before" in log.found()[0]


def test_two_runs_rows_swapped(log: Log) -> None:
    """Rows under another run's name fit neither its genesis nor its seal."""
    for table in ("cuo_memory_audit", "cuo_langgraph_checkpoints", "cuo_runs"):
        log.attack(
            f"UPDATE {table} SET run_id = %(other)s WHERE run_id = %(r)s",
            f"UPDATE {table} SET run_id = %(r)s WHERE run_id = %(s)s",
            f"UPDATE {table} SET run_id = %(s)s WHERE run_id = %(other)s",
            other=uuid.uuid4(),
        )
    said, found = log.found()
    assert said.count("chain row 1: does not follow the row before") == 2
    assert kinds(found) == [FindingKind.REWRITTEN_RUN] * 2
    assert all(str(run) in found[0][1] + found[1][1] for run in log.runs[:2])


def test_a_whole_chain_rewritten(log: Log, tmp_path: Path) -> None:
    """With every digest recomputed a false history agrees with itself: only the seal shows it."""
    new = log.rename_node(log.runs[0])

    def change(said: dict[str, Any]) -> None:
        body = said["body"]
        if body.get("row_sha256") in new:
            body["row_sha256"], body["node_name"] = new[body["row_sha256"]], "forged"

    log.relink(log.runs[0], change)
    said, found = log.found()
    assert said == []
    assert f"run {log.runs[0]}: was rewritten: chain row 5 is not the one sealed" in log.bundle(
        tmp_path / "bundle"
    )
    assert found == [
        (
            FindingKind.REWRITTEN_RUN,
            f"run {log.runs[0]} was rewritten: its chain row 5 is not the one sealed",
        )
    ]


def test_a_run_removed_without_trace(log: Log) -> None:
    """Nothing in the database speaks of it any more; the seal does."""
    log.forget(log.runs[1])
    said, found = log.found()
    assert said == []
    assert found == [
        (
            FindingKind.MISSING_RUN,
            f"run {log.runs[1]} is missing; it was sealed up to chain row 5",
        )
    ]


def test_a_month_dropped(log: Log, tmp_path: Path) -> None:
    """The month is named, and every run in it."""
    log.drop_month()
    said, found = log.found()
    assert said == []
    assert kinds(found) == [FindingKind.MISSING_MONTH] + [FindingKind.MISSING_RUN] * 3
    assert "is gone with 4 sealed heads and no month_dropped row says why" in found[0][1]
    log.store.setup()  # makes the month again, empty
    told = log.bundle(tmp_path / "bundle")
    assert "is missing: 3 runs were sealed in it, none is here, and no drop speaks of it" in told[0]
    assert [f"run {run} is missing: its chain row" in "".join(told) for run in log.runs] == [
        True
    ] * 3


def test_a_month_dropped_with_a_forged_excuse(log: Log) -> None:
    """A month_dropped row for a month within the floor excuses nothing."""
    log.drop_month()
    log.attack(SAY_DROPPED, month=None)
    assert FindingKind.MISSING_MONTH in kinds(log.found()[1])
    assert FindingKind.DROPPED_MONTH not in kinds(log.found()[1])


def test_a_month_dropped_by_retention(log: Log) -> None:
    """Past the floor and recorded, a month that is gone is told and is nobody's fault."""
    old = log.write(2)

    def backdate(said: dict[str, Any]) -> None:
        said["at"] = "2018-01-05T00:00:00.000000Z"

    log.attack(
        "CREATE TABLE cuo_memory_audit_2018_01 PARTITION OF cuo_memory_audit FOR VALUES"
        " FROM ('2018-01-01 00:00:00+00') TO ('2018-02-01 00:00:00+00')",
        "UPDATE cuo_memory_audit SET created_at = '2018-01-05T00:00:00Z' WHERE run_id = %(x)s",
        "UPDATE cuo_runs SET first_at = '2018-01-05T00:00:00Z' WHERE run_id = %(x)s",
        x=old,
    )
    log.relink(old, backdate)
    log.seal()
    log.attack(
        "DROP TABLE cuo_memory_audit_2018_01", "DELETE FROM cuo_runs WHERE run_id = %(x)s", x=old
    )
    assert kinds(log.found()[1]) == [FindingKind.MISSING_MONTH, FindingKind.MISSING_RUN]
    log.attack(SAY_DROPPED, month="2018-01")
    assert kinds(log.found()[1]) == [FindingKind.MISSING_MONTH, FindingKind.MISSING_RUN]
    log.attack("DELETE FROM cuo_memory_audit WHERE chain_seq = 1 AND kind = 'month_dropped'")
    says = "SELECT cuo_retention_says(%s, 'month_dropped', %s)"
    body: dict[str, Any] = {"cuts": [], "month": "2018-01", "newest_row": None, "tables": {}}
    with psycopg.connect(log.admin, autocommit=True) as conn:
        for months, believed in ((83, False), (84, True)):
            told = canonical_bytes(body | {"older_than_months": months}).decode()
            conn.execute(says, [log.tenant, told])
            found = log.found()[1]
            assert (kinds(found) == [FindingKind.DROPPED_MONTH]) is believed
    assert "by row 3 of retention" in found[0][1]
    assert "not sealed yet" in found[0][1]
    log.seal()
    assert "not sealed yet" not in log.found()[1][0][1]


def test_a_month_dropped_and_rebuilt(log: Log, tmp_path: Path) -> None:
    """The same runs told anew, with chains that hold: month and runs are named as rewritten."""
    log.drop_month()
    log.store.setup()
    for run in log.runs:
        log.write(6, run)
    said, found = log.found()
    assert said == []
    assert kinds(found) == [FindingKind.REBUILT_MONTH] + [FindingKind.REWRITTEN_RUN] * 3
    assert "none of its 4 sealed heads is as it was sealed" in found[0][1]
    told = log.bundle(tmp_path / "bundle")
    for run, row in zip(log.runs, (5, 5, 5), strict=True):
        assert f"run {run}: was rewritten: chain row {row} is not the one sealed" in told


def test_a_bundle_made_after_the_attack_says_the_same(log: Log, tmp_path: Path) -> None:
    """What was edited, deleted, cut, reordered, swapped or removed is named in its run."""
    log.runs += [log.write(4) for _ in range(5)]
    log.seal()
    edited, bent, deleted, reordered, swapped, with_it, cut, removed = log.runs
    log.attack(
        "UPDATE cuo_langgraph_checkpoints SET node_name = 'x' WHERE run_id = %(edited)s AND seq = 2",
        "UPDATE cuo_memory_audit SET row_bytes = convert_to(replace(convert_from(row_bytes, 'UTF8'),"
        ' \'"node_name":"n"\', \'"node_name":"m"\'), \'UTF8\') WHERE run_id = %(bent)s'
        " AND chain_seq = 3",
        "DELETE FROM cuo_langgraph_checkpoints WHERE run_id = %(deleted)s AND seq = 3",
        "UPDATE cuo_memory_audit SET chain_seq = 7 - chain_seq WHERE run_id = %(reordered)s"
        " AND chain_seq IN (3, 4)",
        edited=edited, bent=bent, deleted=deleted, reordered=reordered,
    )  # fmt: skip
    for table in ("cuo_memory_audit", "cuo_langgraph_checkpoints", "cuo_runs"):
        for old, new in (
            (swapped, uuid.UUID(int=9)),
            (with_it, swapped),
            (uuid.UUID(int=9), with_it),
        ):
            log.attack(f"UPDATE {table} SET run_id = %(n)s WHERE run_id = %(o)s", o=old, n=new)
    log.cut(cut, 3)
    log.forget(removed)
    told = "\n".join(log.bundle(tmp_path / "bundle"))
    for run, finding in (
        (edited, ": log row .* was changed: columns and digest disagree"),
        (bent, ": chain row 3 was changed: bytes and digest disagree"),
        (deleted, ": chain row .*: log row .* is missing"),
        (reordered, ": chain row 3 does not follow the row before"),
        (swapped, ": chain row 1 does not follow the row before"),
        (with_it, ": chain row 1 does not follow the row before"),
        (cut, ": is shortened: sealed up to chain row 5, it ends at 3"),
        (removed, " is missing: its chain row 5 was sealed"),
    ):
        assert re.search(f"(?m)^run {run}{finding}", told), (finding, told)


def test_a_leaf_added_to_the_copies(log: Log) -> None:
    """It would keep a run from being sealed; no head covers it, and that is said."""
    late = log.write(3)
    log.attack(
        "INSERT INTO cuo_seal_leaves SELECT (jsonb_populate_record(l, jsonb_build_object('leaf_index',"
        " 99, 'run_id', r.run_id, 'chain_seq', r.chain_seq, 'row_sha256', r.chain_head))).*"
        " FROM cuo_seal_leaves l, cuo_runs r WHERE r.run_id = %(x)s AND l.leaf_index = 0",
        x=late,
    )
    log.seal()
    found = log.found()[1]
    assert kinds(found) == [FindingKind.LEAF_COPY_CHANGED]
    assert "holds 5 leaves and heads over 4: leaves that no head covers were added" in found[0][1]
    log.attack("DELETE FROM cuo_seal_leaves WHERE leaf_index IN (1, 99)")
    log.seal()
    found = log.found()[1]
    assert kinds(found) == [FindingKind.LEAF_COPY_CHANGED]
    assert "leaf 1 " in found[0][1]
    assert "is missing from the database; the exported one stands" in found[0][1]


def test_a_seal_made_while_the_heads_are_compared(log: Log) -> None:
    """A head signed between our snapshot and our look at the folder is no accusation."""

    class Busy(HeadFolder):
        looks = 0

        def numbers(self, tenant_id: uuid.UUID) -> list[int]:
            self.looks += 1
            if self.looks == 2:
                log.write(1)
                log.seal()
            return super().numbers(tenant_id)

    folder = Busy(log.folder.folder)
    check = check_tenant(log.auditor, log.tenant, keys=RING.believed, folder=folder)
    assert (check.findings, check.heads) == ([], 2)
    assert folder.looks == 2


def test_an_old_export_replayed(log: Log, tmp_path: Path) -> None:
    """A folder put back to an earlier state is older than the database, or than a head you kept."""
    newest = log.folder.note(log.tenant, 2)
    for suffix in ("note", "leaves"):
        (log.folder.folder / str(log.tenant) / f"00000002.{suffix}").unlink()
    assert kinds(log.found()[1]) == [FindingKind.STALE_EXPORT]
    # The database put back too: between themselves the two agree, and only a kept head tells.
    log.cut(log.runs[0], 5)
    log.attack(
        "DELETE FROM cuo_seal_heads WHERE head_no = 2",
        "DELETE FROM cuo_seal_leaves WHERE leaf_index = 3",
    )
    assert log.found() == ([], [])
    _, found = log.found(heads=[("the auditor's head", newest)])
    assert kinds(found) == [FindingKind.STALE_EXPORT]
    assert "the auditor's head covers 4 leaves, the export only 3" in found[0][1]


def test_a_forged_note(log: Log) -> None:
    """A head changed after it was signed is called forged, in the folder and in the database."""
    place = log.folder.folder / str(log.tenant) / "00000002.note"
    good = place.read_bytes()
    place.write_bytes(good.replace(b"\n4\n", b"\n3\n"))
    assert FindingKind.FORGED_NOTE in kinds(log.found()[1])
    place.write_bytes(good)
    log.attack("UPDATE cuo_seal_heads SET note = replace(note, E'\\n4\\n', E'\\n3\\n')")
    found = log.found()[1]
    assert kinds(found) == [FindingKind.FORGED_NOTE]
    assert "head 2 in the database: the signature by key test" in found[0][1]


def test_the_wrong_key(log: Log) -> None:
    """A rewritten tree can be signed by whoever rewrote it, but not by a key that is trusted."""
    place = log.folder.folder / str(log.tenant)
    rewritten = [leaf_hash(bytes([i])) for i in range(4)]
    thief = keys.generate("test")
    head = Checkpoint(origin_of(log.tenant), 4, Tree(rewritten).root())
    good = (place / "00000002.note").read_bytes()
    (place / "00000002.note").write_bytes(head.signed([thief]).to_bytes())
    found = log.found()[1]
    assert FindingKind.WRONG_KEY in kinds(found)
    assert any("no trusted key signed the note; it is signed by" in text for _, text in found)
    # Under an earlier number too: a later head does not vouch for another tree.
    (place / "00000002.note").write_bytes(good)
    head = Checkpoint(origin_of(log.tenant), 3, Tree(rewritten[:3]).root())
    (place / "00000001.note").write_bytes(head.signed([thief]).to_bytes())
    assert FindingKind.WRONG_KEY in kinds(log.found()[1])


def test_a_distrusted_key(log: Log) -> None:
    """Once its successor has signed, a stolen key's heads are vouched for; before, they are not."""
    fresh = keys.generate("fresh")
    alone = RING.with_new(fresh).distrusted(RING.signing[0].public.id)
    with pytest.raises(SealRefused, match="no trusted key"):
        log.seal(alone)
    assert FindingKind.WRONG_KEY in kinds(log.found(keys=alone.believed)[1])
    log.seal(RING.with_new(fresh))
    log.seal(alone)
    assert kinds(log.found(keys=alone.believed)[1]) == [FindingKind.VOUCHED_LATER]


def test_another_tenants_head(log: Log) -> None:
    """A head of another log is no head of this one, though the same key signed it."""
    other = Checkpoint(origin_of(uuid.uuid4()), 1, bytes(32)).signed(RING.signing).to_bytes()
    (log.folder.folder / str(log.tenant) / "00000001.note").write_bytes(other)
    assert FindingKind.OTHER_LOG in kinds(log.found()[1])


def test_a_split_view(log: Log, tmp_path: Path) -> None:
    """Two trees signed by the true key, shown to different people, meet as a contradiction."""
    shown = Checkpoint(origin_of(log.tenant), 4, bytes(32)).signed(RING.signing).to_bytes()
    found = log.found(heads=[("the customer's head", shown)])[1]
    assert kinds(found) == [FindingKind.SPLIT_VIEW]
    assert "the customer's head and the export are both signed, for different trees" in found[0][1]
    log.attack("UPDATE cuo_seal_heads SET note = %(n)s WHERE head_no = 2", n=shown.decode())
    assert kinds(log.found()[1]) == [FindingKind.SPLIT_VIEW]
    place = log.folder.folder / str(log.tenant)
    (place / "00000003.leaves").write_bytes(b"")
    (place / "00000003.note").write_bytes(shown)
    assert FindingKind.SPLIT_VIEW in kinds(log.found()[1])


def test_leaves_edited(log: Log) -> None:
    """Leaves that no longer give the signed root are called changed, whoever changed them."""
    place = log.folder.folder / str(log.tenant) / "00000001.leaves"
    good = place.read_bytes()
    lines = good.splitlines(keepends=True)
    for bad in (
        b"".join(lines[1:]),
        b"".join(reversed(lines)),
        b"{}\n",
        good.replace(b'"v":1', b'"v":2'),
    ):
        place.write_bytes(bad)
        assert FindingKind.LEAVES_CHANGED in kinds(log.found()[1])
    place.unlink()
    assert kinds(log.found()[1]) == [FindingKind.LEAVES_CHANGED]
    place.write_bytes(good)
    (place.parent / "00000001.note").unlink()
    assert FindingKind.LEAVES_CHANGED in kinds(log.found()[1])


def test_nothing_exported(log: Log) -> None:
    """No heads at all is not silence."""
    shutil.rmtree(log.folder.folder / str(log.tenant))
    assert FindingKind.NOTHING_SEALED in kinds(log.found()[1])


def test_what_stays_invisible(log: Log) -> None:
    """Rows after the last exported head can be cut or rewritten unseen; the check counts them."""
    late = log.write(3)
    log.write(2, log.runs[1])

    def unsealed() -> tuple[int, int]:
        check = check_tenant(log.auditor, log.tenant, keys=RING.believed, folder=log.folder)
        return check.unsealed, check.unsealed_runs

    assert unsealed() == (3 + 1 + 2, 2)
    log.forget(late)
    log.cut(log.runs[1], 5)
    assert log.found() == ([], [])
    assert unsealed() == (0, 0)
    # Once sealed, the same is seen.
    late = log.write(3)
    log.seal()
    log.forget(late)
    assert kinds(log.found()[1]) == [FindingKind.MISSING_RUN]


def test_a_restore_behind_the_last_head(log: Log, tmp_path: Path) -> None:
    """It is reported as what it is, goes on only when declared, and stays on record."""
    # As a restore to between the two seals: one run shorter, one not begun, seals cut.
    late = log.write(2)
    log.seal()
    log.forget(late)
    log.cut(log.runs[0], 5)
    log.attack(
        "DELETE FROM cuo_seal_heads WHERE head_no > 1",
        "DELETE FROM cuo_seal_leaves WHERE leaf_index >= 3",
    )
    found = log.found()[1]
    assert sorted(kinds(found)) == [
        FindingKind.DATABASE_BEHIND,
        FindingKind.MISSING_RUN,
        FindingKind.SHORTENED_RUN,
    ]
    with Sealer(log.auditor, ring=RING, folder=log.folder) as sealer:
        report, lost = declare_restore(sealer, log.tenant, "backup of noon restored, ticket 7")
        assert {(loss.run_id, loss.sealed_seq, loss.found_seq) for loss in lost} == {
            (late, 3, 0),
            (log.runs[0], 7, 5),
        }
        assert report.heads == report.exported == [4]
        again, none = declare_restore(sealer, log.tenant, "again")
        assert (again.heads, none) == ([], [])
    log.write(2, log.runs[0])
    log.seal()
    said, found = log.found()
    assert said == []
    assert kinds(found) == [FindingKind.DECLARED_LOSS] * 2
    assert any("declared to end at 5 (backup of noon restored, ticket 7)" in t for _, t in found)
    # What was declared binds from then on.
    log.cut(log.runs[0], 4)
    assert FindingKind.SHORTENED_RUN in kinds(log.found()[1])


def test_a_time_beyond_all_times(log: Log, tmp_path: Path) -> None:
    """Infinity, which no calendar holds, is named like any other change and stops no look at the rest."""
    archiver = log.admin.replace("postgres@", "cyberos_archiver@", 1)
    hold = retention.place_hold(archiver, log.tenant, None, reason="case", by="clerk")
    late = uuid.uuid4()
    for _ in range(2):
        log.writer.write(late, "node_entered", {}, node_name="n", thread_id="gone")
    log.store.delete_thread("gone")
    log.seal()
    log.attack(
        "UPDATE cuo_thread_tombstones SET created_at = 'infinity'",
        "UPDATE cuo_holds SET created_at = '-infinity'",
        "UPDATE cuo_seal_leaves SET head_at = 'infinity' WHERE leaf_index = 1",
        "UPDATE cuo_seal_heads SET sealed_at = 'infinity' WHERE head_no = 2",
        "UPDATE cuo_runs SET newest_at = 'infinity' WHERE run_id = %(s)s",
        "UPDATE cuo_langgraph_checkpoints SET node_name = 'x' WHERE run_id = %(r)s AND seq = 2",
    )
    said, found = log.found()
    for finding in (f"hold {hold}: a column", "(seq 2): a column was changed"):
        assert any(finding in problem for problem in said), said
    assert any(p.startswith("tombstone") and "a column was changed" in p for p in said)
    assert set(kinds(found)) == {FindingKind.LEAF_COPY_CHANGED, FindingKind.HEAD_COPY_CHANGED}
    assert any("was changed" in problem for problem in log.bundle(tmp_path / "bundle"))
