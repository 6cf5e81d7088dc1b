"""Runs a chosen skill: the skill's own command line, contained, with its words brought back.

A skill gets its arguments as JSON on standard input and an environment of nine names.
Nothing of the request reaches its command line. What it may use is bounded, and when it is
done, late, noisy or unwanted, every process it started is gone before `run` returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from cuo_supervisor.contained import Ended, Limits, execute
from cuo_supervisor.core.models import InvocationResult
from cuo_supervisor.errors import DataError
from cuo_supervisor.sandbox import FIXED_PATH, Isolation, bubblewrap_command, find_isolation

__all__ = ["DEFAULT_SKILLSET", "Limits", "SkillManifest", "SkillRunner"]

DEFAULT_SKILLSET: Final = Path(__file__).with_name("skillset")
_HEADER: Final = re.compile(r"[\x21-\x7e]{0,256}")
_MISSING: Final = 127
"""What a shell says for a command it cannot find."""
_UNSTARTED: Final = 126
"""What a shell says for a command it found and cannot start."""
_KILLED: Final = -9
_SIGXCPU: Final = 24
_SHELL_SIGNAL: Final = 128

Failure = Literal["missing_executable", "timeout", "crash", "output_cap", "not_utf8", "bad_output"]


class SkillManifest(Protocol):
    """What the runner needs to know of a skill. `argv` may hold {python} and {skillset}."""

    @property
    def skill_name(self) -> str: ...
    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def operation(self) -> str | None: ...
    @property
    def timeout_s(self) -> float: ...


class SkillRunner:
    """Runs skills, any number at once, from any event loop.

    `outbox` is the one folder skills write to; it is made, for the owner only, when missing.
    `bwrap` is a path, "auto" to look for it, None to do without. `isolation` names the level
    outright and skips finding out; it is for tests and for deployments that have found out.
    """

    def __init__(
        self,
        *,
        outbox: Path,
        python: str = sys.executable,
        skillset: Path = DEFAULT_SKILLSET,
        bwrap: str | Literal["auto"] | None = "auto",
        limits: Limits | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self._outbox = Path(os.path.abspath(outbox))
        self._python = python
        self._skillset = Path(os.path.abspath(skillset))
        self._bwrap = bwrap
        self._limits = limits or Limits()
        self._isolation = isolation

    async def run(
        self,
        manifest: SkillManifest,
        arguments: Mapping[str, Any],
        *,
        request_id: str,
        traceparent: str,
        tenant_id: str = "",
        approval_id: str = "",
        timeout_s: float | None = None,
    ) -> InvocationResult:
        """Run one skill once. The earliest of the three time limits counts.

        Every failure of the skill is a result with `failure` set and never an exception.
        Raises DataError, with nothing started, when the arguments are not JSON or a header
        value is not printable ASCII. Cancellation kills the tree, then passes on.
        """
        payload = _payload(arguments)
        call = {
            "CUO_OPERATION": manifest.operation or "",
            "CUO_TENANT_ID": tenant_id,
            "CUO_REQUEST_ID": request_id,
            "CUO_APPROVAL_ID": approval_id,
            "TRACEPARENT": traceparent,
        }
        for name, value in call.items():
            if not _HEADER.fullmatch(value):
                raise DataError(f"{name} must be at most 256 printable ASCII characters")
        started = time.perf_counter()
        argv = self._argv(manifest.argv)
        if argv is None:
            return _result(manifest.skill_name, started, _MISSING, failure="missing_executable")
        limit = min(manifest.timeout_s, self._limits.timeout_s)
        if timeout_s is not None:
            limit = min(limit, timeout_s)
        if limit <= 0:
            return _result(manifest.skill_name, started, _KILLED, failure="timeout")
        try:
            isolation = self._isolation
            if isolation is None:
                isolation = await asyncio.to_thread(self._settle)
            ended = await self._execute(isolation, argv, payload, call, limit)
        except OSError as error:
            word = f"could not be started: {os.strerror(error.errno or 0)}"
            return _result(manifest.skill_name, started, _UNSTARTED, failure="crash", stderr=word)
        code, failure = _verdict(ended, isolation)
        return _judge(manifest.skill_name, started, ended, code, failure)

    def sandbox_report(self) -> Isolation:
        """The isolation in force here. Finds out by trying when no skill has run yet (blocking)."""
        return self._isolation or self._settle()

    def _settle(self) -> Isolation:
        self._make_outbox()
        self._isolation = find_isolation(
            self._bwrap, outbox=self._outbox, skillset=self._skillset, python=self._python
        )
        return self._isolation

    def _make_outbox(self) -> None:
        self._outbox.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _argv(self, template: tuple[str, ...]) -> list[str] | None:
        """The command with its tokens filled in; None when its program does not exist."""
        # Plain replacement, not str.format: a brace in an argument is the skill's own business.
        words = [
            word.replace("{python}", self._python).replace("{skillset}", str(self._skillset))
            for word in template
        ]
        program = shutil.which(words[0], path=FIXED_PATH) if words and words[0] else None
        return None if program is None else [os.path.abspath(program), *words[1:]]

    async def _execute(
        self,
        isolation: Isolation,
        argv: list[str],
        payload: bytes,
        call: Mapping[str, str],
        limit: float,
    ) -> Ended:
        self._make_outbox()
        env = {
            "PATH": FIXED_PATH,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUO_OUTBOX": str(self._outbox),
            **call,
        }
        command = argv
        if isolation.bwrap is not None:
            command = bubblewrap_command(
                isolation.bwrap,
                argv,
                env=env,
                outbox=self._outbox,
                skillset=self._skillset,
                python=self._python,
            )
        return await execute(
            command,
            env=env,
            stdin=payload,
            limits=self._limits,
            timeout_s=limit,
            namespaces=isolation.level == "namespaces",
            # Bubblewrap needs them to build the sandbox and drops them itself.
            drop_capabilities=isolation.bwrap is None,
        )


def _payload(arguments: Mapping[str, Any]) -> bytes:
    """The skill's standard input: one line of ASCII JSON, keys sorted."""
    try:
        text = json.dumps(dict(arguments), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"skill arguments are not JSON ({type(error).__name__})") from None
    return text.encode("ascii") + b"\n"


def _judge(
    skill_name: str, started: float, ended: Ended, code: int, failure: Failure | None
) -> InvocationResult:
    """Add what the skill said. Its text is kept whatever it holds, and marked when not UTF-8."""
    texts: list[str] = []
    for raw in (ended.stdout, ended.stderr):
        text = raw.decode("utf-8", "replace")
        texts.append(text)
        # Below the cap only: at it the cut itself may split a character.
        if failure is None and text.encode("utf-8") != raw:
            failure = "not_utf8"
    return _result(skill_name, started, code, failure=failure, stdout=texts[0], stderr=texts[1])


def _verdict(ended: Ended, isolation: Isolation) -> tuple[int, Failure | None]:
    """Exit code and failure, in the order of what explains most."""
    how, code = ended.how, ended.code
    if ended.over_cap:
        return _KILLED, "output_cap"
    if isolation.bwrap is not None and how == "exit":
        # Bubblewrap reports a signal as shells do, so a skill that exits with 128 + n of its
        # own accord is taken for one killed by signal n.
        if _SHELL_SIGNAL < code < _SHELL_SIGNAL + 32:
            how, code = "signal", code - _SHELL_SIGNAL
        elif code == 1 and ended.stderr.startswith(b"bwrap: execvp "):
            how = "exec"
    if how == "timeout" or (how, code) == ("signal", _SIGXCPU):
        return -code, "timeout"
    if how == "exec":
        return _MISSING, "missing_executable"
    if how != "exit":
        return -code if code else _UNSTARTED, "crash"
    return code, None


def _result(
    skill_name: str,
    started: float,
    exit_code: int,
    *,
    failure: Failure | None,
    stdout: str = "",
    stderr: str = "",
) -> InvocationResult:
    return InvocationResult(
        skill_name=skill_name,
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        duration_ms=(time.perf_counter() - started) * 1000.0,
        failure=failure,
    )
