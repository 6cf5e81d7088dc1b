"""Reading runs back: for people, reports, the API. SQLAlchemy, one transaction per call.

Each call is one read-only REPEATABLE READ transaction with the tenant set in it, so what it
returns belongs together even while the run goes on. The index (`cuo_runs`) says in which months
a run lies; no other month is opened.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from sqlalchemy import Connection, Engine, Row, func, select

from cuo_checkpoint import ids, run_queries
from cuo_checkpoint.errors import InvalidIdentifier, RunUnknown
from cuo_checkpoint.models import RunIndex
from cuo_checkpoint.run_records import (
    ENDED,
    AuditRecord,
    EventRecord,
    RunPage,
    RunSummary,
    WriteRecord,
)
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.sessions import open_engine, reading
from cuo_checkpoint.shared_states import SharedStates

if TYPE_CHECKING:
    from cuo_checkpoint.verify import RunVerification

__all__ = ["AuditRecord", "EventRecord", "RunPage", "RunReader", "RunSummary", "WriteRecord"]

_SCAN_CAP: Final = 20_000
"""Runs looked at for one filtered page, so that a filter which little matches stays a short call."""

_SCAN_BATCH: Final = 500


class RunReader:
    """Reads one tenant's runs. Connects on first use; close it, or use it as `with`.

    `url` is a PostgreSQL URL or conninfo, with or without SQLAlchemy's driver in the scheme. As
    `cyberos_app` row security decides what is seen; as `cyberos_auditor` the tenant named here.
    Raises StoreUnavailable when the database cannot be reached and SchemaNotReady when it is not
    migrated or the role may not read it; driver errors never leave this class.

    A state holds requests as they were made. What of them a listing may show is for `scrub` to say,
    through which every word of `RunSummary.pending` goes; without it no request is in there.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant_id: uuid.UUID | str,
        schema: str = "public",
        connections: int = 4,
        scrub: Callable[[str], str] | None = None,
    ) -> None:
        self.tenant_id = ids.tenant_of(tenant_id)
        self._scrub = scrub
        self.engine: Engine = open_engine(url, schema=schema, connections=connections, ping=False)
        """The connections, for other readers to share."""

    def for_tenant(self, tenant_id: uuid.UUID | str) -> RunReader:
        """A reader of another tenant on the same connections; closing one closes both."""
        other = object.__new__(RunReader)
        other.tenant_id = ids.tenant_of(tenant_id)
        other.engine = self.engine
        other._scrub = self._scrub
        return other

    def close(self) -> None:
        """Lets the connections go. Using the reader again opens new ones."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def list_runs(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        state: str | None = None,
        outcome: str | None = None,
        persona: str | None = None,
        path: str | None = None,
        skill: str | None = None,
    ) -> RunPage:
        """Runs by (first_at, run_id), newest first, `since` <= first_at < `until`.

        `before` is the `next` of an earlier page. A persona matches by long or short name, a
        skill with or without its version. `state` is one of `run_records.STATES`: a state, or the word for how
        a closed run ended, as listings show it. What lies in a thread whose id begins with "$" is the
        system's own (such as catalogue snapshots) and is left out; `get_run` finds it. Raises
        InvalidIdentifier for a cursor not made here, a limit below 1 and names no database holds.
        """
        if limit < 1:
            raise InvalidIdentifier("limit", "must be at least 1")
        for name, text in (("state", state), ("outcome", outcome)):
            if text is not None:
                ids.storable(name, text, None)
        wanted = _Wanted(persona, path, skill)
        ended = ENDED.get(state or "")
        if ended is not None:
            state = "closed"
        query = run_queries.index_rows(self.tenant_id).where(
            ~RunIndex.thread_id.startswith("$", autoescape=True)
        )
        for condition in (
            since is None or RunIndex.first_at >= since,
            until is None or RunIndex.first_at < until,
            state is None or RunIndex.state == state,
            ended is None or RunIndex.outcome == ended,
            outcome is None or RunIndex.outcome == outcome,
        ):
            if condition is not True:
                query = query.where(condition)
        query = query.order_by(RunIndex.first_at.desc(), RunIndex.run_id.desc())
        place = run_queries.place_of(before) if before is not None else None
        found: list[RunSummary] = []
        seen, size = 0, limit + 1 if wanted.anything else max(limit + 1, _SCAN_BATCH)
        with reading(self.engine, self.tenant_id) as conn:
            while seen < _SCAN_CAP:
                batch = query if place is None else query.where(run_queries.older_than(place))
                rows = conn.execute(batch.limit(size)).all()
                for summary in self._summaries(conn, rows):
                    if not wanted.matches(summary):
                        continue
                    if len(found) == limit:
                        last = found[-1]
                        return RunPage(found, run_queries.to_cursor(last.first_at, last.run_id))
                    found.append(self._told(summary))
                if len(rows) < size:
                    return RunPage(found, None)
                place = (rows[-1].first_at, rows[-1].run_id)
                seen += len(rows)
        return RunPage(found, run_queries.to_cursor(*place) if place is not None else None)

    def get_run(self, run_id: uuid.UUID | str) -> RunSummary | None:
        """One run, by UUID or ULID; None when this tenant has no such run."""
        run = _run_id(run_id)
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, run)
            return None if index is None else self._told(self._summaries(conn, [index])[0])

    def age(self, run_id: uuid.UUID | str) -> dt.timedelta | None:
        """How long ago a run began, by the database's clock on both ends; None for no such run."""
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, _run_id(run_id))
            now: dt.datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
            return None if index is None else now - index.first_at

    def events(
        self,
        run_id: uuid.UUID | str,
        *,
        after_seq: int = 0,
        limit: int = 1000,
        kinds: Collection[str] | None = None,
        with_state: bool = False,
    ) -> list[EventRecord]:
        """The run's log rows by `seq`, above `after_seq`; empty for a run unknown here.

        With `with_state` each row's state stands in full, also where the rows of a superstep
        share it. A page of 1000 such rows may be large: states go up to 5 MB each.
        """
        run = _run_id(run_id)
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, run)
            if index is None:
                return []
            query = run_queries.event_rows(
                self.tenant_id,
                index,
                after_seq=after_seq,
                limit=limit,
                kinds=kinds,
                with_state=with_state,
            )
            rows = conn.execute(query).all()
            states: Sequence[str | None] = [None] * len(rows)
            if with_state:
                shared = SharedStates(conn, self.tenant_id)
                states = shared.of([(str(r.checkpoint_id), r.created_at, r.state) for r in rows])
            return [_event(row, state) for row, state in zip(rows, states, strict=True)]

    def audit(self, run_id: uuid.UUID | str) -> list[AuditRecord]:
        """The run's audit chain in order, unchecked; empty for a run unknown here."""
        run = _run_id(run_id)
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, run)
            if index is None:
                return []
            return [
                AuditRecord(**_digests_in_hex(row), body=json.loads(row.body))
                for row in conn.execute(run_queries.audit_rows(self.tenant_id, index))
            ]

    def writes(self, run_id: uuid.UUID | str) -> list[WriteRecord]:
        """Every version of every pending write of the run, by (seq, task_id, idx)."""
        run = _run_id(run_id)
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, run)
            if index is None:
                return []
            return [
                WriteRecord(**_digests_in_hex(row), value=text_to_tree(row.value))
                for row in conn.execute(run_queries.write_rows(self.tenant_id, index))
            ]

    def verify(
        self,
        run_id: uuid.UUID | str,
        *,
        settled_before: dt.datetime | None = None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> RunVerification:
        """Recomputes the run: chain, digest of every row, write sets, counts, index.

        Raises RunUnknown when nothing in this tenant speaks of the run. A run that the index has
        lost is looked for in every month. Rows older than `settled_before` are counted apart.
        `progress` is told now and then how many log rows have been recomputed.
        """
        from cuo_checkpoint.verify import verify_run

        run = _run_id(run_id)
        with reading(self.engine, self.tenant_id) as conn:
            index = self._index(conn, run)
            result = verify_run(conn, self.tenant_id, run, index, settled_before, progress=progress)
        if result is None:
            raise RunUnknown(f"there is no run {run} in this tenant")
        return result

    def _index(self, conn: Connection, run_id: uuid.UUID) -> Row[Any] | None:
        query = run_queries.index_rows(self.tenant_id).where(RunIndex.run_id == run_id)
        return conn.execute(query).one_or_none()

    def _summaries(self, conn: Connection, rows: Sequence[Row[Any]]) -> list[RunSummary]:
        """The runs with their decisions, each looked up in its run's own months only."""
        groups: dict[tuple[int, ...], list[Row[Any]]] = {}
        for row in rows:
            start, end = run_queries.span(row)
            groups.setdefault((start.year, start.month, end.year, end.month), []).append(row)
        said: dict[uuid.UUID, Any] = {}
        pending: dict[uuid.UUID, Any] = {}
        for group in groups.values():
            query = run_queries.decisions(self.tenant_id, group)
            said.update((run, json.loads(body)) for run, body in conn.execute(query))
            undecided = [row for row in group if row.run_id not in said and _may_decide(row)]
            if undecided:
                pending.update(self._pending(conn, undecided))
        return [
            RunSummary(
                row.run_id,
                row.thread_id,
                row.state,
                row.outcome,
                row.trace_id,
                row.first_at,
                row.newest_at,
                row.log_rows,
                row.chain_seq,
                row.hidden,
                said.get(row.run_id),
                pending.get(row.run_id),
            )
            for row in rows
        ]

    def _told(self, summary: RunSummary) -> RunSummary:
        """The summary as it may leave this class: what its state says, scrubbed."""
        if summary.pending is None:
            return summary
        scrub = self._scrub
        if scrub is None:
            words = {key: word for key, word in summary.pending.items() if key != "query"}
        else:
            words = {key: word and scrub(word) for key, word in summary.pending.items()}
        return replace(summary, pending=words)

    def _pending(self, conn: Connection, undecided: Sequence[Row[Any]]) -> dict[uuid.UUID, Any]:
        """What runs without a decision were about to decide, by their newest states."""
        rows = conn.execute(run_queries.last_states(self.tenant_id, undecided)).all()
        sharing = [row for row in rows if row.held_by is not None]
        held: dict[Any, str] = {}
        if sharing:
            found = conn.execute(run_queries.held_states(self.tenant_id, sharing))
            held = {(str(row.checkpoint_id), row.created_at): row.said for row in found}
        return {
            row.run_id: _pending(json.loads(held.get((row.held_by, row.created_at), row.said)))
            for row in rows
        }


class _Wanted(NamedTuple):
    """What a run's decision must say for the run to be listed."""

    persona: str | None
    path: str | None
    skill: str | None

    @property
    def anything(self) -> bool:
        return self == (None, None, None)

    def matches(self, run: RunSummary) -> bool:
        if self.persona is not None and run.persona != self.persona:
            said = run.decision if run.decision is not None else run.pending or {}
            version = said.get("persona_version")
            if not str(version).startswith(f"cuo-{self.persona}@"):
                return False
        if self.path is not None and run.path != self.path:
            return False
        return self.skill is None or self.skill in (run.skill, (run.skill or "").split("@")[0])


def _may_decide(index: Row[Any]) -> bool:
    """Whether a run without a decision was on its way to one; others' graphs just complete.

    One that completed in a thread of its own may have been refused before it was decided.
    """
    return bool(
        index.state != "closed"
        or index.outcome == "run_failed"
        or (index.outcome == "run_completed" and index.thread_id == str(index.run_id))
    )


def _pending(said: dict[str, Any]) -> dict[str, str | None] | None:
    """The names a listing knows, as far as the state has them; None for another graph's state."""
    path = said["path_taken"]
    chosen = {"auto": said["rules"], "cascade_then_auto": said["model"]}
    found = {
        "persona_key": said["persona_key"],
        "persona_version": said["persona_version"],
        "path_taken": path,
        "skill_chosen": chosen.get(path) if isinstance(path, str) else None,
        "rejection": said["rejection"],
    }
    words = {key: value if isinstance(value, str) else None for key, value in found.items()}
    if not any(words.values()):
        return None
    return {**words, "query": said["query"] if isinstance(said["query"], str) else None}


def _run_id(value: uuid.UUID | str) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else ids.run_id_from_ulid(value)


def _event(row: Row[Any], state: str | None) -> EventRecord:
    values = _digests_in_hex(row)
    values.pop("state")
    langgraph = values.pop("langgraph")
    return EventRecord(
        **values,
        langgraph=None if langgraph in (None, "{}") else text_to_tree(langgraph),
        state=None if state is None else text_to_tree(state),
    )


def _digests_in_hex(row: Row[Any]) -> dict[str, Any]:
    """The row by column name, without the documents that a caller parses itself."""
    values = {key: v.hex() if isinstance(v, bytes) else v for key, v in row._mapping.items()}
    values.pop("body", None)
    values.pop("value", None)
    return values
