"""The checkpoint log: partitioned tables, row security, REVOKE, and the functions of the hot path.

One call appends everything that belongs together (log rows, pending writes, audit rows, index
update) in one statement and so in one transaction. Identity is decided under the thread's row
lock, because a unique key that contains the partition column identifies nothing.

Errors raised for the client to translate:
  CU001 same id, different bytes     CU002 stale parent      CU003 thread deleted
  CU004 parent missing or not older  CU008 append-only       CU009 chain

Revision ID: 0002
Revises: 0001
"""

from cuo_checkpoint.migration_sql import dropping_rows, run_script, run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in ("tables", "triggers", "append", "read", "hide", "rights"):
        run_script(f"0002_{step}")
    run_sql("SELECT cuo_ensure_partitions();")


def downgrade() -> None:
    if not dropping_rows():
        run_script("0002_refuse_rows")
    run_script("0002_undo")
