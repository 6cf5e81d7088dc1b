"""Typed arguments: read from a request by rule, and checked whoever proposed them. Pure.

The same check binds the rule path and a model's answer; nothing reaches a skill unchecked.
Problems name arguments and rules, never values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from cuo_supervisor.core.catalog import ArgumentSpec, SkillManifest, Triggers
from cuo_supervisor.core.extractors import EXTRACTORS, Found, Reading, Vocabulary
from cuo_supervisor.core.text import normalise_query, tokenise

__all__ = [
    "MAX_INTEGER",
    "extract_arguments",
    "find_arguments",
    "reading_key",
    "skill_words",
    "validate_arguments",
]

MAX_INTEGER: Final = 2**53 - 1
"""Largest integer every JSON reader keeps exactly (RFC 8785 refuses more)."""


def extract_arguments(query: str, manifest: SkillManifest) -> dict[str, Any]:
    """The arguments of `manifest` found in `query`, valid ones only; missing ones are left out."""
    words = skill_words(manifest.triggers, manifest.keywords)
    found = find_arguments(Reading.of(normalise_query(query)), manifest, words)
    return {name: entry.value for name, entry in found.items()}


def find_arguments(
    reading: Reading,
    manifest: SkillManifest,
    vocabulary: Vocabulary,
    *,
    numbers: Sequence[int] = (),
    seen: dict[int, Found | None] | None = None,
) -> dict[str, Found]:
    """Like `extract_arguments`, on a text already read, with the place of each value.

    `vocabulary` holds the skill's own words; none of them begins a name. `seen` remembers, from
    skill to skill of one request, what the arguments numbered alike (see `reading_key`) gave.
    """
    found: dict[str, Found] = {}
    for at, spec in enumerate(manifest.arguments):
        extract = EXTRACTORS.get(spec.extractor)
        if extract is None:
            continue
        if seen is not None and numbers[at] in seen:
            entry = seen[numbers[at]]
        else:
            entry = extract(reading, spec, vocabulary)
            if entry is not None and _problem(entry.value, spec):
                entry = None
            if seen is not None:
                seen[numbers[at]] = entry
        if entry is not None:
            found[spec.name] = entry
    return found


def reading_key(spec: ArgumentSpec, vocabulary: Vocabulary) -> tuple[str, Vocabulary | None]:
    """Equal for arguments that any request gives the same value: all but their names is equal.

    Only a party's name depends on the words of the skill around it.
    """
    plain = spec.model_dump_json(exclude={"name", "description", "required"})
    return plain, vocabulary if spec.extractor == "party" else None


def validate_arguments(arguments: Mapping[str, Any], manifest: SkillManifest) -> list[str]:
    """What is wrong with `arguments` for this skill, sorted; an empty list means nothing is."""
    specs = {spec.name: spec for spec in manifest.arguments}
    # A foreign key may itself be text from the request, so it is counted, not named.
    strangers = len(arguments.keys() - specs.keys())
    problems = [f"{strangers} keys that are no arguments of this skill"] if strangers else []
    for name, spec in specs.items():
        if name not in arguments:
            if spec.required:
                problems.append(f"{name}: required")
        elif problem := _problem(arguments[name], spec):
            problems.append(f"{name}: {problem}")
    return sorted(problems)


@lru_cache(maxsize=512)
def skill_words(triggers: Triggers, keywords: tuple[str, ...]) -> Vocabulary:
    """Every word a skill's phrases and keywords use."""
    phrases = (*triggers.en, *triggers.vi, *keywords)
    words = [token for phrase in phrases for token in tokenise(phrase)]
    return Vocabulary(frozenset(w.key for w in words), frozenset(w.folded for w in words))


def _problem(value: Any, spec: ArgumentSpec) -> str:
    if spec.type == "boolean":
        return "" if isinstance(value, bool) else "must be true or false"
    if spec.type == "integer":
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be an integer"
        if spec.minimum is not None and value < spec.minimum:
            return f"must be at least {spec.minimum}"
        ceiling = MAX_INTEGER if spec.maximum is None else min(spec.maximum, MAX_INTEGER)
        return f"must be at most {ceiling}" if value > ceiling else ""
    if not isinstance(value, str):
        return "must be a string"
    if not value.strip():
        return "must not be empty"
    if len(value) > spec.max_length:
        return f"must be at most {spec.max_length} characters"
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        return "must not hold NUL or lone surrogates"
    if spec.choices and value not in spec.choices:
        return f"must be one of {', '.join(sorted(spec.choices))}"
    if spec.pattern is not None and re.fullmatch(spec.pattern, value) is None:
        return "does not have the required form"
    return ""
