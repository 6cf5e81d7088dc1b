"""SIGHUP makes a service read its catalogue again."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cuo_supervisor
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.cli.serve_cmd import _reloading
from cuo_supervisor.core.catalog import Catalog

SHIPPED = Path(cuo_supervisor.__file__).with_name("catalog")


def _until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends, "nothing came of the signal"
        time.sleep(0.01)


def test_a_good_catalogue_replaces_the_old_and_a_wrong_one_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The new hash is told; a fault is told with its file and leaves what was there; the handler
    of before is back afterwards."""
    folder = tmp_path / "catalog"
    shutil.copytree(SHIPPED, folder)
    service = SimpleNamespace(catalog=load_catalog(folder))
    first, before = service.catalog, signal.getsignal(signal.SIGHUP)
    said = ""

    def heard(text: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return text in said

    with _reloading(SimpleNamespace(catalog=folder), service):
        (folder / "vietnam-bank-transfer.toml").unlink()
        os.kill(os.getpid(), signal.SIGHUP)
        _until(lambda: heard("catalogue reloaded"))
        second = service.catalog
        assert len(second.skills) == len(first.skills) - 1
        assert second.snapshot_hash[:16] in said
        (folder / "vietnam-mst-validate.toml").write_text("name = 3\n")
        os.kill(os.getpid(), signal.SIGHUP)
        _until(lambda: heard("not reloaded"))
        assert "vietnam-mst-validate.toml" in said
        assert service.catalog is second
    assert signal.getsignal(signal.SIGHUP) == before


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[Callable[[], Catalog]]], Any]:
    """Two signals in a row, whose reads are what is given; the catalogue in service afterwards."""

    def signalled(reads: Iterable[Callable[[], Catalog]]) -> Any:
        turn = iter(reads)
        monkeypatch.setattr("cuo_supervisor.catalog_loader.load_catalog", lambda _: next(turn)())
        service = SimpleNamespace(catalog=None)
        with _reloading(SimpleNamespace(catalog=SHIPPED), service):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
        return service.catalog

    return signalled


def test_signals_in_a_row_end_with_the_newest_catalogue_and_nothing_is_left_at_work(
    twice: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first read takes long and sees the older files; the second signal's read is the last word.
    Leaving waits for both, so that no thread writes to a stream that is gone."""
    older, newer = load_catalog(SHIPPED), load_catalog(SHIPPED)

    def slowly() -> Catalog:
        time.sleep(0.3)
        return older

    assert twice([slowly, lambda: newer]) is newer
    assert capfd.readouterr().err.count("catalogue reloaded") == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "cuo-reload"]


def test_a_fault_of_ours_while_reading_leaves_later_signals_heard(
    twice: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told by its class alone: its text may quote anything."""
    whole = load_catalog(SHIPPED)

    def fail() -> Catalog:
        raise RuntimeError("text of a stranger")

    assert twice([fail, lambda: whole]) is whole
    said = capfd.readouterr().err
    assert "not reloaded: RuntimeError" in said
    assert "stranger" not in said
