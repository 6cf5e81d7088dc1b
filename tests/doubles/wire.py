"""A proxy that counts PostgreSQL's protocol messages and strikes before a chosen one.

Every message that passes, in either direction, once a connection is ready, is a step. Before step
`strike_at` is passed on, one of three things happens: "kill", the client process gets SIGKILL and
the server sees its socket close; "terminate", the server process of that connection is terminated;
"cut", the connection breaks in between, both living on, so that nobody knows what the other heard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

__all__ = ["Wire"]


class Wire:
    """Listens on a Unix socket of its own; `dsn` leads through it."""

    def __init__(self, target: str, admin: str, folder: Path) -> None:
        values = {k: v for k, v in conninfo_to_dict(target).items() if v is not None}
        self._host = str(values.get("host", "localhost"))
        self._port = int(str(values.get("port") or 5432))
        self._admin = admin
        self.dsn = make_conninfo("", **{**values, "host": str(folder), "port": 5432})
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        self._lock = threading.Lock()
        self._pids: list[int] = []
        self.rearm(None, "kill")
        threading.Thread(target=self._accept, daemon=True).start()

    def rearm(self, strike_at: int | None, mode: Literal["kill", "terminate", "cut"]) -> None:
        """Starts counting anew; None only counts."""
        with self._lock:
            self.steps: list[str] = []
            self.struck = False
            self._strike_at = strike_at
            self._mode = mode

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def settle(self) -> None:
        """Waits until the server has let go of every connection that came this way."""
        with self._lock:
            pids, self._pids = self._pids, []
        with psycopg.connect(self._admin, autocommit=True) as conn:
            _until_gone(conn, pids)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            link = _Link(self, client)
            threading.Thread(target=link.from_client, daemon=True).start()
            threading.Thread(target=link.from_server, daemon=True).start()

    def server(self) -> socket.socket:
        """A new connection to the real server."""
        if self._host.startswith("/"):
            made = socket.socket(socket.AF_UNIX)
            made.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return made
        return socket.create_connection((self._host, self._port))

    def step(self, link: _Link, kind: str) -> bool:
        """Counts a message; strikes if it is the one. False: the message must not pass."""
        with self._lock:
            self.steps.append(kind)
            if self.struck or len(self.steps) - 1 != self._strike_at:
                return not (self.struck and self._mode == "kill")
            self.struck = True
            if self._mode == "kill":
                os.kill(link.client_pid, signal.SIGKILL)
            if self._mode in ("kill", "cut"):
                return False
        with psycopg.connect(self._admin, autocommit=True) as conn:
            conn.execute("SELECT pg_terminate_backend(%s)", (link.server_pid,))
            _until_gone(conn, [link.server_pid])
        return True


class _Link:
    """One client's connection, and the server's other half of it."""

    def __init__(self, wire: Wire, client: socket.socket) -> None:
        self.wire = wire
        self.client = client
        self.server = wire.server()
        self.server_pid = 0
        self.ready = False
        credentials = client.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        self.client_pid = struct.unpack("3i", credentials)[0]

    def from_client(self) -> None:
        """Start-up packet as it is, then message by message."""
        with self._until_broken():
            head = _exactly(self.client, 4)
            self.server.sendall(head + _exactly(self.client, struct.unpack("!I", head)[0] - 4))
            while True:
                kind, message = _message(self.client)
                # Saying goodbye is no part of a call.
                if self.ready and kind != "X" and not self.wire.step(self, f">{kind}"):
                    return
                # A server that has been terminated is found out by reading, not by writing.
                with contextlib.suppress(OSError):
                    self.server.sendall(message)

    def from_server(self) -> None:
        """Message by message; ready from the first ReadyForQuery on."""
        with self._until_broken():
            while True:
                kind, message = _message(self.server)
                if kind == "K":
                    self.server_pid = struct.unpack("!I", message[5:9])[0]
                    with self.wire._lock:
                        self.wire._pids.append(self.server_pid)
                if self.ready and not self.wire.step(self, f"<{kind}"):
                    return
                self.ready = self.ready or kind == "Z"
                self.client.sendall(message)

    @contextlib.contextmanager
    def _until_broken(self) -> Any:
        try:
            with contextlib.suppress(OSError, EOFError):
                yield
        finally:
            for side in (self.client, self.server):
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)
                side.close()


def _message(side: socket.socket) -> tuple[str, bytes]:
    head = _exactly(side, 5)
    return chr(head[0]), head + _exactly(side, struct.unpack("!I", head[1:5])[0] - 4)


def _exactly(side: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        part = side.recv(n - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _until_gone(conn: psycopg.Connection[Any], pids: list[int]) -> None:
    for _ in range(2000):
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", (pids,)
        ).fetchone()
        if row == (0,):
            return
        time.sleep(0.005)
    raise TimeoutError(f"server processes {pids} did not end")
