"""The CUO supervisor: one request in words becomes one governed skill call.

    from cuo_supervisor import run_supervisor
    decision = await run_supervisor("validate MST 0301479073", persona_key="cfo")

Names are imported on first use, so that `cyberos-cuo --help` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from cuo_supervisor.errors import SupervisorError

if TYPE_CHECKING:
    from cuo_supervisor.catalog_loader import load_catalog
    from cuo_supervisor.compose import CuoStore, Place
    from cuo_supervisor.core.models import RoutingDecision
    from cuo_supervisor.graph import build_supervisor_graph
    from cuo_supervisor.identity import Identity
    from cuo_supervisor.library import run_supervisor, run_supervisor_sync
    from cuo_supervisor.ports import Clock, Runner, Store
    from cuo_supervisor.supervisor import SYSTEM_CLOCK, Answer, Supervisor

__all__ = [
    "SYSTEM_CLOCK",
    "Answer",
    "Clock",
    "CuoStore",
    "Identity",
    "Place",
    "RoutingDecision",
    "Runner",
    "Store",
    "Supervisor",
    "SupervisorError",
    "build_supervisor_graph",
    "load_catalog",
    "run_supervisor",
    "run_supervisor_sync",
]

_HOMES: Final = {
    "SYSTEM_CLOCK": "cuo_supervisor.supervisor",
    "Answer": "cuo_supervisor.supervisor",
    "Clock": "cuo_supervisor.ports",
    "CuoStore": "cuo_supervisor.compose",
    "Identity": "cuo_supervisor.identity",
    "Place": "cuo_supervisor.compose",
    "RoutingDecision": "cuo_supervisor.core.models",
    "Runner": "cuo_supervisor.ports",
    "Store": "cuo_supervisor.ports",
    "Supervisor": "cuo_supervisor.supervisor",
    "build_supervisor_graph": "cuo_supervisor.graph",
    "load_catalog": "cuo_supervisor.catalog_loader",
    "run_supervisor": "cuo_supervisor.library",
    "run_supervisor_sync": "cuo_supervisor.library",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
