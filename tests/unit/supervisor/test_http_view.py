"""What the run page makes of log rows: steps, changes, the drawing, readable values."""

from __future__ import annotations

import datetime as dt
import json
import time
import unicodedata
import uuid
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuo_supervisor.core.models import Reason
from cuo_supervisor.expiry import EXPIRY_ISSUER
from cuo_supervisor.http import pages
from cuo_supervisor.http.drawing import Stop, draw_path, fold_cycles
from cuo_supervisor.http.run_page import gates_of, tone_of
from cuo_supervisor.http.sessions import Session
from cuo_supervisor.http.text import plain_form, pretty, shortened, visible
from cuo_supervisor.http.view import changes, steps_of
from cuo_supervisor.identity import LOCAL_IDENTITY

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
STATES = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)


def row(seq: int, kind: str, node: str | None = None, **more: Any) -> dict[str, Any]:
    """A log row as the API gives it."""
    return {
        "seq": seq,
        "kind": kind,
        "node_name": node,
        "edge_from": None,
        "edge_to": None,
        "checkpoint_ns": "",
        "step": 0,
        "phase": 3,
        "langgraph": None,
        "state_json": {},
        "created_at": f"2026-11-30T08:00:00.{seq:06d}Z",
        "row_sha256": "ab" * 32,
        **more,
    }


def run() -> list[dict[str, Any]]:
    """A run of two nodes."""
    return [
        row(1, "run_started"),
        row(2, "edge_traversed", edge_from="__start__", edge_to="a", state_json={"q": 1}),
        row(3, "node_entered", "a", state_json={"q": 1}),
        row(4, "node_completed", "a", step=1, state_json={"q": 1, "r": 2}),
        row(5, "edge_traversed", edge_from="a", edge_to="b", step=1, state_json={"q": 1, "r": 2}),
        row(6, "node_entered", "b", step=1, state_json={"q": 1, "r": 2}),
        row(7, "node_completed", "b", step=2, state_json={"r": 3}),
        row(8, "edge_traversed", edge_from="b", edge_to="__end__", step=2, state_json={"r": 3}),
        row(9, "run_completed", step=2, state_json={"r": 3}),
    ]


def told(step: Any) -> list[tuple[str, str]]:
    """A step's changes in short."""
    return [(change.kind, change.name) for change in step.changes]


def test_a_run_is_its_steps_in_order() -> None:
    """Start with the input, each node with what it changed, end; every row stands somewhere."""
    steps = steps_of(run())
    assert [step.title for step in steps] == ["Run started", "a", "b", "Run completed"]
    assert told(steps[0]) == [("added", "q")]
    assert told(steps[1]) == [("added", "r")]
    assert told(steps[2]) == [("changed", "r"), ("removed", "q")]
    assert told(steps[3]) == []
    assert [step.came_from for step in steps] == [[], ["__start__"], ["a"], []]
    assert sorted(r["seq"] for step in steps for r in step.rows) == list(range(1, 10))
    assert steps[1].visits[0].millis == pytest.approx(0.001)


def test_nodes_entered_together_are_one_step() -> None:
    """A superstep of two nodes is one step with both names."""
    rows = [
        row(1, "node_entered", "a"),
        row(2, "node_entered", "b"),
        row(3, "node_completed", "a", step=1, state_json={"x": 1}),
        row(4, "node_completed", "b", step=1, state_json={"x": 1}),
    ]
    (step,) = steps_of(rows)
    assert step.title == "a + b"
    assert told(step) == [("added", "x")]


def test_a_node_that_waited_is_seen_twice() -> None:
    """Entered, stopped to wait, entered again after the answer."""
    rows = [
        row(1, "node_entered", "invoke", step=3),
        row(2, "node_entered", "invoke", step=3, phase=4),
        row(3, "node_completed", "invoke", step=4, state_json={"gate": 1}),
    ]
    first, second = steps_of(rows)
    assert first.paused
    assert not second.paused
    assert told(second) == [("added", "gate")]


def test_a_stretch_goes_on_from_the_state_before_it() -> None:
    """Cut anywhere, the pages show together the changes that the whole shows."""
    rows = run()
    whole = [change for step in steps_of(rows) for change in told(step)]
    for cut in range(1, len(rows)):
        before = rows[cut - 1]["state_json"]
        parts = steps_of(rows[:cut]) + steps_of(rows[cut:], {"": before})
        assert [change for step in parts for change in told(step)] == whole


def test_a_failure_names_its_error() -> None:
    """run_failed shows the error that the row holds."""
    failed = row(1, "run_failed", langgraph={"error": {"type": "ValueError", "message": "no"}})
    (step,) = steps_of([failed])
    assert (step.title, step.error) == ("Run failed", "ValueError: no")


def test_a_failure_marks_the_node_that_was_under_way() -> None:
    """What had not completed when the run failed is marked, what had is not."""
    rows = [
        row(1, "node_entered", node_name="a", step=0),
        row(2, "node_completed", node_name="a", step=0),
        row(3, "node_entered", node_name="b", step=1),
        row(4, "run_failed", langgraph={"error": ["odd"]}),
    ]
    first, second, last = steps_of(rows)
    assert (first.broke, second.broke) == (False, True)
    assert last.error == '["odd"]'


def test_marks_that_pile_up_are_spelled_out() -> None:
    """Vietnamese in either form stays; a tower that would strike out other lines does not."""
    for text in ("Hóa đơn điện tử ế", unicodedata.normalize("NFD", "Hóa đơn điện tử ế")):
        assert visible(text) == text
    assert visible("Z" + "\u0301" * 30) == "Z" + "\u0301" * 4 + "\\u0301" * 26


@given(STATES, STATES)
@settings(max_examples=60, deadline=None)
def test_changes_lead_from_one_state_to_the_other(one: Any, other: Any) -> None:
    """Applying them to the first state gives the second, and equal states have none."""
    state = dict(one)
    for change in changes(one, other):
        if change.kind == "removed":
            del state[change.name]
        else:
            state[change.name] = other[change.name]
    assert json.dumps(state, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert changes(one, one) == []


def test_true_is_not_one() -> None:
    """Values that Python takes for equal but JSON does not are a change, at any depth."""
    assert told_of({"a": 1}, {"a": True}) == ["changed"]
    assert told_of({"a": [1]}, {"a": [1.0]}) == ["changed"]


def told_of(one: Any, other: Any) -> list[str]:
    """Kinds of changes."""
    return [change.kind for change in changes(one, other)]


def test_large_values_are_folded_cut_and_at_last_left_out() -> None:
    """A page's weight has a bound whatever the states are."""
    found = changes({}, {f"k{n:02}": "x" * 100_000 for n in range(40)})
    shown = [change.after for change in found]
    assert all(value is not None and value.folded and value.cut for value in shown)
    assert sum(len(value.text or "") for value in shown if value) <= 600_000
    assert shown[-1] is not None
    assert shown[-1].text is None
    assert shown[-1].size == 100_002


def test_hidden_characters_are_spelled_out() -> None:
    """What cannot be seen or turns text around is visible; letters of any script stay."""
    assert visible("đ ẩ שלום \u202ex\u200b\x1b\x00\ud800\n\t") == (
        "đ ẩ שלום \\u202ex\\u200b\\x1b\\x00\\ud800\n\t"
    )


def test_the_stored_form_is_made_readable() -> None:
    """Order, whole floats and long integers; anything else stays as it is stored."""
    stored = {"b": {"$float": "1.0"}, "a": {"$int": "12345678901234567890"}, "$keys": ["a", "b"]}
    assert list(plain_form(stored).items()) == [("a", 12345678901234567890), ("b", 1.0)]
    for odd in ({"$int": "zz"}, {"$keys": ["x"], "a": 1}, {"$uuid": "0"}, {"$keys": 5}):
        assert plain_form(odd) == odd


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_pretty_takes_any_value(value: Any) -> None:
    """And leaves nothing unseen."""
    assert visible(pretty(value)) == pretty(value)


def test_text_is_shortened_to_one_line() -> None:
    """Length counts characters, the mark included."""
    assert shortened("a\n b   c", 10) == "a b c"
    assert shortened("x" * 50, 10) == "x" * 9 + "…"


def stops(nodes: str, mark: str = "done") -> list[Stop]:
    """One stop a letter."""
    return [Stop(node, mark, None) for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "folded"),
    [
        ("abc", [("abc", 1)]),
        ("aaaa", [("a", 4)]),
        ("xababab", [("x", 1), ("ab", 3)]),
        ("abcabcabcz", [("abc", 3), ("z", 1)]),
        ("abab", [("abab", 1)]),
        ("", []),
    ],
)
def test_cycles_are_folded(nodes: str, folded: list[tuple[str, int]]) -> None:
    """From three times on a stretch stands once with its number."""
    found = fold_cycles(stops(nodes))
    assert [("".join(s.node for s in part), count) for part, count in found] == folded


@given(st.text(alphabet="abc", max_size=60))
@settings(max_examples=100, deadline=None)
def test_folding_loses_nothing(nodes: str) -> None:
    """Unfolded again it is the path."""
    found = fold_cycles(stops(nodes))
    assert "".join("".join(s.node for s in part) * count for part, count in found) == nodes


def test_the_drawing_escapes_names() -> None:
    """A node's name is text in it, and no style or handler is."""
    drawn = str(draw_path([Stop('<script>"', "done", "s1"), Stop("b", "waits", None)]))
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn
    assert " style=" not in drawn
    assert draw_path([]) == ""


def test_a_long_path_has_a_bounded_drawing() -> None:
    """However many visits and nodes."""
    many = [Stop(f"node {n % 97} {n * n % 89}", "done", None) for n in range(20_000)]
    drawn = str(draw_path(many))
    assert len(drawn) < 400_000
    assert drawn.count("lane-name") == 9


@pytest.mark.parametrize(
    ("hours", "by_log", "may"),
    [(1, 1, True), (23.9, 23.9, True), (24.1, 1, False), (1, 24.1, False)],
)
def test_a_run_whose_time_is_over_offers_no_answer(hours: float, by_log: float, may: bool) -> None:
    """The page says until when an answer counts, by either clock, and takes none that would not."""
    started = time.time_ns() - int(hours * 3600e9)
    first = dt.datetime.now(dt.UTC) - dt.timedelta(hours=by_log)
    data: Any = SimpleNamespace(
        last={"ts_ns_start": started, "subject_id": "asker"},
        run=SimpleNamespace(run_id=uuid.UUID(int=7), first_at=first),
    )
    shown = pages._answering(Session(LOCAL_IDENTITY, b"k", 0.0, 0.0), data)
    assert shown["may_answer"] is may
    assert shown["until"].endswith(" UTC")
    assert ("time to answer is over" in shown["why_not"]) is not may
    data.last = {"ts_ns_start": 10**40}
    assert pages._answering(Session(LOCAL_IDENTITY, b"k", 0.0, 0.0), data)["until"] is None


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"approved": False, "expired": True, "by_issuer": EXPIRY_ISSUER}, "ran out"),
        ({"approved": False, "expired": True, "by_issuer": "https://a"}, "came too late"),
        ({"approved": False, "expired": False}, "denied"),
        ({"approved": True, "expired": False}, "approved"),
        ({"approved": True, "expired": False, "counted": False}, "did not count"),
    ],
)
def test_who_ended_a_waiting_run_is_told(said: dict[str, Any], word: str) -> None:
    """The clock is not a person who came too late."""
    link: Any = SimpleNamespace(kind="approval", body={"reason": "r", **said})
    gates = gates_of({"gate": {"kind": "approval_denied", "operation": "o"}}, [link], None)
    assert [(gate.name, gate.result) for gate in gates][1:] == [("Approval", word)]


def test_every_reason_a_decision_gives_is_known_to_the_page() -> None:
    """A gate is shown as not a known one only if it is none of ours."""
    answer: Any = SimpleNamespace(kind="approval", body={"reason": "r", "approved": True})
    for reason in get_args(Reason):
        for links in ([], [answer]):
            gates = gates_of({"gate": {"kind": reason, "operation": "o"}}, links, None)
            assert "not a known one" not in [gate.result for gate in gates], reason
            shown = ("Approval", "approved") in [(gate.name, gate.result) for gate in gates]
            assert shown == bool(links) or reason in ("persona_defer_matrix", "operation_unknown")
    odd = gates_of({"gate": {"kind": "x"}}, [], None)
    assert [gate.result for gate in odd] == ["not a known one"]


def test_a_run_that_waits_names_its_operation() -> None:
    """Its state has no gate yet; what it asks leave for has."""
    link: Any = SimpleNamespace(kind="waiting", body={})
    assert gates_of({}, [link], {"operation": "wire_transfer"})[0].detail == "wire_transfer"


def test_only_what_was_done_is_green() -> None:
    """A run that completes by being denied, blocked or asked back has done nothing."""
    for decision, rejection, tone in (
        (None, None, "good"),
        (None, "persona_unknown", ""),
        ({"routed": True}, None, "good"),
        ({"routed": False}, None, ""),
    ):
        run_: Any = SimpleNamespace(
            state="closed", outcome="run_completed", decision=decision, rejection=rejection
        )
        assert tone_of(run_) == tone
