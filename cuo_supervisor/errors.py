"""Everything the supervisor raises on purpose, and the exit code each one means.

    SupervisorError (70)
    ├── UsageError (64)              the call is malformed: empty or oversize query, bad flag
    ├── DataError (65)               the input cannot be used
    │   ├── PersonaUnknown
    │   ├── CatalogError             a manifest is wrong; names file and key
    │   └── StateVersionUnsupported
    ├── PermissionDenied (77)
    │   ├── IdentityRejected         token missing, expired, wrong issuer, audience, role …
    │   ├── PersonaMismatch
    │   └── PersonaVersionMismatch
    ├── AuditWriteFailed (73)        nothing was invoked after it
    ├── StoreDown (69)               the store cannot be reached
    └── ConfigError (64)             settings are present but incomplete or contradictory

Messages never carry the query, arguments or skill output.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AuditWriteFailed",
    "CatalogError",
    "ConfigError",
    "DataError",
    "IdentityRejected",
    "PermissionDenied",
    "PersonaMismatch",
    "PersonaUnknown",
    "PersonaVersionMismatch",
    "StateVersionUnsupported",
    "StoreDown",
    "SupervisorError",
    "UsageError",
]


class SupervisorError(Exception):
    """Base of every error the supervisor raises on purpose."""

    exit_code: ClassVar[int] = 70
    error: ClassVar[str] = "internal_error"


class UsageError(SupervisorError):
    """The call itself is malformed; the message says which rule it breaks."""

    exit_code = 64
    error = "invalid_argument"


class ConfigError(UsageError):
    """Settings are incomplete or contradict each other; the message names the variable."""

    error = "invalid_configuration"


class DataError(SupervisorError):
    """The input is well-formed but cannot be used."""

    exit_code = 65
    error = "invalid_data"


class PersonaUnknown(DataError):
    """The persona is not in the catalogue."""

    error = "persona_unknown"

    def __init__(self, requested: str, known: tuple[str, ...]) -> None:
        super().__init__(f"unknown persona {requested[:64]!r}; known: {', '.join(known)}")
        self.requested = requested
        self.known = known


class CatalogError(DataError):
    """A skill manifest is wrong. `file`, `line` (1-based, 0 = unknown) and `key` name the place."""

    error = "catalog_invalid"

    def __init__(self, file: str, key: str, problem: str, *, line: int = 0) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {key}: {problem}" if key else f"{place}: {problem}")
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem


class StateVersionUnsupported(DataError):
    """A stored state is too old or too new for this version to resume or replay."""

    error = "state_version_unsupported"


class PermissionDenied(SupervisorError):
    """The caller may not do this."""

    exit_code = 77
    error = "permission_denied"


class IdentityRejected(PermissionDenied):
    """The token was not accepted; `reason` is a fixed word, never token content."""

    error = "identity_rejected"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PersonaMismatch(PermissionDenied):
    """The token speaks for another persona, or for none."""

    error = "persona_mismatch"

    def __init__(self, claimed: str, requested: str) -> None:
        super().__init__(
            f"the token claims persona {claimed!r}, the request asks for {requested!r}"
        )
        self.claimed = claimed
        self.requested = requested


class PersonaVersionMismatch(PermissionDenied):
    """The token names another version of the persona than the one in service."""

    error = "persona_version_mismatch"

    def __init__(self, claimed: str, requested: str) -> None:
        super().__init__(f"the token claims {claimed!r}, this service runs {requested!r}")
        self.claimed = claimed
        self.requested = requested


class AuditWriteFailed(SupervisorError):
    """An audit row could not be written, so the step it belongs to did not happen."""

    exit_code = 73
    error = "audit_failed"


class StoreDown(SupervisorError):
    """The store cannot be reached; the run stopped durably where it was."""

    exit_code = 69
    error = "store_unreachable"
