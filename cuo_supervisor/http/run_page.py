"""What the run page says of a decision, its gates and its chain. Pure: rows in, words out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cuo_checkpoint.run_records import AuditRecord, RunSummary, rfc3339
from cuo_checkpoint.seal_view import SealView
from cuo_supervisor.core.operations import why_unknown
from cuo_supervisor.expiry import EXPIRY_ISSUER
from cuo_supervisor.http.text import get, pretty, shortened, visible

__all__ = [
    "Gate",
    "candidate_rows",
    "counted",
    "facts_of",
    "gates_of",
    "headline_of",
    "link_rows",
    "model_of",
    "seal_of",
    "state_word",
    "tone_of",
    "verdict_of",
]

_PATHS: Final = {
    "auto": "the rules were confident",
    "ask": "likely, but a person should choose",
    "defer": "nothing fits; a person decides",
    "cascade": "unclear, so the model is asked",
    "cascade_then_auto": "the model chose, confidently",
    "cascade_then_ask": "the model chose, but not confidently; a person should choose",
}
_REASONS: Final = {
    "persona_defer_matrix": "this role leaves it to a person, at any confidence",
    "approval_required": "a person must approve it",
    "approval_denied": "a person denied it",
    "approval_expired": "no approval took effect in time",
    "catalog_changed": "catalogue or persona is no longer the one it was decided with",
    "invocation_unknown": "an earlier attempt may have run the skill; it is not run twice",
}
_GATE_KINDS: Final = frozenset({"pass", "operation_unknown", *_REASONS})
_CHAIN_ROW: Final = re.compile(r"chain row (\d+)")


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate, in the order they stand, and what it did."""

    name: str
    result: str
    tone: str
    detail: str


def state_word(run: RunSummary) -> str:
    """How the run stands, or ended."""
    if run.state != "closed" or run.outcome is None:
        return run.state
    return run.outcome.removeprefix("run_")


def tone_of(run: RunSummary) -> str:
    """good, warn, bad, or nothing in particular: a run may complete without doing what was asked."""
    if run.state == "waiting":
        return "warn"
    if run.outcome == "run_failed":
        return "bad"
    done = run.rejection is None if run.decision is None else bool(run.decision.get("routed"))
    return "good" if run.outcome == "run_completed" and done else ""


def headline_of(run: RunSummary, state: Mapping[str, Any]) -> str:
    """The decision in a sentence."""
    said = run.decision or {}
    path = said.get("path_taken") or get(state, "branch_decision")
    if path is None:
        rejection = get(state, "rejection", "error")
        return f"Refused: {_word(rejection)}." if rejection else ""
    meaning = _PATHS.get(str(path))
    sentence = f"{_word(path)}: {meaning}." if meaning else f"{_word(path)}."
    if said.get("reason") and not said.get("routed"):
        reason = str(said["reason"])
        why = _unknown(said) if reason == "operation_unknown" else _REASONS.get(reason)
        sentence += f" Not invoked: {why or _word(reason)}."
    skill = said.get("skill_chosen")
    return f"{sentence} Skill {_word(skill)}." if skill else sentence


def facts_of(run: RunSummary, state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who asked, when, in what versions."""
    said = run.decision or {}
    found = [
        ("Started", _time(run.first_at)),
        ("Newest row", _time(run.newest_at)),
        ("Persona", said.get("persona_version") or state.get("persona_version")),
        ("Confidence", said.get("confidence")),
        ("Asked by (digest)", said.get("subject_id_hash16")),
        ("Token issuer", said.get("agent_persona_jwt_iss")),
        ("Continued by", get(said, "continued", "by_hash16")),
        ("Run again by", get(said, "rerun", "by_hash16")),
        ("Catalogue", state.get("catalog_snapshot_hash")),
        ("Log rows", run.log_rows),
        ("Audit rows", run.chain_rows),
        ("Thread", None if run.thread_id == str(run.run_id) else run.thread_id),
        ("Hidden", "deleted from the graph's view; the log keeps it" if run.hidden else None),
    ]
    return [
        (name, visible(shortened(str(value), 600))) for name, value in found if value is not None
    ]


def candidate_rows(state: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the score's components, and the candidates with theirs."""
    scored = [c for c in state.get("rule_scores") or [] if isinstance(c, dict)][:20]
    names = list(dict.fromkeys(n for c in scored for n in _components(c)))[:16]
    chosen = get(state, "decision", "skill_chosen")
    rows = [
        {
            "skill": visible(shortened(str(one.get("skill_name")), 200)),
            "confidence": _figure(one.get("confidence")),
            "components": [_figure(_components(one).get(name)) for name in names],
            "chosen": chosen is not None and one.get("skill_name") == chosen,
        }
        for one in scored
    ]
    return [visible(shortened(str(n).replace("_", " "), 40)) for n in names], rows


def model_of(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether the model was asked, what it picked and why."""
    if not state.get("cascade_taken"):
        return []
    pick = state.get("llm_pick")
    found = [
        ("Outcome", state.get("cascade_outcome")),
        ("Attempts", state.get("llm_attempts")),
        ("Took", f"{state['llm_elapsed_ms']} ms" if "llm_elapsed_ms" in state else None),
        ("Pick", get(pick, "skill_name")),
        ("Confidence", get(pick, "confidence")),
        ("Rationale", get(pick, "rationale")),
        ("Arguments", pretty(get(pick, "arguments")) if get(pick, "arguments") else None),
        ("Prompt", state.get("llm_prompt_sha256")),
    ]
    return [
        (name, visible(shortened(str(value), 2000))) for name, value in found if value is not None
    ]


def gates_of(
    state: Mapping[str, Any], links: Sequence[AuditRecord], asked: Mapping[str, Any] | None
) -> list[Gate]:
    """Persona matrix, approval, intent and skill, as far as the run came to them.

    Answers are told by the audit chain, also those that did not count. `asked` is what a waiting
    run asks leave for: its state does not name the operation yet.
    """
    gate = state.get("gate")
    kind = get(gate, "kind")
    waits = any(link.kind == "waiting" for link in links)
    if kind is None and not waits:
        return []
    if kind is not None and kind not in _GATE_KINDS:
        return [Gate("Gate", "not a known one", "warn", _word(kind))]
    answers = [link for link in links if link.kind == "approval"]
    if kind == "catalog_changed":
        # Which gates it had passed before, the state of the end does not say.
        changed = Gate("Catalogue", "changed", "warn", _REASONS["catalog_changed"])
        return [*(_answer(link.body) for link in answers), changed]
    operation = _word(get(gate, "operation") or get(asked, "operation") or "")
    if kind == "persona_defer_matrix":
        detail = f"this role leaves {operation} to a person, whatever the confidence"
        return [Gate("Persona's matrix", "blocked", "warn", detail)]
    found = [Gate("Persona's matrix", "passed", "good", operation)]
    if kind == "operation_unknown":
        return [*found, Gate("Operation", "blocked", "warn", _unknown(gate))]
    found += [_answer(link.body) for link in answers]
    if not answers and kind in ("approval_required", None):
        found.append(Gate("Approval", "waiting", "warn", "nobody has answered yet"))
    elif not answers and not waits:
        found.append(Gate("Approval", "not needed", "good", "the operation can be undone"))
    if kind == "invocation_unknown":
        found.append(Gate("Intent", "taken before", "bad", _REASONS["invocation_unknown"]))
    result = state.get("invocation_result")
    if isinstance(result, dict):
        failed = result.get("failure") is not None or result.get("exit_code") != 0
        detail = f"exit {result.get('exit_code')}"
        if isinstance(result.get("duration_ms"), float):
            detail += f", {result['duration_ms']:.0f} ms"
        if result.get("failure"):
            detail += f", {result['failure']}"
        word = "failed" if failed else "ran"
        found.append(Gate("Skill", word, "bad" if failed else "good", _word(detail)))
    return found


def link_rows(
    links: Sequence[AuditRecord], before: AuditRecord | None, problems: Sequence[str]
) -> list[dict[str, Any]]:
    """Audit rows for the table; each says whether it follows the one before it.

    `problems` are the verifier's: a row it names is marked even if it follows.
    """
    named = {int(n) for text in problems for n in _CHAIN_ROW.findall(text)}
    rows: list[dict[str, Any]] = []
    for link in links:
        follows = link.chain_seq == 1 if before is None else _follows(link, before)
        good = follows and link.chain_seq not in named
        rows.append(
            {
                "number": link.chain_seq,
                "kind": visible(link.kind),
                "brief": _brief(link),
                "body": pretty(dict(link.body))[:20_000],
                "at": rfc3339(link.created_at),
                "digest": link.row_sha256[:16],
                "status": "follows" if good else "does not hold" if follows else "does not follow",
                "tone": "good" if good else "bad",
            }
        )
        before = link
    return rows


def verdict_of(verification: Any, run: RunSummary, link: str | None) -> dict[str, Any]:
    """What recomputing the run showed; None: it was not recomputed for this page."""
    if verification is None:
        text = f"Not recomputed for this page: the run has {run.log_rows} log rows."
        return {"tone": "", "text": text, "problems": [], "link": link}
    if verification.ok:
        text = (
            f"Holds: {verification.chain_rows} audit rows follow one another and vouch for "
            f"{counted(verification.rows, 'log row')} and "
            f"{counted(verification.writes, 'pending write')}."
        )
        return {"tone": "good", "text": text, "problems": [], "link": None}
    return {
        "tone": "bad",
        "text": "DOES NOT HOLD",
        "problems": list(verification.problems),
        "link": None,
    }


def counted(number: Any, what: str) -> str:
    """How many of them, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _unknown(names: Any) -> str:
    """Why a skill's operation is not one, by what the decision or the gate names."""
    named = get(names, "operation")
    return _word(why_unknown(named if isinstance(named, str) else None))


def _word(value: Any) -> str:
    return visible(shortened(str(value), 120))


def seal_of(seal: SealView | None, run: RunSummary) -> dict[str, Any]:
    """Whether the run's chain is in a signed tree, up to which row, and the proof."""
    if seal is None:
        return {"tone": "", "text": "Not sealed yet.", "facts": [], "proof": []}
    whole = "whole chain" if seal.chain_seq == run.chain_rows else f"chain to row {seal.chain_seq}"
    if not seal.fits:
        tone, text = "bad", "THE SEAL DOES NOT FIT: the chain is not what was sealed."
    elif seal.included is False:
        tone, text = "bad", "THE SEAL DOES NOT FIT: its leaf is not in the signed tree."
    elif seal.head_no is None:
        tone, text = "", f"Sealed ({whole}), but no signed head covers it yet."
    elif seal.included is None:
        tone, text = "", f"Sealed ({whole}); the tree is too large to recompute here."
    else:
        tone = "good"
        text = f"Sealed ({whole}): leaf {seal.leaf_index} of {seal.tree_size} is in head {seal.head_no}."
    facts = [
        ("Sealed", _time(seal.sealed_at)),
        ("Leaf", seal.leaf_sha256),
        ("Root", seal.root_sha256 or "none yet"),
    ]
    return {"tone": tone, "text": text, "facts": facts, "proof": list(seal.proof)}


def _answer(body: Mapping[str, Any]) -> Gate:
    if body.get("expired") and body.get("by_issuer") == EXPIRY_ISSUER:
        return Gate("Approval", "ran out", "warn", visible(str(body.get("reason"))))
    if not body.get("counted", True):
        word, tone = "did not count", "warn"
    elif body.get("expired"):
        word, tone = "came too late", "warn"
    else:
        word, tone = ("approved", "good") if body.get("approved") else ("denied", "bad")
    who = f"{body.get('by_hash16')} ({body.get('by_issuer')})"
    said = shortened(f"by {who}: {body.get('reason')}", 2400)
    return Gate("Approval", word, tone, visible(said))


def _brief(link: AuditRecord) -> str:
    body = link.body
    if link.kind == "cuo.checkpoint_written":
        words = f"{body.get('kind')} {body.get('node_name') or ''}"
    elif link.kind == "cuo.routing_decision":
        words = f"{body.get('path_taken')} {body.get('skill_chosen') or body.get('reason') or ''}"
    elif link.kind == "write_set":
        words = counted(body.get("writes"), "pending write")
    elif link.kind == "close":
        words = f"{body.get('outcome')}, {counted(body.get('log_rows'), 'log row')}"
    elif link.kind == "open":
        words = f"thread {body.get('thread_id')}"
    elif link.kind == "approval":
        answer = _answer(body)
        words = f"{answer.result}, {answer.detail}"
    else:
        words = ", ".join(body) or "nothing"
    return visible(shortened(words, 80))


def _follows(link: AuditRecord, before: AuditRecord) -> bool:
    return link.chain_seq == before.chain_seq + 1 and link.prev_sha256 == before.row_sha256


def _components(candidate: Mapping[str, Any]) -> Mapping[str, Any]:
    found = candidate.get("score_components")
    return found if isinstance(found, dict) else {}


def _figure(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else visible(shortened(str(value), 40))
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _time(at: Any) -> str:
    return rfc3339(at)[:23].replace("T", " ") + " UTC"
