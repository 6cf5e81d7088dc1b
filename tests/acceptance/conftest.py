"""The commands as people run them: a process each, on a real local database kept warm."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuo_checkpoint.local import local_database
from cuo_checkpoint.runs import RunReader
from cuo_supervisor.identity import LOCAL_IDENTITY

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell, imported
from skill_catalog import catalog_running


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """A data folder whose database runs for the whole session: commands join it."""
    folder = Path(tempfile.mkdtemp(prefix="cuo-acc-"))
    folder.chmod(0o711)
    try:
        with local_database(data_dir=folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def model_server() -> Iterator[socket.socket]:
    """Commands forked from it find the model client's modules imported."""
    with imported("--model-client") as server:
        yield server


@pytest.fixture
def cuo(data_dir: Path, tmp_path: Path, command_server: socket.socket) -> Shell:
    """Local mode, on the shared database, with a home of its own and no gateway."""
    return Shell(
        {
            "HOME": str(tmp_path),
            "CUO_DATA_DIR": str(data_dir),
            "CYBEROS_AI_GATEWAY_URL": "http://127.0.0.1:9",
        },
        command_server,
    )


@pytest.fixture
def reader(data_dir: Path) -> Iterator[RunReader]:
    """Reads the local tenant's log back, as the program itself does."""
    with (
        local_database(data_dir=data_dir) as server,
        RunReader(server.app_dsn, tenant_id=LOCAL_IDENTITY.tenant_id) as opened,
    ):
        yield opened


@pytest.fixture
def catalog(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the catalogue in which checking a tax code runs a program of the test's own."""

    return lambda program: catalog_running(tmp_path / "catalog", program)
