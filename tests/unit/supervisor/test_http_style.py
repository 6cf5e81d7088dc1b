"""The style sheet: its colours can be read, in light and in dark."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import pytest

SHEET = files("cuo_supervisor.http").joinpath("assets/style.css").read_text("utf-8")
TEXTS = ("ink", "dim", "link", "good", "bad", "warn")
GROUNDS = ("bg", "panel", "soft", "add", "chg", "del")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """Their contrast ratio, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    """The colours of the light scheme and of the dark one."""
    blocks = re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in blocks[:2])
    return [light, {**light, **dark}]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_can_be_read_on_every_ground(scheme: int) -> None:
    """At least 4.5 to 1 for text, buttons' labels too; 3 to 1 for lines that mean something."""
    colours = palettes()[scheme]
    for text, ground in itertools.product(TEXTS, GROUNDS):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for button in ("good", "bad"):
        assert contrast(colours["panel"], colours[button]) >= 4.5, button
    for drawn in ("way", "dim"):
        assert contrast(colours[drawn], colours["bg"]) >= 3, drawn


def test_nothing_takes_the_focus_away() -> None:
    """Whoever goes by keyboard sees where they are."""
    assert ":focus-visible" in SHEET
    assert not re.search(r"outline:\s*(none|0)", SHEET)


def test_the_sheet_asks_nobody() -> None:
    """No addresses in it, and nothing imported."""
    assert "url(" not in SHEET
    assert "@import" not in SHEET
