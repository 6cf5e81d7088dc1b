"""What is published, what the page says, what dashboard and rules use: three lists that agree."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from cuo_checkpoint import telemetry_names as store
from cuo_supervisor import telemetry as t
from cuo_supervisor import telemetry_names as names
from cuo_supervisor.core.models import CascadeOutcome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
RULES = ROOT / "ops" / "prometheus" / "cuo.rules.yml"
DASHBOARD = ROOT / "ops" / "grafana" / "cuo.json"
PROMTOOL = shutil.which("promtool")
METRICS = {**names.METRICS, **store.METRICS}
NOT_OURS = {"up": {"job"}}


def table(heading: str) -> dict[str, list[str]]:
    """A table of the page whose header row begins with `heading`: first cell to the others."""
    found: dict[str, list[str]] = {}
    inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {heading} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(cells[0]) <= set("-"):
            found[cells[0]] = cells[1:]
    assert found, f"no table {heading}"
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_names_every_metric() -> None:
    """With its kind and its labels, and no other."""
    said = {quoted(k)[0]: (v[0], tuple(quoted(v[1]))) for k, v in table("metric").items()}
    assert said == {name: (m.kind, m.labels) for name, m in METRICS.items()}


def test_the_page_names_every_span_and_attribute() -> None:
    """Spans, and what each attribute means, in the words of the code."""
    spans = {quoted(k)[0]: quoted(v[0]) for k, v in table("span").items()}
    assert set(spans) == {
        t.SPAN_ROUTE,
        t.SPAN_DRY_RUN,
        *(t.SPAN_NODE_PREFIX + node for node in t.NODES),
    }
    said = {quoted(k)[0]: v[0] for k, v in table("attribute").items()}
    assert said == dict(names.ATTRIBUTES)
    assert {name for listed in spans.values() for name in listed} == set(names.ATTRIBUTES)


def test_the_page_names_every_failure_and_event() -> None:
    """Severities and events, each list whole."""
    for heading, known in (
        ("failure of a request", names.FAILURES),
        ("failure of the store", store.FAILURES),
    ):
        assert {quoted(k)[0]: int(v[0]) for k, v in table(heading).items()} == dict(known)
    said = {quoted(k)[0]: v[0] for k, v in table("event").items()}
    assert said == {**names.EVENTS, **store.EVENTS}
    outcomes = {o: quoted(v[0]) for k, v in table("cascade outcome").items() for o in quoted(k)}
    assert {o: v[0] if v else o for o, v in outcomes.items()} == dict(names.CASCADE_LABELS)


def test_the_code_says_nothing_that_is_not_listed() -> None:
    """Every event and attribute named in the packages' source is in the lists, and the reverse."""
    events: set[str] = set()
    for path in [*ROOT.glob("cuo_supervisor/**/*.py"), *ROOT.glob("cuo_checkpoint/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                events |= {
                    v.value
                    for k, v in pairs
                    if isinstance(k, ast.Constant)
                    and k.value == "event"
                    and isinstance(v, ast.Constant)
                }
            called = getattr(node, "func", None)
            if isinstance(node, ast.Call) and getattr(called, "id", "") in ("event", "_tell"):
                events |= {
                    a.value
                    for a in node.args
                    if isinstance(a, ast.Constant) and isinstance(a.value, str) and "." in a.value
                }
    # "remark" is set on the line itself, "log" is the default.
    assert events | {"remark", "log"} == {*names.EVENTS, *store.EVENTS}


def test_lists_are_closed_and_whole() -> None:
    """Each cascade outcome has a label; each failure a severity with a level; the levels rise."""
    assert set(names.CASCADE_LABELS) == set(get_args(CascadeOutcome))
    assert set(names.CASCADE_FAILURES) <= set(names.CASCADE_LABELS)
    assert set(names.CASCADE_FAILURES.values()) <= set(names.FAILURES)
    for known in (names.FAILURES, store.FAILURES):
        assert set(known.values()) == {1, 2, 3}
    assert names.LEVELS == store.LEVELS == {1: 50, 2: 40, 3: 30}


@pytest.mark.clause("101-16")
def test_no_label_is_of_higher_cardinality_than_promised() -> None:
    """The supervisor's five have exactly the published labels; nobody and no text is a label."""
    assert {name: METRICS[name].labels for name in list(names.METRICS)[:5]} == {
        "cuo_supervisor_route_total": ("outcome", "persona", "path_taken"),
        "cuo_supervisor_route_latency_ms": ("path_taken",),
        "cuo_supervisor_llm_cascade_total": ("outcome",),
        "cuo_supervisor_persona_defer_blocks_total": ("persona", "operation"),
        "cuo_supervisor_destructive_block_total": ("skill",),
    }
    labels = {label for metric in METRICS.values() for label in metric.labels}
    assert not labels & {"tenant", "tenant_id", "subject", "query", "run_id", "thread_id", "user"}


# -- dashboard and rules -----------------------------------------------------------------------


def expressions() -> Iterator[tuple[str, str]]:
    """(place, PromQL) of every rule and panel."""
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def recorded() -> dict[str, set[str]]:
    """What the rules record, and the labels it has."""
    rules = [r for g in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for r in g["rules"]]
    return {
        r["record"]: set(re.search(r"by \(([^)]*)\)", r["expr"])[1].split(", "))  # type: ignore[index]
        for r in rules
        if "record" in r
    }


def used(expr: str) -> Iterator[tuple[str, set[str], list[tuple[str, str]]]]:
    """(metric, labels it is grouped by, (label, value pattern) it is selected by)."""
    grouped = {
        label.strip()
        for found in re.findall(r"\bby \(([^)]*)\)", expr)
        for label in found.split(",")
        if label.strip() != "le"
    }
    bare = re.sub(r"\bby \([^)]*\)", " ", expr)
    for name, selector in re.findall(
        r"\b(cuo[\w:]+|up)\b(?:\{([^}]*)\})?",
        re.sub(r'"[^"]*"', lambda m: m[0].replace("{", "").replace("}", ""), bare),
    ):
        yield name, grouped, re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', selector)


def known_labels(name: str) -> set[str]:
    if name in NOT_OURS:
        return NOT_OURS[name]
    if name in recorded():
        return recorded()[name]
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    kind = "histogram" if base != name else None
    spec = METRICS.get(base) or METRICS[name]
    assert kind is None or spec.kind == "histogram", name
    assert base != name or spec.kind != "histogram", f"{name} has no series of its own"
    return set(spec.labels)


VALUES = {
    "outcome": {*names.OUTCOMES, *names.CASCADE_LABELS.values(), *store.OUTCOMES},
    "path_taken": set(names.PATHS),
    "severity": {"1", "2", "3"},
    "operation": set(store.OPERATIONS.values()),
    "result": set(store.RESUME_RESULTS),
    "job": {"cuo"},
}


@pytest.mark.parametrize(("place", "expr"), list(expressions()), ids=lambda value: value[:40])
def test_dashboard_and_rules_use_what_exists(place: str, expr: str) -> None:
    """Every metric, label and label value in an expression is one the product publishes."""
    found = list(used(expr))
    assert found, place
    grouped = found[0][1]
    assert grouped <= set().union(*(known_labels(name) for name, _, _ in found)), place
    for name, _, selected in found:
        for label, pattern in selected:
            assert label in known_labels(name), f"{place}: {name} has no label {label}"
            assert set(pattern.split("|")) <= VALUES[label], f"{place}: {pattern}"


def test_nothing_published_goes_unwatched() -> None:
    """Each metric is on the dashboard; each severity has a rule."""
    shown = " ".join(
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
        for target in panel.get("targets", [])
    )
    assert [name for name in METRICS if name not in shown] == []
    rules = [r for g in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for r in g["rules"]]
    alerts = [r for r in rules if "alert" in r]
    assert {r["labels"]["severity"] for r in alerts} == {"1", "2", "3"}
    limits = " ".join(str(r["expr"]) for r in alerts)
    assert all(f"> {limit}" in limits for limit in ("50", "30", "3500", "5"))
    tested = (RULES.parent / "cuo.rules.test.yml").read_text("utf-8")
    assert [r["alert"] for r in alerts if r["alert"] not in tested] == []


@pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not here (Debian: apt install prometheus)"
)
@pytest.mark.parametrize(
    "call", [["check", "rules", "cuo.rules.yml"], ["test", "rules", "cuo.rules.test.yml"]]
)
def test_promtool_agrees(call: list[str]) -> None:
    """Prometheus' own tool parses the rules, and its tests of them pass."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *call], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_sound() -> None:
    """Panels have ids of their own, do not overlap, and ask the data source of the viewer's choice."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
