"""The HTTP service alone in a process, so that its memory can be measured.

Reads settings as JSON on standard input, writes the port it listens on, and serves until its input
ends. Nothing else is loaded: `cyberos-cuo serve` would load the model client meanwhile, which weighs
more than what is measured.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path

import uvicorn
from pydantic import SecretStr

from cuo_supervisor.compose import Place
from cuo_supervisor.http import Options, create_app
from cuo_supervisor.settings import Settings


def main() -> None:
    """Serves."""
    given = json.loads(sys.stdin.readline())
    dsn = given.pop("database_url")
    data_dir = Path(given.pop("data_dir"))
    app = create_app(
        Settings(database_url=SecretStr(dsn), data_dir=data_dir, **given),
        Place(dsn, "public"),
        options=Options(),
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http="h11", lifespan="on", log_level="critical"))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()

    def until_the_input_ends() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=until_the_input_ends, daemon=True).start()
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
