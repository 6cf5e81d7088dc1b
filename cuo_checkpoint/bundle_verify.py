#!/usr/bin/env python3
"""Checks an evidence bundle of the CUO log. Needs Python 3.11 and nothing else.

    python3 verify.py BUNDLE [--key FILE] [--head FILE] [--json]

BUNDLE is the exported folder. FILE after --key holds the log's public keys (NAME+ID+BASE64, one a
line); get it from the log's operator in person or by mail, never from a bundle. FILE after --head
is a signed head you were given before: the bundle must not be older. Without --key only the
bundle's agreement with itself is checked, which whoever made it could have arranged.

Exit code 0: everything holds. 65: something does not, and is named. 64: wrong usage. 74: the result
could not be written. 130: interrupted.

Not checked is what is there for reading, summary.html above all: nothing signed speaks of it, and the
checksums beside it are made by whoever made it. The result names each such file.

Everything is recomputed from definitions, sharing no code with the program that wrote the log:
chains (SHA-256), rows (RFC 8785), trees (RFC 6962), heads (C2SP signed notes), signatures
(Ed25519, RFC 8032). Time grows with the bundle's size; memory with its largest run.
"""

from __future__ import annotations

import argparse
import base64
import calendar
import contextlib
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from typing import Any, NoReturn

__all__ = ["Verifier", "canonical", "ed25519_verify", "main"]

FORMAT = "cuo/bundle/v1"
LOG = (
    "checkpoint_id", "checkpoint_ns", "created_at", "edge_from", "edge_to", "kind",
    "langgraph_sha256", "lg_checkpoint_id", "lg_parent_id", "node_name", "ordinal",
    "parent_checkpoint_id", "phase", "run_id", "seq", "state_sha256", "step", "tenant_id",
    "thread_id", "trace_id",
)  # fmt: skip
WRITE = (
    "channel", "checkpoint_ns", "created_at", "idx", "lg_checkpoint_id", "run_id", "seq",
    "task_id", "task_path", "tenant_id", "thread_id", "value_sha256",
)  # fmt: skip
TOMBSTONE = (
    "created_at", "hidden_run_id", "kind", "run_id", "tenant_id", "thread_id", "tombstone_id",
    "up_to_seq",
)  # fmt: skip
HOLD = (
    "created_at", "held_run_id", "hold_id", "kind", "placed_by", "reason", "releases", "tenant_id",
)  # fmt: skip
RETENTION = "00000000-0000-8000-8000-726574656e74"
MAX_NAMED = 1000
MAX_TEXT = 1000  # letters of one finding
SMALL = 1 << 16  # a note, a file of keys, the checksums
LARGE = 1 << 31  # what is read whole and grows with the runs: 1.4 kB each
LINE = 1 << 28  # a row; the log takes none of more than some MB
DAMAGE = (
    ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
SPELL = "\0spell"  # no column has such a name

Row = dict[str, Any]


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


# -- RFC 8785 ----------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """The RFC 8785 form of a JSON tree. Raises ValueError for what has none."""
    return "".join(_pieces(value)).encode()


def load(data: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """A JSON tree and what spells it, or any part of it, canonically.

    The standard library's encoder, much faster, writes the same bytes where there is no fraction,
    no integer of 16 digits and no key that may sort otherwise in UTF-16.
    """
    _ODD.clear()
    tree = _DECODER.decode(data.decode())
    plain = not _ODD and b"\\u" not in data and (data.isascii() or not _BEYOND.search(data))
    return tree, _quick if plain else canonical


def _fraction(text: str) -> float:
    _ODD.append(text)
    return float(text)


def _integer(text: str) -> int:
    if len(text) > 15:
        _ODD.append(text)
    return int(text)


_ODD: list[str] = []
_BEYOND = re.compile(rb"[\xf0-\xf4]")
_DECODER = json.JSONDecoder(parse_float=_fraction, parse_int=_integer, parse_constant=_fraction)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _quick(tree: Any) -> bytes:
    return _ENCODER.encode(tree).encode()


def _pieces(value: Any) -> Iterator[str]:
    if value is None or value is True or value is False:
        yield json.dumps(value)
    elif isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, int):
        if abs(value) > 2**53 - 1:
            raise ValueError("an integer beyond 2**53 - 1")
        yield str(value)
    elif isinstance(value, float):
        yield _number(value)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield "," if i else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    else:
        for i, key in enumerate(sorted(value, key=lambda k: k.encode("utf-16-be"))):
            yield ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
            yield from _pieces(value[key])
        yield "}" if value else "{}"


def _number(value: float) -> str:
    """A double as ECMAScript spells it: Python's shortest digits, another layout."""
    if not math.isfinite(value):
        raise ValueError("not a number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


# -- Ed25519, RFC 8032 -------------------------------------------------------------------------

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]


def _add(a: Point, b: Point) -> Point:
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    p, q, r, s = f - e, h - g, h + g, f + e
    return (p * q % P, r * s % P, q * r % P, p * s % P)


def _times(n: int, point: Point) -> Point:
    found: Point = (0, 1, 1, 0)
    while n:
        if n & 1:
            found = _add(found, point)
        point, n = _add(point, point), n >> 1
    return found


def _point(data: bytes) -> Point | None:
    y = int.from_bytes(data, "little")
    odd, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and odd):
        return None
    x = P - x if x & 1 != odd else x
    return (x, y, 1, x * y % P)


_Y = 4 * pow(5, P - 2, P) % P
BASE = _point(_Y.to_bytes(32, "little")) or (0, 1, 1, 0)


def ed25519_verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is one of `message` by `public`. Not for secrets: it is not constant-time."""
    if len(public) != 32 or len(signature) != 64:
        return False
    a, r = _point(public), _point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= Q:
        return False
    hashed = hashlib.sha512(signature[:32] + public + message).digest()
    left, right = _times(s, BASE), _add(r, _times(int.from_bytes(hashed, "little") % Q, a))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 and (
        left[1] * right[2] - right[1] * left[2]
    ) % P == 0


# -- heads and trees ---------------------------------------------------------------------------


def read_keys(text: str) -> dict[bytes, str]:
    """Public keys, one a line, and what each calls itself. Raises ValueError if a line is none."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, ident, data, *_ = (*line.strip().split("+", 2), "", "")
            raw = base64.b64decode(data, validate=True)
            if (
                len(raw) != 33
                or raw[0] != 1
                or sha256(name.encode() + b"\n" + raw)[:4].hex() != ident
            ):
                raise ValueError(f"no public key: {name}")
            found[raw[1:]] = f"{name} {ident}"
    if not found:
        raise ValueError("there is no key in it")
    return found


def read_head(data: bytes, origin: str, keys: dict[bytes, str] | None) -> tuple[int, bytes]:
    """Size and root of a signed head of this log. Raises ValueError saying what is wrong.

    A key signs under the log's name, so its id in a head is not the one in its own line: both are told.
    """
    text, blank, lines = data.decode(errors="replace").rpartition("\n\n")
    told = re.fullmatch(r"([^\n]+)\n(0|[1-9][0-9]{0,17})\n([A-Za-z0-9+/]{43}=)", text)
    if not blank or not told:
        raise ValueError("is malformed")
    if told[1] != origin:
        raise ValueError(f"is of another log ({told[1]})")
    if keys is not None:
        known = {sha256(f"{origin}\n\x01".encode() + key)[:4]: key for key in keys}
        vouched, seen = False, []
        for line in lines.splitlines():
            name, _, packed = line.removeprefix("— ").partition(" ")
            signed = base64.b64decode(packed)
            seen.append(signed[:4].hex())
            if name == origin and signed[:4] in known:
                key = known[signed[:4]]
                if not ed25519_verify(key, (text + "\n").encode(), signed[4:]):
                    raise ValueError(f"is forged: the signature by {keys[key]} does not fit it")
                vouched = True
        if not vouched:
            yours = ", ".join(f"{keys[key]} as {ident.hex()}" for ident, key in known.items())
            raise ValueError(
                f"is signed by no key you trust (by {', '.join(seen)}; in this log yours sign: {yours})"
            )
    return int(told[2]), base64.b64decode(told[3])


def included(index: int, size: int, leaf: bytes, path: list[bytes], root: bytes) -> bool:
    """RFC 6962: whether the path leads from the leaf's hash to the root."""
    at, last, found = index, size - 1, leaf
    for node in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = sha256(b"\x01", node, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = sha256(b"\x01", found, node)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root and 0 <= index < size


def early(row: Row) -> str:
    """Why a row of retention drops a month before its time; "" when it does not."""
    said, month = row["body"], row["body"]["month"]
    months, newest = said["older_than_months"], said.get("newest_row")
    if months < 84:
        return f"it drops {month} after {months} months"
    if newest is not None and newest[:7] != month:
        return f"it drops {month} and speaks of a newest row of {newest}"
    if said.get("whole"):
        newest = f"{month}-01"
    elif newest is None:
        newest = f"{next_month(month)}-01"
    year, index = divmod(int(newest[:4]) * 12 + int(newest[5:7]) - 1 + months, 12)
    day = min(int(newest[8:10]), calendar.monthrange(year, index + 1)[1])
    if row["at"] <= f"{year:04d}-{index + 1:02d}-{day:02d}{newest[10:]}":
        return f"it drops {month} before its {months} months are over"
    return ""


def next_month(month: str) -> str:
    """The month after YYYY-MM."""
    year, index = divmod(int(month[:4]) * 12 + int(month[5:7]), 12)
    return f"{year:04d}-{index + 1:02d}"


# -- the bundle --------------------------------------------------------------------------------


def open_file(path: pathlib.Path) -> BufferedReader:
    """A file that lies in the folder itself. Raises ValueError for a link, pipe, device or folder."""
    if not stat.S_ISREG(path.lstat().st_mode):  # before it is opened: that alone moves some devices
        raise ValueError(f"{path.name} is not a regular file")
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags | safe), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path.name} is not a regular file")
    return file


class Verifier:
    """Checks one bundle; `problems` says what does not hold, first things first."""

    def __init__(self, folder: pathlib.Path, keys: dict[bytes, str] | None) -> None:
        self.folder, self.keys = folder, keys
        self.problems: list[str] = []
        self.more = 0
        self.counts = dict.fromkeys(("runs", "audit", "log", "writes", "tombstones", "holds"), 0)
        self.unsealed = 0
        self.sealed_at = ""
        self.size = 0
        self.gaps: dict[str, dict[int, Row]] = {}
        self.drops: dict[str, Row] = {}
        self.cut: list[str] = []
        self.leaves: dict[str, list[Row]] = {}
        self.holds: list[Row] = []
        self.told_holds: dict[str, tuple[int, Row]] = {}
        self.unchecked: set[str] = set()
        self.scope: dict[str, str] = {}
        self.tell: Callable[[str], None] = lambda text: None

    def problem(self, text: str) -> None:
        if len(self.problems) < MAX_NAMED:
            self.problems.append(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...")
        else:
            self.more += 1

    def run(self, newer_head: bytes | None = None) -> None:
        """Everything. Raises nothing for a damaged bundle; names the damage."""
        try:
            self._files()
            self.manifest = json.loads(self._read("manifest.json", LARGE))
            if self.manifest["format"] != FORMAT:
                self.problem("the manifest is not of a bundle of this version")
                return
            self._scope()
            self._heads(newer_head)
            self._leaves()
            self._retention()
            self._rows()
            self._missing()
        except DAMAGE as error:
            self.problem(f"the bundle cannot be read on: {type(error).__name__}: {error}")

    def _files(self) -> None:
        listed, there = {}, {p.name for p in self.folder.iterdir()} - {"SHA256SUMS", "__pycache__"}
        for line in self._read("SHA256SUMS", SMALL).decode(errors="surrogateescape").splitlines():
            digest, _, name = line.partition("  ")
            listed[name] = digest
        for name, digest in listed.items():
            if name not in there:  # nor is a name with a path in it looked for elsewhere
                self.problem(f"file {name} is in SHA256SUMS and cannot be read: it is not here")
                continue
            try:
                with self._open(name) as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        self.problem(f"file {name} is not the one in SHA256SUMS")
            except (OSError, ValueError) as error:
                self.problem(f"file {name} cannot be read: {error}")
        for name in sorted(there - set(listed)):
            self.problem(f"file {name} is not in SHA256SUMS")
        self.unchecked = there

    def _open(self, name: str) -> BufferedReader:
        self.unchecked.discard(name)
        return open_file(self.folder / name)

    def _read(self, name: str, limit: int) -> bytes:
        with self._open(name) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise ValueError(f"{name} is longer than {limit} bytes")
            return file.read()

    def _each(self, name: str) -> Iterator[bytes]:
        """The lines of a file of rows."""
        with self._open(name) as file:
            while line := file.readline(LINE):
                if len(line) == LINE:
                    raise ValueError(f"{name} has a line of {LINE} bytes or more")
                yield line

    def _scope(self) -> None:
        """What the bundle says it is of. One of a run holds that run and no other but retention's."""
        told = self.manifest["scope"].items()
        self.scope = {
            **{key: str(value) for key, value in told},
            "tenant": self.manifest["tenant_id"],
        }
        if "month" in self.scope:
            return
        here, run = {told["run_id"] for told in self.manifest["runs"]}, self.scope["run"]
        if run not in here:
            self.problem(f"run {run} is missing: the bundle says it is of it")
        for other in sorted(here - {run, RETENTION}):
            self.problem(f"run {other} is here: the bundle says it is of run {run}")

    def _heads(self, newer: bytes | None) -> None:
        self.tenant = self.manifest["tenant_id"]
        self.proofs: dict[str, Row] = json.loads(self._read("proofs.json", LARGE))
        self.root = b""
        origin = f"cuo/{self.tenant}"
        try:
            self.size, self.root = read_head(self._read("head.note", SMALL), origin, self.keys)
        except FileNotFoundError:
            self.problem("no head was signed when this was exported: nothing here is sealed")
        except ValueError as error:
            self.problem(f"head.note {error}")
        if newer is not None:
            try:
                size, root = read_head(newer, origin, self.keys)
            except ValueError as error:
                self.problem(f"the head you gave {error}")
                return
            if size > self.size:
                self.problem(
                    f"the bundle is older than the head you gave: it was exported at {self.size} "
                    f"leaves, yours covers {size}"
                )
            elif size == self.size and root != self.root:
                self.problem(f"split view: two signed trees of {size} leaves")

    def _leaves(self) -> None:
        """Of a month's bundle: the leaves that speak of the month, once they give the signed root.

        Leaves stand in the order in which they were sealed, and a row is sealed after it was
        written: the first leaf here, sealed before the month began, answers for all before it.
        """
        told, month = self.manifest.get("leaves"), self.manifest["scope"].get("month")
        if month is None or not self.size:
            return
        low, nodes = told["from"], [bytes.fromhex(node) for node in told["subtrees"]]
        size = low
        if len(nodes) != size.bit_count():
            raise ValueError("the leaves do not begin where they say")
        for line in self._each("leaves.ndjson"):
            data, carry, width = line.removesuffix(b"\n"), sha256(b"\0", line[:-1]), size
            while width & 1:
                carry, width = sha256(b"\x01", nodes.pop(), carry), width >> 1
            nodes.append(carry)
            leaf = json.loads(data)
            if size == low > 0 and leaf["sealed_at"][:7] >= month:
                self.problem("leaves of the month may be missing before the first one here")
            size += 1
            if "statement" in leaf:
                for run, _, _ in json.loads(leaf["statement"])["lost"]:
                    self.leaves.pop(run, None)
            elif leaf["at"][:7] == month:
                self.leaves.setdefault(leaf["run_id"], []).append(leaf)
        root = nodes.pop() if nodes else b""
        while nodes:
            root = sha256(b"\x01", nodes.pop(), root)
        if (size, root) != (self.size, self.root):
            self.problem("the leaves are not those of the signed head: some are missing or changed")

    def _retention(self) -> None:
        """What the signed part of the chain of retention says of dropped months.

        That chain stands first, and is itself checked with all others.
        """
        proof = self.proofs.get(RETENTION)
        sealed = json.loads(proof["leaf"]) if proof else {"chain_seq": 0, "sealed_at": ""}
        for row in self._lines("audit"):
            if row["run_id"] != RETENTION:
                break
            if row["kind"] != "month_dropped":
                continue
            said, number = json.loads(row["row"]), row["chain_seq"]
            why = early(said)
            if number > sealed["chain_seq"]:
                why = "it is not sealed yet: seal, and export again"
            elif not why and sealed["sealed_at"] < said["at"]:
                why = "it was sealed before it was written"
            if why:
                self.problem(f"run {RETENTION}: chain row {number} excuses nothing: {why}")
                continue
            drop = {"month": said["body"]["month"], "told_in": number, "told_at": said["at"],
                    "sealed_at": sealed["sealed_at"]}  # fmt: skip
            if not said["body"].get("whole"):
                self.drops[drop["month"]] = drop
                for cut in said["body"]["cuts"]:
                    for gap in cut["gaps"]:
                        self.gaps.setdefault(cut["run_id"], {})[gap["from"]] = gap | drop
        self.counts["audit"] = 0

    def _missing(self) -> None:
        """Runs that were sealed with a row in the month and are not here."""
        here = {told["run_id"] for told in self.manifest["runs"]}
        gone = {run: leaves for run, leaves in self.leaves.items() if run not in here}
        month = self.manifest["scope"].get("month")
        if not gone or month in self.drops:
            return
        if not here - {RETENTION}:
            self.problem(
                f"month {month} is missing: {len(gone)} runs were sealed in it, none is here, and "
                "no drop speaks of it"
            )
        for run, leaves in gone.items():
            self.problem(
                f"run {run} is missing: its chain row {leaves[-1]['chain_seq']} was sealed"
            )

    def _rows(self) -> None:
        audit, log, writes, tombstones = (
            self._file(name) for name in ("audit", "log", "writes", "tombstones")
        )
        last = time.monotonic()
        wanted = list(self.manifest["runs"])
        for told in wanted:
            run = told["run_id"]
            self.counts["runs"] += 1
            RunCheck(self, run, told).check(audit(run), log(run), writes(run), tombstones(run))
            if time.monotonic() - last > 2:
                last = time.monotonic()
                self.tell(f"{self.counts['runs']} of {len(wanted)} runs ...")
        for rest in (audit, log, writes, tombstones):
            for row in itertools.islice(rest(None), 1):
                self.problem(
                    f"rows of run {row.get('run_id')} are of no run of the manifest, or misplaced"
                )
        self._holds()
        for name, count in self.manifest["rows"].items():
            if self.counts[name] != count:
                self.problem(f"{name}: {self.counts[name]} rows, the manifest says {count}")

    def _holds(self) -> None:
        """Legal holds: each row is the one the chain of retention speaks of, and none is missing that
        holds a run of this bundle or everything. Of others the chain has the digest only."""
        here = {told["run_id"] for told in self.manifest["runs"]}
        for row in self._lines("holds"):
            name = f"hold {row['hold_id']}"
            number, said = self.told_holds.pop(row["hold_id"], (0, None))
            if sha256(row[SPELL]({key: row[key] for key in HOLD})).hex() != row["row_sha256"]:
                self.problem(f"{name} was changed: columns and digest disagree")
            if said is None:
                outlived = row["created_at"][:7] in self.drops
                if not outlived:
                    self.problem(f"{name} was added: no chain row speaks of it")
            elif said.get("row_sha256") != row["row_sha256"]:
                self.problem(f"{name} is not the one chain row {number} speaks of")
            self.holds.append({key: row[key] for key in HOLD if key != "tenant_id"})
        for hold, (number, said) in self.told_holds.items():
            if said.get("held_run_id") is None or said["held_run_id"] in here:
                self.problem(f"chain row {number} of retention: hold {hold} is missing")

    def _file(self, name: str) -> Callable[[str | None], Iterator[Row]]:
        """Gives a file's rows run by run, in the manifest's order; None asks for what is left."""
        groups = itertools.groupby(self._lines(name), key=lambda row: row.get("run_id"))
        held: list[tuple[Any, Iterator[Row]]] = []

        def rows(run: str | None) -> Iterator[Row]:
            if not held:
                held.extend(itertools.islice(groups, 1))
            if held and (run is None or held[0][0] == run):
                yield from held.pop()[1]

        return rows

    def _lines(self, name: str) -> Iterator[Row]:
        for line in self._each(f"{name}.ndjson"):
            self.counts[name] += 1
            row, row_spell = load(line)
            row.setdefault("tenant_id", self.tenant)
            row[SPELL] = row_spell
            yield row


class RunCheck:
    """One run: its chain, the rows it speaks of, and its place in the tree."""

    def __init__(self, bundle: Verifier, run: str, told: Row) -> None:
        self.bundle, self.run, self.told = bundle, run, told
        self.said: dict[str, tuple[int, Row]] = {}
        self.sets: dict[tuple[Any, ...], tuple[int, Row]] = {}
        self.tombstones: dict[str, tuple[int, Row]] = {}
        self.digests: dict[int, str] = {}
        self.gone: list[Row] = []
        self.dropped = 0

    def bad(self, text: str) -> None:
        self.bundle.problem(f"run {self.run}: {text}")

    def check(
        self,
        audit: Iterator[Row],
        log: Iterator[Row],
        writes: Iterator[Row],
        tombstones: Iterator[Row],
    ) -> None:
        self._chain(audit)
        self._log(log)
        self._writes(writes)
        for row in tombstones:
            name = f"tombstone {row['tombstone_id']}"
            said = self.tombstones.pop(row["tombstone_id"], None)
            if said is None and row["created_at"][:7] in self.bundle.drops:
                said = (0, row)  # it outlives its month; what the month held of them has a root
            self._row(name, row, TOMBSTONE, said)
        for number, _ in self.tombstones.values():
            self.bad(f"chain row {number}: the tombstone it speaks of is missing")
        self._seal()

    def _chain(self, rows: Iterable[Row]) -> None:
        tenant, expected, sound = self.bundle.tenant, 1, True
        head = sha256(b"cuo/genesis/v1\x00", f"{tenant}/{self.run}".encode())
        gaps, before = self.bundle.gaps.get(self.run, {}), ""

        def step(number: int) -> tuple[bytes, int]:
            """Over rows that retention dropped and told of: what follows, and its number."""
            after, wanted = head, expected
            while number != wanted and wanted in gaps:
                gap = gaps[wanted]
                if before[:10] > f"{next_month(gap['month'])}-02":
                    self.bad(
                        f"chain rows {wanted} to {gap['to']} are missing: they are said to have gone "
                        f"with month {gap['month']}, but the row before them is of {before}"
                    )
                after, wanted = bytes.fromhex(gap["head"]), gap["to"] + 1
                self.dropped += gap["log_rows"]
                self.gone.append(gap)
            return after, wanted

        for row in rows:
            number = row["chain_seq"]
            head, expected = step(number)
            data = row["row"].encode() if "row" in row else base64.b64decode(row["row_base64"])
            digest = sha256(b"cuo/row/v1\x00", head, data)
            why = ""
            if number != expected:
                why = "is not in its place: rows are missing, added or reordered"
            elif row["prev_sha256"] != head.hex():
                why = "does not follow the row before"
            elif row["row_sha256"] != digest.hex():
                why = "was changed: bytes and digest disagree"
            if why and sound:
                self.bad(f"chain row {number} {why}")
            sound, head, expected = sound and not why, bytes.fromhex(row["row_sha256"]), number + 1
            self.digests[number], before = row["row_sha256"], row["created_at"]
            try:
                said, spell = load(data)
                if spell(said) != data:
                    self.bad(f"chain row {number}: its bytes are not canonical")
                shown = (said["tenant_id"], said["run_id"], said["chain_seq"], said["kind"])
                if shown != (tenant, self.run, number, row["kind"]) or "body" in row:
                    self.bad(f"chain row {number}: columns are not what its bytes say")
                if (said["at"], said["trace_id"]) != (row["created_at"], row["trace_id"]):
                    self.bad(f"chain row {number}: time or trace is not what its bytes say")
                self._note(number, said["kind"], said["body"])
            except (ValueError, KeyError, TypeError):
                self.bad(f"chain row {number}: what it says cannot be read")
        step(0)
        if not self.digests:
            self.bad("the run has no chain")
        self.bundle.cut += [
            f"run {self.run}: chain rows {gap['from']} to {gap['to']} went with month "
            f"{gap['month']}: retention said so in row {gap['told_in']} of its chain, "
            f"{gap['told_at']}, sealed by {gap['sealed_at']}"
            for gap in self.gone
        ]

    def _note(self, number: int, kind: str, body: Row) -> None:
        if kind == "cuo.checkpoint_written":
            if body["checkpoint_id"] in self.said:
                self.bad(f"chain row {number}: speaks of a log row a second time")
            self.said[body["checkpoint_id"]] = (number, body)
        elif kind == "write_set":
            keys = ("checkpoint_ns", "lg_checkpoint_id", "task_id", "seq")
            self.sets[tuple(body[key] for key in keys)] = (number, body)
        elif kind == "tombstone":
            self.tombstones[body["tombstone_id"]] = (number, body)
        elif kind == "hold" and self.run == RETENTION:
            self.bundle.told_holds[body["hold_id"]] = (number, body)
        elif kind == "close" and body["log_rows"] != len(self.said) + self.dropped:
            self.bad(
                f"chain row {number}: closed with {body['log_rows']} rows, not "
                f"{len(self.said) + self.dropped}"
            )

    def _row(
        self, name: str, row: Row, columns: tuple[str, ...], said: tuple[int, Row] | None
    ) -> None:
        if sha256(row[SPELL]({key: row[key] for key in columns})).hex() != row["row_sha256"]:
            self.bad(f"{name} was changed: columns and digest disagree")
        if said is None:
            self.bad(f"{name} was added: no chain row speaks of it")
        elif said[1].get("row_sha256") != row["row_sha256"]:
            self.bad(f"{name} is not the one chain row {said[0]} speaks of")

    def _log(self, rows: Iterable[Row]) -> None:
        states: dict[str, str] = {}
        borrowed: list[tuple[str, str, str]] = []
        for row in rows:
            name = f"log row {row['checkpoint_id']} (seq {row['seq']})"
            said = self.said.pop(row["checkpoint_id"], None)
            self._row(name, row, LOG, said)
            if said and said[1].get("state_sha256") != row["state_sha256"]:
                self.bad(f"{name}: its state is not the one chain row {said[0]} speaks of")
            state = row.get("state")
            if isinstance(state, dict) and set(state) == {"$state_of"}:
                borrowed.append((name, state["$state_of"], row["state_sha256"]))
            elif self._document(name, "state", row):
                states[row["checkpoint_id"]] = row["state_sha256"]
            if row["langgraph_sha256"] is not None or row.get("langgraph") is not None:
                self._document(name, "langgraph", row)
        for name, holder, digest in borrowed:
            if states.get(holder) != digest:
                self.bad(f"{name}: the state it shares is not there")
        for checkpoint, (number, body) in self.said.items():
            self.bad(f"chain row {number}: log row {checkpoint} (seq {body.get('seq')}) is missing")

    def _writes(self, rows: Iterable[Row]) -> None:
        found: dict[tuple[Any, ...], dict[int, str]] = {}
        for row in rows:
            name = f"pending write {row['channel']!r} of task {row['task_id']} (seq {row['seq']})"
            place = tuple(row[k] for k in ("checkpoint_ns", "lg_checkpoint_id", "task_id", "seq"))
            if sha256(row[SPELL]({key: row[key] for key in WRITE})).hex() != row["row_sha256"]:
                self.bad(f"{name} was changed: columns and digest disagree")
            if place not in self.sets:
                self.bad(f"{name} was added: no chain row speaks of it")
            self._document(name, "value", row)
            found.setdefault(place, {})[row["idx"]] = row["row_sha256"]
        for place, (number, body) in self.sets.items():
            digests = [bytes.fromhex(d) for _, d in sorted(found.get(place, {}).items())]
            if body["writes"] != len(digests) or body["sha256"] != sha256(*digests).hex():
                self.bad(
                    f"chain row {number}: its pending writes are missing or not those it counts"
                )

    def _document(self, name: str, column: str, row: Row) -> bool:
        try:
            same = bool(sha256(row[SPELL](row[column])).hex() == row[f"{column}_sha256"])
        except (KeyError, ValueError):
            same = False
        if not same:
            self.bad(f"{name}: its {column} was changed")
        return same

    def _seal(self) -> None:
        rows, proof = len(self.digests), self.bundle.proofs.get(self.run)
        if rows != self.told["chain_rows"]:
            self.bad(f"is shortened: the manifest counts {self.told['chain_rows']} chain rows")
        if proof is None:
            if self.told.get("sealed") is not None:
                self.bad("its proof is missing")
            self.bundle.unsealed += rows
            return
        leaf = proof["leaf"].encode()
        path = [bytes.fromhex(node) for node in proof["path"]]
        if not included(
            proof["index"], self.bundle.size, sha256(b"\0", leaf), path, self.bundle.root
        ):
            self.bad("its proof does not lead to the signed head")
            return
        said = json.loads(leaf)
        number = said["chain_seq"]
        if (said["tenant_id"], said["run_id"]) != (self.bundle.tenant, self.run):
            self.bad("its proof is of another run")
        else:
            for leaf in (said, *self.bundle.leaves.get(self.run, ())):
                self._sealed(leaf["chain_seq"], leaf["row_sha256"])
        self.bundle.sealed_at = max(self.bundle.sealed_at, said["sealed_at"])
        self.bundle.unsealed += sum(1 for seq in self.digests if seq > number)

    def _sealed(self, number: int, digest: str) -> None:
        """Holds one chain row against a leaf."""
        if number not in self.digests:
            gap = next((g for g in self.gone if g["from"] <= number <= g["to"]), None)
            if gap is None:
                last = max(self.digests, default=0)
                self.bad(f"is shortened: sealed up to chain row {number}, it ends at {last}")
            elif number == gap["to"] and digest != gap["head"]:
                self.bad(f"was rewritten: dropped chain row {number} was not the one sealed")
        elif self.digests[number] != digest:
            self.bad(f"was rewritten: chain row {number} is not the one sealed")


# -- the command -------------------------------------------------------------------------------


def shown(text: str) -> str:
    """A text of somebody else's as one line that does nothing to a terminal: the rest is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def remark(text: str) -> None:
    """A remark on stderr. Nobody there: no harm."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(shown(text) + "\n")
            sys.stderr.flush()
    except OSError:
        mute(2)


def deliver(text: str) -> bool:
    """Writes the result. False when it is lost; a reader that has seen enough changes nothing."""
    why: str | None = "it is closed"
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return True
    except BrokenPipeError:
        mute(1)
        return True
    except OSError as error:
        mute(1)
        why = error.strerror
    remark(f"error: the result could not be written to standard output: {why}")
    return False


def mute(stream: int) -> None:
    """Points a standard stream nowhere, or Python would complain once more when it ends."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream)
        os.close(nowhere)


class Parser(argparse.ArgumentParser):
    """Tells a wrong call without doing to the terminal what its words ask for."""

    def error(self, message: str) -> NoReturn:
        remark(" ".join(self.format_usage().split()))
        remark(f"error: {message}")
        raise SystemExit(64)


def main(arguments: list[str] | None = None) -> int:
    """The command. Results on stdout, remarks on stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # there is none
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code, text = checked(arguments)
    except KeyboardInterrupt:
        remark("interrupted: nothing is known of the bundle")
        return 130
    return code if deliver(text) else 74


def checked(arguments: list[str] | None) -> tuple[int, str]:
    """Exit code and result."""
    parser = Parser(description="Checks an evidence bundle of the CUO log.")
    parser.add_argument("bundle", help="the exported folder")
    parser.add_argument("--key", type=pathlib.Path, help="file of the log's public keys")
    parser.add_argument("--head", type=pathlib.Path, help="a signed head you were given before")
    parser.add_argument("--json", action="store_true", help="print JSON")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as end:
        return 64 if end.code else 0, ""
    try:
        keys = None if given.key is None else read_keys(yours(given.key).decode())
        newer = None if given.head is None else yours(given.head)
    except (OSError, ValueError) as error:
        remark(f"cannot use the key or head file: {error}")
        return 64, ""
    if not given.bundle or not pathlib.Path(given.bundle).is_dir():
        remark(f"there is no bundle: {given.bundle or 'an empty name'} is not a folder")
        return 64, ""
    check = Verifier(pathlib.Path(given.bundle), keys)
    check.tell = remark
    check.run(newer)
    lines = [as_json(check)] if given.json else [shown(line) for line in told(check)]
    return 65 if check.problems else 0, "".join(f"{line}\n" for line in lines)


def yours(path: pathlib.Path) -> bytes:
    """A file of whoever checks, which may be a pipe."""
    with path.open("rb") as file:
        data = file.read(SMALL + 1)
    if len(data) > SMALL:
        raise ValueError(f"{path} is longer than {SMALL} bytes")
    return data


def as_json(check: Verifier) -> str:
    """The result for programs, in ASCII."""
    result = {"ok": not check.problems, "signature_checked": check.keys is not None,
              "tree_size": check.size, "rows": check.counts, "unsealed_chain_rows":
              check.unsealed, "dropped_months": list(check.drops.values()),
              "cut_by_retention": check.cut, "holds": check.holds, "problems": check.problems,
              "scope": check.scope, "unchecked_files": sorted(check.unchecked)}  # fmt: skip
    return json.dumps(result, indent=2).replace("\x7f", "\\u007f")


def told(check: Verifier) -> Iterator[str]:
    """The result for people, in lines."""
    counts = ", ".join(f"{count} {name}" for name, count in check.counts.items())
    of = ", ".join(f"{key} {value}" for key, value in check.scope.items())
    yield f"Checked {counts}, of {of or 'nothing known'}."
    for drop in check.drops.values():
        yield (
            f"Month {drop['month']} was dropped by retention: row {drop['told_in']} of its chain, "
            f"{drop['told_at']}, sealed by {drop['sealed_at']}."
        )
    for hold in check.holds:
        on = f"run {hold['held_run_id']}" if hold["held_run_id"] else "everything of the tenant"
        what = "was placed" if hold["kind"] == "set" else f"ended hold {hold['releases']}"
        yield (
            f"Hold {hold['hold_id']} on {on} {what} {hold['created_at']} by "
            f"{hold['placed_by']!r}: {hold['reason']!r}."
        )
    for text in check.cut:
        yield f"{text[0].upper()}{text[1:]}."
    for text in check.problems:
        yield f"  {text}"
    if check.more:
        yield f"  and {check.more} more"
    if check.problems:
        yield "The bundle does not hold."
        return
    yield f"Everything holds, against a head of {check.size} leaves, sealed {check.sealed_at}."
    if check.unsealed:
        yield f"{check.unsealed} chain rows are newer than their seal and prove nothing yet."
    if check.unchecked:
        names = ", ".join(sorted(check.unchecked))
        yield f"NOT checked, since nothing signed speaks of it: {names}. Go by the rows."
    if check.keys is None:
        yield "No key was given: who signed the head was NOT checked. Repeat with --key."


if __name__ == "__main__":
    sys.exit(main())
