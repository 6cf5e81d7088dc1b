"""The shipped skills as the runner meets them: commands with JSON in, JSON out, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cuo_supervisor.catalog_loader import SKILLSET, load_catalog
from cuo_supervisor.core.arguments import validate_arguments
from cuo_supervisor.core.catalog import resolve_argv
from cuo_supervisor.core.operations import SKILLSET_OPERATIONS

CATALOG = load_catalog()
GOOD: dict[str, dict[str, Any]] = {
    "vietnam-mst-validate@1.0": {"mst": "0301479073"},
    "vietnam-vat-invoice@1.2": {"customer": "ACME", "amount_vnd": 4_000_000},
    "vietnam-bank-transfer@1.0": {"amount_vnd": 5_000_000, "account_number": "0071000123456"},
    "crm-account-create@1.0": {"account_name": "Công ty Minh Long"},
    "crm-deal-update@1.0": {"deal": "ACME", "stage": "won"},
    "inv-dunning-draft@1.2": {"customer": "ACME", "amount_vnd": 1_234_567, "level": "second"},
    "email-genie-draft@1.0": {"topic": "chậm tiến độ", "recipient": "chị Lan"},
}


def call(
    name: str,
    stdin: bytes,
    outbox: Path | None,
    request_id: str | None = "01ARZ3NDEKTSV4RRFFQ69G5FAV",
) -> subprocess.CompletedProcess[bytes]:
    skill = CATALOG.get(name)
    assert skill is not None
    env = {"PATH": "/usr/bin:/bin", "LANG": "C"}
    if outbox is not None:
        env["CUO_OUTBOX"] = str(outbox)
    if request_id is not None:
        env["CUO_REQUEST_ID"] = request_id
    argv = resolve_argv(skill, python=sys.executable, skillset=str(SKILLSET))
    return subprocess.run(
        argv, input=stdin, env=env, cwd=os.sep, capture_output=True, check=False, timeout=60
    )


def answer(
    name: str, arguments: dict[str, Any], outbox: Path | None, **more: Any
) -> dict[str, Any]:
    done = call(name, json.dumps(arguments).encode(), outbox, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 1
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.criterion("101-AC12")
@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_skill_let_through_as_something_else_does_nothing(name: str, tmp_path: Path) -> None:
    """Reached by a path of its own under a manifest that calls it another operation: 77, no effect.
    Under its own it runs, and each knows its own as the registry does."""
    skill = CATALOG.get(name)
    assert skill is not None
    hidden = tmp_path / "x"
    hidden.symlink_to(SKILLSET)
    outbox = tmp_path / "outbox"
    for operation, code in (("message_draft", 77), ("", 77), (skill.operation, 0)):
        if operation == skill.operation and code == 77:
            continue
        done = subprocess.run(
            [sys.executable, "-I", hidden, skill.argv[-1]],
            input=json.dumps(GOOD[name]).encode(),
            env={
                "CUO_OPERATION": operation or "",
                "CUO_OUTBOX": str(outbox),
                "CUO_REQUEST_ID": "r",
            },
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert code == 0 or not outbox.exists()
    assert SKILLSET_OPERATIONS[skill.argv[-1]] == skill.operation


@pytest.mark.parametrize("name", sorted(GOOD))
def test_every_skill_answers(name: str, tmp_path: Path) -> None:
    """Arguments its manifest accepts give exit 0 and one JSON object."""
    skill = CATALOG.get(name)
    assert skill is not None
    assert validate_arguments(GOOD[name], skill) == []
    assert isinstance(answer(name, GOOD[name], tmp_path), dict)


@pytest.mark.parametrize(
    ("mst", "valid", "reason"),
    [
        ("0301479073", False, "check_digit"),
        ("0100109106", True, None),
        ("0314409058-002", True, None),
        ("12345", False, "length"),
        ("0300000000", False, "component"),
        ("031440905A", False, "format"),
        ("079201012345", False, "length"),
    ],
)
def test_tax_codes_are_judged_not_refused(mst: str, valid: bool, reason: str | None) -> None:
    """An invalid code is an answer with a reason; no company is ever named."""
    result = answer("vietnam-mst-validate@1.0", {"mst": mst}, None)
    assert (result["mst"], result["valid"], result["reason"]) == (mst, valid, reason)
    assert result.keys() == {"mst", "valid", "reason", "basis"}


def test_a_dunning_letter_is_written(tmp_path: Path) -> None:
    """The draft is a file of its own, with name, amount and tone, and open brackets elsewhere."""
    result = answer("inv-dunning-draft@1.2", GOOD["inv-dunning-draft@1.2"], tmp_path)
    text = (tmp_path / result["file"]).read_text("utf-8")
    assert "Kính gửi ACME" in text
    assert "Dear ACME" in text
    assert "1.234.567 VND" in text
    assert "within 7 days" in text
    assert result["open"] == ["invoice_number", "signatory"]
    assert os.stat(tmp_path / result["file"]).st_mode & 0o077 == 0


def test_what_is_unknown_stays_open(tmp_path: Path) -> None:
    """A letter without arguments makes nothing up."""
    result = answer("inv-dunning-draft@1.2", {}, tmp_path)
    assert "[customer]" in result["text"]
    assert "[amount]" in result["text"]
    assert result["open"] == ["amount_vnd", "customer", "invoice_number", "signatory"]


def test_an_email_follows_the_topics_language(tmp_path: Path) -> None:
    """Vietnamese topic, Vietnamese letter; a line break cannot add header lines."""
    assert (
        answer("email-genie-draft@1.0", GOOD["email-genie-draft@1.0"], tmp_path)["language"] == "vi"
    )
    english = answer("email-genie-draft@1.0", {"topic": "the audit\nBcc: x@example.com"}, tmp_path)
    assert english["language"] == "en"
    written = (tmp_path / english["file"]).read_text("utf-8")
    assert written.splitlines()[1] == "Subject: The audit Bcc: x@example.com"


def test_drafts_need_no_outbox() -> None:
    """Without an outbox the text is in the answer and no file is named."""
    result = answer("inv-dunning-draft@1.2", {}, None)
    assert result["file"] is None
    assert result["text"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("vietnam-vat-invoice@1.2", "invoices.jsonl"),
        ("vietnam-bank-transfer@1.0", "payment_orders.jsonl"),
        ("crm-account-create@1.0", "crm_changes.jsonl"),
        ("crm-deal-update@1.0", "crm_changes.jsonl"),
    ],
)
def test_records_go_to_the_outbox_once(name: str, file: str, tmp_path: Path) -> None:
    """The same request leaves one line however often it is run; without an outbox, exit 73."""
    assert answer(name, GOOD[name], tmp_path)["recorded"] == "now"
    assert answer(name, GOOD[name], tmp_path)["recorded"] == "before"
    assert answer(name, GOOD[name], tmp_path, request_id="another")["recorded"] == "now"
    written = [json.loads(line) for line in (tmp_path / file).read_text("utf-8").splitlines()]
    assert [line["request_id"] for line in written] == ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "another"]
    # Run by hand: no tenant, and nobody's approval.
    assert [(line["tenant_id"], line["approval_id"]) for line in written] == [(None, None)] * 2
    assert call(name, json.dumps(GOOD[name]).encode(), None).returncode == 73


def test_many_at_once_lose_no_record(tmp_path: Path) -> None:
    """Eight processes, two per request: four whole lines."""
    name = "vietnam-bank-transfer@1.0"
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda i: answer(name, GOOD[name], tmp_path, request_id=f"r{i % 4}"), range(8))
        )
    lines = (tmp_path / "payment_orders.jsonl").read_text("utf-8").splitlines()
    assert sorted(json.loads(line)["request_id"] for line in lines) == ["r0", "r1", "r2", "r3"]


def test_half_a_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    """After a crash in mid-write the next record stands on a line of its own."""
    (tmp_path / "payment_orders.jsonl").write_text('{"request_id": "brok')
    answer("vietnam-bank-transfer@1.0", GOOD["vietnam-bank-transfer@1.0"], tmp_path)
    last = (tmp_path / "payment_orders.jsonl").read_text("utf-8").splitlines()[-1]
    assert json.loads(last)["order"] == "wire_transfer"


def test_an_unwritable_outbox_is_exit_73(tmp_path: Path) -> None:
    """A file where the folder should be: nothing written, exit 73."""
    (tmp_path / "file").write_text("x")
    done = call("crm-deal-update@1.0", b'{"deal": "A", "stage": "won"}', tmp_path / "file")
    assert done.returncode == 73
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (b"", 64), (b"{", 64), (b"[]", 64), (b"\xff", 64), (b"[" * 100_000, 64),
        (b'{"x": "' + b"y" * 300_000 + b'"}', 64), (b"{}", 65), (b'{"deal": "A"}', 65),
        (b'{"deal": "A", "stage": "secret"}', 65), (b'{"deal": 5, "stage": "won"}', 65),
        (b'{"deal": "A", "stage": []}', 65), (b'{"arguments": {"deal": "A"}}', 65),
    ],
)  # fmt: skip
def test_bad_calls_have_their_exit_code(stdin: bytes, code: int, tmp_path: Path) -> None:
    """No JSON is 64, wrong arguments 65; a value never reaches stderr, nothing is written."""
    done = call("crm-deal-update@1.0", stdin, tmp_path)
    assert done.returncode == code
    assert done.stdout == b""
    assert b"secret" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("request_id", [None, "", "../x", "a b", "-x", "x" * 65])
def test_a_request_id_must_be_a_name(request_id: str | None, tmp_path: Path) -> None:
    """It becomes part of a file name, so it is checked first."""
    done = call("inv-dunning-draft@1.2", b"{}", tmp_path, request_id=request_id)
    assert done.returncode == 64
    assert list(tmp_path.iterdir()) == []


def test_an_envelope_is_taken_too(tmp_path: Path) -> None:
    """{"arguments", "request_id"} on stdin does the same as bare arguments."""
    stdin = json.dumps({"arguments": {}, "request_id": "enveloped"}).encode()
    done = call("inv-dunning-draft@1.2", stdin, tmp_path, request_id=None)
    assert json.loads(done.stdout)["file"] == "drafts/enveloped-dunning-draft.txt"


def test_unknown_skills_are_usage_errors() -> None:
    """The frame lists what it can run."""
    done = subprocess.run(
        [sys.executable, "-I", str(SKILLSET), "rm"], input=b"{}", capture_output=True, check=False
    )
    assert done.returncode == 64
    assert b"mst-validate" in done.stderr


def test_skills_do_not_load_the_supervisor() -> None:
    """A skill's process imports nothing of the packages it is shipped with."""
    code = (
        "import runpy, sys, io; sys.argv = ['x', 'mst-validate'];"
        f"sys.path.insert(0, {str(SKILLSET)!r});"
        'sys.stdin = io.TextIOWrapper(io.BytesIO(b\'{"mst": "1", "request_id": "r"}\'));'
        "import os; os.environ['CUO_REQUEST_ID'] = 'r'\n"
        f"try: runpy.run_path({str(SKILLSET)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'cuo_supervisor', 'cuo_checkpoint', 'pydantic', 'langgraph', 'litellm', 'httpx'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == b"[]"
