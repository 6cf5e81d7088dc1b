"""Names what moved in LangGraph when the log's rules would stop holding.

The rules read LangGraph's calls on a saver; these tests record real calls on its own in-memory
saver and check each fact the rules rest on, so that an upgrade fails here, by name, first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from cuo_checkpoint import derive


class State(TypedDict, total=False):
    x: Annotated[list[str], operator.add]


class Recorder(InMemorySaver):
    """Keeps every call in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any], Any]] = []

    def get_tuple(self, config: Any) -> Any:
        self.calls.append(("get", config, None))
        return super().get_tuple(config)

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.calls.append(("put", config, (dict(checkpoint), dict(metadata))))
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.calls.append(("writes", config, (list(writes), task_id, task_path)))
        super().put_writes(config, writes, task_id, task_path)

    def puts(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [what for name, _, what in self.calls if name == "put"]

    def all_writes(self) -> list[tuple[list[Any], str, str]]:
        return [what for name, _, what in self.calls if name == "writes"]


def node(name: str) -> Callable[[State], State]:
    def run(state: State) -> State:
        return {"x": [name]}

    return run


def line() -> StateGraph[State, None, State, State]:
    graph = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_node("b", node("b"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    return graph


@pytest.fixture
def recorded() -> Recorder:
    saver = Recorder()
    config = {"configurable": {"thread_id": "t"}}
    line().compile(checkpointer=saver).invoke({"x": []}, config, durability="sync")
    return saver


def test_a_runs_calls_carry_its_runtime_and_its_step_limit(recorded: Recorder) -> None:
    """`configurable.__pregel_runtime.control` identifies a run; recursion_limit bounds it."""
    controls = {id(c["configurable"]["__pregel_runtime"].control) for _, c, _ in recorded.calls}
    assert len(controls) == 1, "the runtime's control object is no longer one per run"
    assert all(isinstance(c.get("recursion_limit"), int) for _, c, _ in recorded.calls)


def test_calls_outside_a_run_carry_no_runtime(recorded: Recorder) -> None:
    """get_state and update_state are told apart from runs by the missing key."""
    recorded.calls.clear()
    compiled = line().compile(checkpointer=recorded)
    config = {"configurable": {"thread_id": "t"}}
    compiled.get_state(config)
    compiled.update_state(config, {"x": ["z"]})
    assert recorded.calls
    assert all("__pregel_runtime" not in c["configurable"] for _, c, _ in recorded.calls)


def test_puts_come_one_per_superstep_with_source_and_step(recorded: Recorder) -> None:
    """input at -1, then loop at 0, 1, 2 ..."""
    said = [(metadata["source"], metadata["step"]) for _, metadata in recorded.puts()]
    assert said == [("input", -1), ("loop", 0), ("loop", 1), ("loop", 2)]


def test_updated_channels_name_exactly_what_runs_next(recorded: Recorder) -> None:
    """`branch:to:X` in updated_channels is how a checkpoint announces node X."""
    announced = [[ref.name for ref in derive.scheduled(c)] for c, _ in recorded.puts()]
    assert announced == [["__start__"], ["a"], ["b"], []]


def test_a_task_path_names_its_node(recorded: Recorder) -> None:
    """`~__pregel_pull, X` for a node, passed because the signature names task_path."""
    named = [derive.task_of_path(path) for _, _, path in recorded.all_writes()]
    assert [ref.name if ref else None for ref in named] == ["__start__", "a", "b"]


def test_a_tasks_writes_carry_its_edges(recorded: Recorder) -> None:
    """`branch:to:Y` among a task's writes is the edge to Y; the edge to END writes nothing."""
    targets = [derive.summarise_writes(writes).targets for writes, _, _ in recorded.all_writes()]
    assert targets == [("a",), ("b",), ()]


def test_sends_stand_in_the_checkpoint_and_in_the_path() -> None:
    """The i-th Send is `__pregel_tasks`[i], and its task's path says i."""
    graph = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_node("b", node("b"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda _: [Send("b", {"x": []}) for _ in range(2)], ["b"])
    saver = Recorder()
    graph.compile(checkpointer=saver).invoke({"x": []}, {"configurable": {"thread_id": "t"}})
    fanned = next(c for c, m in saver.puts() if m["step"] == 1)
    assert [ref.key for ref in derive.scheduled(fanned)] == [("push", "0"), ("push", "1")]
    paths = {path for _, _, path in saver.all_writes() if "push" in path}
    found = {derive.task_of_path(path, ("b", "b")) for path in paths}
    assert found == {derive.TaskRef("b", ("push", "0")), derive.TaskRef("b", ("push", "1"))}


def test_an_interrupt_and_its_answer_are_writes() -> None:
    """INTERRUPT on the task; on resume RESUME on the null task, then the same task again."""

    def ask(state: State) -> State:
        return {"x": [interrupt("?")]}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    saver = Recorder()
    compiled = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "t"}}
    compiled.invoke({"x": []}, config)
    paused = derive.summarise_writes(saver.all_writes()[-1][0])
    assert paused.interrupted
    assert not paused.finished
    asked = saver.all_writes()[-1][1]
    saver.calls.clear()
    compiled.invoke(Command(resume="yes"), config)
    (null, answered) = (saver.all_writes()[0], saver.all_writes()[1])
    assert null[1] == "00000000-0000-0000-0000-000000000000"
    assert null[2] == ""
    assert answered[1] == asked
    assert derive.summarise_writes(answered[0]).finished


def test_an_error_is_a_write_of_its_task() -> None:
    """ERROR on the failed task; nothing more is put."""

    def fail(state: State) -> State:
        raise RuntimeError("no")

    graph = StateGraph(State)
    graph.add_node("fail", fail)
    graph.add_edge(START, "fail")
    saver = Recorder()
    with pytest.raises(RuntimeError):
        graph.compile(checkpointer=saver).invoke({"x": []}, {"configurable": {"thread_id": "t"}})
    assert derive.summarise_writes(saver.all_writes()[-1][0]).failed
    assert [m["step"] for _, m in saver.puts()] == [-1, 0]


def test_the_durability_in_force_is_told_to_the_first_read() -> None:
    """`__pregel_durability` is how durability="exit" is recognised and refused."""
    saver = Recorder()
    config = {"configurable": {"thread_id": "t"}}
    line().compile(checkpointer=saver).invoke({"x": []}, config, durability="exit")
    name, first, _ = saver.calls[0]
    assert name == "get"
    assert first["configurable"]["__pregel_durability"] == "exit"
