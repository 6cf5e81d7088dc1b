"""Manifests, the catalogue and its hash, and what the loader says about a faulty file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from cuo_supervisor.catalog_loader import SHIPPED_CATALOG, SKILLSET, load_catalog
from cuo_supervisor.core.catalog import Catalog, SkillManifest, resolve_argv
from cuo_supervisor.errors import CatalogError

SEVEN = [
    ("crm-account-create@1.0", "crm_record_create"),
    ("crm-deal-update@1.0", "crm_record_update"),
    ("email-genie-draft@1.0", "message_draft"),
    ("inv-dunning-draft@1.2", "dunning_draft"),
    ("vietnam-bank-transfer@1.0", "wire_transfer"),
    ("vietnam-mst-validate@1.0", "tax_code_validate"),
    ("vietnam-vat-invoice@1.2", "invoice_emit"),
]
CATALOG = load_catalog()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped manifests that a test may spoil."""
    target = tmp_path / "catalog"
    shutil.copytree(SHIPPED_CATALOG, target)
    return target


def data(skill_name: str = "vietnam-mst-validate@1.0", /, **update: object) -> dict[str, object]:
    skill = CATALOG.get(skill_name)
    assert skill is not None
    return {**skill.model_dump(mode="json"), **update}


def test_the_seven_skills_are_shipped() -> None:
    """Names, versions and operations are those promised, sorted by name."""
    assert [(s.skill_name, s.operation) for s in CATALOG.skills] == SEVEN
    assert [s.skill_name for s in CATALOG.skills if s.is_destructive] == [
        "vietnam-bank-transfer@1.0",
        "vietnam-vat-invoice@1.2",
    ]


def test_every_skill_has_ten_phrases_in_each_language() -> None:
    """Ten or more trigger phrases in English and in Vietnamese."""
    for skill in CATALOG.skills:
        assert len(skill.triggers.en) >= 10
        assert len(skill.triggers.vi) >= 10
        assert sum(not p.isascii() for p in skill.triggers.vi) >= 8


def test_the_hash_ignores_file_names_order_and_comments(folder: Path) -> None:
    """Renamed files, another order and comments leave the hash alone."""
    for number, file in enumerate(sorted(folder.glob("*.toml"), reverse=True)):
        file.write_text("# a comment\n" + file.read_text("utf-8"), "utf-8")
        file.rename(folder / f"{number:02}.toml")
    assert load_catalog(folder).snapshot_hash == CATALOG.snapshot_hash


def test_the_hash_ignores_the_normal_form_but_not_the_content(folder: Path) -> None:
    """Decomposed text hashes alike; one changed word does not."""
    file = folder / "inv-dunning-draft.toml"
    text = file.read_text("utf-8")
    file.write_text(unicodedata.normalize("NFD", text), "utf-8")
    assert load_catalog(folder).snapshot_hash == CATALOG.snapshot_hash
    file.write_text(text.replace("draft a dunning letter", "draft a dunning note"), "utf-8")
    assert load_catalog(folder).snapshot_hash != CATALOG.snapshot_hash


def test_a_snapshot_rebuilds_the_catalogue() -> None:
    """Through JSON and back: same hash, equal, same skills; other formats are refused."""
    snapshot = json.loads(json.dumps(CATALOG.to_snapshot()))
    rebuilt = Catalog.from_snapshot(snapshot)
    assert rebuilt.snapshot_hash == CATALOG.snapshot_hash
    assert rebuilt == CATALOG
    assert hash(rebuilt) == hash(CATALOG)
    assert rebuilt.skills == CATALOG.skills
    with pytest.raises(ValueError, match="format"):
        Catalog.from_snapshot({**snapshot, "catalog_format": 2})


def test_another_process_computes_the_same_hash() -> None:
    """The hash does not depend on the process's hash seed."""
    code = "from cuo_supervisor.catalog_loader import load_catalog as l; print(l().snapshot_hash)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(SKILLSET.parents[1])},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert seen == {CATALOG.snapshot_hash.encode()}


def test_lookup_is_exact() -> None:
    """Only name@major.minor finds a skill."""
    assert CATALOG.get("vietnam-mst-validate@1.0") is not None
    for name in ("vietnam-mst-validate", "vietnam-mst-validate@1.1", "VIETNAM-MST-VALIDATE@1.0"):
        assert CATALOG.get(name) is None


def test_argv_is_filled_in_without_a_shell() -> None:
    """Placeholders become paths, whatever characters these hold."""
    skill = CATALOG.get("vietnam-mst-validate@1.0")
    assert skill is not None
    argv = resolve_argv(skill, python="/opt/my python/{bin}", skillset="/srv/$(x)/skills")
    assert argv == ("/opt/my python/{bin}", "-I", "/srv/$(x)/skills", "mst-validate")


def test_an_explicit_false_cannot_loosen_an_operation() -> None:
    """destructive = false on a destructive operation is an error, not a wish."""
    with pytest.raises(ValueError, match="cannot loosen"):
        SkillManifest.model_validate(data("vietnam-vat-invoice@1.2", destructive=False))


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"version": "1.0"}, "semver"),
        ({"version": "1.0.0-rc1"}, "pre-release"),
        ({"argv": ["{home}/x"]}, "unknown placeholder"),
        ({"argv": []}, "at least 1"),
        ({"name": "Bad_Name"}, "pattern"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"surprise": 1}, "Extra inputs"),
        *(({"destructive": lax}, "valid boolean") for lax in (0, 0.0, "false", "no", "off")),
        ({"idempotent": 1}, "valid boolean"),
        ({"triggers": {"en": ["check it"] * 10, "vi": ["kiểm tra"] * 10}}, "twice"),
        ({"triggers": {"en": [f"w{i} x" for i in range(9)], "vi": []}}, "at least 10"),
        ({"triggers": {"en": ["check"] + [f"w{i} x" for i in range(9)], "vi": []}}, "2 to 12"),
        ({"arguments": {"x": {"description": "d", "pattern": "("}}}, "regular expression"),
        ({"arguments": {"x": {"description": "d", "pattern": f"a{{{2**40}}}"}}}, "too large"),
        ({"arguments": {"x": {"description": "d", "extractor": "choice"}}}, "needs choices"),
        ({"arguments": {"x": {"description": "d", "extractor": "rest"}}}, "`after`"),
        ({"arguments": {"x": {"description": "d", "extractor": "amount_vnd"}}}, "gives type"),
        ({"arguments": {"x": {"description": "d", "minimum": 1}}}, "for integers"),
    ],
)
def test_faulty_manifests_are_refused(update: dict[str, object], said: str) -> None:
    """Each rule of the manifest says what it wants."""
    with pytest.raises(ValueError, match=said):
        SkillManifest.model_validate(data(**update))


def test_a_catalogue_holds_one_version_of_a_skill() -> None:
    """Two manifests of one name are refused."""
    both = [SkillManifest.model_validate(data(version=v)) for v in ("1.0.0", "1.1.0")]
    with pytest.raises(ValueError, match="twice"):
        Catalog.of(both)


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "said"),
    [
        ('version = "1.0.0"', 'version = "one"', 2, "version", "semver"),
        ("idempotent = true", "idempotent = maybe", 6, "", "not valid TOML"),
        ("idempotent = true", "idempotant = true", 6, "idempotant", "Extra inputs"),
        ("max_length = 17", "max_length = 0", 46, "arguments.mst.max_length", "greater than"),
        (
            'extractor = "tax_code"',
            'extractor = "guess"',
            43,
            "arguments.mst.extractor",
            "tax_code",
        ),
        ("[triggers]", "[triggers]\nfr = []", 12, "triggers.fr", "Extra inputs"),
        ('  "validate MST",\n', '  "validate",\n', 12, "triggers.en", "2 to 12"),
        (
            "max_length = 17",
            "maximum = 99999999999999999999",
            46,
            "arguments.mst.maximum",
            "less than or equal to 9007199254740991",
        ),
        ("max_length = 17", f"minimum = {'9' * 5000}", 46, "", "too many digits"),
        (
            "[arguments.mst]",
            "[arguments]\nwrong = 3\n[arguments.mst]",
            42,
            "arguments.wrong",
            "valid dictionary",
        ),
        ("idempotent = true", f"deep = {'[' * 100_000}", 6, "", "nested too deeply"),
        (
            "idempotent = true",
            f"deep{'.a' * 100} = {{b{'.a' * 9000} = 1}}",
            6,
            "",
            "too many parts",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_a_fault_is_placed(
    folder: Path, old: str, new: str, line: int, key: str, said: str
) -> None:
    """The error names file, line and key of the first fault."""
    file = folder / "vietnam-mst-validate.toml"
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(CatalogError, match=said) as caught:
        load_catalog(folder)
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(file), line, key)


def test_a_missing_key_is_named(folder: Path) -> None:
    """A key that is not there has no line, but a name."""
    file = folder / "vietnam-mst-validate.toml"
    text = file.read_text("utf-8")
    file.write_text("\n".join(x for x in text.splitlines() if not x.startswith("argv")), "utf-8")
    with pytest.raises(CatalogError, match="required") as caught:
        load_catalog(folder)
    assert caught.value.key == "argv"
    assert caught.value.line == 0


def test_two_files_of_one_skill_are_refused(folder: Path) -> None:
    """The second file is named, and the first mentioned."""
    shutil.copy(folder / "inv-dunning-draft.toml", folder / "zz.toml")
    with pytest.raises(CatalogError, match=r"inv-dunning-draft\.toml") as caught:
        load_catalog(folder)
    assert caught.value.file == str(folder / "zz.toml")
    assert caught.value.line == 1


def test_unreadable_files_are_named(folder: Path) -> None:
    """Not UTF-8, too large, no file at all: it is named and nothing is loaded."""
    file = folder / "zz.toml"
    file.write_bytes(b'name = "x"\nversion = "\xff"\n')
    with pytest.raises(CatalogError, match="not UTF-8") as caught:
        load_catalog(folder)
    assert caught.value.line == 2
    file.write_bytes(b"#" * 300_000)
    with pytest.raises(CatalogError, match="larger"):
        load_catalog(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CatalogError, match=r"zz\.toml: not a regular file"):
        load_catalog(folder)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(CatalogError, match=r"zz\.toml: not a regular file"):
        load_catalog(folder)


def test_a_folder_without_manifests_is_no_catalogue(tmp_path: Path) -> None:
    """Missing folder and empty folder are errors, other files are ignored."""
    with pytest.raises(CatalogError, match="cannot be read"):
        load_catalog(tmp_path / "nowhere")
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(CatalogError, match=r"no \*\.toml"):
        load_catalog(tmp_path)
