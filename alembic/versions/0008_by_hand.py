"""What is written by hand verifies or is refused, and an update by hand is one run.

- A graph's `update_state` writes in two calls, outside any run: they are one run now, closed by the
  second. (`cuo_append` takes "update" as a run's state; older code never says it.)
- Numbers and digests are digested as stored, however `cuo_append`'s caller spelled them.
- A row inserted by hand whose digests are not its documents', whose id stands in its run already, or
  that refers to another's state is refused.
- The bounds of months are read alike in every DateStyle.
- The bounds that 0007 could not prove are proven where a lease alone was beyond them.

Revision ID: 0008
Revises: 0007
"""

from cuo_checkpoint.migration_sql import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in ("append", "by_hand", "settings", "bounds", "rights"):
        run_script(f"0008_{step}")
    run_script("0007_rights")


def downgrade() -> None:
    for step in ("0005_append", "0002_triggers", "0008_undo"):
        run_script(step)
