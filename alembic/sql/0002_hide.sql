-- Hides rows from the LangGraph view; the log keeps them. One appended fact, one chain row.
CREATE OR REPLACE FUNCTION cuo_tombstone(p_tenant uuid, p_kind text, p_thread text, p_hidden_run uuid, p_run uuid, p_trace text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_thread text;
    v_head bigint;
    v_id uuid;
    v_sha bytea;
    v_done integer := 0;
    v_ns record;
    v_new record;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    FOR v_thread IN
        SELECT t.thread_id FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.checkpoint_ns = ''
          AND t.thread_id = coalesce(p_thread, (SELECT r.thread_id FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = p_hidden_run))
    LOOP
        SELECT t.head_seq INTO v_head FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.checkpoint_ns = '' FOR UPDATE;
        -- A call whose answer was lost comes again with the run it was given: it has been done.
        CONTINUE WHEN EXISTS (SELECT FROM cuo_thread_tombstones d
                              WHERE d.tenant_id = p_tenant AND d.thread_id = v_thread AND d.run_id = p_run);
        PERFORM cuo_open_run(p_tenant, p_run, v_thread, p_trace);
        v_id := gen_random_uuid();
        INSERT INTO cuo_thread_tombstones (tenant_id, tombstone_id, thread_id, kind, hidden_run_id, up_to_seq, run_id)
            VALUES (p_tenant, v_id, v_thread, p_kind, p_hidden_run, v_head, p_run) RETURNING row_sha256 INTO v_sha;
        PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['tombstone'], ARRAY['{"kind":"' || p_kind || '","row_sha256":"'
            || encode(v_sha, 'hex') || '","thread_id":' || cuo_jcs(v_thread) || ',"tombstone_id":"' || v_id || '"}']);
        UPDATE cuo_runs r SET state = 'closed', outcome = 'tombstone' WHERE r.tenant_id = p_tenant AND r.run_id = p_run AND r.log_rows = 0;
        IF p_kind = 'delete_thread' THEN
            UPDATE cuo_threads t SET deleted = true, hidden_seq = v_head, newest_seq = 0, newest_id = NULL, newest_at = NULL
                WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread;
            UPDATE cuo_runs r SET hidden = true WHERE r.tenant_id = p_tenant AND r.thread_id = v_thread AND r.run_id <> p_run;
        ELSIF p_kind = 'reopen' THEN
            UPDATE cuo_threads t SET deleted = false WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread;
        ELSIF p_kind = 'prune' THEN
            UPDATE cuo_threads t SET hidden_seq = greatest(t.hidden_seq, t.newest_seq - 1)
                WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.newest_seq > 0;
        ELSIF p_kind = 'delete_run' THEN
            UPDATE cuo_runs r SET hidden = true WHERE r.tenant_id = p_tenant AND r.run_id = p_hidden_run;
            FOR v_ns IN SELECT t.checkpoint_ns, t.first_at, t.newest_at, t.hidden_seq FROM cuo_threads t
                        WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.newest_id IS NOT NULL LOOP
                EXECUTE 'SELECT c.seq, c.lg_checkpoint_id AS lg_id, c.created_at AS at FROM cuo_langgraph_checkpoints c
                         WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.langgraph ? ''channel_versions''
                           AND c.created_at >= $4 AND c.created_at <= $5 AND c.seq > $6
                           AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
                         ORDER BY c.seq DESC LIMIT 1'
                    INTO v_new USING p_tenant, v_thread, v_ns.checkpoint_ns, v_ns.first_at, v_ns.newest_at + interval '1 day', v_ns.hidden_seq;
                UPDATE cuo_threads t SET newest_seq = coalesce(v_new.seq, 0), newest_id = v_new.lg_id, newest_at = v_new.at
                    WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.checkpoint_ns = v_ns.checkpoint_ns;
            END LOOP;
        END IF;
        v_done := v_done + 1;
    END LOOP;
    RETURN v_done;
END
$fn$;
