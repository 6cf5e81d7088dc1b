"""Tokens made with real keys, honest and forged, against a file and a server of keys."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.core.personas import PERSONAS, get_persona
from cuo_supervisor.errors import (
    ConfigError,
    IdentityRejected,
    PersonaMismatch,
    PersonaVersionMismatch,
)
from cuo_supervisor.identity import (
    LOCAL_IDENTITY,
    LOCAL_TENANT_ID,
    REASONS,
    ROLE_APPROVER,
    SYSTEM_TENANT_ID,
    Identity,
    TokenVerifier,
    check_persona,
)

ISSUER = "https://auth.example"
AUDIENCE = "cuo"
TENANT = "5e8f1d2a-0c1b-4b0a-9a53-0b8f5f2f7a11"

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEYS: dict[str, tuple[str, Any]] = {"r": ("RS256", RSA), "e": ("ES256", EC), "d": ("EdDSA", ED)}

_TO_JWK: dict[str, Callable[..., Any]] = {
    "RS256": jwt.algorithms.RSAAlgorithm.to_jwk,
    "ES256": jwt.algorithms.ECAlgorithm.to_jwk,
    "EdDSA": jwt.algorithms.OKPAlgorithm.to_jwk,
}


def jwk(kid: str, algorithm: str, key: Any, **more: Any) -> dict[str, Any]:
    public = _TO_JWK[algorithm](key.public_key(), as_dict=True)
    return {**public, "kid": kid, "use": "sig", **more}


def jwks(*kids: str) -> dict[str, Any]:
    return {"keys": [jwk(kid, *KEYS[kid]) for kid in kids]}


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    full = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "subject-7",
        "iat": now,
        "nbf": now,
        "exp": now + 300,
        "tenant_id": TENANT,
        "roles": ["agent-persona"],
        "agent_persona": "cuo-cfo@0.4.1",
        **changes,
    }
    return {name: value for name, value in full.items() if value is not ...}


def token(kid: str = "r", *, headers: dict[str, Any] | None = None, **changes: Any) -> str:
    algorithm, key = KEYS[kid]
    # Not jwt.encode: it refuses to sign some of the claims that a verifier must refuse.
    said = json.dumps(claims(**changes)).encode()
    return jwt.PyJWS().encode(said, key, algorithm, headers={"kid": kid, **(headers or {})})


def forged(header: dict[str, Any], payload: Any, sign: Callable[[bytes], bytes]) -> str:
    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    signed = part(json.dumps(header).encode()) + b"." + part(json.dumps(payload).encode())
    return (signed + b"." + part(sign(signed))).decode()


def make(source: str, **more: Any) -> TokenVerifier:
    return TokenVerifier(jwks=source, issuer=ISSUER, audience=AUDIENCE, **{"leeway_s": 0.0, **more})


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(jwks("r", "e", "d")))
    return path


@pytest.fixture
def verifier(key_file: Path) -> TokenVerifier:
    return make(str(key_file))


@pytest.fixture(scope="module")
def any_verifier(tmp_path_factory: pytest.TempPathFactory) -> TokenVerifier:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps(jwks("r")))
    return make(str(path))


def reason(verifier: TokenVerifier, text: str) -> str:
    """Why it was refused; the message must hold nothing of the token."""
    with pytest.raises(IdentityRejected) as caught:
        verifier.verify(text)
    message = str(caught.value)
    for piece in (TENANT, "subject-7", "cuo-cfo", *text.split(".")):
        assert len(piece) < 4 or piece not in message
    assert caught.value.reason in REASONS
    assert caught.value.exit_code == 77
    assert caught.value.__cause__ is None
    return caught.value.reason


@pytest.mark.parametrize("kid", ["r", "e", "d"])
def test_honest_tokens(verifier: TokenVerifier, kid: str) -> None:
    """Each accepted kind of key yields the claims as an identity."""
    assert verifier.verify(token(kid, tenant_id=TENANT.upper())) == Identity(
        tenant_id=TENANT,
        subject_id="subject-7",
        issuer=ISSUER,
        persona_claim="cuo-cfo@0.4.1",
        roles=frozenset({"agent-persona"}),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["other", AUDIENCE]},
        {"nbf": ...},
        {"roles": "cuo-approver agent-persona"},
        {"agent_persona": ...},
        {"agent_persona": 7},
    ],
)
def test_permitted_variants(verifier: TokenVerifier, changes: dict[str, Any]) -> None:
    """Several audiences, no nbf, roles as one string, no persona: all identify a caller."""
    assert verifier.verify(token(**changes)).subject_id == "subject-7"


NOW = int(time.time())  # the tests run minutes after it: what lies ahead lies a day ahead


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exp": NOW - 3600}, "expired"),
        ({"nbf": NOW + 86_400}, "not_yet_valid"),
        ({"iat": NOW + 86_400}, "not_yet_valid"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": ""}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": []}, "claim_missing"),
        ({"exp": ...}, "claim_missing"),
        ({"iat": ...}, "claim_missing"),
        ({"iss": ...}, "claim_missing"),
        ({"aud": ...}, "claim_missing"),
        ({"sub": ...}, "claim_missing"),
        ({"tenant_id": ...}, "claim_missing"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": float("inf")}, "malformed"),
        ({"exp": [NOW + 86_400]}, "malformed"),
        ({"exp": None}, "claim_missing"),
        ({"exp": -1}, "expired"),
        ({"nbf": "soon"}, "malformed"),
        ({"exp": str(NOW + 86_400)}, "malformed"),
        ({"exp": "9_999_999_999"}, "malformed"),
        ({"exp": "".join(chr(0x0660 + int(digit)) for digit in str(NOW + 86_400))}, "malformed"),
        ({"exp": 10**4000}, "malformed"),
        ({"exp": 1e300}, "malformed"),
        ({"iat": str(NOW)}, "malformed"),
        ({"iat": -5}, "malformed"),
        ({"nbf": True}, "malformed"),
        ({"nbf": {"at": NOW}}, "malformed"),
        ({"iat": "now"}, "malformed"),
        ({"iss": ["https://auth.example"]}, "issuer"),
        ({"iss": 5}, "issuer"),
        ({"iss": ISSUER.upper()}, "issuer"),
        ({"iss": ISSUER + "/"}, "issuer"),
        ({"aud": ["other", "more"]}, "audience"),
        ({"aud": [AUDIENCE, 5]}, "audience"),
        ({"aud": 5}, "audience"),
        ({"aud": {AUDIENCE: True}}, "audience"),
        ({"aud": AUDIENCE.upper()}, "audience"),
        ({"sub": 7}, "subject"),
        ({"sub": ["subject-7"]}, "subject"),
        ({"sub": None}, "claim_missing"),
        ({"sub": ""}, "subject"),
        ({"sub": "a\0b"}, "subject"),
        ({"sub": "x" * 257}, "subject"),
        ({"tenant_id": "acme"}, "tenant"),
        ({"tenant_id": "{" + TENANT + "}"}, "tenant"),
        ({"tenant_id": TENANT.replace("-", "")}, "tenant"),
        ({"tenant_id": 5}, "tenant"),
        ({"tenant_id": [TENANT]}, "tenant"),
        ({"tenant_id": None}, "claim_missing"),
        ({"tenant_id": TENANT + "\n"}, "tenant"),
        ({"tenant_id": LOCAL_TENANT_ID}, "tenant"),
        ({"tenant_id": SYSTEM_TENANT_ID}, "tenant"),
        ({"tenant_id": str(uuid.UUID(int=0))}, "tenant"),
        ({"roles": ...}, "role"),
        ({"roles": []}, "role"),
        ({"roles": ["agent-personas", 5]}, "role"),
        ({"roles": {"agent-persona": True}}, "role"),
        ({"roles": [["agent-persona"]]}, "role"),
        ({"roles": "Agent-Persona"}, "role"),
        ({"roles": "agent-persona,cuo-approver"}, "role"),
        ({"roles": "agent-persona\u00a0cuo-approver"}, "role"),
        ({"roles": "agent-persona\n"}, "role"),
    ],
)
def test_wrong_claims(verifier: TokenVerifier, changes: dict[str, Any], expected: str) -> None:
    """A well-signed token is refused for the claim that is wrong."""
    assert reason(verifier, token(**changes)) == expected


def test_leeway(key_file: Path) -> None:
    """A clock a little off is forgiven within the leeway only."""
    late = token(exp=int(time.time()) - 10)
    assert make(str(key_file), leeway_s=30.0).verify(late).subject_id == "subject-7"
    assert reason(make(str(key_file), leeway_s=5.0), late) == "expired"


def test_algorithm_none(verifier: TokenVerifier) -> None:
    """An unsigned token is refused, in any spelling of none."""
    for name in ("none", "None", "NONE", "nOnE"):
        text = forged({"alg": name, "kid": "r"}, claims(), lambda _: b"")
        assert reason(verifier, text) == "algorithm"


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_public_key_as_secret(verifier: TokenVerifier, encoding: Encoding) -> None:
    """The public key used as an HMAC secret signs nothing."""
    secret = RSA.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    text = forged(
        {"alg": "HS256", "kid": "r"},
        claims(),
        lambda signed: hmac.new(secret, signed, hashlib.sha256).digest(),
    )
    assert reason(verifier, text) == "algorithm"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "ES384"])
def test_other_algorithms(verifier: TokenVerifier, algorithm: str) -> None:
    """Sound algorithms that are not pinned are refused too."""
    key: Any = ec.generate_private_key(ec.SECP384R1()) if algorithm == "ES384" else RSA
    text = jwt.encode(claims(), key, algorithm, headers={"kid": "r"})
    assert reason(verifier, text) == "algorithm"


def test_algorithm_of_another_key(verifier: TokenVerifier) -> None:
    """A key verifies its own algorithm only, whatever the header says."""
    text = jwt.encode(claims(), EC, "ES256", headers={"kid": "r"})
    assert reason(verifier, text) == "algorithm"


def test_key_inside_the_token(verifier: TokenVerifier) -> None:
    """A key carried by or pointed to from the token is not used and not fetched."""
    own = jwk("r", "RS256", STRANGER)
    for extra in ({"jwk": own}, {"jku": "http://127.0.0.1:9/x"}, {"x5u": "http://127.0.0.1:9/x"}):
        for kid, expected in (("r", "signature"), ("stranger", "key_unknown")):
            text = jwt.encode(claims(), STRANGER, "RS256", headers={"kid": kid, **extra})
            assert reason(verifier, text) == expected


def test_unknown_and_odd_key_ids(verifier: TokenVerifier) -> None:
    """Key ids that are unknown, missing, empty, long or path-like find nothing."""
    for kid in ("nope", "", "x" * 300, "../../etc/passwd", "r'; --"):
        text = jwt.encode(claims(), RSA, "RS256", headers={"kid": kid})
        assert reason(verifier, text) == "key_unknown"
    assert reason(verifier, jwt.encode(claims(), RSA, "RS256")) == "key_unknown"


def test_critical_extensions(verifier: TokenVerifier) -> None:
    """An extension the token calls critical and nobody here knows is a refusal."""
    text = token(headers={"crit": ["exp2"], "exp2": 1})
    assert reason(verifier, text) == "malformed"


def test_changed_content(verifier: TokenVerifier) -> None:
    """Changing one claim after signing breaks the signature."""
    head, _, tail = token().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(tenant_id=str(uuid.uuid4()))).encode())
    assert reason(verifier, f"{head}.{body.rstrip(b'=').decode()}.{tail}") == "signature"


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ('{"alg":"RS256","kid":"r"}', '{%s,"tenant_id":"5e8f1d2a-0c1b-4b0a-9a53-0b8f5f2f7a12"}'),
        ('{"alg":"RS256","kid":"r"}', '{"sub":"somebody",%s}'),
        ('{"alg":"RS256","kid":"r"}', '{%s,"roles":["cuo-approver","agent-persona"]}'),
        ('{"alg":"RS256","kid":"r"}', '{%s,"more":{"a":1,"a":2}}'),
        ('{"alg":"none","kid":"r","alg":"RS256"}', "{%s}"),
        ('{"alg":"RS256","kid":"x","kid":"r"}', "{%s}"),
        ('{"alg":"RS256","kid":"r","\\u006bid":"r"}', "{%s}"),
    ],
)
def test_a_name_said_twice_is_refused(verifier: TokenVerifier, header: str, payload: str) -> None:
    """Well signed, but readers would disagree on what it says: claims and header, at any depth."""
    said = payload % json.dumps(claims())[1:-1]
    parts = [base64.urlsafe_b64encode(text.encode()).rstrip(b"=") for text in (header, said)]
    signature = RSA.sign(b".".join(parts), padding.PKCS1v15(), hashes.SHA256())
    parts.append(base64.urlsafe_b64encode(signature).rstrip(b"="))
    assert reason(verifier, b".".join(parts).decode()) == "malformed"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_claims_in_another_encoding_are_refused(verifier: TokenVerifier, encoding: str) -> None:
    """Well signed, but a reader that does not guess would see no claims in it."""

    def sign(signed: bytes) -> bytes:
        return RSA.sign(signed, padding.PKCS1v15(), hashes.SHA256())

    head, body, _ = forged({"alg": "RS256", "kid": "r"}, claims(), sign).split(".")
    for text, other in ((head, False), (body, True)):
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().encode(encoding)
        part = base64.urlsafe_b64encode(plain).rstrip(b"=").decode()
        signed = f"{head}.{part}" if other else f"{part}.{body}"
        tail = base64.urlsafe_b64encode(sign(signed.encode())).rstrip(b"=").decode()
        assert reason(verifier, f"{signed}.{tail}") == "malformed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing"),
        ("x" * 8193, "too_large"),
        ("a.b", "malformed"),
        ("a.b.c.d", "malformed"),
        ("Bearer " + "a.b.c", "malformed"),
        ("a.b.c\n", "malformed"),
        ("é.é.é", "malformed"),
        ("e30.e30.", "algorithm"),
        ("W10.e30.e30", "malformed"),
    ],
)
def test_misshapen(verifier: TokenVerifier, text: str, expected: str) -> None:
    """What is no token at all is refused by shape or size before any key is looked for."""
    assert reason(verifier, text) == expected


@given(st.text(max_size=60) | st.from_regex(r"[\w-]{0,30}\.[\w-]{0,30}\.[\w-]{0,30}"))
def test_any_text_is_refused_in_words(any_verifier: TokenVerifier, text: str) -> None:
    """No text makes the verifier fail in another way than by a reason."""
    with pytest.raises(IdentityRejected):
        any_verifier.verify(text)


def test_deep_json_is_refused(verifier: TokenVerifier) -> None:
    """A payload that exhausts a parser is a malformed token, not a crash."""
    deep = "[" * 2500
    part = base64.urlsafe_b64encode(deep.encode()).rstrip(b"=").decode()
    assert reason(verifier, f"{part}.{part}.AAAA") == "malformed"


def test_other_roles_when_asked_for(verifier: TokenVerifier) -> None:
    """A call may accept another role; the default one is then not needed."""
    text = token(roles=[ROLE_APPROVER])
    assert reason(verifier, text) == "role"
    assert verifier.verify(text, accept=frozenset({ROLE_APPROVER})).roles == {ROLE_APPROVER}


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMw", "kid": "r"},
        jwk("r", "RS256", RSA, use="enc"),
        jwk("r", "RS256", RSA, alg="PS256"),
        jwk("r", "RS256", rsa.generate_private_key(public_exponent=65537, key_size=1024)),
        {**jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "r"},
    ],
    ids=["secret", "encryption", "other-alg", "short", "private"],
)
def test_unsuitable_keys(tmp_path: Path, key: dict[str, Any]) -> None:
    """Shared secrets, encryption keys, short and private keys in the set verify nothing."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [key, jwk("e", "ES256", EC)]}))
    assert reason(make(str(path)), token("r")) == "key_unknown"
    assert make(str(path)).verify(token("e")).subject_id == "subject-7"


def test_file_rotation(key_file: Path) -> None:
    """A replaced file counts at once: the new key verifies, the old one no longer does."""
    key_file.write_text(json.dumps(jwks("r")))
    verifier = make(str(key_file))
    verifier.verify(token("r"))
    assert reason(verifier, token("e")) == "key_unknown"
    fresh = key_file.with_suffix(".new")
    fresh.write_text(json.dumps(jwks("e")))
    os.replace(fresh, key_file)
    verifier.verify(token("e"))
    assert reason(verifier, token("r")) == "key_unknown"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys": []}', '{"keys": 5}', "é" * 600_000])
def test_broken_file_fails_closed(key_file: Path, content: str) -> None:
    """A file that is half-written, wrong or huge refuses tokens until it is whole again."""
    verifier = make(str(key_file))
    whole = key_file.read_text()
    verifier.verify(token())
    key_file.write_text(content)
    assert reason(verifier, token()) == "keys_unavailable"
    key_file.write_text(whole)
    verifier.verify(token())
    key_file.unlink()
    assert reason(verifier, token()) == "keys_unavailable"


@dataclass
class KeyServer:
    url: str
    kids: tuple[str, ...] = ("r",)
    status: int = 200
    body: bytes | None = None
    hits: int = 0
    sent: int = 0
    pace_s: float = 0.0


@pytest.fixture
def server() -> Iterator[KeyServer]:
    state = KeyServer("")
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.hits += 1
            body = state.body if state.body is not None else json.dumps(jwks(*state.kids)).encode()
            self.send_response(state.status)
            if state.status == 302:
                self.send_header("Location", state.url + "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            step = 65536 if not state.pace_s else 1
            with contextlib.suppress(OSError):  # the client went away
                for at in range(0, len(body), step):
                    self.wfile.write(body[at : at + step])
                    state.sent += step
                    if state.pace_s and gone.wait(state.pace_s):
                        return

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_address[1]}/jwks"
        yield state
        gone.set()
        http.shutdown()
        thread.join()


def test_keys_are_cached(server: KeyServer) -> None:
    """Many tokens cost one fetch."""
    verifier = make(server.url)
    for _ in range(5):
        verifier.verify(token())
    assert server.hits == 1


def test_server_rotation(server: KeyServer) -> None:
    """A new key is fetched when first met, and a withdrawn one is gone after that fetch."""
    verifier = make(server.url, cooldown_s=0.0)
    verifier.verify(token("r"))
    server.kids = ("e",)
    verifier.verify(token("e"))
    assert reason(verifier, token("r")) == "key_unknown"


def test_unknown_keys_do_not_flood_the_server(server: KeyServer) -> None:
    """Within the cooldown any number of unknown key ids costs no fetch."""
    verifier = make(server.url, cooldown_s=60.0)
    verifier.verify(token("r"))
    for kid in range(20):
        text = jwt.encode(claims(), STRANGER, "RS256", headers={"kid": f"x{kid}"})
        assert reason(verifier, text) == "key_unknown"
    assert server.hits == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b""), (404, b"no"), (302, b""), (200, b"<html>"), (200, b"[]"), (200, b'{"keys": []}')],
)
def test_server_trouble(server: KeyServer, status: int, body: bytes) -> None:
    """Errors, redirects and answers that are no key set refuse tokens, once per cooldown."""
    server.status, server.body = status, body
    verifier = make(server.url, failure_cooldown_s=0.2)
    for _ in range(3):
        assert reason(verifier, token()) == "keys_unavailable"
    assert server.hits == 1
    server.status, server.body = 200, None
    time.sleep(0.25)
    assert verifier.verify(token()).subject_id == "subject-7"


def test_a_redirect_to_good_keys_is_not_followed(server: KeyServer) -> None:
    """Whoever can make the address redirect must not choose the keys."""
    server.status = 302
    server.body = json.dumps(jwks("r")).encode()
    assert reason(make(server.url), token()) == "keys_unavailable"
    assert server.hits == 1


def test_a_huge_answer_is_not_read_to_its_end(server: KeyServer) -> None:
    """More than a key set can be: refused after a mebibyte, although the keys are in it."""
    server.body = json.dumps({**jwks("r"), "more": "x" * (24 << 20)}).encode()
    assert reason(make(server.url), token()) == "keys_unavailable"
    assert server.sent < len(server.body)


@pytest.mark.slow
@pytest.mark.parametrize("pace_s", [0.4, 60.0], ids=["drips", "hangs"])
def test_an_address_that_never_ends_holds_nobody_long(server: KeyServer, pace_s: float) -> None:
    """Every wait is short, or there is one long one: the fetch ends all the same, and while it
    cools down nobody waits again."""
    server.pace_s = pace_s
    verifier = make(server.url, failure_cooldown_s=60.0)
    began = time.monotonic()
    assert reason(verifier, token()) == "keys_unavailable"
    first = time.monotonic() - began
    assert 2.5 < first < 15
    for _ in range(20):
        assert reason(verifier, token()) == "keys_unavailable"
    assert time.monotonic() - began - first < 2.5
    assert server.hits == 1


def test_no_proxy_stands_between_us_and_this_machine(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy variable must not choose the keys of an address without TLS."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert make(server.url).verify(token()).subject_id == "subject-7"


def test_rotation_under_load(server: KeyServer) -> None:
    """While threads verify, the key changes: old and new tokens get a word each, never a fault."""
    verifier = make(server.url, cooldown_s=0.0)
    old, new = token("r"), token("e")
    told: list[str] = []

    def work() -> None:
        for _ in range(15):
            for one in (old, new):
                try:
                    told.append(verifier.verify(one).subject_id)
                except IdentityRejected as refused:
                    told.append(refused.reason)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    server.kids = ("e",)
    for thread in threads:
        thread.join()
    assert len(told) == 120
    assert set(told) <= {"subject-7", "key_unknown"}
    assert verifier.verify(new).subject_id == "subject-7"
    assert reason(verifier, old) == "key_unknown"


def test_server_absent() -> None:
    """An address where nobody listens is reported as unavailable keys."""
    assert reason(make("http://127.0.0.1:9/jwks"), token()) == "keys_unavailable"


@pytest.mark.parametrize(
    "source",
    [
        "http://auth.example/jwks",
        "http://127.0.0.1.evil.example/jwks",
        "ftp://auth.example/jwks",
        "file:///etc/jwks.json",
        "https:///jwks",
        "https://user:pw@auth.example/jwks",
        "/no/such/file.json",
    ],
)
def test_sources_that_are_refused(source: str) -> None:
    """Keys come from a file that exists, over TLS, or from this machine."""
    with pytest.raises(ConfigError, match="CUO_JWKS") as caught:
        make(source)
    assert "pw@" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": ""},
        {"audience": ""},
        *({"issuer": word} for word in ("local", "cuo:expiry", "unknown")),
    ],
)
def test_settings_that_are_refused(key_file: Path, changes: dict[str, str]) -> None:
    """Issuer and audience are required, and nobody may pass for the local operator or the clock."""
    named = {"issuer": ISSUER, "audience": AUDIENCE, **changes}
    with pytest.raises(ConfigError):
        TokenVerifier(jwks=str(key_file), issuer=named["issuer"], audience=named["audience"])


def test_threads_share_a_verifier(server: KeyServer) -> None:
    """Verifying in many threads at once fetches once and mixes nothing up."""
    server.kids = ("r", "e", "d")
    verifier = make(server.url)
    seen: list[str] = []

    def work(kid: str) -> None:
        seen.append(verifier.verify(token(kid, sub=f"s-{kid}")).subject_id)

    threads = [threading.Thread(target=work, args=(kid,)) for kid in "redredred"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(f"s-{kid}" for kid in "redredred")
    assert server.hits == 1


def speaks(claim: str | None) -> Identity:
    return Identity(TENANT, "s", ISSUER, claim, frozenset({"agent-persona"}))


@pytest.mark.parametrize("short", sorted(PERSONAS))
def test_own_persona_passes(short: str) -> None:
    """Each persona's own claim passes, in the short and in the long spelling."""
    persona = get_persona(short)
    check_persona(speaks(persona.claim), persona)
    check_persona(speaks(f"cuo-{persona.key}@{persona.version}"), persona)


@pytest.mark.parametrize(
    "claim",
    [
        None,
        "",
        "cuo-cto@{v}",
        "cfo@{v}",
        "cuo-cfo",
        "cuo-cfo@",
        "cuo-cfo@latest",
        "cuo-cfo@1.2",
        "cuo-cfo@01.2.3",
        "CUO-CFO@{v}",
        "cuo-cfo@{v} ",
        "cuo-cfo@{v}\n",
        "cuo-cfo@{v}@{v}",
        "xcuo-cfo@{v}",
    ],
)
def test_other_personas_are_refused(claim: str | None) -> None:
    """No claim, another persona, or a claim of another form is a mismatch."""
    persona = get_persona("cfo")
    text = claim.replace("{v}", persona.version) if claim is not None else None
    with pytest.raises(PersonaMismatch) as caught:
        check_persona(speaks(text), persona)
    assert caught.value.claimed == (text or "")
    assert caught.value.requested == persona.claim


@pytest.mark.parametrize("version", ["0.0.1", "99.0.0", "{v}-rc.1", "{v}+build.2"])
def test_other_versions_are_refused(version: str) -> None:
    """Another version, also a pre-release or another build, is a version mismatch."""
    persona = get_persona("cfo")
    with pytest.raises(PersonaVersionMismatch):
        check_persona(speaks(f"cuo-cfo@{version.replace('{v}', persona.version)}"), persona)


def test_local_operator_is_any_persona() -> None:
    """The local operator passes for every persona, has a fixed tenant and may approve."""
    for persona in PERSONAS.values():
        check_persona(LOCAL_IDENTITY, persona)
    assert LOCAL_IDENTITY.local
    assert LOCAL_IDENTITY.issuer == "local"
    assert LOCAL_IDENTITY.subject_id == "local-operator"
    assert uuid.UUID(LOCAL_IDENTITY.tenant_id).version == 8
    assert ROLE_APPROVER in LOCAL_IDENTITY.roles


def test_reasons_are_closed() -> None:
    """There are fifteen reasons; another one is a decision, not an accident."""
    assert len(REASONS) == 15


def test_the_reserved_tenant_is_the_stores() -> None:
    """The supervisor may not import the store here, so both name it and this holds them together."""
    from cuo_checkpoint.cuts import SYSTEM_TENANT

    assert str(SYSTEM_TENANT) == SYSTEM_TENANT_ID
