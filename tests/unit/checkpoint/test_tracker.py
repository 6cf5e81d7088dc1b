"""From the saver's calls to rows, without LangGraph and without a database."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cuo_checkpoint.derive import TaskRef, summarise_writes
from cuo_checkpoint.records import CheckpointKind, Encoded, Event, encode_tree
from cuo_checkpoint.tracker import RunTracker

RUN = uuid.UUID(int=7)
STATE: Encoded = encode_tree({})


class Calls:
    """Plays the calls of one run to a tracker, and remembers the rows."""

    def __init__(self, tracker: RunTracker | None = None, first_id: int = 100) -> None:
        self.tracker = tracker or RunTracker(RUN, "0" * 32, started=False, last=None)
        self.rows: list[Event] = []
        counter = itertools.count(first_id)
        self.new_id: Callable[[], uuid.UUID] = lambda: uuid.UUID(int=next(counter))

    def put(
        self, step: int, *triggers: str, source: str = "loop", ns: str = "", limit: int = 25
    ) -> list[str]:
        """A put whose checkpoint schedules what the triggers name."""
        values: dict[str, Any] = dict.fromkeys(triggers)
        checkpoint = {
            "id": f"c{step:02}",
            "channel_values": values,
            "channel_versions": {**values, "__start__": 1},
            "versions_seen": {},
            "updated_channels": list(triggers),
        }
        made = self.tracker.on_put(
            ns, checkpoint, {"step": step, "source": source}, limit, STATE, self.new_id
        )
        return self._keep(made)

    def writes(self, node: str, *writes: tuple[str, Any], ns: str = "") -> list[str]:
        """A put_writes of a pulled node."""
        made = self.tracker.on_put_writes(
            ns, summarise_writes(writes), TaskRef(node, ("pull", node)), False, self.new_id
        )
        return self._keep(made)

    def _keep(self, made: list[Event]) -> list[str]:
        self.rows += made
        return [word(event) for event in made]

    def lineage(self) -> dict[str, str | None]:
        """Each row's word, and its parent's."""
        by_id = {event.id: word(event) for event in self.rows}
        return {word(e): by_id[e.parent] if e.parent else None for e in self.rows}


def word(event: Event) -> str:
    """A row in one word."""
    match event.kind:
        case CheckpointKind.EDGE_TRAVERSED:
            return f"{event.edge_from}->{event.edge_to}"
        case CheckpointKind.NODE_ENTERED:
            return f">{event.node}"
        case CheckpointKind.NODE_COMPLETED:
            return f"<{event.node}"
        case _:
            return event.kind.value


def linear() -> Calls:
    """A run of a and b, up to b's entry."""
    calls = Calls()
    calls.put(-1, "__start__", source="input")
    calls.writes("__start__", ("x", 1), ("branch:to:a", None))
    calls.put(0, "branch:to:a")
    calls.writes("a", ("x", 1), ("branch:to:b", None))
    calls.put(1, "branch:to:b")
    return calls


def test_a_linear_run() -> None:
    """Each call gives the rows it proves, and each row hangs under what caused it."""
    calls = linear()
    calls.writes("b", ("x", 1))
    calls.put(2)
    assert calls.lineage() == {
        "run_started": None,
        "__start__->a": "run_started",
        ">a": "__start__->a",
        "<a": ">a",
        "a->b": "<a",
        ">b": "a->b",
        "<b": ">b",
        "b->__end__": "<b",
        "run_completed": "b->__end__",
    }


def test_the_same_calls_give_the_same_rows() -> None:
    """Nothing but the arguments decides: no clock, no chance."""
    one, two = linear(), linear()
    assert one.rows == two.rows


def test_every_put_has_a_row_to_stand_on() -> None:
    """Even one that proves nothing, since a row has to carry the checkpoint."""
    calls = linear()
    assert calls.put(1, "branch:to:b", source="update")


def test_an_error_ends_the_run_under_the_node_that_failed() -> None:
    """run_failed hangs under the failed node's entry; nothing follows it."""
    calls = linear()
    assert calls.writes("b", ("__error__", ValueError("secret"))) == ["run_failed"]
    assert calls.lineage()["run_failed"] == ">b"
    error = calls.rows[-1].extra["error"]
    assert error["type"] == "ValueError"
    assert "secret" not in str(error)
    assert calls.tracker.ended


def test_a_finished_sibling_is_completed_when_another_fails() -> None:
    """In a failed superstep, which has no put, the finished task's row comes with the failure."""
    calls = Calls()
    calls.put(-1, "__start__", source="input")
    calls.writes("__start__", ("branch:to:a", None), ("branch:to:b", None))
    calls.put(0, "branch:to:a", "branch:to:b")
    calls.writes("a", ("x", 1))
    assert calls.writes("b", ("__error__", KeyError())) == ["<a", "run_failed"]


def test_an_error_with_a_handler_does_not_end_the_run() -> None:
    """The handler goes on."""
    calls = linear()
    calls.writes("b", ("__error__", ValueError()), ("__error_source_node__", "b"))
    assert not calls.tracker.ended


def test_a_pause_is_no_row() -> None:
    """An interrupt leaves its node entered."""
    calls = linear()
    assert calls.writes("b", ("__interrupt__", ())) == []
    assert not calls.tracker.ended


@pytest.mark.parametrize("idle", [True, False])
def test_the_step_limit_fails_the_run(idle: bool) -> None:
    """Also when nothing was left to do."""
    calls = Calls()
    calls.put(-1, "__start__", source="input", limit=1)
    calls.writes("__start__", ("branch:to:a", None))
    calls.put(0, "branch:to:a", limit=1)
    calls.writes("a", ("branch:to:a", None))
    made = calls.put(1, *([] if idle else ["branch:to:a"]), limit=1)
    assert made[-1] == "run_failed"


def test_a_join_names_its_other_causes() -> None:
    """One parent, the rest in the row's document."""
    calls = Calls()
    calls.put(-1, "__start__", source="input")
    calls.writes("__start__", ("branch:to:a", None), ("branch:to:b", None))
    calls.put(0, "branch:to:a", "branch:to:b")
    calls.writes("a", ("join:a+b:c", "a"))
    calls.writes("b", ("join:a+b:c", "b"))
    calls.put(1, "join:a+b:c")
    entered = calls.rows[-1]
    edges = [e.id for e in calls.rows if e.edge_to == "c"]
    assert [entered.parent, *map(uuid.UUID, entered.extra["also"])] == edges


def test_a_lone_task_whose_writes_are_late_has_its_edges() -> None:
    """With one task in the step its edges can only be what the checkpoint schedules."""
    calls = Calls()
    calls.put(-1, "__start__", source="input")
    assert calls.put(0, "branch:to:a") == ["__start__->a", ">a"]


def test_a_run_taken_up_again_repeats_nothing() -> None:
    """After a crash a tracker loaded from the rows goes on where they stop."""
    before = linear()
    tracker = RunTracker(RUN, "0" * 32, started=True, last=before.rows[-1].id)
    checkpoint = {
        "id": "c01",
        "channel_values": {"branch:to:b": None},
        "channel_versions": {"branch:to:b": 1, "__start__": 1},
        "versions_seen": {},
        "updated_channels": ["branch:to:b"],
    }
    told = [
        {
            "id": str(e.id), "run": str(RUN), "kind": e.kind.value, "node": e.node,
            "phase": e.phase, "ordinal": e.ordinal, "seq": n, "from": e.edge_from, "to": e.edge_to,
        }
        for n, e in enumerate(before.rows)
        if e.step == 1
    ]  # fmt: skip
    tracker.load("", checkpoint, 1, [], told, "{}")
    after = Calls(tracker, first_id=500)
    assert after.writes("b", ("x", 1)) == []
    assert after.put(2) == ["<b", "b->__end__", "run_completed"]
    assert after.rows[0].parent == before.rows[-1].id


def test_a_subgraphs_rows_hang_in_their_node() -> None:
    """A namespace's first row hangs under the entry of the node it is."""
    calls = Calls()
    calls.put(-1, "__start__", source="input")
    calls.writes("__start__", ("branch:to:sub", None))
    calls.put(0, "branch:to:sub")
    calls.put(-1, "__start__", source="input", ns="sub:task")
    assert calls.lineage()[">__start__"] == ">sub"
