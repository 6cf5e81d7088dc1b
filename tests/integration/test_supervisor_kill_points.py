"""kill -9 at every point of a run, then `continue` in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit

ZYGOTE = Path(__file__).parents[1] / "doubles" / "zygote.py"
Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(ZYGOTE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def run(zygote: subprocess.Popen[str], shared_place: Any, tenant_id: str, tmp_path: Path) -> Run:
    """Does one thing in a process of its own."""

    def do(what: str, run_id: uuid.UUID, **options: Any) -> dict[str, Any]:
        job = {
            "do": what,
            "run_id": str(run_id),
            "dsn": shared_place.app,
            "tenant": tenant_id,
            "ledger": str(tmp_path / f"ledger-{run_id}"),
            **options,
        }
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdin.write(json.dumps(job) + "\n")
        zygote.stdin.flush()
        answer: dict[str, Any] = json.loads(zygote.stdout.readline())
        return answer

    return do


def ran(tmp_path: Path, run_id: uuid.UUID) -> int:
    return kit.CountingRunner(tmp_path / f"ledger-{run_id}").runs()


def is_subsequence(words: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(word in rest for word in words)


def decisions(lens: Any, run_id: uuid.UUID) -> list[dict[str, Any]]:
    rows = lens.audit("cuo.routing_decision")
    return [json.loads(row["body"]) for row in rows if row["run_id"] == run_id]


def explain(problems: list[str]) -> None:
    assert not problems, "\n".join(problems)


@pytest.mark.clause("102-9")
@pytest.mark.slow
@pytest.mark.clause("101-8", "101-12", "102-6")
@pytest.mark.parametrize(
    ("query", "path"), [(kit.CASCADE, "cascade_then_auto"), ("send invoice", "ask")]
)
def test_a_run_killed_anywhere_is_completed_by_continue(
    run: Run, lens: Any, tmp_path: Path, query: str, path: str, swept: Callable[[int], list[int]]
) -> None:
    """Whatever was stored counts once; the skill runs at most once; one decision is recorded."""
    whole_id = uuid.uuid4()
    whole = run("route", whole_id, query=query)
    assert whole["error"] is None
    assert whole["result"]["path_taken"] == path
    wanted = Counter(lens.events(str(whole_id)))
    problems: list[str] = []
    for n, name in ((i + 1, whole["points"][i]) for i in swept(len(whole["points"]))):
        run_id = uuid.uuid4()
        killed = run("route", run_id, query=query, die_at=n)
        assert killed["signal"] == 9
        after = run("continue", run_id)
        where = f"killed at {n} ({name}):"
        if after["error"] == "invalid_data" and not lens.events(str(run_id)):
            continue  # killed before its first row: there is nothing to continue
        if after["error"] is not None:
            problems.append(f"{where} continue failed: {after['error']}")
            continue
        result = after["result"]
        unknown = result["reason"] == "invocation_unknown"
        events = Counter(lens.events(str(run_id)))
        if events != wanted:
            problems.append(
                f"{where} missing {dict(wanted - events)}, doubled {dict(events - wanted)}"
            )
        if len(decisions(lens, run_id)) != 1:
            problems.append(f"{where} {len(decisions(lens, run_id))} decision rows")
        count = ran(tmp_path, run_id)
        if count > 1 or (count == 0 and path != "ask" and not unknown):
            problems.append(f"{where} the skill ran {count} times, unknown={unknown}")
        if name == "skill:effect" and not unknown:
            problems.append(f"{where} the effect's fate is unknown, which was not said")
        if result["path_taken"] != path:
            problems.append(f"{where} path {result['path_taken']}")
    explain(problems)


@pytest.mark.slow
@pytest.mark.clause("101-7", "101-8")
@pytest.mark.criterion("101-AC12")
@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_an_answer_killed_anywhere_still_counts_once(
    run: Run, lens: Any, tmp_path: Path, verdict: str, swept: Callable[[int], list[int]]
) -> None:
    """An approver's process dies: the answer is lost whole (ask again) or kept whole (continue)."""
    ask = {"query": kit.DESTRUCTIVE, "persona": "cmo", "local": True}
    whole_id = uuid.uuid4()
    assert run("route", whole_id, **ask)["result"]["reason"] == "approval_required"
    whole = run(verdict, whole_id, local=True)
    assert whole["error"] is None
    wanted = Counter(lens.events(str(whole_id)))
    problems: list[str] = []
    for n, name in ((i + 1, whole["points"][i]) for i in swept(len(whole["points"]))):
        run_id = uuid.uuid4()
        run("route", run_id, **ask)
        killed = run(verdict, run_id, local=True, die_at=n)
        assert killed["signal"] == 9
        where = f"killed at {n} ({name}):"
        after = run("continue", run_id, local=True)
        if after["error"] == "invalid_data":
            # It still waits, so the answer never was; give it again.
            after = run(verdict, run_id, local=True)
        if after["error"] is not None:
            problems.append(f"{where} cannot be carried on: {after['error']}")
            continue
        events = Counter(lens.events(str(run_id)))
        if events != wanted:
            problems.append(
                f"{where} missing {dict(wanted - events)}, doubled {dict(events - wanted)}"
            )
        rows = decisions(lens, run_id)
        if len(rows) != 1 or rows[0]["approval"]["approved"] is not (verdict == "approve"):
            problems.append(f"{where} decision rows {[r['approval'] for r in rows]}")
        count = ran(tmp_path, run_id)
        unknown = after["result"]["reason"] == "invocation_unknown"
        if count > 1 or (count == 0) != (verdict == "deny" or (unknown and count == 0)):
            problems.append(f"{where} the skill ran {count} times, unknown={unknown}")
        if run(verdict, run_id, local=True)["error"] != "invalid_data":
            problems.append(f"{where} a second answer was taken")
    explain(problems)
