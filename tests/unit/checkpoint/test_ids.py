"""Identifiers: what is minted, what is accepted, and in how many spellings."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import ids
from cuo_checkpoint.errors import InvalidIdentifier, TenantRequired


def test_new_ids_are_uuid7_and_ordered() -> None:
    """Ids minted later sort later, whoever compares them: bytes, text or ULID."""
    minted = [ids.new_id() for _ in range(2000)]
    assert all(i.version == 7 for i in minted)
    assert len(set(minted)) == len(minted)
    assert minted == sorted(minted)
    spelled = [ids.ulid_of(i) for i in minted]
    assert spelled == sorted(spelled)


@given(st.uuids())
def test_a_ulid_is_the_same_number(run: uuid.UUID) -> None:
    """UUID and ULID are two spellings of one value, in either case."""
    text = ids.ulid_of(run)
    assert len(text) == 26
    assert ids.run_id_from_ulid(text) == run
    assert ids.run_id_from_ulid(text.lower()) == run
    assert ids.run_id_from_ulid(str(run)) == run


@pytest.mark.parametrize("text", ["", "x", "0" * 25, "I" * 26 + "!", "8" * 26, "not a uuid at all"])
def test_other_spellings_are_refused(text: str) -> None:
    """What is neither is said to be neither."""
    with pytest.raises(InvalidIdentifier):
        ids.run_id_from_ulid(text)


@pytest.mark.parametrize("value", [None, ""])
def test_no_tenant_is_said(value: Any) -> None:
    """Missing and empty are the same: no tenant."""
    with pytest.raises(TenantRequired):
        ids.tenant_of(value)


@pytest.mark.parametrize("value", ["x", 5, b"", [], "00000000-0000-0000-0000-00000000000g"])
def test_a_malformed_tenant_is_refused(value: Any) -> None:
    """A tenant is a UUID and nothing else."""
    with pytest.raises(InvalidIdentifier):
        ids.tenant_of(value)


@given(st.uuids())
def test_a_tenant_in_any_spelling(tenant: uuid.UUID) -> None:
    """All usual spellings name one tenant."""
    for spelled in (tenant, str(tenant), str(tenant).upper(), tenant.hex, f"{{{tenant}}}"):
        assert ids.tenant_of(spelled) == tenant


@given(st.integers() | st.uuids() | st.text(min_size=1, max_size=512))
def test_thread_ids_are_text_or_refused(value: Any) -> None:
    """What is accepted is its own text, storable by PostgreSQL; nothing is silently changed."""
    try:
        text = ids.thread_id_of(value)
    except InvalidIdentifier:
        assert isinstance(value, str)
        assert "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value)
    else:
        assert text == str(value)
        assert "\x00" not in text
        text.encode()


@pytest.mark.parametrize("value", ["", True, 1.5, b"t", None, [], "x" * 513])
def test_other_thread_ids_are_refused(value: Any) -> None:
    """The error names the field and the rule."""
    with pytest.raises(InvalidIdentifier) as refused:
        ids.thread_id_of(value)
    assert refused.value.field == "thread_id"
    assert refused.value.rule


def test_the_longest_ids() -> None:
    """Limits are inclusive."""
    assert ids.thread_id_of("x" * 512)
    assert ids.namespace_of("x" * 2048)
    with pytest.raises(InvalidIdentifier):
        ids.namespace_of("x" * 2049)


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x" * 2049])
def test_checkpoint_ids_are_never_shortened(value: str) -> None:
    """An id PostgreSQL cannot hold is refused: dropping a character would name another row."""
    with pytest.raises(InvalidIdentifier):
        ids.checkpoint_id_of(value)


def test_missing_checkpoint_ids() -> None:
    """None and empty mean the newest."""
    assert ids.checkpoint_id_of(None) is None
    assert ids.checkpoint_id_of("") is None
    assert ids.checkpoint_id_of("1f0") == "1f0"


def test_run_ids_from_text() -> None:
    """A UUID is itself; other text gives the same UUID each time, another text another one."""
    run = uuid.uuid4()
    assert ids.run_id_of(run) == ids.run_id_of(str(run)) == run
    assert ids.run_id_of("job-1") == ids.run_id_of("job-1")
    assert ids.run_id_of("job-1") != ids.run_id_of("job-2")
    assert ids.run_id_of(None) is None
    assert ids.run_id_of("") is None
    with pytest.raises(InvalidIdentifier):
        ids.run_id_of("\ud800")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("4bf92f3577b34da6a3ce929d0e0e4736", True),
        ("0" * 32, False),
        ("4BF92F3577B34DA6A3CE929D0E0E4736", False),
        ("4bf92f3577b34da6a3ce929d0e0e473", False),
        ("٤bf92f3577b34da6a3ce929d0e0e4736", False),
        (None, False),
        (5, False),
    ],
)
def test_trace_ids_never_fail(value: Any, kept: bool) -> None:
    """32 lower-case hex digits that are not all zero, or nothing."""
    assert ids.trace_id_of(value) == (value if kept else None)
