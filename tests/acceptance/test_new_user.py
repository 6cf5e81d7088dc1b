"""From a clone to a proof, by public commands only, as somebody does it who has never seen this."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))
from browser import CHROMIUM, Chromium

ROOT = Path(__file__).parents[2]


class Clone:
    """A fresh clone whose commands run in this environment: installing it anew takes minutes."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "cuo"
        git = ["git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", str(ROOT)]
        subprocess.run([*git, str(self.place)], check=True, capture_output=True, timeout=60)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.place),
            "CUO_DATA_DIR": str(folder / "data"),
            "PYTHONFAULTHANDLER": "1",
        }
        self.said: list[str] = []

    def command(self, *words: str, code: int = 0, **env: str) -> str:
        """Runs a command of the clone; its standard output."""
        module = (
            "cuo_checkpoint.archive_cli" if words[0] == "cuo-archive" else "cuo_supervisor.cli.main"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"from {module} import main; main()", *words[1:]],
            cwd=self.place,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def serve(self) -> tuple[subprocess.Popen[str], str]:
        """The service, and its address."""
        program = "from cuo_supervisor.cli.main import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--port", "0"],
            cwd=self.place, env=self.env, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            said = json.loads(line)  # every line is one event
            if said["event"] == "service.listening":
                threading.Thread(
                    target=self.said.extend, args=[process.stderr], daemon=True
                ).start()
                return process, said["address"]
        raise AssertionError("the service did not start")


@pytest.fixture
def clone(open_tmp_path: Path) -> Clone:
    """A clone, where this tree is a repository with something to clone."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this tree is no git repository")
    return Clone(open_tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_from_a_clone_to_a_proof(clone: Clone, open_tmp_path: Path) -> None:
    """First command, a transfer that waits, its page, an approval by keyboard, seal, export, proof."""
    assert "    scripts/demo" in (clone.place / "README.md").read_text("utf-8")
    assert 'ask 0 "validate MST 0301479073" cfo' in (clone.place / "scripts/demo").read_text()
    process, url = clone.serve()  # also keeps the local database warm for the commands below
    try:
        said = clone.command(
            "cyberos-cuo", "supervisor", "route", "--query", "validate MST 0301479073",
            "--persona", "cfo", "--json",
        )  # fmt: skip
        assert json.loads(said)["invocation_result"]["exit_code"] == 0
        said = clone.command(
            "cyberos-cuo", "supervisor", "route", "--query",
            "transfer 5M VND to ACME account 0123456789", "--persona", "coo", "--json", code=3,
        )  # fmt: skip
        run = json.loads(said)["request_id"]
        with Chromium(open_tmp_path) as browser:
            assert run in browser.open(f"{url}/runs?state=waiting")
            page = browser.press(f'a[href="/runs/{run}"]')
            for word in (
                "Waits for an approval",
                "wire_transfer",
                '"amount_vnd": 5000000',
                "Holds:",
            ):
                assert word in page
            assert browser.shot(open_tmp_path / "waiting.png").stat().st_size > 20_000
            approve_by_keyboard(browser)
            page = browser.wait(lambda: "approved" in browser.text())
            assert "checked with ACME" in page
            assert "Waits for an approval" not in page
            assert browser.problems == []
        key, keys = open_tmp_path / "seal.key", open_tmp_path / "trusted.keys"
        clone.command("cuo-archive", "keys", "new", str(key), "--name", "me")
        keys.write_text(clone.command("cuo-archive", "keys", "public", str(key)))
        heads = {"CUO_SEAL_KEY": str(key), "CUO_EXPORT_DIR": str(open_tmp_path / "heads")}
        (open_tmp_path / "heads").mkdir()
        clone.command("cuo-archive", "--local", "seal", "--all", **heads)
        evidence = open_tmp_path / "evidence"
        clone.command("cyberos-cuo", "runs", "export", run, "--out", str(evidence))
    finally:
        process.terminate()
        assert process.wait(60) == 0, "".join(clone.said)
        assert process.stderr is not None
        process.stderr.close()
    shutil.rmtree(clone.place)
    check = [sys.executable, "-I", "-S", evidence / "verify.py", evidence, "--key", keys, "--json"]
    done = subprocess.run(check, cwd="/", env={}, capture_output=True, timeout=60, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["problems"]) == (0, [])
    forged = next(evidence.glob("*log*"))
    forged.write_bytes(forged.read_bytes().replace(b"0123456789", b"0123456780"))
    assert subprocess.run(check, cwd="/", capture_output=True, timeout=60, check=False).returncode


def approve_by_keyboard(browser: Any) -> None:
    """Tab to the reason, type it, Tab to the first button, Enter; each stop can be seen."""
    reached: list[str] = []
    for _ in range(12):
        browser.key("Tab", 9)
        where = "document.activeElement"
        reached.append(browser.script(f"{where}.name || {where}.textContent.trim()"))
        assert browser.script(f"getComputedStyle({where}).outlineStyle") == "solid", reached
        if reached[-1] == "reason":
            break
    assert reached[0] == "Skip to content"
    assert reached[-1] == "reason"
    browser.type("checked with ACME")
    browser.key("Tab", 9)
    assert browser.script("document.activeElement.value") == "approve"
    browser.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r"
    )
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", windowsVirtualKeyCode=13)
