"""A LangGraph this version was not built for stops it at the start, with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cuo_supervisor import compat
from cuo_supervisor.errors import ConfigError

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("cyberos-cuo")
ASK = ("supervisor", "route", "--no-record", "--query", "send invoice")


def refused(folder: Path) -> str:
    """What the command says with `folder` before everything that is installed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUO_", "CYBEROS_"))}
    ended = subprocess.run(
        [COMMAND, *ASK],
        env=kept | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout) == (64, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "fault in cyberos-cuo" not in ended.stderr
    return ended.stderr


def test_the_range_is_the_packages_own() -> None:
    """What is checked at the start is what the package's metadata asks for."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = [Requirement(one) for one in tomllib.load(file)["project"]["dependencies"]]
    assert [one.specifier for one in wanted if one.name == "langgraph"] == [compat.LANGGRAPH]
    assert compat.langgraph_problem() is None


@pytest.mark.parametrize("version", ["1.1.9", "1.3.0", "2.0", "0.6.7", "1.2rc1", "1.3.0rc1", "dev"])
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Older, newer and unreadable versions; the message names both."""
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(ConfigError, match=r"langgraph>=1\.2,<1\.3") as told:
        compat.require_langgraph()
    assert version in str(told.value)


@pytest.mark.slow
def test_a_command_refuses_another_version(tmp_path: Path) -> None:
    """One sentence and 64, from an environment where pip has put another one."""
    found = tmp_path / "langgraph-1.3.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: langgraph\nVersion: 1.3.0\n")
    assert "langgraph 1.3.0 is installed" in refused(tmp_path)


@pytest.mark.slow
def test_a_command_without_it_says_so(tmp_path: Path) -> None:
    """Not a fault of ours with a report id, but what to install."""
    package = tmp_path / "langgraph"
    package.mkdir()
    (package / "__init__.py").write_text(
        'raise ModuleNotFoundError("No module named \'langgraph\'", name="langgraph")'
    )
    assert "pip install 'langgraph>=1.2,<1.3'" in refused(tmp_path)
