"""The closed catalogue of eleven personas, and the check that it is whole. Pure.

The defer matrix belongs to the role: it is code, and nothing in settings, manifests, tokens
or a model's answer can take an entry out of it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import semver

from cuo_supervisor.core.operations import OPERATIONS
from cuo_supervisor.core.persona_data import PERSONA_ROWS, PersonaRow
from cuo_supervisor.errors import PersonaUnknown

__all__ = ["PERSONAS", "PERSONA_KEYS", "Persona", "build_personas", "get_persona"]

PERSONA_KEYS: Final = (
    "genie", "ceo", "coo", "cfo", "cmo", "cto", "chro", "cso", "clo", "cdo", "cpo",
)  # fmt: skip
"""Short keys, in the catalogue's order: metric labels and token claims use these."""

_MIN_BANK: Final = 7
"""Fewest own words of a specialist; Genie has none, being nobody's specialist."""


@dataclass(frozen=True, slots=True)
class Persona:
    """One role. `key` is the long name of audit rows, `short` that of labels and claims."""

    key: str
    short: str
    display_name: str
    version: str
    keyword_bank: tuple[str, ...]
    system_prompt: str
    defer_to_human_matrix: tuple[str, ...]

    @property
    def claim(self) -> str:
        """The `agent_persona` claim and audit spelling, such as cuo-cfo@0.4.1."""
        return f"cuo-{self.short}@{self.version}"

    def defers(self, operation: str) -> bool:
        """True if the role must leave `operation` to a person, whatever the confidence."""
        return operation in self.defer_to_human_matrix


def build_personas(rows: Sequence[PersonaRow]) -> Mapping[str, Persona]:
    """Personas by short key, checked.

    Raises ValueError naming the role if one is missing or doubled, a version is not semver, a
    matrix is empty or names an unregistered operation, or a specialist has too few own words.
    """
    found = tuple(row.short for row in rows)
    if found != PERSONA_KEYS:
        raise ValueError(f"the persona catalogue must hold {PERSONA_KEYS} in order, not {found}")
    personas: dict[str, Persona] = {}
    names: set[str] = set()
    for row in rows:
        if not semver.Version.is_valid(row.version):
            raise ValueError(f"persona {row.short}: version {row.version!r} is not semver")
        if not row.matrix:
            raise ValueError(f"persona {row.short}: the defer matrix is empty")
        if unknown := sorted(set(row.matrix) - OPERATIONS.keys()):
            raise ValueError(f"persona {row.short}: unregistered operations {unknown}")
        if len(set(row.matrix)) != len(row.matrix):
            raise ValueError(f"persona {row.short}: the defer matrix repeats an operation")
        if row.short != "genie" and len(set(row.keyword_bank)) < _MIN_BANK:
            raise ValueError(f"persona {row.short}: fewer than {_MIN_BANK} own words")
        if not row.system_prompt.strip() or row.key in names:
            raise ValueError(f"persona {row.short}: prompt missing, or long name taken")
        names.add(row.key)
        personas[row.short] = Persona(
            key=row.key,
            short=row.short,
            display_name=row.display_name,
            version=row.version,
            keyword_bank=row.keyword_bank,
            system_prompt=row.system_prompt,
            defer_to_human_matrix=row.matrix,
        )
    return MappingProxyType(personas)


PERSONAS: Final[Mapping[str, Persona]] = build_personas(PERSONA_ROWS)
_BY_NAME: Final[Mapping[str, Persona]] = MappingProxyType(
    {name: persona for persona in PERSONAS.values() for name in (persona.short, persona.key)}
)


def get_persona(key: str) -> Persona:
    """The persona of that short or long name; blanks around it are ignored, case is not.

    Raises PersonaUnknown. Case matters because the same names stand in signed tokens, where
    two spellings of one identity would be a way around a comparison.
    """
    persona = _BY_NAME.get(unicodedata.normalize("NFC", key).strip())
    if persona is None:
        raise PersonaUnknown(key, PERSONA_KEYS)
    return persona
