"""Run one command under the keeper and collect what it says. Knows processes, not skills.

Written on pipes and `connect_read_pipe` rather than asyncio's subprocess streams: those leave
no public way to let go of a pipe that a stuck process holds open, and need a child watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast

from cuo_supervisor.sandbox_keeper import kill_tree

__all__ = ["Ended", "Limits", "execute", "keeper_command", "parse_status"]

_KEEPER: Final = Path(__file__).with_name("sandbox_keeper.py")
_GRACE_S: Final = 6.0
"""How long past its deadline the keeper may take before it is presumed frozen or killed."""
_FORCE_S: Final = 0.5
"""How long this process then hunts the tree itself; zombies nobody collects count until then."""
_DRAIN_S: Final = 1.0
"""How long a pipe may stay open after the keeper ended, before it is let go."""

How = Literal["exit", "signal", "exec", "timeout", "killed", "crowd", "refused", "broken", "lost"]
_HOWS: Final = frozenset(How.__args__)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings for one skill. Bytes, seconds and counts; a lower inherited limit stays.

    `memory_bytes` is address space, not resident memory: a JVM or a Go program reserves far
    more than it uses and needs a higher figure. `processes` counts the whole tree.
    """

    cpu_s: int = 30
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    descriptors: int = 128
    processes: int = 64
    output_bytes: int = 256 << 10
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"Limits.{name} must be greater than 0")


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended. `code` is an exit status, a signal or an errno, as `how` says."""

    how: How
    code: int
    stdout: bytes
    stderr: bytes
    over_cap: bool
    isolation: str


def keeper_command(
    argv: Sequence[str],
    limits: Limits,
    *,
    timeout_s: float,
    namespaces: bool,
    drop_capabilities: bool,
    control: int,
    status: int,
) -> list[str]:
    """The keeper's own command line around `argv`."""
    options = {
        "control": control,
        "status": status,
        "timeout": timeout_s,
        "namespaces": int(namespaces),
        "drop": int(drop_capabilities),
        "cpu": limits.cpu_s,
        "memory": limits.memory_bytes,
        "file": limits.file_bytes,
        "descriptors": limits.descriptors,
        "crowd": limits.processes,
    }
    words = [f"{key}={value}" for key, value in options.items()]
    return [sys.executable, "-I", "-S", "-B", str(_KEEPER), *words, "--", *argv]


def parse_status(line: bytes) -> tuple[How, int, str]:
    """The keeper's last words; `lost` when it was killed before it could say any."""
    words = line.decode("ascii", "replace").split()
    if len(words) == 3 and words[0] in _HOWS and words[1].isdigit():
        return cast("How", words[0]), int(words[1]), words[2]
    return "lost", 9, "none"


class _Capture(asyncio.Protocol):
    """Keeps the first `cap` bytes of a pipe and calls `over` once if there are more."""

    def __init__(self, cap: int, over: Callable[[], None]) -> None:
        self._cap = cap
        self._over = over
        self._held = bytearray()
        self.over_cap = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._held += data[: self._cap - len(self._held) + 1]
        if len(self._held) > self._cap and not self.over_cap:
            self.over_cap = True
            self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def data(self) -> bytes:
        return bytes(self._held[: self._cap])


class _Feed(asyncio.BaseProtocol):
    """Knows whether the skill's input is finished with: a finished transport cannot be aborted."""

    lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def _stop_feeding(writer: asyncio.WriteTransport, feed: _Feed) -> None:
    if not feed.lost:
        writer.abort()


class _Hold:
    """The control pipe's near end. Letting go ends the skill; so does our own death."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


async def execute(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes,
    limits: Limits,
    timeout_s: float,
    namespaces: bool,
    drop_capabilities: bool,
) -> Ended:
    """Run `argv`; returns when it and everything it started are gone.

    Raises OSError when the keeper cannot be started (no processes or descriptors left).
    Cancellation, Ctrl-C and the death of this process kill the tree and are passed on.
    """
    with contextlib.ExitStack() as stack:
        far_control, near_control = os.pipe()
        hold = _Hold(near_control)
        stack.callback(hold.release)
        near_status, far_status = os.pipe()
        try:
            # Starting takes a millisecond or two and must be one step with the pipes around it.
            keeper = subprocess.Popen(  # noqa: ASYNC220
                keeper_command(
                    argv,
                    limits,
                    timeout_s=timeout_s,
                    namespaces=namespaces,
                    drop_capabilities=drop_capabilities,
                    control=far_control,
                    status=far_status,
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd="/",
                pass_fds=(far_control, far_status),
                start_new_session=True,
            )
        except BaseException:
            os.close(near_status)
            raise
        finally:
            os.close(far_control)
            os.close(far_status)
        stack.callback(_reap, keeper)
        stack.callback(hold.release)  # again: on the way out it must come before the reaping
        return await _converse(keeper, near_status, hold, stdin, limits, timeout_s, stack)


async def _converse(
    keeper: subprocess.Popen[bytes],
    near_status: int,
    hold: _Hold,
    stdin: bytes,
    limits: Limits,
    timeout_s: float,
    stack: contextlib.ExitStack,
) -> Ended:
    loop = asyncio.get_running_loop()
    files = [os.fdopen(near_status, "rb", buffering=0), keeper.stdout, keeper.stderr]
    feed = keeper.stdin
    for file in (*files, feed):
        if file is not None:  # always so: all three were asked for
            stack.callback(file.close)
    caps = [1024, limits.output_bytes, limits.output_bytes]
    captures: list[_Capture] = []
    for file, cap in zip(files, caps, strict=True):
        transport, capture = await loop.connect_read_pipe(
            partial(_Capture, cap, hold.release), file
        )
        stack.callback(transport.close)
        captures.append(capture)
    writer, feeding = await loop.connect_write_pipe(_Feed, feed)
    stack.callback(_stop_feeding, writer, feeding)
    writer.write(stdin)  # buffered by the transport: a skill that never reads blocks nobody
    writer.close()
    status, out, err = captures
    frozen = False
    try:
        # The keeper keeps the time; this is for a keeper that was frozen or is stuck.
        await asyncio.wait_for(asyncio.shield(status.closed), timeout_s + _GRACE_S)
    except TimeoutError:
        # Before the keeper itself goes: while it is there its subtree can be found.
        await asyncio.to_thread(kill_tree, keeper.pid, reap=False, budget_s=_FORCE_S)
        keeper.kill()
        frozen = True
    except BaseException:
        hold.release()
        await _settled(status)
        raise
    await asyncio.wait([out.closed, err.closed], timeout=_DRAIN_S)
    how, code, isolation = parse_status(status.data)
    if how == "lost" and frozen:
        how = "timeout"
    over = out.over_cap or err.over_cap
    return Ended(how, code, out.data, err.data, over, isolation)


async def _settled(status: _Capture) -> None:
    """After a cancellation: wait until the tree is gone, so the caller may rely on it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(status.closed), _GRACE_S)


def _reap(keeper: subprocess.Popen[bytes]) -> None:
    """Collect the keeper; it has closed its status pipe, so this is nearly always at once."""
    try:
        keeper.wait(0.05)
    except subprocess.TimeoutExpired:
        # Still clearing up after a cancellation of the cancellation: do not block the loop.
        threading.Thread(target=keeper.wait, daemon=True, name="cuo-reap").start()
