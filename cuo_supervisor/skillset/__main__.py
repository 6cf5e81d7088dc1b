"""The frame of every shipped skill: reads the call, runs one skill, carries out its effect.

    CUO_REQUEST_ID=... CUO_OUTBOX=... python -I <this folder> <skill> < arguments.json

A record says what it was for: the tenant and request whose run is in the log, and the approval in it
(CUO_TENANT_ID, CUO_APPROVAL_ID; null where none was needed, or where a person ran the skill by hand).

In: the arguments as one JSON object on stdin, or {"arguments": {...}, "request_id": "..."} with
the request's id in place of the environment's. Out: one JSON object on stdout.

A skill is a pure function that returns its answer and, if it leaves something behind, an
effect: a draft (a file of its own) or a record (a line in an outbox file). Effects go to the
folder CUO_OUTBOX names and nowhere else; nothing here opens a network connection.

Exit codes: 0 done; 64 the call is malformed or names no skill; 65 arguments are missing or
wrong; 70 the skill is at fault; 73 the outbox is missing or cannot be written; 77 it was let
through as another operation (CUO_OPERATION) than its own. Messages name arguments, never their
values.

A repeated call with the same request_id leaves one draft and one record, so running a skill
again after a crash does no harm here.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from typing import Any, Final

SKILLS: Final = {
    "mst-validate": "mst_validate",
    "vat-invoice": "vat_invoice",
    "bank-transfer": "bank_transfer",
    "crm-account-create": "crm_account_create",
    "crm-deal-update": "crm_deal_update",
    "dunning-draft": "dunning_draft",
    "email-draft": "email_draft",
}
OPERATIONS: Final = {
    "mst-validate": "tax_code_validate",
    "vat-invoice": "invoice_emit",
    "bank-transfer": "wire_transfer",
    "crm-account-create": "crm_record_create",
    "crm-deal-update": "crm_record_update",
    "dunning-draft": "dunning_draft",
    "email-draft": "message_draft",
}
"""What each skill does. The gates went by what its manifest said, which somebody may have edited."""
MAX_INPUT: Final = 256 * 1024
EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_SOFTWARE: Final = 70
EX_CANTCREAT: Final = 73
EX_NOPERM: Final = 77

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Stop(Exception):
    """Ends the run with `code`; the text goes to stderr."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def main(argv: list[str]) -> int:
    """Run the skill `argv` names. Returns the exit code; see the module's text."""
    try:
        skill = _named_skill(argv)
        call = _read_call()
        answer = _run(skill, call["arguments"], call["request_id"])
    except Stop as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.code
    line = json.dumps(answer, ensure_ascii=False, sort_keys=True) + "\n"
    sys.stdout.buffer.write(line.encode("utf-8"))  # UTF-8 whatever the locale
    return 0


def _named_skill(argv: list[str]) -> str:
    if len(argv) != 2 or argv[1] not in SKILLS:
        raise Stop(EX_USAGE, f"usage: <skill>, one of {', '.join(sorted(SKILLS))}")
    # Unset when a person runs it by hand; the supervisor always sets it.
    if os.environ.get("CUO_OPERATION", OPERATIONS[argv[1]]) != OPERATIONS[argv[1]]:
        raise Stop(EX_NOPERM, f"{argv[1]} was let through as another operation than its own")
    return argv[1]


def _read_call() -> dict[str, Any]:
    raw = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(raw) > MAX_INPUT:
        raise Stop(EX_USAGE, f"stdin holds more than {MAX_INPUT} bytes")
    try:
        call = json.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise Stop(EX_USAGE, "stdin is not UTF-8 JSON") from None
    if not isinstance(call, dict):
        raise Stop(EX_USAGE, "stdin is not a JSON object")
    if not isinstance(call.get("arguments"), dict):
        call = {"arguments": call}
    request_id = call.get("request_id", os.environ.get("CUO_REQUEST_ID"))
    # It becomes part of a file name.
    if not isinstance(request_id, str) or not _REQUEST_ID.fullmatch(request_id):
        raise Stop(EX_USAGE, "request_id must be 1 to 64 letters, digits, hyphens or underscores")
    return {"arguments": call["arguments"], "request_id": request_id}


def _run(skill: str, arguments: dict[str, Any], request_id: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(SKILLS[skill])
    except ImportError as problem:
        raise Stop(EX_SOFTWARE, f"the skill cannot be loaded: {problem.name}") from None
    try:
        result: dict[str, Any] = module.run(arguments)
    except (KeyError, TypeError, ValueError) as problem:
        # Skills raise these with an argument's name; a value must not get into a log.
        name = str(problem.args[0]) if problem.args else ""
        known = name if name in module.ARGUMENTS else "arguments"
        raise Stop(EX_DATAERR, f"{known}: missing or not usable") from None
    effect = result.pop("effect", None)
    if effect is not None:
        result.update(_carry_out(effect, skill, request_id))
    return result


def _carry_out(effect: dict[str, Any], skill: str, request_id: str) -> dict[str, Any]:
    outbox = os.environ.get("CUO_OUTBOX", "")
    if effect["kind"] == "draft" and not outbox:
        return {"file": None}  # the text is in the answer; nothing is lost
    if not outbox:
        raise Stop(EX_CANTCREAT, "CUO_OUTBOX is not set, so the record has nowhere to go")
    try:
        if effect["kind"] == "draft":
            name = f"{request_id}-{skill}.txt"
            _write_draft(os.path.join(outbox, "drafts"), name, effect["text"])
            return {"file": f"drafts/{name}"}
        record = {
            "tenant_id": os.environ.get("CUO_TENANT_ID") or None,
            "request_id": request_id,
            "approval_id": os.environ.get("CUO_APPROVAL_ID") or None,
            "skill": skill,
            **effect["record"],
        }
        fresh = _append(outbox, effect["file"], record)
    except OSError as problem:
        raise Stop(EX_CANTCREAT, f"the outbox cannot be written: {problem.strerror}") from None
    return {"outbox": effect["file"], "recorded": "now" if fresh else "before"}


def _write_draft(folder: str, name: str, text: str) -> None:
    """The whole file or none of it, also if the process is killed in between."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    target = os.path.join(folder, name)
    partial = f"{target}.{os.getpid()}.part"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, target)


def _append(folder: str, name: str, record: dict[str, Any]) -> bool:
    """Adds the record as one line; False if this request has left one already."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"
    descriptor = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8", newline="\n") as stream:
        _lock(stream.fileno())
        stream.seek(0)
        ends = True
        for written in stream:
            ends = written.endswith("\n")
            if _request_of(written) == record["request_id"]:
                return False
        # A process killed while writing leaves half a line; it must not swallow this one.
        stream.write(line if ends else "\n" + line)
        stream.flush()
        os.fsync(stream.fileno())
    return True


def _request_of(line: str) -> str | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record.get("request_id") if isinstance(record, dict) else None


def _lock(descriptor: int) -> None:
    """Two skills at once must not both find that a request has left no record."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
