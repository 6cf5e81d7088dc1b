"""How often a run goes to the database: counted on the wire, since times depend on the machine."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit
from wire import Wire

from cuo_checkpoint import NEW_THREAD, PostgresCheckpointer
from cuo_checkpoint.errors import StaleParent
from cuo_supervisor.errors import DataError


@pytest.fixture(scope="module")
def wire(shared_place: Any) -> Iterator[Wire]:
    with tempfile.TemporaryDirectory(prefix="cuo-w-") as folder:
        made = Wire(shared_place.app, shared_place.admin, Path(folder))
        yield made
        made.close()


def trips(wire: Wire) -> int:
    """Statements sent and awaited: each ends with a Sync of its own."""
    return wire.steps.count(">S") + wire.steps.count(">Q")


async def test_a_request_by_rule_goes_to_the_database_once_a_superstep(
    wire: Wire, tmp_path: Path, lens: Any, tenant_id: str
) -> None:
    """Input, the hidden entry and five nodes: seven, and nothing to read for an id just minted."""
    async with kit.make(wire.dsn, ledger=tmp_path / "ledger") as supervisor:
        who = kit.identity(tenant_id)
        await supervisor.route(kit.AUTO, identity=who, do_invoke=False)  # keeps the catalogue
        wire.rearm(None, "kill")
        await supervisor.route(kit.AUTO, identity=who, do_invoke=False)
        assert trips(wire) == 7
    lens.prove()


async def test_an_id_that_is_there_is_no_new_run(
    shared_place: Any, tmp_path: Path, lens: Any, tenant_id: str
) -> None:
    """An id source that repeats itself is refused at the first row; the first run stays as it was."""
    run_id = uuid.uuid4()
    async with kit.make(
        shared_place.app, ledger=tmp_path / "ledger", clock=kit.clock_with(run_id)
    ) as supervisor:
        who = kit.identity(tenant_id)
        await supervisor.route(kit.AUTO, identity=who, do_invoke=False)
        before = lens.rows(str(run_id))
        with pytest.raises(DataError, match="another process"):
            await supervisor.route(kit.AUTO, identity=who, do_invoke=False)
    assert lens.rows(str(run_id)) == before
    lens.prove()


class State(TypedDict, total=False):
    x: int
    a: int
    b: int


def line() -> StateGraph[Any]:
    """Two nodes in a line."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"a": 1})
    graph.add_node("b", lambda state: {"b": 1})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    return graph


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_new_thread_is_not_read(wire: Wire, tenant_id: str, lens: Any, colour: str) -> None:
    """One round trip fewer, the same rows; whoever reads the thread afterwards finds it."""
    counted: dict[str, int] = {}
    for name, more in (("read", {}), ("new", {NEW_THREAD: True})):
        config: Any = {"configurable": {"thread_id": f"{name}-{colour}", **more}}
        async with PostgresCheckpointer(wire.dsn, tenant_id=tenant_id, strict_parent=True) as store:
            compiled: CompiledStateGraph[Any] = line().compile(checkpointer=store)
            await store.asetup()
            await asyncio.to_thread(store.setup)
            wire.rearm(None, "kill")
            if colour == "sync":
                await asyncio.to_thread(compiled.invoke, {"x": 0}, config, durability="sync")
            else:
                await compiled.ainvoke({"x": 0}, config, durability="sync")
            counted[name] = trips(wire)
            assert (await compiled.aget_state(config)).values == {"x": 0, "a": 1, "b": 1}
            if more:
                with pytest.raises(StaleParent):
                    await compiled.ainvoke({"x": 1}, config, durability="sync")
    assert counted["new"] == counted["read"] - 1
    assert lens.events(f"new-{colour}") == lens.events(f"read-{colour}")
    lens.prove()
