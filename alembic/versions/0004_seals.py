"""Seals: the leaves of each tenant's tree over the heads of its chains, and the signed heads.

Both tables only grow. They are copies: what counts is exported where this database's owner cannot
write, and a copy that was changed shows against it. Leaves stand here so that sealing need not read
sealed rows again and proofs can be made.

Revision ID: 0004
Revises: 0003
"""

import re

from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _roles() -> dict[str, str]:
    quote = op.get_context().dialect.identifier_preparer.quote_identifier
    return {n: quote(context.config.attributes[f"{n}_role"]) for n in ("app", "auditor")}


def _run(script: str) -> None:
    """Executes a script statement by statement; a semicolon inside $do$ ends nothing."""
    statement, inside = "", False
    for part in re.split(r"(\$do\$)", script):
        if part == "$do$":
            inside = not inside
            statement += part
        elif inside:
            statement += part
        else:
            *ended, rest = part.split(";\n")
            for piece in ended:
                _execute(statement + piece)
                statement = ""
            statement += rest
    _execute(statement)


def _execute(statement: str) -> None:
    if statement.strip().rstrip(";").strip():
        # A colon before a word would be read as a bind parameter.
        op.execute(re.sub(r"(?<![:\w]):(?=\w)", r"\\:", statement.strip()))


# leaf_sha256 is SHA-256(0x00 || the leaf), the leaf being the RFC 8785 form of the other columns but
# leaf_index; full_subtrees are the roots of the full subtrees, largest first: what a tree grows from.
TABLES = """
CREATE TABLE IF NOT EXISTS cuo_seal_leaves (
    tenant_id   uuid NOT NULL,
    leaf_index  bigint NOT NULL CHECK (leaf_index >= 0),
    run_id      uuid NOT NULL,
    chain_seq   bigint NOT NULL CHECK (chain_seq >= 0),
    row_sha256  bytea NOT NULL CHECK (length(row_sha256) = 32),
    head_at     timestamptz NOT NULL,
    sealed_at   timestamptz NOT NULL,
    statement   text,
    leaf_sha256 bytea NOT NULL CHECK (length(leaf_sha256) = 32),
    PRIMARY KEY (tenant_id, leaf_index)
);
CREATE INDEX IF NOT EXISTS cuo_seal_leaves_run_idx ON cuo_seal_leaves (tenant_id, run_id, leaf_index DESC);
CREATE TABLE IF NOT EXISTS cuo_seal_heads (
    tenant_id     uuid NOT NULL,
    head_no       bigint NOT NULL CHECK (head_no > 0),
    tree_size     bigint NOT NULL CHECK (tree_size > 0),
    root_sha256   bytea NOT NULL CHECK (length(root_sha256) = 32),
    full_subtrees bytea NOT NULL,
    note          text NOT NULL,
    sealed_at     timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, head_no)
)
"""

RIGHTS = """
DO $do$
BEGIN
    PERFORM cuo_protect('cuo_seal_leaves'::regclass, true, false);
    PERFORM cuo_protect('cuo_seal_heads'::regclass, true, false);
END
$do$;
GRANT SELECT ON cuo_seal_leaves, cuo_seal_heads TO {app};
-- The auditor inserts as the tenant it has set, by the policy that binds every role.
GRANT SELECT, INSERT ON cuo_seal_leaves, cuo_seal_heads TO {auditor}
"""

REFUSE_ROWS = """
DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_seal_heads) OR EXISTS (SELECT FROM cuo_seal_leaves) THEN
        RAISE EXCEPTION 'downgrade refused: the log is sealed'
            USING HINT = 'export it first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$
"""


def upgrade() -> None:
    _run(TABLES)
    _run(RIGHTS.format(**_roles()))


def downgrade() -> None:
    if context.config.attributes["drop_rows"] != "yes":
        _run(REFUSE_ROWS)
    _run("DROP TABLE IF EXISTS cuo_seal_leaves, cuo_seal_heads")
