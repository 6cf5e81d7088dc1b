"""What a tenant writes by raw SQL as the application's role verifies, or is refused (ADR 0106)."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.runs import RunReader

ZERO = "0" * 32
SHA = hashlib.sha256(b'{"n":1}').hexdigest()
ONE = hashlib.sha256(b"1").hexdigest()
REFUSALS = ("CU004", "CU006", "CU009", "22P02", "22023", "23502", "23505", "23514", "22001")

ROW: dict[str, Any] = {"kind": "run_started", "step": -1, "phase": 0, "ordinal": 0, "node": None}
DOCUMENT = {"v": 4, "id": "1f0", "channel_versions": {}}
WRITE = {"idx": 0, "channel": "x", "value": 1, "sha": ONE}

Act = Callable[..., Any]


@pytest.fixture
def conn(shared_place: Any, tenant_id: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared_place.app, autocommit=True) as made:
        made.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        yield made


@pytest.fixture
def append(conn: psycopg.Connection[Any], tenant_id: str) -> Callable[..., uuid.UUID]:
    """`cuo_append` as the store calls it, with some arguments another's; returns the run."""

    def act(
        run: uuid.UUID | None = None,
        row: dict[str, Any] | None = None,
        writes: list[dict[str, Any]] | None = None,
        **other: Any,
    ) -> uuid.UUID:
        run = run or uuid.uuid4()
        rows = [] if row is None else [{"id": str(uuid.uuid4()), **ROW, **row}]
        sets = [{"lg": "1f0", "task": "t", "path": "", "writes": w} for w in [writes] if w]
        given = {
            "trace": ZERO,
            "rows": json.dumps(other.pop("rows", rows)),
            "state": json.dumps({"n": 1}),
            "sha": SHA,
            "share": False,
            "writes": json.dumps(sets),
            "kinds": [],
            "bodies": [],
            **other,
        }
        conn.execute(
            "SELECT * FROM cuo_append(%(tenant)s, 't', '', %(run)s, %(trace)s, '1f0', NULL,"
            " %(rows)s::jsonb, %(state)s::jsonb, %(sha)s, %(share)s, %(writes)s::jsonb,"
            " %(kinds)s::text[], %(bodies)s::text[], NULL, false, false, true, false)",
            {"tenant": tenant_id, "run": run, **given},
        )
        return run

    return act


@pytest.fixture
def tried(append: Act) -> Callable[..., uuid.UUID | None]:
    """As `append`; None when the database refused for what it was given."""

    def act(**given: Any) -> uuid.UUID | None:
        try:
            run: uuid.UUID = append(**given)
        except psycopg.Error as error:
            if error.sqlstate in REFUSALS:
                return None
            raise
        return run

    return act


@pytest.fixture
def verified(shared_place: Any, tenant_id: str) -> Iterator[Callable[[uuid.UUID], int]]:
    """Verifies a run; returns how many rows and writes it has."""
    with RunReader(shared_place.app, tenant_id=tenant_id) as reader:

        def act(run: uuid.UUID) -> int:
            found = reader.verify(run)
            assert found.problems == ()
            return found.rows + found.writes

        yield act


@pytest.mark.parametrize("column", ["step", "phase", "ordinal"])
@pytest.mark.parametrize(
    "value", ["+4", " 4 ", "04", "4", 4, "-0", -0, "٤", "4.0", 4.5, "0x10", True]
)
def test_a_number_in_any_spelling(tried: Act, verified: Act, column: str, value: Any) -> None:
    """Digested as the column holds it, or refused."""
    run = tried(row={column: value})
    assert run is None or verified(run) == 1


@pytest.mark.parametrize("value", ["+4", " 4", "04", 4, "-3", "-03", "4.0", None])
def test_a_writes_number_in_any_spelling(
    append: Act, tried: Act, verified: Act, value: Any
) -> None:
    """Likewise; and its other spellings are the same place, so the first write stays."""
    run = tried(writes=[{**WRITE, "idx": value}])
    if run is None:
        return
    assert verified(run) == 1
    other = {**WRITE, "idx": f"+{int(value)}" if int(value) >= 0 else f" {int(value)} "}
    append(run, writes=[other])
    assert verified(run) == 1


DIGESTS = [SHA.upper(), f" {SHA}\n", " ".join(SHA), SHA[:62], SHA + "00", "", "zz" * 32, None]


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("place", ["state", "row's state", "langgraph", "write"])
def test_a_digest_in_any_spelling(tried: Act, verified: Act, place: str, digest: Any) -> None:
    """Digested as the bytes it stands for, or refused."""
    state = {"state": {"n": 1}, "state_sha": digest} if place == "row's state" else {}
    document = {"lg": {"n": 1}, "lg_sha": digest} if place == "langgraph" else {}
    written = [{**WRITE, "value": {"n": 1}, "sha": digest}] if place == "write" else []
    own = {"sha": digest} if place == "state" else {}
    run = tried(row={**state, **document}, writes=written, **own)
    if run is not None:
        # A row's state without a digest of its own takes the shared state's, which is the same here.
        assert digest is not None or place == "row's state"
        assert verified(run) == 1 + len(written)


@pytest.mark.parametrize("document", [[1], 1, "x", None, True])
def test_a_document_that_is_no_object(append: Act, verified: Act, document: Any) -> None:
    """It is none, and so its digest is none either."""
    assert verified(append(row={"lg": document, "lg_sha": SHA})) == 1


def test_a_document_without_its_digest_is_refused(append: Act) -> None:
    """It could never verify."""
    with pytest.raises(psycopg.errors.CheckViolation):
        append(row={"lg": DOCUMENT})


@pytest.mark.parametrize("trace", [ZERO + " ", ZERO + "\n", ZERO[:31] + " ", ZERO + "0", "A" * 32])
def test_a_trace_id_with_anything_beside_it(append: Act, trace: str) -> None:
    """The column would drop a blank behind it, and the digest would not."""
    with pytest.raises(psycopg.Error) as refused:
        append(row={}, trace=trace)
    assert refused.value.sqlstate in REFUSALS


@pytest.mark.parametrize("where", ["shared", "own"])
def test_a_reference_is_the_stores_to_make(append: Act, where: str) -> None:
    """A state that points to a row it does not share would be said to be missing."""
    state = {"$state_of": str(uuid.uuid4())}
    digest = hashlib.sha256(canonical_bytes(state)).hexdigest()  # type: ignore[arg-type]
    own = {"row": {"state": state, "state_sha": digest}}
    shared = {"row": {}, "state": json.dumps(state), "sha": digest}
    with pytest.raises(psycopg.Error) as refused:
        append(**(shared if where == "shared" else own))
    assert refused.value.sqlstate == "CU009"


def test_shared_states_go_on(append: Act, verified: Act) -> None:
    """The store's own sharing is as it was."""
    rows = [
        {"id": str(uuid.uuid4()), **ROW},
        {"id": str(uuid.uuid4()), **ROW, "kind": "node_entered"},
    ]
    rows[1]["parent"] = rows[0]["id"]
    assert verified(append(rows=rows, share=True)) == 2


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("waiting", '{"a":1.0}'),
        ("waiting", '{"b":1,"a":1}'),
        ("waiting", '{"a":1e400}'),
        ("waiting", '{"a":"\\u0041"}'),
        ("waiting", '{"a":9007199254740993}'),
        ("waiting", "null"),
        ("waiting", None),
        ("month_dropped", "{}"),
        ("close", "{}"),
        ("of another kind", "{}"),
        ('waiting","x":"', "{}"),
    ],
)
def test_an_audit_row_that_would_not_verify_is_refused(append: Act, kind: str, body: Any) -> None:
    """Its body is embedded as it stands, its kind as well."""
    with pytest.raises(psycopg.Error) as refused:
        append(row={}, kinds=[kind], bodies=[body])
    assert refused.value.sqlstate in (*REFUSALS, "22003")


INSERT = (
    "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind, state_json,"
    " trace_id, thread_id, state_sha256, langgraph, langgraph_sha256) VALUES (%(id)s, %(tenant)s,"
    " %(run)s, %(kind)s, %(state)s, %(trace)s, %(thread)s, %(sha)s, %(lg)s, %(lg_sha)s)"
)


@pytest.fixture
def insert(conn: psycopg.Connection[Any], tenant_id: str) -> Callable[..., uuid.UUID]:
    """A plain INSERT of one row; returns the run."""

    def act(**other: Any) -> uuid.UUID:
        state = other.setdefault("state", {"n": 1})
        given = {
            "id": uuid.uuid4(),
            "tenant": tenant_id,
            "run": uuid.uuid4(),
            "kind": "run_started",
            "trace": ZERO,
            "thread": "t",
            "sha": hashlib.sha256(canonical_bytes(state)).digest(),
            "lg": None,
            "lg_sha": None,
            **other,
        }
        given["state"] = json.dumps(state)
        conn.execute(INSERT, given)
        return given["run"]  # type: ignore[no-any-return]

    return act


@pytest.mark.parametrize(
    "state",
    [
        {"n": 1},
        {},
        {
            "a": [1, 2.5, -0.25, 1e-9, 1e15, 'đ\u0001\\"', None, True, {"b": []}],
            "é": {"z": 1, "aa": 2},
        },
        {"big": 9007199254740993.0, "\U0001f600": 1},
        {"$state_of": "no uuid"},
    ],
)
def test_a_row_by_hand_verifies(insert: Act, verified: Act, state: Any) -> None:
    """Whatever the state, as long as the digest is its digest."""
    assert verified(insert(state=state)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"sha": hashlib.sha256(b"{}").digest()},
        {"sha": hashlib.sha256(b'{"n": 1}').digest()},
        {"lg": "{}"},
        {"lg": "{}", "lg_sha": hashlib.sha256(b"[]").digest()},
        {"lg_sha": hashlib.sha256(b"{}").digest()},
        {"state": {"$state_of": str(uuid.uuid4())}},
        {
            "lg": '{"a": [1e20]}',
            "lg_sha": hashlib.sha256(b'{"a":[100000000000000000000]}').digest(),
        },
    ],
    ids=["state", "a blank in it", "no digest", "document", "no document", "reference", "number"],
)
def test_a_row_by_hand_that_would_not_verify_is_refused(insert: Act, wrong: dict[str, Any]) -> None:
    """A false digest, one without a document, a reference to another's state."""
    with pytest.raises(psycopg.Error) as refused:
        insert(**wrong)
    assert refused.value.sqlstate == "CU009"


def test_an_id_stands_once_in_a_run(insert: Act, verified: Act) -> None:
    """The key holds the time too, so the key alone would take it again a moment later."""
    id_ = uuid.uuid4()
    run = insert(id=id_)
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(id=id_, run=run, kind="node_entered")
    assert verified(run) == 1


def test_one_statement_keeps_a_run_in_one_thread(
    conn: psycopg.Connection[Any], tenant_id: str
) -> None:
    """The first rows of a run come together, in two threads."""
    run = uuid.uuid4()
    values = ", ".join(
        f"(gen_random_uuid(), '{tenant_id}', '{run}', 'run_started', '{{}}', '{ZERO}', '{thread}',"
        " sha256('{}'))"
        for thread in "tu"
    )
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(
            "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind,"
            f" state_json, trace_id, thread_id, state_sha256) VALUES {values}"  # type: ignore[arg-type]
        )
    assert refused.value.sqlstate == "CU006"


def test_a_false_digest_handed_to_the_store_is_found_by_name(
    append: Act, insert: Act, shared_place: Any, tenant_id: str
) -> None:
    """What the database does not check on the hot path: verification names the run, and that one only."""
    good = insert()
    bad = append(row={}, sha="ab" * 32)
    with RunReader(shared_place.app, tenant_id=tenant_id) as reader:
        assert reader.verify(good).ok
        assert not reader.verify(bad).ok
