"""One table of exit codes: the help, the guide, the errors and the decisions agree with it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cuo_checkpoint.cli_output import OutputLost, deliver, mute
from cuo_supervisor import errors
from cuo_supervisor.cli.exits import MEANINGS
from cuo_supervisor.cli.main import cli
from cuo_supervisor.cli.runs_cmd import _width

GUIDE = Path(__file__).parents[3] / "docs" / "operations.md"
PUBLISHED = {0, 1, 2, 3, 4, 5, 64, 65, 69, 70, 73, 75, 77, 130}
ADDED = {74}
"""By ADR 0090."""


@pytest.mark.clause("101-22")
def test_the_table_is_the_published_one_and_what_an_adr_added() -> None:
    """No code without a word, none that nobody agreed on."""
    assert set(MEANINGS) == PUBLISHED | ADDED


@pytest.mark.clause("101-22")
def test_help_and_guide_say_what_the_table_says() -> None:
    """Code by code, in its words and order."""
    said = CliRunner().invoke(cli, ["--help"]).output
    listed = " ".join(said[said.index("Exit codes:") :].split())
    wanted = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    assert listed == f"Exit codes: {wanted}."
    section = GUIDE.read_text("utf-8").partition("## Exit codes of `cyberos-cuo`")[2]
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == MEANINGS


def test_every_error_ends_with_a_code_of_the_table() -> None:
    """Also those a later change adds to the tree."""
    kinds, todo = set(), [errors.SupervisorError]
    while todo:
        kinds.add(kind := todo.pop())
        todo += kind.__subclasses__()
    assert {kind.__name__ for kind in kinds} >= set(errors.__all__)
    assert {kind.exit_code for kind in kinds} <= set(MEANINGS)


def test_a_result_for_a_closed_stream_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the stream's number, by now another file's, is left alone."""
    before = os.fstat(1)
    monkeypatch.setattr(sys, "stdout", None)
    mute(1)
    assert os.path.samestat(os.fstat(1), before)
    assert _width() is None
    with pytest.raises(OutputLost, match="standard output is closed"):
        deliver("a result")
