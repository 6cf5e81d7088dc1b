"""`cyberos-cuo supervisor route`: the published requests, flags, shapes and exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell
from loopback_gateway import LoopbackGateway
from supervisor_kit import AUTO, CASCADE, DESTRUCTIVE, MATRIX

from cuo_supervisor.identity import LOCAL_TENANT_ID

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway() -> Iterator[LoopbackGateway]:
    with LoopbackGateway() as running:
        yield running


@pytest.fixture
def asking(cuo: Shell, model_server: socket.socket) -> Shell:
    """As `cuo`, for requests that reach the gateway."""
    return dataclasses.replace(cuo, server=model_server)


@pytest.mark.clause("101-2", "101-13", "101-22", "101-25")
@pytest.mark.criterion("101-AC2", "101-AC29")
@pytest.mark.parametrize(("mst", "valid"), [("0301479073", False), ("0100233488", True)])
def test_a_tax_code_is_checked_by_the_real_skill(cuo: Any, mst: str, valid: bool) -> None:
    """Exit 0, the published shape, and a run in the log that verifies."""
    said = cuo.route(f"validate MST {mst}", "--persona", "cfo", "--json")
    assert said.code == 0
    document = said.json
    for key in ("routed", "skill_chosen", "confidence", "path_taken", "llm_used", "alternatives"):
        assert key in document
    assert document["routed"] is True
    assert document["path_taken"] == "auto"
    assert "next_step" in document
    assert document["next_step"] is None
    assert set(document["transparency"]) == {
        "skill_chosen", "confidence", "alternatives", "path_taken", "llm_used",
    }  # fmt: skip
    ran = document["invocation_result"]
    assert (ran["skill_name"], ran["exit_code"]) == ("vietnam-mst-validate@1.0", 0)
    answer = json.loads(ran["stdout"])
    assert answer["mst"] == mst
    assert answer["valid"] is valid
    listed = cuo("runs", "show", document["request_id"], "--json").json
    assert listed["verification"]["ok"]
    kinds = [event["kind"] for event in listed["events"]]
    assert kinds[0] == "run_started"
    assert kinds.count("node_entered") >= 5
    assert kinds.count("node_completed") >= 5
    assert kinds[-1] == "run_completed"
    decisions = [row for row in listed["audit"] if row["kind"] == "cuo.routing_decision"]
    assert len(decisions) == 1
    assert mst not in json.dumps(decisions)


@pytest.mark.clause("101-22")
@pytest.mark.criterion("101-AC3", "101-AC5", "101-AC11", "101-AC14", "101-AC27")
@pytest.mark.parametrize(
    ("query", "persona", "code", "facts"),
    [
        ("send invoice", "genie", 1, {"path_taken": "ask", "routed": False}),
        ("asdfghjkl", "genie", 2, {"path_taken": "defer", "alternatives": []}),
        (
            MATRIX,
            "cfo",
            2,
            {"reason": "persona_defer_matrix", "operation": "invoice_emit", "routed": False},
        ),
        (AUTO, "foo", 65, {"error": "persona_unknown", "exit_code": 65}),
        (CASCADE, "genie", 1, {"path_taken": "ask", "cascade_outcome": "gateway_unreachable"}),
    ],
)
def test_the_published_requests(
    asking: Shell, query: str, persona: str, code: int, facts: dict[str, Any]
) -> None:
    """Each ends with its exit code and says why."""
    said = asking.route(query, "--persona", persona, "--json")
    assert said.code == code
    assert said.json.items() >= facts.items()


@pytest.mark.clause("101-6", "101-15")
@pytest.mark.criterion("101-AC4", "101-AC31")
def test_an_unclear_request_goes_through_the_gateway(
    asking: Shell, gateway: LoopbackGateway
) -> None:
    """cascade_then_auto, a draft, the caller's trace on the wire; one remark and no warnings."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    said = asking.route(
        CASCADE,
        "--json",
        "--traceparent",
        f"00-{trace}-b7ad6b7169203331-01",
        env={"CYBEROS_AI_GATEWAY_URL": gateway.url},
    )
    assert said.code == 0
    assert said.json["path_taken"] == "cascade_then_auto"
    assert said.json["llm_used"] is True
    (asked,) = gateway.requests
    assert trace in (asked.header("traceparent") or "")
    assert asked.header("X-Cuo-Decision-Id") == said.json["request_id"]
    assert said.err == "loading the model client ...\n"


@pytest.mark.clause("101-6", "101-22")
@pytest.mark.criterion("101-AC8", "101-AC27")
def test_a_slow_model_ends_in_alternatives_and_75(asking: Shell, gateway: LoopbackGateway) -> None:
    """Three seconds, then a person is asked."""
    gateway.mode = "delay"
    said = asking.route(CASCADE, env={"CYBEROS_AI_GATEWAY_URL": gateway.url})
    assert said.code == 75
    assert "candidates" in said.out
    assert "timeout" in said.out


def test_the_screen_ends_with_the_disclosure(cuo: Any) -> None:
    """The Art. 13 footer names persona, skill and confidence; NO_COLOR and a pipe get plain text."""
    said = cuo.route(AUTO, "--persona", "cfo", env={"NO_COLOR": "1", "COLUMNS": "20"})
    assert said.code == 0
    last = said.out.rstrip().splitlines()[-1]
    assert last.startswith("🤖 routed via Genie → cfo persona → vietnam-mst-validate@1.0 · 0.9")
    assert "\x1b" not in said.out


def test_a_terminal_gets_colours_unless_told_otherwise(cuo: Any) -> None:
    """A real terminal, with and without NO_COLOR."""
    shown = {}
    for name in ("", "1"):
        near, far = pty.openpty()
        env = {"TERM": "xterm"} | ({"NO_COLOR": name} if name else {})
        with cuo.start(
            "supervisor", "route", "--query", "asdfghjkl", "--no-record", stdout=far, env=env
        ) as process:
            os.close(far)
            text = b""
            while chunk := _read(near):
                text += chunk
            os.close(near)
            process.wait(60)
        shown[name] = b"\x1b[" in text
    assert shown == {"": True, "1": False}


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # a terminal's far end closed
        return b""


@pytest.mark.clause("101-20")
@pytest.mark.criterion("101-AC28")
def test_a_dry_run_needs_no_database_and_leaves_no_trace(cuo: Any, tmp_path: Path) -> None:
    """--no-record alone implies --no-invoke; a data folder is not even made."""
    said = cuo.route(AUTO, "--no-record", "--json", env={"CUO_DATA_DIR": str(tmp_path / "none")})
    assert said.code == 0
    assert said.json["dry_run"] is True
    assert said.json["invocation_result"] is None
    assert not (tmp_path / "none").exists()


def test_deciding_only_is_recorded_and_waits_for_nobody(cuo: Any) -> None:
    """--no-invoke on a destructive request: exit 3, a closed run, no promise of an answer."""
    said = cuo.route(DESTRUCTIVE, "--persona", "cmo", "--no-invoke")
    assert said.code == 3
    assert "waits" not in said.out
    run = said.out.split("runs show ")[1].split()[0]
    assert cuo("runs", "show", run, "--json").json["run"]["state"] == "closed"


def test_a_query_from_standard_input_is_the_same_request(cuo: Any) -> None:
    """Its line end is not part of it."""
    piped = cuo.route("-", "--no-record", "--json", given="gửi hóa đơn\r\n".encode())
    typed = cuo.route("gửi hóa đơn", "--no-record", "--json")
    volatile = {"request_id", "ts_ns_start", "ts_ns_end"}
    assert piped.code == typed.code == 1
    assert {k: v for k, v in piped.json.items() if k not in volatile} == {
        k: v for k, v in typed.json.items() if k not in volatile
    }


@pytest.mark.clause("101-7")
@pytest.mark.criterion("101-AC12")
def test_an_approval_lets_the_skill_run_once(cuo: Any, data_dir: Path) -> None:
    """3, then 0; a second answer is refused; a denied run ends with 4. The order the skill left
    names the tenant, the run and the approval that stand in the log."""
    waiting = cuo.route(DESTRUCTIVE, "--persona", "cmo", "--json")
    assert waiting.code == 3
    assert waiting.json["reason"] == "approval_required"
    run = waiting.json["request_id"]
    assert cuo("supervisor", "continue", run).code == 65
    yes = ("supervisor", "resume", run, "--approve", "--reason", "checked", "--json")
    assert cuo(*yes[:4]).code == 64
    approved = cuo(*yes)
    assert approved.code == 0
    assert approved.json["invocation_result"]["exit_code"] == 0
    assert cuo(*yes).code == 65
    other = cuo.route(DESTRUCTIVE, "--persona", "cmo", "--json").json["request_id"]
    assert cuo("supervisor", "resume", other, "--deny", "--reason", "not ours").code == 4
    orders = (data_dir / "outbox" / "payment_orders.jsonl").read_text("utf-8").splitlines()
    (order,) = (one for one in map(json.loads, orders) if one["request_id"] in (run, other))
    assert (order["tenant_id"], order["request_id"]) == (LOCAL_TENANT_ID, run)
    audit = cuo("runs", "show", run, "--json").json["audit"]
    (told,) = (row["body"] for row in audit if row["kind"] == "approval")
    assert order["approval_id"] == told["interrupt_id"]


@pytest.mark.clause("101-7")
def test_of_two_approvals_at_once_one_counts(cuo: Any) -> None:
    """Two processes, one run: one 0 or 4, the other 65, one decision."""
    run = cuo.route(DESTRUCTIVE, "--persona", "cmo", "--json").json["request_id"]
    both = [
        cuo.start("supervisor", "resume", run, verdict, "--reason", "r")
        for verdict in ("--approve", "--deny")
    ]
    codes = sorted(cuo.end(process).code for process in both)
    assert codes in ([0, 65], [4, 65])
    audit = cuo("runs", "show", run, "--json").json["audit"]
    assert sum(row["kind"] == "cuo.routing_decision" for row in audit) == 1


@pytest.mark.clause("101-22")
@pytest.mark.criterion("101-AC27")
@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("import sys; sys.exit(3)", None),
        ("import os; os.kill(os.getpid(), 9)", "crash"),
        (r"import os; os.write(1, b'\xff\xfe')", "not_utf8"),
    ],
)
def test_a_skill_that_fails_is_reported_as_5(
    cuo: Any, catalog: Callable[[str], Path], program: str, failure: str | None
) -> None:
    """The run completes with outcome invoke_error; what it said is there."""
    said = cuo.route(AUTO, "--json", env={"CUO_CATALOG": str(catalog(program))})
    assert said.code == 5
    assert said.json["invocation_result"]["failure"] == failure
    assert cuo("runs", "show", said.json["request_id"], "--json").json["run"]["state"] == "closed"


def test_a_missing_program_is_reported_as_5(cuo: Any, catalog: Callable[[str], Path]) -> None:
    """Not found is a failure of the skill, not of ours."""
    folder = catalog("pass")
    manifest = folder / "vietnam-mst-validate.toml"
    manifest.write_text(manifest.read_text().replace('"{python}"', '"/nowhere/skill"'))
    said = cuo.route(AUTO, "--json", env={"CUO_CATALOG": str(folder)})
    assert said.code == 5
    assert said.json["invocation_result"]["failure"] == "missing_executable"


# -- interruption ---------------------------------------------------------------------------------


def newest_run(cuo: Any) -> str:
    run = cuo("runs", "list", "--limit", "1", "--json").json["runs"][0]
    return str(run["ulid"])


@pytest.mark.clause("101-12", "101-22")
def test_ctrl_c_in_the_cascade_can_be_continued(asking: Shell, gateway: LoopbackGateway) -> None:
    """130 at once; `continue` asks again and ends the run with one decision."""
    gateway.mode = "hang"
    env = {"CYBEROS_AI_GATEWAY_URL": gateway.url}
    process = asking.start("supervisor", "route", "--query", CASCADE, env=env)
    _until(lambda: len(gateway.requests) == 1)
    process.send_signal(signal.SIGINT)
    said = asking.end(process)
    assert said.code == 130
    assert "continue" in said.err
    run = newest_run(asking)
    gateway.mode = "ok"
    after = asking("supervisor", "continue", run, "--json", env=env)
    assert after.code == 0
    assert after.json["path_taken"] == "cascade_then_auto"
    _one_decision(asking, run)


@pytest.mark.clause("101-7", "101-12")
def test_ctrl_c_in_a_skill_kills_it_and_it_is_not_run_again(
    cuo: Any, catalog: Callable[[str], Path], data_dir: Path
) -> None:
    """130, the skill's process is gone, and `continue` says that its fate is unknown: 5."""
    mark = data_dir / "outbox" / "mark"
    mark.unlink(missing_ok=True)
    folder = catalog(
        "import os, time; p = os.environ['CUO_OUTBOX'] + '/mark';"
        " open(p, 'a').write('ran '); time.sleep(60); open(p, 'a').write('late ')"
    )
    env = {"CUO_CATALOG": str(folder)}
    process = cuo.start("supervisor", "route", "--query", AUTO, env=env)
    _until(lambda: mark.exists() and mark.read_text() == "ran ")
    process.send_signal(signal.SIGINT)
    assert cuo.end(process).code == 130
    run = newest_run(cuo)
    after = cuo("supervisor", "continue", run, "--json", env=env)
    assert after.code == 5
    assert after.json["reason"] == "invocation_unknown"
    assert mark.read_text() == "ran "
    _one_decision(cuo, run)
    again = cuo("supervisor", "continue", run, "--json", env=env)
    assert (again.code, again.json["reason"]) == (5, "invocation_unknown")


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.02)


def _one_decision(cuo: Any, run: str) -> None:
    shown = cuo("runs", "show", run, "--json").json
    assert shown["verification"]["ok"]
    assert sum(row["kind"] == "cuo.routing_decision" for row in shown["audit"]) == 1
    kinds = [event["kind"] for event in shown["events"]]
    assert kinds.count("run_started") == 1
    assert kinds.count("run_failed") <= 1
    assert kinds[-1] == "run_completed"


def test_two_commands_at_once_both_answer(cuo: Any) -> None:
    """They share the local database."""
    both = [cuo.start("supervisor", "route", "--query", "send invoice", "--json") for _ in range(3)]
    runs = {cuo.end(process).json["request_id"] for process in both}
    assert len(runs) == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["runs", "list", "--json"], 0),
        (["supervisor", "route", "--query", "send invoice", "--json"], 1),
        (["supervisor", "route", "--query", "", "--json"], 64),
    ],
)
def test_a_reader_that_leaves_changes_nothing(cuo: Any, words: list[str], code: int) -> None:
    """`| head -1`: the command's own exit code, nothing on stderr."""
    near, far = os.pipe()
    os.close(near)
    with open(far, "wb") as gone, cuo.start(*words, stdout=gone) as process:
        said = cuo.end(process)
    assert (said.code, said.err) == (code, "")


def test_a_full_disk_loses_the_answer_and_says_so(cuo: Any) -> None:
    """74, and where the recorded run is to be found."""
    with Path("/dev/full").open("wb") as full:
        said = cuo.route("send invoice", stdout=full)
    assert said.code == 74
    assert "runs list" in said.err


def test_the_module_lists_what_a_library_may_import() -> None:
    """`from cuo_supervisor import run_supervisor` works and loads no model client."""
    program = (
        "from cuo_supervisor import run_supervisor, run_supervisor_sync, Supervisor; import sys;"
        " sys.exit(any(m in sys.modules for m in ('litellm', 'openai', 'sqlalchemy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
