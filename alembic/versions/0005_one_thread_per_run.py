"""A run lives in one thread, a claim survives a lost connection, look-ups stay in their months.

- A run id that is used in a second thread is refused: its chain names the first one.
- A claim that was committed before its connection was lost is still the claimant's when repeated.
- Earlier writes of a task are looked for since their checkpoint, not since the thread's first row,
  and a page of a list begins with the month it ends in.

What is replaced keeps its signature, and the older `cuo_claim` stays beside the new one, so older
code keeps running.

Errors raised for the client to translate:
  CU006 the run belongs to another thread

Revision ID: 0005
Revises: 0004
"""

from cuo_checkpoint.migration_sql import run_script, run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in ("open_run", "append", "claim", "list", "rights"):
        run_script(f"0005_{step}")


def downgrade() -> None:
    run_sql(
        "DROP FUNCTION IF EXISTS"
        " cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[], text, boolean);"
    )
    for earlier in ("0001_chain", "0002_append", "0002_read"):
        run_script(earlier)
