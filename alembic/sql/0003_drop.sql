-- Writes into one tenant's chain what goes with the month, and takes its index rows away.
-- A cut says, of a run that has rows in other months too, which of its chain rows are gone, the
-- digest the next one follows, and how many log rows went.
CREATE OR REPLACE FUNCTION cuo_drop_tenant_month(p_tenant uuid, p_month date, p_months integer, p_names jsonb, p_newest timestamptz,
                                                 OUT roots bytea, OUT dead bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_start  timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end    timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_audit  text := quote_ident(p_names ->> 'cuo_memory_audit');
    v_log    text := quote_ident(p_names ->> 'cuo_langgraph_checkpoints');
    v_writes text := quote_ident(p_names ->> 'cuo_langgraph_writes');
    v_dead   uuid[];
    v_alive  uuid[];
    v_heads  bigint[];
    v_cuts   text;
    v_tables text := '';
    v_parent text;
    v_root   record;
    v_n      bigint;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    roots := ''::bytea;
    FOREACH v_parent IN ARRAY ARRAY['cuo_holds', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes', 'cuo_memory_audit', 'cuo_thread_tombstones'] LOOP
        SELECT * INTO v_root FROM cuo_month_root(quote_ident(coalesce(p_names ->> v_parent, v_parent))::regclass, p_tenant, v_start, v_end);
        v_tables := v_tables || ',"' || v_parent || '":{"rows":' || v_root.n || ',"sha256":"' || encode(v_root.root, 'hex') || '"}';
        roots := roots || v_root.root;
    END LOOP;
    -- A run whose index row counts exactly the chain rows that stand here has none elsewhere.
    EXECUTE 'SELECT array_agg(a.run_id ORDER BY a.run_id) FILTER (WHERE NOT a.alive), array_agg(a.top ORDER BY a.run_id) FILTER (WHERE NOT a.alive),
                    array_agg(a.run_id) FILTER (WHERE a.alive)
        FROM (SELECT q.run_id, q.top,
                     CASE WHEN r.chain_seq = q.n AND q.top = q.n THEN false
                          ELSE EXISTS (SELECT FROM cuo_memory_audit o WHERE o.tenant_id = $1 AND o.run_id = q.run_id AND o.created_at < $2)
                            OR EXISTS (SELECT FROM cuo_memory_audit o WHERE o.tenant_id = $1 AND o.run_id = q.run_id AND o.created_at >= $3) END AS alive
              FROM (SELECT run_id, count(*) AS n, max(chain_seq) AS top FROM ' || v_audit || ' WHERE tenant_id = $1 GROUP BY run_id) AS q
              LEFT JOIN cuo_runs r ON r.tenant_id = $1 AND r.run_id = q.run_id) AS a'
        INTO v_dead, v_heads, v_alive USING p_tenant, v_start, v_end;
    -- Cuts told in this month itself are told again, for runs that are still there.
    EXECUTE 'SELECT string_agg(''{"first_at":'' || cuo_jcs_time(c.first_at) || '',"gaps":['' || c.gaps || ''],"run_id":"'' || c.run_id
                    || ''","thread_id":'' || cuo_jcs(c.thread_id) || ''}'', '','' ORDER BY c.run_id) FROM (
        WITH gap AS (
            SELECT g.run_id, min(g.chain_seq) AS low, max(g.chain_seq) AS high, (array_agg(g.row_sha256 ORDER BY g.chain_seq DESC))[1] AS head,
                   count(*) FILTER (WHERE g.kind = ''cuo.checkpoint_written'') AS log_rows
            FROM (SELECT run_id, chain_seq, row_sha256, kind, chain_seq - row_number() OVER (PARTITION BY run_id ORDER BY chain_seq) AS island
                  FROM ' || v_audit || ' WHERE tenant_id = $1 AND run_id = ANY ($2)) AS g
            GROUP BY g.run_id, g.island
            UNION
            SELECT (c ->> ''run_id'')::uuid, (g ->> ''from'')::bigint, (g ->> ''to'')::bigint, decode(g ->> ''head'', ''hex''), (g ->> ''log_rows'')::bigint
            FROM ' || v_audit || ' a, jsonb_array_elements(a.body::jsonb -> ''cuts'') AS c, jsonb_array_elements(c -> ''gaps'') AS g
            WHERE a.tenant_id = $1 AND a.run_id = ''<retention>'' AND a.kind = ''month_dropped'' AND NOT (c ->> ''run_id'')::uuid = ANY ($3)
        )
        SELECT p.run_id, r.first_at, r.thread_id,
               string_agg(''{"from":'' || p.low || '',"head":"'' || encode(p.head, ''hex'') || ''","log_rows":'' || p.log_rows || '',"to":'' || p.high || ''}'', '','' ORDER BY p.low) AS gaps
        FROM gap p JOIN cuo_runs r ON r.tenant_id = $1 AND r.run_id = p.run_id
        GROUP BY p.run_id, r.first_at, r.thread_id) AS c'
        INTO v_cuts USING p_tenant, coalesce(v_alive, ARRAY[]::uuid[]), coalesce(v_dead, ARRAY[]::uuid[]);

    dead := coalesce(cardinality(v_dead), 0);
    SELECT count(*) INTO v_n FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = ANY (v_dead);
    DELETE FROM cuo_runs r USING unnest(v_dead, v_heads) AS d(run_id, top)
        WHERE r.tenant_id = p_tenant AND r.run_id = d.run_id AND r.chain_seq = d.top;
    GET DIAGNOSTICS dead = ROW_COUNT;
    IF dead <> v_n THEN
        RAISE EXCEPTION 'runs of the month went on while it was being dropped, or their chains are cut short' USING ERRCODE = 'CU011';
    END IF;
    -- Threads without a row left anywhere go from the index; deleted ones stay, or their ids could be
    -- used again. head_seq keeps out a thread that somebody is writing to at this moment.
    EXECUTE 'WITH here AS (
            SELECT h.thread_id, max(h.seq) AS top FROM (
                SELECT thread_id, max(seq) AS seq FROM ' || v_log || ' WHERE tenant_id = $1 GROUP BY 1
                UNION ALL SELECT thread_id, max(seq) FROM ' || v_writes || ' WHERE tenant_id = $1 GROUP BY 1) AS h GROUP BY 1
        ), gone AS (
            DELETE FROM cuo_threads t USING here h
            WHERE t.tenant_id = $1 AND t.thread_id = h.thread_id AND t.checkpoint_ns = '''' AND NOT t.deleted AND t.head_seq <= h.top
              AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = $1 AND r.thread_id = t.thread_id AND NOT r.run_id = ANY ($4))
              AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = t.thread_id AND c.created_at < $2)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = t.thread_id AND c.created_at >= $3)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = $1 AND w.thread_id = t.thread_id AND w.created_at < $2)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = $1 AND w.thread_id = t.thread_id AND w.created_at >= $3)
            RETURNING t.thread_id
        )
        DELETE FROM cuo_threads t USING gone WHERE t.tenant_id = $1 AND t.thread_id = gone.thread_id AND t.checkpoint_ns <> '''''
        USING p_tenant, v_start, v_end, coalesce(v_dead, ARRAY[]::uuid[]);

    PERFORM cuo_retention_says(p_tenant, 'month_dropped', '{"cuts":[' || coalesce(v_cuts, '') || '],"month":"' || to_char(p_month, 'YYYY-MM')
        || '","newest_row":' || coalesce(cuo_jcs_time(p_newest), 'null') || ',"older_than_months":' || p_months || ',"tables":{' || substr(v_tables, 2) || '}}');
END
$fn$;

-- Drops one month of all three tables, or changes nothing. Returns what it found and did.
-- What is slow comes first, under locks that nobody minds. Then the parents are locked against
-- everybody for as long as DROP TABLE takes; whoever waits for them waits that long or for the
-- time-out, since a lock that is asked for stops those who come later.
CREATE OR REPLACE FUNCTION cuo_drop_month(p_month date, p_months integer DEFAULT 84, p_tries integer DEFAULT 30, p_wait_ms integer DEFAULT 100) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
SET lock_timeout TO '0'
AS $fn$
DECLARE
    v_start  timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end    timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_was    text := current_setting('auth.tenant_id', true);
    v_names  jsonb;
    v_drop   text;
    v_facts  jsonb;
    v_tenant uuid;
    v_done   record;
    v_roots  bytea := ''::bytea;
    v_locked timestamptz;
BEGIN
    PERFORM cuo_require_floor(p_months);
    IF p_month IS NULL OR extract(day FROM p_month) <> 1 OR NOT p_tries BETWEEN 1 AND 1000 OR NOT p_wait_ms BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a month is named by its first day; 1 to 1000 tries of 1 to 1000 ms each' USING ERRCODE = 'CU010';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/retention/' || current_schema(), 0));
    SELECT jsonb_object_agg(m.parent, m.name), string_agg(quote_ident(m.name), ', ' ORDER BY m.name) INTO v_names, v_drop
        FROM cuo_months() AS m WHERE m.month = p_month;
    IF v_names IS NULL THEN
        RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'status', 'absent', 'refusals', '[]'::jsonb);
    END IF;
    EXECUTE 'LOCK TABLE ' || v_drop || ' IN SHARE MODE';
    v_facts := cuo_month_facts(p_month, p_months);
    IF jsonb_array_length(v_facts -> 'refusals') > 0 THEN
        RETURN v_facts || '{"status":"refused"}';
    END IF;

    PERFORM cuo_ensure_partitions();
    FOR v_tenant IN EXECUTE format('SELECT tenant_id FROM %I UNION SELECT tenant_id FROM %I UNION SELECT tenant_id FROM %I
                                    UNION SELECT tenant_id FROM cuo_thread_tombstones WHERE created_at >= $1 AND created_at < $2 ORDER BY 1',
            v_names ->> 'cuo_memory_audit', v_names ->> 'cuo_langgraph_checkpoints', v_names ->> 'cuo_langgraph_writes') USING v_start, v_end LOOP
        SELECT * INTO v_done FROM cuo_drop_tenant_month(v_tenant, p_month, p_months, v_names, (v_facts ->> 'newest_row')::timestamptz);
        v_roots := v_roots || decode(replace(v_tenant::text, '-', ''), 'hex') || v_done.roots;
    END LOOP;
    PERFORM cuo_retention_says('<system>', 'month_dropped', '{"by":' || cuo_jcs(session_user::text) || ',"bytes":' || (v_facts ->> 'bytes')
        || ',"month":"' || to_char(p_month, 'YYYY-MM')
        || '","older_than_months":' || p_months || ',"root_sha256":"' || encode(sha256(v_roots), 'hex')
        || '","rows":' || (SELECT sum(v::bigint) FROM jsonb_each_text(v_facts -> 'rows') AS e(k, v))
        || ',"runs":' || (v_facts ->> 'runs') || ',"tenants":' || (v_facts ->> 'tenants') || ',"whole":true}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);

    FOR v_try IN 1 .. p_tries LOOP
        BEGIN
            PERFORM set_config('lock_timeout', p_wait_ms::text, true);
            -- Readers of the month itself hold nobody up, so they are waited for first.
            EXECUTE 'LOCK TABLE ' || v_drop || ' IN ACCESS EXCLUSIVE MODE';
            -- In the order in which an append takes them.
            LOCK TABLE ONLY cuo_langgraph_writes, ONLY cuo_langgraph_checkpoints, ONLY cuo_memory_audit IN ACCESS EXCLUSIVE MODE;
            v_locked := clock_timestamp();
            EXECUTE 'DROP TABLE ' || v_drop;
            RETURN v_facts || jsonb_build_object('status', 'dropped', 'tries', v_try,
                'locked_ms', round(extract(epoch FROM clock_timestamp() - v_locked) * 1000, 1));
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                IF v_try = p_tries THEN
                    RAISE;
                END IF;
        END;
        PERFORM pg_sleep(least(0.05 * v_try, 1.0) * (0.5 + random()));
    END LOOP;
END
$fn$;

-- Retention failed and changed nothing: says so under the system tenant.
CREATE OR REPLACE FUNCTION cuo_archive_failed(p_month date, p_step text, p_error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_was text := current_setting('auth.tenant_id', true);
BEGIN
    IF p_step !~ '^[a-z_-]{1,40}$' OR p_error !~ '^[A-Za-z0-9_]{1,80}$' THEN
        RAISE EXCEPTION 'a failure is told by the names of its step and its error' USING ERRCODE = 'CU010';
    END IF;
    PERFORM cuo_ensure_partitions();
    PERFORM cuo_retention_says('<system>', 'cuo.checkpoint_archive_failed', '{"by":' || cuo_jcs(session_user::text) || ',"error":' || cuo_jcs(p_error)
        || ',"month":' || coalesce('"' || to_char(p_month, 'YYYY-MM') || '"', 'null') || ',"step":' || cuo_jcs(p_step) || '}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
END
$fn$;
