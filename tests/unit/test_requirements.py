"""Every clause has a test, the table says which, and a marker cannot name what does not exist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "requirements_table.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_clause_has_a_test_and_the_table_is_fresh() -> None:
    """`scripts/requirements_table.py --check` has nothing to say; otherwise it says what to do."""
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_list_is_whole(tool: ModuleType) -> None:
    """26 and 9 clauses, 31 and 20 criteria, each in words of its own."""
    listed = tool.clauses()
    wanted = [
        *(f"101-{n}" for n in range(1, 27)),
        *(f"102-{n}" for n in range(1, 10)),
        *(f"101-AC{n}" for n in range(1, 32)),
        *(f"102-AC{n}" for n in range(1, 21)),
    ]
    assert list(listed) == wanted
    assert len(set(listed.values())) == len(wanted)
    assert set(tool.awaiting()) < set(wanted)


def test_markers_are_read_wherever_they_stand(tool: ModuleType, tmp_path: Path) -> None:
    """On functions, on classes, in pytestmark; not on helpers, not in text."""
    folder = tmp_path / "tests"
    (folder / "unit").mkdir(parents=True)
    (folder / "unit" / "test_a.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.slow, pytest.mark.clause('101-1')]\n"
        "@pytest.mark.criterion('101-AC1', '101-AC2')\n"
        "async def test_one(): '''pytest.mark.clause('101-9')'''\n"
        "@pytest.mark.clause('101-2')\n"
        "def helper(): ...\n"
        "@pytest.mark.clause('101-3')\n"
        "class TestTwo:\n"
        "    @pytest.mark.clause('101-4')\n"
        "    def test_inner(self): ...\n"
    )
    assert tool.markers(folder) == {
        "101-1": ["tests/unit/test_a.py::TestTwo::test_inner", "tests/unit/test_a.py::test_one"],
        "101-AC1": ["tests/unit/test_a.py::test_one"],
        "101-AC2": ["tests/unit/test_a.py::test_one"],
        "101-3": ["tests/unit/test_a.py::TestTwo::test_inner"],
        "101-4": ["tests/unit/test_a.py::TestTwo::test_inner"],
    }


def test_what_nothing_proves_is_missing_and_shown(tool: ModuleType) -> None:
    """A clause whose only test goes away is named, and stands in the table as none."""
    listed = tool.clauses()
    found = {name: ["tests/test_a.py::test_a"] for name in listed if name != "101-7"}
    assert list(tool.missing(listed, found)) == ["101-7"]
    page = tool.table(listed, found, {})
    assert f"| 101-7 | {listed['101-7']} | **none**" in page
    assert "85 of 86 have a test." in page
