"""Many copies of one run, fast: for logs so large that the store's own functions take half an hour.

A run that the store wrote is the pattern. Each copy has ids of its own, and with them other digests
all the way: rows, chain, head. As a superuser with triggers off; that the result is what the store
would have written is for `verify` to say, and the benchmark has it verified.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import psycopg
from psycopg.rows import dict_row

from cuo_checkpoint import chain, digests
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.run_records import rfc3339

__all__ = ["copy_run"]

_AUDIT = "tenant_id, run_id, chain_seq, kind, trace_id, body, row_bytes, prev_sha256, row_sha256"
_RUN = "tenant_id, run_id, thread_id, state, trace_id, log_rows, chain_seq, chain_head"
_BATCH = 100


def copy_run(admin: str, tenant: uuid.UUID, run: uuid.UUID, count: int) -> None:
    """Makes `count` copies of a run of log rows without writes, tombstones or shared states."""
    with psycopg.connect(admin, row_factory=dict_row) as conn:
        conn.execute("SET session_replication_role = replica")
        pattern = _Pattern(conn, tenant, run)
        for start in range(0, count, _BATCH):
            copies = [pattern.copy() for _ in range(min(_BATCH, count - start))]
            for place, lines in zip(pattern.places, zip(*copies, strict=True), strict=True):
                with conn.cursor().copy(f"COPY {place} FROM STDIN") as to:
                    to.write("".join(lines))
            conn.commit()


class _Pattern:
    """The run's rows as texts in which only ids and digests are exchanged."""

    def __init__(
        self, conn: psycopg.Connection[dict[str, Any]], tenant: uuid.UUID, run: Any
    ) -> None:
        self.tenant, self.run = tenant, str(run)
        where = "WHERE tenant_id = %s AND run_id = %s ORDER BY"
        log = conn.execute(
            f"SELECT *, state_json::text AS state FROM cuo_langgraph_checkpoints {where} seq",
            [tenant, run],
        ).fetchall()
        audit = conn.execute(
            f"SELECT * FROM cuo_memory_audit {where} chain_seq", [tenant, run]
        ).fetchall()
        self.thread = log[0]["thread_id"]
        self.at = str(log[0]["created_at"])
        self.log = {str(row["checkpoint_id"]): (_spelled(row), row) for row in log}
        self.audit = [
            (row, row["row_bytes"].decode(), row["body"], _checkpoint_of(row["body"]))
            for row in audit
        ]
        columns = [*digests.LOG_COLUMNS, "row_sha256", "state_json", "langgraph"]
        self.columns = columns
        self.places = (
            f"cuo_langgraph_checkpoints ({', '.join(columns)})",
            f"cuo_memory_audit ({_AUDIT}, created_at)",
            f"cuo_runs ({_RUN}, first_at, newest_at)",
        )

    def copy(self) -> tuple[str, str, str]:
        """One more run: its lines for each of the tables."""
        run, head = uuid.uuid4(), b""
        ids = {self.run: str(run), self.thread: f"t{run.hex[:12]}"}
        head = chain.genesis(self.tenant, run)
        log, told = [], []
        for row, text, body, checkpoint in self.audit:
            for old, new in ids.items():
                text, body = text.replace(old, new), body.replace(old, new)
            if checkpoint is not None:
                spelled, stored = self.log[checkpoint]
                fresh = str(uuid.uuid4())
                for old, new in (*ids.items(), (checkpoint, fresh)):
                    spelled = spelled.replace(old, new)
                digest = hashlib.sha256(spelled.encode()).hexdigest()
                swaps = (checkpoint, fresh), (stored["row_sha256"].hex(), digest)
                for old, new in swaps:
                    text, body = text.replace(old, new), body.replace(old, new)
                changed = {
                    "run_id": run,
                    "thread_id": ids[self.thread],
                    "checkpoint_id": fresh,
                    "row_sha256": bytes.fromhex(digest),
                    "state_json": stored["state"],
                }
                log.append(_line(changed.get(name, stored[name]) for name in self.columns))
            data, before = text.encode(), head
            head = chain.link(head, data)
            place = (self.tenant, run, row["chain_seq"], row["kind"], row["trace_id"])
            told.append(_line((*place, body, data, before, head, self.at)))
        last = (self.tenant, run, ids[self.thread], "open", self.audit[0][0]["trace_id"])
        return (
            "".join(log),
            "".join(told),
            _line((*last, len(log), len(told), head, self.at, self.at)),
        )


def _spelled(row: dict[str, Any]) -> str:
    tree = {name: row[name] for name in digests.LOG_COLUMNS}
    for name, value in tree.items():
        if isinstance(value, bytes):
            tree[name] = value.hex()
        elif hasattr(value, "isoformat"):
            tree[name] = rfc3339(value)
        elif isinstance(value, uuid.UUID):
            tree[name] = str(value)
    return canonical_bytes(tree).decode()


def _checkpoint_of(body: str) -> str | None:
    _, found, rest = body.partition('"checkpoint_id":"')
    return rest[:36] if found else None


def _line(values: Any) -> str:
    return "\t".join(map(_field, values)) + "\n"


def _field(value: Any) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return "\\\\x" + value.hex()
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
