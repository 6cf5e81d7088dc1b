"""Killing the process that writes, at every point between two acts, and going on in another (D4.10)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "doubles" / "crashing_graph.py"

WHOLE = {
    shape: text.split()
    for shape, text in {
        "linear": "started __start__->a >a <a a->b >b <b b->c >c <c c->d >d <d d->__end__ done",
        "fan": "started __start__->a >a <a a->b a->c >b >c <b <c b->d c->d >d <d d->__end__ done",
        "asks": "started __start__->a >a <a a->ask >ask >ask <ask ask->b >b <b b->__end__ done",
    }.items()
}

POINTS = [
    *(f"{when}:{name}" for name in "abcd" for when in ("before", "after")),
    *(f"put:{n}{when}" for n in range(1, 6) for when in ("-", "")),
    *(f"put_writes:{n}{when}" for n in range(1, 5) for when in ("-", "")),
]
FEW = ["after:b", "put:1", "put:3", "put:3-", "put_writes:3", "put_writes:3-"]


@pytest.fixture(scope="module")
def brood() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything and forks one for each job."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def act(
    brood: subprocess.Popen[str], shared_place: Any, tenant_id: str, tmp_path: Path
) -> Callable[..., Any]:
    """Runs the graph in a process of its own, to its end or its death."""
    run = str(uuid.uuid4())

    def go(shape: str, what: str, *, die: str | None = None, **how: str) -> Any:
        options = {
            "dsn": f"{shared_place.app}&application_name=crash-{tenant_id}",
            "tenant": tenant_id,
            "thread": "t",
            "run": run,
            "shape": shape,
            "what": what,
            "die": die,
            "colour": "sync",
            "durability": "sync",
            "effects": str(tmp_path / "effects"),
        }
        assert brood.stdin is not None
        assert brood.stdout is not None
        brood.stdin.write(json.dumps(options | how) + "\n")
        brood.stdin.flush()
        answer = json.loads(brood.stdout.readline())
        quiet(shared_place.admin, f"crash-{tenant_id}")
        return answer

    return go


def quiet(admin: str, name: str) -> None:
    """Waits until the dead process's backends have finished what they were sent, and gone."""
    with psycopg.connect(admin, autocommit=True) as conn:
        for _ in range(400):
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            if conn.execute(query, [name]).fetchone() == (0,):
                return
            conn.execute("SELECT pg_sleep(0.02)")
    pytest.fail("backends of a dead process live on")


def effects(folder: Path) -> Counter[str]:
    """Which effects happened, and how often."""
    file = folder / "effects"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def survives(
    act: Callable[..., Any], lens: Any, folder: Path, shape: str, point: str, **how: str
) -> None:
    """Dies at the point, goes on, and is as if it had not died."""
    died = act(shape, "start", die=point, **how)
    assert died["signal"] == signal.SIGKILL, f"{point} was never reached: {died}"
    lens.prove()
    # A run of which nothing is stored was never accepted: whoever asked asks again.
    done = act(shape, "continue" if lens.rows() else "start", **how)
    assert done["error"] is None
    assert done["seen"] == list("abcd")
    assert sorted(lens.events()) == sorted(WHOLE[shape])
    assert lens.events()[-1] == "done"
    assert lens.events()[0] == "started"
    assert len({row["run_id"] for row in lens.rows()}) == 1
    assert effects(folder) <= Counter("abcd"), "an effect happened twice"


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    act: Callable[..., Any], lens: Any, tmp_path: Path, point: str
) -> None:
    """Same rows as an uninterrupted run, one run id, each effect at most once."""
    survives(act, lens, tmp_path, "linear", point)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("colour", "durability"), [("sync", "async"), ("async", "sync")], ids=["blocking", "awaiting"]
)
@pytest.mark.parametrize("point", FEW)
def test_a_killed_fan_out_goes_on(
    act: Callable[..., Any], lens: Any, tmp_path: Path, point: str, colour: str, durability: str
) -> None:
    """Parallel nodes, blocking and awaiting, stored at once or in the background."""
    survives(act, lens, tmp_path, "fan", point, colour=colour, durability=durability)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["before:ask", "put_writes:2-", "put_writes:2", "put_writes:3", "after:ask", "put:3"]
)
def test_a_run_that_waits_survives(
    act: Callable[..., Any], lens: Any, tmp_path: Path, point: str
) -> None:
    """Killed before, at and after the question, or after the answer: it is asked and answered once."""
    if not act("asks", "start", die=point)["signal"]:
        assert act("asks", "answer", die=point)["signal"] == signal.SIGKILL, point
    lens.prove()
    if not act("asks", "continue")["seen"][2:]:
        assert act("asks", "answer")["error"] is None
    events = lens.events()
    assert [e for e in events if e != ">ask"] == [e for e in WHOLE["asks"] if e != ">ask"]
    assert effects(tmp_path) <= Counter(["a", "ask", "b"])
    assert len({row["run_id"] for row in lens.rows()}) == 1


def test_the_uninterrupted_run(act: Callable[..., Any], lens: Any, tmp_path: Path) -> None:
    """The program itself does what the others are compared with."""
    assert act("linear", "start") == {"signal": 0, "seen": list("abcd"), "error": None}
    assert lens.events() == WHOLE["linear"]
    assert effects(tmp_path) == Counter("abcd")


def test_a_statement_that_is_cut_short_leaves_nothing(
    shared_place: Any, tenant_id: str, make_store: Any, lens: Any
) -> None:
    """A backend killed inside the one statement of a put has stored all of it or none of it."""
    store = make_store(f"{shared_place.app}&application_name=cut-{tenant_id}", max_connections=1)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    store.put(config, empty_checkpoint(), {}, {})
    with (
        psycopg.connect(shared_place.admin) as holder,
        psycopg.connect(shared_place.admin, autocommit=True) as admin,
    ):
        holder.execute("SELECT FROM cuo_threads WHERE tenant_id = %s FOR UPDATE", [tenant_id])
        writer = threading.Thread(
            target=lambda: store.put(config, empty_checkpoint(), {"source": "loop"}, {})
        )
        writer.start()
        killed = 0
        for _ in range(200):
            row = admin.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name = %s AND wait_event_type = 'Lock'",
                [f"cut-{tenant_id}"],
            ).fetchone()
            assert row is not None
            killed += row[0]
            if killed:
                break
            admin.execute("SELECT pg_sleep(0.05)")
        assert killed
        assert len(lens.rows()) == 1
        holder.rollback()
        writer.join(60)
    assert not writer.is_alive()
    assert len(lens.rows()) == 2
