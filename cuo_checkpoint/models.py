"""ORM models of the log, as `alembic check` compares them and as readers use them.

Reading through these needs a transaction with the tenant set: use `cuo_checkpoint.runs`.
The log tables take inserts only; the server numbers, times, digests and chains what is inserted,
so those columns are never given (`FetchedValue`).
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    FetchedValue,
    Index,
    Integer,
    LargeBinary,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import CHAR, JSONB, TIMESTAMP, UUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = [
    "PARTITIONED_TABLES",
    "AuditRow",
    "Base",
    "Hold",
    "LogRow",
    "PendingWriteRow",
    "RunIndex",
    "SealHead",
    "SealLeaf",
    "ThreadIndex",
    "Tombstone",
]

PARTITIONED_TABLES: Final = (
    "cuo_langgraph_checkpoints",
    "cuo_langgraph_writes",
    "cuo_memory_audit",
)

_Stamp = TIMESTAMP(timezone=True)


class Base(DeclarativeBase):
    type_annotation_map = {
        uuid.UUID: UUID(as_uuid=True),
        dt.datetime: _Stamp,
        str: Text,
        bytes: LargeBinary,
        int: BigInteger,
    }


class LogRow(Base):
    """One event of one run: a row of `cuo_langgraph_checkpoints`. Append-only."""

    __tablename__ = "cuo_langgraph_checkpoints"
    __table_args__ = (
        CheckConstraint(
            "kind IN ('node_entered','node_completed','edge_traversed',"
            "'run_started','run_completed','run_failed')",
            name="cuo_langgraph_checkpoints_kind",
        ),
        Index("checkpoints_run_idx", "tenant_id", "run_id", "created_at"),
        Index(
            "checkpoints_thread_idx", "tenant_id", "thread_id", "checkpoint_ns", text("seq DESC")
        ),
        Index("checkpoints_lg_idx", "tenant_id", "thread_id", "checkpoint_ns", "lg_checkpoint_id"),
        {"postgresql_partition_by": "RANGE (created_at)"},
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    created_at: Mapped[dt.datetime] = mapped_column(primary_key=True, server_default=text("now()"))
    run_id: Mapped[uuid.UUID]
    parent_checkpoint_id: Mapped[uuid.UUID | None]
    node_name: Mapped[str | None]
    edge_from: Mapped[str | None]
    edge_to: Mapped[str | None]
    kind: Mapped[str]
    state_json: Mapped[Any] = mapped_column(JSONB(none_as_null=False))
    trace_id: Mapped[str] = mapped_column(CHAR(32))
    thread_id: Mapped[str]
    checkpoint_ns: Mapped[str] = mapped_column(server_default="")
    seq: Mapped[int] = mapped_column(server_default=FetchedValue())
    step: Mapped[int | None] = mapped_column(Integer)
    phase: Mapped[int] = mapped_column(Integer, server_default="0")
    ordinal: Mapped[int] = mapped_column(Integer, server_default="0")
    lg_checkpoint_id: Mapped[str | None]
    lg_parent_id: Mapped[str | None]
    langgraph: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    state_sha256: Mapped[bytes]
    langgraph_sha256: Mapped[bytes | None]
    row_sha256: Mapped[bytes] = mapped_column(server_default=FetchedValue())


class PendingWriteRow(Base):
    """One pending write of one task: a row of `cuo_langgraph_writes`. Append-only."""

    __tablename__ = "cuo_langgraph_writes"
    __table_args__ = ({"postgresql_partition_by": "RANGE (created_at)"},)

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True)
    lg_checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    created_at: Mapped[dt.datetime] = mapped_column(primary_key=True, server_default=text("now()"))
    task_path: Mapped[str] = mapped_column(server_default="")
    channel: Mapped[str]
    value: Mapped[Any] = mapped_column(JSONB(none_as_null=False))
    run_id: Mapped[uuid.UUID]
    value_sha256: Mapped[bytes]
    row_sha256: Mapped[bytes] = mapped_column(server_default=FetchedValue())


class Tombstone(Base):
    """What delete_thread, delete_for_runs and prune appended instead of deleting. Append-only."""

    __tablename__ = "cuo_thread_tombstones"
    __table_args__ = (
        CheckConstraint(
            "kind IN ('delete_thread', 'delete_run', 'prune', 'reopen')",
            name="cuo_thread_tombstones_kind",
        ),
        Index("tombstones_thread_idx", "tenant_id", "thread_id", "created_at"),
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    tombstone_id: Mapped[uuid.UUID] = mapped_column(
        primary_key=True, server_default=text("gen_random_uuid()")
    )
    thread_id: Mapped[str]
    kind: Mapped[str]
    hidden_run_id: Mapped[uuid.UUID | None]
    up_to_seq: Mapped[int]
    run_id: Mapped[uuid.UUID]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=text("now()"))
    row_sha256: Mapped[bytes] = mapped_column(server_default=FetchedValue())


class AuditRow(Base):
    """One link of one run's audit chain: a row of `cuo_memory_audit`. Append-only."""

    __tablename__ = "cuo_memory_audit"
    __table_args__ = (
        Index("cuo_memory_audit_kind_idx", "tenant_id", "kind", "created_at"),
        {"postgresql_partition_by": "RANGE (created_at)"},
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    chain_seq: Mapped[int] = mapped_column(
        primary_key=True, autoincrement=False, server_default=FetchedValue()
    )
    created_at: Mapped[dt.datetime] = mapped_column(primary_key=True, server_default=text("now()"))
    kind: Mapped[str]
    trace_id: Mapped[str] = mapped_column(CHAR(32), server_default=FetchedValue())
    body: Mapped[str] = mapped_column(
        comment="RFC 8785 text of what the row says; embedded verbatim in row_bytes"
    )
    row_bytes: Mapped[bytes] = mapped_column(
        server_default=FetchedValue(),
        comment='RFC 8785 bytes of the row; row_sha256 = SHA-256("cuo/row/v1" || 0x00'
        " || prev_sha256 || row_bytes)",
    )
    prev_sha256: Mapped[bytes] = mapped_column(server_default=FetchedValue())
    row_sha256: Mapped[bytes] = mapped_column(server_default=FetchedValue())


class ThreadIndex(Base):
    """Derived, never evidence: the newest row of each namespace of each thread, and its lock."""

    __tablename__ = "cuo_threads"
    __table_args__ = (
        {
            "comment": "Derived index, never evidence: newest rows and the per-thread lock."
            " Rebuildable from the log."
        },
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_ns: Mapped[str] = mapped_column(primary_key=True, server_default="")
    head_seq: Mapped[int] = mapped_column(server_default="0")
    newest_seq: Mapped[int] = mapped_column(server_default="0")
    newest_id: Mapped[str | None]
    newest_at: Mapped[dt.datetime | None]
    greatest_id: Mapped[str | None]
    greatest_write_id: Mapped[str | None]
    first_at: Mapped[dt.datetime] = mapped_column(server_default=text("now()"))
    last_write_at: Mapped[dt.datetime | None]
    hidden_seq: Mapped[int] = mapped_column(server_default="0")
    deleted: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))


class RunIndex(Base):
    """Derived, never evidence: state of each run and the head of its chain."""

    __tablename__ = "cuo_runs"
    __table_args__ = (
        Index("cuo_runs_thread_idx", "tenant_id", "thread_id", "first_at"),
        Index("cuo_runs_recent_idx", "tenant_id", text("first_at DESC"), "run_id"),
        {
            "comment": "Derived index, never evidence: state of runs and heads of their chains."
            " Rebuildable from the log."
        },
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    thread_id: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="open")
    outcome: Mapped[str | None]
    trace_id: Mapped[str] = mapped_column(CHAR(32))
    first_at: Mapped[dt.datetime] = mapped_column(server_default=text("now()"))
    newest_at: Mapped[dt.datetime] = mapped_column(server_default=text("now()"))
    log_rows: Mapped[int] = mapped_column(server_default="0")
    last_rows: Mapped[list[uuid.UUID]] = mapped_column(
        ARRAY(UUID(as_uuid=True)), server_default=text("ARRAY[]::uuid[]")
    )
    chain_seq: Mapped[int] = mapped_column(server_default="0")
    chain_head: Mapped[bytes]
    lease_owner: Mapped[str | None]
    lease_until: Mapped[dt.datetime | None]
    hidden: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))


class Hold(Base):
    """A legal hold placed, or ended (`releases`). Append-only."""

    __tablename__ = "cuo_holds"
    __table_args__ = (
        CheckConstraint("kind IN ('set', 'release')", name="cuo_holds_kind"),
        CheckConstraint("(kind = 'release') = (releases IS NOT NULL)", name="cuo_holds_release"),
        Index("cuo_holds_released_idx", "tenant_id", "releases", unique=True),
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    hold_id: Mapped[uuid.UUID] = mapped_column(
        primary_key=True, server_default=text("gen_random_uuid()")
    )
    kind: Mapped[str]
    held_run_id: Mapped[uuid.UUID | None]
    releases: Mapped[uuid.UUID | None]
    reason: Mapped[str]
    placed_by: Mapped[str]
    created_at: Mapped[dt.datetime] = mapped_column(server_default=text("now()"))
    row_sha256: Mapped[bytes]


class SealLeaf(Base):
    """A leaf of the tenant's tree: the head a run's chain had when it was sealed. Append-only."""

    __tablename__ = "cuo_seal_leaves"
    __table_args__ = (
        Index("cuo_seal_leaves_run_idx", "tenant_id", "run_id", text("leaf_index DESC")),
    )

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    leaf_index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[uuid.UUID]
    chain_seq: Mapped[int]
    row_sha256: Mapped[bytes]
    head_at: Mapped[dt.datetime]
    sealed_at: Mapped[dt.datetime]
    statement: Mapped[str | None]
    leaf_sha256: Mapped[bytes]


class SealHead(Base):
    """A signed head of the tenant's tree, as it was exported. Append-only."""

    __tablename__ = "cuo_seal_heads"

    tenant_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    head_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tree_size: Mapped[int]
    root_sha256: Mapped[bytes]
    full_subtrees: Mapped[bytes]
    note: Mapped[str]
    sealed_at: Mapped[dt.datetime]
