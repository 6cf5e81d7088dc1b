"""What saver calls say about a graph's path."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import Interrupt, Send

from cuo_checkpoint import derive
from cuo_checkpoint.derive import TaskRef


def checkpoint(
    values: dict[str, Any], updated: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    """A checkpoint as the saver gets it."""
    return {
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 2),
        "versions_seen": {},
        "updated_channels": updated,
    } | more


def names(found: list[TaskRef]) -> list[str]:
    """The tasks' names."""
    return [ref.name for ref in found]


def test_updated_channels_say_what_is_next() -> None:
    """Branches and joins that were updated trigger their nodes; state channels trigger none."""
    values = {"branch:to:a": None, "branch:to:b": None, "join:a+b:c": {"a", "b"}, "x": 1}
    assert names(derive.scheduled(checkpoint(values, ["branch:to:a", "x"]))) == ["a"]
    assert names(derive.scheduled(checkpoint(values, ["join:a+b:c"]))) == ["c"]
    assert derive.scheduled(checkpoint(values, ["x"])) == []
    assert derive.scheduled(checkpoint(values, [])) == []


def test_the_entry_counts_as_work() -> None:
    """The hidden entry task is scheduled by its channel."""
    found = derive.scheduled(checkpoint({"__start__": {"x": 1}}, ["__start__"]))
    assert names(found) == ["__start__"]


def test_sends_come_first_each_by_itself() -> None:
    """Two Sends to one node are two tasks, told apart by position."""
    values = {"__pregel_tasks": [Send("w", 1), Send("w", 2)], "branch:to:a": None}
    found = derive.scheduled(checkpoint(values, ["branch:to:a", "__pregel_tasks"]))
    assert [ref.key for ref in found] == [("push", "0"), ("push", "1"), ("pull", "a")]
    assert names(found) == ["w", "w", "a"]


def test_a_node_with_two_triggers_runs_once() -> None:
    """A branch and a join into one node are one task."""
    values = {"branch:to:c": None, "join:a+b:c": {"a", "b"}}
    assert names(derive.scheduled(checkpoint(values, sorted(values)))) == ["c"]


@pytest.mark.parametrize(
    ("value", "due"),
    [({"a"}, False), ({"a", "b"}, True), (({"a", "b"}, False), False), (({"a", "b"}, True), True)],
)
def test_a_join_is_due_when_all_have_come(value: Any, due: bool) -> None:
    """After update_state and forks it is read from versions: all sources wrote, deferred ones finished."""
    found = derive.scheduled(checkpoint({"join:a+b:c": value}))
    assert names(found) == (["c"] if due else [])


@pytest.mark.parametrize(
    ("seen", "due"),
    [({}, True), ({"a": {"branch:to:a": 1}}, True), ({"a": {"branch:to:a": 2}}, False)],
)
def test_what_a_node_has_seen_is_not_due_again(seen: dict[str, Any], due: bool) -> None:
    """Without updated_channels a trigger is due when its node has not seen its version."""
    found = derive.scheduled(checkpoint({"branch:to:a": None}, versions_seen=seen))
    assert names(found) == (["a"] if due else [])


def test_names_may_hold_what_separates() -> None:
    """Colons, pluses and commas in node names do not confuse triggers."""
    values = {"branch:to:a:b+c, d": None}
    assert names(derive.scheduled(checkpoint(values, list(values)))) == ["a:b+c, d"]


@pytest.mark.parametrize(
    ("writes", "finished", "failed", "interrupted"),
    [
        ([("x", 1)], True, False, False),
        ([("__no_writes__", None)], True, False, False),
        ([], False, False, False),
        ([("__error__", ValueError())], False, True, False),
        ([("x", 1), ("__error__", ValueError())], False, True, False),
        ([("__interrupt__", (Interrupt("q", id="1"),))], False, False, True),
        ([("__resume__", ["yes"])], False, False, False),
        ([("__resume__", ["yes"]), ("x", 1)], True, False, False),
    ],
)
def test_what_became_of_a_task(
    writes: list[tuple[str, Any]], finished: bool, failed: bool, interrupted: bool
) -> None:
    """Results finish a task; errors, questions and answers do not."""
    found = derive.summarise_writes(writes)
    assert (found.finished, found.failed, found.interrupted) == (finished, failed, interrupted)


def test_where_a_task_leads() -> None:
    """Its targets are in the order it wrote them; leading to the end writes nothing."""
    found = derive.summarise_writes(
        [("x", 1), ("branch:to:b", None), ("__pregel_tasks", Send("w", 1)), ("join:a+z:c", "a")]
    )
    assert found.targets == ("b", "w", "c")
    assert derive.summarise_writes([("x", 1)]).targets == ()


def test_an_error_with_a_handler() -> None:
    """An error that names its source is handled: the run goes on."""
    found = derive.summarise_writes([("__error__", ValueError()), ("__error_source_node__", "b")])
    assert found.failed
    assert found.handled


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("~__pregel_pull, a", "a"),
        ("~__pregel_pull, __start__", "__start__"),
        ("~__pregel_push, 0000000001, 0000000000", "second"),
        ("~__pregel_push, 0000000009, 0000000000", None),
        ("~__pregel_push, ~__pregel_pull, wf, 0000000001", None),
        ("", None),
        ("~__interrupt__, x", None),
        ("nonsense", None),
    ],
)
def test_what_a_path_names(path: str, name: str | None) -> None:
    """Pulled nodes by name, Sends by position; functional tasks, input and updates name none."""
    found = derive.task_of_path(path, ["first", "second"])
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("channel", "hidden"),
    [
        ("branch:to:a", True),
        ("join:a:b", True),
        ("__start__", True),
        ("x", False),
        ("branches", False),
        ("_x", False),
    ],
)
def test_which_channels_are_langgraphs_own(channel: str, hidden: bool) -> None:
    """State is everything else."""
    assert derive.is_hidden_channel(channel) is hidden


def test_a_hand_built_graph_is_told_apart() -> None:
    """Without an entry or a branch there are no edges to read."""
    assert derive.is_raw_pregel({"x": 1})
    assert not derive.is_raw_pregel({"__start__": 1})
    assert not derive.is_raw_pregel({"branch:to:a": 1})
