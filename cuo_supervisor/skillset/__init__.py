"""The seven shipped skills, each a command of its own.

Run as `python -I <this folder> <skill>` with JSON on stdin; `__main__` is the frame. The skill
modules are plain functions without I/O and import nothing from the rest of the package, so a
skill starts in tens of milliseconds and cannot reach the supervisor.
"""

from __future__ import annotations

__all__: list[str] = []
