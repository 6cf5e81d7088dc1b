"""Tenancy, roles, the two index tables, the audit chain.

Everything below is repeatable (IF NOT EXISTS, OR REPLACE), so a database that was mended by
hand or lost its version row can be brought forward. Nothing here names a schema: the migration's
search_path does, and functions keep it (SET search_path FROM CURRENT).

Revision ID: 0001
Revises:
"""

from cuo_checkpoint.migration_sql import dropping_rows, run_script, run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in (
        "owner_guard",
        "roles",
        "tenant",
        "forbid",
        "protect",
        "index_tables",
        "audit_table",
        "chain",
        "months",
        "rights",
    ):
        run_script(f"0001_{step}")
    run_sql("SELECT cuo_ensure_partitions();")


def downgrade() -> None:
    if not dropping_rows():
        run_script("0001_refuse_rows")
    run_script("0001_undo")
