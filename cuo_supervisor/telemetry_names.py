"""What the supervisor tells of itself, by name: spans, attributes, metrics, log events, failures.

Dashboards and alert rules hang on these strings; docs/telemetry.md explains each, and a test holds
the two together. Labels come from closed sets, anything else becomes "other"; tenants never are
labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

from cuo_supervisor.core.models import Outcome, PathTaken
from cuo_supervisor.core.operations import OPERATIONS
from cuo_supervisor.core.personas import PERSONAS

SPAN_ROUTE: Final = "cuo.supervisor.route"
SPAN_NODE_PREFIX: Final = "cuo.supervisor.node."
SPAN_DRY_RUN: Final = "cuo.dry_run"
NODES: Final = ("parse", "rule_score", "branch", "llm_cascade", "invoke", "record")

ATTR_TENANT_ID: Final = "tenant_id"
ATTR_SUBJECT_ID_HASH16: Final = "subject_id_hash16"
ATTR_PERSONA_KEY: Final = "persona_key"
ATTR_PATH_TAKEN: Final = "path_taken"
ATTR_CONFIDENCE: Final = "confidence"
ATTR_LLM_USED: Final = "llm_used"
ATTR_OUTCOME: Final = "outcome"
ATTR_REQUEST_ID: Final = "request_id"
ATTR_QUERY: Final = "query"
ATTR_REASON: Final = "reason"
ATTR_CASCADE_OUTCOME: Final = "cascade_outcome"
ATTR_DRY_RUN: Final = "dry_run"
ATTR_ERROR_TYPE: Final = "error.type"
ATTR_FAILURE: Final = "failure"
ATTR_SEVERITY: Final = "severity"
ATTR_LLM_ATTEMPTS: Final = "llm_attempts"
ATTR_DROPPED_CANDIDATES: Final = "dropped_candidates"
ATTR_SKILL_NAME: Final = "skill_name"
ATTR_GATE: Final = "gate"

ATTRIBUTES: Final[Mapping[str, str]] = {
    ATTR_REQUEST_ID: "the request's ULID: the same 128 bits as its run id",
    ATTR_TENANT_ID: "whose request",
    ATTR_SUBJECT_ID_HASH16: "who asks, as the audit rows spell it",
    ATTR_PERSONA_KEY: "the persona as asked for",
    ATTR_QUERY: "the text as it came; on the route span alone",
    ATTR_PATH_TAKEN: "the path",
    ATTR_CONFIDENCE: "the confidence that chose the path",
    ATTR_LLM_USED: "whether a model's pick took part",
    ATTR_OUTCOME: "see below",
    ATTR_REASON: "why a choice was not carried out",
    ATTR_CASCADE_OUTCOME: "one of ten words; also on the node's span",
    ATTR_DRY_RUN: "whether nothing was recorded",
    ATTR_ERROR_TYPE: "an exception's type, never its text",
    ATTR_FAILURE: "the worst failure of the table below",
    ATTR_SEVERITY: "its severity, 1 to 3",
    ATTR_LLM_ATTEMPTS: "questions put to the model",
    ATTR_DROPPED_CANDIDATES: "candidates left out of a prompt that was too long",
    ATTR_SKILL_NAME: "the catalogue's name of the skill at the gates",
    ATTR_GATE: "what the gates said",
}

METRIC_ROUTE_TOTAL: Final = "cuo_supervisor_route_total"
METRIC_ROUTE_LATENCY_MS: Final = "cuo_supervisor_route_latency_ms"
METRIC_CASCADE_TOTAL: Final = "cuo_supervisor_llm_cascade_total"
METRIC_PERSONA_DEFER_TOTAL: Final = "cuo_supervisor_persona_defer_blocks_total"
METRIC_DESTRUCTIVE_TOTAL: Final = "cuo_supervisor_destructive_block_total"
METRIC_FAILURES_TOTAL: Final = "cuo_supervisor_failures_total"
METRIC_SPANS_DROPPED_TOTAL: Final = "cuo_supervisor_spans_dropped_total"


class Metric(NamedTuple):
    """One metric as published. `kind` is counter or histogram."""

    kind: str
    labels: tuple[str, ...]
    says: str


METRICS: Final[Mapping[str, Metric]] = {
    METRIC_ROUTE_TOTAL: Metric(
        "counter", ("outcome", "persona", "path_taken"), "Requests routed, by outcome, persona and path."
    ),
    METRIC_ROUTE_LATENCY_MS: Metric(
        "histogram", ("path_taken",), "Time from entry to answer, in milliseconds."
    ),
    METRIC_CASCADE_TOTAL: Metric("counter", ("outcome",), "Model cascades, by outcome."),
    METRIC_PERSONA_DEFER_TOTAL: Metric(
        "counter",
        ("persona", "operation"),
        "Refusals by a persona's matrix, by persona and operation.",
    ),
    METRIC_DESTRUCTIVE_TOTAL: Metric(
        "counter", ("skill",), "Destructive skills stopped for approval, by skill."
    ),
    METRIC_FAILURES_TOTAL: Metric(
        "counter", ("failure", "severity"), "Failures of requests, by name and severity."
    ),
    METRIC_SPANS_DROPPED_TOTAL: Metric(
        "counter", (), "Spans lost because too many requests or spans were held at once."
    ),
}  # fmt: skip

ROUTE_BUCKETS_MS: Final = (
    1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 250.0, 500.0,
    1000.0, 2000.0, 3000.0, 3500.0, 5000.0, 10000.0,
)  # fmt: skip
"""Holds each promised limit (30, 50, 3500 ms) as an edge, so that it can be read off exactly."""

OTHER: Final = "other"
OUTCOMES: Final = frozenset(get_args(Outcome))
PATHS: Final = frozenset(get_args(PathTaken))
SKILLS_MAX: Final = 256
"""Distinct skill labels in one process. A catalogue is far smaller; this bounds a mistake."""

CASCADE_LABELS: Final[Mapping[str, str]] = {
    "success": "success",
    "timeout": "timeout",
    "schema_violation": "schema_violation",
    "unknown_skill": "schema_violation",
    "bad_arguments": "schema_violation",
    "gateway_error": "gateway_error",
    "gateway_unreachable": "gateway_error",
    "residency_denied": "gateway_error",
    "budget_exceeded": "gateway_error",
    "not_ready": "gateway_error",
}
"""Ten outcomes of a cascade to the metric's four; the route span holds the precise one."""

FAILURES: Final[Mapping[str, int]] = {
    "audit_failed": 1,
    "store_unreachable": 1,
    "state_serialise_failed": 1,
    "start_refused": 1,
    "internal_error": 2,
    "gateway_unreachable": 2,
    "state_version_unsupported": 2,
    "state_too_large": 2,
    "scrub_failed": 2,
    "gateway_error": 3,
    "residency_denied": 3,
    "budget_exceeded": 3,
    "cascade_timeout": 3,
    "model_not_ready": 3,
    "catalog_changed": 3,
    "skill_failed": 3,
}
"""Failures and their severity: 1 wakes someone, 2 today, 3 this week."""

LEVELS: Final[Mapping[int, int]] = {1: 50, 2: 40, 3: 30}
"""Severity to the level of the log event: critical, error, warning."""

CASCADE_FAILURES: Final[Mapping[str, str]] = {
    "gateway_unreachable": "gateway_unreachable",
    "gateway_error": "gateway_error",
    "residency_denied": "residency_denied",
    "budget_exceeded": "budget_exceeded",
    "timeout": "cascade_timeout",
    "not_ready": "model_not_ready",
}
"""Cascade outcomes that are failures; an answer that does not hold is none, but a model's habit."""

EVENTS: Final[Mapping[str, str]] = {
    "request.ended": "a request was answered or refused; its level is that of its worst failure",
    "service.listening": "the service answers at `address`",
    "service.stopped": "the service has ended; `code` says how",
    "service.refused": "the service did not start, and which error says why",
    "http.request": "a response was sent: method, route, status, time",
    "http.fault": "a fault of ours: its type and place, under `report`",
}

_PERSONA_LABELS: Final = {
    name: persona.short for persona in PERSONAS.values() for name in (persona.short, persona.key)
}
_BY_ERROR: Final = {
    "persona_mismatch": "persona_mismatch",
    "persona_version_mismatch": "persona_mismatch",
    "persona_unknown": "unknown_persona",
}
_FAILURE_BY_ERROR: Final = {
    "audit_failed": "audit_failed",
    "store_unreachable": "store_unreachable",
    "state_version_unsupported": "state_version_unsupported",
}
_FAILURE_BY_CAUSE: Final = {
    "UnserialisableValue": "state_serialise_failed",
    "SerialiseError": "state_serialise_failed",
    "StateTooLarge": "state_too_large",
}


def persona_label(persona_key: str) -> str:
    """The short key, or "other"."""
    return _PERSONA_LABELS.get(persona_key, OTHER)


def operation_label(operation: str) -> str:
    """The operation if the registry knows it, or "other"."""
    return operation if operation in OPERATIONS else OTHER


def outcome_of_error(error: BaseException) -> str:
    """The outcome of a request that an exception ended."""
    return _BY_ERROR.get(str(getattr(error, "error", "")), OTHER)


def failure_of_error(error: BaseException) -> str | None:
    """The failure an exception means; None for a caller's mistake and for an interruption."""
    named = getattr(error, "error", None)
    if isinstance(named, str):
        cause: Any = error
        while cause is not None:
            if type(cause).__name__ in _FAILURE_BY_CAUSE:
                return _FAILURE_BY_CAUSE[type(cause).__name__]
            cause = cause.__cause__
        return _FAILURE_BY_ERROR.get(named)
    return "internal_error" if isinstance(error, Exception) else None


def failure_of(outcome: str | None, reason: str | None) -> str | None:
    """The failure a decision means."""
    if reason == "catalog_changed":
        return "catalog_changed"
    return "skill_failed" if outcome == "invoke_error" else None
