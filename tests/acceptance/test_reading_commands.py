"""What an operator reads with: listings, trees, watching, completion; in terminals and in pipes."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TRANSFER = "transfer 5M VND to ACME account 0123456789"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for shells."""
    return tmp_path_factory.mktemp("home")


def test_a_waiting_run_is_told_with_what_it_waits_for(cuo: Any) -> None:
    """The listing names persona, path and skill; the tree how to answer."""
    run = cuo.route(TRANSFER, "--persona", "coo", "--json").json["request_id"]
    listed = cuo("runs", "list", "--state", "waiting", "--skill", "vietnam-bank-transfer")
    line = next(line for line in listed.out.splitlines() if run in line)
    assert re.search(r"waiting +coo +auto +vietnam-bank-transfer@1\.0", line)
    assert cuo("runs", "list", "--state", "waiting", "--persona", "cfo").out == ""
    shown = cuo("runs", "show", run).out
    assert f"supervisor resume {run} --approve" in shown
    assert "├── invoke" in shown or "└── invoke" in shown
    assert "\x1b" not in shown


def test_whoever_answers_sees_what_would_happen(cuo: Any) -> None:
    """Operation, skill and arguments before the answer, then the request, which cannot pass for them;
    who answered and why after it. At a terminal the answer is asked for."""
    query = TRANSFER.replace(" account", "\naccount")
    run = cuo.route(query, "--persona", "coo", "--json").json["request_id"]
    asked = cuo("runs", "show", run, "--json").json["asked"]
    assert asked["query"] == query
    assert (asked["skill"], asked["operation"]) == ("vietnam-bank-transfer@1.0", "wire_transfer")
    assert asked["arguments"]["account_number"] == "0123456789"
    assert asked["asked_by"] == "local-operator"
    began = dt.datetime.fromisoformat(cuo("runs", "show", run, "--json").json["run"]["first_at"])
    ends = dt.datetime.fromisoformat(asked["answer_until"])
    assert abs(ends - began - dt.timedelta(hours=24)) < dt.timedelta(seconds=30)
    shown = cuo("runs", "show", run).out
    for said in (query.replace("\n", "\\n"), "wire_transfer", '"account_number": "0123456789"'):
        assert said in shown
    both = cuo("supervisor", "resume", run, "--deny", "--approve", "--reason", "an alias")
    assert both.code == 64
    assert "not both" in both.err
    near, far = pty.openpty()
    dialogue = [
        ("(approve, deny): ", "yes"),
        ("(approve, deny): ", "deny"),
        ("reason: ", "wrong account"),
    ]
    with cuo.start("supervisor", "resume", run, stdin=far, stderr=far) as process:
        os.close(far)
        told = ""
        for question, said in dialogue:
            while not told.endswith(question):
                told += os.read(near, 65536).decode()
            os.write(near, f"{said}\n".encode())
            told += said
        assert process.wait(60) == 4
    os.close(near)
    assert (
        told.index("operation  wire_transfer") < told.index("query ") < told.index("approve, deny")
    )
    ended = cuo("runs", "show", run)
    assert re.search(r"approval +denied by [0-9a-f]{16} of local: wrong account", ended.out)
    assert cuo("runs", "show", run, "--json").json["asked"] is None


def test_filters_narrow_together(cuo: Any) -> None:
    """Ages and times, outcome, path; what fits nothing says so, on stderr."""
    run = cuo.route("asdfghjkl", "--json").json["request_id"]
    for fits in (
        ["--since", "1h"], ["--since", "2026-01-01", "--outcome", "run_completed"],
        ["--path", "defer", "--persona", "genie"],
    ):  # fmt: skip
        assert run in cuo("runs", "list", *fits).out
    for none in (["--until", "1d"], ["--outcome", "run_failed", "--path", "defer"]):
        said = cuo("runs", "list", *none)
        assert (said.code, said.out, said.err) == (0, "", "no run fits\n")
    wrong = cuo("runs", "list", "--since", "yesterday")
    assert wrong.code == 64
    assert "24h" in wrong.err


def read_until(fd: int, wanted: bytes, seconds: float = 30) -> bytes:
    """What a terminal shows until `wanted` has come, or it closes."""
    shown, until = b"", time.monotonic() + seconds
    while wanted not in shown and time.monotonic() < until:
        if select.select([fd], [], [], 0.5)[0]:
            try:
                shown += os.read(fd, 65536)
            except OSError:
                break
    return shown


def test_watching_in_a_pipe_tells_each_change_once(cuo: Any) -> None:
    """A line for each run that is new or changed, as JSON too; Ctrl-C ends it with 130, quietly."""
    first = cuo.route("asdfghjkl", "--json").json["request_id"]
    words = ["runs", "list", "--watch", "--every", "0.2", "--limit", "3", "--json"]
    with cuo.start(*words) as process:
        told = read_until(process.stdout.fileno(), first.encode())
        second = cuo.route("asdfghjkl", "--json").json["request_id"]
        told += read_until(process.stdout.fileno(), second.encode())
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = cuo.end(process)
    assert said.code == 130
    assert said.err == ""
    runs = [json.loads(line) for line in (told.decode() + said.out).splitlines()]
    stands = [(run["ulid"], run["log_rows"]) for run in runs]
    assert len(set(stands)) == len(stands)
    assert {first, second} <= {ulid for ulid, _ in stands}


def test_watching_on_a_terminal_draws_anew(cuo: Any) -> None:
    """The screen is cleared for each look, and says how to end."""
    cuo.route("asdfghjkl")
    near, far = pty.openpty()
    words = ["runs", "list", "--watch", "--every", "0.2", "--limit", "2"]
    with cuo.start(*words, stdout=far, stderr=far) as process:
        os.close(far)
        shown = read_until(near, b"Ctrl-C ends")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    os.close(near)
    assert b"\x1b[2J" in shown


def test_a_watcher_nobody_reads_ends(cuo: Any) -> None:
    """`| head -1` ends the watching too."""
    cuo.route("asdfghjkl")
    with cuo.start("runs", "list", "--watch", "--every", "0.2", "--json") as process:
        process.stdout.close()
        cuo.route("asdfghjkl")
        assert process.wait(30) == 0


SCRIPTS = {
    "bash": (
        "source {script}; COMP_WORDS=(cyberos-cuo {words}); COMP_CWORD={last};"
        " _cyberos_cuo_completion cyberos-cuo; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ),
    "fish": "source {script}; complete -C 'cyberos-cuo {words}'",
    # zsh completes only while somebody types; so the script is read, and asked as it would ask.
    "zsh": (
        "autoload -Uz compinit; compinit -u; source {script}; print ${{_comps[cyberos-cuo]}} >&2;"
        " COMP_WORDS='cyberos-cuo {words}' COMP_CWORD={last} _CYBEROS_CUO_COMPLETE=zsh_complete"
        " cyberos-cuo"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(cuo: Any, home: Path, shell: str) -> None:
    """Commands, options and values, from the script that `completion` prints."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    script = home / f"cuo.{shell}"
    script.write_text(cuo("completion", shell).out)
    bin_dir = Path(sys.executable).parent
    for words, wanted in (
        ("runs list --st", "--state"),
        ("runs list --persona c", "cfo"),
    ):
        told = subprocess.run(
            [
                shell,
                "-c",
                SCRIPTS[shell].format(script=script, words=words, last=len(words.split())),
            ],
            env={"PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert wanted in told.stdout.replace("plain,", ""), (told.stdout, told.stderr)
