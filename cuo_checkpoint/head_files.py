"""The folder that signed heads are exported to: files that are written once and never again.

    FOLDER/TENANT/00000001.leaves    the leaves this head added, one canonical JSON object a line
    FOLDER/TENANT/00000001.note      the signed head; written last, so it vouches for the leaves file

Numbers follow one another; a head of the same size as the one before was signed again by a new key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cuo_checkpoint.errors import ExportRefused

__all__ = ["HeadFolder"]

_NAME: Final = re.compile(r"^([0-9]{8,})\.note$")
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class HeadFolder:
    """Signed heads in files. The folder itself is never created: an unmounted one must be noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tenants(self) -> list[uuid.UUID]:
        """Every tenant with a folder here, sorted."""
        found = []
        for path in self._root().iterdir():
            with contextlib.suppress(ValueError):
                found.append(uuid.UUID(path.name))
        return sorted(found)

    def numbers(self, tenant_id: uuid.UUID) -> list[int]:
        """The heads there are, in order."""
        place = self._root() / str(tenant_id)
        if not place.is_dir():
            return []
        names = (_NAME.match(path.name) for path in place.iterdir())
        return sorted(int(name.group(1)) for name in names if name)

    def note(self, tenant_id: uuid.UUID, number: int) -> bytes:
        return self._read(tenant_id, f"{number:08d}.note")

    def leaves(self, tenant_id: uuid.UUID, number: int) -> Iterator[bytes]:
        """The lines of the leaves file, without their ends. Raises ExportRefused."""
        path = self.folder / str(tenant_id) / f"{number:08d}.leaves"
        try:
            with path.open("rb") as file:
                for line in file:
                    yield line.removesuffix(b"\n")
        except OSError as error:
            raise ExportRefused(f"cannot read {path}: {error.strerror}.") from error

    def write(self, tenant_id: uuid.UUID, number: int, leaves: bytes, note: bytes) -> None:
        """Adds a head; again, with the same bytes, does nothing.

        Killed between the two files it leaves no head, and the next call completes it. Raises
        ExportRefused when the folder is missing or holds other bytes under this number.
        """
        place = self._root() / str(tenant_id)
        try:
            place.mkdir(exist_ok=True)
            _write_once(place / f"{number:08d}.leaves", leaves)
            _write_once(place / f"{number:08d}.note", note)
        except OSError as error:
            raise ExportRefused(f"cannot write to {place}: {error.strerror}.") from error

    def _root(self) -> Path:
        if not self.folder.is_dir():
            raise ExportRefused(
                f"{self.folder} (CUO_EXPORT_DIR) is not there. Mount or create it, out of the "
                "reach of the database's owner."
            )
        return self.folder

    def _read(self, tenant_id: uuid.UUID, name: str) -> bytes:
        path = self.folder / str(tenant_id) / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise ExportRefused(f"cannot read {path}: {error.strerror}.") from error


def _write_once(path: Path, data: bytes) -> None:
    if _is_there(path, data):
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(draft, data)
        try:
            os.link(draft, path)  # unlike a rename, never replaces what another sealer put there
        except OSError as error:
            if error.errno == errno.EEXIST:
                _is_there(path, data)
            elif error.errno in _NO_LINKS:
                _write(
                    path, data
                )  # object stores: no links, but a file appears whole or not at all
            else:
                raise
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _is_there(path: Path, data: bytes) -> bool:
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return False
    if found != data:
        raise ExportRefused(
            f"{path} is there already and says something else. Two sealers export to this folder, "
            "or the database's seals were changed; run: cuo-archive verify"
        )
    return True


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every mounted store has folders to sync
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
