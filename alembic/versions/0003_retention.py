"""Retention: whole months past the floor go, legal holds keep them, the index can be rebuilt.

Nothing here trusts its caller. The floor, the holds, the seals and what live threads still need
are judged inside the functions, after their locks; only the archiver may call them. A month goes
in one transaction with the chain rows that say so, so there is no half-dropped month.

Errors raised for the client to translate:
  CU010 retention refuses      CU011 the log changed meanwhile, try again

Revision ID: 0003
Revises: 0002
"""

from cuo_checkpoint.migration_sql import dropping_rows, run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SYSTEM_TENANT = "00000000-0000-8000-8000-73797374656d"
"""Reserved: whose rows speak of the whole log. The last six bytes spell "system"."""
"""Reserved: whose rows speak of the whole log. The last six bytes spell "system"."""

RETENTION_RUN = "00000000-0000-8000-8000-726574656e74"
"""Reserved in every tenant: the run whose chain says what was dropped and held ("retent")."""
"""Reserved in every tenant: the run whose chain says what was dropped and held ("retent")."""


def upgrade() -> None:
    for step in ("holds", "helpers", "facts", "drop", "holding", "rebuild", "rights"):
        run_script(f"0003_{step}", system=SYSTEM_TENANT, retention=RETENTION_RUN)


def downgrade() -> None:
    if not dropping_rows():
        run_script("0003_refuse_rows")
    run_script("0003_undo")
