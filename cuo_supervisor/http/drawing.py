"""The path through the graph as a picture: a column for each node, time downwards. Pure.

Drawn with presentation attributes and classes only, since the page's policy forbids inline
styles. For eyes and pointers: the list of steps beside it says the same to everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from cuo_supervisor.http.text import shortened, visible

__all__ = ["Stop", "draw_path", "fold_cycles"]

_WIDTH: Final = 340
_HEAD: Final = 84
_LEFT: Final = 16.0
_RIGHT: Final = 76.0
"""Room for the last column's name, which leans to the right."""

_TALL: Final = 34.0
_SHORT: Final = 2.2
_MOST: Final = 1500
"""Pixels of height that a picture may need before its rows draw closer together."""

_LANES: Final = 9
_DRAWN: Final = 3000
_FOLDED: Final = 20_000
_CYCLE: Final = 12
"""Longest cycle looked for, in visits."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One visit to a node, in order. `mark`: done, waits, failed or plain; `anchor` its step's."""

    node: str
    mark: str
    anchor: str | None


def draw_path(stops: Sequence[Stop]) -> Markup:
    """An SVG of the way from node to node. Beyond nine nodes the later ones share one column.

    A stretch that repeats at least three times is drawn once, with how often beside it. Of what
    is then left, the first 3000 visits are drawn.
    """
    folded = fold_cycles(stops[:_FOLDED])
    drawn = [stop for stretch, _ in folded for stop in stretch][:_DRAWN]
    if not drawn:
        return Markup("")
    lanes = _lanes(drawn)
    gap = min((_WIDTH - _LEFT - _RIGHT) / max(len(lanes) - 1, 1), 70.0)
    at = {node: _LEFT + gap * i for i, node in enumerate(lanes)}
    row = max(_SHORT, min(_TALL, _MOST / len(drawn)))
    height = _HEAD + row * len(drawn) + 10
    points = [
        (at.get(stop.node, at[lanes[-1]]), _HEAD + row * (i + 0.5)) for i, stop in enumerate(drawn)
    ]
    parts = [
        Markup(
            '<svg class="path" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true" '
            'focusable="false" xmlns="http://www.w3.org/2000/svg">'
        ).format(_WIDTH, round(height), _WIDTH, round(height))
    ]
    for node in lanes:
        x = at[node]
        parts.append(
            Markup(
                '<line class="lane" x1="{x}" x2="{x}" y1="{a}" y2="{b}"/>'
                '<text class="lane-name" x="{x}" y="{y}" transform="rotate(-38 {x} {y})">{t}</text>'
            ).format(x=_n(x), a=_HEAD - 6, b=round(height - 6), y=_HEAD - 12, t=_label(node))
        )
    parts.append(Markup('<path class="way" d="{}"/>').format(_way(points)))
    parts += _brackets(folded, row, len(drawn))
    radius = max(1.6, min(7.0, row / 3))
    for stop, (x, y) in zip(drawn, points, strict=True):
        dot = Markup('<circle class="stop {}" cx="{}" cy="{}" r="{}"/>').format(
            stop.mark, _n(x), _n(y), _n(radius)
        )
        if stop.anchor is not None:
            dot = Markup('<a href="#{}" tabindex="-1"><title>{}</title>{}</a>').format(
                stop.anchor, _label(stop.node), dot
            )
        parts.append(dot)
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def fold_cycles(stops: Sequence[Stop]) -> list[tuple[Sequence[Stop], int]]:
    """The stops as stretches, each with how many times it stands there, one after another.

    Only visits that ended alike repeat each other; what waits or fails stays visible.
    """
    keys = [(stop.node, stop.mark) for stop in stops]
    found: list[tuple[Sequence[Stop], int]] = []
    start = at = 0
    while at < len(keys):
        best_size, best_count = 1, 1
        for size in range(1, _CYCLE + 1):
            cycle = keys[at : at + size]
            count = 1
            while keys[at + count * size : at + (count + 1) * size] == cycle:
                count += 1
            if count >= 3 and size * count > best_size * best_count:
                best_size, best_count = size, count
        if best_count >= 3:
            if start < at:
                found.append((stops[start:at], 1))
            found.append((stops[at : at + best_size], best_count))
            at += best_size * best_count
            start = at
        else:
            at += 1
    if start < at:
        found.append((stops[start:at], 1))
    return found


def _brackets(folded: Sequence[tuple[Sequence[Stop], int]], row: float, drawn: int) -> list[Markup]:
    """Beside each stretch that repeats: a bracket and how often."""
    made: list[Markup] = []
    place = 0
    for stretch, count in folded:
        top, bottom = place, min(place + len(stretch), drawn)
        place += len(stretch)
        if count > 1 and top < bottom:
            a, b = _HEAD + row * top + 4, _HEAD + row * bottom - 4
            made.append(
                Markup(
                    '<path class="lane" fill="none" d="M{x} {a}h6V{b}h-6"/>'
                    '<text class="times" x="{t}" y="{m}">{count}×</text>'
                ).format(
                    x=_WIDTH - 56,
                    a=_n(a),
                    b=_n(b),
                    t=_WIDTH - 44,
                    m=_n((a + b) / 2 + 4),
                    count=count,
                )
            )
    return made


def _lanes(stops: Sequence[Stop]) -> list[str]:
    """Nodes in order of their first visit; the surplus goes by the name of the last column."""
    seen = list(dict.fromkeys(stop.node for stop in stops))
    return seen if len(seen) <= _LANES else [*seen[: _LANES - 1], "others"]


def _way(points: Sequence[tuple[float, float]]) -> str:
    """Down within a column, bent from one to another."""
    (x, y), *rest = points
    said = [f"M{_n(x)} {_n(y)}"]
    for nx, ny in rest:
        if nx == x:
            said.append(f"V{_n(ny)}")
        else:
            middle = _n((y + ny) / 2)
            said.append(f"C{_n(x)} {middle} {_n(nx)} {middle} {_n(nx)} {_n(ny)}")
        x, y = nx, ny
    return "".join(said)


def _label(node: str) -> str:
    return shortened(visible(node), 16)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
