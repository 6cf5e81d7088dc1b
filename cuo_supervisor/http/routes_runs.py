"""Reading the log: runs, their checkpoints, whether they recompute."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from cuo_checkpoint.event_pages import parse_cursor, read_page
from cuo_checkpoint.run_records import STATES
from cuo_supervisor.http.auth import Caller, TheService
from cuo_supervisor.http.problems import run_unknown
from cuo_supervisor.http.responses import PROBLEMS
from cuo_supervisor.http.schemas import CheckpointPage, Kind, RunPageDocument, Verification
from cuo_supervisor.http.service import run_uuid

__all__ = ["JSON_BYTES_MAX", "NDJSON", "router"]

router = APIRouter(prefix="/v1/cuo/runs", tags=["runs"], responses=PROBLEMS)

NDJSON: Final = "application/x-ndjson"
JSON_BYTES_MAX: Final = 4 * 1024 * 1024
"""A page ends at the first row beyond this, so that one answer's size has a bound near 9 MB."""

_PRIVATE: Final = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}


@router.get(
    "/{run_id}/checkpoints",
    response_model=CheckpointPage,
    responses={
        200: {"content": {NDJSON: {"schema": {"type": "string"}}}},
        304: {"description": "Nothing was added since."},
    },
    summary="A run's log rows",
)
async def checkpoints(
    run_id: str,
    caller: Caller,
    service: TheService,
    after: Annotated[
        str | None, Query(description="`next` or `tail` of an earlier page.", max_length=32768)
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Rows; not for streams.")] = 100,
    kind: Annotated[
        list[Kind] | None, Query(description="Only these kinds; may stand several times.")
    ] = None,
    accept: Annotated[str, Header()] = "*/*",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Rows in order of arrival, with the state in full.

    As JSON a page; with `Accept: application/x-ndjson` all rows, one a line, in one answer. Rows
    never change and none comes in between, so pages do not shift while the run goes on, and the
    ETag changes only when the run has grown.
    """
    run = run_uuid(run_id)
    places = {} if after is None else parse_cursor(after)
    kinds = sorted(set(kind)) if kind else None
    streamed = _wants_ndjson(accept)
    size = 0 if streamed else limit
    if streamed or if_none_match is not None:
        head = await service.head(caller, run)
        tag = _tag(caller.tenant_id, run, head.log_rows, after, size, kinds)
        if if_none_match is not None and _matches(if_none_match, tag):
            return Response(status_code=304, headers={**_PRIVATE, "ETag": tag})
        if streamed:
            rows = service.stream(caller, run, places, kinds)
            return _Stream(rows, service.options.write_seconds, {**_PRIVATE, "ETag": tag})
    page = await service.read(
        caller,
        lambda reader: read_page(
            reader.engine,
            reader.tenant_id,
            run,
            after=places,
            limit=limit,
            max_bytes=JSON_BYTES_MAX,
            kinds=kinds,
        ),
    )
    if page is None:
        raise run_unknown()
    body = b'{"run_id":"%s","checkpoints":[%s],"next":%s,"tail":%s}' % (
        str(run).encode(),
        b",".join(page.rows),
        orjson.dumps(page.next),
        orjson.dumps(page.tail),
    )
    tag = _tag(caller.tenant_id, run, page.log_rows, after, size, kinds)
    return Response(body, media_type="application/json", headers={**_PRIVATE, "ETag": tag})


@router.get("", response_model=RunPageDocument, summary="Runs, newest first")
async def runs(
    caller: Caller,
    service: TheService,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[
        str | None, Query(description="`next` of an earlier page.", max_length=256)
    ] = None,
    since: Annotated[
        dt.datetime | None, Query(description="Began at or after; without a zone it is UTC.")
    ] = None,
    until: Annotated[dt.datetime | None, Query(description="Began before.")] = None,
    state: Annotated[
        str | None,
        Query(
            pattern=f"^({'|'.join(STATES)})$",
            description="How it stands, or ended; closed is however it ended.",
        ),
    ] = None,
    outcome: Annotated[str | None, Query(max_length=64)] = None,
    persona: Annotated[str | None, Query(max_length=64, description="Short or long name.")] = None,
    path: Annotated[str | None, Query(max_length=64)] = None,
    skill: Annotated[
        str | None, Query(max_length=200, description="With or without its version.")
    ] = None,
) -> Response:
    """Runs of the caller's tenant with their decisions."""
    page = await service.read(
        caller,
        lambda reader: reader.list_runs(
            limit=limit,
            before=before,
            since=in_utc(since),
            until=in_utc(until),
            state=state,
            outcome=outcome,
            persona=persona,
            path=path,
            skill=skill,
        ),
    )
    return _json(page.to_json())


@router.get("/{run_id}/verify", response_model=Verification, summary="Recompute a run")
async def verify(run_id: str, caller: Caller, service: TheService) -> Response:
    """Chain, digests of every row, pending writes, counts and index, recomputed now.

    A run that does not hold is an answer (`ok` false), not a problem.
    """
    run = run_uuid(run_id)
    found = await service.read(caller, lambda reader: reader.verify(run))
    return _json(found.to_json())


def in_utc(at: dt.datetime | None) -> dt.datetime | None:
    """A time without a zone is meant in UTC."""
    return at.replace(tzinfo=dt.UTC) if at is not None and at.tzinfo is None else at


def _json(document: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json", headers=_PRIVATE)


def _wants_ndjson(accept: str) -> bool:
    """Whether NDJSON is asked for by name; a quality of 0 refuses it."""
    for part in accept.split(","):
        name, *parameters = (word.strip().casefold() for word in part.split(";"))
        if name == NDJSON:
            return not any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00") for p in parameters)
    return False


def _tag(
    tenant: str,
    run: uuid.UUID,
    log_rows: int,
    after: str | None,
    limit: int,
    kinds: Sequence[str] | None,
) -> str:
    """A run's rows are only ever added to, so their number stands for all of them.

    A stream's is read before its rows: if some come in between, the tag is merely too old.
    """
    said = orjson.dumps([1, tenant, str(run), log_rows, after, limit, kinds])
    return f'"{hashlib.sha256(said).hexdigest()[:32]}"'


def _matches(header: str, tag: str) -> bool:
    given = (word.strip().removeprefix("W/") for word in header.split(","))
    return any(word in (tag, "*") for word in given)


class _Stream(StreamingResponse):
    """NDJSON to a reader that must keep reading: one that stalls is cut off."""

    def __init__(self, rows: Any, write_seconds: float, headers: Mapping[str, str]) -> None:
        super().__init__(rows, media_type=NDJSON, headers=headers)
        self._write_seconds = write_seconds

    async def stream_response(self, send: Send) -> None:
        # The first rows come before the status, so that a failure can still say what it is.
        rows = aiter(self.body_iterator)
        try:
            chunk = await anext(rows, b"")
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            while chunk:
                async with asyncio.timeout(self._write_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(rows, b"")
        finally:
            await rows.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})
