"""From log rows to what the run page shows: visits to nodes, and what each did to the state. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cuo_supervisor.http.text import get, plain_form, pretty, visible

__all__ = ["Change", "Shown", "Step", "Visit", "changes", "steps_of", "value_shown"]

Row = Mapping[str, Any]

_FOLD: Final = 240
"""Characters up to which a value is shown at once."""

_CUT: Final = 20_000
"""Characters of one value that a page shows at all; the API has the rest."""

_BUDGET: Final = 600_000
"""Characters of values on one page. A page of a long run must still open on a telephone."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A value as shown: `text` is cut at `_CUT`; None when the page's budget was spent."""

    text: str | None
    size: int

    @property
    def folded(self) -> bool:
        return self.size > _FOLD

    @property
    def cut(self) -> bool:
        return self.text is None or self.size > len(self.text)


@dataclass(frozen=True, slots=True)
class Change:
    """One channel that a step added, changed or removed."""

    kind: Literal["added", "changed", "removed"]
    name: str
    before: Shown | None
    after: Shown | None


@dataclass(slots=True)
class Visit:
    """One time a node was entered. `ended` is None while it has not completed (or waits)."""

    node: str
    entered: Row
    ended: Row | None = None

    @property
    def millis(self) -> float | None:
        """Between the two rows, in ms; both times are the database's."""
        if self.ended is None:
            return None
        return (_at(self.ended) - _at(self.entered)).total_seconds() * 1000


@dataclass(slots=True)
class Step:
    """The start or end of a run, or one superstep: nodes entered together, rows and changes."""

    kind: Literal["start", "nodes", "end", "failed", "other"]
    anchor: str
    rows: list[Row] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    came_from: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    space: str = ""
    number: int | None = None
    error: str | None = None
    paused: bool = False
    broke: bool = False
    """A node of it was under way when the run failed."""

    @property
    def title(self) -> str:
        words = {"start": "Run started", "end": "Run completed", "failed": "Run failed"}
        return words.get(self.kind, " + ".join(v.node for v in self.visits) or "Log rows")

    @property
    def at(self) -> str:
        return str(self.rows[0]["created_at"])


class _Budget:
    def __init__(self) -> None:
        self.left = _BUDGET

    def show(self, value: Any) -> Shown:
        text = pretty(value)
        shown = text[:_CUT]
        if len(shown) > self.left:
            return Shown(None, len(text))
        self.left -= len(shown)
        return Shown(shown, len(text))


def error_text(error: Any) -> str | None:
    """An error as a person reads it: its type and message, else the value as it is."""
    if error is None:
        return None
    if isinstance(error, dict) and set(error) <= {"type", "message"}:
        return visible(
            ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))
        )
    return pretty(error)


def value_shown(value: Any) -> Shown:
    """One value as shown, apart from any page's budget."""
    return _Budget().show(value)


def steps_of(
    rows: Sequence[Row], before: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Step]:
    """The steps of a stretch of rows, in order. `before` holds the last state before the first
    row, for each namespace that had one.

    A step's changes are its state compared with the one before it in the same namespace, so that
    all changes together are the state. Rows that belong to no visit (a stretch may begin in the
    midst of one) make steps of their own.
    """
    made = _Builder(before)
    for row in rows:
        made.take(row)
    return made.steps


class _Builder:
    def __init__(self, before: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.steps: list[Step] = []
        self._budget = _Budget()
        self._last = {space: _readable(state) for space, state in (before or {}).items()}
        self._open: dict[tuple[str, str], tuple[Step, Visit]] = {}
        self._edges: dict[str, list[Row]] = {}

    def take(self, row: Row) -> None:
        kind = row["kind"]
        if kind == "edge_traversed":
            self._edge(row)
        elif kind == "node_entered":
            self._entered(row)
        elif kind == "node_completed":
            self._completed(row)
        else:
            names: dict[str, Any] = {"run_started": "start", "run_completed": "end"}
            step = self._new(names.get(kind, "failed"), row)
            step.error = error_text(plain_form(get(row["langgraph"], "error")))
            if kind == "run_failed":
                for open_step, _ in self._open.values():
                    open_step.broke = True
            self._compare(step, row)

    def _entered(self, row: Row) -> None:
        space = row["checkpoint_ns"]
        step = self.steps[-1] if self.steps else None
        fits = (
            step is not None
            and step.kind == "nodes"
            and step.space == space
            and step.number == row["step"]
            and all(visit.ended is None for visit in step.visits)
            and row["node_name"] not in {visit.node for visit in step.visits}
            and step.rows[-1]["phase"] == row["phase"]
        )
        if not fits or step is None:
            earlier = self._open.get((space, str(row["node_name"])))
            if earlier is not None:
                earlier[0].paused = True
            edges = self._edges.pop(space, [])
            target = self._newest(space)
            step = self._new("nodes", edges[0] if edges else row)
            step.rows = [*edges]
            step.came_from = [str(edge["edge_from"]) for edge in edges]
            step.number = row["step"]
            # What came between the last step and this one: the input, an update from outside.
            self._compare(target or step, row)
        step.rows.append(row)
        visit = Visit(str(row["node_name"]), row)
        step.visits.append(visit)
        self._open[(space, visit.node)] = (step, visit)

    def _completed(self, row: Row) -> None:
        found = self._open.pop((row["checkpoint_ns"], str(row["node_name"])), None)
        if found is None:
            step = self._new("other", row)
            step.visits.append(Visit(str(row["node_name"]), row, row))
        else:
            step, visit = found
            visit.ended = row
            step.rows.append(row)
        self._compare(step, row)

    def _edge(self, row: Row) -> None:
        """An edge belongs to the step it leads to; the last one to the step it comes from."""
        target = self._newest(row["checkpoint_ns"])
        if row["edge_to"] != "__end__":
            self._edges.setdefault(row["checkpoint_ns"], []).append(row)
        elif target is not None:
            target.rows.append(row)
        else:
            target = self._new("other", row)
        if target is not None:
            self._compare(target, row)

    def _newest(self, space: str) -> Step | None:
        return next((step for step in reversed(self.steps) if step.space == space), None)

    def _new(self, kind: Any, row: Row) -> Step:
        step = Step(kind, f"s{row['seq']}", space=row["checkpoint_ns"])
        step.rows.append(row)
        self.steps.append(step)
        return step

    def _compare(self, step: Step, row: Row) -> None:
        now = _state(row)
        last = self._last.get(row["checkpoint_ns"], {})
        step.changes += changes(last, now, self._budget)
        self._last[row["checkpoint_ns"]] = now


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], budget: Any = None
) -> list[Change]:
    """What differs, channel by channel: added, then changed, then removed, by name."""
    show = (budget or _Budget()).show
    added = [Change("added", n, None, show(after[n])) for n in sorted(after.keys() - before.keys())]
    changed = [
        Change("changed", n, show(before[n]), show(after[n]))
        for n in sorted(after.keys() & before.keys())
        if not _same(before[n], after[n])
    ]
    removed = [
        Change("removed", n, show(before[n]), None) for n in sorted(before.keys() - after.keys())
    ]
    return [*added, *changed, *removed]


def _same(one: Any, other: Any) -> bool:
    # 1 == True and 1 == 1.0 in Python; in a log they differ.
    return type(one) is type(other) and bool(one == other) and pretty(one) == pretty(other)


def _state(row: Row) -> Mapping[str, Any]:
    return _readable(row["state_json"])


def _readable(state: Any) -> Mapping[str, Any]:
    plain = plain_form(state)
    return plain if isinstance(plain, dict) else {"(state)": plain}


def _at(row: Row) -> dt.datetime:
    return dt.datetime.fromisoformat(row["created_at"])
