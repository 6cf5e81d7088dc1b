"""What the supervisor's entry points read from the environment, once, at their start.

OTEL_* variables are OpenTelemetry's own and are read by its SDK. Bands, matrices, operations, the
retention floor and the size cap are code and have no variable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from cuo_checkpoint.settings import StoreSettings, problems

from .errors import ConfigError

__all__ = ["Settings"]

_SERVER_SET = {
    "CUO_DATABASE_URL": "database_url",
    "CUO_JWKS": "jwks",
    "CUO_JWT_ISSUER": "jwt_issuer",
    "CUO_JWT_AUDIENCE": "jwt_audience",
}
"""Server mode has all four or does not start: a database without identity would trust anybody."""


class Settings(StoreSettings):
    """Everything the supervisor is told from outside. Build it with `load`.

    Server mode needs a database and the three settings that verify identity; any of them alone,
    or CUO_JWT without them, is refused rather than taken for local mode.
    """

    catalog: Path | None = None
    """CUO_CATALOG: a folder of skill manifests; by default the one that ships."""
    gateway_url: str = Field(
        default="http://localhost:8080", validation_alias="CYBEROS_AI_GATEWAY_URL"
    )
    """CYBEROS_AI_GATEWAY_URL: the AI gateway's base address, without a closing slash."""
    gateway_token: SecretStr | None = Field(
        default=None, validation_alias="CYBEROS_AI_GATEWAY_TOKEN"
    )
    """CYBEROS_AI_GATEWAY_TOKEN: sent to the gateway as a bearer token."""
    jwks: str | None = None
    """CUO_JWKS: a file or an address with the keys that sign tokens."""
    jwt_issuer: str | None = None
    """CUO_JWT_ISSUER: the only `iss` accepted."""
    jwt_audience: str | None = None
    """CUO_JWT_AUDIENCE: the only `aud` accepted."""
    jwt: SecretStr | None = None
    """CUO_JWT: the command line's own token; the HTTP service takes one per request instead."""

    @classmethod
    def load(cls) -> Self:
        """Read the environment. Raises ConfigError, naming every variable that is wrong."""
        try:
            return cls()
        except ValidationError as error:
            # Not chained: the original's arguments hold what was read, secrets among it.
            raise ConfigError(problems(error)) from None

    @field_validator("gateway_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            usable = usable and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("is no address such as https://gateway.example:8443")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "may hold no user, query or fragment; put a token in CYBEROS_AI_GATEWAY_TOKEN"
            )
        return value.rstrip("/")

    @field_validator("catalog")
    @classmethod
    def _catalog_absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @model_validator(mode="after")
    def _whole_or_none(self) -> Self:
        present = [name for name, field in _SERVER_SET.items() if getattr(self, field) is not None]
        missing = [name for name in _SERVER_SET if name not in present]
        if self.jwt is not None:
            present.append("CUO_JWT")
        if present and missing:
            raise ValueError(
                f"{', '.join(present)} set, but server mode also needs {', '.join(missing)}; "
                "set all of them, or none for local mode"
            )
        return self
