"""`cyberos-cuo serve` as a process of its own, in local mode."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from forked_commands import Shell

__all__ = ["Served"]


class Served:
    """The running process and its address. With a `server` it is forked from that, see `Shell`."""

    def __init__(
        self, data_dir: Path, *options: str, server: socket.socket | None = None, **env: str
    ) -> None:
        self.env = {
            "HOME": os.environ.get("HOME", "/"),
            "CUO_DATA_DIR": str(data_dir),
            **env,
        }
        self.cli = Shell(self.env, server)
        self.process = self.cli.start("serve", "--port", "0", *options)
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line.decode())
            said = json.loads(line)  # every line is one event
            if said["event"] == "service.listening":
                self.url = said["address"]
                break
        else:
            pytest.fail(f"serve ended: {self.said}")
        self._rest = threading.Thread(target=self._listen)
        self._rest.start()

    def _listen(self) -> None:
        self.said.extend(line.decode() for line in self.process.stderr)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Asks it to end; its exit code."""
        self.process.send_signal(how)
        code: int = self.process.wait(60)
        self._rest.join(10)
        with self.process:
            pass  # closes its streams
        return code
