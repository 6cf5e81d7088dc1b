"""Digests of stored rows, recomputed: every column counts, spelling does not."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import digests
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import content_of
from cuo_checkpoint.errors import CheckpointError, DeserialiseError

T = uuid.UUID("01a22dfd-fdfa-7463-96cd-89fa323ef23a")
AT = dt.datetime(2026, 11, 30, 23, 59, 59, 42, tzinfo=dt.timezone(dt.timedelta(hours=7)))
LOG: dict[str, Any] = {
    "checkpoint_id": T,
    "checkpoint_ns": "",
    "created_at": AT,
    "edge_from": None,
    "edge_to": None,
    "kind": "node_entered",
    "langgraph_sha256": None,
    "lg_checkpoint_id": "1f0",
    "lg_parent_id": None,
    "node_name": 'a"\x1f\x7fđ\U0001f600',
    "ordinal": 0,
    "parent_checkpoint_id": T,
    "phase": 3,
    "run_id": T,
    "seq": 7,
    "state_sha256": b"\x01" * 32,
    "step": -1,
    "tenant_id": T,
    "thread_id": "t",
    "trace_id": "0" * 32,
}
WRITE: dict[str, Any] = {
    "channel": "x",
    "checkpoint_ns": "",
    "created_at": AT,
    "idx": -3,
    "lg_checkpoint_id": "1f0",
    "run_id": T,
    "seq": 7,
    "task_id": "task",
    "task_path": "",
    "tenant_id": T,
    "thread_id": "t",
    "value_sha256": b"\x02" * 32,
}
TOMBSTONE: dict[str, Any] = {
    "created_at": AT,
    "hidden_run_id": None,
    "kind": "prune",
    "run_id": T,
    "tenant_id": T,
    "thread_id": "t",
    "tombstone_id": T,
    "up_to_seq": 9,
}
OTHER: dict[type, Any] = {
    uuid.UUID: uuid.UUID(int=0),
    dt.datetime: AT + dt.timedelta(microseconds=1),
    int: 1234,
    str: "another",
    bytes: b"\x09" * 32,
    type(None): "no longer null",
}


def test_a_log_row_is_digested_over_the_canonical_text_of_its_columns() -> None:
    """The preimage is RFC 8785 text in which times are UTC and documents are digests."""
    preimage = (
        f'{{"checkpoint_id":"{T}","checkpoint_ns":"","created_at":"2026-11-30T16:59:59.000042Z",'
        f'"edge_from":null,"edge_to":null,"kind":"node_entered","langgraph_sha256":null,'
        f'"lg_checkpoint_id":"1f0","lg_parent_id":null,'
        f'"node_name":"a\\"\\u001f\x7fđ\U0001f600","ordinal":0,"parent_checkpoint_id":"{T}",'
        f'"phase":3,"run_id":"{T}","seq":7,"state_sha256":"{"01" * 32}","step":-1,'
        f'"tenant_id":"{T}","thread_id":"t","trace_id":"{"0" * 32}"}}'
    )
    assert digests.log_row_sha256(LOG) == hashlib.sha256(preimage.encode()).digest()


@pytest.mark.parametrize(
    ("digest", "row"),
    [
        (digests.log_row_sha256, LOG),
        (digests.write_row_sha256, WRITE),
        (digests.tombstone_row_sha256, TOMBSTONE),
    ],
    ids=["log", "write", "tombstone"],
)
def test_every_column_counts(digest: Callable[[Mapping[str, Any]], bytes], row: Any) -> None:
    """A change in any one column gives another digest."""
    seen = {digest(row)}
    for name, value in row.items():
        seen.add(digest({**row, name: OTHER[type(value)]}))
    assert len(seen) == 1 + len(row)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(tree=JSON)
def test_a_documents_digest_ignores_spelling(tree: Any) -> None:
    """Key order, white space and escapes do not enter a document's digest; content does."""

    def backwards(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: backwards(node[key]) for key in sorted(node, reverse=True)}
        return [backwards(item) for item in node] if isinstance(node, list) else node

    plain = digests.document_sha256(json.dumps(tree))
    assert plain == digests.document_sha256(
        json.dumps(backwards(tree), indent=1, ensure_ascii=True)
    )
    assert plain != digests.document_sha256(json.dumps([tree]))


def test_a_document_that_is_not_json_is_an_error() -> None:
    """Text that is no JSON cannot pass for a document."""
    with pytest.raises(DeserialiseError):
        digests.document_sha256("{")


def test_a_write_set_covers_its_rows_in_order() -> None:
    """Rows exchanged, lost or added give another digest."""
    a, b = b"\x01" * 32, b"\x02" * 32
    assert len({digests.write_set_sha256(s) for s in ([a, b], [b, a], [a], [a, b, b], [])}) == 5


@pytest.mark.parametrize(
    ("text", "holder"),
    [
        (f'{{"$state_of": "{T}"}}', T),
        (f'{{"$state_of": "{T}", "x": 1}}', None),
        ('{"$state_of": "elsewhere"}', None),
        ('{"x": "$state_of"}', None),
        ("[]", None),
    ],
)
def test_only_an_exact_reference_is_one(text: str, holder: uuid.UUID | None) -> None:
    """A state that merely mentions the key is a state."""
    assert digests.shared_with(text) == holder


def chain_row(body: str, kind: str = "open", trace: str = "0" * 32) -> Any:
    """What `digests.chain_row` makes of these columns."""
    row = {"body": body, "chain_seq": 3, "created_at": AT, "kind": kind, "trace_id": trace}
    return digests.chain_row(str(T), str(T), row)


@given(
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.floats() | st.text()),
    st.text() | st.sampled_from(["open", "cuo.checkpoint_written"]),
)
def test_a_chain_row_told_by_its_columns_is_what_a_parser_reads(body: Any, kind: str) -> None:
    """Never other bytes than the canonical form of what it says, whatever the columns hold."""
    try:
        text = canonical_bytes(body).decode()
    except CheckpointError:
        text = json.dumps(body)
    told = chain_row(text, kind)
    if told is not None:
        content, data = told
        assert data == canonical_bytes(content)
        assert content_of(data) == content


@pytest.mark.parametrize(
    ("body", "kind", "trace"),
    [
        ('{"n":1.0}', "open", "0"),
        ('{"b":1,"a":2}', "open", "0"),
        ('{"a": 1}', "open", "0"),
        ('{"a":1,"a":1}', "open", "0"),
        ('{"a":9007199254740993}', "open", "0"),
        ("[1]", "open", "0"),
        ("{}", 'open","run_id":"x', "0"),
        ("{}", "open", 'x","v":1,"w":"'),
        ('{},"kind":"x"', "open", "0"),
        ("{", "open", "0"),
    ],
)
def test_a_chain_row_that_may_mean_something_else_is_left_to_the_parser(
    body: str, kind: str, trace: str
) -> None:
    """Columns that could be put together to the bytes of another row are not put together."""
    assert chain_row(body, kind, trace) is None
