"""The readable page of a bundle: what was asked, decided, approved and done. Pure.

It shows query and reason as audit rows hold them: scrubbed of what has a pattern, while a name in free
text stays. States are left to the files. Nothing signed speaks of the page, so no verifier can check it.
No script, no style from elsewhere, nothing fetched: it opens from a stick on a machine without a network.
"""

from __future__ import annotations

import html
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from cuo_checkpoint.export_places import RunPlace
from cuo_checkpoint.run_records import rfc3339

__all__ = ["Page"]

_MAX_RUNS: Final = 1000
"""Runs shown; the files hold all. A browser shows so many without effort."""

_MAX_EVENTS: Final = 2000

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.3rem .6rem;"
    "text-align:left;vertical-align:top}code{font-size:13px;overflow-wrap:anywhere}"
)
_POLICY: Final = (
    "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; "
    "style-src 'unsafe-inline'\">"
)
_HOW: Final = (
    "<p>This page is for reading, and nothing checks it. The rows beside it can be checked: "
    "<code>python3 verify.py . --key YOUR-COPY-OF-THE-KEYS</code></p>"
)
_SHOWN: Final = (
    "month",
    "persona_version",
    "path_taken",
    "skill_chosen",
    "confidence",
    "routed",
    "reason",
    "query",
    "approved",
    "answer",
    "catalog_snapshot_hash",
)
_KINDS: Final = (
    "cuo.routing_decision",
    "approval",
    "cuo.persona_defer_block",
    "month_dropped",
)


class Page:
    """Gathers what the page shows while rows stream by, and writes it."""

    def __init__(
        self, tenant_id: uuid.UUID, scope: Mapping[str, str], head: Mapping[str, Any] | None
    ) -> None:
        self._tenant = tenant_id
        self._scope = scope
        self._head = head
        self._said: dict[str, list[tuple[str, Any]]] = {}
        self._runs: list[Mapping[str, Any]] = []
        self._all = self._sealed = 0
        self._events: list[Mapping[str, Any]] = []
        self._single = "run" in scope
        self._holds: list[Mapping[str, Any]] = []

    def run(self, place: RunPlace) -> None:
        """A run, before its rows."""
        if len(self._said) < _MAX_RUNS:
            self._said.setdefault(str(place.run_id), [])

    def ended(self, run: Mapping[str, Any]) -> None:
        """A run after its rows, as the manifest tells it."""
        self._all += 1
        self._sealed += run["sealed"] is not None
        if len(self._runs) < _MAX_RUNS:
            self._runs.append(run)

    def said(self, row: Mapping[str, Any]) -> None:
        """One chain row of a run, whose id is text."""
        told = self._said.get(row["run_id"])
        if told is None or row["kind"] not in _KINDS:
            return
        try:
            body = json.loads(row["body"])
        except ValueError:
            return
        if isinstance(body, dict):
            told.append((row["kind"], body))

    def event(self, row: Mapping[str, Any]) -> None:
        """One log row, shown in a bundle of one run."""
        if self._single and len(self._events) < _MAX_EVENTS:
            names = ("created_at", "kind", "node_name", "edge_from", "edge_to", "seq")
            self._events.append({name: row[name] for name in names})

    def hold(self, row: Mapping[str, Any]) -> None:
        """One legal hold, or its end: what and when. Who and why name people, and stay in the file."""
        names = ("created_at", "held_run_id", "hold_id", "kind", "releases")
        self._holds.append({name: row[name] for name in names})

    def html(self) -> str:
        """The whole page."""
        scope = " ".join(f"{key} {value}" for key, value in self._scope.items())
        if self._head is None:
            seal = "No head had been signed when this was exported: nothing here is sealed."
        else:
            seal = (
                f"{self._sealed} of {self._all} runs are sealed in a tree of {self._head['tree_size']} "
                f"leaves with root <code>{self._head['root']}</code>."
            )
        parts = [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            _POLICY,
            f"<title>Evidence: {_text(scope)}</title><style>{_STYLE}</style>",
            f"<h1>Evidence: {_text(scope)}</h1><p>Tenant <code>{self._tenant}</code>. {seal}</p>",
            _HOW,
            "<table><tr><th>Run<th>Began (UTC)<th>State<th>Rows<th>Sealed to<th>Decided</tr>",
        ]
        for run in self._runs:
            mark = run["sealed"]["chain_seq"] if run["sealed"] else "not sealed"
            told = "<br>".join(_line(k, b) for k, b in self._said.get(run["run_id"], []))
            parts.append(
                f"<tr><td><code>{_text(run['ulid'])}</code><br><code>{_text(run['run_id'])}</code>"
                f"<td>{_text(run['first_at'])}<td>{_text(run['outcome'] or run['state'])}"
                f"<td>{run['chain_rows']} / {run['log_rows']}<td>{mark}<td>{told}</tr>"
            )
        parts.append("</table>")
        if self._all > _MAX_RUNS:
            parts.append(f"<p>And {self._all - _MAX_RUNS} more runs, in the files.</p>")
        if self._holds:
            parts.append(
                "<h2>Legal holds</h2><p>By whom and why: holds.ndjson.</p>"
                "<table><tr><th>At (UTC)<th>What<th>On<th>Hold</tr>"
            )
            parts += [_hold(row) for row in self._holds]
            parts.append("</table>")
        if self._events:
            parts.append("<h2>Steps</h2><table><tr><th>No.<th>At (UTC)<th>What<th>Where</tr>")
            parts += [_event(row) for row in self._events]
            parts.append("</table>")
        return "\n".join(parts) + "\n"


def _line(kind: str, body: Mapping[str, Any]) -> str:
    told = (f"{_text(key)}: {_text(body[key])}" for key in _SHOWN if body.get(key) is not None)
    return "; ".join((f"<b>{_text(kind)}</b>", *told))


def _event(row: Mapping[str, Any]) -> str:
    where = row["node_name"] or " → ".join(str(row[k]) for k in ("edge_from", "edge_to") if row[k])
    return (
        f"<tr><td>{row['seq']}<td>{rfc3339(row['created_at'])}<td>{_text(row['kind'])}"
        f"<td>{_text(where)}</tr>"
    )


def _hold(row: Mapping[str, Any]) -> str:
    what = "placed" if row["kind"] == "set" else "lifted"
    on = "everything" if row["held_run_id"] is None else f"run {row['held_run_id']}"
    return (
        f"<tr><td>{_text(row['created_at'])}<td>{what}<td>{_text(on)}"
        f"<td><code>{_text(row['releases'] or row['hold_id'])}</code></tr>"
    )


def _text(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return html.escape(shown)
