-- What the application's role inserts by hand is held to what verification asks of it, as far as SQL can
-- tell; a refusal says what is wrong, where verification could only say so for ever after.

-- Whether a digest is that of a document, by its form after RFC 8785. True as well where this form cannot
-- be had here (see cuo_canonical): verification has the last word.
CREATE OR REPLACE FUNCTION cuo_digest_fits(p_value jsonb, p_digest bytea) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_text text := cuo_canonical(p_value);
BEGIN
    IF p_value IS NULL OR p_digest IS NULL THEN
        RETURN p_value IS NULL AND p_digest IS NULL;
    ELSIF v_text IS NULL OR sha256(convert_to(v_text, 'UTF8')) = p_digest THEN
        RETURN true;
    END IF;
    -- A part without a form stands there as a bare question mark, which is no JSON.
    PERFORM v_text::jsonb;
    RETURN false;
EXCEPTION WHEN invalid_text_representation THEN
    -- Whole numbers as large have no form at all.
    RETURN NOT EXISTS (SELECT FROM jsonb_path_query(p_value, 'strict $.** ? (@.type() == "number")') AS v
                       WHERE abs(v::numeric) >= 9007199254740992 AND scale(v::numeric) = 0);
END
$fn$;

-- After an insert by hand: what would never verify is refused, parents exist and are older, each row is
-- chained, the index tables follow. The owner may forge rows all the same, and is found out.
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
    v_wrong   uuid;
    v_count   bigint;
BEGIN
    IF session_user <> current_user THEN
        SELECT n.checkpoint_id INTO v_wrong FROM new_rows n
            WHERE NOT cuo_digest_fits(n.state_json, n.state_sha256) OR NOT cuo_digest_fits(n.langgraph, n.langgraph_sha256) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'a document of row % is not the one that its digest is of', v_wrong
                USING ERRCODE = 'CU009', HINT = 'The digest is the SHA-256 of the document in the form of RFC 8785.';
        END IF;
        SELECT n.checkpoint_id INTO v_wrong FROM new_rows n
            WHERE n.state_json ->> '$state_of' ~ '^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$' LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'that row % shares another''s state is said by the store alone', v_wrong USING ERRCODE = 'CU009';
        END IF;
    END IF;
    FOR v_run IN
        SELECT n.tenant_id, n.run_id, min(n.thread_id) AS thread_id, max(n.thread_id) AS other, min(n.trace_id::text) AS trace_id, count(*) AS n_rows
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
        IF v_run.other <> v_run.thread_id THEN
            RAISE EXCEPTION 'run % belongs to another thread', v_run.run_id USING ERRCODE = 'CU006';
        END IF;
        SELECT array_agg('cuo.checkpoint_written'::text ORDER BY n.seq),
               array_agg('{"checkpoint_id":"' || n.checkpoint_id || '","kind":"' || n.kind
                   || '","node_name":' || cuo_jcs(n.node_name) || ',"row_sha256":"' || encode(n.row_sha256, 'hex')
                   || '","run_id":"' || n.run_id || '","seq":' || n.seq
                   || ',"state_sha256":"' || encode(n.state_sha256, 'hex') || '"}' ORDER BY n.seq),
               array_agg(n.checkpoint_id ORDER BY n.seq),
               min(n.kind) FILTER (WHERE n.kind IN ('run_completed', 'run_failed'))
            INTO v_kinds, v_bodies, v_ids, v_end
            FROM new_rows n WHERE n.tenant_id = v_run.tenant_id AND n.run_id = v_run.run_id;
        -- The key holds the time as well, so an id could stand twice; the chain would speak of it twice.
        EXECUTE 'SELECT count(*) FROM cuo_langgraph_checkpoints
                 WHERE tenant_id = $1 AND checkpoint_id = ANY ($2) AND created_at >= $3 AND created_at <= $4'
            INTO v_count USING v_run.tenant_id, v_ids, v_first - interval '1 hour', now() + interval '1 hour';
        IF v_count <> cardinality(v_ids) THEN
            RAISE EXCEPTION 'a row with this id is in the log already' USING ERRCODE = 'unique_violation';
        END IF;
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
