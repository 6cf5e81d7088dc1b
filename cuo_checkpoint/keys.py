"""The seal keys' file: who signs heads, who is still believed, and how keys come and go.

One key a line. Secret ones sign every new head, so two of them overlap while auditors learn the
newer; public ones sign no more, but heads they signed stay believed. `#` begins a remark. The file
belongs to its owner alone (mode 0600 or less) and not on the database's host.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cuo_checkpoint.errors import KeyUnusable, KeyUnwritten
from cuo_checkpoint.notes import PublicKey, SecretKey, SignedNote

__all__ = [
    "KeyRing",
    "endorsement",
    "generate",
    "load",
    "load_public",
    "parse",
    "write_new",
    "write_over",
]

_HEAD: Final = "# Seal keys. Keep mode 0600, backed up offline, and away from the database.\n"
_MAX_BYTES: Final = 64 * 1024
_ROTATION: Final = "cuo/seal-keys/v1"


@dataclass(frozen=True, slots=True)
class KeyRing:
    """`signing` keys sign; `trusted` ones are only believed. Every signing key is believed too."""

    signing: tuple[SecretKey, ...]
    trusted: tuple[PublicKey, ...] = ()

    @property
    def believed(self) -> tuple[PublicKey, ...]:
        return tuple(key.public for key in self.signing) + self.trusted

    def with_new(self, key: SecretKey) -> KeyRing:
        """The ring with one more signing key, which signs first from now on."""
        if key.public.public in {known.public for known in self.believed}:
            raise KeyUnusable("the ring holds this key already.")
        return KeyRing((key, *self.signing), self.trusted)

    def retired(self, which: str) -> KeyRing:
        """The ring in which key `which` (its id) signs no more but stays believed.

        For a key that is replaced or lost. Raises KeyUnusable when it is not there or is the last.
        """
        leaving = self._signing(which)
        rest = tuple(key for key in self.signing if key is not leaving)
        return KeyRing(rest, (*self.trusted, leaving.public))

    def distrusted(self, which: str) -> KeyRing:
        """The ring without key `which`: what only it signed is believed no more. For a stolen key."""
        if any(key.public.id == which for key in self.signing):
            leaving = self._signing(which)
            return KeyRing(tuple(k for k in self.signing if k is not leaving), self.trusted)
        rest = tuple(key for key in self.trusted if key.id != which)
        if len(rest) == len(self.trusted):
            raise KeyUnusable(f"no key {which} is in the file.")
        return KeyRing(self.signing, rest)

    def to_text(self) -> str:
        """The file's text, secrets included."""
        lines = [key.secret_text() for key in self.signing] + [str(key) for key in self.trusted]
        return _HEAD + "".join(f"{line}\n" for line in lines)

    def _signing(self, which: str) -> SecretKey:
        found = [key for key in self.signing if key.public.id == which]
        if not found:
            raise KeyUnusable(f"no signing key {which} is in the file.")
        if len(self.signing) == 1:
            raise KeyUnusable(f"key {which} is the only one that signs; add its successor first.")
        return found[0]


def generate(name: str) -> SecretKey:
    """A fresh key. Raises KeyUnusable for a name with blanks or plus signs."""
    key = SecretKey(name, secrets.token_bytes(32))
    try:
        return SecretKey.parse(key.secret_text())
    except ValueError:
        raise KeyUnusable("a key's name must not be empty nor hold blanks or plus signs.") from None


def parse(text: str, *, where: str) -> KeyRing:
    """The ring in a text of lines; `where` is named when one of them is wrong.

    Raises KeyUnusable, naming the line's number and never showing it.
    """
    signing: list[SecretKey] = []
    trusted: list[PublicKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("PRIVATE+KEY+"):
                signing.append(SecretKey.parse(line))
            else:
                trusted.append(PublicKey.parse(line))
        except ValueError as error:
            raise KeyUnusable(f"{where}, line {number}: {error}.") from None
    return KeyRing(tuple(signing), tuple(trusted))


def load(source: str) -> KeyRing:
    """The ring in CUO_SEAL_KEY: an absolute path of a key file, or the keys themselves.

    Raises KeyUnusable when there is no signing key, or when others than the file's owner may read
    or write it: such a key proves nothing about who signed.
    """
    if source.startswith("PRIVATE+KEY+"):
        return _usable(parse(source, where="CUO_SEAL_KEY"), "CUO_SEAL_KEY")
    path = Path(source).expanduser()
    if not path.is_absolute():
        raise KeyUnusable("CUO_SEAL_KEY is neither an absolute path nor a key (PRIVATE+KEY+...).")
    return _usable(parse(_read(path, secret=True), where=str(path)), str(path))


def load_public(path: Path) -> tuple[PublicKey, ...]:
    """The keys a verifier believes, from a file of public lines. Raises KeyUnusable.

    Refuses a file with a secret in it: whoever verifies should not hold one.
    """
    ring = parse(_read(path, secret=False), where=str(path))
    if ring.signing:
        raise KeyUnusable(f"{path} holds a secret key; verify with public ones (keys public).")
    if not ring.trusted:
        raise KeyUnusable(f"{path} holds no key.")
    return ring.trusted


_MISNAMED: Final = {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}


def write_new(path: Path, ring: KeyRing) -> None:
    """A new key file, mode 0600. Raises KeyUnusable when there is a file already, and KeyUnwritten."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        kind = KeyUnusable if error.errno in _MISNAMED else KeyUnwritten
        raise kind(f"cannot create {path}: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(ring.to_text())
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink()  # half a key would only stand in the way of the next try
        if isinstance(error, OSError):
            raise KeyUnwritten(f"cannot write {path}: {error.strerror}.") from None
        raise


def write_over(path: Path, ring: KeyRing) -> None:
    """Replaces a key file in one step: at any instant it holds the old ring or the new, whole."""
    target = path.resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=".keys-", dir=target.parent)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(ring.to_text())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KeyUnwritten(f"cannot replace {path}: {error.strerror}.") from None


def endorsement(old: SecretKey, new: PublicKey) -> bytes:
    """A note in which the old key names its successor: what an auditor needs to follow a rotation."""
    text = f"{_ROTATION}\nold {old.public}\nnew {new}\n"
    return SignedNote(text, (old.sign(text.encode(), old.name),)).to_bytes()


def _usable(ring: KeyRing, where: str) -> KeyRing:
    if not ring.signing:
        raise KeyUnusable(f"{where} holds no signing key; make one with: cuo-archive keys new.")
    return ring


def _read(path: Path, *, secret: bool) -> str:
    try:
        # Opened without waiting for whoever would write to a named pipe.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())  # of what was opened, also behind a symbolic link
            if not stat.S_ISREG(found.st_mode):
                raise KeyUnusable(f"{path} is not a file.")
            if secret and found.st_mode & 0o077:
                raise KeyUnusable(f"others can read {path}. Do: chmod 600 {path}")
            if secret and found.st_uid not in (os.geteuid(), 0):
                raise KeyUnusable(f"{path} belongs to another user.")
            return file.read(_MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise KeyUnusable(f"{path} is not text.") from None
    except OSError as error:
        raise KeyUnusable(f"cannot read {path}: {error.strerror}.") from None
