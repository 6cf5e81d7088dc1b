"""Sealing: what is signed, when nothing is, and that nothing is lost or doubled on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, keys
from cuo_checkpoint.errors import ExportRefused, SealRefused
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.leaves import Leaf, origin_of
from cuo_checkpoint.merkle import Tree
from cuo_checkpoint.notes import SignedNote, verified
from cuo_checkpoint.seal import Sealer, SealReport

RING = KeyRing((keys.generate("test"),))


@pytest.fixture
def folder(tmp_path: Path) -> HeadFolder:
    """A folder for exports."""
    return HeadFolder(tmp_path)


@pytest.fixture
def tenant(tenant_id: str) -> uuid.UUID:
    """This test's tenant."""
    return uuid.UUID(tenant_id)


@pytest.fixture
def seal(
    shared_place: Any, folder: HeadFolder, tenant: uuid.UUID
) -> Iterator[Callable[..., SealReport]]:
    """Seals this test's tenant, as the auditor."""
    with Sealer(shared_place.auditor, ring=RING, folder=folder) as sealer:

        def call(ring: KeyRing | None = None) -> SealReport:
            sealer.ring = ring or RING
            return sealer.seal(tenant)

        yield call


@pytest.fixture
def write(store: Any) -> Callable[..., uuid.UUID]:
    """Appends rows to a run."""
    writer = CheckpointWriter(store)

    def call(rows: int = 3, run: uuid.UUID | None = None) -> uuid.UUID:
        run = run or uuid.uuid4()
        for i in range(rows):
            writer.write(run, "node_entered", {"n": i}, node_name="n")
        return run

    return call


def attack(place: Any, statement: str, *params: Any) -> None:
    """As a superuser with every trigger off."""
    with psycopg.connect(place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(statement, params)  # type: ignore[arg-type]


def exported(folder: HeadFolder, tenant: uuid.UUID) -> list[Leaf]:
    """All exported leaves, after holding every head against them."""
    leaves: list[Leaf] = []
    for number in folder.numbers(tenant):
        leaves += [Leaf.parse(line) for line in folder.leaves(tenant, number)]
        believed = RING.believed
        head = verified(folder.note(tenant, number), origin_of(tenant), believed)
        assert (head.size, head.root) == (len(leaves), Tree(leaf.hash() for leaf in leaves).root())
    return leaves


def test_only_what_advanced_is_sealed(
    write: Any, seal: Any, folder: HeadFolder, tenant: uuid.UUID, lens: Any
) -> None:
    """Each head becomes one leaf, again only when its chain has grown; sealing twice adds nothing."""
    runs = sorted(write() for _ in range(3))
    first = seal()
    assert (first.leaves, first.size, first.heads, first.exported) == (3, 3, [1], [1])
    assert first.ok
    assert seal().to_json() == SealReport(tenant, size=3).to_json()
    write(2, runs[1])
    new = write(1)
    second = seal()
    assert (second.leaves, second.size, second.heads) == (2, 5, [2])
    assert second.rows == 2 + 2, "only new rows are read: two, and the new run's open and own row"
    leaves = exported(folder, tenant)
    assert [leaf.run_id for leaf in leaves] == [*runs, *sorted((runs[1], new))]
    heads = {
        row["run_id"]: row for row in lens.query("SELECT * FROM cuo_runs WHERE tenant_id = $T")
    }
    newest = {leaf.run_id: leaf for leaf in leaves}
    assert {run: leaf.row_sha256 for run, leaf in newest.items()} == {
        run: row["chain_head"] for run, row in heads.items()
    }


def test_an_empty_tenant_is_not_signed(seal: Any, folder: HeadFolder, tenant: uuid.UUID) -> None:
    """There is no head over nothing."""
    assert seal().to_json() == SealReport(tenant).to_json()
    assert folder.numbers(tenant) == []


def test_many_leaves_make_several_heads(
    write: Any, seal: Any, folder: HeadFolder, tenant: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head is bounded, so a first seal of a large log commits as it goes."""
    monkeypatch.setattr("cuo_checkpoint.seal._LEAVES", 3)
    for _ in range(7):
        write(1)
    report = seal()
    assert (report.leaves, report.heads, report.exported) == (7, [1, 2, 3], [1, 2, 3])
    assert len(exported(folder, tenant)) == 7


def test_a_rewritten_chain_is_left_out_and_named(
    write: Any, seal: Any, shared_place: Any, tenant: uuid.UUID
) -> None:
    """Sealing itself notices what no longer extends the sealed head, and seals the others."""
    changed, cut, bent, sound = write(), write(), write(), write()
    seal()
    attack(
        shared_place,
        "UPDATE cuo_runs SET chain_head = sha256('x') WHERE tenant_id = %s AND run_id = %s",
        tenant,
        changed,
    )
    attack(
        shared_place,
        "UPDATE cuo_runs SET chain_seq = 2 WHERE tenant_id = %s AND run_id = %s",
        tenant,
        cut,
    )
    for run in (bent, sound):
        write(1, run)
    attack(
        shared_place,
        "UPDATE cuo_memory_audit SET row_bytes = '{}' WHERE tenant_id = %s AND run_id = %s"
        " AND chain_seq = 5",
        tenant,
        bent,
    )
    report = seal()
    assert report.leaves == 1
    said = "\n".join(report.problems)
    assert f"run {changed} was rewritten" in said
    assert f"run {cut} went back: chain row 4 was sealed, the index now ends at row 2" in said
    assert f"run {bent}: rows 5 to 5 of its chain do not extend" in said
    assert len(report.problems) == 3


@pytest.mark.parametrize("damage", ["root_sha256 = root_sha256", "full_subtrees = sha256('x')"])
def test_a_changed_tree_is_not_extended(
    write: Any, seal: Any, shared_place: Any, tenant: uuid.UUID, damage: str
) -> None:
    """A tree that is not the signed one is refused; columns nobody relies on do no harm."""
    write()
    seal()
    attack(shared_place, f"UPDATE cuo_seal_heads SET {damage} WHERE tenant_id = %s", tenant)
    write()
    if "full" in damage:
        with pytest.raises(SealRefused) as caught:
            seal()
        assert caught.value.kind == "inconsistent"
    else:
        assert seal().ok


def test_a_database_behind_its_exports_is_not_signed(
    write: Any, seal: Any, shared_place: Any, tenant: uuid.UUID, folder: HeadFolder
) -> None:
    """After a restore from an older backup nothing is signed: it would fork the tree."""
    write()
    seal()
    write()
    seal()
    for table in ("heads WHERE head_no = 2", "leaves WHERE leaf_index = 1"):
        attack(shared_place, f"DELETE FROM cuo_seal_{table} AND tenant_id = %s", tenant)
    write()
    with pytest.raises(SealRefused, match="restored from a backup") as caught:
        seal()
    assert caught.value.kind == "behind"
    assert folder.numbers(tenant) == [1, 2]


def test_another_head_under_the_same_number_is_refused(
    write: Any, seal: Any, tmp_path: Path, tenant: uuid.UUID, shared_place: Any
) -> None:
    """Exported files are never replaced; a contradiction stops the sealer."""
    write()
    seal()
    path = tmp_path / str(tenant) / "00000001.note"
    good = path.read_bytes()
    gone = HeadFolder(tmp_path / "other")
    with (
        Sealer(shared_place.auditor, ring=RING, folder=gone) as other,
        pytest.raises(ExportRefused, match="is not there"),
    ):
        other.seal(tenant)
    path.unlink()
    path.write_bytes(good.replace(b"cuo/", b"cuO/"))
    with pytest.raises(SealRefused, match="not the one that was exported"):
        seal()
    path.unlink()
    assert seal().exported == [1]
    assert path.read_bytes() == good


def test_a_forged_head_in_the_database_is_not_exported(
    write: Any, seal: Any, shared_place: Any, tenant: uuid.UUID, tmp_path: Path
) -> None:
    """What the database says of its own seals is believed only with a signature."""
    write()
    seal()
    (tmp_path / str(tenant) / "00000001.note").unlink()
    attack(
        shared_place,
        "UPDATE cuo_seal_heads SET note = replace(note, '— cuo', '— cuO') WHERE tenant_id = %s",
        tenant,
    )
    with pytest.raises(SealRefused, match="not exported: no trusted key signed"):
        seal()
    assert sorted(p.suffix for p in (tmp_path / str(tenant)).iterdir()) == [".leaves"]


def test_a_new_key_signs_the_newest_head_again(
    write: Any, seal: Any, folder: HeadFolder, tenant: uuid.UUID
) -> None:
    """After a rotation the newest head is believed by whoever knows only the new key, idle or not."""
    write()
    seal()
    new = keys.generate("next")
    both = RING.with_new(new)
    assert seal(both).heads == [2]
    assert seal(both).heads == []
    for key in both.believed:
        assert verified(folder.note(tenant, 2), origin_of(tenant), [key]).size == 1
    after = both.retired(RING.signing[0].public.id)
    write()
    assert seal(after).heads == [3]
    assert len(SignedNote.parse(folder.note(tenant, 3)).signatures) == 1
    stranger = KeyRing((keys.generate("stranger"),))
    write()
    with pytest.raises(SealRefused, match="no trusted key"):
        seal(stranger)


def _seal_in_child(dsn: str, folder: str, secret: str, tenant: uuid.UUID) -> None:
    ring = keys.parse(secret, where="test")
    with Sealer(dsn, ring=ring, folder=HeadFolder(Path(folder))) as sealer:
        sealer.seal(tenant)


def _child(place: Any, tmp_path: Path, tenant: uuid.UUID) -> Any:
    context = multiprocessing.get_context("fork")
    arguments = (place.auditor, str(tmp_path), RING.to_text(), tenant)
    return context.Process(target=_seal_in_child, args=arguments)


@pytest.mark.slow
def test_sealers_at_once(
    write: Any, shared_place: Any, tmp_path: Path, folder: HeadFolder, tenant: uuid.UUID
) -> None:
    """Four processes seal each head once."""
    runs = {write(1) for _ in range(20)}
    children = [_child(shared_place, tmp_path, tenant) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    leaves = exported(folder, tenant)
    assert len(leaves) == 20
    assert {leaf.run_id for leaf in leaves} == runs


POINTS = (
    "_extend",
    "sign",
    "export",
    "_export",
)


def _die_in_child(dsn: str, folder: str, secret: str, tenant: uuid.UUID, point: str) -> None:
    real = getattr(Sealer, point)

    def die(self: Sealer, *args: Any) -> None:
        real(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Sealer, point, die)
    if point == "_export":  # dies between the leaves file and its note

        def half(
            self: HeadFolder, tenant: uuid.UUID, number: int, leaves: bytes, note: bytes
        ) -> None:
            (self.folder / str(tenant)).mkdir(exist_ok=True)
            (self.folder / str(tenant) / f"{number:08d}.leaves").write_bytes(leaves)
            os.kill(os.getpid(), signal.SIGKILL)

        HeadFolder.write = half  # type: ignore[method-assign]
    _seal_in_child(dsn, folder, secret, tenant)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point(
    write: Any,
    seal: Any,
    shared_place: Any,
    tmp_path: Path,
    folder: HeadFolder,
    tenant: uuid.UUID,
    point: str,
) -> None:
    """Wherever a sealer is killed, the next one ends with one head over every run."""
    runs = {write(1) for _ in range(3)}
    context = multiprocessing.get_context("fork")
    child = context.Process(
        target=_die_in_child,
        args=(shared_place.auditor, str(tmp_path), RING.to_text(), tenant, point),
    )
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    seal()
    leaves = exported(folder, tenant)
    assert sorted(leaf.run_id for leaf in leaves) == sorted(runs)
    assert folder.numbers(tenant) == [1]


def test_the_seals_are_append_only_and_per_tenant(
    write: Any, seal: Any, shared_place: Any, tenant: uuid.UUID
) -> None:
    """The application reads its tenant's seals and adds none; nobody changes one."""
    write()
    seal()
    with psycopg.connect(shared_place.app) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [str(tenant)])
        assert conn.execute("SELECT count(*) FROM cuo_seal_heads").fetchone() == (1,)
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [str(uuid.uuid4())])
        assert conn.execute("SELECT count(*) FROM cuo_seal_leaves").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("INSERT INTO cuo_seal_heads SELECT * FROM cuo_seal_heads")
    with psycopg.connect(shared_place.owner) as conn:
        for statement in (
            "UPDATE cuo_seal_leaves SET chain_seq = 1",
            "DELETE FROM cuo_seal_heads",
            "TRUNCATE cuo_seal_leaves",
        ):
            with pytest.raises(psycopg.Error) as caught, conn.transaction():
                conn.execute(statement)
            assert caught.value.sqlstate == "CU008"
