"""The verifier that a bundle carries, run as an auditor runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cuo_checkpoint.canonical import canonical_bytes

__all__ = ["check", "fit_sums", "read", "write"]


def check(bundle: Path, *options: str | Path) -> tuple[int, dict[str, Any]]:
    """Runs the bundle's own verifier on a Python with nothing installed, outside our folder."""
    command = [sys.executable, "-I", "-S", str(bundle / "verify.py"), str(bundle), "--json"]
    done = subprocess.run(
        [*command, *map(str, options)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin"},
        cwd="/",
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def fit_sums(bundle: Path) -> None:
    """Makes the checksums fit whatever was changed."""
    names = sorted(p.name for p in bundle.iterdir() if p.name != "SHA256SUMS")
    sums = subprocess.run(["sha256sum", *names], cwd=bundle, capture_output=True, check=True)
    (bundle / "SHA256SUMS").write_bytes(sums.stdout)


def read(path: Path) -> list[Any]:
    """The rows of one of its files."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, rows: list[Any]) -> None:
    """Puts rows into one of its files."""
    path.write_bytes(b"".join(canonical_bytes(row) + b"\n" for row in rows))
