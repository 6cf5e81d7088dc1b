"""The supervisor's settings: whole for a server, none for local mode, nothing between."""

from __future__ import annotations

import itertools
import os

import pytest

from cuo_supervisor.errors import ConfigError
from cuo_supervisor.settings import Settings

SERVER = {
    "CUO_DATABASE_URL": "postgresql://app@db.example/cuo",
    "CUO_JWKS": "/etc/cuo/jwks.json",
    "CUO_JWT_ISSUER": "https://issuer.example",
    "CUO_JWT_AUDIENCE": "cuo",
}
SECRET = "t0ken-kept-secret"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CUO_", "CYBEROS_")):
            monkeypatch.delenv(name)


def test_nothing_set_is_local_mode() -> None:
    """The gateway has its default address."""
    settings = Settings.load()
    assert (settings.mode, settings.gateway_url) == ("local", "http://localhost:8080")


def test_all_four_are_server_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database and everything that verifies identity."""
    for name, value in SERVER.items():
        monkeypatch.setenv(name, value)
    assert Settings.load().mode == "server"


@pytest.mark.parametrize(
    "names",
    [c for n in (1, 2, 3) for c in itertools.combinations(SERVER, n)] + [("CUO_JWT",)],
)
def test_any_part_of_them_is_refused_and_the_rest_named(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """A half-configured server must not quietly become a local one, where anybody is trusted."""
    for name in names:
        monkeypatch.setenv(name, SERVER.get(name, SECRET))
    with pytest.raises(ConfigError) as caught:
        Settings.load()
    assert caught.value.exit_code == 64
    needed = str(caught.value).partition("also needs")[2]
    assert [name for name in SERVER if name in needed] == [n for n in SERVER if n not in names]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://gateway",
        "gateway:8080",
        "http://",
        "http://h:99999",
        f"http://u:{SECRET}@h",
        "http://h?x",
    ],
)
def test_a_wrong_gateway_address_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """An address may carry a password by mistake."""
    monkeypatch.setenv("CYBEROS_AI_GATEWAY_URL", address)
    with pytest.raises(ConfigError, match="CYBEROS_AI_GATEWAY_URL") as caught:
        Settings.load()
    assert SECRET not in str(caught.value)


def test_the_gateway_address_loses_its_closing_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is put after it."""
    monkeypatch.setenv("CYBEROS_AI_GATEWAY_URL", "https://gateway.example/base/")
    assert Settings.load().gateway_url == "https://gateway.example/base"


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing the settings shows no token."""
    monkeypatch.setenv("CYBEROS_AI_GATEWAY_TOKEN", SECRET)
    assert SECRET not in repr(Settings.load())
