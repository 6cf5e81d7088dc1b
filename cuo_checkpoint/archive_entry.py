"""The console script `cuo-archive`: Ctrl-C is no traceback, even while the command is imported."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Runs the command; its exit code."""
    try:
        from cuo_checkpoint.archive_cli import main as run
    except KeyboardInterrupt:
        return 130
    return run()
