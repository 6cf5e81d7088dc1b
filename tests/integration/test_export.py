"""Bundles: the same bytes again, proof without us, and every change to one named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from bundle_command import check, fit_sums
from sqlalchemy import event

from cuo_checkpoint import CheckpointWriter, chain, export_places, export_rows, keys, retention
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.errors import ExportRefused, RunUnknown
from cuo_checkpoint.export import export_bundle, export_month, export_run
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.leaves import origin_of
from cuo_checkpoint.notes import Checkpoint
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.sessions import open_engine

RING = KeyRing((keys.generate("test"),))


class State(TypedDict, total=False):
    """What the graph carries."""

    text: str
    number: float
    answer: str


def run_graph(store: Any) -> uuid.UUID:
    """A run with an interrupt, its answer, shared states and awkward values."""
    made = StateGraph(State)
    made.add_node("a", lambda state: {"text": "đ<b>\U0001f600" * 5000, "number": 1.5e-5})
    made.add_node("b", lambda state: {"answer": interrupt("sure?")})
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    made.add_edge("b", END)
    graph, run_id = made.compile(store), uuid.uuid4()
    config: Any = {"configurable": {"thread_id": "t", "run_id": run_id}}
    graph.invoke({"number": -0.25}, config, durability="sync")
    graph.invoke(Command(resume="yes"), config, durability="sync")
    return run_id


class Case:
    """A tenant with a sealed graph run and two others, and its keys in a file."""

    def __init__(self, place: Any, store: Any, tenant: uuid.UUID, folder: Path) -> None:
        self.place, self.store, self.tenant, self.folder = place, store, tenant, folder
        self.run = run_graph(store)
        self.writer = CheckpointWriter(store)
        self.others = [self.write(), self.write()]
        (folder / "heads").mkdir()
        self.heads = HeadFolder(folder / "heads")
        self.key = folder / "trusted.keys"
        self.key.write_text("".join(f"{key}\n" for key in RING.believed))

    def write(self, run: uuid.UUID | None = None) -> uuid.UUID:
        run = run or uuid.uuid4()
        for number in range(3):
            self.writer.write(run, "node_entered", {"n": number}, node_name="n")
        return run

    def seal(self) -> None:
        with Sealer(self.place.auditor, ring=RING, folder=self.heads) as sealer:
            assert sealer.seal(self.tenant).ok

    def bundle(self, name: str = "bundle", *, month: bool = True) -> Path:
        out = self.folder / name
        if month:
            now = Month.of(self.newest())
            export_month(self.place.auditor, self.tenant, now, out)
        else:
            export_run(self.place.app, self.tenant, self.run, out)
        return out

    def newest(self) -> Any:
        with psycopg.connect(self.place.admin) as conn:
            return conn.execute("SELECT now()").fetchone()[0]  # type: ignore[index]


@pytest.fixture
def case(shared_place: Any, store: Any, tenant_id: str, tmp_path: Path) -> Case:
    """Three runs, sealed."""
    made = Case(shared_place, store, uuid.UUID(tenant_id), tmp_path)
    made.seal()
    return made


@pytest.mark.parametrize("month", [True, False])
def test_a_bundle_proves_itself(case: Case, month: bool) -> None:
    """A month and a run verify with the standard library alone, in full."""
    bundle = case.bundle(month=month)
    code, said = check(bundle, "--key", case.key)
    assert (code, said["problems"]) == (0, [])
    assert said["signature_checked"]
    assert said["tree_size"] == 3
    assert said["unsealed_chain_rows"] == 0
    assert said["rows"]["runs"] == (3 if month else 1)
    assert said["rows"]["writes"] > 2
    assert said["rows"]["audit"] > said["rows"]["log"] > 5
    assert bundle.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in bundle.iterdir()} == {0o600}
    sums = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=bundle, check=False)
    assert sums.returncode == 0


def test_the_same_bytes_again(case: Case) -> None:
    """Exporting twice, as either role, gives the same files: nothing of the export is in them."""
    first, second = case.bundle("one"), case.bundle("two")
    assert sorted(os.listdir(first)) == sorted(os.listdir(second))
    for name in os.listdir(first):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert {p.name for p in case.folder.iterdir()} == {"heads", "trusted.keys", "one", "two"}


def test_the_same_bytes_however_runs_are_read(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together or one by one, a row at a time or all: the order is the rows' own."""
    long = case.write()
    case.write(long)
    case.seal()
    first = case.bundle("one")
    for module, name in (
        (export_places, "_ROWS"),
        (export_places, "_LOOKED_UP"),
        (export_rows, "_FETCH"),
        (export_rows, "_FETCH_CHAIN"),
    ):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(export_rows, "_FEW", 0)
    second = case.bundle("two")
    files = {path.name: path.read_bytes() for path in first.iterdir()}
    assert files == {path.name: path.read_bytes() for path in second.iterdir()}
    runs = [run["run_id"] for run in json.loads(files["manifest.json"])["runs"]]
    assert runs == sorted(map(str, (case.run, long, *case.others)))
    for name, number in (("audit", "chain_seq"), ("log", "seq"), ("writes", "seq")):
        rows = [json.loads(line) for line in files[f"{name}.ndjson"].splitlines()]
        places = [(row["run_id"], row[number]) for row in rows]
        assert places == sorted(places), name
        assert len(places) > 5, name


def test_more_runs_are_no_more_statements(case: Case) -> None:
    """Runs are read together: what a month costs is a matter of its rows."""
    engine = open_engine(case.place.auditor, connections=1)
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    counted = []
    for name in ("few", "more"):
        export_bundle(engine, case.tenant, case.folder / name, month=Month.of(case.newest()))
        counted.append(len(said))
        said.clear()
        for _ in range(8):
            case.write()
    engine.dispose()
    assert counted[0] == counted[1] < 16


def test_states_are_readable_and_exact(case: Case) -> None:
    """Lines are JSON with the documents in them, and pages escape what they show."""
    bundle = case.bundle(month=False)
    rows = [json.loads(line) for line in (bundle / "log.ndjson").read_bytes().splitlines()]
    assert any(row["state"].get("text", "").startswith("đ<b>\U0001f600") for row in rows)
    assert any(set(row["state"]) == {"$state_of"} for row in rows)
    page = (bundle / "summary.html").read_text()
    assert str(case.run) in page
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "đ<b>" not in page, "states are not on the page"


def test_what_is_not_sealed_yet_is_counted(case: Case) -> None:
    """Rows newer than the head are in the bundle, and said to prove nothing yet."""
    case.write(case.others[0])
    new = case.write()
    code, said = check(case.bundle(), "--key", case.key)
    assert (code, said["unsealed_chain_rows"]) == (0, 3 + 4)
    manifest = json.loads((case.folder / "bundle" / "manifest.json").read_bytes())
    sealed = {run["run_id"]: run["sealed"] for run in manifest["runs"]}
    assert sealed[str(new)] is None


def test_nothing_sealed_is_said(
    shared_place: Any, store: Any, tenant_id: str, tmp_path: Path
) -> None:
    """Without a head a bundle proves nothing, and its verifier says so."""
    case = Case(shared_place, store, uuid.UUID(tenant_id), tmp_path)
    code, said = check(case.bundle())
    assert code == 65
    assert said["problems"] == ["no head was signed when this was exported: nothing here is sealed"]


def test_refusals(case: Case, other_tenant_id: str) -> None:
    """An existing folder, an unknown run and another tenant's run leave nothing behind."""
    bundle = case.bundle()
    with pytest.raises(ExportRefused, match="exists"):
        case.bundle()
    for tenant, run in ((case.tenant, uuid.uuid4()), (uuid.UUID(other_tenant_id), case.run)):
        with pytest.raises(RunUnknown):
            export_run(case.place.app, tenant, run, case.folder / "none")
    with pytest.raises(ExportRefused, match="cannot write"):
        export_run(case.place.app, case.tenant, case.run, case.folder / "no" / "where")
    assert {p.name for p in case.folder.iterdir()} == {"heads", "trusted.keys", bundle.name}


def _edit(name: str, change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    """Changes a file's rows."""

    def attack(bundle: Path) -> None:
        path = bundle / name
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        changed = change(rows)
        rows = changed if isinstance(changed, list) else rows
        path.write_bytes(b"".join(canonical_bytes(row) + b"\n" for row in rows))

    return attack


def _set(index: int, **values: Any) -> Callable[[list[Any]], object]:
    return lambda rows: rows[index].update(values)


def _swap(rows: list[Any]) -> list[Any]:
    return [rows[1], rows[0], *rows[2:]]


def _rewrite(bundle: Path) -> None:
    """Every row of every run told anew with fitting digests, counts and sums."""
    audit = [json.loads(line) for line in (bundle / "audit.ndjson").read_bytes().splitlines()]
    heads: dict[str, bytes] = {}
    tenant = uuid.UUID(json.loads((bundle / "manifest.json").read_bytes())["tenant_id"])
    for row in audit:
        run = uuid.UUID(row["run_id"])
        head = heads.get(row["run_id"], chain.genesis(tenant, run))
        said = json.loads(row["row"])
        said["trace_id"] = row["trace_id"] = "f" * 32
        row["row"] = canonical_bytes(said).decode()
        row["prev_sha256"] = head.hex()
        heads[row["run_id"]] = chain.link(head, row["row"].encode())
        row["row_sha256"] = heads[row["run_id"]].hex()
    (bundle / "audit.ndjson").write_bytes(b"".join(canonical_bytes(r) + b"\n" for r in audit))


def _cut(bundle: Path) -> None:
    """The last run's last chain row is cut, with the log row it speaks of, and every count with it."""
    lines = (bundle / "audit.ndjson").read_bytes().splitlines(keepends=True)
    gone = json.loads(json.loads(lines[-1])["row"])
    log = (bundle / "log.ndjson").read_bytes().splitlines(keepends=True)
    kept = [x for x in log if json.loads(x)["checkpoint_id"] != gone["body"].get("checkpoint_id")]
    (bundle / "audit.ndjson").write_bytes(b"".join(lines[:-1]))
    (bundle / "log.ndjson").write_bytes(b"".join(kept))
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["rows"]["audit"] -= 1
    manifest["rows"]["log"] -= len(log) - len(kept)
    run = next(run for run in manifest["runs"] if run["run_id"] == gone["run_id"])
    run["chain_rows"] -= 1
    (bundle / "manifest.json").write_bytes(canonical_bytes(manifest))


def _hide_run(bundle: Path) -> None:
    """The last run is left out with its rows, its proof and every count."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    gone = manifest["runs"].pop()["run_id"]
    for name in manifest["rows"]:
        path = bundle / f"{name}.ndjson"
        kept = [x for x in path.read_bytes().splitlines() if json.loads(x)["run_id"] != gone]
        manifest["rows"][name] = len(kept)
        path.write_bytes(b"".join(line + b"\n" for line in kept))
    proofs = json.loads((bundle / "proofs.json").read_bytes())
    del proofs[gone]
    (bundle / "proofs.json").write_bytes(canonical_bytes(proofs))
    (bundle / "manifest.json").write_bytes(canonical_bytes(manifest))


def _drop_run(bundle: Path) -> None:
    """A run's proof is given to another."""
    proofs = json.loads((bundle / "proofs.json").read_bytes())
    first, second = sorted(proofs)[:2]
    proofs[first] = proofs[second]
    (bundle / "proofs.json").write_bytes(canonical_bytes(proofs))


def _note(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda bundle: (
        (bundle / "head.note").write_bytes(change((bundle / "head.note").read_bytes())) and None
    )


ATTACKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a log column": (_edit("log.ndjson", _set(3, edge_to="x")), "columns and digest disagree"),
    "a state": (_edit("log.ndjson", _set(0, state={"forged": 1})), "its state was changed"),
    "LangGraph's document": (
        _edit("log.ndjson", lambda rows: [r | {"langgraph": {"x": 1}} for r in rows]),
        "its langgraph was changed",
    ),
    "a log row deleted": (_edit("log.ndjson", lambda rows: rows[1:]), "is missing"),
    "a log row added": (_edit("log.ndjson", lambda rows: [rows[0], *rows]), "was added"),
    "a write's value": (_edit("writes.ndjson", _set(0, value="no")), "its value was changed"),
    "a write deleted": (
        _edit("writes.ndjson", lambda rows: rows[1:]),
        "pending writes are missing",
    ),
    "a chain row's bytes": (
        _edit("audit.ndjson", lambda rows: rows[2].update(row=rows[2]["row"].replace("1", "2", 1))),
        "chain row 3 was changed: bytes and digest disagree",
    ),
    "a chain row's kind": (_edit("audit.ndjson", _set(1, kind="hold")), "columns are not what"),
    "a chain row deleted": (
        _edit("audit.ndjson", lambda rows: [*rows[:2], *rows[3:]]),
        "chain row 4 is not in its place",
    ),
    "chain rows reordered": (_edit("audit.ndjson", _swap), "chain row 2 is not in its place"),
    "rows under another run": (
        _edit("audit.ndjson", lambda rows: [r | {"run_id": rows[-1]["run_id"]} for r in rows]),
        "the run has no chain",
    ),
    "the tail cut with all counts": (_cut, "is shortened: sealed up to chain row"),
    "everything rewritten": (_rewrite, "was rewritten: chain row"),
    "a run left out with all counts": (_hide_run, "is missing: its chain row"),
    "leaves left out": (
        _edit("leaves.ndjson", lambda rows: rows[:-1]),
        "the leaves are not those of the signed head",
    ),
    "a proof of another run": (_drop_run, "its proof is of another run"),
    "a forged head": (_note(lambda note: note.replace(b"\n3\n", b"\n4\n")), "head.note is forged"),
    "a damaged head": (_note(lambda note: note[50:]), "head.note is malformed"),
    "no manifest": (lambda bundle: (bundle / "manifest.json").unlink(), "cannot be read on"),
    "a file that is no JSON": (
        lambda bundle: (bundle / "log.ndjson").write_bytes(b"{\n"),
        "cannot be read on",
    ),
    "a file deep as a well": (
        lambda bundle: (bundle / "log.ndjson").write_bytes(b"[" * 100_000),
        "cannot be read on",
    ),
}


@pytest.fixture(scope="module")
def sealed_bundle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bundle that attacks are tried on, made once."""
    return {"path": tmp_path_factory.mktemp("bundle") / "good"}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_changed_bundle_is_reported(
    request: pytest.FixtureRequest, sealed_bundle: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """Each change is named for what it is, whether or not the checksums were made to fit."""
    good: Path = sealed_bundle["path"]
    if not good.exists():
        shutil.copytree(request.getfixturevalue("case").bundle(), good)
        (good.parent / "trusted.keys").write_text("".join(f"{key}\n" for key in RING.believed))
    bundle = tmp_path / "attacked"
    shutil.copytree(good, bundle)
    attack, finding = ATTACKS[name]
    attack(bundle)
    code, said = check(bundle, "--key", good.parent / "trusted.keys")
    assert code == 65
    assert any(
        "is not the one in SHA256SUMS" in p or "cannot be read" in p for p in said["problems"]
    )
    fit_sums(bundle)
    code, said = check(bundle, "--key", good.parent / "trusted.keys")
    assert code == 65
    assert any(finding in problem for problem in said["problems"]), said["problems"]


def test_the_wrong_key_and_no_key(case: Case) -> None:
    """A stranger's key is told apart from a forgery; without a key that much is said."""
    bundle = case.bundle()
    stranger = case.folder / "stranger.keys"
    stranger.write_text(f"{keys.generate('x').public}\n")
    code, said = check(bundle, "--key", stranger)
    assert code == 65
    assert "signed by no key you trust" in said["problems"][0]
    code, said = check(bundle)
    assert (code, said["signature_checked"]) == (0, False)


def test_an_old_bundle_and_a_split_view(case: Case) -> None:
    """With a head kept from elsewhere, a replayed bundle is old and a second tree is a split."""
    bundle = case.bundle()
    case.write()
    case.seal()
    newer = case.folder / "newer.note"
    newer.write_bytes(case.heads.note(case.tenant, 2))
    code, said = check(bundle, "--key", case.key, "--head", newer)
    assert code == 65
    assert said["problems"] == [
        "the bundle is older than the head you gave: it was exported at 3 leaves, yours covers 4"
    ]
    other = Checkpoint(origin_of(case.tenant), 3, bytes(32)).signed(RING.signing).to_bytes()
    newer.write_bytes(other)
    assert check(bundle, "--key", case.key, "--head", newer)[1]["problems"] == [
        "split view: two signed trees of 3 leaves"
    ]


def test_a_database_changed_behind_the_triggers_is_exported_as_it_is(case: Case) -> None:
    """An export hides nothing: what a superuser changed is in it, and its verifier names it."""
    with psycopg.connect(case.place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        for change in (
            "UPDATE cuo_langgraph_checkpoints SET state_json = '{\"big\": 1e30}' WHERE run_id = %s",
            "UPDATE cuo_memory_audit SET body = '{}' WHERE run_id = %s AND chain_seq = 2",
            "UPDATE cuo_memory_audit SET row_bytes = '\\xff00' WHERE run_id = %s AND chain_seq = 4",
        ):
            conn.execute(change, [case.others[0]])
        conn.execute("DELETE FROM cuo_runs WHERE run_id = %s", [case.others[1]])
    code, said = check(case.bundle(), "--key", case.key)
    assert code == 65
    for finding in (
        "its state was changed",
        "chain row 2: columns are not what its bytes say",
        "chain row 4 was changed",
    ):
        assert any(finding in problem for problem in said["problems"]), finding
    assert said["rows"]["runs"] == 3


class Holds:
    """Holds on the run, on another and on everything; the first was lifted again."""

    def __init__(self, case: Case) -> None:
        archiver = case.place.app.replace("cyberos_app", "cyberos_archiver")

        def place(run: uuid.UUID | None, reason: str) -> uuid.UUID:
            return retention.place_hold(archiver, case.tenant, run, reason=reason, by="Mai Anh")

        self.own = place(case.run, "case 17")
        self.other = place(case.others[0], "a secret inquiry")
        self.all = place(None, "audit of 2026")
        self.end = retention.release_hold(
            archiver, case.tenant, self.own, reason="settled", by="Mai Anh", schema="public"
        )
        case.seal()


def test_a_bundle_tells_of_legal_holds(case: Case) -> None:
    """Who placed and lifted which, when and why: those on its runs and on everything, no others."""
    holds = Holds(case)
    bundle = case.bundle(month=False)
    code, said = check(bundle, "--key", case.key)
    assert (code, said["problems"]) == (0, [])
    told = {hold["hold_id"]: hold for hold in said["holds"]}
    assert set(told) == {str(holds.own), str(holds.all), str(holds.end)}
    assert told[str(holds.own)]["held_run_id"] == str(case.run)
    end = told[str(holds.end)]
    assert (end["kind"], end["releases"], end["placed_by"]) == (
        "release",
        str(holds.own),
        "Mai Anh",
    )
    assert (end["reason"], end["created_at"] > told[str(holds.own)]["created_at"]) == (
        "settled",
        True,
    )
    assert b"a secret inquiry" not in b"".join(path.read_bytes() for path in bundle.iterdir())
    page = (bundle / "summary.html").read_text()
    assert page.count(str(holds.own)) == 2
    assert "lifted" in page
    assert "Mai Anh" not in page
    assert "case 17" not in page
    plain = subprocess.run(
        [sys.executable, "-I", "-S", bundle / "verify.py", bundle], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert f"Hold {holds.end} on run {case.run} ended hold {holds.own}" in plain
    whole = case.bundle("month")
    assert str(holds.other) in {hold["hold_id"] for hold in check(whole)[1]["holds"]}


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (_set(0, reason="another"), "was changed: columns and digest disagree"),
        (_set(0, placed_by="nobody"), "was changed: columns and digest disagree"),
        (lambda rows: rows[1:], "is missing"),
        (lambda rows: [*rows, rows[0] | {"hold_id": str(uuid.UUID(int=1))}], "was added"),
    ],
)
def test_a_hold_in_a_bundle_is_what_the_chain_says(
    case: Case, change: Callable[[list[Any]], object], finding: str
) -> None:
    """Neither its words nor its being there can be changed."""
    Holds(case)
    bundle = case.bundle(month=False)
    _edit("holds.ndjson", change)(bundle)
    fit_sums(bundle)
    code, said = check(bundle, "--key", case.key)
    assert code == 65
    assert any(finding in problem and "hold" in problem for problem in said["problems"])
