"""Rows as JSON: kinds, cap, canonical text, digests."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from psycopg import adapters
from psycopg.adapt import Transformer
from psycopg.pq import Format

from cuo_checkpoint import ids, records
from cuo_checkpoint.appending import _text_array
from cuo_checkpoint.canonical import MAX_SAFE_INTEGER, canonical_bytes
from cuo_checkpoint.errors import StateTooLarge, UnserialisableValue
from cuo_checkpoint.records import MAX_STATE_BYTES, CheckpointKind, Event, Phase, WriteSet
from cuo_checkpoint.serde import Serializer, text_to_tree

SERDE = Serializer()


def test_closed_sets() -> None:
    """Six kinds of row, three of audit, nine by which a chain speaks of itself."""
    assert [len(e) for e in (CheckpointKind, records.AuditKind, records.ChainKind)] == [6, 3, 9]


def test_phases_are_causal() -> None:
    """Inside a step: started, completed, edges, entered, during, ended."""
    order = [Phase.STARTED, Phase.COMPLETED, Phase.EDGE, Phase.ENTERED, Phase.DURING, Phase.ENDED]
    assert order == sorted(order)
    assert len(set(order)) == 6


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=5))
def test_text_and_digest_are_of_the_same_bytes(state: dict[str, Any]) -> None:
    """What is stored is canonical, and the digest is of exactly that."""
    made = records.encode_state(SERDE, state)
    assert hashlib.sha256(made.text.encode()).hexdigest() == made.sha256
    assert canonical_bytes(json.loads(made.text)) == made.text.encode()
    assert made.size == len(made.text.encode())


def test_the_cap_is_inclusive_and_in_bytes() -> None:
    """5 MB encoded pass, one byte more does not; letters of two bytes count as two."""
    room = MAX_STATE_BYTES - len('{"x":""}')
    assert records.encode_state(SERDE, {"x": "a" * room}).size == MAX_STATE_BYTES
    with pytest.raises(StateTooLarge):
        records.encode_state(SERDE, {"x": "a" * (room + 1)})
    with pytest.raises(StateTooLarge):
        records.encode_state(SERDE, {"x": "é" * (room // 2 + 1)})


def test_the_largest_channels_are_named() -> None:
    """Three at most, largest first, with their bytes."""
    with pytest.raises(StateTooLarge) as refused:
        records.encode_state(
            SERDE, {n: "x" * size for n, size in zip("abcd", (1, 3_000_000, 2_000_000, 1_000_000), strict=True)}
        )  # fmt: skip
    assert refused.value.largest == [("b", 3_000_002), ("c", 2_000_002), ("d", 1_000_002)]
    assert refused.value.cap == MAX_STATE_BYTES


def test_one_write_has_the_same_cap() -> None:
    """A single pending write is held to it and named."""
    with pytest.raises(StateTooLarge) as refused:
        records.encode_value(SERDE, "x" * MAX_STATE_BYTES, path="channel")
    assert refused.value.largest[0][0] == "channel"


def test_errors_name_the_thread_when_told() -> None:
    """Path, type and thread are attributes and in the message."""
    with pytest.raises(UnserialisableValue) as refused:
        records.encode_state(SERDE, {"a": [{"b": object()}]})
    named = refused.value.in_thread("t-1")
    assert (named.path, named.thread_id) == ("a[0].b", "t-1")
    assert "t-1" in str(named)
    assert "a[0].b" in str(named)


def test_state_and_langgraphs_own_channels_part() -> None:
    """The state is what a node sees."""
    state, hidden = records.split_channels(
        {"x": 1, "branch:to:a": 2, "__start__": 3, "join:a:b": 4}
    )
    assert state == {"x": 1}
    assert set(hidden) == {"branch:to:a", "__start__", "join:a:b"}


@given(st.text(max_size=20), st.text(max_size=20))
def test_rows_are_one_json_array(node: str, edge: str) -> None:
    """Whatever names hold, the rows parse back to what they say, the first with the checkpoint.

    A name that PostgreSQL cannot hold is refused as such.
    """
    events = [
        Event(ids.new_id(), CheckpointKind.NODE_ENTERED, None, 1, Phase.ENTERED, 0, node=node),
        Event(
            ids.new_id(), CheckpointKind.EDGE_TRAVERSED, None, None, Phase.EDGE, 1,
            edge_from=node, edge_to=edge, extra={"also": [edge]},
        ),
    ]  # fmt: skip
    if any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in node + edge):
        with pytest.raises(UnserialisableValue):
            records.rows_json(events, None)
        return
    rows = json.loads(records.rows_json(events, records.encode_tree({"channel_versions": {}})))
    assert [r["id"] for r in rows] == [str(e.id) for e in events]
    assert rows[0]["node"] == node
    assert rows[0]["lg"] == {"channel_versions": {}}
    assert (rows[1]["from"], rows[1]["to"], rows[1]["lg"]) == (node, edge, {"also": [edge]})
    for row in rows:
        assert row["lg_sha"] == hashlib.sha256(canonical_bytes(row["lg"])).hexdigest()


class Named(StrEnum):
    """A text that is not exactly a `str`."""

    NODE = "node"


@pytest.mark.parametrize("name", [Named.NODE, "a\x00b", "\ud800", '\\u0000"\x00'])
def test_a_name_jsonb_would_refuse_or_alter_is_refused(name: str) -> None:
    """In a row and in a write alike; a backslash before u0000 is text like any other."""
    event = Event(ids.new_id(), CheckpointKind.NODE_ENTERED, None, 1, Phase.ENTERED, 0, node=name)
    with pytest.raises(UnserialisableValue):
        records.rows_json([event], None)
    with pytest.raises(UnserialisableValue):
        records.write_sets_json([WriteSet("c", "t", "p", [(0, name, records.encode_tree(1))])])
    event.node = "\\u0000"
    assert json.loads(records.rows_json([event], None))[0]["node"] == "\\u0000"


def test_a_number_json_cannot_hold_is_an_error() -> None:
    """Never a row without it."""
    event = Event(ids.new_id(), CheckpointKind.NODE_ENTERED, None, 2**64, Phase.ENTERED, 0)
    with pytest.raises(TypeError):
        records.rows_json([event], None)


@given(
    st.dictionaries(st.text(max_size=6), st.integers(-(2**60), 2**60), max_size=6),
    st.dictionaries(st.text(max_size=6), st.none() | st.floats() | st.text(max_size=6), max_size=4),
    st.integers(-(2**60), 2**60),
)
def test_what_langgraph_needs_is_stored_in_canonical_form(
    versions: dict[str, int], metadata: dict[str, Any], v: int
) -> None:
    """The text is the RFC 8785 form of its tree, which reads back to the same values."""
    checkpoint = {
        "v": v,
        "id": "1f0",
        "ts": "now",
        "channel_versions": versions,
        "versions_seen": {"node": versions, "__input__": {}},
        "updated_channels": sorted(versions),
    }
    if any("\ud800" <= c <= "\udfff" or c == "\x00" for key in [*versions, *metadata] for c in key):
        versions = metadata = checkpoint["channel_versions"] = checkpoint["versions_seen"] = {}
        checkpoint["updated_channels"] = None
    if abs(v) > MAX_SAFE_INTEGER:
        with pytest.raises(UnserialisableValue):
            records.encode_langgraph(SERDE, checkpoint, metadata, {})
        return
    made = records.encode_langgraph(SERDE, checkpoint, metadata, {"__start__": {"b": 1, "a": ()}})
    tree = text_to_tree(made.text)
    assert isinstance(tree, dict)
    assert made.text.encode() == canonical_bytes(tree) == rfc8785.dumps(tree)
    assert made.sha256 == hashlib.sha256(made.text.encode()).hexdigest()
    assert SERDE.decode(tree["channel_versions"]) == versions
    assert SERDE.decode(tree["hidden"]) == {"__start__": {"b": 1, "a": ()}}
    assert repr(SERDE.decode(tree["metadata"])) == repr(metadata)
    assert (tree["v"], tree["id"], tree["ts"]) == (v, "1f0", "now")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), max_size=5))
def test_an_array_of_texts_reads_back(items: list[str]) -> None:
    """As the driver reads PostgreSQL's own arrays."""
    loader = Transformer().get_loader(adapters.types["text"].array_oid, Format.TEXT)
    assert loader.load(_text_array(items).encode()) == items


def test_write_sets_are_one_json_array() -> None:
    """A task's writes with their digests."""
    value = records.encode_value(SERDE, {"q": 'a"b'})
    made = json.loads(records.write_sets_json([WriteSet("c1", "t1", "p", [(0, "x", value)])]))
    assert made == [
        {
            "lg": "c1",
            "task": "t1",
            "path": "p",
            "writes": [{"idx": 0, "channel": "x", "sha": value.sha256, "value": {"q": 'a"b'}}],
        }
    ]
