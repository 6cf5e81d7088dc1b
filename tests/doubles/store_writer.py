"""Calls the store in processes that can be killed: reads jobs as JSON lines, forks for each.

A job names one call; its process writes "done" or the error's name to the job's file when the call
has returned, which is what makes it acknowledged. The answer on stdout is the exit status.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import CheckpointError

RUN = "00000000-0000-7000-8000-0000000000c1"
"""The run of which the job "claim" claims an effect."""


class State(TypedDict, total=False):
    text: str


def graph(store: PostgresCheckpointer) -> Any:
    """Two nodes in a line."""
    made = StateGraph(State)
    made.add_node("a", lambda s: {"text": s["text"] + "a"})
    made.add_node("b", lambda s: {"text": s["text"] + "b"})
    made.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return made.compile(checkpointer=store)


def checkpoint(job: dict[str, Any]) -> Any:
    """What the job's put stores."""
    made = empty_checkpoint()
    made["id"], made["ts"] = job["id"], "2026-11-30T00:00:00+00:00"
    made["channel_values"] = {"n": 4, "text": "x" * 100}
    made["channel_versions"] = {"n": 4, "text": 4}
    return made


def arguments(job: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The method and its arguments."""
    where = {"thread_id": job["thread"], "checkpoint_ns": "", "checkpoint_id": job.get("parent")}
    if job["do"] == "put":
        return (
            "put",
            ({"configurable": where}, checkpoint(job), {"source": "loop", "step": 4}, {}),
            {},
        )
    if job["do"] == "put_writes":
        return (
            "put_writes",
            ({"configurable": where}, [("n", 5), ("text", ["y"])], "task", "~p"),
            {},
        )
    if job["do"] == "delete_thread":
        return "delete_thread", (job["thread"],), {}
    if job["do"] == "claim":
        told = {
            "approved": True,
            "at_ns": "1",
            "by_hash16": "0" * 16,
            "by_issuer": "local",
            "expired": False,
            "interrupt_id": "i",
            "reason": "checked",
        }
        return "claim", ({"configurable": where | {"run_id": RUN}}, "effect", 1), {"approval": told}
    return "copy_thread", (job["thread"], job["target"]), {}


def perform(job: dict[str, Any]) -> None:
    """Does the job with a store of one connection."""
    options: dict[str, Any] = {"tenant_id": job["tenant"], "max_connections": 1}
    if job["do"] == "run":
        with PostgresCheckpointer(job["dsn"], **options) as store:
            config: Any = {"configurable": {"thread_id": job["thread"]}}
            graph(store).invoke({"text": ""}, config, durability="sync")
            acknowledge(job, "done")
        return
    method, values, named = arguments(job)
    if job.get("colour") == "async":

        async def run() -> None:
            async with PostgresCheckpointer(job["dsn"], **options) as store:
                result = await getattr(store, f"a{method}")(*values, **named)
                acknowledge(job, "lost" if result is False else "done")

        asyncio.run(run())
        return
    with PostgresCheckpointer(job["dsn"], **options) as store:
        result = getattr(store, method)(*values, **named)
        acknowledge(job, "lost" if result is False else "done")


def acknowledge(job: dict[str, Any], what: str) -> None:
    """Makes it known, whole, that the call returned."""
    target = Path(job["ack"])
    target.with_suffix(".new").write_text(what)
    target.with_suffix(".new").rename(target)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                perform(job)
            except CheckpointError as error:
                acknowledge(job, type(error).__name__)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
