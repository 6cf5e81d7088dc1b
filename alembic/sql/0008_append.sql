-- The hot path: one call appends all that belongs to one superstep, in one transaction.
-- p_rows:   [{"id","parent","kind","node","from","to","step","phase","ordinal","lg"(object),"lg_sha","state","state_sha"}]
--           a row without "state" shares p_state; rows are inserted in array order.
-- p_writes: [{"lg","task","path","writes":[{"idx","channel","value","sha"}]}], one entry per task
-- p_run_state: open, waiting, or null to leave it; "direct" closes a run that this very call opened, and
--           one that "update" opened: writes by hand, which the checkpoint they led to follows in a call of its own.
-- p_adopt:  a call outside any run joins the thread's unfinished run; without one it is p_run.
-- p_chain_parent: a first row without a parent hangs under the run's last row.
-- p_retry:  this call may already have been committed: rows that are there make it a duplicate.
-- Returns the status ("stored" or "duplicate"), the thread's head, the transaction's time and the run.
-- It runs as the owner for callers who are not, so the triggers for hand-made rows stay out of its way.
-- Numbers and digests enter the text that is digested as the columns hold them, however the caller spelled
-- them ("+4", "04", upper-case hex): by any other spelling the row would be stored and never verify.
CREATE OR REPLACE FUNCTION cuo_append(
    p_tenant uuid, p_thread text, p_ns text, p_run uuid, p_trace text,
    p_lg_id text, p_lg_parent text, p_rows jsonb, p_state jsonb, p_state_sha text, p_share_state boolean,
    p_writes jsonb, p_out_kinds text[], p_out_bodies text[], p_run_state text, p_strict boolean,
    p_adopt boolean, p_chain_parent boolean, p_retry boolean,
    OUT status text, OUT seq bigint, OUT at timestamptz, OUT run uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_root     cuo_threads%ROWTYPE;
    v_ns       cuo_threads%ROWTYPE;
    v_run      cuo_runs%ROWTYPE;
    v_carrier  jsonb := p_rows -> 0;
    v_rows     integer := jsonb_array_length(p_rows);
    v_same     boolean;
    v_set      jsonb;
    v_existing jsonb;
    v_deleted  bigint;
    v_kept     integer;
    v_written  integer := 0;
    v_digest   bytea;
    v_opened   boolean := false;
    v_kinds    text[] := ARRAY[]::text[];
    v_bodies   text[] := ARRAY[]::text[];
    v_ids      uuid[];
    v_missing  uuid[];
    v_end      text;
    v_link     record;
    v_id       uuid;
    v_greatest text;
    v_since    timestamptz;
BEGIN
    IF session_user = current_user THEN
        RAISE EXCEPTION 'rows are appended by the application role, not by the owner' USING ERRCODE = 'CU009';
    END IF;
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    IF length(p_trace) <> 32 THEN
        -- The column takes blanks behind it away, the digest would not.
        RAISE EXCEPTION 'a trace id is 32 hexadecimal digits' USING ERRCODE = 'CU009';
    END IF;
    IF p_state ? '$state_of' OR p_rows @? '$[*].state."$state_of"' THEN
        RAISE EXCEPTION 'that a row shares another''s state is said by the store alone' USING ERRCODE = 'CU009';
    END IF;
    at := now();
    run := p_run;
    status := 'stored';
    IF v_carrier IS NULL OR NOT coalesce(v_carrier -> 'lg' ? 'channel_versions', false) THEN
        v_carrier := NULL;
    END IF;
    SELECT * INTO v_root FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '' FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO cuo_threads (tenant_id, thread_id) VALUES (p_tenant, p_thread) ON CONFLICT DO NOTHING;
        SELECT * INTO v_root FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '' FOR UPDATE;
    END IF;
    IF v_root.deleted THEN
        RAISE EXCEPTION 'thread was deleted' USING ERRCODE = 'CU003';
    END IF;
    IF p_ns = '' THEN
        v_ns := v_root;
    ELSE
        SELECT * INTO v_ns FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
        IF NOT FOUND THEN
            INSERT INTO cuo_threads (tenant_id, thread_id, checkpoint_ns) VALUES (p_tenant, p_thread, p_ns) RETURNING * INTO v_ns;
        END IF;
    END IF;
    seq := v_root.head_seq;

    IF v_carrier IS NOT NULL THEN
        -- Ids from LangGraph grow, so an id above the greatest one stored cannot be a duplicate.
        IF v_ns.greatest_id IS NOT NULL AND p_lg_id COLLATE "C" <= v_ns.greatest_id COLLATE "C" THEN
            EXECUTE 'SELECT c.state_sha256 = decode($5, ''hex'') AND c.langgraph_sha256 = decode($6, ''hex'')
                     FROM cuo_langgraph_checkpoints c
                     WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                       AND c.langgraph ? ''channel_versions'' AND c.created_at >= $7 AND c.created_at <= $8 AND c.seq > $9
                     ORDER BY c.seq DESC LIMIT 1'
                INTO v_same
                USING p_tenant, p_thread, p_ns, p_lg_id, coalesce(v_carrier ->> 'state_sha', p_state_sha), v_carrier ->> 'lg_sha',
                      v_ns.first_at, greatest(v_ns.newest_at, now()) + interval '1 day', v_ns.hidden_seq;
            IF v_same THEN
                status := 'duplicate';
                RETURN;
            ELSIF v_same IS NOT NULL THEN
                RAISE EXCEPTION 'checkpoint % already exists with different bytes', p_lg_id USING ERRCODE = 'CU001';
            END IF;
        END IF;
        IF p_strict AND v_ns.newest_id IS NOT NULL AND v_ns.newest_id IS DISTINCT FROM p_lg_parent THEN
            RAISE EXCEPTION 'checkpoint % is no longer the newest', coalesce(p_lg_parent, '(none)')
                USING ERRCODE = 'CU002', DETAIL = v_ns.newest_id;
        END IF;
    ELSIF p_retry AND v_rows > 0 THEN
        EXECUTE 'SELECT true FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.checkpoint_id = $2
                 AND c.created_at >= $3 AND c.created_at <= $4'
            INTO v_same USING p_tenant, (p_rows -> 0 ->> 'id')::uuid, now() - interval '1 hour', now() + interval '1 hour';
        IF v_same THEN
            status := 'duplicate';
            RETURN;
        END IF;
    END IF;

    IF p_adopt THEN
        SELECT r.run_id INTO run FROM cuo_runs r
            WHERE r.tenant_id = p_tenant AND r.thread_id = p_thread AND NOT r.hidden
              AND (r.run_id = p_run OR r.state <> 'closed')
            ORDER BY (r.run_id = p_run) DESC NULLS LAST, r.first_at DESC LIMIT 1;
        run := coalesce(run, p_run);
    END IF;
    SELECT * INTO v_run FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = run FOR UPDATE;
    IF NOT FOUND THEN
        v_opened := cuo_open_run(p_tenant, run, p_thread, p_trace);
        SELECT * INTO v_run FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = run FOR UPDATE;
    ELSIF v_run.thread_id <> p_thread THEN
        RAISE EXCEPTION 'run % belongs to another thread', run USING ERRCODE = 'CU006';
    END IF;

    IF v_root.hidden_seq > 0 THEN
        SELECT max(d.up_to_seq) INTO v_deleted FROM cuo_thread_tombstones d
            WHERE d.tenant_id = p_tenant AND d.thread_id = p_thread AND d.kind = 'delete_thread';
    END IF;
    FOR v_set IN SELECT e FROM jsonb_array_elements(p_writes) AS e LOOP
        v_existing := '{}'::jsonb;
        IF v_ns.greatest_write_id IS NOT NULL AND (v_set ->> 'lg') COLLATE "C" <= v_ns.greatest_write_id COLLATE "C" THEN
            -- Writes come after their checkpoint, give or take a race; a claim's after its run began.
            v_since := CASE WHEN v_set ->> 'lg' = v_ns.newest_id THEN v_ns.newest_at
                            WHEN v_set ->> 'lg' LIKE '$%' THEN v_run.first_at
                            ELSE (SELECT f.at FROM cuo_find(p_tenant, p_thread, p_ns, v_set ->> 'lg', v_ns.first_at, clock_timestamp(), 0) AS f) END;
            v_since := coalesce(v_since - interval '1 day', v_root.first_at);
            EXECUTE 'SELECT coalesce(jsonb_object_agg(w.idx, w.sha), ''{}''::jsonb) FROM (
                         SELECT DISTINCT ON (idx) idx, encode(value_sha256, ''hex'') AS sha FROM cuo_langgraph_writes
                         WHERE tenant_id = $1 AND thread_id = $2 AND checkpoint_ns = $3 AND lg_checkpoint_id = $4
                           AND task_id = $5 AND created_at >= $6 AND created_at <= $7 AND seq > $8
                         ORDER BY idx, seq DESC) AS w'
                INTO v_existing
                USING p_tenant, p_thread, p_ns, v_set ->> 'lg', v_set ->> 'task', v_since, now() + interval '1 day',
                      coalesce(v_deleted, 0);
        END IF;
        WITH stored AS (
            INSERT INTO cuo_langgraph_writes (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id, task_id, task_path,
                                              idx, channel, value, run_id, seq, value_sha256, row_sha256)
            SELECT p_tenant, p_thread, p_ns, v_set ->> 'lg', v_set ->> 'task', v_set ->> 'path',
                   w.idx, w.channel, w.value, run, seq + 1, w.sha,
                   sha256(convert_to('{"channel":' || cuo_jcs(w.channel) || ',"checkpoint_ns":' || cuo_jcs(p_ns)
                       || ',"created_at":' || cuo_jcs_time(now()) || ',"idx":' || w.idx
                       || ',"lg_checkpoint_id":' || cuo_jcs(v_set ->> 'lg') || ',"run_id":"' || run
                       || '","seq":' || (seq + 1) || ',"task_id":' || cuo_jcs(v_set ->> 'task') || ',"task_path":' || cuo_jcs(v_set ->> 'path')
                       || ',"tenant_id":"' || p_tenant || '","thread_id":' || cuo_jcs(p_thread)
                       || ',"value_sha256":"' || encode(w.sha, 'hex') || '"}', 'UTF8'))
            FROM (SELECT (e ->> 'idx')::integer AS idx, e ->> 'channel' AS channel, e -> 'value' AS value, decode(e ->> 'sha', 'hex') AS sha
                  FROM jsonb_array_elements(v_set -> 'writes') AS e) AS w
            -- An ordinary write, once there, stays; a special one is kept in every version it took.
            WHERE (v_existing ? w.idx::text) IS NOT TRUE
               OR (w.idx < 0 AND v_existing ->> w.idx::text <> encode(w.sha, 'hex'))
            RETURNING idx, row_sha256
        )
        SELECT count(*), sha256(coalesce(string_agg(s.row_sha256, ''::bytea ORDER BY s.idx), ''::bytea)) INTO v_kept, v_digest FROM stored s;
        IF v_kept > 0 THEN
            seq := seq + 1;
            v_written := v_written + v_kept;
            v_greatest := greatest(v_greatest COLLATE "C", (v_set ->> 'lg') COLLATE "C");
            v_kinds := v_kinds || 'write_set'::text;
            v_bodies := v_bodies || ('{"checkpoint_ns":' || cuo_jcs(p_ns) || ',"lg_checkpoint_id":' || cuo_jcs(v_set ->> 'lg')
                || ',"seq":' || seq || ',"sha256":"' || encode(v_digest, 'hex') || '","task_id":' || cuo_jcs(v_set ->> 'task')
                || ',"writes":' || v_kept || '}');
        END IF;
    END LOOP;
    IF v_written = 0 AND v_rows = 0 AND cardinality(p_out_kinds) = 0 THEN
        status := 'duplicate';
        RETURN;
    END IF;
    -- What a graph hands over is embedded as it stands, so it is held to the canonical form; what the
    -- store alone may say cannot be handed over.
    IF cardinality(p_out_kinds) > 0 AND (
        cardinality(p_out_kinds) <> cardinality(p_out_bodies)
        OR p_out_kinds && ARRAY['open', 'close', 'write_set', 'tombstone', 'refused_overwrite', 'month_dropped', 'hold',
                                'cuo.checkpoint_written', 'cuo.checkpoint_archive_failed']
        OR EXISTS (SELECT FROM unnest(p_out_bodies) AS b(body)
                   WHERE jsonb_typeof(b.body::jsonb) <> 'object' OR b.body IS DISTINCT FROM cuo_canonical(b.body::jsonb))) THEN
        RAISE EXCEPTION 'an audit row is of a kind that only the store writes, or its body is not in the form of RFC 8785'
            USING ERRCODE = 'CU009';
    END IF;
    v_kinds := v_kinds || p_out_kinds;
    v_bodies := v_bodies || p_out_bodies;

    IF v_rows > 0 THEN
        v_id := (p_rows -> 0 ->> 'id')::uuid;
        WITH given AS (
            SELECT r, e.n, (r ->> 'id')::uuid AS id, r ->> 'kind' AS kind,
                   coalesce((r ->> 'parent')::uuid, CASE WHEN e.n = 1 AND p_chain_parent THEN v_run.last_rows[cardinality(v_run.last_rows)] END) AS parent,
                   CASE WHEN jsonb_typeof(r -> 'lg') = 'object' THEN r -> 'lg' END AS lg,
                   CASE WHEN e.n = 1 AND v_carrier IS NOT NULL THEN p_lg_parent END AS lg_parent,
                   (r ->> 'step')::integer AS step, (r ->> 'phase')::integer AS phase, (r ->> 'ordinal')::integer AS ordinal,
                   decode(coalesce(r ->> 'state_sha', p_state_sha), 'hex') AS sha,
                   -- An empty digest meets the column's check: a document comes with its digest.
                   CASE WHEN jsonb_typeof(r -> 'lg') = 'object' THEN decode(coalesce(r ->> 'lg_sha', ''), 'hex') END AS lg_sha
            FROM jsonb_array_elements(p_rows) WITH ORDINALITY AS e(r, n)
        ), stored AS (
            INSERT INTO cuo_langgraph_checkpoints (
                checkpoint_id, tenant_id, run_id, parent_checkpoint_id, node_name, edge_from, edge_to, kind, state_json,
                trace_id, thread_id, checkpoint_ns, seq, step, phase, ordinal, lg_checkpoint_id, lg_parent_id,
                langgraph, state_sha256, langgraph_sha256, row_sha256)
            SELECT g.id, p_tenant, run, g.parent, g.r ->> 'node', g.r ->> 'from', g.r ->> 'to', g.kind,
                   CASE WHEN g.r ? 'state' THEN g.r -> 'state'
                        WHEN p_share_state AND g.n > 1 THEN jsonb_build_object('$state_of', v_id)
                        ELSE p_state END,
                   p_trace, p_thread, p_ns, seq + g.n, g.step, g.phase, g.ordinal,
                   p_lg_id, g.lg_parent, g.lg, g.sha, g.lg_sha,
                   sha256(convert_to('{"checkpoint_id":"' || g.id || '","checkpoint_ns":' || cuo_jcs(p_ns)
                       || ',"created_at":' || cuo_jcs_time(now())
                       || ',"edge_from":' || cuo_jcs(g.r ->> 'from') || ',"edge_to":' || cuo_jcs(g.r ->> 'to') || ',"kind":"' || g.kind
                       || '","langgraph_sha256":' || coalesce('"' || encode(g.lg_sha, 'hex') || '"', 'null')
                       || ',"lg_checkpoint_id":' || cuo_jcs(p_lg_id) || ',"lg_parent_id":' || cuo_jcs(g.lg_parent)
                       || ',"node_name":' || cuo_jcs(g.r ->> 'node') || ',"ordinal":' || g.ordinal
                       || ',"parent_checkpoint_id":' || coalesce('"' || g.parent || '"', 'null')
                       || ',"phase":' || g.phase || ',"run_id":"' || run || '","seq":' || (seq + g.n)
                       || ',"state_sha256":"' || encode(g.sha, 'hex') || '","step":' || coalesce(g.step::text, 'null')
                       || ',"tenant_id":"' || p_tenant || '","thread_id":' || cuo_jcs(p_thread) || ',"trace_id":"' || p_trace || '"}', 'UTF8'))
            FROM given g
            RETURNING checkpoint_id, kind, node_name, cuo_langgraph_checkpoints.seq AS n, row_sha256, state_sha256
        )
        SELECT array_agg(s.checkpoint_id ORDER BY s.n),
               v_bodies || array_agg('{"checkpoint_id":"' || s.checkpoint_id || '","kind":"' || s.kind
                   || '","node_name":' || cuo_jcs(s.node_name) || ',"row_sha256":"' || encode(s.row_sha256, 'hex')
                   || '","run_id":"' || run || '","seq":' || s.n || ',"state_sha256":"' || encode(s.state_sha256, 'hex') || '"}' ORDER BY s.n),
               min(s.kind) FILTER (WHERE s.kind IN ('run_completed', 'run_failed')),
               (SELECT array_agg(g.parent) FROM given g
                WHERE g.parent IS NOT NULL AND g.parent <> ALL (v_run.last_rows) AND g.parent NOT IN (SELECT p.id FROM given p WHERE p.n < g.n))
            INTO v_ids, v_bodies, v_end, v_missing
            FROM stored s;
        v_kinds := v_kinds || array_fill('cuo.checkpoint_written'::text, ARRAY[v_rows]);
        seq := seq + v_rows;
        -- Nearly every parent is in this batch or the one before; anything else is looked up by month range.
        IF v_missing IS NOT NULL THEN
            FOREACH v_id IN ARRAY v_missing LOOP
                PERFORM cuo_require_parent(p_tenant, v_id, p_thread, v_ids);
            END LOOP;
        END IF;
        IF v_end IS NOT NULL THEN
            v_kinds := v_kinds || 'close'::text;
            v_bodies := v_bodies || ('{"log_rows":' || (v_run.log_rows + v_rows) || ',"outcome":"' || v_end || '"}');
        END IF;
    END IF;
    IF p_run_state = 'direct' AND (v_opened OR (v_rows > 0 AND v_run.lease_owner = 'update' AND v_run.state = 'open')) AND v_end IS NULL THEN
        v_end := 'direct';
        v_kinds := v_kinds || 'close'::text;
        v_bodies := v_bodies || ('{"log_rows":' || (v_run.log_rows + v_rows) || ',"outcome":"direct"}');
    END IF;

    SELECT * INTO v_link FROM cuo_chain_write(p_tenant, run, v_run.trace_id, v_run.chain_seq, v_run.chain_head, v_kinds, v_bodies);
    UPDATE cuo_runs r SET
        chain_seq = v_link.seq, chain_head = v_link.head, newest_at = greatest(r.newest_at, now()),
        log_rows = r.log_rows + v_rows, last_rows = coalesce(v_ids, r.last_rows), lease_until = now() + interval '15 minutes',
        -- A run that failed is open again once it is carried on under its own id.
        state = CASE WHEN v_end IS NOT NULL THEN 'closed' WHEN r.state = 'closed' AND NOT (p_run_state = 'open' AND r.outcome = 'run_failed') THEN 'closed'
                     WHEN p_run_state IN ('direct', 'update') THEN r.state ELSE coalesce(p_run_state, r.state) END,
        -- Whose next checkpoint closes the run; whatever else carries it on keeps it.
        lease_owner = CASE WHEN v_end IS NOT NULL THEN NULL WHEN p_run_state = 'update' AND v_opened THEN 'update'
                           WHEN p_run_state IN ('direct', 'update') THEN r.lease_owner END,
        outcome = coalesce(v_end, r.outcome)
        WHERE r.tenant_id = p_tenant AND r.run_id = run;
    UPDATE cuo_threads t SET
        head_seq = CASE WHEN t.checkpoint_ns = '' THEN seq ELSE t.head_seq END,
        newest_seq = CASE WHEN here AND v_carrier IS NOT NULL THEN seq - v_rows + 1 ELSE t.newest_seq END,
        newest_id = CASE WHEN here AND v_carrier IS NOT NULL THEN p_lg_id ELSE t.newest_id END,
        newest_at = CASE WHEN here AND v_carrier IS NOT NULL THEN now() ELSE t.newest_at END,
        greatest_id = CASE WHEN here AND v_carrier IS NOT NULL THEN greatest(t.greatest_id COLLATE "C", p_lg_id COLLATE "C") ELSE t.greatest_id END,
        greatest_write_id = CASE WHEN here THEN greatest(t.greatest_write_id COLLATE "C", v_greatest COLLATE "C") ELSE t.greatest_write_id END,
        last_write_at = CASE WHEN here AND v_written > 0 THEN greatest(t.last_write_at, now()) ELSE t.last_write_at END,
        first_at = least(t.first_at, now())
        FROM (SELECT p_ns AS ns, true AS here UNION ALL SELECT '', false WHERE p_ns <> '') AS touched(ns, here)
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = touched.ns;
END
$fn$;
