"""What a bundle says of each run, written as it comes: the manifest's list of runs, and their proofs.

Neither is kept in memory. The manifest tells counts before runs, so its runs wait in a file of their own
until all is counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from cuo_checkpoint import bundle_verify, export_draft
from cuo_checkpoint.canonical import canonical_bytes

__all__ = ["Listing"]

_HERE: Final = b'"runs":[]'


class Listing:
    """Takes each run in the bundle's order, and the manifest's other members at the end."""

    def __init__(self, folder: Path, runs: IO[bytes], proofs: IO[bytes]) -> None:
        self._folder, self._runs, self._proofs = folder, runs, proofs
        self._first, self._held = True, b""
        self._between = b"{"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Listing]:
        """Its files stand in `folder`, and are whole after `close`."""
        with (
            (folder / export_draft.RUNS).open("w+b") as runs,
            (folder / "proofs.json").open("wb") as proofs,
        ):
            yield cls(folder, runs, proofs)

    def add(self, run: Mapping[str, Any], proof: Mapping[str, Any] | None) -> None:
        """One run as the manifest tells it, and its proof if it is sealed."""
        self._runs.write((b"" if self._first else b",") + canonical_bytes(dict(run)))
        self._first = False
        if proof is None:
            return
        name = run["run_id"]
        entry = canonical_bytes({name: dict(proof)})[1:-1]
        if name == bundle_verify.RETENTION:  # first in the bundle, but by its name not always
            self._held = entry
            return
        if self._held and name > bundle_verify.RETENTION:
            self._put_held()
        self._put(entry)

    def close(self, manifest: Mapping[str, Any]) -> None:
        """Ends the proofs, and writes the manifest around its runs."""
        if self._held:
            self._put_held()
        self._proofs.write((b"{}" if self._between == b"{" else b"}") + b"\n")
        before, after = canonical_bytes({**manifest, "runs": []}).split(_HERE)
        self._runs.seek(0)
        with (self._folder / "manifest.json").open("wb") as file:
            file.write(before + _HERE[:-1])
            shutil.copyfileobj(self._runs, file)
            file.write(_HERE[-1:] + after + b"\n")
        (self._folder / export_draft.RUNS).unlink()

    def _put(self, entry: bytes) -> None:
        self._proofs.write(self._between + entry)
        self._between = b","

    def _put_held(self) -> None:
        entry, self._held = self._held, b""
        self._put(entry)
