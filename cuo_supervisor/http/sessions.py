"""Browser sessions: a random name in a cookie, everything else here in memory.

The token itself is not kept, only what it proved. A restart logs everybody out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cuo_supervisor.identity import Identity

__all__ = ["Session", "Sessions"]

_MAX_SESSIONS: Final = 10_000
_MAX_SECONDS: Final = 8 * 3600
_IDLE_SECONDS: Final = 3600


@dataclass(slots=True)
class Session:
    """Somebody who logged in. `expires` and `seen` are in seconds of the clock given."""

    identity: Identity
    key: bytes
    expires: float
    seen: float

    def form_token(self, purpose: str) -> str:
        """What a form for `purpose` must carry; a foreign page cannot know it."""
        return hmac.new(self.key, purpose.encode(), hashlib.sha256).hexdigest()

    def accepts(self, purpose: str, given: str) -> bool:
        """Whether a form came from our own page for this purpose."""
        return hmac.compare_digest(self.form_token(purpose).encode(), given.encode())


class Sessions:
    """Open sessions, at most 10 000: the one idle longest makes room.

    A session ends with its token, after eight hours, or after one hour without a request.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def start(self, identity: Identity, *, token_expires: float) -> tuple[str, int]:
        """A new session's name, and for how many seconds it lasts at most."""
        now = self._clock()
        expires = min(token_expires, now + _MAX_SECONDS)
        name = secrets.token_urlsafe(32)
        self._open[_filed(name)] = Session(identity, secrets.token_bytes(32), expires, now)
        while len(self._open) > _MAX_SESSIONS:
            self._open.popitem(last=False)
        return name, max(int(expires - now), 0)

    def find(self, name: str | None) -> Session | None:
        """The session of that name, unless it ended."""
        if not name:
            return None
        place = _filed(name)
        session = self._open.get(place)
        if session is None:
            return None
        now = self._clock()
        if now >= session.expires or now - session.seen > _IDLE_SECONDS:
            del self._open[place]
            return None
        session.seen = now
        self._open.move_to_end(place)
        return session

    def end(self, name: str | None) -> None:
        """Logs out."""
        if name:
            self._open.pop(_filed(name), None)


def _filed(name: str) -> bytes:
    """Filed under a digest: looking up a guess takes no longer the better it is."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
