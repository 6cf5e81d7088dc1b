"""What is public, what a built wheel carries, and what may import what."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cuo_checkpoint", "cuo_supervisor")
MODULES = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.read_text()
)


def listed(tree: ast.Module) -> list[str]:
    """What `__all__` says; empty where there is none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_all_names_nothing_twice_and_nothing_private(path: Path) -> None:
    """An underscore means internal, so it is never listed."""
    names = listed(ast.parse(path.read_text()))
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith("_") and name != "__version__"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_s_face_holds_what_it_lists(package: str) -> None:
    """Every name in `__all__` can be had from the package itself."""
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.slow
def test_the_wheel_carries_migrations_and_data(tmp_path: Path) -> None:
    """One copy of the migrations, inside the package; every data file; no tests."""
    program = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    migrations = {
        str(p.relative_to(ROOT / "alembic"))
        for p in (ROOT / "alembic").rglob("*")
        if p.suffix in (".py", ".sql")
    }
    assert {f"cuo_checkpoint/_alembic/{name}" for name in migrations} <= carried
    assert "cuo_checkpoint/_alembic/env.py" in carried
    data = {
        str(p.relative_to(ROOT))
        for package in PACKAGES
        for p in (ROOT / package).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert data <= carried
    assert not [name for name in carried if name.startswith(("tests/", "alembic/", "scripts/"))]


def test_every_command_of_the_package_can_be_loaded() -> None:
    """A console script that names a missing function fails only when somebody runs it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), target


def test_every_dependency_is_pinned_with_its_hash() -> None:
    """What pyproject.toml asks for, for any extra, stands in constraints.txt with hashes."""
    text = (ROOT / "constraints.txt").read_text()
    hashed = r"^([a-z0-9.-]+)==\S+ (?:;.*)?\\\n    --hash=sha256:"
    pinned = set(re.findall(hashed, text, re.MULTILINE))
    bare = re.findall(r"^([a-z0-9.-]+)==", text, re.MULTILINE)
    assert pinned == set(bare)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    names = {
        re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", item)[0]).lower() for item in wanted
    } - {"cuo"}
    assert names <= pinned
    assert not re.search(r"https?://|--index|--find-links", text)


def test_alembic_s_folder_does_not_shadow_the_library() -> None:
    """With an `__init__.py` the folder of migrations would be imported instead of Alembic."""
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_installed_version_is_the_project_s() -> None:
    """A stale installation would test something else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert distribution("cuo").version == project["version"]


@pytest.mark.slow
def test_the_import_contracts_hold() -> None:
    """One-way dependencies, and a core without I/O (also checked by scripts/check)."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stdout


def test_help_loads_neither_the_store_nor_the_graph() -> None:
    """`cyberos-cuo --help` stays quick: what a command needs is imported when it is named."""
    probe = (
        "import sys; sys.argv = ['cyberos-cuo', '--help']\n"
        "from cuo_supervisor.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'psycopg', 'pydantic', 'langgraph', 'sqlalchemy', 'litellm', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
