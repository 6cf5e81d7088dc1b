"""A bar for work that takes long: on a terminal only, on stderr, and only once it does take long."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress"]

_PATIENCE: Final = 0.8
"""Seconds without a bar: loading what draws it takes a fifth of one."""


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields what to call with the number done so far. The bar is gone when the block ends."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done: None
        return
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        tell: Callable[[int], None] | None = None

        def told(done: int) -> None:
            nonlocal tell
            if tell is None and time.monotonic() - began > _PATIENCE:
                bar = stack.enter_context(_bar())
                task = bar.add_task(what, total=total)
                tell = lambda count: bar.update(task, completed=count)  # noqa: E731
            if tell is not None:
                tell(done)

        yield told


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
