"""Runs as text: a table, a verification. No I/O."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import click

from cuo_supervisor.cli.common import one_line

__all__ = [
    "cells",
    "run_rows",
    "run_table",
    "state_word",
    "verification_lines",
    "verification_text",
]

_HEAD: Final = ("STARTED (UTC)", "RUN", "STATE", "PERSONA", "PATH", "SKILL", "QUERY")
_COLOURS: Final = {"waiting": "yellow", "open": "cyan", "failed": "red"}
_NARROW: Final = 110
"""Columns of a terminal below which a run takes two lines instead of breaking one anywhere."""
_LEAST_QUERY: Final = 8
"""Columns that must be left for a query; with less a run takes two lines, too."""


def run_table(runs: Sequence[Any], *, width: int | None = None) -> str:
    """One line per run, whatever its length, or made to fit a terminal `width` columns wide."""
    rows = run_rows(runs)
    if width is not None and width < _NARROW:
        return "\n".join(_two_lines(row, width) for row in rows)
    rows.insert(0, _HEAD)
    widths = [max(cells(row[i]) for row in rows) for i in range(6)]
    if width is not None and width < sum(widths) + 12 + _LEAST_QUERY:
        return "\n".join(_two_lines(row, width) for row in rows[1:])
    lines = []
    for row in rows:
        padded = [_pad(cell, size) for cell, size in zip(row, widths, strict=False)]
        line = "  ".join([*padded, row[6]]).rstrip()
        if row[2] in _COLOURS:
            padded[2] = click.style(padded[2], fg=_COLOURS[row[2]])
        if width is not None and cells(line) > width:
            row = (*row[:6], _cut(row[6], width - sum(widths) - 12))
        lines.append("  ".join([*padded, row[6]]).rstrip())
    lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def run_rows(runs: Sequence[Any]) -> list[tuple[str, ...]]:
    """What a listing says of each run, in the order of its columns."""
    return [_summary_row(run) for run in runs]


def _summary_row(run: Any) -> tuple[str, ...]:
    query = one_line((run.query or "").replace("\n", " "))
    return (
        run.first_at.strftime("%Y-%m-%d %H:%M:%S"),
        run.ulid,
        state_word(run),
        one_line(_short(run.persona)),
        one_line(": ".join(word for word in (run.path, run.reason) if word) or "-"),
        one_line(str(run.skill or "-")),
        _cut(query, 60),
    )


def _short(persona: str | None) -> str:
    """The persona's short name where it has one: columns are narrow."""
    from cuo_supervisor.core.personas import get_persona
    from cuo_supervisor.errors import PersonaUnknown

    try:
        return get_persona(persona).short if persona else "-"
    except PersonaUnknown:
        return str(persona)


def _two_lines(row: tuple[str, ...], width: int) -> str:
    state = click.style(row[2], fg=_COLOURS.get(row[2]), bold=True)
    facts = "  ".join(cell for cell in row[3:6] if cell != "-")
    room = width - cells(row[2]) - 21
    first = f"{row[0]}  {state}" + (f"  {_cut(facts, room - 2)}" if facts and room > 8 else "")
    second = f"  {row[1]}  {row[6]}".rstrip()
    return f"{first}\n{_cut(second, width)}"


def state_word(run: Any) -> str:
    """How a run stands, or ended."""
    if run.state != "closed" or run.outcome is None:
        return str(run.state)
    return str(run.outcome).removeprefix("run_")


def verification_lines(verified: Any) -> list[str]:
    """Whether everything recomputes; if not, what does not."""
    gone = [
        f"audit rows {gap.first} to {gap.last} went with {gap.drop}" for gap in verified.dropped
    ]
    if verified.ok:
        sound = (
            f"verified: {verified.rows} log rows and {verified.writes} writes recompute,"
            f" {verified.chain_rows} audit rows follow one another"
        )
        return [sound, *gone]
    return ["NOT VERIFIED", *(one_line(problem) for problem in verified.problems), *gone]


def verification_text(verified: Any) -> str:
    """The same for a terminal."""
    head, *problems = verification_lines(verified)
    head = click.style(head, fg="green" if verified.ok else "red", bold=not verified.ok)
    return "\n".join([head, *(f"  {problem}" for problem in problems)])


def cells(text: str) -> int:
    """Columns a terminal gives the text: marks none, wide letters two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def _cut(text: str, width: int) -> str:
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"
