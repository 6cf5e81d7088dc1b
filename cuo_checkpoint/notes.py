"""Signed heads of a tree: C2SP checkpoints in the signed-note form, with Ed25519. Pure.

    cuo/5b0f...                            the origin: which log, one per tenant
    1742                                   the size of its tree
    p2Zv...=                               the root, base64
                                           an empty line
    — cuo/5b0f... x08go/ZJ...              the key's id and its signature over the text above

A key signs under the origin as its name, as the specification advises, so one key pair serves every
tenant while a signature for one never fits another. Keys are written in the spelling Go's
sumdb/note made common: `NAME+ID+BASE64` for a public one, with `PRIVATE+KEY+` before a secret one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cuo_checkpoint.errors import NoteInvalid
from cuo_checkpoint.merkle import HASH_BYTES

__all__ = [
    "MAX_NOTE",
    "MAX_SIGNATURES",
    "Checkpoint",
    "PublicKey",
    "SecretKey",
    "Signature",
    "SignedNote",
    "key_id",
    "verified",
]

MAX_NOTE: Final = 64 * 1024
MAX_SIGNATURES: Final = 64
"""The specification asks for at least 16."""

_ED25519: Final = b"\x01"
_DASH: Final = "— "
_SECRET: Final = "PRIVATE+KEY+"  # noqa: S105 - what announces a secret is none


def key_id(name: str, public: bytes) -> bytes:
    """Four bytes that say which key, under which name, made a signature."""
    return hashlib.sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key and what its owner calls it."""

    name: str
    public: bytes

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """From `NAME+ID+BASE64`. Raises ValueError for anything else, and for an id that is not its."""
        name, data = _key_parts(text)
        if len(data) != 32:
            raise ValueError("an Ed25519 public key has 32 bytes")
        return cls(name, data).checked(text)

    @property
    def id(self) -> str:
        """The key's own id, eight hex digits, under its own name."""
        return key_id(self.name, self.public).hex()

    def named(self, name: str) -> PublicKey:
        """The same key under another name: an origin, for tools that know one log at a time."""
        return PublicKey(name, self.public)

    def checked(self, text: str) -> PublicKey:
        if text.split("+")[1] != self.id:
            raise ValueError("the key's id does not belong to its bytes; was it cut or retyped?")
        return self

    def __str__(self) -> str:
        return f"{self.name}+{self.id}+{base64.b64encode(_ED25519 + self.public).decode()}"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A signing key. Its repr shows the name and id only."""

    name: str
    seed: bytes

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """From `PRIVATE+KEY+NAME+ID+BASE64`. Raises ValueError, never showing the text."""
        if not text.startswith(_SECRET):
            raise ValueError("a secret key begins with PRIVATE+KEY+")
        name, data = _key_parts(text.removeprefix(_SECRET))
        if len(data) != 32:
            raise ValueError("an Ed25519 secret key has 32 bytes")
        key = cls(name, data)
        key.public.checked(text.removeprefix(_SECRET))
        return key

    @property
    def public(self) -> PublicKey:
        signer = Ed25519PrivateKey.from_private_bytes(self.seed)
        return PublicKey(self.name, signer.public_key().public_bytes_raw())

    def sign(self, text: bytes, name: str) -> Signature:
        """Signs under `name`. The same text gives the same signature."""
        signer = Ed25519PrivateKey.from_private_bytes(self.seed)
        public = signer.public_key().public_bytes_raw()
        return Signature(name, key_id(name, public), signer.sign(text))

    def secret_text(self) -> str:
        """The key's only copy in text: for the key file."""
        data = base64.b64encode(_ED25519 + self.seed).decode()
        return f"{_SECRET}{self.name}+{self.public.id}+{data}"

    def __repr__(self) -> str:
        return f"SecretKey({self.name!r}, id={self.public.id!r})"


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line."""

    name: str
    id: bytes
    signature: bytes

    def __str__(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.id + self.signature).decode()}\n"


@dataclass(frozen=True, slots=True)
class SignedNote:
    """A text and its signatures, not yet believed."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> SignedNote:
        """Raises NoteInvalid (malformed) for bytes that are no signed note."""
        if len(data) > MAX_NOTE:
            raise NoteInvalid("malformed", "the note is too long")
        try:
            whole = data.decode()
        except UnicodeDecodeError:
            raise NoteInvalid("malformed", "the note is not UTF-8") from None
        if any(c < " " and c != "\n" for c in whole):
            raise NoteInvalid("malformed", "the note holds control characters")
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not text or not lines.endswith("\n"):
            raise NoteInvalid("malformed", "the note has no signatures after an empty line")
        found = tuple(_signature(line) for line in lines[:-1].split("\n"))
        if len(found) > MAX_SIGNATURES:
            raise NoteInvalid("malformed", "the note has too many signatures")
        return cls(text + "\n", found)

    def to_bytes(self) -> bytes:
        return (self.text + "\n" + "".join(map(str, self.signatures))).encode()

    def signers(self, keys: Collection[PublicKey], name: str) -> list[PublicKey]:
        """Which of `keys` signed this text under `name`.

        Raises NoteInvalid: `forged` when a signature that claims one of them does not verify,
        `wrong_key` when none of them signed.
        """
        known = {key_id(name, key.public): key for key in keys}
        found: list[PublicKey] = []
        for line in self.signatures:
            key = known.get(line.id) if line.name == name else None
            if key is None:
                continue
            try:
                Ed25519PublicKey.from_public_bytes(key.public).verify(
                    line.signature, self.text.encode()
                )
            except InvalidSignature:
                raise NoteInvalid(
                    "forged", f"the signature by key {key.name} ({key.id}) does not fit the note"
                ) from None
            found.append(key)
        if not found:
            ids = ", ".join(f"{line.name} {line.id.hex()}" for line in self.signatures)
            yours = ", ".join(f"{key.name} {key.id} as {told.hex()}" for told, key in known.items())
            raise NoteInvalid(
                "wrong_key",
                f"no trusted key signed the note; it is signed by {ids}; in this log the trusted ones "
                f"sign: {yours or 'there is none'}",
            )
        return found


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree's head: what is signed."""

    origin: str
    size: int
    root: bytes

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """From a note's text. Raises NoteInvalid (malformed). Extension lines are refused: ours has none."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise NoteInvalid(
                "malformed", "a head has an origin, a size and a root, in three lines"
            )
        origin, size, root = lines[:3]
        plain = size.isascii() and size.isdigit() and (size == "0" or size[0] != "0")
        if not plain or len(size) > 18:
            raise NoteInvalid("malformed", "the head's size is no number")
        try:
            digest = base64.b64decode(root, validate=True)
        except binascii.Error:
            digest = b""
        if len(digest) != HASH_BYTES or base64.b64encode(digest).decode() != root:
            raise NoteInvalid("malformed", "the head's root is not the base64 of 32 bytes")
        return cls(origin, int(size), digest)

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    def signed(self, keys: Collection[SecretKey]) -> SignedNote:
        """This head with one signature per key, in the order given."""
        text = self.text()
        return SignedNote(text, tuple(key.sign(text.encode(), self.origin) for key in keys))


def verified(data: bytes, origin: str, keys: Collection[PublicKey]) -> Checkpoint:
    """The head in a note, once a trusted key has vouched for it and it is this log's.

    Raises NoteInvalid. The origin is looked at first: a head of another log is signed under
    another name, and would otherwise pass for one signed by a stranger.
    """
    note = SignedNote.parse(data)
    head = Checkpoint.parse(note.text)
    if head.origin != origin:
        raise NoteInvalid("other_log", f"the head is of the log {head.origin}, not of {origin}")
    note.signers(keys, origin)
    return head


def _signature(line: str) -> Signature:
    parts = line.removeprefix(_DASH).split(" ")
    if not line.startswith(_DASH) or len(parts) != 2 or not _is_name(parts[0]):
        raise NoteInvalid("malformed", "a signature line is a dash, a key name and base64")
    try:
        data = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) < 5:
        raise NoteInvalid("malformed", "a signature line is a dash, a key name and base64")
    return Signature(parts[0], data[:4], data[4:])


def _key_parts(text: str) -> tuple[str, bytes]:
    parts = text.split("+", 2)
    if len(parts) != 3 or not _is_name(parts[0]):
        raise ValueError("a key is written NAME+ID+BASE64")
    try:
        data = base64.b64decode(parts[2], validate=True)
    except binascii.Error:
        data = b""
    if data[:1] != _ED25519:
        raise ValueError("the key is not an Ed25519 key in base64")
    return parts[0], data[1:]


def _is_name(name: str) -> bool:
    return (
        bool(name)
        and "+" not in name
        and not any(c.isspace() or unicodedata.category(c)[0] in "ZC" for c in name)
    )
