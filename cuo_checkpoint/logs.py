"""Structured logs: one JSON object per line, ASCII, with the trace and run it belongs to.

Our own events are names with fields; the message of a foreign library keeps its first line,
scrubbed, or nothing where nobody can scrub it. An exception leaves its type and its place, never its
words: a driver or validator may quote what it was given. Entry points set this up; libraries only
log, and stay silent until then.

Levels: critical wakes someone (severity 1), error is for today (2), warning for this week (3), info
is the normal course, debug is for looking closely.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TextIO

__all__ = [
    "BackgroundHandler",
    "JsonFormatter",
    "LineStream",
    "TextFormatter",
    "event",
    "logging_to",
]

OWN: Final = ("cuo_checkpoint", "cuo_supervisor")
"""Loggers whose records are events of ours."""

_CHARS: Final = 500
_FRAMES: Final = 6
_QUEUED: Final = 2000
_LINE: Final = 16 * 1024
_SCALARS: Final = (bool, int, float, type(None))
_ZERO: Final = "0" * 32

Scrub = Callable[[str], str]
Context = Callable[[], Mapping[str, str]]


def event(logger: logging.Logger, level: int, name: str, /, **fields: Any) -> None:
    """Logs an event of ours. Field values are words, numbers and ids, never anybody's text."""
    with contextlib.suppress(Exception):
        logger.log(level, name, extra={"event": name, "fields": fields})


class JsonFormatter(logging.Formatter):
    """A record as one line. `scrub` cleans foreign messages, `context` tells trace_id and run_id."""

    def __init__(self, *, scrub: Scrub | None = None, context: Context | None = None) -> None:
        super().__init__()
        self._scrub = scrub
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        try:
            return json.dumps(self.entry(record), ensure_ascii=True, allow_nan=False)
        except Exception as error:  # a log line that cannot be made must not cost more than itself
            return json.dumps(
                {
                    "timestamp": _time(record),
                    "level": record.levelname.lower(),
                    "event": "log",
                    "logger": "cuo.logs",
                    "message": f"unloggable: {type(error).__name__}",
                }
            )

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        """What the line says."""
        said: dict[str, Any] = {
            "timestamp": _time(record),
            "level": record.levelname.lower(),
            "event": str(getattr(record, "event", "log")),
            "logger": _cut(record.name),
        }
        if self._context is not None:
            said.update(self._context())
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            for name, value in fields.items():
                if name == "trace_id" and value == _ZERO and "trace_id" in said:
                    continue
                said[_cut(str(name))] = _plain(value)
        elif not hasattr(record, "event"):
            said["message"] = self._message(record)
        if record.exc_info and record.exc_info[1] is not None:
            said.update(_exception(record.exc_info[1]))
        return said

    def _message(self, record: logging.LogRecord) -> str:
        if self._scrub is None:
            return f"{record.module}:{record.lineno}"
        # The first line: what follows is tracebacks and reprs, which quote.
        text = record.getMessage().strip().partition("\n")[0]
        return _cut(self._scrub(text[: _CHARS * 2]))


class TextFormatter(JsonFormatter):
    """The same for a person at a terminal; what could move the cursor is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            said = self.entry(record)
        except Exception as error:
            return f"unloggable: {type(error).__name__}"
        head = [said.pop("timestamp")[11:19], said.pop("level").upper(), said.pop("event")]
        said.pop("logger")
        return " ".join([*head, *(f"{k}={json.dumps(v)}" for k, v in said.items())])


class BackgroundHandler(logging.Handler):
    """Hands lines to a thread that writes them: a reader that is slow or stuck holds nobody up.

    Beyond 2000 waiting lines new ones are lost, and the next that fits says how many.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUED)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="cuo-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # Formatted here: the trace and the run are those of the caller's context.
        line = self.format(record)
        try:
            if self._lost:
                told = {"event": "log", "level": "warning", "lost": self._lost}
                self._lines.put_nowait(json.dumps(told))
                self._lost = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Waits a second for what is queued."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(1.0)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()


class LineStream(io.TextIOBase):
    """Stands in for standard error: every line written to it becomes an event `remark`."""

    def __init__(self, logger: logging.Logger, level: int = logging.INFO) -> None:
        self._logger = logger
        self._level = level
        self._rest = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > _LINE:
                lines.append(self._rest)
                self._rest = ""
        for line in lines:
            self._tell(line)
        return len(text)

    def flush(self) -> None:
        """Lines are told when they end."""

    def close(self) -> None:
        """Tells what stands without a line's end."""
        with self._lock:
            rest, self._rest = self._rest, ""
        self._tell(rest)

    def _tell(self, line: str) -> None:
        if line.strip():
            self._logger.log(self._level, "%s", line.strip())


class _Remarks(JsonFormatter):
    """Lines of standard error are what a person would have read there: words of ours, or scrubbed."""

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        said = super().entry(record)
        if record.name == "stderr":
            text = record.getMessage()
            said["event"] = "remark"
            said["message"] = _cut(self._scrub(text) if self._scrub is not None else text)
        return said


@contextlib.contextmanager
def logging_to(
    stream: TextIO,
    *,
    text: bool = False,
    scrub: Scrub | None = None,
    context: Context | None = None,
    background: bool = False,
    take_stderr: bool = False,
) -> Iterator[None]:
    """Sets this process's logging up for the length of a block, and puts back what was there.

    `take_stderr`: whatever is written to sys.stderr meanwhile becomes events too, so that each
    line of the real one is an event.
    """
    root, own = logging.getLogger(), [logging.getLogger(name) for name in (*OWN, "stderr")]
    handler: logging.Handler = BackgroundHandler(stream) if background else _Quiet(stream)
    made = TextFormatter if text else _Remarks
    handler.setFormatter(made(scrub=scrub, context=context))
    before = (root.handlers[:], root.level, [logger.level for logger in own])
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for logger in own:
        logger.setLevel(logging.INFO)
    hook, threads_hook, stderr = sys.excepthook, threading.excepthook, sys.stderr
    threading.excepthook = lambda args: _uncaught(args.exc_value)
    line_stream = LineStream(logging.getLogger("stderr")) if take_stderr else None
    if line_stream is not None:
        sys.stderr = line_stream
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = hook, threads_hook
        if line_stream is not None:
            sys.stderr = stderr
            line_stream.close()
        root.handlers, level, levels = before[0], before[1], before[2]
        root.setLevel(level)
        for logger, its in zip(own, levels, strict=True):
            logger.setLevel(its)
        handler.close()


class _Quiet(logging.StreamHandler[TextIO]):
    """A handler whose own failures stay its own."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base names it
        """A full disk or a reader gone: nothing to do, and nobody to tell."""


def _uncaught(error: BaseException | None) -> None:
    if error is not None:
        logging.getLogger("cuo_checkpoint").error(
            "thread", exc_info=error, extra={"event": "log", "fields": {"message": "thread ended"}}
        )


def _time(record: logging.LogRecord) -> str:
    at = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _exception(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = [f"{os.path.basename(f.filename)}:{f.name}:{f.lineno}" for f in frames]
    return {"error": type(error).__name__, "where": places}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0.0:
        return str(value)  # not a number, or infinite: JSON has neither
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:20]]
    return type(value).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _CHARS else text[: _CHARS - 1] + "…"
