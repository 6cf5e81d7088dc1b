CREATE OR REPLACE VIEW cuo_checkpoints_full WITH (security_invoker = true) AS
    SELECT c.checkpoint_id, c.tenant_id, c.run_id, c.parent_checkpoint_id, c.node_name, c.edge_from, c.edge_to, c.kind,
           coalesce(h.state_json, c.state_json) AS state_json, c.trace_id, c.created_at, c.thread_id, c.checkpoint_ns,
           c.seq, c.step, c.phase, c.ordinal, c.lg_checkpoint_id, c.lg_parent_id, c.langgraph,
           c.state_sha256, c.langgraph_sha256, c.row_sha256
    FROM cuo_langgraph_checkpoints c
    LEFT JOIN cuo_langgraph_checkpoints h
        ON h.tenant_id = c.tenant_id AND h.created_at = c.created_at AND h.checkpoint_id = (c.state_json ->> '$state_of')::uuid;

-- The moment inside a time-ordered id (UUID version 6, which LangGraph makes); null for any other id.
CREATE OR REPLACE FUNCTION cuo_id_time(p_id text) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $fn$
    SELECT CASE WHEN p_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-'
                THEN to_timestamp(('x' || substr(p_id, 1, 8) || substr(p_id, 10, 4) || substr(p_id, 16, 3))::bit(60)::bigint / 1e7 - 12219292800) END
$fn$;

-- Where a checkpoint stands. The time inside its id says which month to look in first; if it is not
-- there (a copy, an id of another kind, a clock that is days off), spans twice as long each time, newest first.
CREATE OR REPLACE FUNCTION cuo_find(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_from timestamptz, p_to timestamptz, p_above bigint,
    OUT seq bigint, OUT at timestamptz)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_low    timestamptz := cuo_id_time(p_lg_id) - interval '1 day';
    v_high   timestamptz := v_low + interval '2 days';
    v_months integer := 0;
BEGIN
    LOOP
        IF v_low IS NOT NULL AND v_low <= p_to AND v_high >= p_from THEN
            EXECUTE 'SELECT c.seq, c.created_at FROM cuo_langgraph_checkpoints c
                     WHERE c.tenant_id = $1 AND c.thread_id = $2 AND ($3::text IS NULL OR c.checkpoint_ns = $3) AND c.lg_checkpoint_id = $4
                       AND c.langgraph ? ''channel_versions'' AND c.created_at >= $5 AND c.created_at <= $6 AND c.seq > $7
                       AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
                     ORDER BY c.seq DESC LIMIT 1'
                INTO seq, at USING p_tenant, p_thread, p_ns, p_lg_id, greatest(v_low, p_from), least(v_high, p_to), p_above;
            EXIT WHEN seq IS NOT NULL;
        END IF;
        EXIT WHEN v_months > 0 AND v_low <= p_from;
        v_high := CASE WHEN v_months = 0 THEN p_to ELSE v_low END;
        v_low := date_trunc('month', v_high, 'UTC') - make_interval(months => v_months);
        v_months := greatest(1, v_months * 2);
    END LOOP;
END
$fn$;

-- One checkpoint as LangGraph sees it, the newest when p_lg_id is null, with its pending writes.
-- With p_events, also the log rows about it and the run a resume continues: p_run, else the thread's
-- newest unfinished one.
CREATE OR REPLACE FUNCTION cuo_get(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_events boolean, p_pruned boolean DEFAULT false, p_run uuid DEFAULT NULL,
    OUT lg_id text, OUT lg_parent text, OUT run_id uuid, OUT seq bigint, OUT at timestamptz, OUT state jsonb, OUT langgraph jsonb,
    OUT writes jsonb, OUT events jsonb, OUT open_run jsonb, OUT deleted boolean)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_ns cuo_threads%ROWTYPE;
    v_root cuo_threads%ROWTYPE;
    v_seq bigint;
    v_at timestamptz;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT * INTO v_root FROM cuo_threads t WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '';
    deleted := coalesce(v_root.deleted, false);
    IF p_ns = '' THEN
        v_ns := v_root;
    ELSE
        SELECT * INTO v_ns FROM cuo_threads t WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
    END IF;
    IF p_events AND v_root.thread_id IS NOT NULL THEN
        SELECT jsonb_build_object('run_id', r.run_id, 'state', r.state, 'trace_id', r.trace_id,
                                  'stale', coalesce(r.lease_until < now(), true), 'last', r.last_rows[cardinality(r.last_rows)])
            INTO open_run FROM cuo_runs r
            WHERE r.tenant_id = p_tenant AND r.thread_id = p_thread AND NOT r.hidden
              AND (r.run_id = p_run OR r.state <> 'closed')
            ORDER BY (r.run_id = p_run) DESC NULLS LAST, r.first_at DESC LIMIT 1;
    END IF;
    IF v_ns.newest_id IS NULL THEN
        RETURN;
    END IF;
    v_seq := v_ns.newest_seq;
    v_at := v_ns.newest_at;
    IF p_lg_id IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_seq, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_lg_id, v_ns.first_at,
            greatest(v_ns.newest_at, clock_timestamp()), CASE WHEN p_pruned AND NOT deleted THEN 0 ELSE v_ns.hidden_seq END) AS f;
    END IF;
    -- EXECUTE plans with the time in hand, so only the month that holds the row is touched.
    EXECUTE 'SELECT c.lg_checkpoint_id, c.lg_parent_id, c.run_id, c.seq, c.created_at, c.state_json, c.langgraph FROM cuo_langgraph_checkpoints c
             WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.seq = $4 AND c.created_at = $5'
        INTO lg_id, lg_parent, run_id, seq, at, state, langgraph
        USING p_tenant, p_thread, p_ns, v_seq, v_at;
    IF lg_id IS NULL THEN
        RETURN;
    END IF;
    IF v_ns.greatest_write_id IS NOT NULL AND lg_id COLLATE "C" <= v_ns.greatest_write_id COLLATE "C" THEN
        writes := cuo_pending(p_tenant, p_thread, p_ns, lg_id, least(at, v_ns.last_write_at) - interval '1 day', v_ns.last_write_at);
    END IF;
    IF p_events THEN
        EXECUTE 'SELECT jsonb_agg(jsonb_build_object(''id'', c.checkpoint_id, ''run'', c.run_id, ''kind'', c.kind, ''node'', c.node_name,
                            ''phase'', c.phase, ''ordinal'', c.ordinal, ''seq'', c.seq) ORDER BY c.seq)
                 FROM cuo_langgraph_checkpoints c
                 WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                   AND c.created_at >= $5 AND c.created_at <= now() + interval ''1 day'''
            INTO events USING p_tenant, p_thread, p_ns, lg_id, at;
    END IF;
END
$fn$;

-- Pending writes of one checkpoint in LangGraph's order, the newest version of each.
CREATE OR REPLACE FUNCTION cuo_pending(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_from timestamptz, p_to timestamptz) RETURNS jsonb
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_writes  jsonb;
    v_deleted bigint;
    v_hiding  boolean;
BEGIN
    -- What was deleted stays so when its checkpoint's id is used again, and a hidden run's writes go with it.
    SELECT max(d.up_to_seq) FILTER (WHERE d.kind = 'delete_thread'), coalesce(bool_or(d.kind = 'delete_run'), false)
        INTO v_deleted, v_hiding
        FROM cuo_thread_tombstones d WHERE d.tenant_id = p_tenant AND d.thread_id = p_thread;
    EXECUTE 'SELECT jsonb_agg(jsonb_build_array(w.task_id, w.channel, w.value, w.task_path, w.idx)
                              ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx)
             FROM (SELECT DISTINCT ON (task_id, idx) * FROM cuo_langgraph_writes
                   WHERE tenant_id = $1 AND thread_id = $2 AND checkpoint_ns = $3 AND lg_checkpoint_id = $4
                     AND created_at >= $5 AND created_at <= $6 AND seq > $7
                     AND NOT ($8 AND EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = $1 AND r.run_id = cuo_langgraph_writes.run_id AND r.hidden))
                   ORDER BY task_id, idx, seq DESC) AS w'
        INTO v_writes USING p_tenant, p_thread, p_ns, p_lg_id, p_from, p_to, coalesce(v_deleted, 0), v_hiding;
    RETURN v_writes;
END
$fn$;

-- Checkpoints newest first. Filter keys and values are data: each is compared, none is spelled into SQL.
-- p_after_seq, p_after_at: where the page before this one ended. A limited page reads only as many months
-- as it needs: it counts in spans twice as long each time. A row is stamped when its transaction begins and
-- numbered when it has the thread's lock, so a day of slack keeps the order of seq exact.
CREATE OR REPLACE FUNCTION cuo_list(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_filter jsonb, p_before text, p_limit bigint,
    p_after_seq bigint, p_after_at timestamptz)
    RETURNS TABLE (thread_id text, checkpoint_ns text, lg_id text, lg_parent text, run_id uuid, seq bigint, at timestamptz, state jsonb, langgraph jsonb, writes jsonb)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_from   timestamptz;
    v_to     timestamptz;
    v_mark   timestamptz;
    v_before bigint;
    v_seq    bigint;
    v_at     timestamptz;
    v_months integer := 1;
    v_count  bigint;
    v_rows   text := '
        FROM cuo_langgraph_checkpoints c
        JOIN cuo_threads t ON t.tenant_id = c.tenant_id AND t.thread_id = c.thread_id AND t.checkpoint_ns = c.checkpoint_ns
        WHERE c.tenant_id = $1 AND ($2::text IS NULL OR c.thread_id = $2) AND ($3::text IS NULL OR c.checkpoint_ns = $3)
          AND ($4::text IS NULL OR c.lg_checkpoint_id = $4) AND c.langgraph ? ''channel_versions''
          AND c.created_at >= $7 AND c.created_at <= $8 AND c.seq > t.hidden_seq
          AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
          AND ($5::jsonb IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each($5) f WHERE (c.langgraph -> ''metadata'' -> f.key) IS DISTINCT FROM f.value))
          AND ($9::text IS NULL OR CASE WHEN $10::bigint IS NOT NULL THEN c.seq < $10 ELSE c.lg_checkpoint_id COLLATE "C" < $9 COLLATE "C" END)
          AND ($11::bigint IS NULL OR c.seq < $11)';
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT min(t.first_at), max(t.newest_at) + interval '1 day' INTO v_from, v_to FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND (p_thread IS NULL OR t.thread_id = p_thread) AND (p_ns IS NULL OR t.checkpoint_ns = p_ns)
          AND t.newest_id IS NOT NULL;
    IF v_from IS NULL THEN
        RETURN;
    END IF;
    IF p_before IS NOT NULL AND p_thread IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_before, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_before, v_from, v_to, 0) AS f;
        v_to := least(v_to, v_at + interval '1 day');
    END IF;
    IF p_lg_id IS NOT NULL AND p_thread IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_seq, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_lg_id, v_from, v_to, 0) AS f;
        IF v_seq IS NULL THEN
            RETURN;
        ELSIF p_ns IS NOT NULL THEN
            v_from := v_at;
            v_to := v_at;
        END IF;
    END IF;
    v_to := least(v_to, p_after_at + interval '1 day');
    v_mark := least(date_trunc('month', v_to, 'UTC'), v_to - interval '1 day');
    WHILE p_limit IS NOT NULL AND v_mark > v_from LOOP
        EXECUTE 'SELECT count(*) FROM (SELECT' || v_rows || ' LIMIT $6) AS q' INTO v_count
            USING p_tenant, p_thread, p_ns, p_lg_id, p_filter, p_limit, v_mark, v_to, p_before, v_before, p_after_seq;
        EXIT WHEN v_count >= p_limit;
        v_mark := v_mark - make_interval(months => v_months);
        v_months := v_months * 2;
    END LOOP;
    IF p_limit IS NOT NULL THEN
        v_from := greatest(v_from, v_mark - interval '1 day');
    END IF;
    RETURN QUERY EXECUTE '
        SELECT c.thread_id, c.checkpoint_ns, c.lg_checkpoint_id, c.lg_parent_id, c.run_id, c.seq, c.created_at, c.state_json, c.langgraph,
               CASE WHEN t.last_write_at IS NOT NULL AND c.lg_checkpoint_id COLLATE "C" <= t.greatest_write_id COLLATE "C"
                    THEN cuo_pending(c.tenant_id, c.thread_id, c.checkpoint_ns, c.lg_checkpoint_id,
                                     least(c.created_at, t.last_write_at) - interval ''1 day'', t.last_write_at) END'
        || v_rows || '
        ORDER BY CASE WHEN $2::text IS NULL THEN c.created_at END DESC, c.seq DESC LIMIT $6'
        USING p_tenant, p_thread, p_ns, p_lg_id, p_filter, p_limit, v_from, v_to, p_before, v_before, p_after_seq;
END
$fn$;
