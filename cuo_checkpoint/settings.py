"""What the store's entry points read from the environment, once, at their start.

Nothing below the entry points reads the environment: they are handed what they need.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .errors import SettingInvalid

__all__ = ["StoreSettings", "problems"]


class StoreSettings(BaseSettings):
    """Where the log is, and what sealing and exporting need. Build it with `load`.

    An empty variable counts as unset. Files such as .env are never read.
    """

    model_config = SettingsConfigDict(
        env_prefix="CUO_",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: SecretStr | None = None
    """CUO_DATABASE_URL: a PostgreSQL URL or conninfo. Present: server mode. Absent: local mode."""
    schema_name: str = Field(
        default="public", validation_alias="CUO_SCHEMA", min_length=1, max_length=63
    )
    """CUO_SCHEMA: the schema that holds the tables."""
    data_dir: Path | None = None
    """CUO_DATA_DIR: the local mode's folder; by default the user's data folder."""
    seal_key: SecretStr | None = None
    """CUO_SEAL_KEY: the Ed25519 key that signs tree heads."""
    export_dir: Path | None = None
    """CUO_EXPORT_DIR: where sealed heads and bundles go, out of the database owner's reach."""

    @property
    def mode(self) -> Literal["local", "server"]:
        """`server` when a database is named, else `local`."""
        return "local" if self.database_url is None else "server"

    @property
    def conninfo(self) -> str | None:
        """The database as libpq spells it (no driver in the scheme); holds the password."""
        if self.database_url is None:
            return None
        return _libpq(self.database_url.get_secret_value())

    @classmethod
    def load(cls) -> Self:
        """Read the environment. Raises SettingInvalid, naming every variable that is wrong."""
        try:
            return cls()
        except ValidationError as error:
            # Not chained: the original's arguments hold what was read, secrets among it.
            raise SettingInvalid(problems(error)) from None

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                conninfo_to_dict(_libpq(value.get_secret_value()))
            except psycopg.ProgrammingError:
                raise ValueError(
                    "is no PostgreSQL address such as postgresql://host/name"
                ) from None
        return value

    @field_validator("data_dir", "export_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @model_validator(mode="after")
    def _schema_needs_database(self) -> Self:
        if self.database_url is None and self.schema_name != "public":
            raise ValueError("CUO_SCHEMA is set but CUO_DATABASE_URL is not; set both or neither")
        return self


def problems(error: ValidationError) -> str:
    """One sentence per wrong variable, without its value."""
    found = []
    for item in error.errors(include_input=False, include_url=False, include_context=False):
        text = item["msg"].removeprefix("Value error, ").rstrip(".")
        where = item["loc"]
        if where:
            name = str(where[0])
            text = f"{name if name.isupper() else f'CUO_{name.upper()}'}: {text}"
        found.append(text)
    return "; ".join(found) + "."


def _libpq(dsn: str) -> str:
    return dsn.replace("postgresql+psycopg://", "postgresql://", 1)
