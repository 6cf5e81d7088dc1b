"""Who is asking: a verified token's claims, or the local operator.

A rejection has a `reason` from a closed set and a message without anything from the token.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Protocol, get_args

import semver

from cuo_supervisor.core.strict_json import DuplicateName, unique
from cuo_supervisor.errors import (
    ConfigError,
    IdentityRejected,
    PersonaMismatch,
    PersonaVersionMismatch,
    UsageError,
)
from cuo_supervisor.jwks import KeySource, key_source

__all__ = [
    "EXPIRY_ISSUER",
    "LOCAL_IDENTITY",
    "LOCAL_ISSUER",
    "LOCAL_TENANT_ID",
    "REASONS",
    "ROLE_AGENT_PERSONA",
    "ROLE_APPROVER",
    "SYSTEM_TENANT_ID",
    "UNKNOWN_ISSUER",
    "Identity",
    "PersonaLike",
    "RejectionReason",
    "TokenVerifier",
    "check_persona",
    "local_identity",
]

ROLE_AGENT_PERSONA: Final = "agent-persona"
ROLE_APPROVER: Final = "cuo-approver"
LOCAL_ISSUER: Final = "local"
EXPIRY_ISSUER: Final = "cuo:expiry"
"""Who an answer is from that the clock gave."""
UNKNOWN_ISSUER: Final = "unknown"
"""A requester's issuer in runs that began before it was kept, when somebody else ends them."""
_NO_TOKENS: Final = frozenset({LOCAL_ISSUER, EXPIRY_ISSUER, UNKNOWN_ISSUER})
"""What rows say where no token vouched for anybody; nobody may pass for one of these."""
LOCAL_TENANT_ID: Final = "6c6f6361-6c00-8000-8000-000000000001"
"""The one tenant of local mode: a version 8 (custom) UUID that spells "local", so that it is
recognised in exports and is minted by nobody. Tokens that claim it are refused."""

RejectionReason = Literal[
    "missing",
    "too_large",
    "malformed",
    "algorithm",
    "key_unknown",
    "keys_unavailable",
    "signature",
    "expired",
    "not_yet_valid",
    "issuer",
    "audience",
    "claim_missing",
    "subject",
    "tenant",
    "role",
]
REASONS: Final[frozenset[str]] = frozenset(get_args(RejectionReason))

_TOKEN_MAX: Final = 8192
"""Bytes. Ours are under 1500; proxies commonly cap all headers together at 8 kB."""
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CLAIM: Final = re.compile(r"cuo-([a-z]+(?:-[a-z]+)*)@([0-9A-Za-z.+-]{1,64})")
SYSTEM_TENANT_ID: Final = "00000000-0000-8000-8000-73797374656d"
"""Whose rows the retention job writes; no token may speak for it. The store says the same."""

_NIL: Final = "00000000-0000-0000-0000-000000000000"
_REQUIRED: Final = ["exp", "iat", "iss", "aud", "sub", "tenant_id"]
_TEXT_MAX: Final = 256
_CALENDAR_ENDS: Final = 253_402_300_800
"""The year 10000, in seconds."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. `tenant_id` is a lower-case UUID; `persona_claim` is such as cuo-cfo@0.4.1.

    Raises UsageError for a name that is no text.
    """

    tenant_id: str
    subject_id: str
    issuer: str
    persona_claim: str | None
    roles: frozenset[str]
    local: bool = False

    def __post_init__(self) -> None:
        for name in ("tenant_id", "subject_id", "issuer"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} must be text, not {type(getattr(self, name)).__name__}")


class PersonaLike(Protocol):
    """What a claim is compared with: both spellings of the key, and the claim in service."""

    @property
    def key(self) -> str: ...
    @property
    def short(self) -> str: ...
    @property
    def claim(self) -> str: ...


def local_identity(subject_id: str = "local-operator") -> Identity:
    """The operator at this machine: any persona, and may approve what they asked for."""
    return Identity(
        tenant_id=LOCAL_TENANT_ID,
        subject_id=subject_id,
        issuer=LOCAL_ISSUER,
        persona_claim=None,
        roles=frozenset({ROLE_AGENT_PERSONA, ROLE_APPROVER}),
        local=True,
    )


LOCAL_IDENTITY: Final = local_identity()


class TokenVerifier:
    """Turns a bearer token into an Identity. Safe to share between threads.

    Raises ConfigError when `jwks` is neither a file that exists nor an acceptable address, or
    issuer or audience is empty. An issuer named like one of the rows' own words is refused.
    """

    def __init__(
        self,
        *,
        jwks: str,
        issuer: str,
        audience: str,
        leeway_s: float = 30.0,
        cooldown_s: float = 30.0,
        failure_cooldown_s: float = 5.0,
    ) -> None:
        if not issuer or not audience or issuer in _NO_TOKENS:
            taken = ", ".join(sorted(_NO_TOKENS))
            raise ConfigError(
                f"CUO_JWT_ISSUER and CUO_JWT_AUDIENCE must be set; no issuer is called {taken}"
            )
        if not 0 <= leeway_s <= 300:
            raise ConfigError("the leeway for clocks must be 0 to 300 seconds")
        self._keys: KeySource = key_source(
            jwks, cooldown_s=cooldown_s, failure_cooldown_s=failure_cooldown_s
        )
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s

    def verify(
        self, token: str, *, accept: frozenset[str] = frozenset({ROLE_AGENT_PERSONA})
    ) -> Identity:
        """The identity a token proves, if it holds one of the roles in `accept`.

        Blocking when keys are fetched: call it in a thread from async code. Raises
        IdentityRejected. `nbf` is honoured when present; every other time claim is required.
        """
        if not token:
            _reject("missing")
        if len(token) > _TOKEN_MAX:
            _reject("too_large")
        if not _SHAPE.fullmatch(token):
            _reject("malformed")
        return self._identity(self._claims(token), accept)

    def _claims(self, token: str) -> dict[str, Any]:
        """Check signature, time, issuer and audience. Translates PyJWT's errors, once."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            kid, algorithm = header.get("kid"), header.get("alg")
            if algorithm not in {"RS256", "ES256", "EdDSA"}:
                _reject("algorithm")
            if not isinstance(kid, str) or not 0 < len(kid) <= _TEXT_MAX:
                _reject("key_unknown")
            pinned = self._keys.find(kid)
            # Before decoding: the comparison is ours and does not depend on the library's.
            if algorithm != pinned.algorithm:
                _reject("algorithm")
            claims: dict[str, Any] = jwt.decode(
                token,
                key=pinned.key,
                algorithms=[pinned.algorithm],
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway_s,
                options={"require": _REQUIRED},
            )
            if not (_says_each_thing_once(token) and _tells_time(claims)):
                _reject("malformed")
        except jwt.ExpiredSignatureError:
            _reject("expired")
        except jwt.ImmatureSignatureError:
            _reject("not_yet_valid")
        except jwt.InvalidIssuerError:
            _reject("issuer")
        except jwt.InvalidAudienceError:
            _reject("audience")
        except jwt.MissingRequiredClaimError:
            _reject("claim_missing")
        except jwt.exceptions.InvalidSubjectError:
            _reject("subject")
        except jwt.InvalidSignatureError:
            _reject("signature")
        except jwt.InvalidAlgorithmError:
            _reject("algorithm")
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # The last ones are what odd JSON does to a parser: Infinity, deep nesting.
            _reject("malformed")
        return claims

    def _identity(self, claims: dict[str, Any], accept: frozenset[str]) -> Identity:
        subject = claims["sub"]
        if not isinstance(subject, str) or not _plain(subject):
            _reject("subject")
        tenant = claims["tenant_id"]
        if not isinstance(tenant, str) or not _UUID.fullmatch(tenant):
            _reject("tenant")
        tenant = tenant.lower()
        if tenant in {LOCAL_TENANT_ID, SYSTEM_TENANT_ID, _NIL}:
            _reject("tenant")
        roles = _roles(claims.get("roles"))
        if not roles & accept:
            _reject("role")
        persona = claims.get("agent_persona")
        return Identity(
            tenant_id=tenant,
            subject_id=subject,
            issuer=self._issuer,
            persona_claim=persona if isinstance(persona, str) and _plain(persona) else None,
            roles=roles,
        )


def check_persona(identity: Identity, persona: PersonaLike) -> None:
    """Refuse unless the identity speaks for `persona` in the version in service.

    Raises PersonaMismatch for another persona, none, or a claim that is not
    cuo-<key>@<semver>; PersonaVersionMismatch for another version. The local operator passes.
    """
    if identity.local:
        return
    claimed = identity.persona_claim or ""
    matched = _CLAIM.fullmatch(claimed)
    if matched is None or matched[1] not in {persona.short, persona.key}:
        raise PersonaMismatch(claimed, persona.claim)
    try:
        version = semver.Version.parse(matched[2])
    except ValueError:
        raise PersonaMismatch(claimed, persona.claim) from None
    # As text: semver's own equality overlooks build metadata, and that may be another prompt.
    if str(version) != persona.claim.rpartition("@")[2]:
        raise PersonaVersionMismatch(claimed, persona.claim)


def _says_each_thing_once(token: str) -> bool:
    """False if header or claims hold a name twice, at any depth: readers disagree on which counts,
    so who signed one may have checked another than who believes it.

    Raises ValueError for what is not plain UTF-8, for the same reason: the library guesses.
    """
    for part in token.split(".")[:2]:
        text = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode("utf-8")
        try:
            json.loads(text, object_pairs_hook=unique)
        except DuplicateName:
            return False
    return True


def _tells_time(claims: dict[str, Any]) -> bool:
    """False if a time is no number of seconds in the calendar; the library takes text for one too,
    in any script's digits."""
    times = [claims[name] for name in ("exp", "iat", "nbf") if name in claims]
    return all(type(at) in (int, float) and 0 <= at < _CALENDAR_ENDS for at in times)


def _roles(claim: Any) -> frozenset[str]:
    """A list of words, or one string of words with spaces between, as scopes are written."""
    words = claim.split(" ") if isinstance(claim, str) else claim
    if not isinstance(words, list):
        return frozenset()
    return frozenset(word for word in words if isinstance(word, str) and _plain(word))


def _plain(text: str) -> bool:
    """Not empty, not long, and printable: such text goes into rows, logs and headers."""
    return 0 < len(text) <= _TEXT_MAX and text.isprintable()


_MESSAGES: Final[dict[RejectionReason, str]] = {
    "missing": "no token was given; set CUO_JWT or send an Authorization: Bearer header",
    "too_large": f"the token is longer than {_TOKEN_MAX} characters",
    "malformed": "the token is not a well-formed signed JWT",
    "algorithm": "the token's algorithm is not the one its key is for (RS256, ES256 or EdDSA)",
    "key_unknown": "the token names no key this service knows",
    "keys_unavailable": "verification keys cannot be read",
    "signature": "the token's signature does not fit",
    "expired": "the token has expired; obtain a new one",
    "not_yet_valid": "the token is not valid yet; compare the clocks of issuer and service",
    "issuer": "the token's issuer is not the one in CUO_JWT_ISSUER",
    "audience": "the token is not meant for the audience in CUO_JWT_AUDIENCE",
    "claim_missing": "the token lacks one of exp, iat, iss, aud, sub, tenant_id",
    "subject": "the token's sub is not 1 to 256 printable characters",
    "tenant": "the token's tenant_id is not the UUID of a tenant",
    "role": "the token's roles do not include the one this call needs",
}


def _reject(reason: RejectionReason) -> NoReturn:
    raise IdentityRejected(reason, _MESSAGES[reason]) from None
