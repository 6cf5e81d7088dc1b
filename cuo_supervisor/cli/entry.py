"""The console script `cyberos-cuo`: Ctrl-C is no traceback, even while the command is imported."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command and ends the process with its exit code."""
    try:
        from cuo_supervisor.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
