"""`cyberos-cuo runs export`: a decision as files that anybody can check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cuo_supervisor.identity import LOCAL_TENANT_ID

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell


def test_a_decision_is_exported_and_checked(cuo: Any, tmp_path: Path) -> None:
    """The bundle of a real request holds with the standard library, and its page shows the decision."""
    run = cuo.route("validate MST 0100233488", "--persona", "cfo", "--json").json["request_id"]
    out = tmp_path / "evidence"
    said = cuo("runs", "export", run, "--out", str(out))
    assert said.code == 0
    assert "not sealed yet" in said.err
    check = [sys.executable, "-I", "-S", out / "verify.py", out, "--json"]
    told = json.loads(subprocess.run(check, capture_output=True, check=False).stdout)
    # Local mode seals nothing, which is all that is wrong with it.
    assert told["problems"] == ["no head was signed when this was exported: nothing here is sealed"]
    assert told["rows"]["log"] >= 10
    page = (out / "summary.html").read_text()
    assert "vietnam-mst-validate@1.0" in page
    assert "0100233488" not in page, "the page shows the scrubbed query"


def test_mistakes(cuo: Any, tmp_path: Path) -> None:
    """An existing folder and a name that none could have are usage errors, an unknown run is bad
    data, a place that cannot be written is 69; none leaves files."""
    unknown = "01M8PZMV75EB6AHSM2Y2NT99T7"
    assert cuo("runs", "export", unknown, "--out", str(tmp_path)).code == 64
    assert cuo("runs", "export", unknown, "--out", str(tmp_path / "new")).code == 65
    assert list(tmp_path.iterdir()) == []
    said = cuo("runs", "export", unknown, "--out", "")
    assert (said.code, "is empty" in said.err) == (64, True)
    assert cuo("runs", "export", unknown, "--out", "x" * 400).code == 64
    care = Shell(cuo.env, cuo.server, "cuo-archive")
    there = ("export", "--tenant", LOCAL_TENANT_ID, "--run", unknown, "--out", "/proc/cuo")
    assert cuo("runs", "export", unknown, "--out", "/proc/cuo").code == 69
    assert care("--local", *there).code == 69
