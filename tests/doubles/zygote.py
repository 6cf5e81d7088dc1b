"""Processes by the dozen: imports everything once, then forks one for each job on standard input.

A job is a line of JSON; the answer is a line {"signal": n or 0, "result": ..., "error": ...}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import supervisor_kit as kit

from cuo_supervisor.errors import SupervisorError
from cuo_supervisor.supervisor import Answer


async def work(job: dict[str, Any], points: kit.Points) -> Any:
    run_id = uuid.UUID(job["run_id"])
    made = kit.make(
        job["dsn"],
        ledger=Path(job["ledger"]),
        points=points,
        clock=kit.clock_with(run_id, ahead_s=job.get("ahead_s", 0.0)),
        seconds=job.get("seconds", 0.0),
    )
    who = kit.identity(
        job["tenant"],
        job.get("subject", "subject-1"),
        persona=job.get("persona", "genie"),
        approver=job.get("approver", False),
        local=job.get("local", False),
    )
    async with made:
        if job["do"] == "route":
            decision = await made.route(
                job["query"], persona_key=job.get("persona", "genie"), identity=who
            )
        elif job["do"] == "continue":
            decision = await made.carry_on(run_id, identity=who)
        else:
            answer = Answer(job["do"] == "approve", job.get("reason", "checked"))
            decision = await made.resume(run_id, answer, identity=who)
    return decision.model_dump(mode="json")


def child(job: dict[str, Any], out: int) -> None:
    points = kit.Points(job.get("die_at"))
    said: dict[str, Any] = {"result": None, "error": None}
    try:
        said["result"] = asyncio.run(work(job, points))
    except SupervisorError as error:
        said["error"] = error.error
    except BaseException as error:  # the parent must hear of it
        said["error"] = f"{type(error).__name__}: {error}"
    said["points"] = points.names
    os.write(out, json.dumps(said).encode())


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        near, far = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(near)
            child(job, far)
            os._exit(0)
        os.close(far)
        with os.fdopen(near, "rb") as file:
            told = file.read()
        _, status = os.waitpid(pid, 0)
        answer = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}
        print(json.dumps(answer | (json.loads(told) if told else {})), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
