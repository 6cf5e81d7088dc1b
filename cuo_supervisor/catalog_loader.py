"""Reads a folder of skill manifests into a catalogue.

One `*.toml` file per skill; anything else in the folder is ignored. The first fault stops the
load with a CatalogError naming file, line and key: half a catalogue would route requests to
second-best skills without a word.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
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

_MAX_KEY_PARTS: Final = 100
_MAX_DEPTH: Final = 100
"""Far more than a manifest has; what the TOML reader needs grows with the square of the parts."""

_TEXTS: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'|#.*""")
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
    for number, bare in _without_texts(source):
        if bare.count(".") > _MAX_KEY_PARTS:
            raise CatalogError(file, "", "a key has too many parts", line=number)
    try:
        data = tomllib.loads(source)
    except tomllib.TOMLDecodeError as problem:
        text = str(problem)
        place = _TOML_LINE.search(text)
        line = int(place.group(1)) if place else source.count("\n") + 1
        message = f"not valid TOML: {_TOML_LINE.sub('', text)}"
        raise CatalogError(file, "", message, line=line) from problem
    except RecursionError:
        raise CatalogError(file, "", "nested too deeply", line=_line_of_depth(source)) from None
    except ValueError:
        # A number of more digits than Python reads: the reader lets int()'s own complaint through.
        line = _line_of_digits(source)
        raise CatalogError(file, "", "a number has too many digits", line=line) from None
    try:
        return SkillManifest.model_validate(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        key = _key(first["loc"], data)
        message = first["msg"].removeprefix("Value error, ")
        raise CatalogError(file, ".".join(key), message, line=_line_of(source, key)) from problem


def _read(file: Path) -> str:
    try:
        with open(file, "rb", opener=_at_once) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise CatalogError(str(file), "", "not a regular file")
            raw = opened.read(MAX_MANIFEST_BYTES + 1)
    except OSError as problem:
        raise CatalogError(str(file), "", f"cannot be read ({problem.strerror})") from problem
    if len(raw) > MAX_MANIFEST_BYTES:
        raise CatalogError(str(file), "", f"larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise CatalogError(str(file), "", "not UTF-8", line=line) from problem


def _at_once(path: str, flags: int) -> int:
    """Opens without waiting for whoever would write to a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _without_texts(source: str) -> Iterator[tuple[int, str]]:
    """Each line's number, and the line without its strings and its comment."""
    for number, line in enumerate(source.splitlines(), 1):
        yield number, _TEXTS.sub("", line)


def _line_of_depth(source: str) -> int:
    """The line in which brackets are open that no manifest needs, 0 for unknown."""
    depth = 0
    for number, line in _without_texts(source):
        depth += line.count("[") + line.count("{")
        if depth > _MAX_DEPTH:
            return number
        depth -= line.count("]") + line.count("}")
    return 0


def _line_of_digits(source: str) -> int:
    """The line of the longest number: the one that was too long, or one that would be next."""
    longest = max(re.finditer(r"\d[\d_]*", source), key=lambda found: len(found[0]))
    return source.count("\n", 0, longest.start()) + 1


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
