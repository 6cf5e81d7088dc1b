"""Runs as text: a table, one run as a tree, a verification. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cuo_supervisor.cli.common import printable

__all__ = ["run_table", "run_tree", "verification_text"]

_MARKS = {
    "run_started": "▶",
    "node_entered": "→",
    "node_completed": "✓",
    "edge_traversed": "│",
    "run_completed": "■",
    "run_failed": "✗",
}


def run_table(runs: Sequence[Any]) -> str:
    """One line per run; columns fit their content, so a pipe gets the same text."""
    rows: list[tuple[str, ...]] = [
        ("STARTED (UTC)", "RUN", "STATE", "PERSONA", "PATH", "SKILL", "QUERY")
    ]
    rows += [_summary_row(run) for run in runs]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[6]]
        ).rstrip()
        for row in rows
    ]
    lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def _summary_row(run: Any) -> tuple[str, ...]:
    said: Mapping[str, Any] = run.decision or {}
    query = printable(str(said.get("query", "") or "")).replace("\n", " ")
    return (
        run.first_at.strftime("%Y-%m-%d %H:%M:%S"),
        run.ulid,
        _state(run),
        str(said.get("persona_key", "-")),
        str(said.get("reason") or said.get("path_taken") or "-"),
        str(said.get("skill_chosen") or "-"),
        query if len(query) <= 60 else query[:57] + "...",
    )


def run_tree(
    summary: Any, events: Sequence[Any], audit: Sequence[Any], verified: Any, *, states: bool
) -> str:
    """A run from its first row to its last, then what it decided and what vouches for it."""
    lines = [
        click.style(f"run {summary.ulid}  ({summary.run_id})", bold=True),
        f"  {_state(summary)} · {summary.first_at.isoformat()} · trace {summary.trace_id}",
        f"  {summary.log_rows} log rows, {summary.chain_rows} audit rows",
        "",
    ]
    for event in events:
        lines.append(_event_line(event))
        if states and event.kind != "edge_traversed":
            text = json.dumps(event.state, ensure_ascii=False)
            lines.append(f"          {printable(text)}")
    said = summary.decision
    if said:
        lines += ["", click.style("decision", bold=True)]
        for key in (
            "query",
            "persona_version",
            "path_taken",
            "routed",
            "reason",
            "operation",
            "skill_chosen",
            "confidence",
            "cascade_outcome",
        ):
            if said.get(key) is not None:
                lines.append(f"  {key:<16} {printable(str(said[key]))}")
    counts: dict[str, int] = {}
    for row in audit:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    lines += ["", click.style("audit chain", bold=True)]
    lines += [f"  {kind:<26} {count}" for kind, count in counts.items()]
    lines += ["", verification_text(verified)]
    return "\n".join(lines)


def verification_text(verified: Any) -> str:
    """Whether everything recomputes; if not, what does not."""
    if verified.ok:
        return click.style(
            f"verified: {verified.rows} log rows and {verified.writes} writes recompute,"
            f" {verified.chain_rows} audit rows follow one another",
            fg="green",
        )
    lines = [click.style("NOT VERIFIED", fg="red", bold=True)]
    return "\n".join(lines + [f"  {printable(problem)}" for problem in verified.problems])


def _event_line(event: Any) -> str:
    what = event.node_name or ""
    if event.kind == "edge_traversed":
        what = f"{event.edge_from} → {event.edge_to}"
    space = f"  [{event.checkpoint_ns}]" if event.checkpoint_ns else ""
    mark = _MARKS.get(event.kind, "?")
    return f"  {event.seq:>5} {mark} {event.kind:<15} {printable(what)}{printable(space)}"


def _state(run: Any) -> str:
    return str(run.state) if run.outcome is None else f"{run.state}/{run.outcome}"
