"""Death between any two protocol messages of a call: of the writer, its server process, the line.

Acknowledged means present; unacknowledged means whole or absent; the chain is intact; the same
call again, and a run, go on from there.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import store_writer
from wire import Wire

from cuo_checkpoint import PostgresCheckpointer

WRITER = Path(__file__).parents[1] / "doubles" / "store_writer.py"
log = logging.getLogger(__name__)

NEW = "1f0d0000-0000-6000-8004-000000000000"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wire(shared_place: Any) -> Iterator[Wire]:
    with tempfile.TemporaryDirectory(prefix="cuo-w-") as folder:
        made = Wire(shared_place.app, shared_place.admin, Path(folder))
        yield made
        made.close()


@pytest.fixture(scope="module")
def writer() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@dataclass
class Scene:
    """A thread with three checkpoints in a tenant of its own, and one call on it."""

    place: Any
    lens_of: Callable[[str, str], Any]
    folder: Path
    do: str
    colour: str = "sync"
    tenant: str = field(default_factory=lambda: str(uuid.uuid4()))
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.do == "run":
            return
        with self.store() as store:
            config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
            for n in range(3):
                made = empty_checkpoint()
                made["id"] = f"1f0d0000-0000-6000-800{n}-000000000000"
                made["channel_values"], made["channel_versions"] = {"n": n}, {"n": n + 1}
                config = store.put(config, made, {"source": "loop", "step": n}, {})
                store.put_writes(config, [("n", n + 1)], f"task {n}", f"~{n}")
                self.ids.append(made["id"])

    def store(self) -> PostgresCheckpointer:
        return PostgresCheckpointer(self.place.app, tenant_id=self.tenant, max_connections=1)

    @property
    def job(self) -> dict[str, Any]:
        return {
            "do": self.do, "colour": self.colour, "tenant": self.tenant, "thread": "t",
            "target": "copy", "id": NEW, "parent": self.ids[-1] if self.ids else None,
            "ack": str(self.folder / self.tenant),
        }  # fmt: skip

    @property
    def acknowledged(self) -> str:
        """What the writer said when its call had returned; empty when it never did."""
        path = Path(self.job["ack"])
        return path.read_text() if path.exists() else ""

    def lens(self) -> Any:
        return self.lens_of(self.place.admin, self.tenant)

    def present(self) -> bool:
        """Whether the call's effect is there; asserts that it is whole if it is."""
        return bool(getattr(self, f"_present_{self.do}")())

    def _present_put(self) -> bool:
        rows = [r for r in self.lens().rows("t") if r["lg_checkpoint_id"] == NEW]
        assert len(rows) in (0, 1)
        with self.store() as store:
            found = store.get_tuple({"configurable": {"thread_id": "t"}})
        assert found is not None
        if rows:
            assert found.checkpoint["id"] == NEW
            assert found.checkpoint["channel_values"] == {"n": 4, "text": "x" * 100}
            assert found.parent_config is not None
            assert found.parent_config["configurable"]["checkpoint_id"] == self.ids[-1]
        else:
            assert found.checkpoint["id"] == self.ids[-1]
        return bool(rows)

    def _present_put_writes(self) -> bool:
        with self.store() as store:
            found = store.get_tuple({"configurable": {"thread_id": "t"}})
        assert found is not None
        mine = [(w[1], w[2]) for w in found.pending_writes or [] if w[0] == "task"]
        assert mine in ([], [("n", 5), ("text", ["y"])])
        stored = self.lens().query(
            "SELECT 1 FROM cuo_langgraph_writes WHERE tenant_id = $T AND task_id = 'task'"
        )
        assert len(stored) == len(mine)
        return bool(mine)

    def _present_delete_thread(self) -> bool:
        marks = self.lens().query("SELECT kind FROM cuo_thread_tombstones WHERE tenant_id = $T")
        assert len(marks) in (0, 1)
        with self.store() as store:
            found = list(store.list({"configurable": {"thread_id": "t"}}))
        assert len(found) == (0 if marks else 3)
        return bool(marks)

    def _present_copy_thread(self) -> bool:
        with self.store() as store:
            both = [
                [
                    (t.checkpoint, t.pending_writes)
                    for t in store.list({"configurable": {"thread_id": thread}})
                ]
                for thread in ("t", "copy")
            ]
        assert both[1] in ([], both[0])
        return bool(both[1])

    def _present_claim(self) -> bool:
        """Claimed once, told once; what was claimed before its call returned is the claimant's."""
        assert self.acknowledged != "lost"
        claims = self.lens().query(
            "SELECT 1 FROM cuo_langgraph_writes WHERE tenant_id = $T AND channel = 'effect'"
        )
        counted = [r for r in self.lens().audit("approval") if '"counted":true' in r["body"]]
        assert len(claims) == len(counted) <= 1
        return bool(claims)

    def _present_run(self) -> bool:
        return self.lens().events()[-1:] == ["done"]

    def again(self) -> None:
        """The same call once more, in a healthy process."""
        with self.store() as store:
            if self.do == "run":
                config: Any = {"configurable": {"thread_id": "t"}}
                state = store_writer.graph(store).get_state(config)
                fresh = not state.values and not state.next
                store_writer.graph(store).invoke(
                    {"text": ""} if fresh else None, config, durability="sync"
                )
                assert store_writer.graph(store).get_state(config).values == {"text": "ab"}
                return
            method, values, named = store_writer.arguments(self.job)
            getattr(store, method)(*values, **named)


Play = Callable[[Scene, int | None, str], None]


@pytest.fixture
def play(wire: Wire, writer: subprocess.Popen[str]) -> Play:
    """Runs a scene's call through the wire, struck before step `at`."""

    def run(scene: Scene, at: int | None, mode: Any) -> None:
        wire.rearm(at, mode)
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(json.dumps(scene.job | {"dsn": wire.dsn}) + "\n")
        writer.stdin.flush()
        status = int(writer.stdout.readline())
        assert status == (9 if wire.struck and mode == "kill" else 0)
        wire.settle()

    return run


CALLS = ("put", "put_writes", "delete_thread", "copy_thread", "run")
SWEEPS = [
    *((do, "kill", "sync") for do in CALLS),
    *((do, "terminate", "sync") for do in CALLS),
    *((do, "cut", "sync") for do in CALLS),
    ("claim", "kill", "sync"),
    ("claim", "cut", "sync"),
    ("put", "terminate", "async"),
    ("copy_thread", "terminate", "async"),
]


@pytest.mark.parametrize(("do", "mode", "colour"), SWEEPS)
def test_no_death_between_two_messages_leaves_half_a_call(
    do: str,
    mode: str,
    colour: str,
    wire: Wire,
    play: Play,
    shared_place: Any,
    lens_of: Any,
    tmp_path: Path,
    swept: Callable[[int], list[int]],
) -> None:
    """Every message of the call, both ways, in turn."""

    def scene() -> Scene:
        return Scene(shared_place, lens_of, tmp_path, do, colour)

    undisturbed = scene()
    play(undisturbed, None, mode)
    steps = list(wire.steps)
    assert undisturbed.acknowledged == "done"
    assert undisturbed.present()
    assert len(steps) >= 10
    seen = {"acknowledged": 0, "whole": 0, "absent": 0}
    # The awaiting driver runs the same statements: a sample of a long call is enough there.
    points = swept(len(steps))[:: 4 if colour == "async" and len(steps) > 20 else 1]
    for at in points:
        told = f"{do} {mode} before {steps[at]} (step {at})"
        struck = scene()
        play(struck, at, mode)
        assert wire.struck, told
        present = struck.present()
        if struck.acknowledged == "done":
            assert present, told
            seen["acknowledged"] += 1
        else:
            # The store repeats calls after a lost server process; it may also give up, and says so.
            assert struck.acknowledged in (("",) if mode == "kill" else ("", "StoreUnavailable"))
            seen["whole" if present else "absent"] += 1
        struck.lens().prove()
        if do != "delete_thread" or not present:
            struck.again()
        assert struck.present(), told
        struck.lens().prove()
    log.info("%s %s %s: %d crash points, %s", do, mode, colour, len(points), seen)
    assert seen["acknowledged"] + seen["whole"] + seen["absent"] == len(points)
    if mode == "kill":
        assert seen["absent"] > 0
        assert seen["whole"] > 0
    else:
        assert seen["acknowledged"] == len(points)
