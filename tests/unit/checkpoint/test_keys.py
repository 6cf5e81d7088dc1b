"""Seal keys: strict files, rotation, loss, compromise, and no secret in any message."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from cuo_checkpoint import keys
from cuo_checkpoint.errors import KeyUnusable, KeyUnwritten, NoteInvalid
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.notes import Checkpoint, SecretKey, SignedNote, verified

HEAD = Checkpoint("cuo/t", 1, bytes(32))


def test_a_file_is_private_and_read_back(tmp_path: Path) -> None:
    """A new file has mode 0600 whatever the umask, and gives the ring it was made from."""
    path = tmp_path / "seal.key"
    ring = KeyRing((keys.generate("a"), keys.generate("b")), (keys.generate("c").public,))
    before = os.umask(0)
    try:
        keys.write_new(path, ring)
        keys.write_over(path, ring)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.load(str(path)) == ring
    assert [p.name for p in tmp_path.iterdir()] == ["seal.key"]
    with pytest.raises(KeyUnusable, match="cannot create"):
        keys.write_new(path, ring)


def test_a_disk_without_room_is_told_and_leaves_no_half_key(tmp_path: Path) -> None:
    """Neither in the place of a new key nor in that of an old."""
    old, new = tmp_path / "old.key", tmp_path / "new.key"
    ring = KeyRing((keys.generate("a"),))
    keys.write_new(old, ring)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        for path, write in ((new, keys.write_new), (old, keys.write_over)):
            with pytest.raises(KeyUnwritten, match=rf"{path.name}: File too large"):
                write(path, ring.with_new(keys.generate("b")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert keys.load(str(old)) == ring
    assert list(tmp_path.iterdir()) == [old]


def test_a_pipe_is_no_key_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """Nobody may ever write to it."""
    os.mkfifo(tmp_path / "seal.key", 0o600)
    with pytest.raises(KeyUnusable, match="is not a file"):
        keys.load(str(tmp_path / "seal.key"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_file_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    """Also when it is reached through a symbolic link."""
    path, link = tmp_path / "seal.key", tmp_path / "link"
    keys.write_new(path, KeyRing((keys.generate("a"),)))
    link.symlink_to(path)
    path.chmod(mode)
    for name in (path, link):
        with pytest.raises(KeyUnusable, match="chmod 600"):
            keys.load(str(name))


def test_what_is_no_key_is_named_without_being_shown(tmp_path: Path) -> None:
    """A damaged line is named by number; no part of a secret appears."""
    path = tmp_path / "seal.key"
    good = keys.generate("a").secret_text()
    for bad in (
        good[:-4],
        good[:-6] + "AAAAA=",
        good.replace("+a+", "+b+"),
        "PRIVATE+KEY+a",
        "nonsense",
        keys.generate("a").secret_text().replace("PRIVATE+KEY+", ""),
    ):
        path.write_text(f"# remark\n\n{bad}\n")
        path.chmod(0o600)
        with pytest.raises(KeyUnusable, match="line 3") as caught:
            keys.load(str(path))
        assert good[-20:] not in str(caught.value)
    assert good.split("+")[-1] not in repr(SecretKey.parse(good))


@pytest.mark.parametrize("source", ["", "seal.key", "/nonexistent/seal.key", "/"])
def test_a_missing_file_is_said(source: str) -> None:
    """A relative path is refused: cron's folder is not yours."""
    with pytest.raises(KeyUnusable):
        keys.load(source)


def test_a_key_may_stand_in_the_variable_itself() -> None:
    """For secret stores that set variables; a public key alone signs nothing."""
    key = keys.generate("a")
    assert keys.load(key.secret_text()) == KeyRing((key,))
    with pytest.raises(KeyUnusable, match="absolute path"):
        keys.load(str(key.public))
    with pytest.raises(KeyUnusable, match="name"):
        keys.generate("a b")


def test_a_verifier_holds_no_secret(tmp_path: Path) -> None:
    """A file of public keys may be open to all; one with a secret in it is refused."""
    path = tmp_path / "trusted.keys"
    key = keys.generate("a")
    path.write_text(f"{key.public}\n")
    assert keys.load_public(path) == (key.public,)
    path.write_text(key.secret_text())
    with pytest.raises(KeyUnusable, match="secret"):
        keys.load_public(path)
    path.write_text("# none\n")
    with pytest.raises(KeyUnusable, match="no key"):
        keys.load_public(path)


def test_rotation() -> None:
    """While both sign, either public key is enough; the old names the new; then it only vouches."""
    old, new = keys.generate("2026"), keys.generate("2027")
    overlap = KeyRing((old,)).with_new(new)
    note = HEAD.signed(overlap.signing).to_bytes()
    assert verified(note, "cuo/t", [old.public]) == verified(note, "cuo/t", [new.public]) == HEAD
    said = SignedNote.parse(keys.endorsement(old, new.public))
    assert said.signers([old.public], "2026") == [old.public]
    assert str(new.public) in said.text
    after = overlap.retired(old.public.id)
    assert after.signing == (new,)
    assert verified(HEAD.signed([old]).to_bytes(), "cuo/t", after.believed) == HEAD
    with pytest.raises(KeyUnusable, match="already"):
        after.with_new(old)


def test_loss() -> None:
    """A ring made without the lost secret believes what it signed, and signs with another."""
    lost, found = keys.generate("lost"), keys.generate("found")
    ring = keys.parse(f"{found.secret_text()}\n{lost.public}\n", where="test")
    assert ring.signing == (found,)
    assert verified(HEAD.signed([lost]).to_bytes(), "cuo/t", ring.believed) == HEAD


def test_compromise() -> None:
    """A stolen key is believed no more; what its successor has signed too still is."""
    stolen, fresh = keys.generate("stolen"), keys.generate("fresh")
    ring = KeyRing((stolen,)).with_new(fresh).distrusted(stolen.public.id)
    assert verified(HEAD.signed([fresh, stolen]).to_bytes(), "cuo/t", ring.believed) == HEAD
    with pytest.raises(NoteInvalid) as caught:
        verified(HEAD.signed([stolen]).to_bytes(), "cuo/t", ring.believed)
    assert caught.value.kind == "wrong_key"
    for change in (ring.distrusted, ring.retired):
        with pytest.raises(KeyUnusable):
            change(fresh.public.id)
        with pytest.raises(KeyUnusable):
            change("00000000")
    trusted = KeyRing((fresh,), (stolen.public,)).distrusted(stolen.public.id)
    assert trusted.believed == (fresh.public,)
