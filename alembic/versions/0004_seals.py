"""Seals: the leaves of each tenant's tree over the heads of its chains, and the signed heads.

Both tables only grow. They are copies: what counts is exported where this database's owner cannot
write, and a copy that was changed shows against it. Leaves stand here so that sealing need not read
sealed rows again and proofs can be made.

Revision ID: 0004
Revises: 0003
"""

from cuo_checkpoint.migration_sql import dropping_rows, run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in ("tables", "rights"):
        run_script(f"0004_{step}")


def downgrade() -> None:
    if not dropping_rows():
        run_script("0004_refuse_rows")
    run_script("0004_undo")
