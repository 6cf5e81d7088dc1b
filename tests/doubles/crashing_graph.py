"""A graph whose process can be made to die at a chosen point.

It imports everything once and forks a process for each job, a line of JSON on standard input: dsn,
tenant, thread, run; shape: "linear", "fan" or "asks"; die: the point, such as "before:b", "after:b",
"put:3", "put_writes:2" (after the n-th call of that method committed) or "put:3-" (before it); what:
"start", "continue" or "answer"; colour; durability; effects, a file in which each node notes the
effect it claimed through the store, so that a second one would show. The answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import os
import signal
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from cuo_checkpoint import PostgresCheckpointer

OPTIONS: dict[str, Any] = {}


class State(TypedDict, total=False):
    """Which nodes ran."""

    seen: Annotated[list[str], operator.add]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reached(point: str) -> None:
    """Dies if this is the point."""
    if OPTIONS.get("die") == point:
        die()


class Store(PostgresCheckpointer):
    """Counts its calls and dies at the chosen one."""

    calls = {"put": 0, "put_writes": 0}

    def _count(self, name: str) -> int:
        self.calls[name] += 1
        reached(f"{name}:{self.calls[name]}-")
        return self.calls[name]

    def put(self, *args: Any) -> Any:
        number = self._count("put")
        found = super().put(*args)
        reached(f"put:{number}")
        return found

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        number = self._count("put_writes")
        super().put_writes(config, writes, task_id, task_path)
        reached(f"put_writes:{number}")

    async def aput(self, *args: Any) -> Any:
        number = self._count("put")
        found = await super().aput(*args)
        reached(f"put:{number}")
        return found

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        number = self._count("put_writes")
        await super().aput_writes(config, writes, task_id, task_path)
        reached(f"put_writes:{number}")


def effect(name: str, claimed: bool) -> dict[str, Any]:
    """The node's one effect, if it has the right to it."""
    if claimed:
        with open(OPTIONS["effects"], "a") as file:
            file.write(f"{name}\n")
    return {"seen": [name]}


def node(store: Store, name: str) -> Any:
    """A node in this run's colour, with an effect and two points to die at."""
    config: Any = {"configurable": {"thread_id": OPTIONS["thread"], "run_id": OPTIONS["run"]}}

    def sync(state: State) -> dict[str, Any]:
        reached(f"before:{name}")
        if name == "ask":
            interrupt("ok?")
        made = effect(name, store.claim(config, name, 1))
        reached(f"after:{name}")
        return made

    async def awaiting(state: State) -> dict[str, Any]:
        reached(f"before:{name}")
        if name == "ask":
            interrupt("ok?")
        made = effect(name, await store.aclaim(config, name, 1))
        reached(f"after:{name}")
        return made

    return sync if OPTIONS["colour"] == "sync" else awaiting


def graph(store: Store) -> Any:
    """The shape asked for."""
    made = StateGraph(State)
    names = {"linear": "abcd", "fan": "abcd", "asks": ["a", "ask", "b"]}[OPTIONS["shape"]]
    for name in names:
        made.add_node(name, node(store, name))
    made.add_edge(START, names[0])
    if OPTIONS["shape"] == "fan":
        made.add_edge("a", "b")
        made.add_edge("a", "c")
        made.add_edge(["b", "c"], "d")
    else:
        for source, target in itertools.pairwise(names):
            made.add_edge(source, target)
    return made.compile(store)


def work() -> list[str]:
    """Does the job and gives the names of the nodes that left one."""
    store = Store(OPTIONS["dsn"], tenant_id=OPTIONS["tenant"], max_connections=3)
    config: Any = {"configurable": {"thread_id": OPTIONS["thread"], "run_id": OPTIONS["run"]}}
    value = {"start": {"seen": []}, "continue": None, "answer": Command(resume="yes")}[
        OPTIONS["what"]
    ]
    how: Any = {"durability": OPTIONS["durability"]}
    if OPTIONS["colour"] == "sync":
        with store:
            result = graph(store).invoke(value, config, **how)
    else:

        async def run() -> Any:
            async with store:
                return await graph(store).ainvoke(value, config, **how)

        result = asyncio.run(run())
    return sorted(result["seen"]) if result else []


def main() -> None:
    for line in sys.stdin:
        near, far = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(near)
            OPTIONS.update(json.loads(line))
            try:
                told = {"seen": work(), "error": None}
            except BaseException as error:  # the parent must hear of it
                told = {"seen": [], "error": f"{type(error).__name__}: {error}"}
            os.write(far, json.dumps(told).encode())
            os._exit(0)
        os.close(far)
        with os.fdopen(near, "rb") as file:
            said = file.read()
        _, status = os.waitpid(pid, 0)
        answer = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}
        print(json.dumps(answer | (json.loads(said) if said else {})), flush=True)  # noqa: T201


main()
