"""The serialiser through a real jsonb column."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import string
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langgraph.types import Send

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.serde import Serializer, text_to_tree, tree_to_text

SERDE = Serializer()
Reprint = Callable[[str], str]


@pytest.fixture(scope="module")
def reprint(cluster: Any) -> Iterator[Reprint]:
    """What PostgreSQL gives back for a text stored as jsonb."""
    with psycopg.connect(cluster.admin, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE box (v jsonb)")

        def through(text: str) -> str:
            connection.execute("TRUNCATE box")
            connection.execute("INSERT INTO box VALUES (%s::jsonb)", (text,))
            row = connection.execute("SELECT v::text FROM box").fetchone()
            assert row is not None
            return str(row[0])

        yield through


VALUES: list[Any] = [
    {"bb": 1, "a": 2, "é": 3, "z": {"b": 1, "a": [{"y": 1, "x": 2}]}},
    {"": 0, "$": 1, "$$a": 2, "$keys": ["x"], "a b": 3, "😀": 4, "\ue000": 5},
    [0.1, 1e-5, 123456789.125, 4503599627370495.5, -0.30000000000000004],
    [1.0, -0.0, 1e21, 1.5e300, 5e-324, 1.7976931348623157e308, math.inf],
    [2**53 - 1, 2**53, -(2**70), 10**700],
    ["a\x00b", "\ud83d", "\\u0000", "\u2028\x7f\x1f", "Số hoá đơn 😀"],
    {"\x00": 1, "\ud83d": 2},
    {1: "a", (2, "x"): {b"k": {1, 2}}, None: deque([1], 3)},
    OrderedDict(b=Decimal("1.10"), a=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    [AIMessage("x", tool_calls=[{"name": "f", "args": {"q": 1.0}, "id": "1"}]), Send("n", {})],
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_values_and_hashes_survive(reprint: Reprint, number: int) -> None:
    """The same value comes back, key order included, and the same canonical bytes."""
    value = VALUES[number]
    tree = SERDE.encode(value)
    stored = reprint(tree_to_text(tree))
    assert canonical_bytes(text_to_tree(stored)) == canonical_bytes(tree)
    assert repr(SERDE.loads(stored)) == repr(value)
    assert SERDE.dumps(SERDE.loads(stored)) == tree_to_text(tree)


def test_random_states_survive(reprint: Reprint) -> None:
    """Five hundred trees of random names, numbers and text, with a fixed seed."""
    rng = random.Random(8785)
    letters = string.ascii_letters[:6] + "$\x00é😀\ud800\ue000\\ "

    def text() -> str:
        return "".join(rng.choices(letters, k=rng.randrange(5)))

    def number() -> float:
        return rng.choice(
            [1.0, rng.random(), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-320, 308)]
        )

    def value(depth: int) -> Any:
        kind = rng.randrange(8 if depth < 4 else 4)
        if kind == 0:
            return text()
        if kind == 1:
            return number()
        if kind == 2:
            return rng.choice([None, True, rng.randrange(-5, 5), rng.getrandbits(80)])
        if kind == 3:
            return (text(), number())
        if kind == 4:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {text(): value(depth + 1) for _ in range(rng.randrange(6))}

    states = [value(0) for _ in range(500)]
    for state in states:
        document = reprint(SERDE.dumps(state))
        assert canonical_bytes(text_to_tree(document)) == canonical_bytes(SERDE.encode(state))
        assert repr(SERDE.loads(document)) == repr(state)


def test_the_database_finds_what_a_filter_names(reprint: Reprint) -> None:
    """Containment works on the encoded form: ordinary metadata stand there as they are."""
    document = reprint(SERDE.dumps({"source": "loop", "step": 3, "writes": None}))
    assert json.loads(document) == {
        "source": "loop",
        "step": 3,
        "writes": None,
        "$keys": ["source", "step", "writes"],
    }
