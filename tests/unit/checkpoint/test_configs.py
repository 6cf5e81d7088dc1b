"""Reading a LangGraph config: whose call it is, about which thread, and what may be remembered."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from cuo_checkpoint.configs import CallConfig, metadata_of, tuple_config
from cuo_checkpoint.errors import InvalidIdentifier, TenantRequired

TENANT, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def read(values: dict[str, Any], tenant: uuid.UUID | None = TENANT, **more: Any) -> CallConfig:
    """Reads a config's configurable."""
    return CallConfig.read({"configurable": values}, tenant, None, **more)


def test_the_calls_own_tenant_comes_first() -> None:
    """The config's, else the constructor's, else an error."""
    assert read({"thread_id": "t", "tenant_id": str(OTHER)}).tenant_id == OTHER
    assert read({"thread_id": "t"}).tenant_id == TENANT
    with pytest.raises(TenantRequired):
        read({"thread_id": "t"}, None)


@pytest.mark.parametrize("tenant", ["", None])
def test_an_empty_tenant_in_the_config(tenant: Any) -> None:
    """None is absent; empty is a mistake that must not fall back to somebody's default."""
    if tenant is None:
        assert read({"thread_id": "t", "tenant_id": tenant}).tenant_id == TENANT
    else:
        with pytest.raises(TenantRequired):
            read({"thread_id": "t", "tenant_id": tenant})


def test_a_missing_thread() -> None:
    """It is missed where it is needed."""
    with pytest.raises(InvalidIdentifier):
        read({})
    assert read({}, needs_thread=False).thread is None
    with pytest.raises(InvalidIdentifier):
        _ = read({}, needs_thread=False).thread_id


def test_the_root_namespace() -> None:
    """Missing means the root for reads of one checkpoint, and any namespace for lists."""
    assert read({"thread_id": "t"}).ns == ""
    assert read({"thread_id": "t"}).ns_given is None
    assert read({"thread_id": "t", "checkpoint_ns": ""}).ns_given == ""


def test_the_runs_identity_is_langgraphs_own() -> None:
    """The control object of LangGraph's runtime, absent outside runs."""
    control = object()
    inside = read({"thread_id": "t", "__pregel_runtime": SimpleNamespace(control=control)})
    assert inside.control is control
    assert read({"thread_id": "t"}).control is None


@pytest.mark.parametrize(
    ("values", "outer"),
    [
        ({"checkpoint_ns": "s:1", "checkpoint_map": {"": "c1", "s:1": "c2"}}, ("", "c1")),
        ({"checkpoint_ns": "s:1|u:2", "checkpoint_map": {"": "c1", "s:1": "c2"}}, ("s:1", "c2")),
        ({"checkpoint_ns": "s:1"}, None),
        ({"checkpoint_ns": "", "checkpoint_map": {"": "c1"}}, None),
    ],
)
def test_where_a_subgraph_stands(values: dict[str, Any], outer: Any) -> None:
    """Its parent's namespace and the checkpoint that scheduled it."""
    assert read({"thread_id": "t", **values}).outer == outer


def test_only_listed_configurable_keys_are_remembered() -> None:
    """A key of configurable enters metadata if it is allow-listed, in whatever dict it appears."""
    config: Any = {
        "configurable": {"thread_id": "t", "api_key": "sk", "user": "u", "run_id": "r"},
        "metadata": {"api_key": "sk", "user": "u", "team": "blue", "obj": object()},
    }
    made = metadata_of(config, {"source": "loop", "step": 1}, frozenset({"run_id", "user"}))
    assert made == {"source": "loop", "step": 1, "user": "u", "team": "blue", "run_id": "r"}


def test_the_checkpoints_own_metadata_wins() -> None:
    """What LangGraph says about the checkpoint is not overwritten by a config's key of that name."""
    config: Any = {"configurable": {}, "metadata": {"source": "forged", "step": 9}}
    made = metadata_of(config, {"source": "loop", "step": 1}, frozenset())
    assert made == {"source": "loop", "step": 1}


def test_a_config_that_names_a_checkpoint() -> None:
    """The tenant is in it if the caller's had one, so that it can be passed back."""
    assert tuple_config(read({"thread_id": 5}), "c")["configurable"] == {
        "thread_id": "5",
        "checkpoint_ns": "",
        "checkpoint_id": "c",
    }
    given = read({"thread_id": "t", "tenant_id": str(OTHER)})
    assert tuple_config(given, "c")["configurable"]["tenant_id"] == str(OTHER)
