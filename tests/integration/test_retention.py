"""Months past the floor go whole, with proof, and nothing that is needed or held goes (D7)."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import row_schemas
from aged_log import MARCH, NOW, AgedLog, chat_graph, graph, utc
from database_clock import DatabaseClock

from cuo_checkpoint import (
    CheckpointWriter,
    archive,
    archive_cli,
    keys,
    rebuild_index,
    retention,
)
from cuo_checkpoint.cuts import RETENTION_RUN, SYSTEM_TENANT
from cuo_checkpoint.errors import RetentionFailed, RetentionRefused, RunUnknown, ThreadDeleted
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant
from cuo_checkpoint.seal_findings import FindingKind
from cuo_checkpoint.verify import RunVerification

LOG = "cuo_langgraph_checkpoints"
ANOTHER_HOLD = """INSERT INTO cuo_holds SELECT (jsonb_populate_record(h,
    '{"hold_id": "00000000-0000-0000-0000-000000000007"}')).* FROM cuo_holds h"""
PARENTS = (LOG, "cuo_langgraph_writes", "cuo_memory_audit")


def rows(dsn: str, query: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows of a query, past row security when the address is the superuser's."""
    with psycopg.connect(dsn) as conn:
        return conn.execute(query, params).fetchall()


def months_of(aged: AgedLog) -> set[str]:
    """The months that all three tables have, and no table alone."""
    found = [
        {
            name[-7:]
            for (name,) in rows(
                aged.admin,
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
                parent,
            )
        }
        for parent in PARENTS
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


def everything(aged: AgedLog) -> list[Any]:
    """All rows of all tables but the system tenant's: to see that nothing was changed."""
    found: list[Any] = [sorted(months_of(aged))]
    query = "SELECT t::text FROM {} t WHERE tenant_id <> %s ORDER BY 1"
    others = ("cuo_runs", "cuo_threads", "cuo_thread_tombstones", "cuo_holds")
    found.extend(rows(aged.admin, query.format(t), SYSTEM_TENANT) for t in (*PARENTS, *others))
    return found


def facts(aged: AgedLog) -> retention.MonthFacts:
    """What a dry run says of March 2018."""
    return next(m for m in retention.report(aged.archiver) if m.month == Month(2018, 3))


def codes(aged: AgedLog) -> set[str]:
    """Why March 2018 may not go; and that it does not."""
    found = facts(aged)
    before = everything(aged)
    done = retention.drop(aged.archiver)
    assert next(m for m in done.months if m.month == found.month).status == "refused"
    assert "2018_03" in months_of(aged)
    assert everything(aged)[1:3] == before[1:3]
    return {code for code, _ in found.refusals}


SPOILED: set[tuple[str, ...]] = set()
"""Shapes of retention's rows whose every spoiled variant was refused already."""


def verified(aged: AgedLog, tenant: str) -> list[RunVerification]:
    """Everything of the tenant and of the system verifies."""
    for one in (uuid.UUID(tenant), SYSTEM_TENANT):
        report = archive.verify(aged.auditor, tenant_id=one)
        assert (report.broken, report.strays) == ([], [])
    assert rebuild_index.differences(aged.archiver) == []
    said = rows(
        aged.admin,
        "SELECT kind, body::jsonb FROM cuo_memory_audit WHERE run_id = %s AND kind <> 'open'",
        RETENTION_RUN,
    )
    for kind, body in said:
        row_schemas.validator(kind).validate(body)
        if (shape := (kind, *sorted(body))) not in SPOILED:
            SPOILED.add(shape)
            for how, other in row_schemas.spoiled(body):
                assert not row_schemas.validator(kind).is_valid(other), f"{kind}: {how}"
    return []


@pytest.mark.clause("102-4")
@pytest.mark.criterion("102-AC12")
@pytest.mark.parametrize("months", [83, 1, 0, -84, None])
def test_the_floor_is_the_databases(aged: AgedLog, months: int | None) -> None:
    """Fewer than 84 months are refused by the functions themselves, however they are called."""
    with psycopg.connect(aged.archiver, autocommit=True) as conn:
        for call in ("cuo_retention_report(%s)", "cuo_drop_month('2018-03-01', %s)"):
            with pytest.raises(psycopg.Error) as refused:
                conn.execute(f"SELECT {call}", [months])
            assert refused.value.sqlstate == "CU010"
    assert "2018_03" in months_of(aged)
    if months is not None:
        with pytest.raises(RetentionRefused):
            retention.drop(aged.archiver, older_than_months=months)


def test_an_old_snapshot_is_refused(aged: AgedLog) -> None:
    """A transaction that cannot see what came after it began may drop nothing."""
    with psycopg.connect(aged.archiver) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error, match="READ COMMITTED"):
            conn.execute("SELECT cuo_drop_month('2018-03-01', 84)")


@pytest.mark.parametrize("role", ["app", "auditor"])
def test_only_the_archiver_may(aged: AgedLog, role: str) -> None:
    """The program and the auditor may call none of it; the archiver may read and write no table."""
    calls = (
        "cuo_retention_report(84)",
        "cuo_drop_month('2018-03-01')",
        "cuo_archive_failed('2018-03-01', 'drop', 'x')",
        "cuo_hold(gen_random_uuid(), NULL, NULL, 'r', 'b')",
        "cuo_list_holds(NULL)",
        "cuo_waiting_runs('1 day')",
        "cuo_index_tenants()",
        "cuo_rebuild_index(gen_random_uuid(), true)",
        "cuo_month_facts('2018-03-01', 1)",
        "cuo_retention_says(gen_random_uuid(), 'hold', '{}')",
    )
    with psycopg.connect(getattr(aged, role), autocommit=True) as conn:
        for call in calls:
            with pytest.raises(pg.InsufficientPrivilege):
                conn.execute(f"SELECT {call}")
    with psycopg.connect(aged.archiver, autocommit=True) as conn:
        for text in (
            "SELECT cuo_month_facts('2018-03-01', 1)",
            "SELECT cuo_drop_tenant_month(gen_random_uuid(), '2018-03-01', 84, '{}', now())",
            f"SELECT FROM {LOG}",
            "INSERT INTO cuo_holds (tenant_id) VALUES (gen_random_uuid())",
            "DROP TABLE cuo_memory_audit_2018_03",
            "ALTER TABLE cuo_memory_audit DETACH PARTITION cuo_memory_audit_2018_03",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                conn.execute(text)


@pytest.mark.clause("102-4")
def test_a_month_past_keeping_goes_whole(aged: AgedLog, tenant_id: str) -> None:
    """All three tables' month, its runs and threads in the index; the chain says so; once."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    new = aged.run(tenant_id, "new")
    found = facts(aged)
    assert (found.status, found.runs, found.tenants) == ("due", 1, 1)
    assert sum(found.rows.values()) > 20
    before = everything(aged)
    dry = retention.drop(aged.archiver, dry_run=True)
    assert [str(m.month) for m in dry.months if m.status == "due"] == [
        "2018-03",
        "2018-04",
        "2018-05",
        "2018-06",
    ]
    assert everything(aged) == before
    done = retention.drop(aged.archiver)
    assert {m.status for m in done.months} == {"dropped"}
    assert not {m for m in months_of(aged) if m.startswith("2018")}
    left = rows(aged.admin, "SELECT run_id FROM cuo_runs WHERE tenant_id = %s", tenant_id)
    assert {run for (run,) in left} == {new, RETENTION_RUN}
    assert rows(aged.admin, "SELECT thread_id FROM cuo_threads WHERE thread_id = 'old'") == []
    ((body,),) = rows(
        aged.admin,
        "SELECT body::jsonb FROM cuo_memory_audit WHERE tenant_id = %s AND kind = 'month_dropped'",
        tenant_id,
    )
    assert (body["month"], body["cuts"]) == ("2018-03", [])
    assert {t: n["rows"] for t, n in body["tables"].items() if t in PARENTS} == found.rows
    assert len(rows(aged.admin, "SELECT FROM cuo_memory_audit WHERE kind = 'month_dropped'")) == 5
    verified(aged, tenant_id)
    assert retention.drop(aged.archiver).months == []
    with psycopg.connect(aged.archiver, autocommit=True) as conn:
        ((again,),) = conn.execute("SELECT cuo_drop_month('2018-03-01')").fetchall()
    assert again["status"] == "absent"


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_the_floor_counts_from_the_newest_row_in_utc(
    aged: AgedLog, tenant_id: str, zone: str
) -> None:
    """A row of the month's last second keeps it to the second, in any session's time zone."""
    aged.at(utc(2018, 3, 2))
    aged.run(tenant_id, "first")
    aged.at(utc(2018, 3, 31, 23, 59, 50))
    aged.run(tenant_id, "last")
    archiver = f"{aged.archiver}&options=-c%20TimeZone%3D{zone}"
    aged.clock.months(utc(2024, 1, 1), utc(2025, 3, 31, 23, 58))
    kept = [m for m in retention.report(archiver) if m.month == Month(2018, 3)]
    assert "kept until 2025-03-31T23:59:5" in dict(kept[0].refusals)["young"]
    assert retention.drop(archiver).months == []
    aged.at(utc(2025, 4, 1, 0, 0, 5))
    assert [str(m.month) for m in retention.drop(archiver).months] == ["2018-03"]


def test_more_months_may_be_asked_for(aged: AgedLog) -> None:
    """A longer keeping than the floor is obeyed."""
    assert retention.drop(aged.archiver, older_than_months=120).months == []
    assert "2018_03" in months_of(aged)


def test_a_clock_that_jumped_drops_nothing(aged: AgedLog, tenant_id: str) -> None:
    """After a jump the months in between were never made; until they are, nothing is due."""
    aged.run(tenant_id, "now")
    aged.at(utc(2034, 1, 5))
    with psycopg.connect(aged.app, autocommit=True) as conn:
        conn.execute("SELECT cuo_ensure_partitions()")
    before = everything(aged)
    for month in retention.drop(aged.archiver).months:
        assert (month.status, month.refusals[0][0]) == ("refused", "clock")
    assert everything(aged) == before
    aged.at(NOW)
    assert [m.status for m in retention.drop(aged.archiver).months] == ["dropped"] * 4


def test_a_thread_that_crosses_months_keeps_working(aged: AgedLog, tenant_id: str) -> None:
    """Its first month goes; its state, its next run and its proof stay."""
    aged.at(MARCH)
    aged.run(tenant_id, "chat")
    aged.at(NOW)
    aged.run(tenant_id, "chat")
    config: Any = {"configurable": {"thread_id": "chat"}}
    with aged.store(tenant_id) as store:
        before = graph(store).get_state(config)
        history = len(list(store.list(config)))
    assert {m.status for m in retention.drop(aged.archiver).months} == {"dropped"}
    with aged.store(tenant_id) as store:
        assert graph(store).get_state(config) == before
        assert 0 < len(list(store.list(config))) < history
    aged.run(tenant_id, "chat", ask=True)
    verified(aged, tenant_id)


def test_a_run_that_crosses_months_verifies_from_its_cut(aged: AgedLog, tenant_id: str) -> None:
    """The chain row says which rows went; anything else that is missing is still missing."""
    run = uuid.uuid4()
    with aged.store(tenant_id) as store:
        writer = CheckpointWriter(store)
        for when in (MARCH, utc(2018, 4, 2), utc(2018, 5, 2), NOW):
            aged.at(when)
            writer.write(run, "node_entered", {"n": 1}, node_name="n", thread_id="service")
        # Open and used within the floor: it needs what it has.
        assert codes(aged) == {"run"}
        writer.write(run, "run_completed", {}, thread_id="service")
    with psycopg.connect(aged.archiver, autocommit=True) as conn:
        # Out of order: a gap in the middle first.
        for month in ("2018-04-01", "2018-03-01"):
            conn.execute("SELECT cuo_drop_month(%s)", [month])
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id))
    assert (report.broken, report.strays) == ([], [])
    verified(aged, tenant_id)
    retention.drop(aged.archiver)
    verified(aged, tenant_id)
    with psycopg.connect(aged.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "DELETE FROM cuo_memory_audit WHERE run_id = %s AND chain_seq ="
            " (SELECT min(chain_seq) FROM cuo_memory_audit WHERE run_id = %s)",
            [run, run],
        )
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id), run_id=run)
    assert "row is missing" in report.broken[0].problems[0]


def test_a_waiting_run_keeps_its_month(aged: AgedLog, tenant_id: str) -> None:
    """However long it waits; once its thread is deleted the month goes."""
    aged.at(MARCH)
    aged.run(tenant_id, "ask", ask=True, answer=False)
    aged.at(NOW)
    assert codes(aged) == {"run"}
    assert [r.thread_id for r in retention.expired_approvals(aged.archiver)] == ["ask"]
    with aged.store(tenant_id) as store:
        store.delete_thread("ask")
    assert facts(aged).status == "due"
    retention.drop(aged.archiver)
    verified(aged, tenant_id)


def test_an_answer_after_years_still_finds_its_run(aged: AgedLog, tenant_id: str) -> None:
    """What the refusal is for: the waiting run can be carried on, and then its month goes."""
    from langgraph.types import Command

    aged.at(MARCH)
    run = aged.run(tenant_id, "ask", ask=True, answer=False)
    aged.at(NOW)
    retention.drop(aged.archiver)
    config: Any = {"configurable": {"thread_id": "ask", "run_id": run}}
    with aged.store(tenant_id) as store:
        graph(store).invoke(Command(resume="late"), config, durability="sync")
        assert graph(store).get_state(config).values["answer"] == "late"
    retention.drop(aged.archiver)
    assert "2018_03" not in months_of(aged)
    verified(aged, tenant_id)


def test_a_thread_in_use_keeps_its_newest_checkpoint(aged: AgedLog, tenant_id: str) -> None:
    """A thread written to within the floor, but not checkpointed since, still needs the old one."""
    aged.at(MARCH)
    aged.run(tenant_id, "quiet")
    aged.at(NOW)
    with aged.store(tenant_id) as store:
        CheckpointWriter(store).write(uuid.uuid4(), "run_completed", {}, thread_id="quiet")
    assert codes(aged) == {"thread"}
    aged.run(tenant_id, "quiet")
    assert facts(aged).status == "due"


def test_a_delta_channel_keeps_the_months_it_is_rebuilt_from(aged: AgedLog, tenant_id: str) -> None:
    """Messages that stand only as old writes stay; after a snapshot their month goes, they do not."""
    config: Any = {"configurable": {"thread_id": "chat"}}

    def say(text: str, every: int) -> list[str]:
        with aged.store(tenant_id) as store:
            made = chat_graph(store, every)
            made.invoke({"messages": [text]}, config, durability="sync")
            return list(made.get_state(config).values["messages"])

    aged.at(MARCH)
    say("one", 1000)
    aged.at(NOW)
    said = say("two", 1000)
    assert said == ["one", "re:one", "two", "re:two"]
    assert codes(aged) == {"delta"}
    assert say("three", 1)[:4] == said
    assert facts(aged).status == "due"
    retention.drop(aged.archiver)
    assert "2018_03" not in months_of(aged)
    assert say("four", 1000)[:4] == said
    verified(aged, tenant_id)


def test_an_open_run_nobody_touched_since_the_floor_is_over(aged: AgedLog, tenant_id: str) -> None:
    """A process that died in 2018 does not keep its month for ever."""
    aged.at(MARCH)
    with aged.store(tenant_id) as store:
        CheckpointWriter(store).write(uuid.uuid4(), "run_started", {})
    aged.at(NOW)
    assert facts(aged).status == "due"


def test_a_hold_keeps_the_month(aged: AgedLog, tenant_id: str, other_tenant_id: str) -> None:
    """Of a run or of a tenant; a release lets it go; both are chained and verify."""
    aged.at(MARCH)
    run = aged.run(tenant_id, "old")
    aged.run(other_tenant_id, "old")
    aged.at(NOW)
    tenant = uuid.UUID(tenant_id)
    first = retention.place_hold(aged.archiver, tenant, run, reason="case 7", by="counsel")
    second = retention.place_hold(aged.archiver, tenant, None, reason="case 8", by="counsel")
    assert codes(aged) == {"hold"}
    retention.release_hold(aged.archiver, tenant, first, reason="over", by="x", schema="public")
    assert codes(aged) == {"hold"}
    with pytest.raises(RunUnknown):
        retention.release_hold(aged.archiver, tenant, first, reason="o", by="x", schema="public")
    retention.release_hold(aged.archiver, tenant, second, reason="over", by="x", schema="public")
    assert [(h.hold_id, h.in_force) for h in retention.holds(aged.archiver)] == [
        (first, False),
        (second, False),
    ]
    retention.drop(aged.archiver)
    assert "2018_03" not in months_of(aged)
    verified(aged, tenant_id)
    for role, seen in ((aged.app, 4), (aged.auditor, 4)):
        with psycopg.connect(role) as conn:
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant_id])
            assert len(conn.execute("SELECT FROM cuo_holds").fetchall()) == seen
            if role == aged.app:
                conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [other_tenant_id])
                assert conn.execute("SELECT FROM cuo_holds").fetchall() == []


def test_a_hold_on_a_run_that_is_not_there_is_refused(aged: AgedLog, tenant_id: str) -> None:
    """A typing error must not look like a hold."""
    for run in (uuid.uuid4(), None):
        with pytest.raises(RunUnknown):
            retention.place_hold(aged.archiver, uuid.UUID(tenant_id), run, reason="r", by="b")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ("UPDATE cuo_holds SET reason = 'other'", "a column was changed"),
        ("DELETE FROM cuo_holds", "is missing"),
        (ANOTHER_HOLD, "no chain row speaks of it"),
    ],
)
def test_a_changed_hold_is_found(aged: AgedLog, tenant_id: str, change: str, finding: str) -> None:
    """The chain holds each hold's digest; nobody but a superuser may change one at all."""
    run = aged.run(tenant_id, "t")
    retention.place_hold(aged.archiver, uuid.UUID(tenant_id), run, reason="r", by="b")
    with psycopg.connect(aged.owner, autocommit=True) as conn, pytest.raises(psycopg.Error):
        conn.execute("UPDATE cuo_holds SET reason = 'x'")
    with psycopg.connect(aged.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(change)
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id))
    assert any(finding in problem for bad in report.broken for problem in bad.problems)


def test_an_unsealed_month_stays_once_anything_was_sealed(aged: AgedLog, tenant_id: str) -> None:
    """Every chain of the month must be sealed up to its last row there."""
    aged.at(MARCH)
    run = aged.run(tenant_id, "old")
    aged.at(NOW)
    assert facts(aged).status == "due"
    head = "INSERT INTO cuo_seal_heads VALUES (%s, 1, 1, sha256(''), '', 'n', now())"
    leaf = "INSERT INTO cuo_seal_leaves VALUES (%s, %s, %s, %s, sha256(''), now(), now(), NULL, sha256(''))"
    with psycopg.connect(aged.admin, autocommit=True) as conn:
        conn.execute(head, [tenant_id])
        assert codes(aged) == {"unsealed"}
        conn.execute(leaf, [tenant_id, 0, run, 3])
        assert codes(aged) == {"unsealed"}
        conn.execute(leaf, [tenant_id, 1, run, 99])
    assert facts(aged).status == "due"


def test_a_sealed_month_goes_and_the_heads_still_hold(
    aged: AgedLog, tenant_id: str, tmp_path: Path
) -> None:
    """Sealed for real, dropped, sealed on: the exported heads say it was dropped, and nothing else."""
    tenant = uuid.UUID(tenant_id)
    ring = KeyRing((keys.generate("test"),))
    folder = HeadFolder(tmp_path)

    def seal() -> None:
        with Sealer(aged.auditor, ring=ring, folder=folder) as sealer:
            for one in sealer.tenants():
                assert sealer.seal(one).ok

    run = uuid.uuid4()
    with aged.store(tenant_id) as store:
        writer = CheckpointWriter(store)
        aged.at(MARCH)
        aged.run(tenant_id, "old")
        writer.write(run, "node_entered", {}, node_name="n", thread_id="service")
        aged.at(NOW)
        writer.write(run, "run_completed", {}, thread_id="service")
    seal()
    assert {m.status for m in retention.drop(aged.archiver).months} == {"dropped"}
    seal()
    verified(aged, tenant_id)
    for one in (tenant, SYSTEM_TENANT):
        check = check_tenant(aged.auditor, one, folder=folder, keys=ring.believed)
        assert {finding.kind for finding in check.findings} <= {FindingKind.DROPPED_MONTH}


def test_a_month_that_was_tampered_with_stays(aged: AgedLog, tenant_id: str) -> None:
    """Evidence is not dropped before somebody has looked at it."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    with psycopg.connect(aged.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(f"DELETE FROM {LOG} WHERE kind = 'run_completed'")
    assert codes(aged) == {"uneven"}


def test_an_owner_that_cannot_see_drops_nothing(aged: AgedLog, tenant_id: str) -> None:
    """Without its policy the owner counts no row; that must not look like an empty month."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    with psycopg.connect(aged.owner, autocommit=True) as conn:
        conn.execute("DROP POLICY cuo_owner_reads ON cuo_memory_audit_2018_03")
    assert "blind" in codes(aged)


def test_a_month_without_one_of_its_tables_stays(aged: AgedLog) -> None:
    """Somebody has been there; the rest is not cleared away behind them."""
    with psycopg.connect(aged.owner, autocommit=True) as conn:
        conn.execute(f"DROP TABLE {LOG}_2018_03")
    assert [code for code, _ in facts(aged).refusals] == ["incomplete"]
    assert retention.drop(aged.archiver).months[0].status == "refused"
    assert rows(aged.admin, "SELECT to_regclass('cuo_memory_audit_2018_03') IS NULL") == [(False,)]


def test_a_deleted_thread_stays_deleted(aged: AgedLog, tenant_id: str) -> None:
    """Its tombstone outlives its month, is held to the month's root, and the id stays refused."""
    aged.at(MARCH)
    aged.run(tenant_id, "gone")
    with aged.store(tenant_id) as store:
        store.delete_thread("gone")
    aged.at(NOW)
    retention.drop(aged.archiver)
    assert "2018_03" not in months_of(aged)
    verified(aged, tenant_id)
    with pytest.raises(ThreadDeleted):
        aged.run(tenant_id, "gone")
    with psycopg.connect(aged.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute("DELETE FROM cuo_thread_tombstones")
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id))
    assert "not those that were there when the month was dropped" in report.strays[0]


def test_a_month_dropped_by_hand_is_reported(aged: AgedLog, tenant_id: str) -> None:
    """No chain row speaks of it: its runs are missing and, seen as a whole, so is the month."""
    aged.at(MARCH)
    run = aged.run(tenant_id, "old")
    aged.at(NOW)
    with psycopg.connect(aged.owner, autocommit=True) as conn:
        for parent in PARENTS:
            conn.execute(f"DROP TABLE {parent}_2018_03")
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id))
    assert [bad.run_id for bad in report.broken] == [run]
    whole = archive.verify(aged.auditor)
    assert f"{LOG}_2019_01 is missing, and no drop speaks of it" in whole.strays


def test_a_dropped_month_that_comes_back_is_reported(aged: AgedLog, tenant_id: str) -> None:
    """Rebuilding a month with rows of one's own is seen."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    retention.drop(aged.archiver)
    aged.at(MARCH)
    with psycopg.connect(aged.app, autocommit=True) as conn:
        conn.execute("SELECT cuo_ensure_partitions()")
    report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant_id))
    assert f"{LOG}_2018_03 is there, but was dropped" in report.strays


def test_called_at_once_each_month_goes_once(aged: AgedLog, tenant_id: str) -> None:
    """Four archivers together: every month is dropped by one of them, and nothing fails."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    done: list[retention.DropReport] = []
    workers = [
        threading.Thread(target=lambda: done.append(retention.drop(aged.archiver)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    statuses = [m.status for report in done for m in report.months]
    assert statuses.count("dropped") == 4
    assert set(statuses) <= {"dropped", "absent"}
    verified(aged, tenant_id)


def test_a_log_in_use_stays_and_the_failure_is_told(aged: AgedLog, tenant_id: str) -> None:
    """A reader that never ends costs a failure row and nothing else; then the month goes."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    before = everything(aged)
    with psycopg.connect(aged.auditor) as reader:
        reader.execute(f"SELECT count(*) FROM {LOG}")
        with pytest.raises(RetentionFailed) as failed:
            retention.drop(aged.archiver, tries=2, wait_ms=20)
        assert (failed.value.month, failed.value.busy, failed.value.told) == ("2018-03", True, True)
    assert everything(aged) == before
    ((body,),) = rows(
        aged.admin,
        "SELECT body::jsonb FROM cuo_memory_audit WHERE kind = 'cuo.checkpoint_archive_failed'"
        " AND tenant_id = %s",
        SYSTEM_TENANT,
    )
    assert body == {"by": "cyberos_archiver", "error": "55P03", "month": "2018-03", "step": "drop"}
    assert retention.drop(aged.archiver).months[0].status == "dropped"
    verified(aged, tenant_id)


@pytest.mark.parametrize("moment", ["waiting for the log", "before the commit"])
def test_killed_at_any_point_nothing_is_half_done(
    aged: AgedLog, tenant_id: str, moment: str
) -> None:
    """The drop and what the chain says of it are one transaction: both, or neither."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    before = everything(aged)
    if moment == "before the commit":
        conn = psycopg.connect(aged.archiver)
        row = conn.execute("SELECT cuo_drop_month('2018-03-01')").fetchone()
        assert row is not None
        assert row[0]["status"] == "dropped"
        with psycopg.connect(aged.admin, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
        conn.close()
    else:
        with psycopg.connect(aged.auditor) as reader:
            reader.execute(f"SELECT count(*) FROM {LOG}")
            failed: list[BaseException] = []

            def drop() -> None:
                try:
                    retention.drop(aged.archiver, tries=200, wait_ms=50)
                except RetentionFailed as error:
                    failed.append(error)

            worker = threading.Thread(target=drop)
            worker.start()
            killed = 0
            while not killed and worker.is_alive():
                time.sleep(0.3)
                with psycopg.connect(aged.admin, autocommit=True) as admin:
                    killed = admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                        " current_database() AND query LIKE 'SELECT cuo_drop_month%%'"
                    ).rowcount
            worker.join()
            assert isinstance(failed[0], RetentionFailed)
    for _ in range(50):
        if everything(aged) == before:
            break
        time.sleep(0.1)
    assert everything(aged) == before
    assert retention.drop(aged.archiver).months[0].status == "dropped"
    verified(aged, tenant_id)


def test_writers_are_held_up_briefly_and_lose_nothing(aged: AgedLog, tenant_id: str) -> None:
    """While four months go, four writers go on; no write fails and each is in the log."""
    aged.at(MARCH)
    aged.run(tenant_id, "old")
    aged.at(NOW)
    stop = threading.Event()
    counts: list[int] = []
    errors: list[BaseException] = []

    def write() -> None:
        done = 0
        try:
            with aged.store(tenant_id) as store:
                writer, run = CheckpointWriter(store), uuid.uuid4()
                while not stop.is_set():
                    writer.write(run, "node_entered", {"n": done}, node_name="n")
                    done += 1
        except BaseException as error:
            errors.append(error)
        counts.append(done)

    workers = [threading.Thread(target=write) for _ in range(4)]
    for worker in workers:
        worker.start()
    done = retention.drop(aged.archiver)
    stop.set()
    for worker in workers:
        worker.join()
    assert errors == []
    assert {m.status for m in done.months} == {"dropped"}
    ((stored,),) = rows(
        aged.admin, f"SELECT count(*) FROM {LOG} WHERE kind = 'node_entered' AND node_name = 'n'"
    )
    assert stored == sum(counts) > 0


@pytest.mark.slow
def test_ten_years_of_months(cluster: Any, database: str, tenant_id: str) -> None:
    """A log of ten years comes down to its seven, and the whole of it verifies."""
    DatabaseClock(cluster.dsn(database)).months(utc(2016, 11, 1), NOW)
    aged = AgedLog(cluster, database)
    # The months the template was made with, if its own clock is elsewhere, are no hole of ours.
    for year in range(2017, 2027):
        aged.at(utc(year, 6, 15))
        aged.run(tenant_id, "chat")
    aged.at(NOW)
    with psycopg.connect(aged.admin) as conn:
        ((locks,),) = conn.execute("SHOW max_locks_per_transaction").fetchall()
    assert int(locks) >= 64
    done = retention.drop(aged.archiver)
    assert {m.status for m in done.months} == {"dropped"}
    assert len(done.months) == 36
    assert min(months_of(aged)) == "2019_11"
    verified(aged, tenant_id)


def test_the_command(
    aged: AgedLog, tenant_id: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Dry run, hold, drop and rebuild as an operator calls them, with their exit codes."""
    aged.at(MARCH)
    run = aged.run(tenant_id, "old")
    aged.run(tenant_id, "ask", ask=True, answer=False)
    aged.at(NOW)
    monkeypatch.setenv("CUO_DATABASE_URL", aged.archiver)

    def call(*argv: str) -> tuple[int, str, str]:
        code = archive_cli.main(argv)
        return code, *capsys.readouterr()

    assert call("drop-old-partitions", "--older-than-months", "83")[0] == 64
    code, out, err = call("drop-old-partitions", "--dry-run")
    assert code == 0
    assert "kept: run: 1 unfinished runs" in out
    assert "1 months past keeping are kept" in err
    assert "2018_03" in months_of(aged)
    code, out, _ = call("expire-approvals", "--tenant", tenant_id, "--commands")
    assert (code, out.count("cyberos-cuo supervisor expire")) == (0, 1)
    code, out, _ = call("hold", "set", "--tenant", tenant_id, "--run", str(run), "--reason", "c 7")
    assert code == 0
    hold = out.strip()
    assert "c 7" in call("hold", "list")[1]
    assert (
        call("hold", "set", "--tenant", tenant_id, "--run", str(uuid.uuid4()), "--reason", "x")[0]
        == 65
    )
    assert call("hold", "release", hold, "--tenant", tenant_id, "--reason", "over")[0] == 0
    assert call("hold", "release", hold, "--tenant", tenant_id, "--reason", "over")[0] == 65
    assert call("hold", "list")[1] == ""
    assert "released" in call("hold", "list", "--all")[1]
    with aged.store(tenant_id) as store:
        store.delete_thread("ask")
    code, out, _ = call("drop-old-partitions")
    assert (code, out.count("dropped")) == (0, 4)
    assert call("drop-old-partitions")[1] == "No month is past keeping.\n"
    assert call("rebuild-index")[:2] == (0, "The index is what the log gives.\n")
    monkeypatch.setenv("CUO_DATABASE_URL", aged.app)
    assert call("drop-old-partitions")[0] == 77
