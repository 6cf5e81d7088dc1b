"""What `cuo-archive --help` says beside the commands' own words: a line each, and examples."""

from __future__ import annotations

from typing import Final

import click

__all__ = ["teach"]

_TENANT: Final = "0d5f6a3e-8a64-4d8f-9f0c-3f1f6a1f2b77"
_RUN: Final = "01M8PZMV75EB6AHSM2Y2NT99T7"

_CODES: Final = """\b
Exit codes: 0 done, 64 usage or settings, 65 the log does not verify or holds no such run,
69 store unreachable or not migrated, 70 our fault, 74 result not written, 75 the log was in use,
77 permission, 130 interrupted.
"""

_SHORT: Final = {
    "ensure-partitions": "Make the months to come.",
    "status": "Show months, rows and sizes.",
    "verify": "Recompute chains and digests.",
    "seal": "Sign and export the heads of all chains.",
    "export": "Write a month or a run as evidence.",
    "metrics": "Print gauges for Prometheus.",
    "rebuild-index": "Compare the index with the log.",
    "expire-approvals": "List waiting runs whose time is over.",
    "hold release": "End a hold.",
    "keys rotate": "Add a key beside the old one.",
    "keys retire": "Drop the secret of a replaced key.",
    "keys distrust": "Drop a key that was stolen.",
}
"""A line for lists, where the first sentence of the help would be cut."""

_EXAMPLES: Final = f"""
cuo-archive: cuo-archive --local status                    # the database of this machine
cuo-archive: cuo-archive ensure-partitions
cuo-archive: cuo-archive verify --all
cuo-archive: cuo-archive --log /var/log/cuo.jsonl seal --all
drop-old-partitions: cuo-archive drop-old-partitions --dry-run
drop-old-partitions: cuo-archive drop-old-partitions --older-than-months 96 --json
ensure-partitions: cuo-archive ensure-partitions
status: cuo-archive status
status: cuo-archive status --json | jq .missing
verify: cuo-archive verify --all
verify: cuo-archive verify --tenant {_TENANT}
verify: cuo-archive verify --run {_RUN}
verify: cuo-archive verify --all --heads /mnt/heads --keys keys.txt
seal: export CUO_SEAL_KEY=/etc/cuo/seal.key CUO_EXPORT_DIR=/mnt/heads
seal: cuo-archive seal --all
seal: cuo-archive seal --tenant {_TENANT} --declare-restore "backup of 1 December"
export: cuo-archive export --month 2026-11 --tenant {_TENANT} --out november
export: cuo-archive export --run {_RUN} --tenant {_TENANT} --out evidence
export: python3 -I evidence/verify.py evidence --key keys.txt
metrics: cuo-archive metrics --out /var/lib/node_exporter/cuo.prom
rebuild-index: cuo-archive rebuild-index
rebuild-index: cuo-archive rebuild-index --apply
expire-approvals: cuo-archive expire-approvals
expire-approvals: cuo-archive expire-approvals --json | cyberos-cuo supervisor expire -
hold: cuo-archive hold set --tenant {_TENANT} --reason "audit 2026"
hold: cuo-archive hold list
hold set: cuo-archive hold set --tenant {_TENANT} --reason "audit 2026"
hold set: cuo-archive hold set --tenant {_TENANT} --run {_RUN} --reason "case 7"
hold release: cuo-archive hold release {_RUN} --tenant {_TENANT} --reason "case closed"
hold list: cuo-archive hold list
hold list: cuo-archive hold list --tenant {_TENANT} --all
keys: cuo-archive keys new /etc/cuo/seal.key --name acme-2026
keys: cuo-archive keys public /etc/cuo/seal.key > keys.txt
keys new: cuo-archive keys new /etc/cuo/seal.key --name acme-2026
keys rotate: cuo-archive keys rotate /etc/cuo/seal.key --name acme-2027 --out rotation.note
keys retire: cuo-archive keys retire /etc/cuo/seal.key c09f7d1a
keys distrust: cuo-archive keys distrust /etc/cuo/seal.key c09f7d1a
keys public: cuo-archive keys public /etc/cuo/seal.key > keys.txt
"""
"""Each line names its command, then says what to type."""


def teach(command: click.Command, name: str = "") -> None:
    """Gives the command and those below it their line in lists and their examples."""
    command.short_help = _SHORT.get(name, command.short_help)
    told = (line.partition(": ") for line in _EXAMPLES.splitlines())
    lines = "".join(f"  {shown}\n" for whose, _, shown in told if whose == (name or "cuo-archive"))
    command.epilog = f"\b\nExamples:\n{lines}" + ("" if name else f"\n{_CODES}")
    if isinstance(command, click.Group):
        for part, child in command.commands.items():
            teach(child, f"{name} {part}".strip())
