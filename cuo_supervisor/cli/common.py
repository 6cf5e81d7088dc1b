"""What commands share: settings, the log's place, notices, output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cuo_checkpoint.cli_output import OutputLost, deliver, emit_json, mute, remark

if TYPE_CHECKING:
    # --help must not pay for psycopg and pydantic.
    from cuo_supervisor.settings import Settings

__all__ = [
    "FLUSH_SECONDS",
    "OutputLost",
    "debug_option",
    "deliver",
    "emit_json",
    "json_option",
    "load_settings",
    "mute",
    "notice_when_slow",
    "place_of",
    "printable",
    "remark",
    "run_uuid",
    "stdin_text",
    "telemetry_sent",
    "waiting_text",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """`--json`: one JSON document on stdout, nothing else there."""
    return click.option(
        "--json/--no-json",
        "as_json",
        default=False,
        help="One JSON document on stdout instead of text.",
    )(command)


def debug_option(command: F) -> F:
    """`--debug`: read by the exit code table; declared here so that it is accepted."""
    return click.option(
        "--debug",
        is_flag=True,
        default=False,
        help="Print the traceback of an unexpected fault.",
        expose_value=False,
    )(command)


def one_line(text: str) -> str:
    """As `printable`, and the text cannot begin a line that looks like one of ours either."""
    return printable(text).replace("\n", "\\n")


def printable(text: str) -> str:
    """Text that cannot move the cursor, colour the screen or hide: control characters as escapes."""
    return "".join(
        c
        if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


@contextlib.contextmanager
def notice_when_slow(text: str, after: float = 1.5) -> Iterator[None]:
    """Says what is going on when it takes longer than a moment."""
    timer = threading.Timer(after, remark, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load_settings() -> Settings:
    """What the environment says. Imported here: help and completion need none of it.

    Raises ConfigError, naming every variable that is wrong.
    """
    from cuo_supervisor.settings import Settings

    return Settings.load()


@contextlib.contextmanager
def place_of(settings: Settings) -> Iterator[Any]:
    """The log's place, announced when opening it takes a while."""
    from cuo_supervisor.compose import open_place

    with contextlib.ExitStack() as stack:
        with notice_when_slow(waiting_text(settings)):
            place = stack.enter_context(open_place(settings))
        yield place


@contextlib.contextmanager
def run_reader() -> Iterator[Any]:
    """A reader of the caller's tenant."""
    from cuo_checkpoint.runs import RunReader
    from cuo_supervisor.compose import identity_of
    from cuo_supervisor.core.scrub import scrub

    settings = load_settings()
    # Whoever decides on a waiting run must be able to read it first.
    identity = identity_of(settings, approver=True)
    with (
        place_of(settings) as place,
        RunReader(
            place.conninfo,
            tenant_id=identity.tenant_id,
            schema=place.schema,
            connections=1,
            scrub=scrub,
        ) as reader,
    ):
        yield reader


def waiting_text(settings: Settings) -> str:
    """What a command says when the log's place takes a while to open."""
    if settings.mode == "local":
        return "starting the local database ..."
    return "waiting for the database ..."


def stdin_text(limit: int) -> str:
    """All of stdin as UTF-8, without the line's end; reads no more than `limit` bytes and a few.

    Raises UsageError for bytes that are not UTF-8, for more of them, and without a stdin.
    """
    from cuo_supervisor.errors import UsageError

    if sys.stdin is None:
        raise UsageError("standard input is closed, so --query - has nothing to read")
    data = sys.stdin.buffer.read(limit + 3)
    if len(data) > limit + 2:
        raise UsageError(f"standard input holds more than the {limit} bytes a query may have")
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError("standard input is not valid UTF-8; check its encoding") from None


def run_uuid(text: str) -> Any:
    """A run named by UUID or by ULID. Raises UsageError."""
    from cuo_checkpoint.errors import InvalidIdentifier
    from cuo_checkpoint.ids import run_id_from_ulid
    from cuo_supervisor.errors import UsageError

    try:
        return run_id_from_ulid(text.strip())
    except InvalidIdentifier:
        raise UsageError(
            "RUN is neither a UUID nor a 26-character ULID; cyberos-cuo runs list shows them"
        ) from None


FLUSH_SECONDS: Final = 3.0
"""What a command waits at its end for its spans to be taken; a collector that is down costs no more."""


@contextlib.contextmanager
def telemetry_sent() -> Iterator[None]:
    """Sends spans and metrics of this command where OTEL_EXPORTER_OTLP_* say, if they say."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        yield
        return
    try:
        from cuo_supervisor import telemetry_sdk

        providers = telemetry_sdk.install()
    except ImportError:
        remark("OTEL_EXPORTER_OTLP_* is set but the otel extra is not installed: nothing is sent")
        yield
        return
    try:
        yield
    finally:
        telemetry_sdk.shut_down(providers, seconds=FLUSH_SECONDS)
