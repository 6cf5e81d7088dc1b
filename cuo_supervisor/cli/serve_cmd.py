"""`cyberos-cuo serve`: the HTTP service and the auditor's page."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from cuo_supervisor.cli.common import (
    FLUSH_SECONDS,
    debug_option,
    load_settings,
    place_of,
    remark,
)
from cuo_supervisor.errors import ConfigError, SupervisorError, UsageError

__all__ = ["serve"]

_log = logging.getLogger("cuo_supervisor.service")

_LAST_WORDS: Final = 5
"""Seconds for answers and streams after the runs have had theirs."""

_EPILOG = """\b
Examples:
  cyberos-cuo serve
  cyberos-cuo serve --port 0
  cyberos-cuo serve --port 0 --json | head -1 | jq -r .address
  curl -s http://127.0.0.1:8321/v1/cuo/runs
  curl -s -H 'Accept: application/x-ndjson' http://127.0.0.1:8321/v1/cuo/runs/RUN/checkpoints
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Local mode has no login and takes loopback only.",
)
@click.option(
    "--port",
    default=8321,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: any free one, told on stderr.",
)
@click.option(
    "--shutdown-seconds",
    default=30,
    show_default=True,
    type=click.IntRange(1, 600),
    help="How long runs in flight may take to end once asked to stop.",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    show_default=True,
    help="Of standard error: one JSON event per line, or text. auto: text at a terminal.",
)
@click.option(
    "--json/--no-json",
    "as_json",
    default=False,
    help="One line of JSON on stdout once it listens: address, mode and pid.",
)
@debug_option
def serve(host: str, port: int, shutdown_seconds: int, log_format: str, as_json: bool) -> int:
    """Serve the API and the pages until SIGTERM or Ctrl-C; runs in flight end first.

    Speaks plain HTTP: in server mode put a proxy with TLS before it.
    """
    from cuo_checkpoint.logs import event

    with _logging(log_format):
        try:
            code = _serve(host, port, shutdown_seconds, as_json)
        except SupervisorError as error:
            fields = {"failure": "start_refused", "severity": 1}
            event(_log, logging.CRITICAL, "service.refused", error=error.error, **fields)
            raise
        event(_log, logging.INFO, "service.stopped", code=code)
        return code


@contextlib.contextmanager
def _logging(chosen: str) -> Iterator[None]:
    """Standard error as one event per line, for as long as the service runs."""
    from cuo_checkpoint.logs import logging_to
    from cuo_supervisor.core.scrub import scrub
    from cuo_supervisor.route_record import log_context

    if sys.stderr is None:
        yield
        return
    text = chosen == "text" or (chosen == "auto" and sys.stderr.isatty())
    with logging_to(
        sys.stderr,
        text=text,
        scrub=scrub,
        context=log_context,
        background=True,
        take_stderr=not text,
    ):
        yield


def _serve(host: str, port: int, shutdown_seconds: int, as_json: bool) -> int:
    settings = load_settings()
    try:
        import uvicorn

        from cuo_checkpoint import telemetry as store_telemetry
        from cuo_checkpoint.gauges import Gauges, observe
        from cuo_supervisor import telemetry
        from cuo_supervisor.http import Options, create_app
        from cuo_supervisor.http.listening import Impatient
        from cuo_supervisor.http.metrics import Metrics
        from cuo_supervisor.http.options import is_loopback
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs the api extra ({error.name} is missing): pip install 'cuo[api]'"
        ) from None
    if settings.mode == "local" and not is_loopback(host):
        raise UsageError(
            "local mode has no login, so it listens on loopback only; "
            "set CUO_DATABASE_URL and the three settings of identity to serve others"
        )
    options = Options(shutdown_seconds=float(shutdown_seconds))
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(_socket(host, port))
        metrics = Metrics()
        stack.callback(_measure(metrics))
        place = stack.enter_context(place_of(settings))
        gauges = Gauges(
            lambda: observe(place.conninfo, schema=place.schema, everyone_dsn=place.auditor)
        )
        stack.callback(gauges.close)
        gauges.refresh()
        telemetry.default.start_at_zero()
        store_telemetry.current().start_at_zero()
        app = create_app(settings, place, options=options, metrics=metrics)
        stack.enter_context(_reloading(settings, app.state.service.supervisor))
        config = uvicorn.Config(
            app,
            http=Impatient,
            lifespan="on",
            access_log=False,  # its lines hold query strings; the guard tells of each response
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # the peer is the socket's; no rule here depends on another
            timeout_keep_alive=15,
            # The service itself ends late runs in time, so that whoever asked still hears of it.
            timeout_graceful_shutdown=shutdown_seconds + _LAST_WORDS,
        )
        address = _address(listening)
        ready = {"address": address, "mode": settings.mode, "pid": os.getpid()}
        server = _server_of(
            uvicorn,
            config,
            address,
            app.state.service.stop,
            said=f"{json.dumps(ready)}\n" if as_json else "",
        )
        server.run(sockets=[listening])
    return 0


@contextlib.contextmanager
def _reloading(settings: Any, supervisor: Any) -> Iterator[None]:
    """SIGHUP reads the catalogue again; one that is wrong is told and changes nothing."""
    from cuo_supervisor.catalog_loader import load_catalog

    def reload() -> None:
        try:
            supervisor.catalog = load_catalog(settings.catalog)
        except SupervisorError as error:
            remark(f"the catalogue was not reloaded: {error}")
        except Exception as error:  # a fault of ours must not make later signals go unheard
            remark(f"the catalogue was not reloaded: {type(error).__name__}")
        else:
            remark(f"catalogue reloaded: {supervisor.catalog.snapshot_hash[:16]}")

    # In a thread: reading files must not hold up the requests under way. In one only, in the order
    # of the signals: of two that came close together the older must not have the last word.
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def work() -> None:
        while asked.get():
            reload()

    worker = threading.Thread(target=work, name="cuo-reload", daemon=True)
    worker.start()
    before = signal.signal(signal.SIGHUP, lambda *_: asked.put(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        asked.put(False)
        worker.join(_LAST_WORDS)


def _exporting(metrics: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from cuo_supervisor import telemetry_sdk

    tracing, metering = telemetry_sdk.install(
        readers=[PeriodicExportingMetricReader(OTLPMetricExporter()), metrics.reader]
    )

    return lambda: telemetry_sdk.shut_down([tracing, metering], seconds=FLUSH_SECONDS)


def _announce(text: str) -> None:
    """Writes to stdout without waiting: a reader that does not read must not hold the service up."""

    def write(fd: int) -> None:
        with contextlib.suppress(OSError):
            os.write(fd, text.encode())

    if sys.stdout is not None:
        # Past the stream's buffer, whose lock the end of the process would wait for.
        threading.Thread(target=write, args=[sys.stdout.fileno()], daemon=True).start()


def _server_of(
    uvicorn: Any, config: Any, address: str, stop: Callable[[], None], *, said: str
) -> Any:
    from cuo_checkpoint.logs import event
    from cuo_supervisor import gateway_provider

    class Server(uvicorn.Server):  # type: ignore[misc]
        """Says where it listens, and leaves signals to end this process in order."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                event(_log, logging.INFO, "service.listening", address=address)
                if said:
                    _announce(said)
                # The model client's own models warn about their annotations while they load.
                warnings.filterwarnings("ignore", category=UserWarning, module=r"pydantic\.")
                gateway_provider.start_warm_up()

        async def shutdown(self, sockets: Any = None) -> None:
            stop()
            await super().shutdown(sockets)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # The original raises the signal again afterwards, before the database is left.
            before = {
                number: signal.signal(number, self.handle_exit)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    return Server(config)


def _socket(host: str, port: int) -> socket.socket:
    """Bound before anything slow, so that a wrong address is told at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError, IndexError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not an address"
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _measure(metrics: Any) -> Any:
    """Counts for /metrics, and for OTLP when OTEL_EXPORTER_OTLP_* names where; how to stop."""
    if any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        try:
            return _exporting(metrics)
        except ImportError:
            remark("OTEL_EXPORTER_OTLP_* is set but the otel extra is missing: nothing is sent")
    from opentelemetry import metrics as api
    from opentelemetry.sdk.metrics import MeterProvider

    provider = MeterProvider([metrics.reader])
    api.set_meter_provider(provider)
    return provider.shutdown
