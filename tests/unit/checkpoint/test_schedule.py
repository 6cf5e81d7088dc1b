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


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("cuo-archive.cron", "seal"),
        ("cuo-archive.cron", "expire-approvals"),
        ("cuo-archive.cron", "metrics"),
        ("cuo-seal.service", "seal"),
        ("cuo-expire-list.service", "expire-approvals"),
    ],
)
def test_every_chore_is_scheduled(
    name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the pages say is called by itself is, with options that the command has."""
    (line,) = [
        line
        for line in (SCRIPTS / name).read_text().splitlines()
        if re.search(rf"cuo-archive(?: --\S+)* {command}\b", line) and not line.startswith("#")
    ]
    assert archive_cli.main([command, "--help"]) == 0
    told = capsys.readouterr().out
    own = line.split(f" {command}", 1)[1].split(";")[0].split("|")[0]
    options = re.findall(r"--[a-z-]+", own)
    assert all(option in told for option in options)


def test_expired_approvals_pass_from_one_login_to_the_other() -> None:
    """What the archiver's unit writes is what the application's reads; a failed list ends nothing."""
    listing = (SCRIPTS / "cuo-expire-list.service").read_text()
    ending = (SCRIPTS / "cuo-expire.service").read_text()
    (path,) = re.findall(r"(?m)^StandardOutput=truncate:(.*)$", listing)
    assert f"\nStandardInput=file:{path}\n" in ending
    assert "\nRequires=cuo-expire-list.service\nAfter=cuo-expire-list.service\n" in ending
    assert "ExecStart=/opt/cuo/bin/cyberos-cuo supervisor expire -\n" in ending
    files = [re.findall(r"(?m)^EnvironmentFile=(.*)$", unit) for unit in (listing, ending)]
    assert files == [["/etc/cuo/archive.env"], ["/etc/cyberos-cuo.env"]]
    assert "Unit=" not in (SCRIPTS / "cuo-expire.timer").read_text()
