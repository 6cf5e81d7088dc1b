"""A stand-in for the AI gateway: a real HTTP server on loopback that can misbehave on demand.

In a test:

    with LoopbackGateway() as gateway:
        gateway.script(Step("status", status=429))
        ... call gateway.url ...
        assert gateway.requests[0].header("traceparent")

By hand (prints the address, runs until interrupted):

    python tests/doubles/loopback_gateway.py --port 0 --mode ok

Without a script, mode `ok` plays the model for one request only: offered inv-dunning-draft@1.2
it picks that skill at 0.83, else the first skill offered at 0.40. It reads the offer from the
prompt's data block, as a model would. Uses the standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MODES", "LoopbackGateway", "Recorded", "Step"]

MODES = (
    "ok",
    "answer",
    "delay",
    "hang",
    "hang_mid_body",
    "reset",
    "reset_mid_body",
    "status",
    "malformed",
    "truncated",
    "empty",
    "no_choices",
    "null_content",
    "error_object",
    "not_an_object",
    "wrong_schema",
    "freeform",
    "unknown_skill",
    "oversize",
    "compressed",
    "html",
    "redirect",
)


@dataclass(frozen=True)
class Step:
    """How to treat one request. `answer` is the model's text, or an object to send as JSON."""

    mode: str = "ok"
    answer: Any = None
    status: int = 200
    delay_s: float = 0.0
    location: str = ""


@dataclass(frozen=True)
class Recorded:
    """One request as it arrived. Header names keep their spelling and order."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    raw_body: bytes
    at: float = field(default_factory=time.monotonic)
    """When it was read whole, on this process's monotonic clock."""

    def header(self, name: str) -> str | None:
        """The value of a header, whatever its case; None when absent."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    @property
    def body(self) -> Any:
        """The body as JSON."""
        return json.loads(self.raw_body)


def stand_in_answer(body: Any) -> dict[str, Any]:
    """Play the model: the pick for a prompt built by the supervisor."""
    text = "\n".join(str(m.get("content", "")) for m in body.get("messages", []))
    block = re.search(r"\[DATA ([0-9a-f]{32})\]\n(.*)\n\[END \1\]", text, re.DOTALL)
    offered = json.loads(block[2])["candidates"] if block else []
    names = [entry["skill_name"] for entry in offered]
    if "inv-dunning-draft@1.2" in names:
        return {
            "skill_name": "inv-dunning-draft@1.2",
            "arguments": {},
            "rationale": "The request is about an unpaid contract, which a dunning draft answers.",
            "confidence": 0.83,
        }
    return {
        "skill_name": names[0] if names else "none@0.0",
        "arguments": {},
        "rationale": "No candidate fits; this is the nearest one.",
        "confidence": 0.40,
    }


@dataclass
class LoopbackGateway:
    """The server. `mode` is what happens when the script is empty; `tls` makes it https."""

    mode: str = "ok"
    port: int = 0
    tls: ssl.SSLContext | None = None
    status: int = 500
    delay_s: float = 5.0
    requests: list[Recorded] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    _script: deque[Step] = field(default_factory=deque)
    _ready: threading.Event = field(default_factory=threading.Event)

    def script(self, *steps: Step) -> None:
        """Queue treatments for the next requests, one each."""
        self._script.extend(steps)

    def forget(self) -> None:
        """Drops what was asked and what is still scripted; misbehaves no more."""
        self.mode = "ok"
        self.requests.clear()
        self._script.clear()

    def __enter__(self) -> LoopbackGateway:
        self._thread = threading.Thread(target=self._run, name="loopback-gateway", daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the loopback gateway did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        port = server.sockets[0].getsockname()[1]
        scheme, host = ("https", "localhost") if self.tls else ("http", "127.0.0.1")
        self.url = f"{scheme}://{host}:{port}"
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                step = self._script.popleft() if self._script else self._default()
                if not await self._answer(step, request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    def _default(self) -> Step:
        delay = self.delay_s if self.mode == "delay" else 0.0
        return Step(self.mode, status=self.status, delay_s=delay)

    async def _answer(
        self,
        step: Step,
        request: Recorded,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Send what `step` says; True while the connection may be used again."""
        mode = step.mode
        if mode in {"delay", "answer"} and step.delay_s:
            await asyncio.sleep(step.delay_s)
        if mode == "hang":
            await reader.read()  # until the client gives up
            return False
        if mode == "reset":
            _reset(writer)
            return False
        if mode == "redirect":
            writer.write(_head(307, 0, [("Location", step.location or self.url + "/stolen")]))
            await writer.drain()
            return True
        whole = self._body(step, request)
        status = step.status if mode == "status" else 200
        if mode in {"hang_mid_body", "truncated", "reset_mid_body"}:
            writer.write(_head(status, len(whole)) + whole[: len(whole) // 2])
            await writer.drain()
            if mode == "hang_mid_body":
                await reader.read()
            elif mode == "reset_mid_body":
                await asyncio.sleep(0.05)  # let the first half arrive
                _reset(writer)
            return False
        extra = [("Content-Encoding", "gzip")] if mode == "compressed" else []
        writer.write(_head(status, len(whole), extra) + whole)
        await writer.drain()
        return True

    def _body(self, step: Step, request: Recorded) -> bytes:
        mode = step.mode
        fixed = {
            "malformed": b'{"choices": [{"message": ',
            "empty": b"",
            "no_choices": b'{"choices": []}',
            "null_content": b'{"choices": [{"message": {"content": null}}]}',
            "error_object": b'{"error": {"message": "no", "code": "500"}}',
            "not_an_object": b"[]",
            "html": b"<html><body>Bad gateway</body></html>",
            "compressed": b"\x1f\x8b\x08\x00",
            "status": b'{"error": {"message": "SECRET-SERVER-TEXT"}}',
        }
        if mode in fixed:
            return fixed[mode]
        texts: dict[str, Any] = {
            "wrong_schema": {"skill_name": "inv-dunning-draft@1.2", "confidence": "high"},
            "freeform": "I think you should send a reminder to ACME.",
            "unknown_skill": {
                "skill_name": "make-up-skill",
                "arguments": {},
                "rationale": "It sounds right.",
                "confidence": 0.99,
            },
            "oversize": "x" * (300 * 1024),
        }
        answer = step.answer if step.answer is not None else texts.get(mode)
        if answer is None:
            answer = stand_in_answer(request.body)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        return json.dumps(
            {"id": "loopback", "object": "chat.completion", "choices": [choice]}
        ).encode()


async def _read_request(reader: asyncio.StreamReader) -> Recorded | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines if line)]
    length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
    return Recorded(method, target, tuple(headers), await reader.readexactly(length))


def _head(status: int, length: int, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Loopback",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *(f"{name}: {value}" for name, value in extra),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    writer.transport.abort()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A stand-in for the AI gateway, on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--mode", choices=MODES, default="ok")
    parser.add_argument("--status", type=int, default=500, help="for mode status")
    parser.add_argument("--delay", type=float, default=5.0, help="seconds, for mode delay")
    given = parser.parse_args()
    server = LoopbackGateway(given.mode, given.port, status=given.status, delay_s=given.delay)
    with server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)  # noqa: T201 - the address is the output
        threading.Event().wait()


if __name__ == "__main__":
    main()
