CREATE TABLE IF NOT EXISTS cuo_langgraph_checkpoints (
    checkpoint_id        uuid NOT NULL,
    tenant_id            uuid NOT NULL,
    run_id               uuid NOT NULL,
    parent_checkpoint_id uuid,
    node_name            text,
    edge_from            text,
    edge_to              text,
    kind                 text NOT NULL CONSTRAINT cuo_langgraph_checkpoints_kind
                         CHECK (kind IN ('node_entered','node_completed','edge_traversed','run_started','run_completed','run_failed')),
    state_json           jsonb NOT NULL,
    trace_id             char(32) NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    created_at           timestamptz NOT NULL DEFAULT now(),
    thread_id            text NOT NULL,
    checkpoint_ns        text NOT NULL DEFAULT '',
    seq                  bigint NOT NULL,
    step                 integer,
    phase                integer NOT NULL DEFAULT 0,
    ordinal              integer NOT NULL DEFAULT 0,
    lg_checkpoint_id     text,
    lg_parent_id         text,
    langgraph            jsonb,
    state_sha256         bytea NOT NULL CHECK (length(state_sha256) = 32),
    langgraph_sha256     bytea CHECK (length(langgraph_sha256) = 32),
    row_sha256           bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, checkpoint_id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX IF NOT EXISTS checkpoints_run_idx ON cuo_langgraph_checkpoints (tenant_id, run_id, created_at);
CREATE INDEX IF NOT EXISTS checkpoints_thread_idx ON cuo_langgraph_checkpoints (tenant_id, thread_id, checkpoint_ns, seq DESC);
CREATE INDEX IF NOT EXISTS checkpoints_lg_idx ON cuo_langgraph_checkpoints (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id);
CREATE TABLE IF NOT EXISTS cuo_langgraph_writes (
    tenant_id        uuid NOT NULL,
    thread_id        text NOT NULL,
    checkpoint_ns    text NOT NULL,
    lg_checkpoint_id text NOT NULL,
    task_id          text NOT NULL,
    task_path        text NOT NULL DEFAULT '',
    idx              integer NOT NULL,
    channel          text NOT NULL,
    value            jsonb NOT NULL,
    run_id           uuid NOT NULL,
    seq              bigint NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    value_sha256     bytea NOT NULL CHECK (length(value_sha256) = 32),
    row_sha256       bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id, task_id, idx, seq, created_at)
) PARTITION BY RANGE (created_at);
CREATE TABLE IF NOT EXISTS cuo_thread_tombstones (
    tenant_id     uuid NOT NULL,
    tombstone_id  uuid NOT NULL DEFAULT gen_random_uuid(),
    thread_id     text NOT NULL,
    kind          text NOT NULL CONSTRAINT cuo_thread_tombstones_kind
                  CHECK (kind IN ('delete_thread', 'delete_run', 'prune', 'reopen')),
    hidden_run_id uuid,
    up_to_seq     bigint NOT NULL,
    run_id        uuid NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    row_sha256    bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, tombstone_id)
);
CREATE INDEX IF NOT EXISTS tombstones_thread_idx ON cuo_thread_tombstones (tenant_id, thread_id, created_at);
DO $do$
BEGIN
    -- lz4 stores the same 190 kB state in a ninth of pglz's time; servers built without it keep pglz.
    ALTER TABLE cuo_langgraph_checkpoints ALTER COLUMN state_json SET COMPRESSION lz4;
    ALTER TABLE cuo_langgraph_checkpoints ALTER COLUMN langgraph SET COMPRESSION lz4;
    ALTER TABLE cuo_langgraph_writes ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN NULL;
END
$do$;
