"""What every test may ask for. Nothing here starts a server until a test needs one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import hypothesis  # noqa: F401 - its plugin imports it at the session's end, deep in pytest's stack
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from cuo_checkpoint import migrate
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.local import OWNER_ROLE, LocalServer, provision

sys.path.insert(0, str(Path(__file__).parent / "doubles"))

from forked_commands import imported

ROLES = (OWNER_ROLE, "cyberos_app", "cyberos_archiver", "cyberos_auditor")
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="of a sweep's points, and of the cases of tests marked sweep, try every Nth and the"
        " last three (default: all)",
    )


def pytest_configure() -> None:
    # A shell's background job ignores SIGINT, and so would every command started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _every(config: pytest.Config, count: int, start: int = 0) -> list[int]:
    every = config.getoption("every")
    return sorted({*range(start % every, count, every), *range(max(0, count - 3), count)})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test marked `sweep` only the cases that this run tries stay, of each test others."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {
        item
        for number, several in enumerate(cases.values())
        for item in several
        if item not in [several[n] for n in _every(config, len(several), 4 * number)]
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def swept(pytestconfig: pytest.Config) -> Callable[[int], list[int]]:
    """Which of a sweep's points, numbered from 0, this run tries: all, or fewer with --every."""
    return lambda count: _every(pytestconfig, count)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A server for the tests: how to reach it as a superuser, and the migrated template."""

    admin: str
    template: str

    def dsn(self, database: str, role: str | None = None) -> str:
        """A URL for `database`, as `role` (by default as the superuser)."""
        parts = {k: str(v) for k, v in conninfo_to_dict(self.admin).items() if v is not None}
        user = role or parts.pop("user", "postgres")
        parts.pop("user", None)
        parts.pop("dbname", None)
        secret = parts.pop("password", None)
        login = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        query = "&".join(f"{k}={quote(v, safe='')}" for k, v in parts.items())
        return f"postgresql://{login}@/{quote(database, safe='')}?{query}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server and one migrated template database for the whole run.

    TEST_DATABASE_URL names a running server (as superuser); CUO_TEST_PG=15 runs Debian's
    PostgreSQL 15 instead of the embedded one. A server that cannot be had stops the run: skipping
    everything would look like passing.
    """
    with contextlib.ExitStack() as stack:
        try:
            admin = os.environ.get("TEST_DATABASE_URL") or stack.enter_context(_own_server())
            made = Cluster(admin, f"cuo_template_{uuid.uuid4().hex[:12]}")
            stack.enter_context(_template(made))
        except (psycopg.OperationalError, CheckpointError) as error:
            pytest.exit(f"no PostgreSQL for the tests: {error}", returncode=3)
        yield made


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """The name of this test's own clone of the template."""
    name = f"cuo_test_{uuid.uuid4().hex[:12]}"
    _create(cluster.admin, name, template=cluster.template)
    yield name
    _drop(cluster.admin, name)


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[str]:
    """The name of a database nothing has been migrated in, owned by the owner role."""
    name = f"cuo_empty_{uuid.uuid4().hex[:12]}"
    _create(cluster.admin, name, template="template1")
    yield name
    _drop(cluster.admin, name)


@pytest.fixture
def admin_dsn(cluster: Cluster, database: str) -> str:
    """This test's database as superuser: for looking past row security, never for behaviour."""
    return cluster.dsn(database)


@pytest.fixture
def owner_dsn(cluster: Cluster, database: str) -> str:
    """This test's database as the schema's owner."""
    return cluster.dsn(database, OWNER_ROLE)


@pytest.fixture
def app_dsn(cluster: Cluster, database: str) -> str:
    """This test's database as the program itself connects."""
    return cluster.dsn(database, "cyberos_app")


@pytest.fixture
def archiver_dsn(cluster: Cluster, database: str) -> str:
    """This test's database as the retention job connects."""
    return cluster.dsn(database, "cyberos_archiver")


@pytest.fixture
def auditor_dsn(cluster: Cluster, database: str) -> str:
    """This test's database as the sealer, verifier and exporter connect."""
    return cluster.dsn(database, "cyberos_auditor")


@pytest.fixture
def tenant_id() -> str:
    """A tenant nobody else uses."""
    return str(uuid.uuid4())


@pytest.fixture
def other_tenant_id() -> str:
    """A second tenant, whose rows the first must never see."""
    return str(uuid.uuid4())


@pytest.fixture
def open_tmp_path() -> Iterator[Path]:
    """A short folder that an unprivileged server account can reach, unlike root's `tmp_path`."""
    folder = Path(tempfile.mkdtemp(prefix="cuo-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_server() -> Iterator[str]:
    wanted = os.environ.get("CUO_TEST_PG", "embedded")
    if wanted not in ("embedded", "15"):
        pytest.exit(f"CUO_TEST_PG is {wanted!r}; it may be 'embedded' or '15'", returncode=3)
    folder = Path(tempfile.mkdtemp(prefix="cuo-pg-"))
    server = LocalServer(
        folder,
        bin_dir=DEBIAN_15 if wanted == "15" else None,
        # A lost test database is no loss; a sync per commit would be most of the suite's time.
        settings={"fsync": "off", "full_page_writes": "off"},
    )
    try:
        with server:
            yield server.admin_dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _template(cluster: Cluster) -> Iterator[None]:
    provision(cluster.admin, database=None)
    secret = conninfo_to_dict(cluster.admin).get("password")
    if secret:
        with psycopg.connect(cluster.admin, autocommit=True) as conn:
            for role in ROLES:
                conn.execute(
                    sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                        sql.Identifier(role), sql.Literal(secret)
                    )
                )
    _create(cluster.admin, cluster.template, template="template1")
    try:
        migrate.upgrade(cluster.dsn(cluster.template, OWNER_ROLE))
        yield
    finally:
        _drop(cluster.admin, cluster.template)


def _create(admin: str, name: str, *, template: str) -> None:
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(template), sql.Identifier(OWNER_ROLE)
            )
        )


def _drop(admin: str, name: str) -> None:
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )


@pytest.fixture(scope="session")
def command_server() -> Iterator[socket.socket]:
    """What commands are forked from, so that a test of many does not import as often."""
    with imported() as server:
        yield server
