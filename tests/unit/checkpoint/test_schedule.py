"""The schedules that ship name commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuo_checkpoint import archive_cli

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.mark.criterion("102-AC13")
@pytest.mark.parametrize("name", ["cuo-archive.cron", "cuo-archive.service"])
def test_a_schedule_drops_old_months_by_a_command_that_exists(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """cron and systemd call cuo-archive drop-old-partitions, and every command they name has help."""
    text = "\n".join(
        line for line in (SCRIPTS / name).read_text().splitlines() if not line.startswith("#")
    )
    commands = set(re.findall(r"cuo-archive(?: --\S+)* ([a-z][a-z-]+)", text))
    assert "drop-old-partitions" in commands
    for command in commands:
        assert archive_cli.main([command, "--help"]) == 0
        assert "Usage" in capsys.readouterr().out
