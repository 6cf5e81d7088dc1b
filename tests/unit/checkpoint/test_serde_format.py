"""The stored form is a contract with rows already written: these texts must never change."""

from __future__ import annotations

import pathlib
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address
from typing import Annotated, Any, TypedDict
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.serde import Serializer, StoredError

SERDE = Serializer()
ICT = timezone(timedelta(hours=7), "ICT")

GOLDEN: list[tuple[Any, str]] = [
    ({"b": 1, "aa": 2}, '{"aa":2,"b":1}'),
    ({"aa": 1, "b": 2}, '{"$keys":["aa","b"],"aa":1,"b":2}'),
    ({"$x": 1}, '{"$$x":1}'),
    (2**53, '{"$int":"9007199254740992"}'),
    (1.0, '{"$float":"1.0"}'),
    (float("nan"), '{"$float":"nan"}'),
    ("a\x00\\", '{"$str":"a\\\\u0000\\\\\\\\"}'),
    (b"ab", '{"$bytes":"YWI="}'),
    (bytearray(b"ab"), '{"$bytearray":"YWI="}'),
    (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), '{"$datetime":"2026-01-02T03:04:00+00:00"}'),
    (
        datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC"), fold=1),
        '{"$datetime":"2026-01-02T00:00:00","$fold":1,"$tz":{"$ZoneInfo":"UTC"}}',
    ),
    (time(1, 2, tzinfo=ICT), '{"$time":"01:02:00","$tz":{"$name":"ICT","$timezone":[0,25200,0]}}'),
    (date(2026, 1, 2), '{"$date":"2026-01-02"}'),
    (timedelta(-1), '{"$timedelta":[-1,0,0]}'),
    (uuid.UUID(int=1), '{"$UUID":"00000000-0000-0000-0000-000000000001"}'),
    (Decimal("1.50"), '{"$Decimal":"1.50"}'),
    (pathlib.PurePosixPath("/a"), '{"$PurePosixPath":"/a"}'),
    (ip_address("::1"), '{"$IPv6Address":"::1"}'),
    (re.compile("a", re.IGNORECASE), '{"$Pattern":"a","$flags":34}'),
    ((1, ()), '{"$tuple":[1,{"$tuple":[]}]}'),
    ({2, 1}, '{"$set":[1,2]}'),
    (frozenset(), '{"$frozenset":[]}'),
    (deque([1], 2), '{"$deque":[1],"$maxlen":2}'),
    ({1: 2}, '{"$dict":[[1,2]]}'),
    (OrderedDict(b=1), '{"$OrderedDict":[["b",1]]}'),
    (Counter("a"), '{"$Counter":[["a",1]]}'),
    (defaultdict(list, a=[]), '{"$defaultdict":[["a",[]]],"$factory":"list"}'),
    (
        np.array([[1, 2]], "<i2"),
        '{"$dtype":"<i2","$ndarray":"AQACAA==","$order":"C","$shape":[1,2]}',
    ),
    (np.float32(1), '{"$dtype":"<f4","$numpy":"AACAPw=="}'),
    (
        ValueError("x"),
        '{"$error":"builtins:ValueError","$message":"x","$repr":"ValueError(\'x\')"}',
    ),
    (
        Interrupt(1, "i"),
        '{"$dataclass":"langgraph.types:Interrupt","id":"i","response_schema":null,"value":1}',
    ),
    (Send("n", 1), '{"$object":"langgraph.types:Send","arg":1,"node":"n","timeout":null}'),
    (
        HumanMessage("x", id="i"),
        (
            '{"$fields_set":["content","id"],"$model":"langchain_core.messages.human:HumanMessage",'
            '"additional_kwargs":{},"content":"x","id":"i","name":null,"response_metadata":{},'
            '"type":"human"}'
        ),
    ),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=[text[:40] for _, text in GOLDEN])
def test_the_stored_form_stays(value: Any, text: str) -> None:
    """Canonical text of every kind, as rows already hold it."""
    assert canonical_bytes(SERDE.encode(value)).decode() == text
    assert canonical_bytes(SERDE.encode(SERDE.loads(text))).decode() == text


def test_every_tag_is_described() -> None:
    """The page an auditor reads names each tag and annotation."""
    root = pathlib.Path(__file__).parents[3]
    page = (root / "docs" / "serialiser.md").read_text()
    for name, tag in SERDE._tags.known.items():
        version_six = name.replace("IPv6", "IPv4")
        assert name in page or version_six in page, name
        for annotation in tag.also:
            assert annotation in page, annotation


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: set[str]


def test_a_graph_runs_stops_fails_and_resumes_on_it() -> None:
    """LangGraph itself, with this serialiser in its in-memory saver: messages, sets, Send,
    interrupts, a failed task and the answer all pass through it."""
    failures = iter([True, False])

    def ask(state: State) -> Any:
        answer = interrupt({"question": ("sure?",)})
        return {"messages": [HumanMessage(answer, id="a")], "seen": {answer}}

    def work(state: Any) -> Any:
        if next(failures):
            raise ValueError("first try")
        return {"messages": [HumanMessage(state["task"], id="w")]}

    builder: Any = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("work", work)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: [Send("work", {"task": "t"})], ["work"])
    builder.add_edge("work", END)
    saver = InMemorySaver(serde=SERDE)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    first: Any = {"messages": [HumanMessage("hi", id="h")], "seen": set()}

    graph.invoke(first, config)
    assert graph.get_state(config).interrupts[0].value == {"question": ("sure?",)}
    with pytest.raises(ValueError, match="first try"):
        graph.invoke(Command(resume="yes"), config)
    stored = saver.get_tuple(config)
    assert stored is not None
    (error,) = [
        value for _, channel, value in stored.pending_writes or [] if channel == "__error__"
    ]
    assert (type(error), error) == (StoredError, "ValueError('first try')")
    result = graph.invoke(None, config)
    assert [message.content for message in result["messages"]] == ["hi", "yes", "t"]
    assert result["seen"] == {"yes"}
