"""Reading runs over HTTP."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import event

from cuo_checkpoint import CheckpointWriter
from cuo_checkpoint.event_pages import read_page
from cuo_checkpoint.ids import ulid_of
from cuo_checkpoint.run_queries import encoded_rows
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.sessions import reading

PAGES = {"Accept": "application/json"}


def long_run(store: Any, rows: int = 25, **state: Any) -> uuid.UUID:
    """A run of that many rows."""
    writer, run_id = CheckpointWriter(store), uuid.uuid4()
    writer.write(run_id, "run_started", {"n": 0, **state})
    for number in range(1, rows):
        writer.write(run_id, "node_entered", {"n": number, **state}, node_name=f"node {number}")
    return run_id


def pages(client: httpx.Client, run_id: Any, **params: Any) -> list[dict[str, Any]]:
    """All rows, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = client.get(f"/v1/cuo/runs/{run_id}/checkpoints", params=params).json()
        found += page["checkpoints"]
        if page["next"] is None:
            return found
        params["after"] = page["next"]


@pytest.mark.clause("102-5")
def test_checkpoints_are_the_rows_of_the_log(client: httpx.Client, store: Any, lens: Any) -> None:
    """Every row comes in order, with the names of the table and the state in full."""
    run_id = long_run(store, 5, text="đ" * 20_000)
    answer = client.get(f"/v1/cuo/runs/{run_id}/checkpoints")
    assert answer.status_code == 200
    document = answer.json()
    assert document["run_id"] == str(run_id)
    assert document["next"] is None
    stored = lens.rows()
    assert [row["checkpoint_id"] for row in document["checkpoints"]] == [
        str(row["checkpoint_id"]) for row in stored
    ]
    assert [row["state_json"]["n"] for row in document["checkpoints"]] == [0, 1, 2, 3, 4]
    assert document["checkpoints"][3]["state_json"]["text"] == "đ" * 20_000
    assert document["checkpoints"][1]["parent_checkpoint_id"] == str(stored[0]["checkpoint_id"])
    assert document["checkpoints"][1]["row_sha256"] == stored[1]["row_sha256"].hex()


def test_a_run_is_named_by_uuid_or_ulid(client: httpx.Client, store: Any) -> None:
    """Both spellings of a run's id find it."""
    run_id = long_run(store, 2)
    by_uuid = client.get(f"/v1/cuo/runs/{run_id}/checkpoints")
    by_ulid = client.get(f"/v1/cuo/runs/{ulid_of(run_id)}/checkpoints")
    assert by_uuid.json() == by_ulid.json()


@pytest.mark.parametrize("limit", [1, 7, 24, 25, 26])
def test_pages_put_together_are_the_run(client: httpx.Client, store: Any, limit: int) -> None:
    """Pages of any size hold each row once."""
    run_id = long_run(store)
    assert [r["state_json"]["n"] for r in pages(client, run_id, limit=limit)] == list(range(25))


def test_pages_are_stable_while_rows_arrive(client: httpx.Client, store: Any) -> None:
    """Reading page by page while others append misses no row and repeats none."""
    run_id = long_run(store, 3)
    writer = CheckpointWriter(store)
    stop = threading.Event()

    def append(name: str) -> None:
        number = 0
        while not stop.is_set() and number < 60:
            writer.write(run_id, "node_entered", {"by": name}, node_name=name)
            number += 1

    threads = [threading.Thread(target=append, args=[name]) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 3}
    for _ in range(30):
        page = client.get(f"/v1/cuo/runs/{run_id}/checkpoints", params=params).json()
        seen += [row["checkpoint_id"] for row in page["checkpoints"]]
        params["after"] = page["tail"]
    stop.set()
    for thread in threads:
        thread.join()
    seen += [row["checkpoint_id"] for row in pages(client, run_id, **params)]
    whole = [row["checkpoint_id"] for row in pages(client, run_id, limit=1000)]
    assert seen == whole


def test_a_run_in_several_threads_is_paged_whole(
    client: httpx.Client, store: Any, shared_place: Any
) -> None:
    """Rows of runs from before a run had to live in one thread: equal numbers hide and repeat none."""
    run_id = long_run(store, 16)
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "UPDATE cuo_langgraph_checkpoints SET thread_id = 'thread ' || seq %% 3,"
            " seq = (seq + 2) / 3 WHERE run_id = %s AND seq > 1",
            [run_id],
        )
    found = pages(client, run_id, limit=2)
    assert len({row["checkpoint_id"] for row in found}) == len(found) == 16


def test_only_the_kinds_asked_for(client: httpx.Client, store: Any) -> None:
    """`kind` may stand several times; an unknown one is refused."""
    run_id = long_run(store, 4)
    url = f"/v1/cuo/runs/{run_id}/checkpoints"
    started = client.get(url, params={"kind": ["run_started", "run_failed"]}).json()
    assert [row["kind"] for row in started["checkpoints"]] == ["run_started"]
    refused = client.get(url, params={"kind": "nodes"})
    assert refused.status_code == 422
    assert refused.json()["error"] == "validation_failed"


def test_ndjson_is_the_whole_run(client: httpx.Client, store: Any) -> None:
    """As NDJSON every row is a line, in one answer, the same rows as in pages."""
    run_id = long_run(store, 120)
    url = f"/v1/cuo/runs/{run_id}/checkpoints"
    answer = client.get(url, headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines == pages(client, run_id, limit=50)
    after = client.get(url, params={"limit": 100}).json()["next"]
    rest = client.get(url, params={"after": after}, headers={"Accept": "application/x-ndjson"})
    assert [json.loads(line) for line in rest.text.splitlines()] == lines[100:]


def test_the_etag_changes_only_when_the_run_grew(client: httpx.Client, store: Any) -> None:
    """An unchanged page answers 304 without its rows; a new row makes a new tag."""
    run_id = long_run(store, 3)
    url = f"/v1/cuo/runs/{run_id}/checkpoints"
    first = client.get(url)
    same = client.get(url, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["etag"] == first.headers["etag"]
    assert client.get(url, params={"limit": 2}).headers["etag"] != first.headers["etag"]
    CheckpointWriter(store).write(run_id, "node_entered", {}, node_name="late")
    grown = client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert grown.status_code == 200
    assert len(grown.json()["checkpoints"]) == 4


def test_a_stream_answers_304_until_the_run_has_grown(
    serve_on: Callable[..., Any], shared_place: Any, store: Any, tenant_id: str, token: Any
) -> None:
    """No row and no stream's place is spent on what the caller has; its tag is not a page's."""
    run_id = long_run(store, 60)
    url, ndjson = f"/v1/cuo/runs/{run_id}/checkpoints", {"Accept": "application/x-ndjson"}
    api = serve_on(shared_place.app, streams=1)
    with api.client(token(tenant_id), headers=ndjson) as client:
        first = client.get(url)
        tag = first.headers["etag"]
        assert first.text.count("\n") == 60
        for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            same = client.get(url, headers={"If-None-Match": given})
            assert (same.status_code, same.content) == (304, b"")
            assert same.headers["etag"] == tag
            assert "Accept" in same.headers["vary"]
        rest = client.get(
            url,
            params={"after": client.get(url, headers=PAGES, params={"limit": 50}).json()["next"]},
        )
        others = [
            client.get(url, headers=PAGES).headers["etag"],
            client.get(url, params={"kind": "node_entered"}).headers["etag"],
            rest.headers["etag"],
        ]
        assert len({tag, *others}) == 4
        for other in others:
            assert client.get(url, headers={"If-None-Match": other}).status_code == 200
        CheckpointWriter(store).write(run_id, "node_entered", {}, node_name="late")
        grown = client.get(url, headers={"If-None-Match": tag})
        assert grown.status_code == 200
        assert grown.text.count("\n") == 61
        assert grown.headers["etag"] != tag


@pytest.mark.criterion("102-AC8")
def test_anothers_run_looks_like_none(
    client: httpx.Client, stranger: httpx.Client, store: Any
) -> None:
    """A run of another tenant, one that never was and nonsense get the same bytes."""
    run_id = long_run(store, 3)
    assert client.get(f"/v1/cuo/runs/{run_id}/checkpoints").status_code == 200
    for rest in ("checkpoints", "verify"):
        answers = [
            stranger.get(f"/v1/cuo/runs/{name}/{rest}") for name in (run_id, uuid.uuid4(), "x")
        ]
        assert {(a.status_code, a.content) for a in answers} == {(404, answers[0].content)}
        assert answers[0].json()["error"] == "run_unknown"
        streamed = stranger.get(
            f"/v1/cuo/runs/{run_id}/checkpoints", headers={"Accept": "application/x-ndjson"}
        )
        assert streamed.status_code == 404
    tail = client.get(f"/v1/cuo/runs/{run_id}/checkpoints").json()["tail"]
    guessed = stranger.get(f"/v1/cuo/runs/{run_id}/checkpoints", params={"after": tail})
    assert guessed.status_code == 404
    assert stranger.get("/v1/cuo/runs").json() == {"runs": [], "next": None}


def test_runs_are_listed_filtered_and_paged(client: httpx.Client, store: Any) -> None:
    """Newest first; `next` goes on; filters narrow."""
    made = [str(long_run(store, 1)) for _ in range(5)]
    first = client.get("/v1/cuo/runs", params={"limit": 3}).json()
    rest = client.get("/v1/cuo/runs", params={"limit": 3, "before": first["next"]}).json()
    assert [r["run_id"] for r in first["runs"] + rest["runs"]] == made[::-1]
    assert rest["next"] is None
    assert client.get("/v1/cuo/runs", params={"state": "closed"}).json()["runs"] == []
    assert client.get("/v1/cuo/runs", params={"path": "auto"}).json()["runs"] == []
    later = {"since": "2999-01-01T00:00:00"}
    assert client.get("/v1/cuo/runs", params=later).json()["runs"] == []


def test_a_run_is_verified(client: httpx.Client, store: Any, shared_place: Any) -> None:
    """A sound run says ok; one that a superuser edited is an answer that names the row."""
    run_id = long_run(store, 3)
    sound = client.get(f"/v1/cuo/runs/{run_id}/verify")
    assert sound.json()["ok"] is True
    assert sound.json()["rows"] == 3
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "UPDATE cuo_langgraph_checkpoints SET node_name = 'forged'"
            " WHERE run_id = %s AND kind = 'node_entered' AND seq = 2",
            [run_id],
        )
    broken = client.get(f"/v1/cuo/runs/{run_id}/verify")
    assert broken.status_code == 200
    assert broken.json()["ok"] is False
    assert "seq 2" in " ".join(broken.json()["problems"])


@pytest.mark.parametrize(
    "params",
    [
        {"after": "nonsense"},
        {"after": "W10x"},
        {"after": "bnVsbA"},
        {"after": "W1sxLDJdXQ"},
        {"after": "W1siYSIsLTFdXQ"},
        {"after": "é"},
    ],
)
def test_a_made_up_cursor_is_refused(
    client: httpx.Client, store: Any, params: dict[str, str]
) -> None:
    """A cursor that this service did not return is the caller's mistake, not ours."""
    answer = client.get(f"/v1/cuo/runs/{long_run(store, 1)}/checkpoints", params=params)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument")


def test_a_page_is_bounded_in_bytes(client: httpx.Client, store: Any) -> None:
    """Large states end a page early, and the pages still hold every row once."""
    run_id = long_run(store, 8, text="x" * 1_500_000)
    first = client.get(f"/v1/cuo/runs/{run_id}/checkpoints", params={"limit": 1000})
    assert first.json()["next"] is not None
    assert len(first.content) < 9_500_000
    assert [r["state_json"]["n"] for r in pages(client, run_id, limit=1000)] == list(range(8))


def test_too_many_readers_are_turned_away(
    serve_on: Callable[..., Any], shared_place: Any, store: Any, tenant_id: str, token: Any
) -> None:
    """Beyond the queue a read gets 503 with Retry-After, and nothing piles up."""
    run_id = long_run(store, 400, text="x" * 3000)
    api = serve_on(shared_place.app, readers=1, queue=1)
    answers: list[httpx.Response] = []
    with api.client(token(tenant_id)) as client:

        def ask() -> None:
            answers.append(client.get(f"/v1/cuo/runs/{run_id}/verify"))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes = {answer.status_code for answer in answers}
        assert codes == {200, 503}
        turned = next(answer for answer in answers if answer.status_code == 503)
        assert turned.json()["error"] == "overloaded"
        assert turned.headers["retry-after"] == "1"
        assert client.get(f"/v1/cuo/runs/{run_id}/verify").status_code == 200


def test_a_page_asks_the_database_three_times(
    store: Any, shared_place: Any, tenant_id: str
) -> None:
    """Settings, index, rows, by statements that are built once: building them was most of the work."""
    run_id = long_run(store, 50)
    asked: list[str] = []
    with RunReader(shared_place.app, tenant_id=tenant_id, connections=1) as reader:
        event.listen(
            reader.engine, "before_cursor_execute", lambda _c, _u, text, *_: asked.append(text)
        )
        for _ in range(2):
            page = read_page(
                reader.engine, reader.tenant_id, run_id, after={}, limit=100, max_bytes=1 << 22
            )
            assert page is not None
            assert len(page.rows) == 50
    assert len(asked) == 6
    assert asked[:3] == asked[3:]
    assert encoded_rows(1, True) is encoded_rows(1, True)


def test_an_idle_connection_that_was_dropped_is_replaced(
    store: Any, shared_place: Any, tenant_id: str
) -> None:
    """A server that restarts or a pooler that tidies up costs the next reader nothing."""
    run_id = long_run(store, 2)
    with RunReader(shared_place.app, tenant_id=tenant_id, connections=1) as reader:
        with reading(reader.engine, reader.tenant_id) as conn:
            pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with psycopg.connect(shared_place.admin, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        found = reader.get_run(run_id)
        assert found is not None
        assert found.log_rows == 2
        with reading(reader.engine, reader.tenant_id) as conn:
            assert conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != pid
