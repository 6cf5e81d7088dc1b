"""A command's start: leaves out what libraries load and no command of ours ever uses.

Importing LangGraph is most of a short command's time. Two things in it are needless here and can
be left out by documented means of the language: a package that only lists 160 classes of another
service's API, and httpx's own command line with its terminal library. Entry points only: a library
has no business with other people's imports.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

__all__ = ["light_start"]

_ON_DEMAND: Final = frozenset({"langsmith.types"})
"""Packages whose modules are imported one by one; their `__init__` runs when a name is asked of it."""


def light_start() -> None:
    """Call once, before anything else is imported. Asking twice changes nothing.

    Collecting garbage amid imports finds none; the collector is back on its usual terms, only
    rarer, since what imports made stays until the end.
    """
    gc.set_threshold(50_000, 20, 20)
    # httpx catches this very ImportError: it is what an installation without its command line gives.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the packages above as the usual finder does, but puts off running them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _ON_DEMAND:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations:
            spec.loader = _OnDemand(spec.loader)
        return spec


class _OnDemand(importlib.abc.Loader):
    """Runs the package once, the first time a name is asked of it that is not there."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._lock = threading.RLock()
        self._ran = False

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def wanted(name: str) -> Any:
            if name.startswith("__") and name != "__all__":
                raise AttributeError(name)
            self._run(module)
            try:
                return vars(module)[name]
            except KeyError:
                said = f"module {module.__name__!r} has no attribute {name!r}"
                raise AttributeError(said) from None

        vars(module)["__getattr__"] = wanted

    def _run(self, module: ModuleType) -> None:
        with self._lock:
            if not self._ran:
                self._ran = True
                self._real.exec_module(module)
