"""The store's settings, read from a real environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuo_checkpoint.errors import SettingInvalid
from cuo_checkpoint.settings import StoreSettings

SECRET = "pa55word-kept-secret"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "SCHEMA", "DATA_DIR", "SEAL_KEY", "EXPORT_DIR"):
        monkeypatch.delenv(f"CUO_{name}", raising=False)


def test_nothing_set_is_local_mode() -> None:
    """A fresh machine needs no setting."""
    settings = StoreSettings.load()
    assert (settings.mode, settings.schema_name, settings.conninfo) == ("local", "public", None)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """`CUO_DATABASE_URL= command` is the usual way to take a setting back."""
    monkeypatch.setenv("CUO_DATABASE_URL", "")
    assert StoreSettings.load().mode == "local"


def test_a_database_is_server_mode_and_its_driver_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQLAlchemy's spelling is accepted and handed to libpq in libpq's own."""
    monkeypatch.setenv("CUO_DATABASE_URL", "postgresql+psycopg://app@db.example/cuo")
    settings = StoreSettings.load()
    assert (settings.mode, settings.conninfo) == ("server", "postgresql://app@db.example/cuo")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUO_DATABASE_URL", f"mysql://app:{SECRET}@db/cuo"),
        ("CUO_DATABASE_URL", f"://{SECRET}"),
        ("CUO_SCHEMA", "elsewhere"),
        ("CUO_SCHEMA", "s" * 64),
    ],
)
def test_a_wrong_setting_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The message and the whole exception chain are free of what was read."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingInvalid, match=name) as caught:
        StoreSettings.load()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing the settings, as a debugging person does, shows no secret."""
    monkeypatch.setenv("CUO_DATABASE_URL", f"postgresql://app:{SECRET}@db/cuo")
    monkeypatch.setenv("CUO_SEAL_KEY", SECRET)
    assert SECRET not in repr(StoreSettings.load())


def test_folders_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later change of the working directory must not move the data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUO_DATA_DIR", "here")
    monkeypatch.setenv("CUO_EXPORT_DIR", "there")
    settings = StoreSettings.load()
    assert (settings.data_dir, settings.export_dir) == (tmp_path / "here", tmp_path / "there")
