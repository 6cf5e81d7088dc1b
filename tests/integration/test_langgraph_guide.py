"""docs/langgraph.md says what is so: its code runs, and its commands have the options it shows."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any, TypedDict

from click.testing import CliRunner
from langgraph.graph import END, START, StateGraph

from cuo_checkpoint.errors import UnserialisableValue
from cuo_supervisor.cli.import_cmd import import_langgraph

GUIDE = (Path(__file__).parents[2] / "docs" / "langgraph.md").read_text()


class State(TypedDict, total=False):
    text: str
    invoice: Any


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_every_block_of_code_runs_in_order(shared_place: Any) -> None:
    """In one namespace, as a reader would type them."""
    builder = StateGraph(State).add_node("say", lambda s: {"text": s["text"] + "!"})
    builder.add_edge(START, "say").add_edge("say", END)
    said: list[Any] = []
    names: dict[str, Any] = {
        "__name__": "guide",
        "builder": builder,
        "conninfo": shared_place.app,
        "tenant": str(uuid.uuid4()),
        "other_tenant": str(uuid.uuid4()),
        "print": lambda *words: said.append(words),
    }
    # Its class has to be findable by name, as one in a user's module is.
    module = type(uuid)("guide")
    import sys

    sys.modules["guide"] = module
    try:
        module.__dict__.update(names)
        for block in blocks("python"):
            exec(compile(block, "docs/langgraph.md", "exec"), module.__dict__)
        assert module.graph.name == "LangGraph"
        assert asyncio.run(module.main()) == {"text": "hello!"}
    finally:
        del sys.modules["guide"]
    assert said == [("no tenant, no rows",), ("hidden.__start__.invoice", "guide.Invoice")]
    assert module.kinds[0] == "run_started"
    assert module.kinds[-1] == "run_completed"
    assert issubclass(UnserialisableValue, Exception)


def test_the_opening_is_five_lines() -> None:
    """As promised, blank ones not counted."""
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 5


def test_the_commands_have_the_options_it_shows() -> None:
    """Every --option of a shown command is one."""
    text = CliRunner().invoke(import_langgraph, ["--help"]).output
    shown = set(re.findall(r"--[a-z-]+", "".join(blocks("console"))))
    assert {"--from", "--dry-run", "--allow"} <= shown
    assert all(option in text for option in shown)
    assert "--keep-metadata" in text
