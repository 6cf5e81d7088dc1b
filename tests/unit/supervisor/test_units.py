"""The systemd units in `scripts/`, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
ANALYZE = shutil.which("systemd-analyze")

pytestmark = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies whose programs exist: the real ones are installed elsewhere."""
    for unit in [*SCRIPTS.glob("*.service"), *SCRIPTS.glob("*.timer")]:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text("utf-8"))
        (tmp_path / unit.name).write_text(text, "utf-8")
    return tmp_path


def test_systemd_finds_no_fault(units: Path) -> None:
    """No unknown directive, no bad value, no missing partner."""
    names = sorted(units.iterdir())
    assert len(names) == 3
    done = subprocess.run(
        [str(ANALYZE), "verify", *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "most"), [("cyberos-cuo", 3.5), ("cuo-archive", 3.0)])
def test_a_unit_exposes_little(units: Path, unit: str, most: float) -> None:
    """By systemd's own measure, of 10."""
    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=true", "--no-pager", units / f"{unit}.service"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= most
