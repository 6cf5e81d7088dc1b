"""A command sends its spans where OTEL_EXPORTER_OTLP_ENDPOINT says, and suffers nothing from it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Collector(BaseHTTPRequestHandler):
    """Takes whatever an OTLP exporter posts."""

    taken: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.taken = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def route(endpoint: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-c", "from cuo_supervisor.cli.main import main; main()",
            "supervisor", "route", "--query", "send invoice", "--no-record",
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "LANG": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    return done, time.monotonic() - began


def test_spans_of_a_command_reach_the_collector(collector: str) -> None:
    """The route span arrives over OTLP; an ask is no plain success, so it is always kept."""
    done, _ = route(collector)
    assert done.returncode == 1, done.stderr
    paths = [path for path, _ in Collector.taken]
    assert "/v1/traces" in paths
    assert any(
        b"cuo.supervisor.route" in body for path, body in Collector.taken if path == "/v1/traces"
    )


def test_a_collector_that_is_down_changes_neither_answer_nor_exit_code() -> None:
    """Telemetry may not fail a run, nor hold it up for long."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done, seconds = route(dead)
    assert done.returncode == 1, done.stderr
    assert "vietnam-vat-invoice@1.2" in done.stdout
    assert "Traceback" not in done.stderr
    assert seconds < 45
