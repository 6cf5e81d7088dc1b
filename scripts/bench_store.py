"""The store beside the stock AsyncPostgresSaver, in one run on one server.

Everything is a ratio: the machines that run this are shared. `--bin-dir` names another
PostgreSQL's programs (for example Debian's 15, built with lz4) than the embedded ones.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypedDict

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg_pool import AsyncConnectionPool

from cuo_checkpoint import PostgresCheckpointer, migrate
from cuo_checkpoint.local import LocalServer


class State(TypedDict, total=False):
    text: str
    n: int


def graph(size: int) -> StateGraph[State, None, State, State]:
    """Five nodes in a line over a state of about `size` bytes."""

    def node(state: State) -> State:
        return {"n": state.get("n", 0) + 1, "text": "x" * size + str(state.get("n", 0))}

    made = StateGraph(State)
    for i in range(5):
        made.add_node(f"n{i}", node)
    made.add_edge(START, "n0")
    for i in range(4):
        made.add_edge(f"n{i}", f"n{i + 1}")
    made.add_edge("n4", END)
    return made


def fresh() -> Any:
    """A thread nobody has used."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


def line(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
    }


async def runs(ours: Any, stock: Any, size: int, rounds: int) -> dict[str, Any]:
    """Time added per five-node run over no store at all, in turns so that drift hits all alike."""
    bare = graph(size).compile()
    mine = graph(size).compile(checkpointer=ours)
    theirs = graph(size).compile(checkpointer=stock)
    times: dict[str, list[float]] = {"none": [], "ours": [], "stock": []}
    for i in range(rounds + 3):
        samples = {
            "none": await timed(lambda: bare.ainvoke({"n": 0})),
            "ours": await timed(lambda: mine.ainvoke({"n": 0}, fresh(), durability="sync")),
            "stock": await timed(lambda: theirs.ainvoke({"n": 0}, fresh(), durability="sync")),
        }
        if i >= 3:
            for name, value in samples.items():
                times[name].append(value)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "state_bytes": size,
        **{name: line(values) for name, values in times.items()},
        "added_ratio": round(
            (median["ours"] - median["none"]) / (median["stock"] - median["none"]), 2
        ),
    }


async def concurrent(saver: Any, size: int, workers: int, each: int) -> float:
    """Five-node runs per second with `workers` at once."""
    compiled = graph(size).compile(checkpointer=saver)

    async def worker() -> None:
        for _ in range(each):
            config = {"configurable": {"thread_id": str(uuid.uuid4())}}
            await compiled.ainvoke({"n": 0}, config, durability="sync")

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return workers * each / (time.perf_counter() - began)


async def calls(saver: Any, floor: Callable[[], Awaitable[Any]], n: int) -> dict[str, Any]:
    """put, get_tuple and list by themselves, beside a plain one-row insert."""
    from langgraph.checkpoint.base import empty_checkpoint

    thread = str(uuid.uuid4())
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    puts, gets, lists, floors = [], [], [], []

    async def put(i: int) -> None:
        nonlocal config
        checkpoint = empty_checkpoint()
        versions = {"text": i + 1, "n": i + 1}
        checkpoint["channel_values"] = {"text": "x" * 2000, "n": i}
        checkpoint["channel_versions"] = versions
        metadata: Any = {"source": "loop", "step": i, "parents": {}}
        config = await saver.aput(config, checkpoint, metadata, versions)

    async def take() -> None:
        async for _ in saver.alist({"configurable": {"thread_id": thread}}, limit=10):
            pass

    newest: Any = {"configurable": {"thread_id": thread}}
    for i in range(n):
        puts.append(await timed(functools.partial(put, i)))
        floors.append(await timed(floor))
        gets.append(await timed(lambda: saver.aget_tuple(newest)))
        lists.append(await timed(take))
    skip = n // 10
    return {
        "put": line(puts[skip:]),
        "get": line(gets[skip:]),
        "list10": line(lists[skip:]),
        "plain_insert": line(floors[skip:]),
        "put_over_insert_p50": round(
            statistics.median(puts[skip:]) / statistics.median(floors[skip:]), 2
        ),
    }


async def measure(server: LocalServer, months: int, rounds: int) -> dict[str, Any]:
    with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE stock OWNER cyberos_owner")
        version = conn.execute("SHOW server_version").fetchone()
    migrate.upgrade(server.owner_dsn)
    make_months(server.owner_dsn, months)
    floor_pool = AsyncConnectionPool(
        server.dsn("cyberos_owner", "stock"),
        min_size=1,
        max_size=1,
        open=False,
        kwargs={"autocommit": True},
    )
    await floor_pool.open()
    async with floor_pool.connection() as conn:
        await conn.execute(
            "CREATE TABLE floor (id uuid, at timestamptz DEFAULT now(), state jsonb)"
        )
    document = json.dumps({"text": "x" * 2000})

    async def floor() -> None:
        async with floor_pool.connection() as conn:
            await conn.execute(
                "INSERT INTO floor (id, state) VALUES (%s, %s)", (uuid.uuid4(), document)
            )

    stock_pool = AsyncConnectionPool(
        server.dsn("cyberos_owner", "stock"),
        min_size=1,
        max_size=8,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": psycopg.rows.dict_row},
    )
    await stock_pool.open()
    stock = AsyncPostgresSaver(stock_pool)
    await stock.setup()
    report: dict[str, Any] = {"server": version[0] if version else "?", "months": months}
    async with PostgresCheckpointer(server.app_dsn, tenant_id=uuid.uuid4()) as ours:
        report["calls_ours"] = await calls(ours, floor, rounds * 4)
        report["calls_stock"] = await calls(stock, floor, rounds * 4)
        report["run_2k"] = await runs(ours, stock, 2_000, rounds)
        report["run_200k"] = await runs(ours, stock, 200_000, max(10, rounds // 4))
        ours_rate = await concurrent(ours, 2_000, 32, max(2, rounds // 20))
        stock_rate = await concurrent(stock, 2_000, 32, max(2, rounds // 20))
        report["concurrent_32"] = {
            "ours_runs_s": round(ours_rate, 1),
            "stock_runs_s": round(stock_rate, 1),
            "ratio": round(ours_rate / stock_rate, 2),
        }
    await stock_pool.close()
    await floor_pool.close()
    return report


def make_months(owner_dsn: str, months: int) -> None:
    """Past months beside those in use, as a store some years old has them."""
    with psycopg.connect(owner_dsn, autocommit=True) as conn:
        for parent in ("cuo_memory_audit", "cuo_langgraph_checkpoints", "cuo_langgraph_writes"):
            for back in range(1, months - 3):
                row = conn.execute(
                    "SELECT to_char(d, '_YYYY_MM'), d::text, (d + interval '1 month')::date::text FROM"
                    " (SELECT (date_trunc('month', now()) - make_interval(months => %s))::date AS d) AS m",
                    [back],
                ).fetchone()
                assert row is not None
                conn.execute(
                    f"CREATE TABLE {parent}{row[0]} PARTITION OF {parent} FOR VALUES FROM ('{row[1]}') TO ('{row[2]}')"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=Path, help="programs of another PostgreSQL, 15 or later")
    parser.add_argument("--months", type=int, default=88)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder:
        Path(folder).chmod(0o755)
        settings = {"max_locks_per_transaction": "256"}
        with LocalServer(Path(folder) / "data", bin_dir=args.bin_dir, settings=settings) as server:
            print(json.dumps(asyncio.run(measure(server, args.months, args.rounds)), indent=2))


if __name__ == "__main__":
    main()
