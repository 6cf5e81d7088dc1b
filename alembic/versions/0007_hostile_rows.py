"""What one tenant writes by hand cannot stop what is read across tenants, nor a start of the program.

- The columns of the index tables that the application's role may set are bounded: a lease "until
  infinity" could be loaded by no client and ended the verification of every tenant's runs.
- A trace id is 32 hex digits in the index too, since it stands in the chain's bytes as it is.
- The view that shows states in full takes a malformed reference for what it is.
- What a claim says of an approval is in the form of RFC 8785, as every audit body is.
- The chain's hashes do not depend on how a session reads backslashes.
- Default privileges of the database gave others the claim that 0005 made; they are taken back.
- Waiting for the lock under which months are made ends.

Revision ID: 0007
Revises: 0005
"""

from cuo_checkpoint.migration_sql import run_script, run_sql

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for step in ("index_bounds", "view", "claim", "months", "literals", "rights"):
        run_script(f"0007_{step}")


def downgrade() -> None:
    run_sql(
        "ALTER TABLE cuo_runs DROP CONSTRAINT IF EXISTS cuo_runs_trace,"
        " DROP CONSTRAINT IF EXISTS cuo_runs_lease;"
        "ALTER FUNCTION cuo_genesis(uuid, uuid) RESET ALL;"
        "ALTER TABLE cuo_threads DROP CONSTRAINT IF EXISTS cuo_threads_last_write;"
    )
    for earlier in (
        "0001_months",
        "0001_chain",
        "0002_read",
        "0005_open_run",
        "0005_claim",
        "0005_list",
    ):
        run_script(earlier)
