"""The composition root: settings in, a `Supervisor` with its real ports out.

This is the one module of the supervisor (with the CLI and the HTTP service) that knows the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from langchain_core.runnables import RunnableConfig

from cuo_checkpoint import errors as store_errors
from cuo_checkpoint.configs import NEW_THREAD
from cuo_checkpoint.saver import PostgresCheckpointer
from cuo_supervisor import catalog_threads
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compat import require_langgraph
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.scrub import scrub
from cuo_supervisor.errors import (
    AuditWriteFailed,
    DataError,
    IdentityRejected,
    StoreDown,
    SupervisorError,
    UsageError,
)
from cuo_supervisor.gateway import Gateway
from cuo_supervisor.gateway_provider import is_ready, warm_up_problem
from cuo_supervisor.identity import (
    LOCAL_IDENTITY,
    ROLE_AGENT_PERSONA,
    ROLE_APPROVER,
    Identity,
    TokenVerifier,
)
from cuo_supervisor.nodes import OUTBOX
from cuo_supervisor.settings import Settings
from cuo_supervisor.skills import SkillRunner
from cuo_supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from cuo_checkpoint.runs import RunReader

__all__ = [
    "CuoStore",
    "Place",
    "identity_of",
    "make_runner",
    "make_supervisor",
    "open_place",
    "outbox_of",
    "translate",
]

_LOOK_SECONDS = 0.02
_LOADING_LOOKS = 3000
"""A one-shot command waits a minute for its model client to load, looking this often."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the log is: a conninfo for the application role, and the schema.

    `auditor`: a conninfo for the role that sees every tenant, where this process has one.
    """

    conninfo: str
    schema: str
    auditor: str | None = None


class CuoStore:
    """The supervisor's `Store` port over the PostgreSQL log."""

    def __init__(self, place: Place, *, max_connections: int = 8) -> None:
        self._place = place
        self.saver = PostgresCheckpointer(
            place.conninfo,
            schema=place.schema,
            scrub=scrub,
            metadata_keys=("run_id",),
            max_connections=max_connections,
            # Two processes on one run would each end it with a decision; so only one may go on.
            strict_parent=True,
        )
        self.outbox_channel = OUTBOX
        # Were the id there all the same, strict_parent refuses the run's first row.
        self.new_run = {NEW_THREAD: True}

    async def claim(
        self,
        config: RunnableConfig,
        name: str,
        value: Any,
        *,
        approval: Mapping[str, Any] | None = None,
    ) -> bool:
        if approval is None:
            return await self.saver.aclaim(config, name, value)
        return await self.saver.aclaim(config, name, value, approval=approval)

    async def claimed(self, config: RunnableConfig, name: str) -> Any:
        return await asyncio.to_thread(self._claimed, config["configurable"], name)

    def _claimed(self, where: Mapping[str, Any], name: str) -> Any:
        with self._reader(where) as reader:
            for write in reader.writes(str(where["run_id"])):
                # A claim stands under an id no checkpoint can have.
                if write.channel == name and write.lg_checkpoint_id.startswith("$claim/"):
                    # The reader shows values as stored, for an auditor: a time in ns is tagged there.
                    return self.saver.plans.serializer.decode(write.value)
        return None

    async def age(self, config: RunnableConfig) -> float:
        return await asyncio.to_thread(self._age, config["configurable"])

    def _age(self, where: Mapping[str, Any]) -> float:
        with self._reader(where) as reader:
            age = reader.age(str(where["run_id"]))
        return 0.0 if age is None else age.total_seconds()

    def _reader(self, where: Mapping[str, Any]) -> RunReader:
        # SQLAlchemy costs a command a third of a second; only a few of them read through it.
        from cuo_checkpoint.runs import RunReader

        place, tenant = self._place, str(where["tenant_id"])
        return RunReader(place.conninfo, tenant_id=tenant, schema=place.schema, connections=1)

    async def keep_catalog(
        self, tenant_id: str, snapshot_hash: str, month: str, snapshot: Mapping[str, Any]
    ) -> None:
        await catalog_threads.keep(self.saver, tenant_id, snapshot_hash, month, snapshot)

    async def read_catalog(
        self, tenant_id: str, snapshot_hash: str, month: str
    ) -> Mapping[str, Any] | None:
        return await catalog_threads.read(self.saver, tenant_id, snapshot_hash, month)

    async def note_replay(self, tenant_id: str, run_id: Any, body: Mapping[str, Any]) -> None:
        from cuo_checkpoint.audit_append import append_replayed

        await self.saver.asetup()
        await asyncio.to_thread(
            append_replayed,
            self._place.conninfo,
            schema=self._place.schema,
            tenant_id=tenant_id,
            run_id=run_id,
            body=body,
        )

    def translate(self, error: BaseException) -> Exception | None:
        return translate(error)

    async def aclose(self) -> None:
        await self.saver.aclose()


def translate(error: BaseException) -> SupervisorError | None:
    """The supervisor's error for one of the store's, looking through wrappers; None otherwise."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, store_errors.CheckpointError):
        seen = seen.__cause__
    if seen is None:
        return None
    gone = (store_errors.StoreUnavailable, store_errors.SchemaNotReady, store_errors.ExportRefused)
    if isinstance(seen, gone):
        return StoreDown(str(seen))
    if isinstance(seen, store_errors.StaleParent):
        return DataError("another process is at work on this run; nothing more was done here")
    if isinstance(seen, (store_errors.AuditFailed, store_errors.WriteRefused)):
        return AuditWriteFailed(f"a step could not be recorded, so it did not happen: {seen}")
    if isinstance(seen, (store_errors.InvalidIdentifier, store_errors.TenantRequired)):
        return UsageError(str(seen))
    return DataError(str(seen))


@contextlib.contextmanager
def open_place(settings: Settings, *, check: bool = True) -> Iterator[Place]:
    """The log's place for the length of a block: the named server, or the local database, started.

    Raises StoreDown when the server cannot be reached or is not as this version needs it (with
    the remedy; `check=False` leaves that to the caller), and when the local database cannot be
    started or migrated.
    """
    if settings.conninfo is not None:
        place = Place(settings.conninfo, settings.schema_name)
        if check:
            _require_ready(place)
        yield place
        return
    from cuo_checkpoint.local import local_database

    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(local_database(data_dir=settings.data_dir))
        except store_errors.CheckpointError as error:
            raise StoreDown(str(error)) from error
        yield Place(server.app_dsn, "public", server.auditor_dsn)


def _require_ready(place: Place) -> None:
    """Refuses a database that is not migrated, not protected or not granted; makes missing months."""
    from cuo_checkpoint import readiness

    try:
        try:
            readiness.require(place.conninfo, schema=place.schema)
        except store_errors.SchemaNotReady as first:
            from cuo_checkpoint import archive  # loads SQLAlchemy, which no good day needs

            try:
                archive.ensure_partitions(place.conninfo, schema=place.schema)
            except store_errors.CheckpointError:
                raise first from None
            readiness.require(place.conninfo, schema=place.schema)
    except store_errors.CheckpointError as error:
        raise StoreDown(str(error)) from error


def identity_of(
    settings: Settings, token: str | None = None, *, approver: bool = False
) -> Identity:
    """Who asks: the local operator, or whom the token (by default CUO_JWT) proves.

    A token speaks for an agent persona; with `approver` one that may only approve will do too.
    Raises IdentityRejected.
    """
    if settings.mode == "local":
        return LOCAL_IDENTITY
    given = token or (settings.jwt.get_secret_value() if settings.jwt else "")
    if not given:
        raise IdentityRejected("missing", "server mode needs a token: set CUO_JWT")
    verifier = TokenVerifier(
        jwks=settings.jwks or "",
        issuer=settings.jwt_issuer or "",
        audience=settings.jwt_audience or "",
    )
    roles = {ROLE_AGENT_PERSONA, ROLE_APPROVER} if approver else {ROLE_AGENT_PERSONA}
    return verifier.verify(given, accept=frozenset(roles))


def make_supervisor(
    settings: Settings,
    place: Place | None,
    *,
    say: Callable[[str], None] | None = None,
    max_connections: int = 8,
    catalog: Catalog | None = None,
) -> Supervisor:
    """A supervisor with its real ports. `place=None` allows dry runs only.

    `catalog` stands in for the one the settings name, which is then not read. Raises ConfigError
    for a LangGraph this version does not know, and for settings that are wrong.

    `say` makes it a one-shot command: the model client is loaded when first needed, which is
    announced, and the cascade's clock starts afterwards. Without it the caller warms the gateway.
    """
    require_langgraph()
    gateway = Gateway(base_url=settings.gateway_url, token=settings.gateway_token)
    return Supervisor(
        catalog=load_catalog(settings.catalog) if catalog is None else catalog,
        store=CuoStore(place, max_connections=max_connections) if place is not None else None,
        model=gateway,
        runner=make_runner(settings),
        prepare_model=None if say is None else _loader(gateway, say),
        closers=(gateway.aclose,),
    )


def make_runner(settings: Settings) -> SkillRunner:
    """The skill runner, its outbox in the data folder."""
    return SkillRunner(outbox=outbox_of(settings))


def outbox_of(settings: Settings) -> Path:
    """The folder skills leave drafts in."""
    base = settings.data_dir or platformdirs.user_data_path("cyberos-cuo")
    return base / "outbox"


def _loader(gateway: Gateway, say: Callable[[str], None]) -> Callable[[], Any]:
    async def load() -> None:
        if gateway.ready:
            return
        say("loading the model client ...")
        gateway.warm_up()
        # Not in a thread: an interrupted command would wait for it at its end.
        for _ in range(_LOADING_LOOKS):
            if is_ready() or warm_up_problem() is not None:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    return load
