"""SIGHUP makes a service read its catalogue again."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import cuo_supervisor
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.cli.serve_cmd import _reloading

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
