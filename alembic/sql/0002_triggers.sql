-- Numbers a hand-made row and digests every row: row_sha256 is the SHA-256 of the RFC 8785 text of
-- all columns, the two documents standing in it by their own digests.
CREATE OR REPLACE FUNCTION cuo_log_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF NEW.seq IS NULL THEN
        NEW.created_at := now();
        INSERT INTO cuo_threads (tenant_id, thread_id) VALUES (NEW.tenant_id, NEW.thread_id) ON CONFLICT DO NOTHING;
        UPDATE cuo_threads t SET head_seq = t.head_seq + 1
            WHERE t.tenant_id = NEW.tenant_id AND t.thread_id = NEW.thread_id AND t.checkpoint_ns = ''
            RETURNING t.head_seq INTO NEW.seq;
    END IF;
    NEW.row_sha256 := sha256(convert_to(
        '{"checkpoint_id":"' || NEW.checkpoint_id || '","checkpoint_ns":' || cuo_jcs(NEW.checkpoint_ns)
        || ',"created_at":' || cuo_jcs_time(NEW.created_at)
        || ',"edge_from":' || cuo_jcs(NEW.edge_from) || ',"edge_to":' || cuo_jcs(NEW.edge_to)
        || ',"kind":"' || NEW.kind
        || '","langgraph_sha256":' || coalesce('"' || encode(NEW.langgraph_sha256, 'hex') || '"', 'null')
        || ',"lg_checkpoint_id":' || cuo_jcs(NEW.lg_checkpoint_id) || ',"lg_parent_id":' || cuo_jcs(NEW.lg_parent_id)
        || ',"node_name":' || cuo_jcs(NEW.node_name) || ',"ordinal":' || NEW.ordinal
        || ',"parent_checkpoint_id":' || coalesce('"' || NEW.parent_checkpoint_id || '"', 'null')
        || ',"phase":' || NEW.phase || ',"run_id":"' || NEW.run_id || '","seq":' || NEW.seq
        || ',"state_sha256":"' || encode(NEW.state_sha256, 'hex') || '","step":' || coalesce(NEW.step::text, 'null')
        || ',"tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"trace_id":"' || NEW.trace_id || '"}', 'UTF8'));
    RETURN NEW;
END
$fn$;

-- After every insert: parents exist and are older, each row is chained, the index tables follow.
CREATE OR REPLACE FUNCTION cuo_log_after() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_run     record;
    v_kinds   text[];
    v_bodies  text[];
    v_ids     uuid[];
    v_known   uuid[];
    v_missing uuid;
    v_end     text;
    v_rows    bigint;
    v_first   timestamptz;
BEGIN
    FOR v_run IN
        SELECT n.tenant_id, n.run_id, min(n.thread_id) AS thread_id, min(n.trace_id::text) AS trace_id, count(*) AS n_rows
        FROM new_rows n GROUP BY n.tenant_id, n.run_id ORDER BY min(n.seq)
    LOOP
        PERFORM cuo_open_run(v_run.tenant_id, v_run.run_id, v_run.thread_id, v_run.trace_id);
        SELECT r.last_rows, r.first_at, r.log_rows INTO v_known, v_first, v_rows
            FROM cuo_runs r WHERE r.tenant_id = v_run.tenant_id AND r.run_id = v_run.run_id FOR UPDATE;
        -- Nearly every parent is in this batch or the one before; anything else is looked up by month range.
        FOR v_missing IN
            SELECT n.parent_checkpoint_id FROM new_rows n
            WHERE n.tenant_id = v_run.tenant_id AND n.run_id = v_run.run_id
              AND n.parent_checkpoint_id IS NOT NULL AND NOT n.parent_checkpoint_id = ANY (v_known)
              AND NOT EXISTS (SELECT FROM new_rows p WHERE p.tenant_id = n.tenant_id
                              AND p.checkpoint_id = n.parent_checkpoint_id AND p.seq < n.seq AND p.thread_id = n.thread_id)
        LOOP
            PERFORM cuo_require_parent(v_run.tenant_id, v_missing, v_run.thread_id, (SELECT array_agg(n.checkpoint_id) FROM new_rows n));
        END LOOP;
        SELECT array_agg('cuo.checkpoint_written'::text ORDER BY n.seq),
               array_agg('{"checkpoint_id":"' || n.checkpoint_id || '","kind":"' || n.kind
                   || '","node_name":' || cuo_jcs(n.node_name) || ',"row_sha256":"' || encode(n.row_sha256, 'hex')
                   || '","run_id":"' || n.run_id || '","seq":' || n.seq
                   || ',"state_sha256":"' || encode(n.state_sha256, 'hex') || '"}' ORDER BY n.seq),
               array_agg(n.checkpoint_id ORDER BY n.seq),
               min(n.kind) FILTER (WHERE n.kind IN ('run_completed', 'run_failed'))
            INTO v_kinds, v_bodies, v_ids, v_end
            FROM new_rows n WHERE n.tenant_id = v_run.tenant_id AND n.run_id = v_run.run_id;
        IF v_end IS NOT NULL THEN
            v_kinds := v_kinds || 'close'::text;
            v_bodies := v_bodies || ('{"log_rows":' || (v_rows + v_run.n_rows) || ',"outcome":"' || v_end || '"}');
        END IF;
        PERFORM cuo_chain_append(v_run.tenant_id, v_run.run_id, v_kinds, v_bodies);
        UPDATE cuo_runs r SET
            log_rows = r.log_rows + v_run.n_rows, last_rows = v_ids, lease_until = now() + interval '15 minutes',
            state = CASE WHEN v_end IS NOT NULL THEN 'closed' ELSE r.state END,
            outcome = coalesce(v_end, r.outcome)
            WHERE r.tenant_id = v_run.tenant_id AND r.run_id = v_run.run_id;
    END LOOP;
    INSERT INTO cuo_threads AS t (tenant_id, thread_id, checkpoint_ns, head_seq, newest_seq, newest_id, newest_at, greatest_id, first_at)
        SELECT n.tenant_id, n.thread_id, n.checkpoint_ns, CASE WHEN n.checkpoint_ns = '' THEN max(n.seq) ELSE 0 END,
               coalesce(max(n.seq) FILTER (WHERE n.langgraph ? 'channel_versions'), 0),
               (array_agg(n.lg_checkpoint_id ORDER BY n.seq DESC) FILTER (WHERE n.langgraph ? 'channel_versions'))[1],
               max(n.created_at) FILTER (WHERE n.langgraph ? 'channel_versions'),
               max(n.lg_checkpoint_id COLLATE "C") FILTER (WHERE n.langgraph ? 'channel_versions'),
               min(n.created_at)
        FROM new_rows n GROUP BY n.tenant_id, n.thread_id, n.checkpoint_ns
    ON CONFLICT (tenant_id, thread_id, checkpoint_ns) DO UPDATE SET
        head_seq = greatest(t.head_seq, excluded.head_seq),
        newest_seq = greatest(t.newest_seq, excluded.newest_seq),
        newest_id = CASE WHEN excluded.newest_seq > t.newest_seq THEN excluded.newest_id ELSE t.newest_id END,
        newest_at = CASE WHEN excluded.newest_seq > t.newest_seq THEN excluded.newest_at ELSE t.newest_at END,
        greatest_id = greatest(t.greatest_id COLLATE "C", excluded.greatest_id COLLATE "C"),
        first_at = least(t.first_at, excluded.first_at);
    UPDATE cuo_threads t SET head_seq = n.top
        FROM (SELECT tenant_id, thread_id, max(seq) AS top FROM new_rows WHERE checkpoint_ns <> '' GROUP BY 1, 2) AS n
        WHERE t.tenant_id = n.tenant_id AND t.thread_id = n.thread_id AND t.checkpoint_ns = '' AND t.head_seq < n.top;
    RETURN NULL;
END
$fn$;

-- Rows of the statement under way (p_batch) are in the table already but are not older than one another.
CREATE OR REPLACE FUNCTION cuo_require_parent(p_tenant uuid, p_parent uuid, p_thread text, p_batch uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_found boolean;
    v_first timestamptz;
BEGIN
    SELECT min(first_at) INTO v_first FROM cuo_threads WHERE tenant_id = p_tenant AND thread_id = p_thread;
    -- EXECUTE plans with the bounds in hand, so only the thread's own months are touched.
    EXECUTE 'SELECT true FROM cuo_langgraph_checkpoints
             WHERE tenant_id = $1 AND checkpoint_id = $2 AND created_at >= $3 AND created_at <= $4 LIMIT 1'
        INTO v_found USING p_tenant, p_parent, coalesce(v_first, now()), now() + interval '1 day';
    IF v_found IS NULL OR p_parent = ANY (p_batch) THEN
        RAISE EXCEPTION 'parent row % is not in this tenant, or not older than its child', p_parent USING ERRCODE = 'CU004';
    END IF;
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_write_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF NEW.seq IS NULL THEN
        RAISE EXCEPTION 'pending writes are appended through the store' USING ERRCODE = 'CU009';
    END IF;
    NEW.row_sha256 := sha256(convert_to(
        '{"channel":' || cuo_jcs(NEW.channel) || ',"checkpoint_ns":' || cuo_jcs(NEW.checkpoint_ns)
        || ',"created_at":' || cuo_jcs_time(NEW.created_at) || ',"idx":' || NEW.idx
        || ',"lg_checkpoint_id":' || cuo_jcs(NEW.lg_checkpoint_id) || ',"run_id":"' || NEW.run_id
        || '","seq":' || NEW.seq || ',"task_id":' || cuo_jcs(NEW.task_id) || ',"task_path":' || cuo_jcs(NEW.task_path)
        || ',"tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"value_sha256":"' || encode(NEW.value_sha256, 'hex') || '"}', 'UTF8'));
    RETURN NEW;
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_tombstone_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    NEW.row_sha256 := sha256(convert_to(
        '{"created_at":' || cuo_jcs_time(NEW.created_at)
        || ',"hidden_run_id":' || coalesce('"' || NEW.hidden_run_id || '"', 'null') || ',"kind":"' || NEW.kind
        || '","run_id":"' || NEW.run_id || '","tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"tombstone_id":"' || NEW.tombstone_id || '","up_to_seq":' || NEW.up_to_seq || '}', 'UTF8'));
    RETURN NEW;
END
$fn$;

CREATE OR REPLACE TRIGGER cuo_log_before BEFORE INSERT ON cuo_langgraph_checkpoints
    FOR EACH ROW WHEN (NEW.row_sha256 IS NULL OR session_user = current_user) EXECUTE FUNCTION cuo_log_before();
CREATE OR REPLACE TRIGGER cuo_write_before BEFORE INSERT ON cuo_langgraph_writes
    FOR EACH ROW WHEN (NEW.row_sha256 IS NULL OR session_user = current_user) EXECUTE FUNCTION cuo_write_before();
CREATE OR REPLACE TRIGGER cuo_tombstone_before BEFORE INSERT ON cuo_thread_tombstones
    FOR EACH ROW EXECUTE FUNCTION cuo_tombstone_before();
DROP TRIGGER IF EXISTS cuo_log_after ON cuo_langgraph_checkpoints;
CREATE TRIGGER cuo_log_after AFTER INSERT ON cuo_langgraph_checkpoints
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (session_user = current_user OR current_user <> cuo_owner()) EXECUTE FUNCTION cuo_log_after();
