"""The skill runner against real processes, some of them hostile, at every isolation level.

Bubblewrap is looked for on PATH and in CUO_TEST_BWRAP; without it its cases are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cuo_supervisor.core.models import InvocationResult
from cuo_supervisor.errors import DataError
from cuo_supervisor.sandbox import Isolation, Level, find_isolation
from cuo_supervisor.skills import Limits, SkillRunner

DOUBLES = Path(__file__).parents[2] / "doubles" / "skills"
BWRAP = os.environ.get("CUO_TEST_BWRAP") or shutil.which("bwrap")
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NAMES = {
    *("PATH", "LANG", "PYTHONDONTWRITEBYTECODE"),
    *("CUO_OPERATION", "CUO_OUTBOX", "CUO_REQUEST_ID", "TRACEPARENT"),
    *("CUO_TENANT_ID", "CUO_APPROVAL_ID"),
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation is Linux's")


@dataclass(frozen=True)
class Skill:
    argv: tuple[str, ...]
    timeout_s: float = 20.0
    skill_name: str = "double@1.0"
    operation: str | None = "tax_code_validate"


def double(name: str, *, timeout_s: float = 20.0) -> Skill:
    return Skill(("{python}", "-I", "{skillset}/" + name + ".py"), timeout_s)


_found: dict[str, Isolation] = {}


def isolation_for(level: Level, outbox: Path) -> Isolation:
    if level == "subreaper":
        return Isolation("subreaper", None, "", "")
    if level not in _found:
        bwrap = BWRAP if level == "bubblewrap" else None
        if level == "bubblewrap" and bwrap is None:
            pytest.skip("bubblewrap is not installed")
        _found[level] = find_isolation(
            bwrap, outbox=outbox, skillset=DOUBLES, python=sys.executable
        )
    if _found[level].level != level:
        pytest.skip(f"{level} does not work here: {_found[level].reason}")
    return _found[level]


@pytest.fixture(params=["bubblewrap", "namespaces", "subreaper"])
def level(request: pytest.FixtureRequest) -> Level:
    chosen: Level = request.param
    return chosen


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    folder = tmp_path / "outbox"
    folder.mkdir()
    return folder


MakeRunner = Callable[..., SkillRunner]


@pytest.fixture
def make(level: Level, outbox: Path) -> MakeRunner:
    def build(**limits: Any) -> SkillRunner:
        return SkillRunner(
            outbox=outbox,
            skillset=DOUBLES,
            limits=Limits(**limits),
            isolation=isolation_for(level, outbox),
        )

    return build


@pytest.fixture(autouse=True)
def nothing_survives() -> Iterator[None]:
    """After each test this process has no more descriptors than before it."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


def run(
    runner: SkillRunner, skill: Skill, arguments: dict[str, Any] | None = None, **more: Any
) -> InvocationResult:
    return asyncio.run(
        runner.run(skill, arguments or {}, request_id="01REQ", traceparent=TRACEPARENT, **more)
    )


def test_arguments_go_in_and_words_come_out(make: MakeRunner) -> None:
    """A skill reads its arguments as JSON, and its output and exit code come back."""
    result = run(make(), double("echo"), {"mst": "0301479073", "name": "hoá đơn \ud800", "exit": 7})
    assert json.loads(result.stdout) == {
        "mst": "0301479073",
        "name": "hoá đơn \ud800",
        "exit": 7,
    }
    assert (result.exit_code, result.stderr, result.failure) == (7, "", None)
    assert result.skill_name == "double@1.0"
    assert 0 < result.duration_ms < 20_000


def test_surroundings_are_bare(make: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment holds the named few, descriptors are closed, limits and signals are set."""
    monkeypatch.setenv("CYBEROS_AI_GATEWAY_TOKEN", "not-for-skills")
    leak = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leak, True)
    core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (core[1], core[1]))
    try:
        ids = {"tenant_id": "the-tenant", "approval_id": "the-yes"}
        seen = json.loads(run(make(descriptors=50), double("snoop"), **ids).stdout)
    finally:
        os.close(leak)
        resource.setrlimit(resource.RLIMIT_CORE, core)
    assert set(seen["environment"]) - {"PWD", "LC_CTYPE"} == NAMES
    assert seen["environment"]["TRACEPARENT"] == TRACEPARENT
    assert seen["environment"]["CUO_REQUEST_ID"] == "01REQ"
    assert seen["environment"]["CUO_OPERATION"] == "tax_code_validate"
    assert seen["environment"]["CUO_TENANT_ID"] == "the-tenant"
    assert seen["environment"]["CUO_APPROVAL_ID"] == "the-yes"
    assert seen["descriptors"] == []
    assert seen["blocked"] == []
    assert (seen["core"], seen["open_files"], seen["memory"]) == (0, 50, 1 << 30)


def test_files_network_and_neighbours(
    make: MakeRunner, level: Level, outbox: Path, tmp_path: Path
) -> None:
    """What each level hides: bubblewrap files, and with namespaces the network and processes."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        seen = json.loads(
            run(
                make(),
                double("snoop"),
                {
                    "secret": f"HOME={os.environ.get('HOME', '')}",
                    "port": server.getsockname()[1],
                    "paths": {
                        "outbox": str(outbox / "draft"),
                        "elsewhere": str(private / "draft"),
                        "skill": str(DOUBLES / "planted"),
                    },
                    "look": {"private": str(private / "key")},
                },
            ).stdout
        )
    (DOUBLES / "planted").unlink(missing_ok=True)
    assert (outbox / "draft").read_text() == "here"
    assert seen["wrote"]["outbox"] is True
    hidden = level == "bubblewrap"
    assert seen["seen"]["private"] is not hidden
    assert seen["wrote"]["elsewhere"] is not hidden
    if hidden:
        assert seen["wrote"]["skill"] is False
    if level != "subreaper":
        assert seen["network"] == "closed"
        assert seen["secret_in"] == []
        assert seen["processes"] <= 3
    else:
        assert seen["network"] == "open"


@pytest.mark.parametrize(("streams", "stay"), [("drop", False), ("keep", False), ("drop", True)])
def test_hidden_child_is_killed(make: MakeRunner, outbox: Path, streams: str, stay: bool) -> None:
    """A double-forked child in its own session with no environment dies with its skill."""
    result = run(
        make(),
        double("orphan", timeout_s=1.0 if stay else 20.0),
        {"streams": streams, "stay": stay},
    )
    assert result.failure == ("timeout" if stay else None)
    assert (outbox / "late.started").exists()
    time.sleep(1.3)
    assert not (outbox / "late").exists()


def test_time_out(make: MakeRunner) -> None:
    """A skill that neither reads nor ends is killed at its limit, and says so."""
    result = run(make(), double("stubborn", timeout_s=0.6), {"big": "x" * 3_000_000})
    assert (result.failure, result.exit_code) == ("timeout", -signal.SIGKILL)
    assert 600 <= result.duration_ms < 5_000


def test_earliest_limit_counts(make: MakeRunner) -> None:
    """The caller's remaining time shortens the manifest's limit and never lengthens it."""
    runner = make()
    assert run(runner, double("stubborn", timeout_s=30), timeout_s=0.3).failure == "timeout"
    assert run(runner, double("stubborn", timeout_s=0.3), timeout_s=30.0).failure == "timeout"
    result = run(runner, double("echo"), timeout_s=0.0)
    assert (result.failure, result.stdout) == ("timeout", "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_over_the_cap(make: MakeRunner, stream: str) -> None:
    """A talker is killed at the cap and what it said up to there is kept."""
    result = run(make(output_bytes=100_000), double("flood"), {"stream": stream})
    assert (result.failure, result.exit_code) == ("output_cap", -signal.SIGKILL)
    assert len(getattr(result, stream)) == 100_000


def test_output_at_the_cap_is_whole(make: MakeRunner) -> None:
    """Exactly the cap is not over it."""
    text = json.dumps({"t": "x" * 90})
    result = run(make(output_bytes=len(text)), double("echo"), json.loads(text))
    assert (result.failure, result.stdout) == (None, text)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_not_utf8(make: MakeRunner, stream: str) -> None:
    """Other encodings come back with replacement characters and are marked."""
    result = run(make(), double("latin1"), {"stream": stream})
    assert (result.failure, result.exit_code) == ("not_utf8", 0)
    assert getattr(result, stream).endswith("\ufffd")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_death_by_signal(make: MakeRunner, number: int) -> None:
    """A signal is a crash and its number comes back negative."""
    result = run(make(), double("crash"), {"signal": int(number)})
    assert (result.failure, result.exit_code) == ("crash", -number)


@pytest.mark.parametrize("name", ["PIPE", "XFSZ", "CHLD"])
def test_signals_have_their_defaults(make: MakeRunner, name: str) -> None:
    """Signals this program ignores or handles have their default effect in a skill."""
    result = run(make(), Skill(("/bin/sh", "-c", f"kill -{name} $$; echo alive")))
    if name == "CHLD":
        assert (result.failure, result.stdout) == (None, "alive\n")
    else:
        assert (result.failure, result.stdout) == ("crash", "")
        assert result.exit_code == -getattr(signal, f"SIG{name}")


@pytest.mark.parametrize(
    "argv", [("/no/such/program",), ("no-such-program",), (), ("",), ("{skillset}",)]
)
def test_missing_program(make: MakeRunner, argv: tuple[str, ...]) -> None:
    """A program that does not exist is reported as shells do."""
    result = run(make(), Skill(argv))
    assert (result.failure, result.exit_code) == ("missing_executable", 127)


def test_missing_interpreter(make: MakeRunner) -> None:
    """A script whose interpreter is missing counts as a missing program."""
    result = run(make(), Skill(("{skillset}/no_interpreter.sh",)))
    assert (result.failure, result.exit_code) == ("missing_executable", 127)


def test_input_left_unread(make: MakeRunner) -> None:
    """A skill may end without reading a large input."""
    result = run(make(), double("deaf"), {"big": "x" * 5_000_000})
    assert (result.failure, result.exit_code, result.stdout) == (None, 0, "done\n")


def test_large_input_arrives(make: MakeRunner) -> None:
    """Arguments far larger than a pipe arrive whole."""
    result = run(make(output_bytes=3_000_000), double("echo"), {"big": "x" * 2_000_000})
    assert len(json.loads(result.stdout)["big"]) == 2_000_000


@pytest.mark.parametrize(
    ("of", "limits", "failure"),
    [
        ("memory", {}, None),
        ("disk", {"file_bytes": 2 << 20}, None),
        ("files", {}, None),
        ("cpu", {"cpu_s": 1}, "timeout"),
        ("processes", {"processes": 20}, "crash"),
    ],
)
def test_gluttony(
    make: MakeRunner, outbox: Path, of: str, limits: dict[str, int], failure: str | None
) -> None:
    """Memory, disk, descriptors, processor time and processes all have an end."""
    result = run(make(**limits), double("glutton", timeout_s=15), {"of": of})
    assert result.failure == failure or (of == "processes" and "BlockingIOError" in result.stderr)
    assert result.exit_code != 0
    assert result.duration_ms < 14_000
    if of == "disk":
        assert (outbox / "big").stat().st_size <= 2 << 20


def test_cancellation_kills_and_passes_on(make: MakeRunner, outbox: Path) -> None:
    """Cancelling the task ends the tree before the cancellation is seen outside."""

    async def scenario() -> float:
        task = asyncio.create_task(
            make().run(
                double("orphan"), {"stay": True}, request_id="01REQ", traceparent=TRACEPARENT
            )
        )
        while not (outbox / "late.started").exists():  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.01)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _running(str(outbox)) == []
        return began

    began = asyncio.run(scenario())
    assert time.monotonic() - began < 1.5
    time.sleep(1.3)
    assert not (outbox / "late").exists()


@pytest.mark.parametrize("sessions", [False, True])
def test_fork_bomb(make: MakeRunner, sessions: bool) -> None:
    """Doubling without end is stopped early, and nothing of it is left.

    The keeper ends it; for an ordinary account the kernel may be faster and refuse it more.
    """
    result = run(make(processes=30), double("bomb", timeout_s=20), {"sessions": sessions})
    if os.geteuid() != 0 and result.failure is None:
        assert "refused" in result.stderr
        assert result.duration_ms < 10_000
    else:
        assert (result.failure, result.exit_code) == ("crash", -signal.SIGKILL)
        assert result.duration_ms < 4_000
    assert _running("doubles/skills/bomb.py") == []


def _running(text: str) -> list[str]:
    """Processes of this machine with `text` in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and text in Path(f"/proc/{entry}/cmdline").read_text("latin-1"):
                found.append(entry)
    return found


HOST = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from cuo_supervisor.sandbox import Isolation
from cuo_supervisor.skills import SkillRunner
outbox, skillset, level, bwrap = sys.argv[1:]
runner = SkillRunner(
    outbox=Path(outbox), skillset=Path(skillset),
    isolation=Isolation(level, bwrap or None, "", ""),
)
skill = SimpleNamespace(
    skill_name="x@1", operation=None, timeout_s=30.0, argv=("{python}", "-I", "{skillset}/orphan.py")
)
asyncio.run(runner.run(skill, {"stay": True}, request_id="r", traceparent="t"))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_hosts_end_is_the_skills(level: Level, outbox: Path, number: int) -> None:
    """When the supervisor is killed or interrupted, its skill and the skill's children go too."""
    isolation = isolation_for(level, outbox)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(outbox), str(DOUBLES), level, isolation.bwrap or ""],
        cwd=DOUBLES.parents[2],
        stderr=subprocess.PIPE,
    )
    while not (outbox / "late.started").exists():
        assert host.poll() is None
        time.sleep(0.01)
    host.send_signal(number)
    _, said = host.communicate(timeout=10)
    assert host.returncode == -number
    assert (b"KeyboardInterrupt" in said) is (number == signal.SIGINT)
    time.sleep(1.3)
    assert not (outbox / "late").exists()


def test_many_at_once_from_two_loops(make: MakeRunner) -> None:
    """One runner serves several event loops in several threads at the same time."""
    runner = make()
    seen: list[list[str]] = []

    async def several(base: int) -> list[str]:
        runs = (
            runner.run(double("echo"), {"n": n}, request_id="01REQ", traceparent=TRACEPARENT)
            for n in range(base, base + 4)
        )
        return [result.stdout for result in await asyncio.gather(*runs)]

    threads = [
        threading.Thread(target=lambda b=base: seen.append(asyncio.run(several(b))))
        for base in (0, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text for texts in seen for text in texts) == [f'{{"n": {n}}}' for n in range(8)]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_attack_on_the_keeper(make: MakeRunner, outbox: Path, level: Level, how: str) -> None:
    """Killing or freezing the keeper gains nothing: the skill ends with it or is ended later."""
    result = run(make(), double("regicide", timeout_s=1.0), {"how": how})
    assert result.failure in {"crash", "timeout", None}
    assert result.duration_ms < 10_000
    if level == "subreaper":
        assert result.failure == ("crash" if how == "SIGKILL" else "timeout")
        time.sleep(0.5)
        assert not (outbox / "mark").exists()


@pytest.mark.parametrize(
    "arguments", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}, {1: "x", "y": 2}]
)
def test_arguments_that_are_not_json(tmp_path: Path, arguments: Any) -> None:
    """Such arguments are refused before anything starts, without being quoted."""
    runner = SkillRunner(outbox=tmp_path / "outbox", skillset=DOUBLES, bwrap=None)
    with pytest.raises(DataError, match="not JSON"):
        run(runner, double("echo"), arguments)
    assert not (tmp_path / "outbox").exists()


@pytest.mark.parametrize("bad", ["a\0b", "a\nb", "é", "x" * 257])
def test_header_values_are_checked(tmp_path: Path, bad: str) -> None:
    """What goes into the environment is short printable ASCII."""
    runner = SkillRunner(outbox=tmp_path / "outbox", skillset=DOUBLES, bwrap=None)
    with pytest.raises(DataError, match="printable ASCII"):
        asyncio.run(runner.run(double("echo"), {}, request_id="01REQ", traceparent=bad))


def test_braces_in_argv_are_left_alone(tmp_path: Path) -> None:
    """Only the two tokens are replaced, also within a word; other braces pass."""
    skill = Skill(("{python}", "-I", "{skillset}/snoop.py", "--x={skillset}/y", "{0} {other}"))
    runner = SkillRunner(outbox=tmp_path, skillset=DOUBLES, bwrap=None)
    seen = json.loads(run(runner, skill).stdout)
    assert seen["argv"] == [f"--x={DOUBLES}/y", "{0} {other}"]


def test_outbox_is_private(tmp_path: Path) -> None:
    """A missing outbox is made for its owner only."""
    runner = SkillRunner(outbox=tmp_path / "a" / "outbox", skillset=DOUBLES, bwrap=None)
    run(runner, double("echo"))
    assert (tmp_path / "a" / "outbox").stat().st_mode & 0o777 == 0o700


def test_unusable_bubblewrap_is_reported(tmp_path: Path) -> None:
    """A bubblewrap that fails is not used, and the report quotes why and says what to do."""
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    runner = SkillRunner(outbox=tmp_path / "outbox", skillset=DOUBLES, bwrap=str(broken))
    report = runner.sandbox_report()
    assert report.level in {"namespaces", "subreaper"}
    assert "No permissions to create new namespace" in report.reason
    assert "user namespaces" in report.remedy
    assert run(runner, double("echo")).exit_code == 0


def test_missing_bubblewrap_is_reported(tmp_path: Path) -> None:
    """Without bubblewrap the report says so and how to get it."""
    runner = SkillRunner(outbox=tmp_path, skillset=DOUBLES, bwrap=str(tmp_path / "absent"))
    text = "\n".join(runner.sandbox_report().lines())
    assert "not installed" in text
    assert "apt-get install bubblewrap" in text


@pytest.mark.parametrize("field", ["cpu_s", "output_bytes", "timeout_s", "processes"])
def test_limits_are_positive(field: str) -> None:
    """A limit of nothing is a mistake."""
    with pytest.raises(ValueError, match=field):
        Limits(**{field: 0})
