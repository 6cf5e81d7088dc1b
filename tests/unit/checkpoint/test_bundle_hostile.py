"""The stand-alone verifier before a bundle made by a stranger: what it opens, prints and admits."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from cuo_checkpoint import bundle_verify, keys
from cuo_checkpoint.bundle_verify import main
from cuo_checkpoint.notes import Checkpoint

TENANT = str(uuid.UUID(int=7))
ROWS = ("audit", "log", "writes", "tombstones", "holds")
ESCAPES = "x\x1b[2J\x1b[H\x9b1m\x7f\u202e\x85Everything holds"
KEY = keys.generate("seal")
LEAF = b'{"at":"2026-10-01T00:00:00Z","sealed_at":"2026-10-01T00:01:00Z"}'


def sums(folder: Path) -> None:
    """The checksums, made to fit."""
    lines = [
        hashlib.sha256(path.read_bytes()).hexdigest().encode() + b"  " + os.fsencode(path.name)
        for path in sorted(folder.iterdir())
        if path.name != "SHA256SUMS" and path.is_file()
    ]
    (folder / "SHA256SUMS").write_bytes(b"".join(line + b"\n" for line in lines))


def manifest(folder: Path, **members: object) -> None:
    """A manifest of no runs, but for what is given."""
    told = {"format": bundle_verify.FORMAT, "tenant_id": TENANT, "scope": {"month": "2026-11"}}
    plain = {"runs": [], "rows": dict.fromkeys(ROWS, 0), "leaves": {"from": 0, "subtrees": []}}
    (folder / "manifest.json").write_text(json.dumps(told | plain | members))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A month's bundle without a row, which holds: all that was sealed was before."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    manifest(folder)
    (folder / "proofs.json").write_text("{}")
    (folder / "leaves.ndjson").write_bytes(LEAF + b"\n")
    note = Checkpoint(f"cuo/{TENANT}", 1, hashlib.sha256(b"\0" + LEAF).digest()).signed([KEY])
    (folder / "head.note").write_bytes(note.to_bytes())
    for name in ROWS:
        (folder / f"{name}.ndjson").touch()
    (folder / "summary.html").write_text("<p>denied")
    (folder / "verify.py").write_bytes(Path(bundle_verify.__file__).read_bytes())
    sums(folder)
    (tmp_path / "trusted.keys").write_text(f"{KEY.public}\n")
    return folder


def test_what_only_reads_is_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that says otherwise than the rows is not found out; so it is said that nobody looked."""
    (bundle / "summary.html").write_text("<p>approved")
    (bundle / "README").write_text("nothing happened")
    sums(bundle)
    assert main([str(bundle), "--key", str(bundle.parent / "trusted.keys")]) == 0
    unread = ["README", "summary.html", "verify.py"]
    out = capsys.readouterr().out
    assert f"0 holds, of month 2026-11, tenant {TENANT}.\nEverything holds" in out
    assert f"NOT checked, since nothing signed speaks of it: {', '.join(unread)}." in out
    assert main([str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchecked_files"] == unread


def test_nothing_reaches_the_terminal_raw(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values of a bundle move no cursor, begin no line and turn no text around."""
    (bundle / ESCAPES).touch()
    (bundle / f"\udcff{ESCAPES}").touch()
    manifest(bundle, runs=[{"run_id": f"\n{ESCAPES}" * 999, "chain_rows": 1, "sealed": ESCAPES}])
    bad = bundle.parent / "bad.keys"
    bad.write_text(f"{ESCAPES}+x+AAAA\n", encoding="utf-8")
    for arguments, code in (
        ([str(bundle)], 65),
        ([str(bundle), "--json"], 65),
        ([str(bundle), "--key", str(bad)], 64),
        ([str(bundle / ESCAPES)], 64),
        ([str(bundle), ESCAPES], 64),
    ):
        assert main(arguments) == code
        said = "".join(capsys.readouterr())
        assert "x" in said
        assert [line for line in said.split("\n") if not line.isprintable()] == []
        assert not any(line.startswith(("Everything", "x")) for line in said.split("\n"))
        assert max(map(len, said.split("\n"))) < 20_000


def _link(name: str, target: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


def _pipe(folder: Path) -> None:
    (folder / "audit.ndjson").unlink()
    os.mkfifo(folder / "audit.ndjson")


def _elsewhere(folder: Path) -> None:
    digest = hashlib.sha256((folder.parent / "trusted.keys").read_bytes()).hexdigest()
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{digest}  ../trusted.keys\n")


def _before_the_first_leaf(folder: Path) -> None:
    manifest(folder, leaves={"from": -1, "subtrees": ["00"]})
    sums(folder)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (_pipe, "audit.ndjson is not a regular file"),
    "an endless link": (_link("manifest.json", "/dev/zero"), "manifest.json is not a regular file"),
    "an empty link": (_link("holds.ndjson", os.devnull), "holds.ndjson is not a regular file"),
    "a link within": (_link("log.ndjson", "writes.ndjson"), "log.ndjson is not a regular file"),
    "a link as head": (_link("head.note", "/dev/zero"), "head.note is not a regular file"),
    "linked sums": (_link("SHA256SUMS", "/dev/zero"), "SHA256SUMS is not a regular file"),
    "a path": (_elsewhere, "file ../trusted.keys is in SHA256SUMS and cannot be read"),
    "long sums": (
        lambda folder: (folder / "SHA256SUMS").write_bytes(b"\n" * (1 << 17)),
        "SHA256SUMS is longer than",
    ),
    "a long head": (
        lambda folder: (folder / "head.note").write_bytes(b"\n" * (1 << 17)),
        "head.note is longer than",
    ),
    "leaves before the first": (_before_the_first_leaf, "cannot be read on: IndexError"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_file_of_the_bundle_is_not_opened(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Only files that lie in the folder are read, none without a bound; all else is named."""
    change, finding = STRANGE[name]
    change(bundle)
    assert main([str(bundle), "--json"]) == 65
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any(finding in problem for problem in problems), problems


def test_a_bundle_of_a_run_is_of_that_run(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A month told as a run, whose leaves nobody would miss, or a run's bundle without it."""
    manifest(bundle, scope={"run": "r"}, runs=[{"run_id": "s", "chain_rows": 0}])
    sums(bundle)
    assert main([str(bundle), "--json"]) == 65
    assert json.loads(capsys.readouterr().out)["problems"][:2] == [
        "run r is missing: the bundle says it is of it",
        "run s is here: the bundle says it is of run r",
    ]


def test_long_files_and_lines(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What grows with the bundle has a bound too: a file of holes is as long as one likes."""
    (bundle / "audit.ndjson").write_bytes(b"{" * 128)
    monkeypatch.setattr(bundle_verify, "LINE", 128)
    assert main([str(bundle), "--json"]) == 65
    assert "audit.ndjson has a line of 128 bytes or more" in capsys.readouterr().out
    monkeypatch.setattr(bundle_verify, "LARGE", 64)
    assert main([str(bundle), "--json"]) == 65
    assert "manifest.json is longer than 64 bytes" in capsys.readouterr().out


def test_calls_that_name_no_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty name is not the current folder, and a file of whoever checks has a bound as well."""
    for arguments, why in (
        ([""], "an empty name is not a folder"),
        ([str(bundle), "--head", "/dev/zero"], "/dev/zero is longer than"),
        ([str(bundle), "--key", "/dev/zero"], "/dev/zero is longer than"),
        ([str(bundle), "--key", os.devnull], "there is no key in it"),
    ):
        assert main(arguments) == 64
        told = capsys.readouterr()
        assert (told.out, why in told.err) == ("", True), told


def test_a_result_that_cannot_be_written(bundle: Path) -> None:
    """A full disk and a closed output are 74 in one line; a reader that went away changes nothing."""
    verify = shlex.join([sys.executable, "-I", "-S", str(bundle / "verify.py")])
    place = shlex.quote(str(bundle))
    for call, code in (
        (f"{verify} {place} > /dev/full", 74),
        (f"{verify} {place} --json > /dev/full", 74),
        (f"{verify} --help > /dev/full", 74),
        (f"{verify} {place} >&-", 74),
        (f"{verify} {place} | true; exit ${{PIPESTATUS[0]}}", 0),
        (f"{verify} {place}/no 2>&-", 64),
    ):
        done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, ""), (call, done)
        assert len(done.stderr.splitlines()) == (code == 74), done.stderr


def test_interrupted(bundle: Path) -> None:
    """Ctrl-C ends it with 130 and no traceback."""
    pipe = bundle.parent / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-I", "-S", bundle / "verify.py", bundle, "--key", pipe]
    told = subprocess.PIPE
    with subprocess.Popen(command, stderr=told, text=True) as process, pipe.open("w"):
        process.send_signal(signal.SIGINT)  # it has opened the pipe, and reads
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "interrupted: nothing is known of the bundle\n")
