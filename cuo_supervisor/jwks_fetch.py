"""PyJWT's client of a key address, with a fetch that ends.

The library's own bounds only each wait for the socket: an address that sends a byte a second, or
without end, would hold every request that needs a key. It also follows proxy variables to this
very machine.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from jwt import PyJWKClient
from jwt.exceptions import PyJWKClientConnectionError, PyJWKClientError

__all__ = ["FETCH_S", "KEYS_MAX", "BoundedClient"]

FETCH_S: Final = 3.0
"""Seconds for a whole fetch; requests that need a key wait for it."""

KEYS_MAX: Final = 1 << 20
"""Bytes of a key set, the same as of a key file."""


class BoundedClient(PyJWKClient):
    """Fetches without redirects, within `FETCH_S` and `KEYS_MAX`; all else is the library's."""

    def fetch_data(self) -> Any:
        found = self._as_jwk_set_payload(_read(self.uri))
        if self.jwk_set_cache is not None:
            self.jwk_set_cache.put(found)
        self._last_successful_fetch = time.monotonic()
        return found


def _read(url: str) -> Any:
    until = time.monotonic() + FETCH_S
    # Behind a proxy, TLS still ends at the address itself; plain http (to this machine) would not.
    secure = urlsplit(url).scheme == "https"
    raw = bytearray()
    try:
        with (
            httpx.Client(timeout=FETCH_S, trust_env=secure, follow_redirects=False) as client,
            client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status_code != 200:
                raise PyJWKClientConnectionError("the address did not answer 200")
            for piece in answer.iter_raw():
                raw += piece
                if len(raw) > KEYS_MAX:
                    raise PyJWKClientError("more than 1 MiB of keys")
                if time.monotonic() > until:
                    raise PyJWKClientConnectionError("the answer took too long")
    except httpx.HTTPError:
        raise PyJWKClientConnectionError("the address cannot be read") from None
    return json.loads(raw)
