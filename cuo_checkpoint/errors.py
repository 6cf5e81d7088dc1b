"""Everything this package raises on purpose.

    CheckpointError
    ├── StoreUnavailable            the database cannot be reached, or was lost mid-call
    ├── SchemaNotReady              revision, rights, row security or month are not as required
    ├── SettingInvalid              an environment setting is wrong or lacks its counterpart
    ├── TenantRequired              no tenant was named for a call that touches rows
    ├── InvalidIdentifier           a thread id, namespace or tenant id breaks its rule
    ├── SerialiseError              a value cannot be stored exactly
    │   ├── UnserialisableValue     unknown type, secret, cycle, too deep
    │   └── StateTooLarge           more than 5 MB encoded
    ├── DeserialiseError            a stored value cannot be rebuilt exactly
    ├── WriteRefused                the store will not append this
    │   ├── CheckpointConflict      same id, different bytes
    │   ├── StaleParent             strict_parent: the parent is no longer the newest
    │   ├── ThreadDeleted           the thread carries a tombstone
    │   ├── ParentMissing           the parent row is not in the tenant, or not older
    │   ├── RunClosed               the run has already ended
    │   └── RunElsewhere            the run belongs to another thread
    ├── AuditFailed                 the audit rows of a step could not be written; the step is void
    ├── DurabilityRefused           durability="exit" without allow_exit=True
    ├── WrongColour                 a sync method inside a running event loop
    ├── RunUnknown                  no such run in this tenant
    ├── ChainBroken                 verification found a row that does not fit its chain
    ├── KeyUnusable                 a seal key file is missing, readable by others or malformed
    │   └── KeyUnwritten            a seal key file cannot be written, such as to a full disk
    ├── NoteInvalid                 a signed head is malformed, forged or signed by an unknown key
    ├── SealRefused                 signing would contradict a head that was signed before
    ├── ExportRefused               evidence cannot be written where it was to go
    ├── RetentionRefused            the database will not drop a month on these terms
    └── RetentionFailed             dropping a month did not succeed; nothing was changed

Messages are written for an operator: what happened, why, what to do next.
They never carry stored values, only names, ids, types and sizes.
"""

from __future__ import annotations

__all__ = [
    "AuditFailed",
    "ChainBroken",
    "CheckpointConflict",
    "CheckpointError",
    "DeserialiseError",
    "DurabilityRefused",
    "ExportRefused",
    "InvalidIdentifier",
    "KeyUnusable",
    "KeyUnwritten",
    "NoteInvalid",
    "ParentMissing",
    "RetentionFailed",
    "RetentionRefused",
    "RunClosed",
    "RunElsewhere",
    "RunUnknown",
    "SchemaNotReady",
    "SealRefused",
    "SerialiseError",
    "SettingInvalid",
    "StaleParent",
    "StateTooLarge",
    "StoreUnavailable",
    "TenantRequired",
    "ThreadDeleted",
    "UnserialisableValue",
    "WriteRefused",
    "WrongColour",
]


class CheckpointError(Exception):
    """Base of every error this package raises on purpose."""


class StoreUnavailable(CheckpointError):
    """The database cannot be reached. Check CUO_DATABASE_URL and the server, then repeat the call."""


class SchemaNotReady(CheckpointError):
    """The database is not as this version needs it. `remedy` says which command mends it."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.remedy = remedy


class SettingInvalid(CheckpointError):
    """A setting is wrong or lacks its counterpart; the message names variables, never values."""


class TenantRequired(CheckpointError):
    """No tenant: pass config["configurable"]["tenant_id"] or the constructor's tenant_id."""


class InvalidIdentifier(CheckpointError):
    """An identifier breaks its rule; `field` and `rule` say which."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}")
        self.field = field
        self.rule = rule


class SerialiseError(CheckpointError):
    """A value cannot be stored exactly, so nothing was stored."""

    def in_thread(self, thread_id: str) -> SerialiseError:
        """This error, naming the thread as well."""
        return self


class UnserialisableValue(SerialiseError):
    """`path` (such as a[0].b) holds a value of `type_name` that cannot be stored exactly."""

    def __init__(
        self, path: str, type_name: str, reason: str, *, thread_id: str | None = None
    ) -> None:
        where = f" in thread {thread_id}" if thread_id else ""
        super().__init__(f"cannot store {path or '(root)'}{where}: {type_name}: {reason}")
        self.path = path
        self.type_name = type_name
        self.reason = reason
        self.thread_id = thread_id

    def in_thread(self, thread_id: str) -> UnserialisableValue:
        """This error, naming the thread as well."""
        return UnserialisableValue(self.path, self.type_name, self.reason, thread_id=thread_id)


class StateTooLarge(SerialiseError):
    """The encoded state exceeds the cap; `largest` lists (channel, bytes), largest first."""

    def __init__(
        self,
        size: int,
        cap: int,
        largest: list[tuple[str, int]],
        *,
        thread_id: str | None = None,
    ) -> None:
        named = ", ".join(f"{name} ({n} bytes)" for name, n in largest)
        where = f" of thread {thread_id}" if thread_id else ""
        super().__init__(
            f"state{where} is {size} bytes, the cap is {cap}; largest channels: {named}"
        )
        self.size = size
        self.cap = cap
        self.largest = largest
        self.thread_id = thread_id

    def in_thread(self, thread_id: str) -> StateTooLarge:
        """This error, naming the thread as well."""
        return StateTooLarge(self.size, self.cap, self.largest, thread_id=thread_id)


class DeserialiseError(CheckpointError):
    """A stored value cannot be rebuilt exactly; the stored form stays readable for audit."""

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(f"cannot rebuild {path or '(root)'}: {type_name}: {reason}")
        self.path = path
        self.type_name = type_name
        self.reason = reason


class WriteRefused(CheckpointError):
    """The store refuses to append this row. Nothing was written."""


class CheckpointConflict(WriteRefused):
    """A checkpoint with this id already exists with different bytes. The attempt is recorded."""


class StaleParent(WriteRefused):
    """strict_parent is on and another writer has already extended this parent."""


class ThreadDeleted(WriteRefused):
    """The thread was deleted; late writes are refused. Reopen it explicitly to use the id again."""


class ParentMissing(WriteRefused):
    """The parent row does not exist in this tenant, or is not older than its child."""


class RunClosed(WriteRefused):
    """The run has already ended; its chain takes no more rows."""


class RunElsewhere(WriteRefused):
    """The run id is taken by a run of another thread. A run lives in one thread: use another id."""


class AuditFailed(CheckpointError):
    """The audit rows of a step could not be written, so the step did not happen."""


class DurabilityRefused(CheckpointError):
    """durability="exit" would skip steps. Use "sync" (or "async"), or pass allow_exit=True knowingly."""


class WrongColour(CheckpointError):
    """A sync method was called inside a running event loop. Use the method named in the message."""


class RunUnknown(CheckpointError):
    """There is no such run in this tenant; another tenant's run looks the same."""


class ChainBroken(CheckpointError):
    """Verification found a row that does not fit its chain; `run_id` and `chain_seq` name it."""

    def __init__(self, run_id: str, chain_seq: int, reason: str) -> None:
        super().__init__(f"run {run_id}, chain row {chain_seq}: {reason}")
        self.run_id = run_id
        self.chain_seq = chain_seq
        self.reason = reason


class KeyUnusable(CheckpointError):
    """A seal key cannot be used; the message names the file and what is wrong, never the key."""


class KeyUnwritten(KeyUnusable):
    """A key file cannot be written where it was to go; what was there before is still there."""


class NoteInvalid(CheckpointError):
    """A signed head cannot be trusted. `kind` is malformed, forged, wrong_key or other_log."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class SealRefused(CheckpointError):
    """Nothing was signed: the tree would contradict an earlier head. `kind` is behind, clock or inconsistent."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class ExportRefused(CheckpointError):
    """The folder for exports is missing, in use, or already holds other bytes under the same name."""


class RetentionRefused(CheckpointError):
    """The database will not drop a month, or place a hold, on these terms; nothing was changed."""


class RetentionFailed(CheckpointError):
    """Dropping `month` (YYYY-MM) failed, nothing was changed, and the system tenant's chain says so
    if `told`. `busy`: the log was in use at every try; the next run will do it."""

    def __init__(self, month: str, reason: str, *, busy: bool, told: bool) -> None:
        super().__init__(f"month {month} was not dropped: {reason}")
        self.month = month
        self.busy = busy
        self.told = told
