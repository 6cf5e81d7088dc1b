"""The API's documents. Rows are sent as the log's reader encodes them; these models describe them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cuo_supervisor.core.envelope import MAX_QUERY_BYTES
from cuo_supervisor.http import examples

__all__ = [
    "AnswerRequest",
    "Checkpoint",
    "CheckpointPage",
    "Kind",
    "ProblemDocument",
    "Readiness",
    "RouteRequest",
    "Run",
    "RunPageDocument",
    "Verification",
]

Kind = Literal[
    "run_started", "node_entered", "node_completed", "edge_traversed", "run_completed", "run_failed"
]

_RUN = "019392f4-5b3a-7c1e-9d43-0f7f8a2b6c11"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _like(*shown: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [*shown]})


class Checkpoint(_Document):
    """One row of the log. `state_json` stands in full, in the stored form; digests are hex."""

    checkpoint_id: str
    run_id: str
    parent_checkpoint_id: str | None
    kind: Kind
    node_name: str | None
    edge_from: str | None
    edge_to: str | None
    state_json: Any
    trace_id: str
    created_at: str
    thread_id: str
    checkpoint_ns: str
    seq: int
    step: int | None
    phase: int
    ordinal: int
    lg_checkpoint_id: str | None
    langgraph: Any
    state_sha256: str
    row_sha256: str


class CheckpointPage(_Document):
    """Rows in order of arrival. `next` starts the following page (null: no more now); `tail` is
    where these rows end, for asking later what came after them."""

    run_id: str
    checkpoints: list[Checkpoint]
    next: str | None
    tail: str

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "run_id": _RUN,
                    "checkpoints": [
                        {
                            "checkpoint_id": "019392f4-5b41-7d02-8a11-3c5e9f2d7b60",
                            "run_id": _RUN,
                            "parent_checkpoint_id": "019392f4-5b40-7aa0-b1c2-7d1f0e3a4c55",
                            "kind": "node_completed",
                            "node_name": "branch",
                            "edge_from": None,
                            "edge_to": None,
                            "state_json": {"branch_decision": "auto"},
                            "trace_id": "0af7651916cd43dd8448eb211c80319c",
                            "created_at": "2026-11-30T08:15:30.123456Z",
                            "thread_id": _RUN,
                            "checkpoint_ns": "",
                            "seq": 9,
                            "step": 2,
                            "phase": 3,
                            "ordinal": 0,
                            "lg_checkpoint_id": "1f0c8a12-0a6e-6f1a-8002-2f5b1c0d9e77",
                            "langgraph": None,
                            "state_sha256": "9f" * 32,
                            "row_sha256": "4c" * 32,
                        }
                    ],
                    "next": None,
                    "tail": "W1siMDE5MzkyZjQiLDldXQ",
                }
            ]
        },
    )


class Run(_Document):
    """One run, and the body of its routing decision once it has made one.

    Without one `pending` says, where the run's state does, its persona, path, skill, request
    (scrubbed) and why it was refused.
    """

    model_config = _like(examples.RUN)

    run_id: str
    ulid: str
    thread_id: str
    state: Literal["open", "waiting", "closed"]
    outcome: str | None
    trace_id: str
    first_at: str
    newest_at: str
    log_rows: int
    chain_rows: int
    hidden: bool
    decision: dict[str, Any] | None
    pending: dict[str, str | None] | None


class RunPageDocument(_Document):
    """Runs, newest first. A page may be short, even empty, and still have a `next`."""

    model_config = _like({"runs": [examples.RUN], "next": None})

    runs: list[Run]
    next: str | None


class Dropped(_Document):
    """Chain rows of a run that are gone with a month which retention dropped; no problem."""

    first: int
    last: int
    log_rows: int
    month: str
    told_in: int
    told_at: str
    sealed_at: str | None


class Verification(_Document):
    """What recomputing the run showed: chain, digests, counts, index."""

    model_config = _like(
        examples.VERIFICATION,
        examples.VERIFICATION
        | {"ok": False, "problems": ["seq 2: the row is not what chain row 3 vouches for"]},
    )

    tenant_id: str
    run_id: str
    ok: bool
    rows: int
    chain_rows: int
    writes: int
    problems: list[str]
    dropped: list[Dropped]


class RouteRequest(_Document):
    """One request in words."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"query": "validate MST 0301479073", "persona": "cfo"},
                {"query": "send invoice", "invoke": False},
                {"query": "gửi hóa đơn cho ACME", "persona": "genie", "record": False},
            ]
        },
    )

    query: str = Field(min_length=1, max_length=MAX_QUERY_BYTES)
    persona: str = Field(default="genie", min_length=1, max_length=64)
    invoke: bool | None = Field(
        default=None, description="Run the chosen skill; by default when the request is recorded."
    )
    record: bool = Field(
        default=True, description="Write the log and the decision. false: a dry run."
    )


class AnswerRequest(_Document):
    """A person's answer to a run that waits."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"answer": "approve", "reason": "checked with ACME"},
                {"answer": "deny", "reason": "wrong account"},
            ]
        },
    )

    answer: Literal["approve", "deny"]
    reason: str = Field(min_length=1, max_length=2000)


class Readiness(_Document):
    """Whether requests can be served: `checks` says of what."""

    model_config = _like(examples.READY, {"ready": False, "checks": {"log": "store_unreachable"}})

    ready: bool
    checks: dict[str, str]


class ProblemDocument(BaseModel):
    """RFC 9457. `error` is a fixed word; further members depend on it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:cuo:problem:persona_mismatch",
                    "title": "The token speaks for another persona",
                    "status": 403,
                    "detail": "the token claims persona 'cuo-cto@0.1.0', the request asks for "
                    "'cuo-cfo@0.4.1'",
                    "error": "persona_mismatch",
                    "claimed": "cuo-cto@0.1.0",
                    "requested": "cuo-cfo@0.4.1",
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    error: str
