"""The supervisor's graph: its six nodes, its edges, its state's channels.

    parse -> rule_score -> branch -> invoke -> record
                             |  ^
                             v  |
                          llm_cascade          (at most once; branch -> record for ask and defer)

parse also leads to the end, for requests that are refused before any scoring.
"""

from __future__ import annotations

from typing import Literal

from langgraph.graph import END, START, StateGraph

from cuo_supervisor import nodes
from cuo_supervisor.ports import NodeContext
from cuo_supervisor.state import GraphState

__all__ = ["GraphState", "build_supervisor_graph"]


def build_supervisor_graph() -> StateGraph[GraphState, NodeContext, GraphState, GraphState]:
    """The graph, not compiled: a composition root compiles it with its store, once per process."""
    graph = StateGraph(GraphState, context_schema=NodeContext)
    graph.add_node("parse", nodes.parse)
    graph.add_node("rule_score", nodes.rule_score)
    graph.add_node("branch", nodes.branch)
    graph.add_node("llm_cascade", nodes.llm_cascade)
    # LangGraph passes config beside runtime; its overloads do not list the pair.
    graph.add_node("invoke", nodes.invoke)  # type: ignore[call-overload]
    graph.add_node("record", nodes.record)
    graph.add_edge(START, "parse")
    graph.add_conditional_edges("parse", _after_parse, ["rule_score", END])
    graph.add_edge("rule_score", "branch")
    graph.add_conditional_edges("branch", _after_branch, ["invoke", "llm_cascade", "record"])
    graph.add_edge("llm_cascade", "branch")
    graph.add_edge("invoke", "record")
    graph.add_edge("record", END)
    return graph


# Where a path leads is asked for on the event loop; LangGraph would take a plain function to a
# thread and back, once for each of the two.
async def _after_parse(state: GraphState) -> Literal["rule_score", "__end__"]:
    return "__end__" if state.get("rejection") else "rule_score"


async def _after_branch(state: GraphState) -> Literal["invoke", "llm_cascade", "record"]:
    path = state["branch_decision"]
    if path in ("auto", "cascade_then_auto"):
        return "invoke"
    return "llm_cascade" if path == "cascade" else "record"
