"""`cyberos-cuo serve` as a process, in local mode, looked at with a browser where there is one."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell
from served import Served

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202e validate MST 0301479073"


@pytest.fixture
def served(open_tmp_path: Path, model_server: socket.socket) -> Iterator[Served]:
    """A service of this test's own, which it may stop."""
    made = Served(open_tmp_path / "data", server=model_server)
    yield made
    if made.process.returncode is None:
        made.stop()


@pytest.fixture(scope="module")
def shared(model_server: socket.socket) -> Iterator[Served]:
    """One service for the tests that leave it running."""
    folder = Path(tempfile.mkdtemp(prefix="cuo-"))
    folder.chmod(0o711)
    made = Served(folder / "data", server=model_server)
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


def ask(url: str, query: str, persona: str = "cfo") -> Any:
    """Routes a request."""
    answer = httpx.post(
        f"{url}/v1/cuo/supervisor/route", json={"query": query, "persona": persona}, timeout=60
    )
    return answer.json()


@pytest.mark.slow
def test_from_the_first_request_to_an_approval(served: Served) -> None:
    """Without any login: ask, see it wait, approve it on its page, see it done, verify it."""
    with httpx.Client(base_url=served.url, timeout=60) as client:
        run = ask(served.url, "transfer 5M VND to ACME account 0123456789", "coo")["request_id"]
        page = client.get(f"/runs/{run}").text
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', page)
        assert found is not None
        done = client.post(
            f"/runs/{run}/answer",
            data={"answer": "approve", "reason": "checked", "form_token": found[1]},
            headers={"Origin": served.url},
        )
        assert done.status_code == 303
        assert "approved" in client.get(f"/runs/{run}").text
        assert client.get(f"/v1/cuo/runs/{run}/verify").json()["ok"] is True
        assert "cuo_supervisor_route_total{" in client.get("/metrics").text
    assert served.stop() == 0
    assert served.cli("runs", "verify", run, "--json").json["ok"] is True
    assert not any("Traceback" in line for line in served.said)


@pytest.mark.slow
def test_a_request_in_flight_ends_before_the_process(served: Served) -> None:
    """SIGTERM in the midst of a run: its answer still comes, the run is closed, the exit is 0."""
    answers: list[Any] = []
    ask(served.url, "send invoice", "genie")
    asking = threading.Thread(
        target=lambda: answers.append(ask(served.url, "validate MST 0301479073"))
    )
    with httpx.Client(base_url=served.url) as client:
        asking.start()
        until = time.monotonic() + 30
        while len(client.get("/v1/cuo/runs").json()["runs"]) < 2:
            assert time.monotonic() < until
    assert served.stop() == 0
    asking.join(30)
    assert answers[0]["invocation_result"]["exit_code"] == 0
    listed = served.cli("runs", "list", "--json").json["runs"]
    assert [run["state"] for run in listed] == ["closed", "closed"]


@pytest.mark.slow
def test_other_names_for_this_machine_are_refused(shared: Served) -> None:
    """A foreign name that resolves to loopback gets nothing, on any path."""
    for host in ("evil.example", "evil.example:80", "10.0.0.1", ""):
        for path in ("/runs", "/v1/cuo/runs", "/healthz"):
            answer = httpx.get(f"{shared.url}{path}", headers={"Host": host})
            assert answer.status_code in (400, 421)
            assert "CUO log" not in answer.text or answer.status_code == 421
    assert httpx.get(f"{shared.url}/healthz", headers={"Host": "localhost"}).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "loopback only"),
        (["--host", "example.org"], "loopback only"),
        (["--port", "70000"], "70000"),
        (["--port", "x"], "not a valid integer"),
    ],
)
def test_what_serve_refuses(
    open_tmp_path: Path, model_server: socket.socket, arguments: list[str], message: str
) -> None:
    """A sentence and exit 64, before any database is started."""
    cli = Shell({"CUO_DATA_DIR": str(open_tmp_path / "none")}, model_server)
    said = cli("serve", *arguments)
    assert said.code == 64
    assert message in said.err
    assert not (open_tmp_path / "none").exists()


def test_a_port_that_is_taken(open_tmp_path: Path, model_server: socket.socket) -> None:
    """Told at once."""
    cli = Shell({"CUO_DATA_DIR": str(open_tmp_path / "none")}, model_server)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = cli("serve", "--port", str(taken.getsockname()[1]))
    assert said.code == 64
    assert "in use" in said.err


def browse(folder: Path, url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Headless Chromium on one page, with a profile of its own."""
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
            f"--user-data-dir={folder / 'profile'}", *flags, url,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(shared: Served, tmp_path: Path, width: int) -> None:
    """Nothing is blocked by the policy, which is strict, and hostile text stays text."""
    run = ask(shared.url, HOSTILE)["request_id"]
    for path in ("/runs", f"/runs/{run}"):
        shot = tmp_path / "page.png"
        done = browse(
            tmp_path, shared.url + path, f"--window-size={width},900", f"--screenshot={shot}"
        )
        assert shot.stat().st_size > 10_000, done.stderr
        assert "CONSOLE" not in done.stderr
        assert "Refused to" not in done.stderr
        dom = browse(tmp_path, shared.url + path, f"--window-size={width},900", "--dump-dom").stdout
        assert "<script" not in dom
        assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", dom)
        assert "\u202e" not in dom
        assert "CUO log" in dom
