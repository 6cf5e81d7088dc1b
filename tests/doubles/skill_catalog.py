"""A copy of the shipped catalogue in which checking a tax code runs a program of the test's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

__all__ = ["catalog_running"]


def catalog_running(folder: Path, program: str) -> Path:
    """The copy, in `folder`; the program is Python, run by the interpreter the skills run in."""
    import cuo_supervisor

    shutil.copytree(Path(cuo_supervisor.__file__).with_name("catalog"), folder)
    manifest = folder / "vietnam-mst-validate.toml"
    lines = [
        f"argv = {json.dumps(['{python}', '-I', '-c', program])}"
        if line.startswith("argv")
        else line
        for line in manifest.read_text("utf-8").splitlines()
    ]
    manifest.write_text("\n".join(lines) + "\n", "utf-8")
    return folder
