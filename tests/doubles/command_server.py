"""Commands without their start-up: imports both programs once, then forks for each command.

Reads requests from a Unix socket on descriptor 0: JSON with program, argv and env, and four descriptors
(standard streams, and a pipe on which the process's id and later its wait status are written).
Each command is a process of its own that ends by `sys.exit` as the installed one does.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import socket
import sys

# What commands load anyway. The model client is heavy, and most need none: see below.
import cuo_checkpoint.archive_cli
import cuo_checkpoint.gauges
import cuo_checkpoint.local
import cuo_checkpoint.readiness
import cuo_checkpoint.runs
import cuo_checkpoint.seal  # noqa: F401
import cuo_supervisor.cli.doctor_cmd
import cuo_supervisor.cli.main
import cuo_supervisor.cli.runs_cmd
import cuo_supervisor.cli.supervisor_cmd
import cuo_supervisor.compose
from cuo_checkpoint.archive_entry import main as archive
from cuo_supervisor.cli.entry import main as cyberos_cuo
from cuo_supervisor.gateway_provider import ENVIRONMENT

PROGRAMS = {"cyberos-cuo": cyberos_cuo, "cuo-archive": archive}


def command(program: str, argv: list[str], env: dict[str, str], streams: list[int]) -> None:
    """Becomes the command: its streams, environment and arguments, then its end."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        setattr(
            sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=True)
        )
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [program, *argv]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(PROGRAMS[program]())


def serve(requests: socket.socket) -> None:
    """Forks a waiter for each request, which forks the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            *streams, told = fds
            asked = json.loads(data)
            pid = os.fork()
            if pid == 0:
                command(asked["program"], asked["argv"], asked["env"], streams)
            for stream in streams:
                os.close(stream)
            os.write(told, f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    if "--model-client" in sys.argv:
        os.environ.update(ENVIRONMENT)
        import litellm  # noqa: F401

        import cuo_supervisor.cli.serve_cmd
        import cuo_supervisor.http.app  # noqa: F401
    gc.collect()
    gc.freeze()  # no command walks through what was imported
    serve(socket.socket(fileno=os.dup(0)))
