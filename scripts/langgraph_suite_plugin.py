"""Pytest plugin: LangGraph's own tests, with our store as the one checkpointer.

It replaces two fixtures of the suite's conftest and leaves out tests that use neither. Nothing
else of the suite is changed. The server is named by CUO_SUITE_APP and CUO_SUITE_ADMIN; each test
has a tenant of its own, and what it left in the log is proved sound when it ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import PostgresCheckpointer

FIXTURES = ("sync_checkpointer", "async_checkpointer")
STOCK = os.environ.get("CUO_SUITE_SAVER") == "stock"
OUTCOMES: dict[str, dict[str, str]] = {}
PROVED: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Before pytest reads the fixtures of the suite's conftest, two of them become ours."""
    if isinstance(plugin, ModuleType) and plugin.__name__ == "tests.conftest":
        for name in FIXTURES:
            setattr(plugin, name, globals()[f"_{name}"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what is parametrised by a checkpointer."""
    kept = [i for i in items if set(FIXTURES) & set(getattr(i, "fixturenames", ()))]
    out = [i for i in items if i not in set(kept)]
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's worst phase is its outcome."""
    known = OUTCOMES.setdefault(report.nodeid, {"outcome": "passed", "reason": ""})
    if report.failed:
        first = str(getattr(report.longrepr, "reprcrash", None) or report.longrepr)
        known.update(outcome="failed" if report.when == "call" else "error", reason=first[-600:])
    elif report.skipped and known["outcome"] == "passed":
        known.update(outcome="skipped", reason=str(report.longrepr)[-300:])


def pytest_sessionfinish() -> None:
    """Leaves the outcomes where the script reads them."""
    target = os.environ.get("CUO_SUITE_REPORT")
    if target:
        Path(target).write_text(json.dumps({"tests": OUTCOMES, "proved": dict(PROVED)}))


def _options() -> dict[str, Any]:
    # The suite stores its own classes everywhere and uses every durability.
    return {
        # Not uuid4: tests that fix its results count on the first ones.
        "tenant_id": uuid.UUID(bytes=os.urandom(16), version=4),
        "allowed_types": "any",
        "allow_exit": True,
        "max_connections": 10,
        # Only named keys enter metadata; these are those the suite looks for there.
        "metadata_keys": (
            "run_id",
            "test_config_1",
            "test_config_2",
            "test_config_3",
            "test_config_4",
        ),
    }


@pytest.fixture(params=["stock" if STOCK else "cuo_sync"])
def _sync_checkpointer(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "stock":
        from langgraph.checkpoint.postgres import PostgresSaver

        with _stock_database() as dsn, PostgresSaver.from_conn_string(dsn) as saver:
            saver.setup()
            yield saver
        return
    options = _options()
    with PostgresCheckpointer(os.environ["CUO_SUITE_APP"], **options) as saver:
        yield saver
    _prove(options["tenant_id"])


@pytest.fixture(params=["stock" if STOCK else "cuo_async"])
async def _async_checkpointer(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "stock":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        with _stock_database() as dsn:
            async with AsyncPostgresSaver.from_conn_string(dsn) as saver:
                await saver.setup()
                yield saver
        return
    options = _options()
    async with PostgresCheckpointer(os.environ["CUO_SUITE_APP"], **options) as saver:
        yield saver
    _prove(options["tenant_id"])


class _stock_database:  # noqa: N801 - used as a function
    """A database of its own for the stock saver, which knows no tenants."""

    def __enter__(self) -> str:
        admin = os.environ["CUO_SUITE_ADMIN"]
        self.name = f"stock_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{self.name}"')
        return psycopg.conninfo.make_conninfo(admin, dbname=self.name)

    def __exit__(self, *_: object) -> None:
        with psycopg.connect(os.environ["CUO_SUITE_ADMIN"], autocommit=True) as conn:
            conn.execute(f'DROP DATABASE "{self.name}" WITH (FORCE)')


def _prove(tenant: uuid.UUID) -> None:
    """Chains, digests, lineage and index tables of what the test left agree with one another."""
    if os.environ.get("CUO_SUITE_PROVE") != "1":
        return
    lens = _lens()(os.environ["CUO_SUITE_ADMIN"], str(tenant))
    lens.prove()
    PROVED["tenants"] += 1
    PROVED["rows"] += len(lens.rows())


def _lens() -> Any:
    path = Path(__file__).resolve().parent.parent / "tests" / "integration" / "conftest.py"
    spec = importlib.util.spec_from_file_location("cuo_suite_lens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name while it is executed.
    import sys

    sys.modules["cuo_suite_lens"] = module
    spec.loader.exec_module(module)
    return module.Lens
