"""What a skill manifest may say, and a catalogue of them with one canonical hash. Pure.

The hash covers the meaning (RFC 8785 of the sorted manifests, NFC strings), never file names,
file order or comments, so two hosts with the same skills agree on it. A decision names the
hash, and `Catalog.from_snapshot` rebuilds the catalogue it was made with.

`argv` carries placeholders instead of paths for the same reason: `{python}` is the interpreter
and `{skillset}` the folder of the shipped skills; `resolve_argv` fills them in.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import rfc8785
import semver
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cuo_supervisor.core.operations import get_operation

__all__ = [
    "CATALOG_FORMAT",
    "MIN_TRIGGERS",
    "ArgumentSpec",
    "Catalog",
    "SkillManifest",
    "Triggers",
    "resolve_argv",
]

CATALOG_FORMAT: Final = 1
"""Version of the snapshot's shape."""
MIN_TRIGGERS: Final = 10
"""Fewest trigger phrases per language: retrieval on 0, 5, 10, 20 phrases per label gained most
up to ten (accuracy .42, .72, .79, .83 on a public 150-intent set)."""

_PLACEHOLDERS: Final = frozenset({"python", "skillset"})
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_MAX_INTEGER: Final = 2**53 - 1
"""Largest integer that canonical JSON, and so a snapshot's hash, has (RFC 8785)."""

Extractor = Literal[
    "tax_code", "amount_vnd", "party", "account_number", "bank", "email", "rest", "choice", "none"
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ArgumentSpec(_Strict):
    """One argument: its JSON type, how the rule path finds it, and what a value must be.

    `pattern` must match a whole string value (Python `re`). It comes from the operator who also
    names the executable, so it is trusted like code; values are cut to `max_length` first.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    description: str = Field(min_length=1, max_length=300)
    type: Literal["string", "integer", "boolean"] = "string"
    required: bool = Field(default=False, strict=True)
    extractor: Extractor = "none"
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    choices: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    pattern: str | None = Field(default=None, max_length=200)
    max_length: int = Field(default=200, ge=1, le=4000)
    minimum: int | None = Field(default=None, ge=-_MAX_INTEGER, le=_MAX_INTEGER)
    maximum: int | None = Field(default=None, ge=-_MAX_INTEGER, le=_MAX_INTEGER)

    @model_validator(mode="after")
    def _coherent(self) -> ArgumentSpec:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except (re.error, OverflowError, RecursionError) as problem:
                raise ValueError(f"pattern is not a regular expression: {problem}") from None
        if self.type != "string" and (self.pattern or self.choices):
            raise ValueError("pattern and choices are for strings")
        if self.type != "integer" and (self.minimum is not None or self.maximum is not None):
            raise ValueError("minimum and maximum are for integers")
        gives = {"amount_vnd": "integer", "none": self.type}.get(self.extractor, "string")
        if gives != self.type:
            raise ValueError(f"extractor {self.extractor!r} gives type {gives!r}")
        if self.extractor == "choice" and not self.choices:
            raise ValueError("extractor 'choice' needs choices")
        if self.extractor == "rest" and not self.after:
            raise ValueError("extractor 'rest' needs the words in `after`")
        return self


class Triggers(_Strict):
    """Example requests per language, as people type them, without names and numbers."""

    en: tuple[str, ...] = Field(min_length=MIN_TRIGGERS)
    vi: tuple[str, ...] = Field(min_length=MIN_TRIGGERS)

    @field_validator("en", "vi")
    @classmethod
    def _phrases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for phrase in value:
            # One word alone would let that word decide wherever it turns up.
            if not 2 <= len(phrase.split()) <= 12:
                raise ValueError(f"a trigger phrase has 2 to 12 words: {phrase!r}")
        if len({p.casefold() for p in value}) != len(value):
            raise ValueError("a trigger phrase is listed twice")
        return value


class SkillManifest(_Strict):
    """One skill: what it does, when it is meant, what it needs, how it is run."""

    name: str = Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", max_length=60)
    version: str
    description: str = Field(min_length=1, max_length=300)
    region: str | None = Field(default=None, pattern=r"^[A-Z]{2}$")
    operation: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,59}$")
    # Strict: 0 and "no" would be taken for false, and pass by what false is refused for.
    destructive: bool = Field(default=False, strict=True)
    idempotent: bool = Field(default=False, strict=True)
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    argv: tuple[str, ...] = Field(min_length=1)
    keywords: tuple[str, ...] = ()
    triggers: Triggers
    arguments: tuple[ArgumentSpec, ...] = ()

    @field_validator("version")
    @classmethod
    def _released(cls, value: str) -> str:
        if not semver.Version.is_valid(value):
            raise ValueError("version must be semver, such as 1.2.0")
        parsed = semver.Version.parse(value)
        if parsed.prerelease or parsed.build:
            # name@major.minor could not tell a pre-release from the release.
            raise ValueError("a catalogue holds released versions: no pre-release or build part")
        return value

    @field_validator("argv")
    @classmethod
    def _placeholders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            if not part or "\0" in part:
                raise ValueError("argv parts are non-empty and hold no NUL")
            if unknown := set(_PLACEHOLDER.findall(part)) - _PLACEHOLDERS:
                raise ValueError(
                    f"unknown placeholder {sorted(unknown)}; there are {{python}} and {{skillset}}"
                )
        return value

    @field_validator("arguments", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, Mapping):  # TOML tables [arguments.<name>]
            return [
                {"name": name, **spec} if isinstance(spec, Mapping) else spec
                for name, spec in value.items()
            ]
        return value

    @field_validator("arguments")
    @classmethod
    def _sorted(cls, value: tuple[ArgumentSpec, ...]) -> tuple[ArgumentSpec, ...]:
        if len({spec.name for spec in value}) != len(value):
            raise ValueError("an argument is listed twice")
        return tuple(sorted(value, key=lambda spec: spec.name))

    @model_validator(mode="before")
    @classmethod
    def _tightens_only(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = get_operation(str(data.get("operation")))
        if known is None or not known.destructive:
            return data
        if data.get("destructive") is False:
            raise ValueError(
                f"destructive = false cannot loosen operation {known.name!r}; leave the key out"
            )
        return {**data, "destructive": data.get("destructive", True)}

    @property
    def skill_name(self) -> str:
        """name@major.minor, the spelling of decisions and audit rows."""
        parsed = semver.Version.parse(self.version)
        return f"{self.name}@{parsed.major}.{parsed.minor}"

    @property
    def is_destructive(self) -> bool:
        """True if the manifest or its operation says so, or the operation is not registered."""
        known = get_operation(self.operation or "")
        return self.destructive or known is None or known.destructive

    @property
    def required_arguments(self) -> tuple[str, ...]:
        """Names without which the skill cannot run."""
        return tuple(spec.name for spec in self.arguments if spec.required)


@dataclass(frozen=True, eq=False)
class Catalog:
    """Skills sorted by name, one version of each; equal and hashed by content.

    Build with `Catalog.of`. Raises ValueError if two manifests share a name.
    """

    skills: tuple[SkillManifest, ...]
    snapshot_hash: str
    _by_name: Mapping[str, SkillManifest] = field(repr=False)

    @classmethod
    def of(cls, manifests: Iterable[SkillManifest]) -> Catalog:
        """A catalogue of these manifests, in whatever order they come."""
        skills = tuple(sorted(manifests, key=lambda manifest: manifest.name))
        for left, right in itertools.pairwise(skills):
            if left.name == right.name:
                # Two versions would always tie, and every request for them would be a question.
                raise ValueError(f"skill {left.name!r} is listed twice")
        digest = hashlib.sha256(rfc8785.dumps(_snapshot(skills))).hexdigest()
        return cls(skills, digest, {skill.skill_name: skill for skill in skills})

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> Catalog:
        """The catalogue `to_snapshot` described. Raises ValueError on any other shape."""
        if snapshot.get("catalog_format") != CATALOG_FORMAT:
            raise ValueError(f"catalogue snapshot is not of format {CATALOG_FORMAT}")
        return cls.of(SkillManifest.model_validate(entry) for entry in snapshot["skills"])

    def to_snapshot(self) -> dict[str, Any]:
        """Plain JSON from which `from_snapshot` rebuilds a catalogue with the same hash."""
        return _snapshot(self.skills)

    def get(self, skill_name: str) -> SkillManifest | None:
        """The skill of that exact name@major.minor, or None."""
        return self._by_name.get(skill_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and other.snapshot_hash == self.snapshot_hash

    def __hash__(self) -> int:
        return hash(self.snapshot_hash)


def resolve_argv(manifest: SkillManifest, *, python: str, skillset: str) -> tuple[str, ...]:
    """The command to run, placeholders replaced. No shell takes part, so nothing is quoted."""
    values = {"python": python, "skillset": skillset}
    return tuple(_PLACEHOLDER.sub(lambda m: values[m.group(1)], part) for part in manifest.argv)


def _snapshot(skills: tuple[SkillManifest, ...]) -> dict[str, Any]:
    entries = [_nfc(skill.model_dump(mode="json")) for skill in skills]
    return {"catalog_format": CATALOG_FORMAT, "skills": entries}


def _nfc(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        return {_nfc(key): _nfc(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_nfc(entry) for entry in value]
    return value
