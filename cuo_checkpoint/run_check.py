"""Whether a run's rows are what its chain says they are. Pure: it is fed rows and judges them.

What this finds: any column of a log row, pending write or tombstone changed; a row missing, added
or doubled; a chain row changed, missing or out of order; an index that disagrees. What it cannot
find: a tail cut from chain, rows and index together, or all of them rewritten. Only a sealed head
kept elsewhere shows that.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cuo_checkpoint import digests
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import ChainLink, verify_links
from cuo_checkpoint.cuts import Cuts, Gap, objection
from cuo_checkpoint.errors import ChainBroken, CheckpointError
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.run_records import rfc3339

__all__ = ["MAX_PROBLEMS", "RunChecker", "RunVerification", "WriteSet"]

MAX_PROBLEMS: Final = 50
"""Problems kept by name for one run; the first ones say where to look."""

WriteSet = tuple[str, str, str, int]
"""checkpoint_ns, lg_checkpoint_id, task_id, seq: one put_writes."""


@dataclass(frozen=True, slots=True)
class RunVerification:
    """What recomputing a run showed. `problems` is empty exactly when `ok`.

    `settled` counts rows by table, those older than an instant the caller named.
    """

    tenant_id: uuid.UUID
    run_id: uuid.UUID
    rows: int
    chain_rows: int
    writes: int
    problems: tuple[str, ...]
    settled: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    dropped: tuple[Gap, ...] = ()
    """Chain rows that are gone with months which retention dropped; no problem."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "tenant_id": str(self.tenant_id),
            "run_id": str(self.run_id),
            "ok": self.ok,
            "rows": self.rows,
            "chain_rows": self.chain_rows,
            "writes": self.writes,
            "problems": list(self.problems),
            "dropped": [gap.to_json() for gap in self.dropped],
        }


class RunChecker:
    """Takes a run's chain first, then its rows in any order, then the index; then `result`."""

    def __init__(
        self,
        tenant_id: uuid.UUID,
        run_id: uuid.UUID,
        settled_before: dt.datetime | None = None,
        cuts: Cuts | None = None,
    ) -> None:
        self.tenant_id = tenant_id
        self.run_id = run_id
        self._settled_before = settled_before
        self._cuts = cuts or Cuts()
        self._gaps = self._cuts.of(run_id)
        self._next = 1
        self._before: dt.datetime | None = None
        self._stepped: list[Gap] = []
        self._gone = 0
        self._gone_log_rows = 0
        self.holds: dict[uuid.UUID, Mapping[str, Any]] = {}
        self._settled: Counter[str] = Counter()
        self.write_sets: dict[WriteSet, Mapping[str, Any]] = {}
        self.tombstones: dict[uuid.UUID, Mapping[str, Any]] = {}
        self.chain_rows = 0
        self.rows = 0
        self.writes = 0
        self._problems: list[str] = []
        self._more = 0
        self._head: bytes | None = None
        self._content: Mapping[str, Any] = {}
        self.threads: set[str] = set()
        self.checkpoints: set[tuple[str, str, str]] = set()
        self._closed: str | None = None
        self._said: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._states: dict[str, bytes] = {}
        self._borrowed: list[tuple[int, str, str, bytes]] = []
        self._found_writes: dict[WriteSet, dict[int, bytes]] = {}

    def problem(self, text: str) -> None:
        """Notes one; beyond MAX_PROBLEMS they are only counted."""
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(text)
        else:
            self._more += 1

    # -- the chain -----------------------------------------------------------------------------

    def chain(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The chain's rows in order. After the first that does not fit, the rest is only read."""
        noted = self._noted(rows)
        try:
            self._head = verify_links(self.tenant_id, self.run_id, noted, self._gaps)
        except ChainBroken as error:
            self.problem(f"chain row {error.chain_seq}: {error.reason}")
        except (ValueError, AttributeError, CheckpointError):
            self.problem(f"chain row {self.chain_rows}: its bytes are no JSON object")
        for _ in noted:
            pass
        self._step_over(0)
        if self.chain_rows == 0:
            self.problem("the run has no chain: every audit row is missing")

    def _noted(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[ChainLink]:
        names = str(self.tenant_id), str(self.run_id)
        for row in rows:
            self.chain_rows += 1
            self._settle("cuo_memory_audit", row)
            number = row["chain_seq"]
            self._step_over(number)
            self._head = row["row_sha256"]
            content = None
            told = digests.chain_row(*names, row)
            try:
                if told is not None and told[1] == row["row_bytes"]:
                    self._content = content = told[0]
                    self._note(number, row["kind"], content["body"])
                else:
                    self._note(number, row["kind"], self._body(number, row))
            except (ValueError, KeyError, TypeError, AttributeError, CheckpointError):
                self.problem(f"chain row {number}: what it says cannot be read")
            self._before = row["created_at"]
            yield ChainLink(
                number, row["row_bytes"], row["prev_sha256"], row["row_sha256"], content
            )

    def _step_over(self, number: int) -> None:
        """Counts what retention dropped before this chain row, or (0) after the last."""
        while number != self._next and self._next in self._gaps:
            gap = self._gaps[self._next]
            if gap.misplaced(self._before):
                self.problem(
                    f"chain rows {gap.first} to {gap.last} are missing: they are said to have gone "
                    f"with {gap.drop}, but the row before them is younger than that month"
                )
            self._stepped.append(gap)
            self._gone += gap.last - gap.first + 1
            self._gone_log_rows += gap.log_rows
            self._next = gap.last + 1
        self._next = number + 1

    def _body(self, number: int, row: Mapping[str, Any]) -> Mapping[str, Any]:
        content, body = json.loads(row["row_bytes"]), json.loads(row["body"])
        self._content = content
        columns = {
            "at": rfc3339(row["created_at"]),
            "kind": row["kind"],
            "trace_id": row["trace_id"],
        }
        amiss = [name for name, value in columns.items() if content.get(name) != value]
        # As text: to Python 1, 1.0 and true are equal, to whoever reads the column they are not.
        if row["body"].encode() != canonical_bytes(content.get("body")):
            amiss.append("body")
        for name in sorted(amiss):
            self.problem(f"chain row {number}: column for {name!r} is not what its bytes say")
        if not isinstance(body, dict):
            raise TypeError("an audit body is an object")
        return body

    def _note(self, number: int, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "cuo.checkpoint_written":
            checkpoint = str(body.get("checkpoint_id"))
            if checkpoint in self._said:
                self.problem(f"chain row {number}: speaks of log row {checkpoint} a second time")
            self._said[checkpoint] = (number, body)
        elif kind == "write_set":
            place = (
                str(body.get("checkpoint_ns")),
                str(body.get("lg_checkpoint_id")),
                str(body.get("task_id")),
                int(body["seq"]),
            )
            self.write_sets[place] = {**body, "number": number}
        elif kind == "open":
            self.threads.add(str(body["thread_id"]))
        elif kind == "tombstone":
            self.tombstones[uuid.UUID(str(body.get("tombstone_id")))] = {**body, "number": number}
        elif kind == "month_dropped":
            why = objection(self._content)
            if why is not None:
                self.problem(f"chain row {number}: {why}; it excuses nothing that is missing")
        elif kind == "hold":
            self.holds[uuid.UUID(str(body.get("hold_id")))] = {**body, "number": number}
        elif kind == "close":
            self._closed = str(body.get("outcome"))
            spoken = len(self._said) + self._gone_log_rows
            if body.get("log_rows") != spoken:
                self.problem(
                    f"chain row {number}: the run was closed with {body.get('log_rows')} log rows, "
                    f"the chain before it speaks of {spoken}"
                )

    def write_places(self) -> list[tuple[str, str, str]]:
        """Where this run's writes can lie: (thread_id, checkpoint_ns, lg_checkpoint_id), sorted."""
        told = {(ns, lg) for ns, lg, _, _ in self.write_sets}
        told.add(("", f"$claim/{self.run_id}"))
        return sorted(self.checkpoints | {(t, ns, lg) for t in self.threads for ns, lg in told})

    # -- the rows ------------------------------------------------------------------------------

    def log_row(self, row: Mapping[str, Any]) -> None:
        """One row of the log, UUIDs as text, with `state` and `langgraph` as jsonb's text."""
        self.rows += 1
        self._settle("cuo_langgraph_checkpoints", row)
        checkpoint, seq = row["checkpoint_id"], row["seq"]
        self.threads.add(row["thread_id"])
        if row["lg_checkpoint_id"] is not None:
            self.checkpoints.add((row["thread_id"], row["checkpoint_ns"], row["lg_checkpoint_id"]))
        name = f"log row {checkpoint} (seq {seq})"
        number, body = self._said.pop(checkpoint, (0, {}))
        if not number:
            self.problem(f"{name}: no chain row speaks of it")
        elif body.get("row_sha256") != row["row_sha256"].hex():
            self.problem(f"{name}: its digest is not the one chain row {number} holds")
        self._columns(name, digests.log_row_sha256, row)
        if number and (body.get("kind"), body.get("node_name"), body.get("state_sha256")) != (
            row["kind"],
            row["node_name"],
            row["state_sha256"].hex(),
        ):
            self.problem(f"{name}: kind, node or state is not what chain row {number} says")
        holder = digests.shared_with(row["state"])
        if holder is not None:
            self._borrowed.append((seq, checkpoint, str(holder), row["state_sha256"]))
        elif self._document(name, "state", row["state"], row["state_sha256"]):
            self._states[checkpoint] = row["state_sha256"]
        if row["langgraph"] is not None or row["langgraph_sha256"] is not None:
            self._document(name, "langgraph", row["langgraph"], row["langgraph_sha256"])

    def write_row(self, row: Mapping[str, Any]) -> None:
        """One pending write of this run, with `value` as jsonb's text."""
        self.writes += 1
        self._settle("cuo_langgraph_writes", row)
        name = f"pending write {row['channel']!r} of task {row['task_id']} (seq {row['seq']})"
        place = (row["checkpoint_ns"], row["lg_checkpoint_id"], row["task_id"], row["seq"])
        if place not in self.write_sets:
            self.problem(f"{name}: no chain row speaks of it")
        self._found_writes.setdefault(place, {})[row["idx"]] = row["row_sha256"]
        self._columns(name, digests.write_row_sha256, row)
        self._document(name, "value", row["value"], row["value_sha256"])

    def tombstone_row(self, row: Mapping[str, Any]) -> None:
        """One tombstone that this run appended."""
        said = self.tombstones.pop(row["tombstone_id"], None)
        name = f"tombstone {row['tombstone_id']}"
        self._outlived("cuo_thread_tombstones", name, row, said)
        self._columns(name, digests.tombstone_row_sha256, row)

    def hold_row(self, row: Mapping[str, Any]) -> None:
        """One legal hold, or its end; the reserved run's chain speaks of them."""
        said = self.holds.pop(row["hold_id"], None)
        name = f"hold {row['hold_id']}"
        self._outlived("cuo_holds", name, row, said)
        self._columns(name, digests.hold_row_sha256, row)

    def _outlived(
        self, table: str, name: str, row: Mapping[str, Any], said: Mapping[str, Any] | None
    ) -> None:
        """A row of a table without months, which may outlive the chain row that speaks of it."""
        outlived = said is None and Month.of(row["created_at"]) in self._cuts.months
        if not outlived:
            self._settle(table, row)
        if said is None and not outlived:
            self.problem(f"{name}: no chain row speaks of it")
        elif said is not None and said.get("row_sha256") != row["row_sha256"].hex():
            self.problem(f"{name}: its digest is not the one chain row {said['number']} holds")

    def _columns(
        self, name: str, digest: Callable[[Mapping[str, Any]], bytes], row: Mapping[str, Any]
    ) -> None:
        try:
            same = digest(row) == row["row_sha256"]
        except CheckpointError:  # a number that has no canonical form
            same = False
        if not same:
            self.problem(f"{name}: a column was changed; columns and row_sha256 disagree")

    def _document(self, name: str, column: str, text: str | None, digest: bytes | None) -> bool:
        try:
            same = text is not None and digests.document_sha256(text) == digest
        except CheckpointError:
            same = False
        if not same:
            self.problem(f"{name}: its {column} is not the one that was digested")
        return same

    # -- the end -------------------------------------------------------------------------------

    def index(self, row: Mapping[str, Any] | None) -> None:
        """The run's row of `cuo_runs`, after everything else."""
        if row is None:
            self.problem("index: the run is missing from cuo_runs; rebuild the index")
            return
        compared: dict[str, tuple[Any, Any]] = {
            "chain_seq": (row["chain_seq"], self.chain_rows + self._gone),
            "chain_head": (row["chain_head"], self._head),
            "log_rows": (row["log_rows"], self.rows + self._gone_log_rows),
        }
        if self._closed is not None:  # the index may close a run without a word in its chain
            compared["state"] = (row["state"], "closed")
            compared["outcome"] = (row["outcome"], self._closed)
        for column, (stored, derived) in compared.items():
            if stored != derived:
                shown = "" if isinstance(stored, bytes) else f": {stored} against {derived}"
                self.problem(f"index: {column} of cuo_runs is not what the rows give{shown}")

    def result(self) -> RunVerification:
        """The verdict, after saying which rows the chain speaks of that were not there."""
        for missing, (number, body) in self._said.items():
            self.problem(
                f"chain row {number}: log row {missing} (seq {body.get('seq')}) is missing"
            )
        for place, said in self.write_sets.items():
            found = self._found_writes.get(place, {})
            digest = digests.write_set_sha256(found[idx] for idx in sorted(found))
            if said.get("writes") != len(found) or said.get("sha256") != digest.hex():
                self.problem(
                    f"chain row {said['number']}: its {said.get('writes')} pending writes of task "
                    f"{place[2]} are not those stored ({len(found)})"
                )
        for tombstone, said in self.tombstones.items():
            self.problem(f"chain row {said['number']}: tombstone {tombstone} is missing")
        for hold, said in self.holds.items():
            self.problem(f"chain row {said['number']}: hold {hold} is missing")
        for seq, checkpoint, holder, digest in self._borrowed:
            if self._states.get(holder) != digest:
                self.problem(f"log row {checkpoint} (seq {seq}): the state it shares is not there")
        problems = [*self._problems]
        if self._more:
            problems.append(f"and {self._more} more")
        return RunVerification(
            self.tenant_id,
            self.run_id,
            self.rows,
            self.chain_rows,
            self.writes,
            tuple(problems),
            self._settled,
            tuple(self._stepped),
        )

    def _settle(self, table: str, row: Mapping[str, Any]) -> None:
        if self._settled_before is not None and row["created_at"] < self._settled_before:
            self._settled[table] += 1
