"""One event, one line; nobody's text, whoever logs; a log that is stuck holds nobody up."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import archive_cli, logs
from cuo_supervisor import telemetry as t
from cuo_supervisor.core.scrub import scrub

SECRET = "an.nguyen@example.vn 0912345678"


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_trace_and_run() -> None:
    """Time in UTC, level, name, logger, trace and run of the request at work, then the fields."""
    out = io.StringIO()
    ids = t.parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    with (
        logs.logging_to(out, context=t.log_context),
        t.Telemetry().route_span(
            ids,
            request_id="01M8QBDY9QE92801N73C01N1P3",
            tenant_id="tenant",
            subject_id_hash16="s",
            persona_key="cfo",
        ),
    ):
        logs.event(logging.getLogger("cuo_supervisor.x"), logging.WARNING, "some.event", n=1.5)
    first, last = lines(out)
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "level": "warning",
        "event": "some.event",
        "logger": "cuo_supervisor.x",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "run_id": "01a22eb6-f937-7244-8006-a71b001a86c3",
        "n": 1.5,
    }
    assert last["event"] == "request.ended"
    assert last["run_id"] == first["run_id"]
    assert "tenant" not in out.getvalue()


@given(st.text(), st.text(), st.one_of(st.floats(), st.integers(), st.binary(), st.none()))
def test_whatever_is_logged_is_one_ascii_json_line(name: str, text: str, other: Any) -> None:
    """Newlines, control characters, surrogates and odd numbers cannot break a line or forge one."""
    made = logs.JsonFormatter(scrub=scrub)
    own = logging.LogRecord("cuo", 30, "f", 1, "x", None, None)
    own.event, own.fields = name, {name: text, "other": other, "list": [text, other]}
    foreign = logging.LogRecord(name, 30, "f", 1, text.replace("%", ""), None, None)
    for record in (own, foreign):
        line = made.format(record)
        assert line.isascii()
        assert "\n" not in line
        assert isinstance(json.loads(line), dict)


def test_a_newline_in_a_name_forges_no_line() -> None:
    """What looks like a second event stays inside the first."""
    out = io.StringIO()
    forged = 'x\n{"level": "critical", "event": "forged"}\u2028\x1b[2J'
    with logs.logging_to(out):
        logs.event(logging.getLogger("cuo_checkpoint"), logging.ERROR, "e", persona=forged)
    (only,) = lines(out)
    assert only["persona"] == forged


def test_an_exception_leaves_its_type_and_place() -> None:
    """Never its words, whoever logs it and however it was caused."""
    out = io.StringIO()
    with logs.logging_to(out, scrub=scrub):
        try:
            try:
                {}[SECRET]
            except KeyError as inner:
                raise ValueError(SECRET) from inner
        except ValueError:
            logging.getLogger("cuo_supervisor").exception("x", extra={"event": "e"})
            logging.getLogger("asyncio").exception("Task failed\nfuture: <Task %s>", SECRET)
    first, second = lines(out)
    assert first["error"] == second["error"] == "ValueError"
    assert first["where"][-1].startswith("test_logs.py:test_an_exception")
    assert second["message"] == "Task failed"
    assert "an.nguyen" not in out.getvalue()
    assert "0912345678" not in out.getvalue()


def test_a_foreign_message_is_scrubbed_or_left_out() -> None:
    """With a scrubber its first line, cleaned and cut; without one only where it was said."""
    for cleaner, expected in ((scrub, "mail [REDACTED-EMAIL]"), (None, "test_logs:")):
        out = io.StringIO()
        with logs.logging_to(out, scrub=cleaner):
            logging.getLogger("library").warning("mail %s", "an.nguyen@example.vn")
            logging.getLogger("library").info("not worth a line")
            logging.getLogger("library").error("x" * 100_000)
        first, second = lines(out)
        assert first["message"].startswith(expected)
        assert len(second["message"]) <= 500


def test_a_message_that_cannot_be_made_costs_only_itself() -> None:
    """A broken record, scrubber or context yields a line that says so."""
    out = io.StringIO()

    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    with logs.logging_to(out, scrub=broken, context=broken):
        logging.getLogger("library").warning("%d", "no number")
        logs.event(logging.getLogger("cuo_checkpoint"), logging.ERROR, "e")
    assert [line["message"] for line in lines(out)] == ["unloggable: RuntimeError"] * 2


def test_standard_error_becomes_events_and_is_given_back() -> None:
    """Lines that something prints are remarks, scrubbed; also the last one without an end."""
    out, before = io.StringIO(), sys.stderr
    with logs.logging_to(out, scrub=scrub, take_stderr=True):
        sys.stderr.write(f"hello {SECRET}\nsecond\n")
        sys.stderr.write("rest")
    assert sys.stderr is before
    said = lines(out)
    assert [line["event"] for line in said] == ["remark"] * 3
    assert said[0]["message"] == "hello [REDACTED-EMAIL] [REDACTED-PHONE]"
    assert [line["message"] for line in said[1:]] == ["second", "rest"]


def test_a_thread_that_dies_is_an_event() -> None:
    """Its exception's words would be printed otherwise."""
    out = io.StringIO()

    def die() -> None:
        raise ValueError(SECRET)

    with logs.logging_to(out, scrub=scrub, take_stderr=True):
        worker = threading.Thread(target=die)
        worker.start()
        worker.join()
    (only,) = lines(out)
    assert (only["error"], only["level"]) == ("ValueError", "error")
    assert "0912345678" not in out.getvalue()


class Stuck(io.StringIO):
    """A pipe whose reader has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait(20)
        return super().write(text)


def test_a_stuck_reader_holds_nobody_up() -> None:
    """Thousands of events take no time and bounded memory; how many were lost is told."""
    stream, log = Stuck(), logging.getLogger("cuo_supervisor")
    began = time.monotonic()
    with logs.logging_to(stream, background=True):
        for n in range(5000):
            logs.event(log, logging.INFO, "e", n=n)
        assert time.monotonic() - began < 10
        stream.free.set()
        until = time.monotonic() + 10
        while stream.getvalue().count("\n") < 2000 and time.monotonic() < until:
            time.sleep(0.01)
        logs.event(log, logging.INFO, "last")
    said = lines(stream)
    assert said[-1]["event"] == "last"
    lost = sum(line.get("lost", 0) for line in said)
    assert lost >= 2000
    assert lost + sum(1 for line in said if line["event"] == "e") == 5000


def test_text_for_a_terminal_cannot_move_the_cursor() -> None:
    """The same facts in one line; control characters are escaped."""
    out = io.StringIO()
    with logs.logging_to(out, text=True):
        logs.event(logging.getLogger("cuo_checkpoint"), logging.ERROR, "e", name="a\n\x1b[2Jb")
    (line,) = out.getvalue().splitlines()
    assert line.endswith('ERROR e name="a\\n\\u001b[2Jb"')


def test_without_a_set_up_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """A library stays silent, whatever the level."""
    logs.event(logging.getLogger("cuo_checkpoint"), logging.CRITICAL, "e")
    logs.event(logging.getLogger("cuo_supervisor.http"), logging.CRITICAL, "e")
    assert capfd.readouterr() == ("", "")


def test_a_cron_job_tells_how_it_ended(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--log FILE appends one event beside the sentence; --log=- makes standard error events."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql://x@127.0.0.1:1/none?connect_timeout=1")
    file = tmp_path / "archive.log"
    for argv in (["--log", str(file), "ensure-partitions"], [f"--log={file}", "status", "--nope"]):
        archive_cli.main(argv)
    done, misuse = (json.loads(line) for line in file.read_text().splitlines())
    assert (done["event"], done["command"], done["code"]) == (
        "archive.finished",
        "ensure-partitions",
        69,
    )
    assert (done["level"], done["failure"], done["severity"]) == ("error", "archive_failed", 2)
    assert (misuse["code"], misuse["level"]) == (64, "warning")
    assert "cannot be reached" in capsys.readouterr().err
    assert archive_cli.main(["--log=-", "ensure-partitions"]) == 69
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in said] == ["remark", "archive.finished"]
    assert archive_cli.main([f"--log={tmp_path}/no/where", "status"]) == 64
