-- leaf_sha256 is SHA-256(0x00 || the leaf), the leaf being the RFC 8785 form of the other columns but
-- leaf_index; full_subtrees are the roots of the full subtrees, largest first: what a tree grows from.
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
);
