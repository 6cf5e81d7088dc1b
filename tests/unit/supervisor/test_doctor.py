"""The doctor's looks at what a setting can have wrong. The database's are in test_readiness."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cuo_supervisor.cli.doctor_checks import LOOKS, Check, guarded, strangers
from cuo_supervisor.settings import Settings

NEEDED = {
    "database_url": SecretStr("postgresql://nowhere.invalid/x"),
    "jwt_issuer": "https://auth.example",
    "jwt_audience": "cuo",
}


def found(name: str, settings: Settings) -> list[Check]:
    """What the look of that name finds."""
    look, remedy = next(pair for pair in LOOKS if pair[0].__name__.strip("_") == name)
    return guarded(look, settings, remedy)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collector is named."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)


@pytest.mark.parametrize(
    ("look", "changes", "essential", "said", "remedy"),
    [
        ("seal_settings", {"seal_key": "/nope"}, True, "/nope", "CUO_SEAL_KEY"),
        ("seal_settings", {"export_dir": "/proc/x"}, True, "/proc/x", "mkdir"),
        ("seal_settings", {"export_dir": "."}, False, "set alone", "CUO_SEAL_KEY"),
        ("catalogue", {"catalog": "/nope"}, True, "/nope", "CUO_CATALOG"),
        ("outbox", {"data_dir": "/etc/passwd"}, True, "/etc/passwd", "CUO_DATA_DIR"),
        ("keys", {**NEEDED, "jwks": "/nope.json"}, True, "/nope.json", "CUO_JWKS"),
        ("keys", {**NEEDED, "jwks": "http://far.example/k"}, True, "https://", "CUO_JWKS"),
        ("identity", {**NEEDED, "jwks": "/nope.json"}, False, "CUO_JWT", "CUO_JWT"),
        ("gateway", {"gateway_url": "http://127.0.0.1:9"}, False, "ConnectionRefused", "GATEWAY"),
    ],
)
def test_what_is_broken_is_named_with_its_remedy(
    look: str, changes: dict[str, Any], essential: bool, said: str, remedy: str
) -> None:
    """What, why, and what to do; only what stops the program counts as essential."""
    settings = Settings.model_construct(**{**Settings().model_dump(), **typed(changes)})
    wrong = [check for check in found(look, settings) if not check.ok]
    assert any(
        said in check.detail and remedy in check.remedy and check.essential is essential
        for check in wrong
    ), wrong


def typed(changes: dict[str, Any]) -> dict[str, Any]:
    """Values as the settings hold them."""
    kinds = {"seal_key": SecretStr, "export_dir": Path, "catalog": Path, "data_dir": Path}
    return {name: kinds.get(name, lambda v: v)(value) for name, value in changes.items()}


def test_a_key_set_that_is_none_is_named(tmp_path: Path) -> None:
    """A file that holds something else."""
    (tmp_path / "keys.json").write_text(json.dumps({"nothing": 1}))
    settings = Settings.model_construct(**NEEDED, jwks=str(tmp_path / "keys.json"))
    (check,) = found("keys", settings)
    assert not check.ok
    assert "CUO_JWKS" in check.remedy


def test_a_misspelt_variable_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read by nothing, and says which was meant."""
    monkeypatch.setenv("CUO_DATABSE_URL", "postgresql://db/x")
    monkeypatch.setenv("CUO_SCHEMA", "public")
    (check,) = strangers()
    assert "CUO_DATABSE_URL" in check.detail
    assert check.remedy == "Did you mean CUO_DATABASE_URL?"
    assert not check.essential


def test_a_collector_that_is_down_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that listens is not."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{there.getsockname()[1]}"
        )
        assert found("telemetry", Settings())[0].ok
    (check,) = found("telemetry", Settings())
    assert not check.ok
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in check.remedy
