"""The commands as people run them, a process each; forked from one that has done the imports."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

__all__ = ["COMMAND", "Forked", "Said", "Shell", "imported"]

COMMAND = Path(sys.executable).with_name("cyberos-cuo")
SERVER = Path(__file__).with_name("command_server.py")


@dataclass
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


class Forked:
    """A command forked from a process that has done the imports; looks like a Popen."""

    def __init__(
        self,
        server: socket.socket,
        program: str,
        argv: list[str],
        env: dict[str, str],
        **streams: Any,
    ):
        fds, self._near = [], {}
        for name in ("stdin", "stdout", "stderr"):
            wanted = streams[name]
            if wanted == subprocess.PIPE:
                ends = os.pipe()
                near, far = ends[::-1] if name == "stdin" else ends
                self._near[name] = os.fdopen(near, "wb" if name == "stdin" else "rb")
                fds.append(far)
            elif wanted == subprocess.DEVNULL:
                fds.append(os.open(os.devnull, os.O_RDWR))
            else:
                fds.append(os.dup(wanted if isinstance(wanted, int) else wanted.fileno()))
        near, far = os.pipe()
        self._told = os.fdopen(near, "rb")
        fds.append(far)
        asked = {"program": program, "argv": argv, "env": env}
        socket.send_fds(server, [json.dumps(asked).encode()], fds)
        for fd in fds:
            os.close(fd)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None
        self.stdout, self.stderr = self._near.get("stdout"), self._near.get("stderr")

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._told], [], [], timeout)
            assert ready, "the command did not end"
            self.returncode = int(self._told.readline())
        return self.returncode

    def communicate(self, given: bytes | None, timeout: float) -> tuple[bytes, bytes]:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            if "stdin" in self._near:
                pool.submit(self._feed, given or b"")
            taken = {
                n: pool.submit(self._near[n].read) for n in ("stdout", "stderr") if n in self._near
            }
            self.wait(timeout)
            out, err = (taken[n].result() if n in taken else b"" for n in ("stdout", "stderr"))
        self.close()
        return out, err

    def _feed(self, given: bytes) -> None:
        with contextlib.suppress(BrokenPipeError), self._near["stdin"] as stdin:
            stdin.write(given)

    def close(self) -> None:
        for file in (*self._near.values(), self._told):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Shell:
    """Runs `cyberos-cuo`, or the other program, in an environment of its own.

    No command may ever show a traceback.

    With a `server` commands are forked from it, which saves their imports; `installed()` runs the
    console script itself.
    """

    env: dict[str, str] = field(default_factory=dict)
    server: socket.socket | None = None
    program: str = "cyberos-cuo"

    def installed(self) -> Shell:
        return Shell(self.env, None, self.program)

    def start(self, *words: str | bytes, **options: Any) -> Any:
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"} | self.env | options.pop("env", {})
        for name in ("stdin", "stdout", "stderr"):
            options.setdefault(name, subprocess.DEVNULL if name == "stdin" else subprocess.PIPE)
        if self.server is None:
            return subprocess.Popen([COMMAND.with_name(self.program), *words], env=env, **options)
        argv = [os.fsdecode(word) for word in words]
        return Forked(self.server, self.program, argv, env, **options)

    def __call__(self, *words: str | bytes, given: bytes | None = None, **options: Any) -> Said:
        if given is not None:
            options["stdin"] = subprocess.PIPE
        with self.start(*words, **options) as process:
            return self.end(process, given)

    def end(self, process: Any, given: bytes | None = None) -> Said:
        """Waits for a command and takes what it said."""
        out, err = process.communicate(given, timeout=90)
        said = Said(process.returncode, (out or b"").decode("utf-8"), (err or b"").decode("utf-8"))
        assert "Traceback" not in said.out + said.err, said.err
        return said

    def route(self, query: str | bytes, *words: str | bytes, **options: Any) -> Said:
        return self("supervisor", "route", "--query", query, *words, **options)


@contextlib.contextmanager
def imported(*options: str) -> Iterator[socket.socket]:
    """A process that has imported the command already; see `command_server.py`."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen([sys.executable, SERVER, *options], stdin=far) as process:
        far.close()
        yield near
        near.close()
        process.wait(20)
