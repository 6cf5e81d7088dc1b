"""What a run's page says of its seal."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, keys
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_view import read_seal
from cuo_supervisor.http.run_page import seal_of

RING = KeyRing((keys.generate("test"),))


@pytest.fixture
def look(
    store: Any, shared_place: Any, tenant_id: str, tmp_path: Path
) -> Callable[[uuid.UUID], Any]:
    """A run's seal as the application sees it, and what the page says of it."""

    def call(run_id: uuid.UUID) -> Any:
        with RunReader(shared_place.app, tenant_id=tenant_id) as reader:
            seal = read_seal(reader.engine, reader.tenant_id, run_id)
            run = reader.get_run(run_id)
            assert run is not None
            return seal, seal_of(seal, run)["text"]

    return call


def test_a_seal_is_shown_with_its_proof(
    store: Any, shared_place: Any, tenant_id: str, tmp_path: Path, look: Any
) -> None:
    """Unsealed, sealed whole, grown since, and sealed again."""
    writer = CheckpointWriter(store)
    runs = [uuid.uuid4() for _ in range(5)]
    for run_id in runs:
        writer.write(run_id, "run_started", {})
    assert look(runs[2]) == (None, "Not sealed yet.")
    with Sealer(shared_place.auditor, ring=RING, folder=HeadFolder(tmp_path)) as sealer:
        sealer.seal(uuid.UUID(tenant_id))
        for run_id in runs:
            seal, text = look(run_id)
            assert seal.included
            assert seal.fits
            assert "whole chain" in text
            assert len(seal.proof) in (1, 3)
            assert seal.to_json()["tree_size"] == 5
        writer.write(runs[2], "node_entered", {}, node_name="a")
        assert "chain to row" in look(runs[2])[1]
        sealer.seal(uuid.UUID(tenant_id))
        assert "whole chain" in look(runs[2])[1]
        assert look(runs[2])[0].leaf_index == 5


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        (
            "UPDATE cuo_memory_audit SET row_sha256 = sha256('x') WHERE run_id = %s",
            "not what was sealed",
        ),
        (
            "UPDATE cuo_seal_leaves SET sealed_at = now() + interval '1 day' WHERE run_id = %s",
            "not what was sealed",
        ),
        (
            (
                "UPDATE cuo_seal_heads SET root_sha256 = sha256('x') WHERE tenant_id ="
                " (SELECT tenant_id FROM cuo_runs WHERE run_id = %s)"
            ),
            "not in the signed tree",
        ),
    ],
)
def test_a_seal_that_does_not_fit_is_loud(
    store: Any,
    shared_place: Any,
    tenant_id: str,
    tmp_path: Path,
    look: Any,
    statement: str,
    where: str,
) -> None:
    """Chain, leaf or head changed by a superuser: the page says the seal does not fit."""
    run_id = uuid.uuid4()
    CheckpointWriter(store).write(run_id, "run_started", {})
    with Sealer(shared_place.auditor, ring=RING, folder=HeadFolder(tmp_path)) as sealer:
        sealer.seal(uuid.UUID(tenant_id))
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(statement, [run_id])
    assert where in look(run_id)[1]
