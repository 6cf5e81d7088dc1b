"""Copies a stock LangGraph Postgres saver's database into the log. One way, repeatable.

The stock tables (`checkpoints`, `checkpoint_blobs`, `checkpoint_writes`) are only read, in a
read-only session, through LangGraph's own saver; each checkpoint with its pending writes becomes
one append. What is there already is left alone, so a copy that was interrupted is taken up again.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from psycopg import errors as pg
from psycopg.rows import dict_row

from cuo_checkpoint import ids
from cuo_checkpoint.appending import Append
from cuo_checkpoint.db import Plan
from cuo_checkpoint.errors import (
    CheckpointConflict,
    InvalidIdentifier,
    RunElsewhere,
    SchemaNotReady,
    SerialiseError,
    ThreadDeleted,
    UnserialisableValue,
)
from cuo_checkpoint.rebuild import Pending
from cuo_checkpoint.saver import PostgresCheckpointer
from cuo_checkpoint.translating import checked_conninfo, translated, without_conninfo

__all__ = ["ImportReport", "Refused", "import_langgraph"]

_METADATA: Final = frozenset(
    {"source", "step", "parents", "run_id", "counters_since_delta_snapshot"}
)
"""What LangGraph itself reads of a checkpoint's metadata. The stock saver also keeps whatever
primitive values stood in `configurable`, api keys among them, so anything else is asked for."""

_MADE_BY: Final = {("re", "compile"): "Pattern"}
"""Constructors that are named otherwise than what they make."""

_THREADS: Final = (
    "SELECT thread_id, count(*) AS n FROM checkpoints"
    " WHERE %(thread)s::text IS NULL OR thread_id = %(thread)s GROUP BY 1 ORDER BY 1"
)
_CHECKPOINTS: Final = (
    "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = %s"
    ' ORDER BY checkpoint_id COLLATE "C", checkpoint_ns COLLATE "C"'
)
_WRITES: Final = (
    "SELECT task_id, channel, type, blob, task_path, idx FROM checkpoint_writes"
    " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
    ' ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx'
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that was not copied: where, which value or why. Holds no value."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    path: str
    type_name: str
    reason: str


@dataclass(slots=True)
class ImportReport:
    """What was read and what became of it. On a dry run `copied` says what would be."""

    dry_run: bool = False
    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    copied: int = 0
    already_there: int = 0
    refused: list[Refused] = field(default_factory=list)
    deleted_threads: list[str] = field(default_factory=list)
    metadata_left_out: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {"metadata_left_out": dict(self.metadata_left_out)}


def import_langgraph(
    source: str,
    store: PostgresCheckpointer,
    *,
    thread: str | None = None,
    dry_run: bool = False,
    keep_metadata: Collection[str] = (),
    allowed_types: Collection[tuple[str, str]] = (),
    progress: Callable[[ImportReport, str], None] = lambda report, thread: None,
) -> ImportReport:
    """Copies every thread of `source`, or the one named, into `store`'s tenant.

    `allowed_types` are the classes that the source may have rebuilt beside LangGraph's safe ones;
    the store needs them among its own. Values of other classes refuse their checkpoint, which the
    report names; nothing is stored in another type than it had. `progress` is told after every
    thread. Raises StoreUnavailable, and SchemaNotReady when the stock tables or the package that
    reads them are missing.
    """
    report = ImportReport(dry_run=dry_run)
    kept = _METADATA | set(keep_metadata)
    with _opened(source, allowed_types) as (conn, stock):
        threads = conn.execute(_THREADS, {"thread": thread}).fetchall()
        for row in threads:
            report.threads += 1
            with contextlib.suppress(ThreadDeleted):
                for item, pending, unreadable in _checkpoints(conn, stock, row["thread_id"]):
                    _one(store, report, item, pending, unreadable, kept)
                progress(report, row["thread_id"])
                continue
            report.deleted_threads.append(row["thread_id"])
    return report


@contextlib.contextmanager
def _opened(
    source: str, allowed: Collection[tuple[str, str]]
) -> Iterator[tuple[psycopg.Connection[dict[str, Any]], Any]]:
    try:
        # A development dependency: whoever moves over has it, whoever runs only us need not.
        module = importlib.import_module("langgraph.checkpoint.postgres")
    except ImportError:
        raise SchemaNotReady(
            "reading a stock saver's database needs its package.",
            remedy="Run: pip install langgraph-checkpoint-postgres",
        ) from None
    try:
        with psycopg.connect(
            checked_conninfo(source), autocommit=True, row_factory=dict_row, prepare_threshold=None
        ) as conn:
            conn.execute("SET default_transaction_read_only = on")
            yield conn, module.PostgresSaver(conn, serde=_serializer(allowed))
    except pg.UndefinedTable as error:
        raise SchemaNotReady(
            "the source holds no tables of LangGraph's Postgres saver.",
            remedy="Check --from: database, schema (options=-csearch_path=...) and role.",
        ) from error
    except psycopg.Error as error:
        raise translated(error) from without_conninfo(error)


class Unreadable:
    """Stands for a value whose class is not allowed, or could not be rebuilt."""

    __slots__ = ("found", "reason")

    def __init__(self, found: str, reason: str) -> None:
        self.found = found
        self.reason = reason


def _unstorable() -> type[Unreadable]:
    """Even a store that takes any type refuses a class that has no address."""

    class Placeholder(Unreadable):
        __slots__ = ()

    return Placeholder


_Placeholder: Final = _unstorable()


def _serializer(allowed: Collection[tuple[str, str]]) -> Any:
    """The stock serialiser, strict: it says so instead of giving back another type.

    By itself it answers with the raw payload when a class is not allowed or cannot be built, and
    only logs it. Each extension is therefore looked at twice: once for what it claims to be, once
    for what came of it.
    """
    import ormsgpack
    from langgraph.checkpoint.serde import _msgpack, jsonplus

    modules: Any = tuple(allowed) or None
    build = jsonplus.JsonPlusSerializer(allowed_msgpack_modules=modules)._unpack_ext_hook
    safe = _msgpack.SAFE_MSGPACK_TYPES | set(allowed)

    def hook(code: int, data: bytes) -> Any:
        if code == jsonplus.EXT_NUMPY_ARRAY:
            return build(code, data)
        claim = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        inside = _first_unreadable(claim)
        if inside is not None or code == jsonplus.EXT_DELTA_SNAPSHOT:
            return inside or build(code, data)
        module, name = str(claim[0]), str(claim[1])
        if code == jsonplus.EXT_METHOD_SINGLE_ARG:
            known = (module, name, claim[3]) in _msgpack.SAFE_MSGPACK_METHODS
        else:
            known = (module, name) in safe
        if not known:
            return _Placeholder(f"{module}.{name}", "is not among the allowed types")
        made = build(code, data)
        if type(made).__name__ != _MADE_BY.get((module, name), name):
            return _Placeholder(f"{module}.{name}", "could not be rebuilt")
        return made

    class Strict(jsonplus.JsonPlusSerializer):
        def _reviver(self, value: dict[str, Any]) -> Any:
            # The older JSON form; what cannot be revived comes back as the dict it stands in.
            made = super()._reviver(value)
            if value.get("type") == "constructor" and (made is None or isinstance(made, dict)):
                return _Placeholder(
                    ".".join(map(str, value.get("id") or ())), "could not be rebuilt"
                )
            return made

    return Strict(allowed_msgpack_modules=modules, __unpack_ext_hook__=hook)


def _checkpoints(
    conn: psycopg.Connection[dict[str, Any]], stock: Any, thread: str
) -> Iterator[tuple[CheckpointTuple, list[Pending], str]]:
    """A thread's checkpoints in the order they were made, one in memory at a time."""
    for row in conn.execute(_CHECKPOINTS, (thread,)).fetchall():
        where = (thread, row["checkpoint_ns"], row["checkpoint_id"])
        names = ("thread_id", "checkpoint_ns", "checkpoint_id")
        config: RunnableConfig = {"configurable": dict(zip(names, where, strict=True))}
        try:
            item = stock.get_tuple(config)
            pending = [
                (w["task_id"], w["channel"], stock.serde.loads_typed((w["type"], w["blob"])),
                 w["task_path"], w["idx"])
                for w in conn.execute(_WRITES, where)
            ]  # fmt: skip
        except psycopg.Error:
            raise
        except Exception as error:  # whatever a stored byte makes its reader raise
            yield CheckpointTuple(config, {}, {}, None), [], type(error).__name__  # type: ignore[typeddict-item]
            continue
        if item is not None:
            yield item, pending, ""


def _one(
    store: PostgresCheckpointer,
    report: ImportReport,
    item: CheckpointTuple,
    pending: list[Pending],
    unreadable: str,
    kept: Collection[str],
) -> None:
    place = item.config["configurable"]
    where = (place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"])
    report.checkpoints += 1
    report.writes += len(pending)
    if unreadable:
        report.refused.append(Refused(*where, "", unreadable, "could not be read"))
        return
    metadata = {key: value for key, value in item.metadata.items() if key in kept}
    report.metadata_left_out.update(set(item.metadata) - set(metadata) - {"writes", "thread_id"})
    try:
        try:
            stored = _copied(store, report, item, metadata, pending, _run_name(item, metadata))
        except RunElsewhere:
            # The stock saver takes one run id in many threads; here each thread's run has its own.
            name = f"{_run_name(item, {})} {metadata['run_id']}"
            stored = _copied(store, report, item, metadata, pending, name)
    except UnserialisableValue as error:
        found = _first_unreadable(item.checkpoint.get("channel_values"), pending)
        if found is not None and error.type_name.endswith(_Placeholder.__name__):
            report.refused.append(Refused(*where, error.path, found.found, found.reason))
        else:
            report.refused.append(Refused(*where, error.path, error.type_name, error.reason))
    except (SerialiseError, CheckpointConflict, InvalidIdentifier) as error:
        report.refused.append(Refused(*where, "", type(error).__name__, str(error)))
    else:
        report.copied += stored
        report.already_there += not stored


def _run_name(item: CheckpointTuple, metadata: Mapping[str, Any]) -> str:
    """One run a thread, the same at every try, unless the checkpoint knows its own."""
    return str(
        metadata.get("run_id") or f"import-langgraph {item.config['configurable']['thread_id']}"
    )


def _copied(
    store: PostgresCheckpointer,
    report: ImportReport,
    item: CheckpointTuple,
    metadata: Mapping[str, Any],
    pending: list[Pending],
    run_name: str,
) -> bool:
    """Whether this call stored something that was not there."""
    place = item.config["configurable"]
    parent = (item.parent_config or {}).get("configurable") or {}
    config: RunnableConfig = {
        "configurable": {
            "thread_id": place["thread_id"],
            "checkpoint_ns": place["checkpoint_ns"],
            "checkpoint_id": parent.get("checkpoint_id"),
            "run_id": ids.run_id_of(run_name),
        }
    }
    append = store.plans.copied(config, item.checkpoint, metadata, pending)
    return report.dry_run or store.run_plan(_stored(store, append), "asetup")


def _stored(store: PostgresCheckpointer, append: Append) -> Plan[bool]:
    """Appends; of a checkpoint that is there already only the writes it lacks."""
    rows = yield store.plans._append(append)
    stored = bool(rows[0][0] == "stored")
    if not stored and append.writes:
        rows = yield store.plans._append(append.writes_only())
        stored = bool(rows[0][0] == "stored")
    return stored


def _first_unreadable(*values: Any) -> Unreadable | None:
    """The first value that stands for one of a refused class, in the order values are encoded."""
    for value in values:
        if isinstance(value, Unreadable):
            return value
        inside: Any = ()
        if isinstance(value, Mapping):
            inside = value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            inside = value
        found = _first_unreadable(*inside)
        if found is not None:
            return found
    return None
