"""Where verification keys come from: a file or an address, and which key may verify what.

A key fixes its algorithm (RSA: RS256, P-256: ES256, Ed25519: EdDSA); a token never chooses.
Keys a token carries or points to (jwk, jku, x5c, x5u headers) are never looked at.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from cuo_supervisor.errors import ConfigError, IdentityRejected

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient, PyJWKSet

__all__ = ["FileKeys", "KeySource", "PinnedKey", "UrlKeys", "key_source", "pin"]

_FILE_MAX: Final = 1 << 20
_RSA_MIN_BITS: Final = 2048
Algorithm = Literal["RS256", "ES256", "EdDSA"]


class PinnedKey:
    """A public key and the one algorithm it verifies."""

    __slots__ = ("algorithm", "key")

    def __init__(self, key: Any, algorithm: Algorithm) -> None:
        self.key = key
        self.algorithm: Algorithm = algorithm


class KeySource(Protocol):
    """Finds a key by its id. Raises IdentityRejected: key_unknown or keys_unavailable."""

    def find(self, kid: str) -> PinnedKey: ...


def pin(jwk: PyJWK) -> PinnedKey | None:
    """The key with its algorithm, or None if it is of no kind accepted here.

    Refused: shared secrets, private keys, RSA under 2048 bits, other curves, keys not for
    signatures, and keys whose own `alg` is another one.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP256R1,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    key: Any = jwk.key
    algorithm: Algorithm
    if isinstance(key, RSAPublicKey) and key.key_size >= _RSA_MIN_BITS:
        algorithm = "RS256"
    elif isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        algorithm = "ES256"
    elif isinstance(key, Ed25519PublicKey):
        algorithm = "EdDSA"
    else:
        return None
    if jwk.public_key_use not in {"sig", None} or jwk.algorithm_name != algorithm:
        return None
    return PinnedKey(key, algorithm)


def _unknown() -> IdentityRejected:
    return IdentityRejected("key_unknown", "the token is signed with a key this service lacks")


def _unavailable(why: str) -> IdentityRejected:
    return IdentityRejected("keys_unavailable", f"verification keys cannot be read: {why}")


class FileKeys:
    """Keys from a JSON file, read again whenever it changes or a key is not found in it.

    Replace the file by renaming a new one over it: a half-written one fails closed until whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._keys: PyJWKSet | None = None

    def find(self, kid: str) -> PinnedKey:
        from jwt import PyJWTError

        with self._lock:
            try:
                found = self._match(kid) or self._match(kid, again=True)
            except (OSError, ValueError, TypeError, AttributeError, PyJWTError) as error:
                self._stamp = None
                raise _unavailable(type(error).__name__) from None
        if found is None:
            raise _unknown()
        return found

    def _match(self, kid: str, *, again: bool = False) -> PinnedKey | None:
        for jwk in self._load(again=again).keys:
            if jwk.key_id == kid and (pinned := pin(jwk)) is not None:
                return pinned
        return None

    def _load(self, *, again: bool) -> PyJWKSet:
        from jwt import PyJWKSet

        stat = self._path.stat()
        # Not the time alone: two writes within one tick of the kernel's clock share it.
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if again or self._keys is None or stamp != self._stamp:
            with self._path.open("rb") as file:
                text = file.read(_FILE_MAX + 1)
            if len(text) > _FILE_MAX:
                raise ValueError("more than 1 MiB")
            self._keys = PyJWKSet.from_json(text.decode("utf-8"))
            self._stamp = stamp
        return self._keys


class UrlKeys:
    """Keys from an address, by PyJWT's client: cached 5 minutes, one retry for an unknown key.

    An unknown key id causes at most one fetch per cooldown, and so does an address that does
    not answer, or a flood of bad tokens would turn into a flood of slow fetches. When the
    cache has expired and the address is down, tokens are refused rather than trusted. A fetch is
    bounded in time and size (`jwks_fetch`).
    """

    def __init__(self, url: str, *, cooldown_s: float, failure_cooldown_s: float) -> None:
        self._url = url
        self._cooldown_s = cooldown_s
        self._failure_cooldown_s = failure_cooldown_s
        self._lock = threading.Lock()
        self._client: PyJWKClient | None = None
        self._failed_at: float | None = None

    def find(self, kid: str) -> PinnedKey:
        from jwt import PyJWTError
        from jwt.exceptions import PyJWKClientConnectionError, PyJWKClientError

        with self._lock:
            failed_at = self._failed_at
            if failed_at is not None:
                if time.monotonic() - failed_at < self._failure_cooldown_s:
                    raise _unavailable("the address failed a moment ago")
                self._failed_at = None
            try:
                pinned = pin(self._connect().get_signing_key(kid))
            except PyJWKClientConnectionError:
                self._failed_at = time.monotonic()
                raise _unavailable("the address does not answer") from None
            except PyJWKClientError as error:
                if "Unable to find a signing key" in str(error):
                    raise _unknown() from None
                self._failed_at = time.monotonic()
                raise _unavailable("the address does not serve usable keys") from None
            except (PyJWTError, ValueError, TypeError, AttributeError, OSError) as error:
                self._failed_at = time.monotonic()
                raise _unavailable(type(error).__name__) from None
        if pinned is None:
            raise _unknown()
        return pinned

    def _connect(self) -> PyJWKClient:
        if self._client is None:
            from cuo_supervisor.jwks_fetch import BoundedClient

            self._client = BoundedClient(self._url, cooldown_duration=self._cooldown_s)
        return self._client


def key_source(
    jwks: str, *, cooldown_s: float = 30.0, failure_cooldown_s: float = 5.0
) -> KeySource:
    """A source for CUO_JWKS: https anywhere, http only to this machine, else a file.

    Raises ConfigError if the address is of another kind or the file does not exist.
    """
    if "://" not in jwks:
        path = Path(jwks).expanduser()
        if not path.is_file():
            raise ConfigError(f"CUO_JWKS: there is no file {jwks!r}")
        return FileKeys(path)
    parts = urlsplit(jwks)
    if parts.username is not None or parts.password is not None:
        raise ConfigError("CUO_JWKS: the address may hold no user or password")
    if not parts.hostname or parts.scheme not in {"https", "http"}:
        raise ConfigError("CUO_JWKS: give a file or an https:// address")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ConfigError("CUO_JWKS: http:// is accepted for this machine only; use https://")
    return UrlKeys(jwks, cooldown_s=cooldown_s, failure_cooldown_s=failure_cooldown_s)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
