"""Runs as text."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cuo_checkpoint.run_records import EventRecord, RunSummary
from cuo_supervisor.cli.asked import asked_lines
from cuo_supervisor.cli.common import deliver, emit_json
from cuo_supervisor.cli.main import cli
from cuo_supervisor.cli.run_text import cells, run_table
from cuo_supervisor.cli.run_tree import rendered, run_tree
from cuo_supervisor.http.run_page import tone_of

AT = dt.datetime(2026, 11, 30, 8, 15, tzinfo=dt.UTC)
SAID = {
    "persona_key": "chief-financial-officer",
    "path_taken": "auto",
    "skill_chosen": "vietnam-mst-validate@1.0",
    "query": "gửi hóa đơn cho công ty Đông Á",
}


def summary(**changes: Any) -> RunSummary:
    """A run that has decided, unless `changes` make it another."""
    given_: dict[str, Any] = {
        "run_id": uuid.UUID(int=7),
        "thread_id": "t",
        "state": "closed",
        "outcome": "run_completed",
        "trace_id": "0" * 32,
        "first_at": AT,
        "newest_at": AT,
        "log_rows": 1,
        "chain_rows": 1,
        "hidden": False,
        "decision": SAID,
        **changes,
    }
    return RunSummary(**given_)


def event(seq: int, kind: str, **changes: Any) -> EventRecord:
    """A log row."""
    fields = dict.fromkeys(EventRecord.__dataclass_fields__)
    made = {
        **fields,
        "checkpoint_ns": "",
        "created_at": AT + dt.timedelta(milliseconds=seq),
        "seq": seq,
        "kind": kind,
        **changes,
    }
    return EventRecord(**made)  # type: ignore[arg-type]


class Sound:
    """A verification that found nothing."""

    ok, rows, writes, chain_rows, problems, dropped = True, 1, 0, 1, (), ()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(40, 109),
    st.text(st.sampled_from("aữ đ漢\u0301-"), max_size=90),
    st.text(st.sampled_from("auto_ \u202e漢"), max_size=40),
)
def test_no_line_is_wider_than_a_narrow_terminal(width: int, query: str, path: str) -> None:
    """Marks and wide letters counted; a run then takes two lines."""
    run = summary(decision={**SAID, "query": query, "path_taken": path})
    shown = click.unstyle(run_table([run], width=width))
    assert all(cells(line) <= width for line in shown.splitlines())
    assert run.ulid in shown


def test_columns_stand_beneath_their_names() -> None:
    """Vietnamese text, short persona names and what a waiting run waits for."""
    pending = {
        "persona_key": "coo",
        "path_taken": "auto",
        "skill_chosen": "transfer@1.0",
        "query": "pay ACME",
    }
    waiting = summary(state="waiting", outcome=None, decision=None, pending=pending)
    head, first, second = run_table([waiting, summary()]).splitlines()
    head, first = click.unstyle(head), click.unstyle(first)
    assert first.endswith("  pay ACME")
    assert first.index("transfer@1.0") == head.index("SKILL")
    assert second.index("cfo") == first.index("coo") == head.index("PERSONA")
    assert second.endswith("gửi hóa đơn cho công ty Đông Á")


def test_a_refusal_and_a_block_are_told_beside_the_path_that_was_taken() -> None:
    """PATH keeps the path; a request that was never decided has the word of its refusal."""
    refused = summary(decision=None, pending={"persona_key": "zz", "rejection": "persona_unknown"})
    blocked = summary(decision={**SAID, "reason": "persona_defer_matrix"})
    _, first, second = run_table([refused, blocked]).splitlines()
    assert re.split(r"  +", first)[2:5] == ["completed", "zz", "persona_unknown"]
    assert "  auto: persona_defer_matrix  " in second
    tree = rendered(run_tree(refused, [], [], Sound(), states=False))
    assert "refused, nothing decided: persona_unknown; it asked for persona zz" in tree
    assert tone_of(refused) == tone_of(blocked) == ""
    # Columns that leave no room for the request would break anywhere: then, too, two lines.
    lines = click.unstyle(run_table([blocked], width=115)).splitlines()
    assert len(lines) == 2
    assert all(cells(line) <= 115 for line in lines)
    assert "auto: persona_defer_matrix" in lines[0]


@pytest.mark.parametrize(
    ("operation", "listed", "why"),
    [
        ('operation = "wire_transfer"', "wire_transfer needs approval", ""),
        (
            'operation = "tax_code_validate"',
            "tax_code_validate never runs",
            "runs a shipped command",
        ),
        ('operation = "no_such"', "no_such never runs", "no_such is no registered operation"),
        ("", "- never runs", "no operation is named"),
    ],
)
def test_a_skill_that_never_runs_is_listed_so_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, listed: str, why: str
) -> None:
    """A transfer that calls itself a check is not told to name no operation, nor shown as free."""
    shipped = resources.files("cuo_supervisor").joinpath("catalog/vietnam-bank-transfer.toml")
    text = shipped.read_text("utf-8").replace('operation = "wire_transfer"', operation)
    (tmp_path / "x.toml").write_text(text, "utf-8")
    monkeypatch.setenv("CUO_CATALOG", str(tmp_path))
    monkeypatch.setenv("CUO_DATA_DIR", str(tmp_path / "data"))

    def told(*words: str) -> str:
        result = CliRunner().invoke(cli, ["supervisor", "skills", *words], standalone_mode=False)
        assert result.exception is None
        return " ".join(result.output.split())

    assert f"vietnam-bank-transfer@1.0 {listed} Order" in told()
    explained = told("--query", "transfer 5M VND to ACME account 0123456789", "--persona", "coo")
    assert ("never runs on its own" in explained) == bool(why)
    assert why in explained


def test_a_run_is_a_tree() -> None:
    """Rows hang beneath their node, a subgraph's beneath the node it ran in, hostile text is inert."""
    inner = "plan:0b1e"
    rows = [
        event(1, "run_started"),
        event(2, "edge_traversed", edge_from="__start__", edge_to="plan"),
        event(3, "node_entered", node_name="plan"),
        event(4, "node_entered", node_name="[red]deep\x1b[31m", checkpoint_ns=inner),
        event(5, "node_completed", node_name="[red]deep\x1b[31m", checkpoint_ns=inner),
        event(9, "node_completed", node_name="plan"),
        event(10, "edge_traversed", edge_from="plan", edge_to="__end__"),
        event(11, "run_completed"),
    ]
    drawn = rendered(run_tree(summary(), rows, [], Sound(), states=False))
    lines = drawn.splitlines()
    depth = {line.strip("│├└─ "): len(line) - len(line.lstrip("│├└─ ")) for line in lines}
    assert depth["plan  6.0 ms"] == depth["1 ▶ run_started"]
    assert depth["2 edge_traversed __start__ → plan"] > depth["plan  6.0 ms"]
    assert depth["[red]deep\\x1b[31m  1.0 ms"] > depth["plan  6.0 ms"]
    assert depth["11 ■ run_completed"] == depth["plan  6.0 ms"]
    assert "\x1b" not in drawn


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words, groups among them."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ALL = dict(commands(cli))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_teaches_with_examples(words: tuple[str, ...]) -> None:
    """Examples are commands of this program, the options they name exist, nothing is cut off."""
    told = ALL[words].get_help(click.Context(ALL[words], info_name="x"))
    head, _, rest = told.partition("Examples:")
    assert "..." not in re.sub(r"\w+\]?\.\.\.[|\]\n]", "", head.replace("[ARGS]...", ""))
    examples = re.findall(r"cyberos-cuo ([^\n|#>]*)", rest)
    assert any(" ".join(words) in example for example in examples)
    for example in examples:
        plain = re.sub(r'"[^"]*"', "", example).split()
        target = max((w for w in ALL if list(w) == plain[: len(w)]), key=len)
        known = {
            name for param in ALL[target].params for name in (*param.opts, *param.secondary_opts)
        }
        assert {word for word in plain if word.startswith("--")} <= known, example


def test_letters_an_output_lacks_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails for want of an arrow, and JSON stays JSON."""
    sink = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", sink)
    assert deliver("gửi → ACME")
    emit_json({"query": "gửi"})
    text = sink.buffer.getvalue().decode("latin-1")  # type: ignore[attr-defined]
    assert text.startswith("g\\u1eedi \\u2192 ACME\n")
    assert json.loads(text.partition("\n")[2]) == {"query": "gửi"}


def test_ending_amid_the_loading_of_the_model_client_is_no_crash() -> None:
    """Exit functions run and the code counts, but no thread is stopped inside an extension."""
    program = (
        "import atexit, sys, threading; from cuo_supervisor import gateway_provider as g;"
        "from cuo_supervisor.cli.main import main\n"
        "class Torn:\n    def __del__(self): print('torn down')\n"
        "kept = Torn(); atexit.register(print, 'bye')\n"
        "g._thread = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "if {loading}: g._thread.start()\n"
        "sys.argv = ['cyberos-cuo', 'nonsense']; main()"
    )
    for loading, wanted in ((True, "bye\n"), (False, "bye\ntorn down\n")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(loading=loading)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (64, wanted), done.stderr


def test_a_request_cannot_pass_for_what_it_asks_for() -> None:
    """Whoever is to answer reads the act first, and the requester's words in one line, cut short."""
    asked = {"skill": "vietnam-bank-transfer@1.0", "operation": "wire_transfer", "arguments": {}}
    for end in ("\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "\x1b[2K\n", "\n" * 99):
        forged = f"pay ACME{end}operation  tax_code_validate{end}skill      x@1.0" + "x" * 9000
        shown = asked_lines({**asked, "query": forged})
        assert [line.split()[0] for line in shown] == ["operation", "skill", "arguments", "query"]
        assert len("\n".join(shown).splitlines()) == 4
        assert shown[0].split()[1] == "wire_transfer"
        assert len(shown[3]) < 2500
