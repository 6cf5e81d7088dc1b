"""Whether the libraries this version is built on are the ones it was built for.

The store reads the order of LangGraph's own calls, which another minor version may change without
a word: then the log would say what did not happen. So a start refuses; a canary test watches what
the supported version does.
"""

from __future__ import annotations

from importlib import metadata
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from cuo_supervisor.errors import ConfigError

__all__ = ["LANGGRAPH", "import_problem", "langgraph_problem", "require_langgraph"]

_RANGE: Final = ">=1.2,<1.3"
LANGGRAPH: Final = SpecifierSet(_RANGE)
"""What this version was built on; the package's own dependency says the same."""

_ROOTS: Final = frozenset({"langgraph", "langchain_core"})


def langgraph_problem() -> str | None:
    """What is wrong with the LangGraph that is installed, with the remedy; None if nothing is."""
    try:
        found = metadata.version("langgraph")
    except metadata.PackageNotFoundError:
        return f"langgraph is not installed; {_remedy()}"
    try:
        known = Version(found) in LANGGRAPH
    except InvalidVersion:
        known = False
    return None if known else f"langgraph {found} is installed; {_remedy()}"


def import_problem(error: BaseException) -> str | None:
    """The same for a failed import of it or its core; None for any other error."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] not in _ROOTS:
        return None
    return langgraph_problem() or f"langgraph cannot be imported ({error}); {_remedy()}"


def require_langgraph() -> None:
    """Raises ConfigError unless a LangGraph is installed that this version knows."""
    problem = langgraph_problem()
    if problem is not None:
        raise ConfigError(problem)


def _remedy() -> str:
    return f"this version needs it: pip install 'langgraph{_RANGE}'"
