"""What the doctor looks at. Each look returns what it found; what it raises is a finding too."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cuo_supervisor.cli.common import notice_when_slow, waiting_text
from cuo_supervisor.errors import IdentityRejected, SupervisorError
from cuo_supervisor.settings import Settings

if TYPE_CHECKING:
    from cuo_supervisor.compose import Place

__all__ = ["LOOKS", "Check", "guarded", "strangers"]

_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `essential` ones decide the exit code."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    essential: bool = True


Look = Callable[[Settings], list[Check]]


def guarded(look: Look, settings: Settings, remedy: str) -> list[Check]:
    """What a look found; what stopped it, with the remedy."""
    from cuo_checkpoint.errors import CheckpointError

    try:
        return look(settings)
    except (SupervisorError, CheckpointError, OSError) as error:
        return [Check(look.__name__.strip("_").replace("_", " "), False, str(error), remedy)]


def strangers() -> list[Check]:
    """Variables that look like ours and are read by nothing: a misspelt one changes nothing."""
    known = {
        str(field.validation_alias or f"CUO_{name.upper()}")
        for name, field in Settings.model_fields.items()
    }
    found = []
    for name in sorted(os.environ):
        if name.startswith(("CUO_", "CYBEROS_")) and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {close[0]}?" if close else "Unset it."
            said = f"{name} is set, but no such setting exists"
            found.append(Check("settings", False, said, meant, essential=False))
    return found


def _database(settings: Settings) -> list[Check]:
    from cuo_checkpoint import readiness
    from cuo_supervisor.compose import open_place

    with (
        notice_when_slow(waiting_text(settings)),
        open_place(settings, check=False) as place,
    ):
        found = readiness.check(place.conninfo, schema=place.schema)
        checks = [Check(f"database: {f.name}", f.ok, f.detail, f.remedy) for f in found]
        return [*checks, *_seals(settings, place)] if all(f.ok for f in found) else checks


def _seals(settings: Settings, place: Place) -> list[Check]:
    """How much of the caller's tenant is sealed. Without seals a cut tail could not be noticed."""
    from cuo_checkpoint.runs import RunReader
    from cuo_checkpoint.seal_view import sealed_until
    from cuo_supervisor.compose import identity_of

    command = "cuo-archive --local seal" if settings.mode == "local" else "cuo-archive seal"
    remedy = f"Run {command} --all every few minutes (CUO_SEAL_KEY, CUO_EXPORT_DIR)."
    try:
        tenant = identity_of(settings, approver=True).tenant_id
    except IdentityRejected:
        return []
    with RunReader(place.conninfo, tenant_id=tenant, schema=place.schema, connections=1) as reader:
        last, behind = sealed_until(reader.engine, reader.tenant_id)
    if last is None:
        found = "no head was ever signed for this tenant"
    elif behind:
        found = (
            f"last signed {last:%Y-%m-%d %H:%M} UTC; runs of more than an hour ago are not sealed"
        )
    else:
        return [Check("seal", True, f"last signed {last:%Y-%m-%d %H:%M} UTC")]
    return [Check("seal", False, found, remedy, essential=False)]


def _seal_settings(settings: Settings) -> list[Check]:
    if settings.seal_key is None and settings.export_dir is None:
        return []
    checks = []
    if settings.seal_key is not None:
        from cuo_checkpoint import keys

        keys.load(settings.seal_key.get_secret_value())
        checks.append(Check("seal key", True, "CUO_SEAL_KEY holds a key"))
    else:
        remedy = "Name the key file in CUO_SEAL_KEY, or unset CUO_EXPORT_DIR."
        checks.append(Check("seal key", False, "CUO_EXPORT_DIR is set alone", remedy, False))
    folder = settings.export_dir
    if folder is None:
        remedy = "Set CUO_EXPORT_DIR to a folder that the database's owner cannot write."
        checks.append(Check("export folder", False, "CUO_SEAL_KEY is set alone", remedy, False))
    elif not folder.is_dir() or not os.access(folder, os.W_OK):
        remedy = f"Make it, and let this account write there: mkdir -p {folder}"
        checks.append(Check("export folder", False, f"{folder} cannot be written", remedy))
    else:
        checks.append(Check("export folder", True, str(folder)))
    return checks


def _catalogue(settings: Settings) -> list[Check]:
    from cuo_supervisor.catalog_loader import load_catalog

    catalog = load_catalog(settings.catalog)
    return [Check("catalogue", True, f"{len(catalog.skills)} skills, {catalog.snapshot_hash[:16]}")]


def _keys(settings: Settings) -> list[Check]:
    """Whether the keys that sign tokens can be had, asking for one that nobody has."""
    from cuo_supervisor.jwks import key_source

    if settings.mode == "local":
        return []
    try:
        key_source(settings.jwks or "").find("doctor looks whether keys can be had")
    except IdentityRejected as error:
        if error.reason == "keys_unavailable":
            remedy = "Let this machine reach CUO_JWKS, or correct it."
            return [Check("token keys", False, str(error), remedy)]
    return [Check("token keys", True, "CUO_JWKS can be read")]


def _identity(settings: Settings) -> list[Check]:
    from cuo_supervisor.compose import identity_of

    if settings.mode == "server" and settings.jwt is None:
        said = "CUO_JWT is not set: the service needs none, other commands do"
        return [Check("identity", False, said, "Set CUO_JWT for commands.", essential=False)]
    who = identity_of(settings, approver=True)
    roles = ", ".join(sorted(who.roles)) or "no role"
    return [Check("identity", True, f"issuer {who.issuer}, tenant {who.tenant_id}, {roles}")]


def _skill_isolation(settings: Settings) -> list[Check]:
    from cuo_supervisor.compose import make_runner

    report = make_runner(settings).sandbox_report()
    detail = f"{report.level} ({report.reason})" if report.reason else report.level
    return [Check("skill isolation", report.full, detail, report.remedy, essential=False)]


def _outbox(settings: Settings) -> list[Check]:
    """Whether skills can leave drafts: the folder, or the nearest one above it, may be written."""
    from cuo_supervisor.compose import outbox_of

    place = outbox_of(settings)
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return [Check("outbox", True, str(place))]
    remedy = "Name a folder this account may write in CUO_DATA_DIR."
    return [Check("outbox", False, f"{there} cannot be written", remedy)]


def _gateway(settings: Settings) -> list[Check]:
    """Whether something listens there. Nothing is asked: a request would cost the tenant money."""
    said = f"{settings.gateway_url} answers"
    said += ", token set" if settings.gateway_token else ", no token set"
    fault = _unreachable(settings.gateway_url)
    if fault is None:
        return [Check("AI gateway", True, said)]
    detail = (
        f"{settings.gateway_url} does not answer ({fault}); unclear requests will be asked back"
    )
    remedy = "Start the gateway, or set CYBEROS_AI_GATEWAY_URL."
    return [Check("AI gateway", False, detail, remedy, essential=False)]


def _telemetry(settings: Settings) -> list[Check]:
    names = [name for name in os.environ if name.startswith("OTEL_EXPORTER_OTLP")]
    if not names:
        return []
    if not _installed("opentelemetry-exporter-otlp-proto-http"):
        said = "OTEL_EXPORTER_OTLP_* is set, the otel extra is not installed"
        remedy = "pip install 'cuo[otel]'"
        return [Check("telemetry", False, said, remedy, essential=False)]
    place = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    fault = _unreachable(place)
    if fault is None:
        return [Check("telemetry", True, "the collector answers")]
    said = f"the collector does not answer ({fault}); nothing waits for it, spans are lost"
    remedy = "Start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT."
    return [Check("telemetry", False, said, remedy, essential=False)]


def _service(settings: Settings) -> list[Check]:
    missing = [name for name in ("fastapi", "uvicorn", "jinja2") if not _installed(name)]
    if not missing:
        return [Check("service", True, "the packages of cyberos-cuo serve are installed")]
    said = f"cyberos-cuo serve cannot start: {', '.join(missing)} missing"
    return [Check("service", False, said, "pip install 'cuo[api]'", essential=False)]


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _unreachable(address: str) -> str | None:
    """Why nothing answers there; None when something does."""
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_SECONDS):
            return None
    except (OSError, ValueError) as error:
        return type(error).__name__


LOOKS: Final[Sequence[tuple[Look, str]]] = (
    (_database, "Start the database, or correct CUO_DATABASE_URL; locally, CUO_DATA_DIR."),
    (_seal_settings, "Make a key with cuo-archive keys new FILE, and name FILE in CUO_SEAL_KEY."),
    (_catalogue, "Correct the manifest named, or unset CUO_CATALOG for the one that ships."),
    (_keys, "Set CUO_JWKS to the file or https address with the keys that sign tokens."),
    (_identity, "Obtain a token from the identity provider, and set CUO_JWT to it."),
    (_skill_isolation, "Install bubblewrap."),
    (_outbox, "Name a folder this account may write in CUO_DATA_DIR."),
    (_gateway, "Correct CYBEROS_AI_GATEWAY_URL."),
    (_telemetry, "Correct OTEL_EXPORTER_OTLP_ENDPOINT."),
    (_service, "pip install 'cuo[api]'"),
)
"""In this order, each with what helps when it cannot even look."""
