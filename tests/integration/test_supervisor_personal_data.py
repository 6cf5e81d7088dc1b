"""Personal data: where the original may be, and that it is nowhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit
from telemetry_signals import Signals

from cuo_supervisor.errors import (
    PersonaUnknown,
)
from cuo_supervisor.supervisor import Answer, Supervisor
from cuo_supervisor.telemetry import SPAN_ROUTE


@pytest.fixture
def made(shared_place: Any, tmp_path: Path) -> Callable[..., Supervisor]:
    """Makes supervisors on the shared database, all with one ledger of skill runs."""

    def make(**options: Any) -> Supervisor:
        return kit.make(shared_place.app, ledger=tmp_path / "ledger", **options)

    return make


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals().listening() as made:
        yield made


PLANTED = {
    "email": "nguyen.van.an@example.vn",
    "phone": "0912345678",
    "mst": "0301479079",
    "token": "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789",
}


@pytest.mark.clause("101-24")
@pytest.mark.criterion("101-AC19")
@pytest.mark.parametrize("path", ["auto", "cascade", "ask", "persona", "approval"])
async def test_personal_data_stays_in_state_and_writes(
    made: Any,
    lens: Any,
    shared_place: Any,
    tenant_id: str,
    path: str,
    signals: Signals,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every durable byte outside the state is free of what was planted in query, answer, reason, and
    so are labels and spans, but for the request's own span, which has its text whole."""
    tail = (
        f" email {PLANTED['email']} phone {PLANTED['phone']} MST {PLANTED['mst']} key"
        f" {PLANTED['token']}"
    )
    said = kit.DUNNING.replace("unpaid contract", "write to" + tail)
    queries = {
        "auto": f"validate MST {PLANTED['mst']}",
        "cascade": kit.CASCADE + tail,
        "ask": "send invoice" + tail,
        "persona": kit.AUTO + tail,
        "approval": kit.DESTRUCTIVE + tail,
    }
    persona = "cmo" if path == "approval" else "genie"
    named = PLANTED["email"] if path == "persona" else persona
    caplog.set_level("DEBUG")
    async with made(model=kit.Reciter(said), telemetry=signals.telemetry) as supervisor:
        try:
            decision = await supervisor.route(
                queries[path],
                persona_key=named,
                identity=kit.identity(tenant_id, persona=persona, local=path == "persona"),
            )
        except PersonaUnknown:
            decision = None
        if decision is not None and decision.reason == "approval_required":
            await supervisor.resume(
                kit.run_of(decision),
                Answer(True, "asked" + tail),
                identity=kit.identity(tenant_id, "subject-2", approver=True),
            )
    asked = [span for span in signals.spans if "query" in (span.attributes or {})]
    assert [(span.name, span.attributes and span.attributes["query"]) for span in asked] == [
        (SPAN_ROUTE, queries[path])
    ]
    told = [
        f"{span.name} {span.attributes} {span.events} {span.status.description}"
        for span in signals.spans
        if span not in asked
    ]
    assert len(told) >= (1 if path == "persona" else 4)
    for text in (*told, *map(str, signals.labels())):
        assert not any(secret in text for secret in PLANTED.values()), text
    kept = everything(shared_place.admin, tenant_id)
    original = "\n".join(kept.pop(("cuo_langgraph_checkpoints", "state_json")))
    original += "\n".join(kept.pop(("cuo_langgraph_writes", "value")))
    assert PLANTED["mst"] in original, "the state keeps the original, for replay"
    # LangGraph's document of a run's first row holds the input: the state nobody has taken up yet.
    documents = kept["cuo_langgraph_checkpoints", "langgraph"]
    kept["cuo_langgraph_checkpoints", "langgraph"] = [
        d for d in documents if '"source": "input"' not in d
    ]
    assert len(kept["cuo_langgraph_checkpoints", "langgraph"]) == len(documents) - 1
    for place, texts in kept.items():
        for text in texts:
            for kind, secret in PLANTED.items():
                assert secret not in text, f"{kind} in {place}"
    output = capfd.readouterr()
    for text in (caplog.text, output.out, output.err):
        assert not any(secret in text for secret in PLANTED.values())


def everything(dsn: str, tenant_id: str) -> dict[tuple[str, str], list[str]]:
    """Every column of every row of the tenant, as text, bytes decoded."""
    found: dict[tuple[str, str], list[str]] = {}
    with psycopg.connect(dsn) as conn:
        tables = conn.execute(
            "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public'"
            " AND column_name = 'tenant_id' AND table_name IN (SELECT relname FROM pg_class"
            " WHERE relkind IN ('r', 'p') AND NOT relispartition)"
        ).fetchall()
        assert len(tables) >= 5
        for (table,) in tables:
            cursor = conn.execute(f"SELECT * FROM {table} WHERE tenant_id = %s", (tenant_id,))
            names = [column.name for column in cursor.description or ()]
            for row in cursor:
                for name, value in zip(names, row, strict=True):
                    if isinstance(value, memoryview | bytes):
                        text = bytes(value).decode("utf-8", "replace")
                    else:
                        text = json.dumps(value, ensure_ascii=False, default=str)
                    found.setdefault((table, name), []).append(text)
    return found
