-- The months there are, read from the bounds and never from the names.
CREATE OR REPLACE FUNCTION cuo_months() RETURNS TABLE (parent text, name text, month date)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
    SELECT p.relname::text, c.relname::text, b.month
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) AS e
    CROSS JOIN LATERAL (SELECT substring(e.bounds FROM '[0-9]{4}-[0-9]{2}-01')::date AS month) AS b
    WHERE p.oid IN ('cuo_langgraph_checkpoints'::regclass, 'cuo_langgraph_writes'::regclass, 'cuo_memory_audit'::regclass)
      AND e.bounds = format('FOR VALUES FROM (%L) TO (%L)', to_char(b.month, 'YYYY-MM-DD') || ' 00:00:00+00',
                            to_char(b.month + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00')
$fn$;

-- The root of a set of rows: SHA-256 over the roots of its buckets, a bucket being the row digests
-- that begin with the same byte, sorted and joined. (One string of all would meet the 1 GB limit.)
CREATE OR REPLACE FUNCTION cuo_month_root(p_table regclass, p_tenant uuid, p_from timestamptz, p_to timestamptz,
                                          OUT n bigint, OUT root bytea)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    EXECUTE format('SELECT coalesce(sum(b.n), 0), sha256(coalesce(string_agg(b.root, ''''::bytea ORDER BY b.byte), ''''::bytea)) FROM (
        SELECT get_byte(row_sha256, 0) AS byte, count(*) AS n, sha256(string_agg(row_sha256, ''''::bytea ORDER BY row_sha256)) AS root
        FROM %s WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 GROUP BY 1) AS b', p_table)
        INTO n, root USING p_tenant, p_from, p_to;
END
$fn$;

-- Appends one row to the chain of the tenant's reserved run.
CREATE OR REPLACE FUNCTION cuo_retention_says(p_tenant uuid, p_kind text, p_body text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    IF cuo_open_run(p_tenant, '<retention>', '$retention', repeat('0', 32)) THEN
        -- Closed, so that no thread takes it for a run to carry on.
        UPDATE cuo_runs SET state = 'closed', outcome = 'retention', lease_until = NULL
            WHERE tenant_id = p_tenant AND run_id = '<retention>';
    END IF;
    PERFORM cuo_chain_append(p_tenant, '<retention>', ARRAY[p_kind], ARRAY[p_body]);
END
$fn$;

-- Whether a checkpoint's delta channels are rebuilt from rows of the span. Its metadata counts the
-- supersteps since each channel's snapshot; that many ancestors are needed.
CREATE OR REPLACE FUNCTION cuo_delta_reaches(p_tenant uuid, p_thread text, p_ns text, p_seq bigint, p_at timestamptz,
                                             p_from timestamptz, p_to timestamptz) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_at     timestamptz := p_at;
    v_first  timestamptz;
    v_seq    bigint := p_seq;
    v_parent text;
    v_left   numeric;
BEGIN
    EXECUTE 'SELECT c.lg_parent_id, (SELECT max(v::numeric) FROM jsonb_path_query(c.langgraph #> ''{metadata,counters_since_delta_snapshot}'',
                                     ''strict $.** ? (@.type() == "number")'') AS v)
             FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3
               AND c.seq = $4 AND c.created_at = $5'
        INTO v_parent, v_left USING p_tenant, p_thread, p_ns, p_seq, p_at;
    SELECT t.first_at INTO v_first FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
    -- One more than counted: the ancestor that holds the snapshot.
    WHILE v_parent IS NOT NULL AND v_left >= 0 LOOP
        EXECUTE 'SELECT c.lg_parent_id, c.seq, c.created_at FROM cuo_langgraph_checkpoints c
                 WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                   AND c.langgraph ? ''channel_versions'' AND c.created_at >= $5 AND c.created_at <= $6 AND c.seq < $7
                 ORDER BY c.seq DESC LIMIT 1'
            INTO v_parent, v_seq, v_at
            USING p_tenant, p_thread, p_ns, v_parent, v_first, v_at + interval '1 day', v_seq;
        IF v_at >= p_from AND v_at < p_to THEN
            RETURN true;
        END IF;
        EXIT WHEN v_at IS NULL OR v_at < p_from;
        v_left := v_left - 1;
    END LOOP;
    RETURN false;
END
$fn$;
