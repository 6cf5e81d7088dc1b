"""Wrong input and a wrong world: one sentence, the right exit code, never a traceback."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell
from supervisor_kit import AUTO, DESTRUCTIVE

from cuo_supervisor.core.personas import get_persona

pytestmark = pytest.mark.slow

ROUTE = ("supervisor", "route")
SECRET = "nguyen.van.an@example.vn"


@pytest.mark.clause("101-22")
@pytest.mark.criterion("101-AC27")
@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([*ROUTE, "--query", ""], None),
        ([*ROUTE, "--query", " \t "], None),
        ([*ROUTE, "--query", b"abc\xff"], None),
        ([*ROUTE, "--query", "-"], b""),
        ([*ROUTE, "--query", "-"], b"a" * 1_000_000),
        ([*ROUTE, "--query", "-"], b"abc\xff"),
        ([*ROUTE, "--query", "-"], b"a\x00b"),
        ([*ROUTE], None),
        ([*ROUTE, "--query", "x", "--foo"], None),
        ([*ROUTE, "--query", "x", SECRET], None),
        ([*ROUTE, "--query", "x", "--invoke", "--no-record"], None),
        (["supervisor", "resume", "01M8Q05D6TEYXTMDMD111EEJP6"], None),
        (["supervisor", "resume", "nonsense", "--approve", "--reason", "r"], None),
        (["supervisor", "continue", "nonsense"], None),
        (["runs", "list", "--limit", "0"], None),
        (["nonsense"], None),
        ([], None),
    ],
    ids=lambda value: None if value is None else str(value)[:40],
)
def test_a_malformed_call_is_a_sentence_and_64(
    cuo: Any, tmp_path: Path, words: list[str | bytes], given: bytes | None
) -> None:
    """Nothing on stdout but help, no personal data, and no database is even started."""
    said = cuo(*words, given=given, env={"CUO_DATA_DIR": str(tmp_path / "none")})
    assert said.code == 64
    assert SECRET not in said.out + said.err
    assert (said.err.startswith("error: ") and said.err.count("\n") == 1) or "Usage:" in said.out
    assert not (tmp_path / "none").exists()


def test_json_errors_are_one_document(cuo: Any) -> None:
    """With --json the mistake is an object on stdout, and stderr is empty."""
    said = cuo.route("", "--json")
    assert (said.code, said.err) == (64, "")
    assert said.json["error"] == "invalid_argument"
    assert said.json["exit_code"] == 64


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_fault_of_ours(cuo: Any, tmp_path: Path, closed: int) -> None:
    """The installed script with stdin, stdout or stderr closed; a result that went nowhere is told."""
    query, code = {0: ("-", 64), 1: ("asdfghjkl", 74), 2: ("asdfghjkl", 2)}[closed]
    said = cuo.installed().route(query, "--no-record", preexec_fn=lambda: os.close(closed))
    assert said.code == code
    assert "fault" not in said.err


@pytest.mark.parametrize(
    ("program", "words", "code"),
    [
        ("cyberos-cuo", ["--version"], 74),
        ("cyberos-cuo", ["--help"], 74),
        ("cyberos-cuo", ["runs", "list", "-h"], 74),
        ("cyberos-cuo", ["supervisor"], 64),
        ("cuo-archive", ["--version"], 74),
        ("cuo-archive", ["keys", "--help"], 74),
    ],
)
def test_help_and_version_are_results_like_any_other(
    cuo: Any, program: str, words: list[str], code: int
) -> None:
    """A full disk loses them; a reader that went away changes nothing."""
    shell = Shell(cuo.env, cuo.server, program)
    with open("/dev/full", "wb") as full:
        said = shell(*words, stdout=full)
    assert said.code == code
    assert "fault" not in said.err
    assert "bug" not in said.err
    near, far = os.pipe()
    os.close(near)
    with open(far, "wb") as gone:
        assert shell(*words, stdout=gone).code == (0 if code == 74 else code)


@pytest.mark.parametrize(
    "locale",
    [
        {"LANG": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
    ids=["C", "C uncoerced", "ascii"],
)
def test_letters_survive_a_poor_locale(cuo: Any, locale: dict[str, str]) -> None:
    """The same decision; what cannot be shown is escaped, not refused."""
    shell = cuo.installed()
    for words in ([], ["--json"]):
        said = shell.route("gửi hóa đơn cho ACME", "--no-record", *words, env=locale)
        assert said.code == 1
        assert "vietnam-vat-invoice@1.2" in said.out


@pytest.mark.parametrize(
    "run", ["01M8Q05D6TEYXTMDMD111EEJP6", "8d2f6a44-0b6e-4c0b-9a55-1f6f0d3c7e21"]
)
def test_a_run_that_is_not_there_is_65(cuo: Any, run: str) -> None:
    """To continue, to answer, to show."""
    for words in (
        ["supervisor", "continue", run],
        ["supervisor", "resume", run, "--approve", "--reason", "r"],
        ["runs", "show", run],
    ):
        said = cuo(*words)
        assert said.code == 65
        assert "no such run" in said.err or "no run" in said.err


def test_a_catalogue_that_is_wrong_names_file_and_line(
    cuo: Any, catalog: Callable[[str], Path]
) -> None:
    """65, before anything is recorded."""
    folder = catalog("pass")
    broken = folder / "vietnam-bank-transfer.toml"
    broken.write_text(broken.read_text("utf-8") + "\ndestructive = maybe\n", "utf-8")
    said = cuo.route(AUTO, env={"CUO_CATALOG": str(folder)})
    assert said.code == 65
    assert "vietnam-bank-transfer.toml" in said.err


@pytest.mark.criterion("101-AC12")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('operation = "wire_transfer"\n', "", 2),
        ('operation = "wire_transfer"', 'operation = "transfer_please"', 2),
        ('operation = "wire_transfer"', 'operation = "tax_code_validate"', 2),
        ('operation = "wire_transfer"', 'operation = "wire_transfer"\ndestructive = false', 65),
    ],
    ids=["removed", "renamed", "made harmless", "loosened"],
)
def test_an_edited_catalogue_passes_no_gate(
    cuo: Any, catalog: Callable[[str], Path], old: str, new: str, code: int
) -> None:
    """An operation removed or renamed never runs on its own; loosening one is refused."""
    folder = catalog("pass")
    manifest = folder / "vietnam-bank-transfer.toml"
    text = manifest.read_text("utf-8")
    assert old in text
    manifest.write_text(text.replace(old, new), "utf-8")
    said = cuo.route(DESTRUCTIVE, "--persona", "cmo", "--json", env={"CUO_CATALOG": str(folder)})
    assert said.code == code
    assert said.json.get("invocation_result") is None
    if code == 2:
        audit = cuo("runs", "show", said.json["request_id"], "--json").json["audit"]
        (row,) = (one["body"] for one in audit if one["kind"] == "cuo.routing_decision")
        assert (row["reason"], row["invocation_result"]) == ("operation_unknown", None)


# -- places that cannot be used -------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "read only"])
def test_a_data_folder_that_cannot_be_used_is_69(cuo: Any, place: str) -> None:
    """Read-only, or a file where the folder should be."""
    where = "/proc/cuo" if place == "read only" else __file__
    said = cuo.route(AUTO, env={"CUO_DATA_DIR": where})
    assert said.code == 69
    assert "error: " in said.err


@pytest.mark.parametrize(
    "env",
    [
        {"CUO_DATABASE_URL": "postgresql://127.0.0.1:9/x"},
        {"CUO_JWT": "x.y.z"},
        {"CYBEROS_AI_GATEWAY_URL": "not an address"},
    ],
    ids=["database alone", "token alone", "gateway"],
)
def test_settings_that_are_incomplete_start_nothing(cuo: Any, env: dict[str, str]) -> None:
    """64, naming the variable."""
    said = cuo.route(AUTO, env=env)
    assert said.code == 64
    assert next(iter(env)) in said.err


# -- server mode ----------------------------------------------------------------------------------

KEY = Ed25519PrivateKey.generate()
ISSUER, AUDIENCE = "https://issuer.example", "cuo"


def token(tenant: str, persona: str | None = "cfo", subject: str = "s-1", **claims: Any) -> str:
    now = datetime.now(UTC)
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "tenant_id": tenant,
        "iat": now,
        "exp": now + timedelta(minutes=10),
        "roles": ["agent-persona"],
    }
    if persona is not None:
        said["agent_persona"] = get_persona(persona).claim
    return jwt.encode(said | claims, KEY, algorithm="EdDSA", headers={"kid": "k"})


@pytest.fixture
def server(cuo: Any, app_dsn: str, tenant_id: str, tmp_path: Path) -> Any:
    """Server mode: the migrated test database, keys in a file, a token for the cfo persona."""
    import json

    key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key()))
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [key | {"kid": "k", "alg": "EdDSA", "use": "sig"}]}))
    cuo.env |= {
        "CUO_DATABASE_URL": app_dsn,
        "CUO_JWKS": str(jwks),
        "CUO_JWT_ISSUER": ISSUER,
        "CUO_JWT_AUDIENCE": AUDIENCE,
        "CUO_JWT": token(tenant_id),
    }
    return cuo


@pytest.mark.clause("101-10", "101-22")
@pytest.mark.criterion("101-AC13", "101-AC27")
def test_server_mode_serves_whom_the_token_names(server: Any, tenant_id: str) -> None:
    """0 for its persona; 77 with the published body for another; 77 for a bad token."""
    assert server.route(AUTO, "--persona", "cfo").code == 0
    other = server.route(AUTO, "--persona", "cto", "--json")
    assert other.code == 77
    assert other.json["error"] == "persona_mismatch"
    assert other.json["claimed"] == get_persona("cfo").claim
    assert other.json["requested"] == get_persona("cto").claim
    old = token(tenant_id, agent_persona="cuo-cfo@9.9.9")
    said = server.route(AUTO, "--persona", "cfo", "--json", env={"CUO_JWT": old})
    assert (said.code, said.json["error"]) == (77, "persona_version_mismatch")
    for bad in ("", "x.y.z", token(tenant_id, exp=1), token(tenant_id, roles=["reader"])):
        assert server.route(AUTO, "--persona", "cfo", env={"CUO_JWT": bad}).code in (64, 77)


def test_in_server_mode_another_person_approves(server: Any, tenant_id: str) -> None:
    """The requester and a person without the role get 77; an approver's answer counts."""
    asked = server.route(
        DESTRUCTIVE, "--persona", "cmo", "--json", env={"CUO_JWT": token(tenant_id, "cmo")}
    )
    assert asked.code == 3
    run = asked.json["request_id"]
    yes = ("supervisor", "resume", run, "--approve", "--reason", "checked", "--json")
    roles = ["agent-persona", "cuo-approver"]
    for refused in (token(tenant_id, "cmo", roles=roles), token(tenant_id, "cfo", "s-2")):
        assert server(*yes, env={"CUO_JWT": refused}).code == 77
    stranger = token(str(uuid.uuid4()), None, "s-3", roles=["cuo-approver"])
    assert server(*yes, env={"CUO_JWT": stranger}).code == 65
    approver = token(tenant_id, None, "s-2", roles=["cuo-approver"])
    assert server(*yes, env={"CUO_JWT": approver}).code == 0


@pytest.mark.parametrize("dead", ["postgresql://127.0.0.1:9/x", "postgresql:///x?host=/nowhere"])
def test_a_database_that_is_down_is_69(server: Any, dead: str) -> None:
    """A sentence, no address of a person's, nothing half done."""
    said = server.route(AUTO, "--persona", "cfo", env={"CUO_DATABASE_URL": dead})
    assert said.code == 69
    assert "error: " in said.err


@pytest.mark.clause("101-8", "101-22")
@pytest.mark.criterion("101-AC27")
def test_a_decision_that_cannot_be_recorded_is_73(
    server: Any, admin_dsn: str, broken_audit: None
) -> None:
    """The step did not happen; once the chain takes rows again, `continue` ends the run."""
    said = server.route("send invoice", "--persona", "cfo", "--json")
    assert said.code == 73
    assert said.json["error"] == "audit_failed"
    with psycopg.connect(admin_dsn) as conn:
        conn.execute("ALTER TABLE cuo_memory_audit DROP CONSTRAINT test_broken")
    run = server("runs", "list", "--limit", "1", "--json").json["runs"][0]["ulid"]
    after = server("supervisor", "continue", run, "--json")
    assert after.code == 1
    shown = server("runs", "show", run, "--json").json
    assert shown["verification"]["ok"]
    assert sum(row["kind"] == "cuo.routing_decision" for row in shown["audit"]) == 1


@pytest.fixture
def broken_audit(admin_dsn: str) -> None:
    """A database that takes no decision rows."""
    with psycopg.connect(admin_dsn) as conn:
        # Not by a trigger: with one that is not its own no command would start.
        conn.execute(
            "ALTER TABLE cuo_memory_audit"
            " ADD CONSTRAINT test_broken CHECK (kind <> 'cuo.routing_decision')"
        )
