"""What reading the log returns: frozen records that know their own JSON. Pure."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cuo_checkpoint import ids
from cuo_checkpoint.canonical import JsonValue

__all__ = [
    "ENDED",
    "OUTCOMES",
    "STATES",
    "AuditRecord",
    "EventRecord",
    "RunPage",
    "RunSummary",
    "WriteRecord",
    "rfc3339",
]

OUTCOMES: Final = ("run_completed", "run_failed", "direct", "tombstone")

ENDED: Final = {outcome.removeprefix("run_"): outcome for outcome in OUTCOMES}
"""The words for how a closed run ended, and the outcomes they mean."""

STATES: Final = ("open", "waiting", "closed", *ENDED)
"""What a listing may be narrowed to by `state`: as it is stored, or as a listing shows it."""


def rfc3339(at: dt.datetime) -> str:
    """An instant in UTC with microseconds, as the audit chain spells it."""
    return at.astimezone(dt.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


class _Record:
    """`to_json` of every record: UUIDs as text, times in UTC, the rest as it is."""

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RunSummary(_Record):
    """One run, from the index, with its routing decision when it has made one.

    `state` is open, waiting or closed; `outcome` says how a closed run ended (run_completed,
    run_failed, direct, tombstone). `hidden` runs were deleted from LangGraph's view, not from the
    log. `decision` is the body of the run's `cuo.routing_decision` row. Without one,
    `pending` holds what the newest state says of persona, path, skill, request (only as a reader's
    `scrub` lets it through) and, where it was refused before it was decided, why.
    """

    run_id: uuid.UUID
    thread_id: str
    state: str
    outcome: str | None
    trace_id: str
    first_at: dt.datetime
    newest_at: dt.datetime
    log_rows: int
    chain_rows: int
    hidden: bool
    decision: Mapping[str, Any] | None
    pending: Mapping[str, str | None] | None = None

    @property
    def ulid(self) -> str:
        """The run id's other spelling: the request id."""
        return ids.ulid_of(self.run_id)

    @property
    def persona(self) -> str | None:
        """The persona that decided or is deciding, by its long name."""
        return self._said("persona_key")

    @property
    def path(self) -> str | None:
        """The path the decision took, or is on."""
        return self._said("path_taken")

    @property
    def reason(self) -> str | None:
        """Why nothing was invoked: the decision's word, or that of the refusal before any."""
        return self._said("reason") or (None if self.decision is not None else self.rejection)

    @property
    def rejection(self) -> str | None:
        """Why the request was refused before anything was decided."""
        return None if self.decision is not None else self._said("rejection")

    @property
    def query(self) -> str | None:
        """The request, scrubbed: the decision's, or that of a run that waits for one."""
        return self._said("query")

    @property
    def skill(self) -> str | None:
        """The skill that was chosen, with its version; of a waiting run the one that waits."""
        chosen = self._said("skill_chosen")
        if chosen is None and self.decision is not None:
            invoked = self.decision.get("invocation_result")
            if isinstance(invoked, dict) and isinstance(invoked.get("skill_name"), str):
                return str(invoked["skill_name"])
        return chosen

    def to_json(self) -> dict[str, Any]:
        plain = _Record.to_json(self)
        return {"run_id": plain.pop("run_id"), "ulid": self.ulid, **plain}

    def _said(self, key: str) -> str | None:
        said = self.decision if self.decision is not None else self.pending
        value = said.get(key) if said is not None else None
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class RunPage(_Record):
    """Some runs, newest first. `next` starts the following page; None: there is none.

    A page may be short, even empty, and still have a `next`: a filter that little matches stops
    after a bounded stretch of runs.
    """

    runs: list[RunSummary]
    next: str | None


@dataclass(frozen=True, slots=True)
class EventRecord(_Record):
    """One row of the log. Digests are hex; `state` is the stored form, None when not asked for.

    (step, phase, ordinal) is the causal order, `seq` the order of arrival in the thread.
    `langgraph` is LangGraph's own document; without the state only what the row adds to it: an
    error, the other parents of a join.
    """

    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    parent_checkpoint_id: uuid.UUID | None
    kind: str
    node_name: str | None
    edge_from: str | None
    edge_to: str | None
    thread_id: str
    checkpoint_ns: str
    seq: int
    step: int | None
    phase: int
    ordinal: int
    trace_id: str
    created_at: dt.datetime
    lg_checkpoint_id: str | None
    langgraph: JsonValue
    state: JsonValue
    state_sha256: str
    row_sha256: str


@dataclass(frozen=True, slots=True)
class AuditRecord(_Record):
    """One link of the run's chain; `body` is what the row says, digests are hex."""

    run_id: uuid.UUID
    chain_seq: int
    kind: str
    trace_id: str
    created_at: dt.datetime
    body: Mapping[str, Any]
    prev_sha256: str
    row_sha256: str


@dataclass(frozen=True, slots=True)
class WriteRecord(_Record):
    """One pending write; `value` is the stored form. The newest `seq` of a write is in force."""

    run_id: uuid.UUID
    thread_id: str
    checkpoint_ns: str
    lg_checkpoint_id: str
    task_id: str
    task_path: str
    idx: int
    seq: int
    channel: str
    value: JsonValue
    created_at: dt.datetime
    value_sha256: str
    row_sha256: str


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime):
        return rfc3339(value)
    if isinstance(value, _Record):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
