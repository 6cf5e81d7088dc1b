"""The commands around seals and bundles, as cron and operators call them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive_cli, keys
from cuo_checkpoint.leaves import origin_of
from cuo_checkpoint.notes import Checkpoint, SignedNote


@pytest.fixture
def run(store: Any) -> uuid.UUID:
    """A run of three rows."""
    run, writer = uuid.uuid4(), CheckpointWriter(store)
    for number in range(3):
        writer.write(run, "node_entered", {"n": number}, node_name="n")
    return run


@pytest.fixture
def place(shared_place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    """A folder with a key and a place for heads, all named by the environment."""
    (tmp_path / "heads").mkdir()
    assert archive_cli.main(["keys", "new", str(tmp_path / "seal.key"), "--name", "acme-1"]) == 0
    (tmp_path / "trusted.keys").write_text(capsys.readouterr().out)
    monkeypatch.setenv("CUO_DATABASE_URL", shared_place.auditor)
    monkeypatch.setenv("CUO_SEAL_KEY", str(tmp_path / "seal.key"))
    monkeypatch.setenv("CUO_EXPORT_DIR", str(tmp_path / "heads"))
    return tmp_path


def call(capsys: Any, *argv: str) -> tuple[int, str, str]:
    code = archive_cli.main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_seal_verify_export(run: uuid.UUID, place: Path, tenant_id: str, capsys: Any) -> None:
    """The whole way: seal, verify against the heads, export, check without us."""
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id)
    assert (code, "nothing_sealed" in out) == (65, True)
    code, out, _ = call(capsys, "seal", "--tenant", tenant_id)
    assert (code, out) == (0, f"{tenant_id}  1 heads sealed, 1 leaves, 1 exported\n")
    code, out, _ = call(capsys, "seal", "--tenant", tenant_id, "--json")
    assert (code, json.loads(out)[0]["leaves"]) == (0, 0)
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id)
    assert code == 0
    assert "1 signed heads over 1 leaves; 0 chain rows of 0 runs are newer than the seals" in out
    note = place / "heads" / tenant_id / "00000001.note"
    argv = ["--keys", str(place / "trusted.keys"), "--head", str(note)]
    assert call(capsys, "verify", "--tenant", tenant_id, *argv)[0] == 0
    bundle = place / "bundle"
    code, out, _ = call(
        capsys, "export", "--run", str(run), "--tenant", tenant_id, "--out", str(bundle)
    )
    assert (code, "1 runs" in out) == (0, True)
    check = [
        sys.executable,
        "-I",
        "-S",
        bundle / "verify.py",
        bundle,
        "--key",
        place / "trusted.keys",
    ]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Everything holds, against a head of 1 leaves" in done.stdout


def test_every_tenant(
    place: Path,
    app_dsn: str,
    auditor_dsn: str,
    tenant_id: str,
    other_tenant_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """--all seals and verifies each tenant; one that may not be signed does not stop the others."""
    monkeypatch.setenv("CUO_DATABASE_URL", auditor_dsn)
    first, second = sorted((tenant_id, other_tenant_id))
    for tenant in (first, second):
        with PostgresCheckpointer(app_dsn, tenant_id=tenant, max_connections=1) as store:
            CheckpointWriter(store).write(uuid.uuid4(), "node_entered", {}, node_name="n")
    code, out, _ = call(capsys, "seal", "--all")
    assert (code, len(out.splitlines())) == (0, 2)
    code, out, _ = call(capsys, "verify", "--all", "--json")
    assert code == 0
    assert [check["ok"] for check in json.loads(out)["heads"]] == [True, True]
    (place / "heads" / first / "00000001.note").write_bytes(b"x")
    for tenant in (first, second):
        with PostgresCheckpointer(app_dsn, tenant_id=tenant, max_connections=1) as store:
            CheckpointWriter(store).write(uuid.uuid4(), "node_entered", {}, node_name="n")
    code, out, err = call(capsys, "seal", "--all")
    assert code == 65
    assert (
        f"{first}: tenant {first}: head 1 in the database is not the one that was exported" in err
    )
    assert f"{second}  1 heads sealed, 2 leaves, 1 exported" in out
    code, out, _ = call(capsys, "verify", "--all")
    assert (code, "malformed: exported head 1" in out) == (65, True)


def test_an_attack_is_told_and_ends_with_65(
    run: uuid.UUID, place: Path, tenant_id: str, shared_place: Any, capsys: Any
) -> None:
    """Chains that agree with themselves are not enough, and without heads that is said."""
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        for table in ("cuo_langgraph_checkpoints", "cuo_memory_audit", "cuo_runs"):
            conn.execute(f"DELETE FROM {table} WHERE run_id = %s", [run])
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id)
    assert code == 65
    assert f"missing_run: run {run} is missing; it was sealed up to chain row 4" in out


def test_without_heads_the_gap_is_said(
    run: uuid.UUID, place: Path, tenant_id: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Silence about seals would read as their approval."""
    monkeypatch.delenv("CUO_EXPORT_DIR")
    code, out, err = call(capsys, "verify", "--tenant", tenant_id)
    assert (code, "Not compared with exported heads" in err) == (0, True)
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id, "--json")
    assert json.loads(out)["heads"] is None


@pytest.mark.parametrize(
    ("argv", "variable", "value", "code", "said"),
    [
        (["seal"], "", "", 64, "Say what to seal"),
        (["seal", "--all", "--declare-restore", "x"], "", "", 64, "Say what to seal"),
        (["seal", "--all"], "CUO_SEAL_KEY", "", 64, "CUO_SEAL_KEY is not set"),
        (["seal", "--all"], "CUO_SEAL_KEY", "/nonexistent", 64, "cannot read /nonexistent"),
        (["seal", "--all"], "CUO_EXPORT_DIR", "", 64, "CUO_EXPORT_DIR is not set"),
        (["seal", "--all"], "CUO_EXPORT_DIR", "/nonexistent", 69, "/nonexistent (CUO_EXPORT_DIR)"),
        (["export", "--tenant", "T", "--out", "x"], "", "", 64, "Say what to export"),
        (["export", "--tenant", "T", "--out", "x", "--month", "2026-13"], "", "", 64, "YYYY-MM"),
        (["export", "--tenant", "T", "--out", "/", "--month", "2026-11"], "", "", 64, "exists"),
        (
            ["export", "--tenant", "T", "--out", "x", "--run", str(uuid.UUID(int=1))],
            "",
            "",
            65,
            "no run",
        ),
        (["keys", "retire", "K", "00000000"], "", "", 64, "no signing key 00000000"),
        (["keys", "new", "K", "--name", "x"], "", "", 64, "cannot create"),
    ],
)
def test_mistakes(
    run: uuid.UUID,
    place: Path,
    tenant_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    argv: list[str],
    variable: str,
    value: str,
    code: int,
    said: str,
) -> None:
    """Each ends with its code and a sentence that says what to do."""
    monkeypatch.chdir(place)
    if variable:
        monkeypatch.setenv(variable, value)
    given = [{"T": tenant_id, "K": str(place / "seal.key")}.get(word, word) for word in argv]
    got, out, err = call(capsys, *given)
    assert (got, out) == (code, "")
    assert said in err


def test_custody(run: uuid.UUID, place: Path, tenant_id: str, capsys: Any) -> None:
    """Rotation by command: both keys sign, the old names the new, then only the new signs."""
    key, trusted = str(place / "seal.key"), place / "trusted.keys"
    old_id = trusted.read_text().split("+")[1]
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    code, out, _ = call(
        capsys, "keys", "rotate", key, "--name", "acme-2", "--out", str(place / "note")
    )
    assert code == 0
    new = place / "new.keys"
    new.write_text(out)
    assert out.strip() in (place / "note").read_text()
    assert SignedNote.parse((place / "note").read_bytes()).signatures[0].id.hex() == old_id
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    heads = sorted((place / "heads" / tenant_id).glob("*.note"))
    assert [len(SignedNote.parse(path.read_bytes()).signatures) for path in heads] == [1, 2]
    for known in (trusted, new):
        code, out, _ = call(capsys, "verify", "--tenant", tenant_id, "--keys", str(known))
        # Whoever knows only the new key relies on the second head, which covers the first.
        assert (code, "vouched_later" in out) == (0, known == new)
    assert call(capsys, "keys", "retire", key, old_id)[0] == 0
    code, out, _ = call(capsys, "keys", "public", key)
    assert len(out.splitlines()) == 2
    (place / "both.keys").write_text(out)
    argv = ["verify", "--tenant", tenant_id, "--keys", str(place / "both.keys")]
    assert call(capsys, *argv)[0] == 0
    assert call(capsys, "keys", "public", key, "--tenant", tenant_id)[1].startswith("cuo/")
    assert call(capsys, "keys", "distrust", key, old_id)[0] == 0
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id)
    assert (code, "1 exported heads up to 1 are signed by keys you do not trust" in out) == (
        0,
        True,
    )
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0


def test_loss_of_the_key(run: uuid.UUID, place: Path, tenant_id: str, capsys: Any) -> None:
    """As docs/evidence.md says it: a new file, the lost key's public line, seal. Without the line the
    sealer refuses, since it cannot tell the last head from a forged one."""
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    (place / "seal.key").unlink()
    code, _, err = call(capsys, "seal", "--tenant", tenant_id)
    assert (code, "cannot read" in err) == (64, True)
    key = place / "seal.key"
    code, new, _ = call(capsys, "keys", "new", str(key), "--name", "acme-2")
    assert code == 0
    code, _, err = call(capsys, "seal", "--tenant", tenant_id)
    assert (code, "no trusted key signed" in err) == (65, True)
    with key.open("a") as file:
        file.write((place / "trusted.keys").read_text())
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    (place / "both.keys").write_text((place / "trusted.keys").read_text() + new)
    argv = ["verify", "--tenant", tenant_id, "--keys", str(place / "both.keys")]
    assert call(capsys, *argv)[0] == 0
    # Whoever knows the new key alone relies on its head, which covers the lost key's.
    (place / "new.keys").write_text(new)
    code, out, _ = call(capsys, "verify", "--tenant", tenant_id, "--keys", str(place / "new.keys"))
    assert (code, "vouched_later" in out) == (0, True)


def test_compromise_of_the_key(
    run: uuid.UUID, store: Any, place: Path, tenant_id: str, capsys: Any
) -> None:
    """As docs/evidence.md says it, in its order; what the thief signs afterwards is nobody's."""
    key, stolen = place / "seal.key", place / "stolen.key"
    old_id = (place / "trusted.keys").read_text().split("+")[1]
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    stolen.write_bytes(key.read_bytes())
    stolen.chmod(0o600)
    assert call(capsys, "keys", "rotate", str(key), "--name", "acme-2")[0] == 0
    assert call(capsys, "seal", "--tenant", tenant_id)[0] == 0
    assert call(capsys, "keys", "distrust", str(key), old_id)[0] == 0
    code, trusted, _ = call(capsys, "keys", "public", str(key))
    assert (code, len(trusted.splitlines()), old_id in trusted) == (0, 1, False)
    (place / "new.keys").write_text(trusted)
    argv = ["verify", "--tenant", tenant_id, "--keys", str(place / "new.keys")]
    code, out, _ = call(capsys, *argv)
    assert (code, "vouched_later" in out) == (0, True)
    # The thief writes to the folder, with the stolen key and a story of a run that never was.
    head = place / "heads" / tenant_id
    leaves = (head / "00000001.leaves").read_bytes()
    forged = Checkpoint(origin_of(uuid.UUID(tenant_id)), 2, bytes(32))
    thief = keys.load(str(stolen))
    (head / "00000003.note").write_bytes(forged.signed(thief.signing).to_bytes())
    (head / "00000003.leaves").write_bytes(leaves)
    code, out, _ = call(capsys, *argv)
    assert (code, "wrong_key: exported head 3" in out) == (65, True)
