"""What whoever starts the service may choose; everything else is in `Settings`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from cuo_supervisor.errors import ConfigError

__all__ = ["Options", "is_loopback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits of the service. Seconds and bytes; `request_seconds` is for reads."""

    max_body_bytes: int = 64 * 1024
    body_seconds: float = 10.0
    request_seconds: float = 30.0
    route_seconds: float = 120.0
    shutdown_seconds: float = 30.0
    write_seconds: float = 30.0
    readers: int = 4
    streams: int = 4
    queue: int = 64
    """Reads that may wait for a reader; more are turned away with 503."""
    connections: int = 8

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above zero")


def is_loopback(host: str) -> bool:
    """Whether a host name or address names this machine only."""
    name = host.strip("[]").casefold().rstrip(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
