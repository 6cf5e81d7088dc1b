"""`cyberos-cuo serve` as a process of its own, in local mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

__all__ = ["CUO", "Served"]

CUO = [sys.executable, "-c", "from cuo_supervisor.cli.main import main; main()"]


class Served:
    """The running process and its address."""

    def __init__(self, data_dir: Path, *options: str, **env: str) -> None:
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "CUO_DATA_DIR": str(data_dir),
            **env,
        }
        self.process = subprocess.Popen(
            [*CUO, "serve", "--port", "0", *options],
            env=self.env,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            said = json.loads(line)  # every line is one event
            if said["event"] == "service.listening":
                self.url = said["address"]
                break
        else:
            pytest.fail(f"serve ended: {self.said}")
        self._rest = threading.Thread(target=self.said.extend, args=[self.process.stderr])
        self._rest.start()

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Asks it to end; its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(60)
        self._rest.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CUO, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
