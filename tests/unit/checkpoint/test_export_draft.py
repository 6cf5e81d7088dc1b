"""Drafts of bundles: whole or gone, and those that a dead export left are removed, no others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cuo_checkpoint import export_draft
from cuo_checkpoint.errors import ExportRefused
from cuo_checkpoint.export_draft import drafted


def dead(out: Path) -> Path:
    """A draft whose writer is gone: nobody holds the lock on it."""
    with drafted(out) as (folder, _):
        kept = folder.with_name(folder.name[:-8] + "00000000")
        shutil.copytree(folder, kept)
    shutil.rmtree(out)
    (kept / "audit.ndjson").write_bytes(b"{")
    return kept


def test_a_draft_takes_its_name_when_all_is_written(tmp_path: Path) -> None:
    """Until then there is no folder of that name, and afterwards nothing else."""
    out = tmp_path / "bundle"
    with drafted(out) as (folder, removed):
        assert (folder.parent, removed, out.exists()) == (tmp_path, (), False)
        (folder / "head.note").write_bytes(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert (out / "head.note").stat().st_mode & 0o777 == 0o600


def test_a_draft_that_fails_is_gone(tmp_path: Path) -> None:
    """Whatever ended it, and nothing of it is left."""

    def interrupted() -> None:
        with drafted(tmp_path / "bundle") as (folder, _):
            (folder / "head.note").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_draft_is_removed_and_named(tmp_path: Path) -> None:
    """By the next export to the same place, and by no other."""
    left = dead(tmp_path / "bundle")
    with drafted(tmp_path / "bundl") as (_, removed):
        assert removed == ()
    assert left.exists()
    with drafted(tmp_path / "bundle") as (folder, removed):
        assert removed == (left.name,)
        assert not left.exists()
        assert folder.exists()


def test_a_live_draft_stays(tmp_path: Path) -> None:
    """Two exports to one place: neither takes the other's draft; one gets the name."""
    out = tmp_path / "bundle"

    def late() -> None:
        with drafted(out) as (folder, removed):
            assert (removed, first.exists(), folder != first) == ((), True, True)
            (first / "head.note").write_bytes(b"first")
            (folder / "head.note").write_bytes(b"late")
            os.rename(first, out)

    with drafted(out) as (first, _):
        with pytest.raises(ExportRefused, match="cannot write"):
            late()
        os.rename(out, first)
    assert (out / "head.note").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("what", ["file", "folder", "link", "host", "older", "owner"])
def test_what_is_no_draft_of_this_host_stays(tmp_path: Path, what: str) -> None:
    """Anything that an export does not write, and drafts on whose locks nothing can be known here."""
    left = dead(tmp_path / "bundle")
    if what == "file":
        (left / "notes.txt").write_text("mine")
    elif what == "folder":
        (left / "log.ndjson").mkdir()
    elif what == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(left, 65534, 65534)
    elif what == "link":
        left = left.rename(tmp_path / "elsewhere")
        dead(tmp_path / "bundle").rename(tmp_path / "name")
        left = tmp_path / f".bundle.{export_draft._host()}00000000"
        left.symlink_to("elsewhere")
    else:
        name = ".bundle.0123456789abcdef" if what == "host" else ".bundle.01234567"
        left = left.rename(tmp_path / name)
    before = {path: path.is_symlink() for path in tmp_path.rglob("*")}
    with drafted(tmp_path / "bundle") as (folder, removed):
        assert removed == ()
        folder.chmod(0o700)
    assert before.items() <= {path: path.is_symlink() for path in tmp_path.rglob("*")}.items()


def test_a_draft_taken_for_a_dead_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another export may look between its making and its lock."""
    locked, seen = export_draft._locked, []

    def removed_first(folder: int) -> bool | None:
        if not seen:
            (made,) = tmp_path.iterdir()
            seen.append(made)
            made.rmdir()
        return locked(folder)

    monkeypatch.setattr(export_draft, "_locked", removed_first)
    with drafted(tmp_path / "bundle") as (folder, _):
        assert folder.exists()
        assert seen
        assert folder not in seen
    assert (tmp_path / "bundle").exists()
