CREATE TABLE IF NOT EXISTS cuo_threads (
    tenant_id       uuid NOT NULL,
    thread_id       text NOT NULL CHECK (thread_id <> '' AND length(thread_id) <= 512),
    checkpoint_ns   text NOT NULL DEFAULT '' CHECK (length(checkpoint_ns) <= 2048),
    head_seq        bigint NOT NULL DEFAULT 0,
    newest_seq      bigint NOT NULL DEFAULT 0,
    newest_id       text,
    newest_at       timestamptz,
    greatest_id     text,
    greatest_write_id text,
    first_at        timestamptz NOT NULL DEFAULT now(),
    last_write_at   timestamptz,
    hidden_seq      bigint NOT NULL DEFAULT 0,
    deleted         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, thread_id, checkpoint_ns)
);
CREATE TABLE IF NOT EXISTS cuo_runs (
    tenant_id       uuid NOT NULL,
    run_id          uuid NOT NULL,
    thread_id       text NOT NULL,
    state           text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'waiting', 'closed')),
    outcome         text,
    trace_id        char(32) NOT NULL,
    first_at        timestamptz NOT NULL DEFAULT now(),
    newest_at       timestamptz NOT NULL DEFAULT now(),
    log_rows        bigint NOT NULL DEFAULT 0,
    last_rows       uuid[] NOT NULL DEFAULT ARRAY[]::uuid[],
    chain_seq       bigint NOT NULL DEFAULT 0,
    chain_head      bytea NOT NULL,
    lease_owner     text,
    lease_until     timestamptz,
    hidden          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, run_id)
);
CREATE INDEX IF NOT EXISTS cuo_runs_thread_idx ON cuo_runs (tenant_id, thread_id, first_at);
CREATE INDEX IF NOT EXISTS cuo_runs_recent_idx ON cuo_runs (tenant_id, first_at DESC, run_id);
COMMENT ON TABLE cuo_threads IS 'Derived index, never evidence: newest rows and the per-thread lock. Rebuildable from the log.';
COMMENT ON TABLE cuo_runs IS 'Derived index, never evidence: state of runs and heads of their chains. Rebuildable from the log.';
