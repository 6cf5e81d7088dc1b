"""A run that crossed a dropped month is told as exactly that, everywhere; any other hole is a hole."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from aged_log import MARCH, NOW, AgedLog, utc
from bundle_command import check, fit_sums, read, write

from cuo_checkpoint import CheckpointWriter, archive, chain, keys, retention
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.cuts import RETENTION_RUN
from cuo_checkpoint.export import export_month, export_run
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant
from cuo_checkpoint.seal_findings import FindingKind

RING = KeyRing((keys.generate("test"),))
BETWEEN = utc(2018, 5, 2)


class Cut:
    """A log that lost March to May 2018 lawfully: one run went whole, one lost its first rows."""

    def __init__(self, aged: AgedLog, folder: Path, *, sealed_before: bool) -> None:
        self.aged, self.folder, self.tenant = aged, folder, uuid.uuid4()
        (folder / "heads").mkdir()
        self.heads = HeadFolder(folder / "heads")
        self.key = folder / "trusted.keys"
        self.key.write_text("".join(f"{key}\n" for key in RING.believed))
        self.run, self.whole = uuid.uuid4(), uuid.uuid4()
        with aged.store(self.tenant) as store:
            writer = CheckpointWriter(store)
            for when, run in ((MARCH, self.run), (MARCH, self.whole), (BETWEEN, self.run)):
                aged.at(when)
                writer.write(run, "node_entered", {"n": 1}, node_name="n", thread_id="service")
            writer.write(self.whole, "run_completed", {}, thread_id="service")
            aged.at(NOW)
            writer.write(self.run, "node_entered", {"n": 2}, node_name="n", thread_id="service")
            writer.write(self.run, "run_completed", {}, thread_id="service")
        self.later = aged.run(self.tenant, "later")
        if sealed_before:
            self.seal()
        assert {m.status for m in retention.drop(aged.archiver).months} == {"dropped"}
        self.sealed = self.seal()

    def seal(self) -> list[str]:
        """Seals everything; what was left out, and why."""
        with Sealer(self.aged.auditor, ring=RING, folder=self.heads) as sealer:
            return [p for one in sealer.tenants() for p in sealer.seal(one).problems]

    def bundle(self, what: Month | uuid.UUID, name: str = "bundle") -> Path:
        out = self.folder / f"{name}-{uuid.uuid4().hex[:6]}"
        export: Callable[..., Any] = export_month if isinstance(what, Month) else export_run
        export(self.aged.auditor, self.tenant, what, out)
        return out

    def says(self, **body: Any) -> None:
        """Whoever owns the database has the chain of retention say something more."""
        told = {"cuts": [], "newest_row": None, "older_than_months": 84, "tables": {}} | body
        with psycopg.connect(self.aged.admin, autocommit=True) as conn:
            conn.execute(
                "SELECT cuo_retention_says(%s, 'month_dropped', %s)",
                [self.tenant, canonical_bytes(told).decode()],
            )


def clone(cluster: Any, template: str) -> tuple[str, AgedLog]:
    """A database with years behind it."""
    name = f"cuo_cut_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER cyberos_owner")
    return name, AgedLog(cluster, name)


@pytest.fixture(scope="module", params=[True, False], ids=["sealed before", "sealed after"])
def cut(
    request: Any, cluster: Any, aged_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cut]:
    """Months that went after their seal, or before anything was ever sealed. Tests only read it."""
    name, aged = clone(cluster, aged_template)
    yield Cut(aged, tmp_path_factory.mktemp("cut"), sealed_before=request.param)
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def broken(aged: AgedLog, tmp_path: Path) -> Cut:
    """One of this test's own, to do harm to."""
    return Cut(aged, tmp_path, sealed_before=True)


def test_a_live_log_says_which_month_went(cut: Cut) -> None:
    """Chains verify from their cut, the first seal goes on from it, and both say what went when."""
    assert cut.sealed == []
    report = archive.verify(cut.aged.auditor, tenant_id=cut.tenant)
    assert (report.broken, report.strays) == ([], [])
    told = {str(drop.month): drop for _, drop in report.drops}
    assert set(told) == {"2018-03", "2018-05"}
    assert all(drop.at.startswith("2026-11-20T12:") and drop.sealed_at for drop in told.values())
    (verdict,) = report.cut
    assert verdict.run_id == cut.run
    assert [(g.first, g.last, g.log_rows, g.drop) for g in verdict.dropped] == [
        (1, 2, 1, told["2018-03"]),
        (3, 3, 1, told["2018-05"]),
    ]
    found = check_tenant(
        cut.aged.auditor, cut.tenant, keys=RING.believed, folder=cut.heads
    ).findings
    assert {finding.kind for finding in found} <= {FindingKind.DROPPED_MONTH}
    for finding in found:
        assert str(told["2018-05"]) in finding.text


def test_a_bundle_says_which_month_went(cut: Cut) -> None:
    """A run's and a month's bundle hold, with the cut in plain words and under signature."""
    for what in (cut.run, Month(2026, 11)):
        code, said = check(cut.bundle(what), "--key", cut.key)
        assert (code, said["problems"]) == (0, [])
        assert [drop["month"] for drop in said["dropped_months"]] == ["2018-03", "2018-05"]
        assert all(drop["sealed_at"] for drop in said["dropped_months"])
        first, second = said["cut_by_retention"]
        assert f"run {cut.run}: chain rows 1 to 2 went with month 2018-03: " in first
        assert "chain rows 3 to 3 went with month 2018-05: retention said so in row" in second
        assert said["unsealed_chain_rows"] == 0


def test_a_dropped_month_can_be_exported_as_dropped(cut: Cut) -> None:
    """Nothing is left of it but the chain that says so; that is what the bundle proves."""
    bundle = cut.bundle(Month(2018, 3))
    code, said = check(bundle, "--key", cut.key)
    assert (code, said["problems"]) == (0, [])
    assert (said["rows"]["runs"], said["rows"]["log"]) == (1, 0)
    assert said["dropped_months"][0]["month"] == "2018-03"
    assert "<b>month_dropped</b>; month: 2018-03<br>" in (bundle / "summary.html").read_text()


def test_a_bundle_without_the_excuse_does_not_hold(cut: Cut, tmp_path: Path) -> None:
    """Without the chain of retention, or with one row more missing, a cut is a hole."""
    good = cut.bundle(cut.run)
    index = {row["run_id"]: i for i, row in reversed(list(enumerate(read(good / "audit.ndjson"))))}

    def without_retention(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_bytes())
        manifest["runs"] = [r for r in manifest["runs"] if r["run_id"] != str(RETENTION_RUN)]
        rows = [r for r in read(bundle / "audit.ndjson") if r["run_id"] != str(RETENTION_RUN)]
        manifest["rows"]["audit"] = len(rows)
        write(bundle / "audit.ndjson", rows)
        write(bundle / "manifest.json", [manifest])

    def one_row_more(bundle: Path) -> None:
        rows = read(bundle / "audit.ndjson")
        del rows[index[str(cut.run)]]
        write(bundle / "audit.ndjson", rows)

    def wider_cut(bundle: Path) -> None:
        """The bundle's maker lets retention say that the next row went, too."""
        rows = read(bundle / "audit.ndjson")
        own = [row for row in rows if row["run_id"] == str(RETENTION_RUN)]
        gone = rows[index[str(cut.run)]]
        said = json.loads(own[-1]["row"])
        said["chain_seq"] = own[-1]["chain_seq"] + 1
        gap = {"from": 4, "head": gone["row_sha256"], "log_rows": 1, "to": 4}
        said["body"] |= {"cuts": [{"run_id": str(cut.run), "gaps": [gap]}], "month": "2018-05"}
        head = bytes.fromhex(own[-1]["row_sha256"])
        data = canonical_bytes(said)
        forged = own[-1] | {
            "chain_seq": said["chain_seq"],
            "prev_sha256": head.hex(),
            "row": data.decode(),
            "row_sha256": chain.link(head, data).hex(),
        }
        rows = [row for row in rows if row is not gone]
        write(bundle / "audit.ndjson", [*own, forged, *rows[len(own) :]])

    for attack, finding in (
        (without_retention, "chain row 4 is not in its place: rows are missing"),
        (one_row_more, "chain row 5 is not in its place: rows are missing"),
        (wider_cut, "excuses nothing: it is not sealed yet"),
    ):
        bundle = tmp_path / attack.__name__
        shutil.copytree(good, bundle)
        attack(bundle)
        fit_sums(bundle)
        code, said = check(bundle, "--key", cut.key)
        assert code == 65
        assert any(finding in problem for problem in said["problems"]), said["problems"]


def test_a_month_gone_without_retention_is_missing(broken: Cut) -> None:
    """By hand, with an excuse before its time, sealed for good measure: it is named all the same."""
    aged = broken.aged
    with psycopg.connect(aged.admin, autocommit=True) as conn:
        for (name,) in conn.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhrelid::regclass::text LIKE 'cuo%2026_11'"
        ).fetchall():
            conn.execute(f"CREATE TABLE kept_{name} AS TABLE {name}")
            conn.execute(f"DROP TABLE {name}")
        conn.execute("SELECT cuo_ensure_partitions()")
        # What retention said this month is put back, so that only the runs are gone.
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "INSERT INTO cuo_memory_audit SELECT * FROM kept_cuo_memory_audit_2026_11"
            " WHERE run_id = %s",
            [RETENTION_RUN],
        )
        conn.execute("DELETE FROM cuo_runs WHERE run_id = ANY (%s)", [[broken.run, broken.later]])
    broken.says(month="2026-11")
    assert broken.seal() == []
    report = archive.verify(aged.auditor, tenant_id=broken.tenant)
    problems = [problem for verdict in report.broken for problem in verdict.problems]
    assert any("it drops 2026-11 before its 84 months are over" in text for text in problems)
    check_found = check_tenant(aged.auditor, broken.tenant, keys=RING.believed, folder=broken.heads)
    missing = {f.run_id for f in check_found.findings if f.kind is FindingKind.MISSING_RUN}
    assert missing == {broken.run, broken.later}
    code, said = check(broken.bundle(Month(2026, 11)), "--key", broken.key)
    assert code == 65
    for finding in (
        "it drops 2026-11 before its 84 months are over",
        "month 2026-11 is missing: 2 runs were sealed in it, none is here, and no drop speaks of it",
        f"run {broken.later} is missing: its chain row",
    ):
        assert any(finding in problem for problem in said["problems"]), finding


def test_an_excuse_for_rows_of_another_month_is_no_excuse(broken: Cut) -> None:
    """A lawful old month cannot have held rows that stood behind younger ones."""
    with psycopg.connect(broken.aged.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        gone = conn.execute(
            "DELETE FROM cuo_memory_audit WHERE run_id = %s AND chain_seq = 3 RETURNING row_sha256",
            [broken.later],
        ).fetchone()
    assert gone is not None
    gap = {"from": 3, "head": gone[0].hex(), "log_rows": 1, "to": 3}
    broken.says(month="2018-05", cuts=[{"run_id": str(broken.later), "gaps": [gap]}])
    assert broken.seal() == []
    finding = "chain rows 3 to 3 are missing: they are said to have gone with month 2018-05"
    report = archive.verify(broken.aged.auditor, tenant_id=broken.tenant, run_id=broken.later)
    assert finding in report.broken[0].problems[0]
    code, said = check(broken.bundle(broken.later), "--key", broken.key)
    assert code == 65
    assert any(finding in problem for problem in said["problems"])
