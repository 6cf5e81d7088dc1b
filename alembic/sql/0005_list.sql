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
    v_mark := date_trunc('month', v_to - interval '1 day', 'UTC');
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
