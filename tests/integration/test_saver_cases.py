"""Faults that users of other checkpoint stores met; each must not be met here.

Every test is named case_N after its row in the list of cases, and shows the row's whole kind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import hashlib
import math
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels import Topic
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic import BaseModel, SecretBytes, SecretStr

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import (
    CheckpointConflict,
    DeserialiseError,
    InvalidIdentifier,
    SchemaNotReady,
    StaleParent,
    TenantRequired,
    ThreadDeleted,
    UnserialisableValue,
    WrongColour,
)

Store = PostgresCheckpointer
Make = Callable[..., PostgresCheckpointer]
Drive = Callable[..., Any]
T = TypeVar("T")


def at(thread: Any = "t", checkpoint: str | None = None, **more: Any) -> dict[str, Any]:
    """A config."""
    values = {"thread_id": thread, "checkpoint_ns": "", **more}
    return {"configurable": values | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def point(value: Any, *, channel: str = "x") -> dict[str, Any]:
    """A checkpoint that holds one value."""
    made: Any = empty_checkpoint()
    made["channel_values"] = {channel: value}
    made["channel_versions"] = {channel: 1}
    return dict(made)


def keep(store: Store, value: Any, *, thread: Any = "t", metadata: Any = None) -> CheckpointTuple:
    """Stores a value as the only channel and gives what comes back."""
    config = at(thread)
    store.put(config, point(value), {"source": "loop", "step": 0, **(metadata or {})}, {"x": 1})  # type: ignore[arg-type]
    found = store.get_tuple(config)  # type: ignore[arg-type]
    assert found is not None
    return found


def kept(store: Store, value: Any, **more: Any) -> Any:
    """The value that comes back."""
    return keep(store, value, **more).checkpoint["channel_values"]["x"]


def everywhere(store: Store, value: Any) -> list[Any]:
    """The value as it comes back from the root, nested, from a write and from metadata."""
    found = keep(store, value, thread="root", metadata={"m": value})
    saved = store.put(at("nested"), point({"deep": [value]}), {}, {"x": 1})  # type: ignore[arg-type]
    store.put_writes(saved, [("w", value)], "task")
    nested = store.get_tuple(saved)
    assert nested is not None
    assert nested.pending_writes is not None
    return [
        found.checkpoint["channel_values"]["x"],
        nested.checkpoint["channel_values"]["x"]["deep"][0],
        nested.pending_writes[0][2],
        found.metadata["m"],  # type: ignore[typeddict-item]
    ]


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types; NaN is itself and zeros keep their signs."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


# -- serialisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a\x00b", ["a\x00b"], {"k": "\x00"}, {"\x00": 1}, "\x00"])
def test_case_1_nul_round_trips(store: Store, lens: Any, value: Any) -> None:
    """A NUL in text, in a list, as a key, in a write and in metadata comes back."""
    assert all(same(found, value) for found in everywhere(store, value))


def test_case_1_nul_in_a_filter_finds_nothing(store: Store, lens: Any) -> None:
    """A NUL in a filter's key or value is data that matches no row."""
    keep(store, 1, metadata={"m": "ab"})
    assert list(store.list(at(), filter={"m": "a\x00b"})) == []  # type: ignore[arg-type]
    assert list(store.list(at(), filter={"m\x00": "ab"})) == []  # type: ignore[arg-type]
    keep(store, 1, thread="u", metadata={"m": "a\x00b"})
    assert len(list(store.list(at("u"), filter={"m": "a\x00b"}))) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, [math.nan], {"score": math.inf}]
)
def test_case_2_floats_round_trip(store: Store, lens: Any, value: Any) -> None:
    """NaN, the infinities and negative zero come back from everywhere."""
    assert all(same(found, value) for found in everywhere(store, value))


@pytest.mark.parametrize("value", ["\ud83d", ["x\ud83dy"], {"\ud83d": 1}])
def test_case_3_lone_surrogates_round_trip(store: Store, lens: Any, value: Any) -> None:
    """An unpaired surrogate is never turned into a question mark."""
    assert all(same(found, value) for found in everywhere(store, value))


def test_case_3_lone_surrogate_in_a_message(store: Store, lens: Any) -> None:
    """Nor inside a message."""
    assert kept(store, HumanMessage("a\ud83d", id="1")).content == "a\ud83d"


@pytest.mark.parametrize("value", [2**70, -(2**63) - 1, int("9" * 80), [2**256], {2**70: 1}])
def test_case_4_integers_of_any_size(store: Store, lens: Any, value: Any) -> None:
    """Integers beyond 64 bits come back as the integers they were."""
    assert all(same(found, value) for found in everywhere(store, value))


class Word(enum.StrEnum):
    """A member that is also a str."""

    ONE = "one"


class Old(str, enum.Enum):  # noqa: UP042 - the older spelling is what is tested
    """The older spelling."""

    ONE = "one"


class Number(enum.IntEnum):
    """A member that is also an int."""

    ONE = 1


@pytest.mark.parametrize("value", [Word.ONE, Old.ONE, Number.ONE])
def test_case_5_enum_members_keep_their_type(make_store: Make, lens: Any, value: Any) -> None:
    """At the root as when nested."""
    store = make_store(allowed_types=[Word, Old, Number])
    for found in everywhere(store, value):
        assert type(found) is type(value)
        assert found is value


class Item(BaseModel):
    """Fills a box."""

    a: int


class Box(BaseModel, Generic[T]):
    """A parametrised model."""

    inner: T


def test_case_7_parametrised_generics(make_store: Make, lens: Any) -> None:
    """Box[Item] comes back as Box[Item]."""
    found = kept(make_store(allowed_types=[Item, Box]), Box[Item](inner=Item(a=1)))
    assert type(found) is Box[Item]
    assert found == Box[Item](inner=Item(a=1))


@dataclasses.dataclass
class WithDerived:
    """A dataclass whose field is not an argument."""

    a: int
    b: int = dataclasses.field(init=False, default=0)


def test_case_8_a_field_that_is_no_argument(make_store: Make, lens: Any) -> None:
    """init=False fields come back with the value they had."""
    value = WithDerived(1)
    value.b = 7
    found = kept(make_store(allowed_types=[WithDerived]), value)
    assert type(found) is WithDerived
    assert (found.a, found.b) == (1, 7)


def test_case_8_a_class_that_is_gone(make_store: Make, lens: Any) -> None:
    """A resume gets an error that names thread, checkpoint, channel and type; the row stays legible."""
    module = types.ModuleType("cuo_case_8")
    sys.modules["cuo_case_8"] = module
    try:
        exec("import dataclasses\n@dataclasses.dataclass\nclass Gone:\n    a: int\n", vars(module))
        store = make_store(allowed_types=[module.Gone])
        store.put(at(), point(module.Gone(5)), {}, {"x": 1})  # type: ignore[arg-type]
        del module.Gone
        again = make_store(allowed_types=[("cuo_case_8", "Gone")])
        with pytest.raises(DeserialiseError) as refused:
            again.get_tuple(at())  # type: ignore[arg-type]
    finally:
        del sys.modules["cuo_case_8"]
    for part in ("thread t", "x", "Gone"):
        assert part in str(refused.value)
    (row,) = lens.rows()
    assert '"a": 5' in row["state_text"]
    assert "Gone" in row["state_text"]


@pytest.mark.parametrize("value", [{(1, 2)}, frozenset({(1, 2)}), (1, 2), {(1, (2, 3))}])
def test_case_9_sets_of_tuples(store: Store, lens: Any, value: Any) -> None:
    """Sets keep hashable members and tuples stay tuples."""
    for found in everywhere(store, value):
        assert type(found) is type(value)
        assert found == value


@pytest.mark.parametrize(
    ("value", "path", "name"),
    [
        ({"a": [{"b": threading.Lock()}]}, "x.a[0].b", "lock"),
        ({"a": [{"b": lambda: 1}]}, "x.a[0].b", "function"),
        ({"a": (i for i in ())}, "x.a", "generator"),
        ({"a": [{"b": complex(1, 2)}]}, "x.a[0].b", "complex"),
        ({"a": [{"b": range(3)}]}, "x.a[0].b", "range"),
    ],
    ids=["lock", "lambda", "generator", "complex", "range"],
)
def test_case_11_an_unsupported_type_is_located(
    store: Store, lens: Any, value: Any, path: str, name: str
) -> None:
    """Path, type and thread are named, nothing is written, the thread stays usable."""
    with pytest.raises(UnserialisableValue) as refused:
        store.put(at("t-11"), point(value), {}, {"x": 1})  # type: ignore[arg-type]
    assert path in str(refused.value)
    assert name in str(refused.value)
    assert "t-11" in str(refused.value)
    assert lens.rows() == []
    assert kept(store, 1, thread="t-11") == 1


class Bag(TypedDict, total=False):
    """State of the graphs below."""

    items: Annotated[list[str], Topic(str, accumulate=True)]
    x: Any
    api: str


def test_case_11_in_a_graph_the_run_ends_and_nothing_half_written(
    drive: Drive, store: Store, lens: Any
) -> None:
    """A node that returns something unstorable fails its run; the last good state stands in the row."""
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: {"x": 1})
    graph.add_node("b", lambda state: {"x": threading.Lock()})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    compiled = graph.compile(store)
    with pytest.raises(UnserialisableValue, match="thread t"):
        drive(compiled, "invoke", {"x": 0}, at())
    events = lens.events()
    assert events[-1] == "failed:UnserialisableValue"
    assert lens.rows()[-1]["state_json"] == {"x": 1}
    assert "<b" not in events
    assert lens.query("SELECT state, outcome FROM cuo_runs WHERE tenant_id = $T") == [
        {"state": "closed", "outcome": "run_failed"}
    ]


async def test_case_13_bytes_are_taken_before_the_first_await(store: Store, lens: Any) -> None:
    """A value changed after aput was called, before it was awaited, is stored as it was."""
    async with store:
        value = ["before"]
        call = store.aput(at(), point(value), {}, {"x": 1})  # type: ignore[arg-type]
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        value.append("after")
        saved = await task
        more = ["before"]
        task2 = asyncio.ensure_future(store.aput_writes(saved, [("w", more)], "t"))
        await asyncio.sleep(0)
        more.append("after")
        await task2
        found = await store.aget_tuple(saved)
    assert found is not None
    assert found.checkpoint["channel_values"]["x"] == ["before"]
    assert found.pending_writes == [("t", "w", ["before"])]


def test_case_13_history_of_an_accumulating_topic(drive: Drive, store: Store, lens: Any) -> None:
    """Each step's checkpoint holds that step's items, not a later step's.

    Under durability "async" LangGraph itself hands the store a list that the next step may have
    changed already: what is changed before put is called is beyond any store.
    """
    graph = StateGraph(Bag)
    for name in "abc":
        graph.add_node(name, lambda state, name=name: {"items": name})  # type: ignore[misc]
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    compiled = graph.compile(store)
    drive(compiled, "invoke", {"items": []}, at())
    history = drive(compiled, "get_state_history", at())
    assert [list(s.values.get("items", [])) for s in history] == [
        ["a", "b", "c"],
        ["a", "b"],
        ["a"],
        [],
        [],
    ]


# -- security ----------------------------------------------------------------------------------

HOSTILE = ["x') OR '1'='1", 'a"b', "a\\b", "%", "%s", "$.a", "a'b", "''", ";--", "{}", "\ud800", ""]


@pytest.mark.parametrize("key", HOSTILE)
def test_case_14_filter_keys_are_data(store: Store, lens: Any, key: str) -> None:
    """A hostile key finds no row unless a row really has it, and then finds that one."""
    keep(store, 1, metadata={"plain": "v"})
    assert list(store.list(at(), filter={key: "v"})) == []  # type: ignore[arg-type]
    keep(store, 1, thread="u", metadata={key: "v"})
    found = list(store.list(at("u"), filter={key: "v"}))  # type: ignore[arg-type]
    assert len(found) == (0 if key == "\ud800" else 1), "keys that are no text match nothing"
    assert list(store.list(at("u"), filter={key: {"$ne": "w"}})) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["1", "1; DROP TABLE x", 1.5, True, -1])
def test_case_14_a_limit_that_is_no_number(store: Store, lens: Any, limit: Any) -> None:
    """limit is a number or an error, never part of a statement."""
    keep(store, 1)
    with pytest.raises((TypeError, ValueError)):
        list(store.list(at(), limit=limit))  # type: ignore[arg-type]
    assert len(list(store.list(at(), limit=1))) == 1  # type: ignore[arg-type]


FORGED = (
    b'{"x":{"$dataclass":"antigravity:Forged","$fields":{}}}',
    (
        b'{"channel_versions":{},"hidden":{},"id":"1f0","metadata":{},"ts":"","updated_channels":null,'
        b'"v":4,"versions_seen":{}}'
    ),
)
"""The forged row's documents in the form of RFC 8785: the database asks for their digests."""


def test_case_15_a_forged_class_is_not_rebuilt(
    store: Store, shared_place: Any, tenant_id: str, lens_of: Any
) -> None:
    """A row that names a class outside the allow-list gives a typed error and imports nothing."""
    with psycopg.connect(shared_place.app, autocommit=True) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        conn.execute(
            "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind,"
            " state_json, trace_id, thread_id, lg_checkpoint_id, langgraph, state_sha256,"
            " langgraph_sha256) VALUES (gen_random_uuid(), %s, gen_random_uuid(), 'run_started',"
            ' \'{"x": {"$dataclass": "antigravity:Forged", "$fields": {}}}\', repeat(\'0\', 32),'
            ' \'forged\', \'1f0\', \'{"v": 4, "id": "1f0", "ts": "",'
            ' "channel_versions": {}, "versions_seen": {}, "updated_channels": null,'
            ' "hidden": {}, "metadata": {}}\', %s, %s)',
            [tenant_id, *(hashlib.sha256(text).digest() for text in FORGED)],
        )
    with pytest.raises(DeserialiseError):
        store.get_tuple(at("forged"))  # type: ignore[arg-type]
    assert "antigravity" not in sys.modules


def test_case_15_allowing_one_type_leaves_the_others(make_store: Make, lens: Any) -> None:
    """A type outside the allow-list is refused at write, never silently a dict."""
    store = make_store(allowed_types=[Item])
    assert kept(store, Item(a=1)) == Item(a=1)
    with pytest.raises(UnserialisableValue, match="WithDerived"):
        store.put(at("u"), point(WithDerived(1)), {}, {"x": 1})  # type: ignore[arg-type]


def test_case_18_the_documentation_says_what_is_readable(store: Store, lens: Any) -> None:
    """Nothing claims to be encrypted: what the tables show in clear, the guide says is in clear."""
    saved = store.put(at(), point("state"), {"note": "metadata"}, {"x": 1})  # type: ignore[arg-type,typeddict-unknown-key]
    store.put_writes(saved, [("w", "write")], "t")
    (row,) = lens.rows()
    assert '"state"' in row["state_text"]
    assert '"metadata"' in row["langgraph_text"]
    (write,) = lens.query("SELECT value::text AS v FROM cuo_langgraph_writes WHERE tenant_id = $T")
    assert write["v"] == '"write"'
    guide = (Path(__file__).parents[2] / "docs" / "langgraph.md").read_text()
    assert "encrypts nothing" in guide
    for named in ("state", "pending writes", "metadata", "node names"):
        assert named in guide.split("encrypts nothing")[1].split("|")[0]


def test_case_23_a_role_of_no_concern_reads_nothing(shared_place: Any, lens: Any) -> None:
    """A login that is none of ours, as a hosted API has one, may not even count rows."""
    role = f"visitor_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(shared_place.admin, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        try:
            tables = admin.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                " AND relkind IN ('r', 'p', 'v')"
            ).fetchall()
            assert len(tables) > 20
            admin.execute(f"SET ROLE {role}")
            for (name,) in tables:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    admin.execute(f"SELECT count(*) FROM {name}")
        finally:
            admin.execute("RESET ROLE")
            admin.execute(f"DROP ROLE {role}")


def test_case_19_configurable_secrets_stay_out(
    drive: Drive, store: Store, shared_place: Any, lens: Any
) -> None:
    """An api_key in configurable is nowhere in the tenant's rows."""
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: {"x": 1})
    graph.add_edge(START, "a")
    marker = f"sk-{uuid.uuid4().hex}"
    drive(graph.compile(store), "invoke", {"x": 0}, at(api_key=marker, user="u1"))
    for table in (
        "cuo_langgraph_checkpoints",
        "cuo_langgraph_writes",
        "cuo_memory_audit",
        "cuo_runs",
        "cuo_threads",
    ):
        rows = lens.query(f"SELECT t::text AS row FROM {table} t WHERE tenant_id = $T")
        assert rows or table == "cuo_langgraph_writes"
        assert all(marker not in row["row"] for row in rows), table


@pytest.mark.parametrize(
    "secret",
    [SecretStr("hunter2"), SecretBytes(b"hunter2"), [SecretStr("hunter2")], {"k": SecretStr("x")}],
)
def test_case_19_secrets_in_state_are_refused(store: Store, lens: Any, secret: Any) -> None:
    """A Secret anywhere is refused with its path, never redacted silently, never stored."""
    with pytest.raises(UnserialisableValue, match="secret"):
        store.put(at(), point(secret), {}, {"x": 1})  # type: ignore[arg-type]
    saved = store.put(at(), point(1), {}, {"x": 1})  # type: ignore[arg-type]
    with pytest.raises(UnserialisableValue, match="secret"):
        store.put_writes(saved, [("w", secret)], "t")
    assert all("hunter2" not in str(row) for row in lens.rows())


def test_case_22_no_tenant_is_an_error_everywhere(make_store: Make, lens: Any) -> None:
    """Without a tenant every read and write says so."""
    store = make_store(tenant_id=None)
    calls: list[Callable[[], Any]] = [
        lambda: store.get_tuple(at()),  # type: ignore[arg-type]
        lambda: list(store.list(None)),
        lambda: list(store.list(at())),  # type: ignore[arg-type]
        lambda: store.put(at(), point(1), {}, {}),  # type: ignore[arg-type]
        lambda: store.put_writes(at(checkpoint="1"), [("x", 1)], "t"),  # type: ignore[arg-type]
        lambda: store.delete_thread("t"),
        lambda: store.delete_for_runs(["r"]),
        lambda: store.prune(["t"]),
        lambda: store.copy_thread("t", "u"),
    ]
    for call in calls:
        with pytest.raises(TenantRequired):
            call()


def test_case_22_list_shows_one_tenant(
    make_store: Make, lens: Any, other_tenant_id: str, tenant_id: str
) -> None:
    """list(None) and an exact id show the tenant's own rows, also on a connection just used by another."""
    mine = make_store(max_connections=1, tenant_id=None)
    here, there = {"tenant_id": tenant_id}, {"tenant_id": other_tenant_id}
    saved = mine.put(at("a", **here), point(1), {}, {"x": 1})  # type: ignore[arg-type]
    other = mine.put(at("b", **there), point(2), {}, {"x": 1})  # type: ignore[arg-type]
    for _ in range(3):
        found = list(mine.list({"configurable": dict(here)}))
        assert [f.config["configurable"]["thread_id"] for f in found] == ["a"]
        found = list(mine.list({"configurable": dict(there)}))
        assert [f.config["configurable"]["thread_id"] for f in found] == ["b"]
    stolen = {"configurable": {**other["configurable"], **here}}
    assert mine.get_tuple(stolen) is None
    assert mine.get_tuple(saved) is not None


@pytest.mark.parametrize("thread", [1, 2**80, uuid.UUID(int=5)])
def test_case_24_thread_ids_have_one_spelling(store: Store, lens: Any, thread: Any) -> None:
    """int and UUID become text the same way in every method."""
    saved = store.put(at(thread), point(1), {}, {"x": 1})  # type: ignore[arg-type]
    store.put_writes(
        {"configurable": {**saved["configurable"], "thread_id": thread}}, [("w", 1)], "t"
    )
    for spelling in (thread, str(thread)):
        assert store.get_tuple(at(spelling)) is not None  # type: ignore[arg-type]
        assert len(list(store.list(at(spelling)))) == 1  # type: ignore[arg-type]
    store.copy_thread(thread, "copy")
    store.prune([thread])
    store.delete_thread(thread)
    assert store.get_tuple(at(str(thread))) is None  # type: ignore[arg-type]
    assert store.get_tuple(at("copy")) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "thread", [b"t", "", "a\x00b", None, 1.5, True, ["t"], "x" * 513, "\ud800"]
)
def test_case_24_other_thread_ids_are_refused(store: Store, lens: Any, thread: Any) -> None:
    """Every method refuses them with the rule they break, before the database sees them."""
    calls: list[Callable[[], Any]] = [
        lambda: store.get_tuple(at(thread)),  # type: ignore[arg-type]
        lambda: store.put(at(thread), point(1), {}, {}),  # type: ignore[arg-type]
        lambda: store.put_writes(at(thread, "1"), [("x", 1)], "t"),  # type: ignore[arg-type]
        lambda: store.delete_thread(thread),
        lambda: store.prune([thread]),
        lambda: store.copy_thread("t", thread),
    ]
    if thread is not None:
        calls.append(lambda: list(store.list(at(thread))))  # type: ignore[arg-type]
    keep(store, 1, thread="t")
    for call in calls:
        with pytest.raises(InvalidIdentifier, match="thread_id"):
            call()


@pytest.mark.parametrize("field", ["checkpoint_id", "checkpoint_ns"])
@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x" * 3000])
def test_case_24_other_ids_are_refused_too(store: Store, lens: Any, field: str, value: str) -> None:
    """Namespaces and checkpoint ids that PostgreSQL cannot hold are refused, not shortened."""
    keep(store, 1)
    with pytest.raises(InvalidIdentifier, match=field):
        store.get_tuple({"configurable": {"thread_id": "t", field: value}})
    with pytest.raises(InvalidIdentifier):
        list(store.list(at(), before={"configurable": {"checkpoint_id": "\x00"}}))  # type: ignore[arg-type]


def test_case_24_ids_with_separators_do_not_collide(store: Store, lens: Any) -> None:
    """No key is built by joining parts: these threads and namespaces stay apart."""
    for n, (thread, ns) in enumerate([("a", "b|c"), ("a|b", "c"), ("a:b", ""), ("a", ":b")]):
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        store.put(config, point(n), {}, {"x": 1})  # type: ignore[arg-type]
    for n, (thread, ns) in enumerate([("a", "b|c"), ("a|b", "c"), ("a:b", ""), ("a", ":b")]):
        found = store.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ns}})
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": n}


# -- concurrency -------------------------------------------------------------------------------


def test_case_26_setup_from_eight_threads(app_dsn: str, admin_dsn: str, tenant_id: str) -> None:
    """All of eight calls of setup succeed at once, also when they meet on a month that is missing."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        for (name,) in conn.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'cuo_langgraph_checkpoints'::regclass"
        ).fetchall():
            conn.execute(f"DROP TABLE {name}")
    gate = threading.Barrier(8)

    def work() -> None:
        with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
            gate.wait(30)
            store.setup()

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work) for _ in range(8)]:
            done.result(60)
    with psycopg.connect(admin_dsn) as conn:
        assert conn.execute(
            "SELECT count(*) FROM pg_inherits"
            " WHERE inhparent = 'cuo_langgraph_checkpoints'::regclass"
        ).fetchone() == (4,)


def test_case_26_a_missing_month_is_made_by_the_writer(
    app_dsn: str, admin_dsn: str, tenant_id: str
) -> None:
    """A put that meets no month makes it and is stored."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        for (name,) in conn.execute("SELECT inhrelid::regclass::text FROM pg_inherits").fetchall():
            if name.startswith("cuo_") and "idx" not in name and "pkey" not in name:
                conn.execute(f"DROP TABLE IF EXISTS {name}")
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        assert kept(store, "not lost") == "not lost"


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("factory", [None, dict_row], ids=["tuples", "dicts"])
def test_case_27_any_pool_of_the_callers_works(
    shared_place: Any, tenant_id: str, lens: Any, autocommit: bool, factory: Any
) -> None:
    """A pool with any row factory and any autocommit stores, reads and leaves no transaction open."""
    kwargs: dict[str, Any] = {"autocommit": autocommit} | (
        {"row_factory": factory} if factory else {}
    )
    with ConnectionPool(shared_place.app, min_size=1, max_size=1, kwargs=kwargs) as pool:
        with PostgresCheckpointer(pool, tenant_id=tenant_id) as store:
            store.setup()
            assert kept(store, 5) == 5
            assert len(list(store.list(at()))) == 1  # type: ignore[arg-type]
        with pool.connection() as conn:
            assert conn.info.transaction_status.name == "IDLE"

    async def awaiting() -> Any:
        async with AsyncConnectionPool(
            shared_place.app, min_size=1, max_size=1, kwargs=kwargs, open=False
        ) as apool:
            store = PostgresCheckpointer(apool, tenant_id=tenant_id)
            await store.aput(at("a"), point(6), {}, {"x": 1})  # type: ignore[arg-type]
            return await store.aget_tuple(at("a"))  # type: ignore[arg-type]

    assert asyncio.run(awaiting()).checkpoint["channel_values"] == {"x": 6}


def test_case_28_two_writers_on_one_parent_are_both_kept(store: Store, lens: Any) -> None:
    """Neither branch is lost: both stand in the log under one parent, the later one is the tip."""
    head = store.put(at(), point(0), {}, {"x": 1})  # type: ignore[arg-type]
    first, second = point("first"), point("second")
    store.put(head, second, {}, {"x": 2})  # type: ignore[arg-type]
    store.put(head, first, {}, {"x": 2})  # type: ignore[arg-type]
    found = [t.checkpoint["channel_values"]["x"] for t in store.list(at())]  # type: ignore[arg-type]
    assert found == ["first", "second", 0]
    newest = store.get_tuple(at())  # type: ignore[arg-type]
    assert newest is not None
    assert newest.checkpoint["channel_values"] == {"x": "first"}
    parents = lens.query(
        "SELECT lg_parent_id, count(*) AS n FROM cuo_langgraph_checkpoints"
        " WHERE tenant_id = $T AND lg_parent_id IS NOT NULL GROUP BY 1"
    )
    assert [row["n"] for row in parents] == [2]


def test_case_28_strict_parent_refuses_the_second(make_store: Make, lens: Any) -> None:
    """With strict_parent exactly one of many writers on one parent succeeds; the rest are told."""
    store = make_store(strict_parent=True, max_connections=8)
    head = store.put(at(), point(0), {}, {"x": 1})  # type: ignore[arg-type]
    gate = threading.Barrier(8)

    def work(n: int) -> bool:
        gate.wait(30)
        try:
            store.put(head, point(n), {}, {"x": 2})  # type: ignore[arg-type]
        except StaleParent:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 1
    assert len(list(store.list(at()))) == 2  # type: ignore[arg-type]


def test_case_28_strict_parent_allows_time_travel(
    drive: Drive, make_store: Make, lens: Any
) -> None:
    """A deliberate fork works in strict mode too."""
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: {"x": 1})
    graph.add_node("b", lambda state: {"x": 2})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    compiled = graph.compile(make_store(strict_parent=True))
    drive(compiled, "invoke", {"x": 0}, at())
    older = next(s for s in drive(compiled, "get_state_history", at()) if s.next == ("b",))
    drive(compiled, "invoke", None, older.config)
    assert lens.events()[-1] == "done"


def test_case_30_history_cannot_be_rewritten(store: Store, lens: Any) -> None:
    """Same id and bytes: no-op. Same id, other bytes: refused, and the attempt is on record."""
    checkpoint = point("one")
    store.put(at(), checkpoint, {"source": "loop"}, {"x": 1})  # type: ignore[arg-type]
    before = lens.rows()
    store.put(at(), checkpoint, {"source": "loop"}, {"x": 1})  # type: ignore[arg-type]
    assert lens.rows() == before
    for changed, metadata in (
        ({**checkpoint, "channel_values": {"x": "two"}}, {"source": "loop"}),
        (checkpoint, {"source": "update"}),
    ):
        with pytest.raises(CheckpointConflict):
            store.put(at(), changed, metadata, {"x": 1})  # type: ignore[arg-type]
    assert lens.rows() == before
    assert len(lens.audit("refused_overwrite")) == 2
    assert lens.query("SELECT FROM cuo_runs WHERE tenant_id = $T AND state <> 'closed'") == []


def test_case_30_an_attempt_leaves_no_run_to_continue(
    drive: Drive, store: Store, lens: Any
) -> None:
    """After a refused overwrite the next run on the thread is a run of its own, whole."""
    checkpoint = point("one")
    metadata: Any = {"source": "loop", "step": 0}
    store.put(at(), checkpoint, metadata, {"x": 1})  # type: ignore[arg-type]
    with pytest.raises(CheckpointConflict):
        store.put(at(), {**checkpoint, "channel_values": {"x": 2}}, metadata, {"x": 1})  # type: ignore[arg-type]
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: {"x": 3})
    graph.add_edge(START, "a")
    drive(graph.compile(store), "invoke", {"x": 0}, at())
    assert lens.events()[1] == "started"


def test_case_31_the_first_writes_win(make_store: Make, lens: Any) -> None:
    """Repeating a task's writes in another process changes and doubles nothing."""
    saved = make_store().put(at(), point(1), {}, {"x": 1})  # type: ignore[arg-type]
    for writes in ([("x", 1), ("y", 2)], [("x", 1), ("y", 2)], [("x", 9)]):
        make_store().put_writes(saved, writes, "t1")
    found = make_store().get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("t1", "x", 1), ("t1", "y", 2)]
    assert len(lens.query("SELECT FROM cuo_langgraph_writes WHERE tenant_id = $T")) == 2
    assert len(lens.audit("write_set")) == 1


def test_case_31_a_task_that_failed_may_succeed(store: Store, lens: Any) -> None:
    """Errors, interrupts and answers are kept in every version, the newest is served."""
    saved = store.put(at(), point(1), {}, {"x": 1})  # type: ignore[arg-type]
    store.put_writes(saved, [("__error__", "E1")], "t1")
    store.put_writes(saved, [("__error__", "E2")], "t1")
    store.put_writes(saved, [("x", 1)], "t1")
    found = store.get_tuple(saved)
    assert found is not None
    assert found.pending_writes is not None
    assert ("t1", "__error__", "E2") in found.pending_writes
    assert ("t1", "x", 1) in found.pending_writes
    assert len(found.pending_writes) == 2
    assert len(lens.query("SELECT FROM cuo_langgraph_writes WHERE tenant_id = $T")) == 3


def test_case_33_writes_may_come_before_their_checkpoint(store: Store, lens: Any) -> None:
    """Writes to a checkpoint that is not there yet are kept and are served when it is."""
    checkpoint = point(1)
    store.put_writes(at(checkpoint=checkpoint["id"]), [("w", 1)], "t1")  # type: ignore[arg-type]
    store.put(at(), checkpoint, {}, {"x": 1})  # type: ignore[arg-type]
    store.put(at(checkpoint=checkpoint["id"]), point(2), {}, {"x": 2})  # type: ignore[arg-type]
    store.put_writes(at(checkpoint=checkpoint["id"]), [("w", 2)], "t2")  # type: ignore[arg-type]
    found = store.get_tuple(at(checkpoint=checkpoint["id"]))  # type: ignore[arg-type]
    assert found is not None
    assert sorted(found.pending_writes or []) == [("t1", "w", 1), ("t2", "w", 2)]


def test_case_34_a_deleted_thread_does_not_come_back(store: Store, lens: Any) -> None:
    """Late writes are refused; using the id again needs an explicit act, and hides what was."""
    saved = store.put(at(), point("old"), {}, {"x": 1})  # type: ignore[arg-type]
    store.put_writes(saved, [("w", "old")], "t1")
    store.delete_thread("t")
    with pytest.raises(ThreadDeleted):
        store.put_writes(saved, [("w", 1)], "t2")
    with pytest.raises(ThreadDeleted):
        store.put(saved, point(1), {}, {"x": 1})  # type: ignore[arg-type]
    assert store.get_tuple(at()) is None  # type: ignore[arg-type]
    assert store.get_tuple(saved) is None
    assert list(store.list(at())) == []  # type: ignore[arg-type]
    assert list(store.list(None)) == []
    store.reopen_thread("t")
    assert store.get_tuple(at()) is None  # type: ignore[arg-type]
    assert kept(store, "new") == "new"
    assert len(list(store.list(at()))) == 1  # type: ignore[arg-type]
    assert len(lens.rows()) == 2
    assert [row["kind"] for row in lens.audit("tombstone")] == ["tombstone"] * 2


def test_case_34_deleted_writes_stay_deleted_when_an_id_is_used_again(
    store: Store, lens: Any
) -> None:
    """Putting the same checkpoint id again after reopening serves and keeps only new writes."""
    checkpoint = point(1)
    saved = store.put(at(), checkpoint, {}, {"x": 1})  # type: ignore[arg-type]
    store.put_writes(saved, [("w", "old")], "t1")
    store.delete_thread("t")
    store.reopen_thread("t")
    store.put(at(), checkpoint, {}, {"x": 1})  # type: ignore[arg-type]
    found = store.get_tuple(at())  # type: ignore[arg-type]
    assert found is not None
    assert not found.pending_writes
    store.put_writes(saved, [("w", "new")], "t1")
    found = store.get_tuple(at())  # type: ignore[arg-type]
    assert found is not None
    assert found.pending_writes == [("t1", "w", "new")]


# -- connections -------------------------------------------------------------------------------


def kill_backends(place: Any, tenant: str) -> int:
    """Ends the app's backends in this database, as an operator or a fail-over would."""
    with psycopg.connect(place.admin, autocommit=True) as conn:
        row = conn.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            [tenant],
        ).fetchone()
    assert row is not None
    return int(row[0])


def named(place: Any, tenant: str) -> str:
    """A conninfo whose connections can be told from other tests'."""
    return f"{place.app}&application_name={tenant}"


def test_case_37_connections_may_be_lost(
    shared_place: Any, tenant_id: str, make_store: Make, lens: Any, drive: Drive
) -> None:
    """After the server ended its backends, reads and writes simply work."""
    store = make_store(named(shared_place, tenant_id), max_connections=2)
    drive(store, "put", at(), point(1), {}, {"x": 1})
    kept(store, 1, thread="warm")
    assert kill_backends(shared_place, tenant_id) >= 1
    found = store.get_tuple(at())  # type: ignore[arg-type]
    assert found is not None
    kill_backends(shared_place, tenant_id)
    assert kept(store, 2, thread="u") == 2
    assert len(lens.rows("u")) == 1


async def test_case_37_awaiting_callers_survive_too(
    shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """The same for the awaiting pool, with several calls in flight."""
    store = PostgresCheckpointer(
        named(shared_place, tenant_id), tenant_id=tenant_id, max_connections=3
    )
    async with store:
        await asyncio.gather(
            *(store.aput(at(f"t{i}"), point(i), {}, {"x": 1}) for i in range(6))  # type: ignore[arg-type]
        )
        await asyncio.to_thread(kill_backends, shared_place, tenant_id)
        found = await asyncio.gather(*(store.aget_tuple(at(f"t{i}")) for i in range(6)))  # type: ignore[arg-type]
    assert [f.checkpoint["channel_values"]["x"] for f in found if f] == list(range(6))


@pytest.mark.slow
def test_case_37_backends_that_die_in_mid_run_double_nothing(
    shared_place: Any, tenant_id: str, make_store: Make, lens: Any
) -> None:
    """While backends are ended over and over, runs complete, each with exactly its rows."""
    store = make_store(named(shared_place, tenant_id), max_connections=4)
    graph = StateGraph(Bag)
    for name in "abc":
        graph.add_node(name, lambda state: {"x": 1})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    compiled = graph.compile(store)
    stop = threading.Event()

    def saboteur() -> None:
        while not stop.wait(0.7):
            kill_backends(shared_place, tenant_id)

    killer = threading.Thread(target=saboteur)
    killer.start()
    try:
        for n in range(15):
            compiled.invoke({"x": 0}, at(f"t{n:02}"), durability="sync")  # type: ignore[arg-type]
    finally:
        stop.set()
        killer.join()
    whole = (
        "started __start__->a >a <a a->b >b <b b->c >c <c c->__end__ done".split()  # noqa: SIM905
    )
    for n in range(15):
        assert lens.events(f"t{n:02}") == whole


@pytest.mark.slow
def test_case_37_a_server_that_is_gone_is_said_so(tenant_id: str, tmp_path: Any) -> None:
    """No server: a typed error in seconds, not a hang."""
    from cuo_checkpoint.errors import StoreUnavailable

    begun = time.monotonic()
    with (
        PostgresCheckpointer(
            f"postgresql://cyberos_app@/cuo?host={tmp_path}&connect_timeout=2",
            tenant_id=tenant_id,
        ) as store,
        pytest.raises(StoreUnavailable),
    ):
        store.get_tuple(at())  # type: ignore[arg-type]
    assert time.monotonic() - begun < 60


def test_case_38_prepared_statements_may_vanish(
    shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """A server that forgot its prepared statements, as behind a pooler, is not noticed."""
    with ConnectionPool(
        shared_place.app,
        min_size=1,
        max_size=1,
        kwargs={"autocommit": True, "prepare_threshold": 0},
    ) as pool:
        store = PostgresCheckpointer(pool, tenant_id=tenant_id)
        for n in range(7):
            assert kept(store, n, thread=f"t{n}") == n
            with pool.connection() as conn:
                conn.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$", prepare=False)


def test_case_38_no_tenant_is_left_on_a_connection(
    shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """After any call the connection has no tenant, so the next user of it has none either."""
    with ConnectionPool(
        shared_place.app, min_size=1, max_size=1, kwargs={"autocommit": True}
    ) as pool:
        store = PostgresCheckpointer(pool, tenant_id=tenant_id)

        def left() -> Any:
            with pool.connection() as conn:
                return conn.execute("SELECT current_setting('auth.tenant_id', true)").fetchone()

        kept(store, 1)
        assert left() in ((None,), ("",))
        list(store.list(None))
        store.prune(["t"])
        found = store.get_tuple(at())  # type: ignore[arg-type]
        assert found is not None
        changed: Any = {**found.checkpoint, "channel_values": {"x": 9}}
        with pytest.raises(CheckpointConflict):
            store.put(at(), changed, found.metadata, {"x": 1})  # type: ignore[arg-type]
        store.delete_thread("t")
        assert left() in ((None,), ("",))


SYNC_CALLS: dict[str, Callable[[Store], Any]] = {
    "setup": lambda s: s.setup(),
    "get_tuple": lambda s: s.get_tuple(at()),  # type: ignore[arg-type]
    "get": lambda s: s.get(at()),  # type: ignore[arg-type]
    "list": lambda s: s.list(at()),  # type: ignore[arg-type]
    "put": lambda s: s.put(at(), point(1), {}, {}),  # type: ignore[arg-type]
    "put_writes": lambda s: s.put_writes(at(checkpoint="1"), [], "t"),  # type: ignore[arg-type]
    "delete_thread": lambda s: s.delete_thread("t"),
    "reopen_thread": lambda s: s.reopen_thread("t"),
    "delete_for_runs": lambda s: s.delete_for_runs(["r"]),
    "prune": lambda s: s.prune(["t"]),
    "copy_thread": lambda s: s.copy_thread("t", "u"),
    "claim": lambda s: s.claim(at(run_id="r"), "n", 1),  # type: ignore[arg-type]
    "get_delta_channel_history": lambda s: s.get_delta_channel_history(
        config=at(), channels=["x"]  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SYNC_CALLS)
async def test_case_40_the_wrong_colour_is_said_at_once(store: Store, name: str) -> None:
    """A blocking method inside a running loop raises at once, naming the method to await."""
    begun = time.monotonic()
    with pytest.raises(WrongColour, match=f"a{name}|aget_tuple"):
        SYNC_CALLS[name](store)
    assert time.monotonic() - begun < 2


def test_case_40_every_method_has_its_twin() -> None:
    """Blocking and awaiting methods come in pairs, none forgotten, all of them tested above."""
    ours = {n for n in dir(PostgresCheckpointer) if not n.startswith("_")}
    pairs = {n for n in ours if f"a{n}" in ours}
    assert pairs >= set(SYNC_CALLS)
    assert pairs - set(SYNC_CALLS) == {"run_plan", "close"}


async def test_case_40_a_graph_may_be_run_by_thread_from_a_loop(store: Store, lens: Any) -> None:
    """The way named in the error works: the same store serves invoke in a thread and ainvoke."""
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: {"x": 1})
    graph.add_edge(START, "a")
    compiled = graph.compile(store)
    await compiled.ainvoke({"x": 0}, at("awaited"))  # type: ignore[arg-type]
    await asyncio.to_thread(compiled.invoke, {"x": 0}, at("thread"))  # type: ignore[arg-type]
    await store.aclose()
    assert lens.events("awaited") == lens.events("thread")


async def test_case_41_the_proactor_loop_is_refused_with_a_remedy(tenant_id: str) -> None:
    """Windows' default loop gives the one-line remedy instead of psycopg's own refusal."""
    from cuo_checkpoint.looping import refuse_proactor

    class ProactorEventLoop:
        """Stands for the loop that only exists on Windows."""

    with pytest.raises(SchemaNotReady, match="SelectorEventLoop"):
        refuse_proactor(ProactorEventLoop())  # type: ignore[arg-type]


@pytest.mark.slow
def test_case_43_a_long_chat_costs_what_it_holds(make_store: Make, lens: Any) -> None:
    """Sixty turns of a kilobyte: rows of a step share their state, and the newest reads at once."""
    store = make_store()
    history: list[str] = []
    config: Any = at()
    for turn in range(60):
        history = [*history, f"{turn}:" + "x" * 1000]
        config = store.put(config, point(list(history)), {"step": turn}, {"x": turn})  # type: ignore[arg-type]
    begun = time.monotonic()
    found = store.get_tuple(at())  # type: ignore[arg-type]
    assert found is not None
    assert len(found.checkpoint["channel_values"]["x"]) == 60
    assert time.monotonic() - begun < 2
    assert len(list(store.list(at(), limit=3))) == 3  # type: ignore[arg-type]
    stored = lens.query(
        "SELECT sum(pg_column_size(state_json)) AS n FROM cuo_langgraph_checkpoints"
        " WHERE tenant_id = $T"
    )
    assert stored[0]["n"] < 60 * 61 / 2 * 1002


@pytest.mark.filterwarnings("ignore")
def test_case_44_pruning_breaks_no_channel_that_needs_its_ancestors(
    drive: Drive, make_store: Make, lens: Any
) -> None:
    """What a delta channel is rebuilt from stays readable to it when listings hide it.

    Dropping whole months by age, and what holds a month, is proven with the archive.
    """
    from langgraph.channels import DeltaChannel

    channel = DeltaChannel(lambda old, new: [*(old or []), *(i for part in new for i in part)])
    state: Any = TypedDict("state", {"m": Annotated[list[str], channel]}, total=False)  # type: ignore[operator]
    graph = StateGraph(state)
    graph.add_node("a", lambda state: {"m": ["re"]})
    graph.add_edge(START, "a")
    store = make_store()
    compiled = graph.compile(store)
    for text in "abc":
        drive(compiled, "invoke", {"m": [text]}, at())
        drive(store, "prune", ["t"])
    assert drive(compiled, "get_state", at()).values["m"] == ["a", "re", "b", "re", "c", "re"]


def test_a_used_answer_does_not_answer_the_next_interrupt(
    drive: Drive, store: Store, lens: Any
) -> None:
    """Two questions in a row need two answers; going on without one asks again."""
    graph = StateGraph(Bag)

    def ask(state: Bag) -> Bag:
        return {"x": [interrupt("first?"), interrupt("second?")]}

    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    compiled = graph.compile(store)
    drive(compiled, "invoke", {"x": 0}, at())
    asked = drive(compiled, "invoke", Command(resume="one"), at())
    assert asked["__interrupt__"][0].value == "second?"
    assert drive(compiled, "invoke", Command(resume="two"), at())["x"] == ["one", "two"]
    assert lens.events().count("done") == 1
    assert len(lens.audit("waiting")) == 2


def test_an_accepted_request_leaves_a_trace_before_its_first_node(
    drive: Drive, store: Store, lens: Any
) -> None:
    """run_started stands in the log before any node ran, and stays there when the first one dies."""
    seen: list[list[str]] = []
    graph = StateGraph(Bag)
    graph.add_node("a", lambda state: seen.append(lens.events()) or {"x": 1})
    graph.add_edge(START, "a")
    drive(graph.compile(store), "invoke", {"x": 0}, at())
    assert seen[0][0] == "started"
