CREATE TABLE IF NOT EXISTS cuo_memory_audit (
    tenant_id   uuid NOT NULL,
    run_id      uuid NOT NULL,
    chain_seq   bigint NOT NULL CHECK (chain_seq > 0),
    kind        text NOT NULL,
    trace_id    char(32) NOT NULL,
    body        text NOT NULL,
    row_bytes   bytea NOT NULL,
    prev_sha256 bytea NOT NULL CHECK (length(prev_sha256) = 32),
    row_sha256  bytea NOT NULL CHECK (length(row_sha256) = 32),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id, chain_seq, created_at),
    CONSTRAINT cuo_memory_audit_kind CHECK (kind IN (
        'cuo.checkpoint_written', 'cuo.checkpoint_replayed', 'cuo.checkpoint_archive_failed',
        'cuo.routing_decision', 'cuo.llm_cascade_timeout', 'cuo.persona_defer_block', 'cuo.persona_unknown',
        'open', 'close', 'waiting', 'approval', 'write_set', 'tombstone', 'refused_overwrite', 'month_dropped', 'hold'))
) PARTITION BY RANGE (created_at);
CREATE INDEX IF NOT EXISTS cuo_memory_audit_kind_idx ON cuo_memory_audit (tenant_id, kind, created_at);
COMMENT ON COLUMN cuo_memory_audit.row_bytes IS 'RFC 8785 bytes of the row; row_sha256 = SHA-256("cuo/row/v1" || 0x00 || prev_sha256 || row_bytes)';
COMMENT ON COLUMN cuo_memory_audit.body IS 'RFC 8785 text of what the row says; embedded verbatim in row_bytes';
