"""Reads a folder of skill manifests into a catalogue.

One `*.toml` file per skill; anything else in the folder is ignored. The first fault stops the
load with a CatalogError naming file, line and key: half a catalogue would route requests to
second-best skills without a word.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.errors import CatalogError

__all__ = ["MAX_MANIFEST_BYTES", "SHIPPED_CATALOG", "SKILLSET", "load_catalog", "parse_manifest"]

SHIPPED_CATALOG: Final = Path(__file__).resolve().parent / "catalog"
"""Manifests of the seven shipped skills."""
SKILLSET: Final = Path(__file__).resolve().parent / "skillset"
"""Their executables; what {skillset} in a manifest's argv stands for."""
MAX_MANIFEST_BYTES: Final = 256 * 1024

_TOML_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


def load_catalog(path: Path | None = None) -> Catalog:
    """The catalogue in folder `path`, or the shipped one.

    Raises CatalogError if the folder is missing or holds no manifest, a file cannot be read or
    parsed, a key is wrong, or two files describe the same skill.
    """
    folder = SHIPPED_CATALOG if path is None else path
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.suffix == ".toml")
    except OSError as problem:
        raise CatalogError(
            str(folder), "", f"the catalogue folder cannot be read ({problem.strerror})"
        ) from problem
    if not files:
        raise CatalogError(str(folder), "", "no *.toml manifest in this folder")
    manifests: dict[str, SkillManifest] = {}
    origin: dict[str, Path] = {}
    for file in files:
        source = _read(file)
        manifest = parse_manifest(source, str(file))
        if manifest.name in manifests:
            raise CatalogError(
                str(file),
                "name",
                f"skill {manifest.name!r} is already described in {origin[manifest.name].name}",
                line=_line_of(source, ("name",)),
            )
        manifests[manifest.name] = manifest
        origin[manifest.name] = file
    return Catalog.of(manifests.values())


def parse_manifest(source: str, file: str) -> SkillManifest:
    """The manifest in TOML text `source`; `file` is only for messages. Raises CatalogError."""
    try:
        data = tomllib.loads(source)
    except tomllib.TOMLDecodeError as problem:
        text = str(problem)
        place = _TOML_LINE.search(text)
        line = int(place.group(1)) if place else source.count("\n") + 1
        message = f"not valid TOML: {_TOML_LINE.sub('', text)}"
        raise CatalogError(file, "", message, line=line) from problem
    try:
        return SkillManifest.model_validate(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        key = _key(first["loc"], data)
        message = first["msg"].removeprefix("Value error, ")
        raise CatalogError(file, ".".join(key), message, line=_line_of(source, key)) from problem


def _read(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as problem:
        raise CatalogError(str(file), "", f"cannot be read ({problem.strerror})") from problem
    if len(raw) > MAX_MANIFEST_BYTES:
        raise CatalogError(str(file), "", f"larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise CatalogError(str(file), "", "not UTF-8", line=line) from problem


def _key(location: Sequence[int | str], data: dict[str, Any]) -> tuple[str, ...]:
    """The manifest's own spelling of a validator's location: argument tables have names."""
    key = [str(part) for part in location]
    arguments = data.get("arguments")
    if len(location) > 1 and location[0] == "arguments" and isinstance(arguments, dict):
        names = list(arguments)
        place = location[1]
        if isinstance(place, int) and place < len(names):
            key[1] = names[place]
    return tuple(key)


def _line_of(source: str, key: Sequence[str]) -> int:
    """The line that sets `key`, else its table's, else 0 for "unknown".

    A scan of the text, as the TOML reader keeps no positions; an index into an array counts as
    its key, and a multi-line array as the line it starts on.
    """
    table: tuple[str, ...] = ()
    best, depth = 0, 0
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if header := re.fullmatch(r"\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?", text):
            table = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
            here = table
        elif setting := re.match(r"([A-Za-z0-9_.\-\"']+)\s*=", text):
            here = (*table, *(part.strip("\"'") for part in setting.group(1).split(".")))
        else:
            continue
        shared = len(here) if tuple(key[: len(here)]) == here else 0
        if shared > depth:
            best, depth = number, shared
    return best
