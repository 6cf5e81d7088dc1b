"""One run as a tree: nodes in order of their first row, subgraphs beneath the node they ran in."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from cuo_supervisor.cli.asked import asked_lines
from cuo_supervisor.cli.common import one_line
from cuo_supervisor.cli.run_text import state_word, verification_lines

__all__ = ["rendered", "run_tree"]

_MARKS = {"run_started": "▶", "run_completed": "■", "run_failed": "✗"}
_SAID = (
    "query", "persona_version", "path_taken", "routed", "reason", "operation", "skill_chosen",
    "confidence", "cascade_outcome",
)  # fmt: skip


def run_tree(
    summary: Any,
    events: Sequence[Any],
    audit: Sequence[Any],
    verified: Any,
    *,
    states: bool,
    asked: dict[str, Any] | None = None,
) -> Tree:
    """A run from its first row to its last, then what it decided and what vouches for it."""
    root = Tree(Text(f"run {summary.ulid}", "bold").append(f"  {summary.run_id}", "not bold dim"))
    said = f"{state_word(summary)} · {summary.first_at.isoformat(timespec='milliseconds')}"
    root.add(Text(f"{said} · trace {summary.trace_id}"))
    if summary.rejection:
        named = (summary.pending or {}).get("persona_key")
        asked_for = f"; it asked for persona {one_line(named)}" if named else ""
        root.add(
            Text(f"refused, nothing decided: {one_line(summary.rejection)}{asked_for}", "yellow")
        )
    if summary.state == "waiting":
        what = f"{one_line(summary.skill)} waits" if summary.skill else "it waits"
        answer = f"cyberos-cuo supervisor resume {summary.ulid} --approve|--deny --reason TEXT"
        waits = root.add(Text(f"{what}: {answer}", "yellow"))
        for line in asked_lines(asked or {}):
            waits.add(Text(line))
    _Path(root.add(Text("path", "bold")), states).take_all(events)
    if summary.decision:
        decision = root.add(Text("decision", "bold"))
        for key in _SAID:
            if summary.decision.get(key) is not None:
                decision.add(Text(f"{key:<16} {one_line(str(summary.decision[key]))}"))
        if summary.decision.get("approval"):
            decision.add(
                Text(f"{'approval':<16} {one_line(_answer(summary.decision['approval']))}")
            )
    counts: dict[str, int] = {}
    for row in audit:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    chain = root.add(Text(f"audit chain, {len(audit)} rows", "bold"))
    for kind, count in counts.items():
        chain.add(Text(f"{kind:<26} {count:>5}"))
    head, *problems = verification_lines(verified)
    verdict = root.add(Text(head, "green" if verified.ok else "bold red"))
    for problem in problems:
        verdict.add(Text(problem))
    return root


def _answer(approval: dict[str, Any]) -> str:
    """Who answered, how and why, as the decision row has it."""
    ran_out = "nobody in time" if approval.get("expired") else None
    verdict = ran_out or ("approved" if approval.get("approved") else "denied")
    by = f"{approval.get('by_hash16')} of {approval.get('by_issuer')}"
    return f"{verdict} by {by}: {approval.get('reason')}"


class _Path:
    """Takes rows in order and hangs each beneath the visit it belongs to."""

    def __init__(self, top: Tree, states: bool) -> None:
        self._top = top
        self._states = states
        self._open: dict[tuple[str, str], tuple[Tree, Any]] = {}
        self._edges: dict[str, list[Any]] = {}

    def take_all(self, events: Sequence[Any]) -> None:
        """All rows; edges that lead nowhere yet come last."""
        for event in events:
            self._take(event)
        for space, edges in self._edges.items():
            for edge in edges:
                self._row(self._above(space), edge)

    def _take(self, event: Any) -> None:
        space, node = event.checkpoint_ns, event.node_name or ""
        if event.kind == "edge_traversed" and event.edge_to != "__end__":
            self._edges.setdefault(space, []).append(event)
        elif event.kind == "node_entered":
            visit = self._above(space).add(Text(one_line(node), "bold"))
            self._open[(space, node)] = (visit, event)
            for edge in self._edges.pop(space, []):
                self._row(visit, edge)
            self._row(visit, event)
        elif event.kind == "node_completed" and (space, node) in self._open:
            visit, entered = self._open.pop((space, node))
            millis = (event.created_at - entered.created_at).total_seconds() * 1000
            visit.label = Text(one_line(node), "bold").append(f"  {millis:.1f} ms", "not bold dim")
            self._row(visit, event)
        else:
            self._row(self._above(space), event)

    def _above(self, space: str) -> Tree:
        """Where a namespace hangs: at the visit of the node that its last part names."""
        if not space:
            return self._top
        outer, _, last = space.rpartition("|")
        found = self._open.get((outer, last.partition(":")[0]))
        return found[0] if found is not None else self._top

    def _row(self, at: Tree, event: Any) -> None:
        what = event.node_name or ""
        if event.kind == "edge_traversed":
            what = f"{event.edge_from} → {event.edge_to}"
        elif event.kind in ("node_entered", "node_completed"):
            what = ""
        mark = _MARKS.get(event.kind)
        label = Text(f"{event.seq} ", "dim")
        label.append(f"{mark} " if mark else "", "not dim")
        label.append(f"{event.kind} {one_line(what)}".rstrip(), "not dim")
        leaf = at.add(label)
        if self._states and event.kind != "edge_traversed":
            leaf.add(Text(one_line(json.dumps(event.state, ensure_ascii=False))))


class _Sink(io.StringIO):
    """Takes what is drawn, and says which letters the real output has."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def rendered(tree: Tree) -> str:
    """The tree as text: in a terminal's width and colours, or without either in a pipe."""
    tty = sys.stdout is not None and sys.stdout.isatty()
    sink = _Sink()
    console = Console(
        file=sink,
        width=shutil.get_terminal_size().columns if tty else 100_000,
        force_terminal=tty,
        no_color=bool(os.environ.get("NO_COLOR")) or not tty,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(tree, soft_wrap=not tty)
    return sink.getvalue().rstrip("\n")
