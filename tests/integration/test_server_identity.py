"""Server mode through the command: who a token is decides what its bearer gets, and sees."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell

ISSUER, AUDIENCE = "https://auth.example", "cuo"
DESTRUCTIVE = "chuyển khoản 5.000.000 VND cho công ty ACME stk 0123456789"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Desk:
    """A server-mode environment: a database, a key, and the command run with a token's bearer."""

    def __init__(self, dsn: str, folder: Path, tenant: str, server: socket.socket) -> None:
        self.tenant, self.server = tenant, server
        self.key = ed25519.Ed25519PrivateKey.generate()
        public = jwt.algorithms.OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        jwks = folder / "jwks.json"
        jwks.write_text(json.dumps({"keys": [{**public, "kid": "k", "use": "sig"}]}))
        kept = {"PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START"}
        self.environment = {name: value for name, value in os.environ.items() if name in kept} | {
            "CUO_DATABASE_URL": dsn,
            "CUO_JWKS": str(jwks),
            "CUO_JWT_ISSUER": ISSUER,
            "CUO_JWT_AUDIENCE": AUDIENCE,
            "CUO_DATA_DIR": str(folder / "data"),
            "CYBEROS_AI_GATEWAY_URL": "http://127.0.0.1:9",
        }

    def token(self, **changes: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "asker",
            "iat": now,
            "exp": now + 300,
            "tenant_id": self.tenant,
            "roles": ["agent-persona"],
            "agent_persona": "cuo-cfo@0.4.1",
            **changes,
        }
        kept = {name: value for name, value in claims.items() if value is not ...}
        return jwt.encode(kept, self.key, "EdDSA", headers={"kid": "k"})

    def run(self, *arguments: str, token: str | None) -> tuple[int, Any]:
        """The exit code, and what --json printed."""
        given = {} if token is None else {"CUO_JWT": token}
        said = Shell(self.environment | given, self.server)(*arguments, "--json")
        return said.code, said.json if said.out else said.err


@pytest.fixture
def desk(shared_place: Any, tmp_path: Path, tenant_id: str, command_server: socket.socket) -> Desk:
    return Desk(shared_place.app, tmp_path, tenant_id, command_server)


def ask(query: str = "send invoice", persona: str = "cfo") -> tuple[str, ...]:
    return ("supervisor", "route", "--query", query, "--persona", persona, "--no-invoke")


@pytest.mark.clause("101-10")
def test_a_token_of_the_persona_is_served(desk: Desk, lens: Any) -> None:
    """Tenant, subject and issuer of every row come from the token."""
    code, decision = desk.run(*ask("validate MST 0301479073"), token=desk.token())
    assert (code, decision["path_taken"]) == (0, "auto")
    (row,) = lens.audit("cuo.routing_decision")
    said = json.loads(row["body"])
    assert said["agent_persona_jwt_iss"] == ISSUER
    assert (said["tenant_id"], said["persona_version"]) == (desk.tenant, "cuo-cfo@0.4.1")


@pytest.mark.clause("101-10", "101-22")
@pytest.mark.criterion("101-AC13", "101-AC27")
@pytest.mark.parametrize(
    ("claim", "error"),
    [
        ("cuo-cto@0.1.0", "persona_mismatch"),
        (..., "persona_mismatch"),
        ("cuo-cfo@0.4.2", "persona_version_mismatch"),
    ],
)
def test_another_persona_is_refused(desk: Desk, lens: Any, claim: Any, error: str) -> None:
    """Exit 77 and a body with what was claimed and what was asked for; nothing is decided."""
    code, body = desk.run(*ask(), token=desk.token(agent_persona=claim))
    assert code == 77
    assert body["error"] == error
    assert body["claimed"] == ("" if claim is ... else claim)
    assert body["requested"] == "cuo-cfo@0.4.1"
    assert lens.audit("cuo.routing_decision") == []


@pytest.mark.clause("101-10")
@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"roles": ["reader"]},
        {"tenant_id": ...},
    ],
)
def test_a_token_that_proves_nothing_is_refused(desk: Desk, lens: Any, changes: Any) -> None:
    """Exit 77 before anything is read or written."""
    code, body = desk.run(*ask(), token=desk.token(**changes))
    assert (code, body["error"]) == (77, "identity_rejected")
    assert lens.query("SELECT * FROM cuo_runs WHERE tenant_id = $T") == []


def test_no_token_and_a_foreign_key_are_refused(desk: Desk) -> None:
    """Without CUO_JWT the command says so; a token signed by somebody else is not believed."""
    code, body = desk.run(*ask(), token=None)
    assert (code, body["error"]) == (77, "identity_rejected")
    assert "CUO_JWT" in body["message"]
    desk.key = ed25519.Ed25519PrivateKey.generate()
    code, body = desk.run(*ask(), token=desk.token())
    assert (code, body["error"]) == (77, "identity_rejected")


@pytest.mark.criterion("102-AC8")
def test_two_tenants_do_not_see_each_other(
    desk: Desk, other_tenant_id: str, lens_of: Callable[..., Any]
) -> None:
    """The tenant is the token's; another tenant's run is as unknown as one that never was."""
    code, decision = desk.run(*ask(), token=desk.token())
    run = decision["request_id"]
    assert code == 1
    other = desk.token(tenant_id=other_tenant_id)
    _, mine = desk.run("runs", "list", token=desk.token())
    _, theirs = desk.run("runs", "list", token=other)
    assert [r["request_id"] if "request_id" in r else r["ulid"] for r in mine["runs"]] == [run]
    assert theirs["runs"] == []
    for command in (("runs", "show"), ("runs", "verify"), ("supervisor", "replay")):
        assert desk.run(*command, run, token=desk.token())[0] == 0
        code, body = desk.run(*command, run, token=other)
        unknown, answer = desk.run(*command, str(uuid.uuid4()), token=other)
        assert (code, unknown) == (65, 65)
        assert body["error"] == answer["error"]


@pytest.mark.clause("101-7")
@pytest.mark.criterion("101-AC12")
def test_an_answer_needs_the_role_and_another_person(desk: Desk, lens: Any) -> None:
    """Neither the asker, nor somebody without the role; then the approver, once, by that role alone."""
    coo = {"agent_persona": "cuo-coo@0.1.0"}
    code, decision = desk.run(
        "supervisor", "route", "--query", DESTRUCTIVE, "--persona", "coo", token=desk.token(**coo)
    )
    run = decision["request_id"]
    assert (code, decision["reason"]) == (3, "approval_required")
    answer = ("supervisor", "resume", run, "--deny", "--reason", "not known to us")
    both = ["agent-persona", "cuo-approver"]
    for refused in (
        desk.token(**coo, sub="somebody"),
        desk.token(**coo, roles=both),
        desk.token(**coo, sub="boss", roles=["reader"]),
    ):
        code, body = desk.run(*answer, token=refused)
        assert (code, body["error"]) in ((77, "permission_denied"), (77, "identity_rejected"))
    assert lens.audit("approval") == []
    boss = desk.token(agent_persona=..., sub="boss", roles=["cuo-approver"])
    assert desk.run("runs", "show", run, token=boss)[0] == 0
    code, decision = desk.run(*answer, token=boss)
    assert (code, decision["reason"]) == (4, "approval_denied")
    (row,) = lens.audit("approval")
    assert json.loads(row["body"])["approved"] is False
    assert desk.run(*answer, token=boss)[0] == 65
    code, body = desk.run(*ask(persona="coo"), token=boss)
    assert (code, body["error"]) == (77, "identity_rejected")


@pytest.mark.clause("101-22")
def test_a_database_that_is_not_migrated_is_refused(
    desk: Desk, cluster: Any, empty_database: str
) -> None:
    """Exit 69 with the command that mends it; nothing is created on the way."""
    desk.environment["CUO_DATABASE_URL"] = cluster.dsn(empty_database, "cyberos_app")
    for command in (ask(), ("runs", "list")):
        code, body = desk.run(*command, token=desk.token())
        assert code == 69
        assert body["error"] == "store_unreachable"
        assert "alembic upgrade head" in body["message"]
    with psycopg.connect(cluster.dsn(empty_database)) as conn:
        count = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert count.fetchone() == (0,)


def test_an_explanation_needs_no_database(desk: Desk) -> None:
    """`skills --query` reads the catalogue only, and says what each candidate would meet."""
    desk.environment["CUO_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:9/none"
    arguments = ("supervisor", "skills", "--query", "validate MST 0301479073")
    code, body = desk.run(*arguments, token=None)
    assert (code, body["path"]) == (0, "auto")
    assert body["candidates"][0]["triggers"][0]["phrase"] == "validate mst"
    code, body = desk.run(*arguments, "--persona", "foo", token=None)
    assert (code, body["error"]) == (65, "persona_unknown")


def test_a_replay_that_differs_exits_65(desk: Desk, shared_place: Any) -> None:
    """The document names each field with both values; the audit row is written all the same."""
    desk.tenant = str(uuid.uuid4())  # its rows are altered below
    _, decision = desk.run(*ask(), token=desk.token())
    run = decision["request_id"]
    code, then = desk.run("supervisor", "skills", "--run", run, token=desk.token())
    assert (code, then["snapshot_hash"]) == (0, decision["catalog_snapshot_hash"])
    code, same = desk.run("supervisor", "replay", run, token=desk.token())
    assert (code, same["identical"], same["differences"]) == (0, True, [])
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "UPDATE cuo_langgraph_checkpoints SET state_json = jsonb_set(state_json,"
            " '{decision,confidence}', '0.01') WHERE tenant_id = %s AND state_json ? 'decision'",
            (desk.tenant,),
        )
    code, other = desk.run("supervisor", "replay", run, token=desk.token())
    assert (code, other["identical"]) == (65, False)
    assert [d["field"] for d in other["differences"]] == ["confidence"]
    with psycopg.connect(shared_place.admin) as conn:
        rows = conn.execute(
            "SELECT body::jsonb -> 'identical' FROM cuo_memory_audit"
            " WHERE tenant_id = %s AND kind = 'cuo.checkpoint_replayed' ORDER BY chain_seq",
            (desk.tenant,),
        ).fetchall()
    assert rows == [(True,), (False,)]
