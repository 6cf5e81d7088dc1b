-- What a month holds and what forbids dropping it. Reads the month itself, not estimates.
CREATE OR REPLACE FUNCTION cuo_month_facts(p_month date, p_months integer) RETURNS jsonb
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_start   timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end     timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_since   timestamptz := (now() AT TIME ZONE 'UTC' - make_interval(months => p_months)) AT TIME ZONE 'UTC';
    v_kept    timestamptz;
    v_table   record;
    v_thread  record;
    v_names   jsonb := '{}';
    v_rows    jsonb := '{}';
    v_blind   text[] := ARRAY[]::text[];
    v_why     jsonb[] := ARRAY[]::jsonb[];
    v_n       bigint;
    v_at      timestamptz;
    v_newest  timestamptz;
    v_bytes   bigint := 0;
    v_runs    bigint := 0;
    v_tenants bigint := 0;
    v_some    text[];
BEGIN
    FOR v_table IN SELECT m.parent, m.name FROM cuo_months() AS m WHERE m.month = p_month ORDER BY m.parent LOOP
        EXECUTE format('SELECT count(*), max(created_at) FROM %I', v_table.name) INTO v_n, v_at;
        v_names := v_names || jsonb_build_object(v_table.parent, v_table.name);
        v_rows := v_rows || jsonb_build_object(v_table.parent, v_n);
        v_newest := greatest(v_newest, v_at);
        v_bytes := v_bytes + pg_total_relation_size(quote_ident(v_table.name)::regclass);
        -- Forced row security shows an owner without its policy an empty month, and an empty month may go.
        IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = quote_ident(v_table.name)::regclass AND p.polname = 'cuo_owner_reads'
                       AND (SELECT relowner FROM pg_class WHERE oid = p.polrelid) = ANY (p.polroles))
           OR (v_n = 0 AND pg_relation_size(quote_ident(v_table.name)::regclass) > 0) THEN
            v_blind := v_blind || v_table.name;
        END IF;
    END LOOP;
    IF (SELECT count(*) FROM jsonb_object_keys(v_names)) < 3 THEN
        RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'rows', v_rows, 'bytes', v_bytes, 'runs', 0, 'tenants', 0, 'newest_row', v_newest,
            'refusals', jsonb_build_array(jsonb_build_object('code', 'incomplete',
                'detail', 'one of its three tables is missing: somebody removed it, or it was never made')));
    END IF;
    IF cardinality(v_blind) > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'blind', 'detail', 'rows may be hidden from the owner in ' || array_to_string(v_blind, ', '));
    END IF;
    EXECUTE format('SELECT count(DISTINCT (tenant_id, run_id)), count(DISTINCT tenant_id), count(*) FILTER (WHERE kind = ''cuo.checkpoint_written'') FROM %I',
                   v_names ->> 'cuo_memory_audit') INTO v_runs, v_tenants, v_n;
    IF v_n <> (v_rows ->> 'cuo_langgraph_checkpoints')::bigint THEN
        v_why := v_why || jsonb_build_object('code', 'uneven', 'detail', format('%s log rows, but chains speak of %s: verify before anything goes',
            v_rows ->> 'cuo_langgraph_checkpoints', v_n));
    END IF;

    -- The floor. An empty month counts from its end.
    v_kept := (coalesce(v_newest, v_end) AT TIME ZONE 'UTC' + make_interval(months => p_months)) AT TIME ZONE 'UTC';
    IF now() <= v_kept OR clock_timestamp() <= v_kept THEN
        v_why := v_why || jsonb_build_object('code', 'young', 'detail', 'kept until ' || to_char(v_kept, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    END IF;
    -- Months are only ever made for the current one and three ahead, so a year of them without a hole
    -- is a clock that was right for a year. A clock that jumped has a hole behind it.
    SELECT count(*) INTO v_n FROM generate_series(0, 12) AS g(n)
        WHERE NOT EXISTS (SELECT FROM cuo_months() AS m WHERE m.parent = 'cuo_memory_audit'
                          AND m.month = (date_trunc('month', now() AT TIME ZONE 'UTC') - make_interval(months => g.n))::date);
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'clock', 'detail', format(
            '%s of the current and the last twelve months are not there: the clock may have jumped', v_n));
    END IF;

    EXECUTE format('SELECT count(*), (array_agg(h.hold_id::text ORDER BY h.created_at))[1 : 3] FROM cuo_holds h WHERE h.kind = ''set''
        AND NOT EXISTS (SELECT FROM cuo_holds r WHERE r.tenant_id = h.tenant_id AND r.releases = h.hold_id)
        AND EXISTS (SELECT FROM %I a WHERE a.tenant_id = h.tenant_id AND (h.held_run_id IS NULL OR a.run_id = h.held_run_id))',
        v_names ->> 'cuo_memory_audit') INTO v_n, v_some;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'hold', 'detail', format('%s legal holds: %s', v_n, array_to_string(v_some, ', ')));
    END IF;

    -- An unfinished run needs its claims (an answer counts once, a skill runs once) and its rows.
    -- One that nobody touched since the floor is over; a waiting one never is.
    EXECUTE format('SELECT count(*), (array_agg(r.run_id::text ORDER BY r.first_at))[1 : 3] FROM cuo_runs r
        WHERE NOT r.hidden AND r.first_at < $2
          AND (r.state = ''waiting'' OR ((r.state = ''open'' OR r.outcome = ''run_failed'') AND greatest(r.newest_at, r.lease_until) >= $1))
          AND EXISTS (SELECT FROM %I a WHERE a.tenant_id = r.tenant_id AND a.run_id = r.run_id)',
        v_names ->> 'cuo_memory_audit') INTO v_n, v_some USING v_since, v_end;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'run', 'detail', format('%s unfinished runs: %s', v_n, array_to_string(v_some, ', ')));
    END IF;

    -- A thread in use needs its newest checkpoint. A namespace of one task (its last part has a
    -- colon) is done with once the thread itself has moved on.
    SELECT count(*), (array_agg(q.thread_id ORDER BY q.thread_id))[1 : 3] INTO v_n, v_some FROM (
        SELECT DISTINCT t.tenant_id, t.thread_id FROM cuo_threads t
        WHERE NOT t.deleted AND t.newest_at >= v_start AND t.newest_at < v_end
          AND regexp_replace(t.checkpoint_ns, '^.*[|]', '') !~ ':'
          AND (EXISTS (SELECT FROM cuo_threads o WHERE o.tenant_id = t.tenant_id AND o.thread_id = t.thread_id
                       AND greatest(o.newest_at, o.last_write_at) >= v_since)
               OR EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = t.tenant_id AND r.thread_id = t.thread_id
                          AND NOT r.hidden AND r.newest_at >= v_since))) AS q;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'thread', 'detail', format('the newest checkpoint of %s threads in use: %s', v_n, array_to_string(v_some, ', ')));
    END IF;
    v_some := ARRAY[]::text[];
    FOR v_thread IN SELECT t.tenant_id, t.thread_id, t.checkpoint_ns, t.newest_seq, t.newest_at FROM cuo_threads t
                    WHERE NOT t.deleted AND t.first_at < v_end AND t.newest_at >= greatest(v_end, v_since)
                      AND regexp_replace(t.checkpoint_ns, '^.*[|]', '') !~ ':' LOOP
        IF cuo_delta_reaches(v_thread.tenant_id, v_thread.thread_id, v_thread.checkpoint_ns, v_thread.newest_seq, v_thread.newest_at, v_start, v_end) THEN
            v_some := v_some || v_thread.thread_id;
        END IF;
    END LOOP;
    IF cardinality(v_some) > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'delta', 'detail', format('delta channels of %s threads reach back into it: %s',
            cardinality(v_some), array_to_string(v_some[1 : 3], ', ')));
    END IF;

    IF to_regclass('cuo_seal_heads') IS NOT NULL THEN
        EXECUTE 'SELECT EXISTS (SELECT FROM cuo_seal_heads)::integer' INTO v_n;
        IF v_n > 0 THEN
            EXECUTE format('SELECT count(*), (array_agg(a.run_id::text))[1 : 3] FROM (
                    SELECT tenant_id, run_id, max(chain_seq) AS top FROM %I GROUP BY 1, 2) AS a
                WHERE NOT EXISTS (SELECT FROM cuo_seal_leaves l WHERE l.tenant_id = a.tenant_id AND l.run_id = a.run_id AND l.chain_seq >= a.top)',
                v_names ->> 'cuo_memory_audit') INTO v_n, v_some;
            IF v_n > 0 THEN
                v_why := v_why || jsonb_build_object('code', 'unsealed', 'detail', format('the chains of %s runs are not sealed: %s', v_n, array_to_string(v_some, ', ')));
            END IF;
        END IF;
    END IF;
    RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'rows', v_rows, 'bytes', v_bytes, 'runs', v_runs, 'tenants', v_tenants,
                              'newest_row', v_newest, 'refusals', to_jsonb(v_why));
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_require_floor(p_months integer) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF p_months IS NULL OR p_months < 84 OR p_months > 12000 THEN
        RAISE EXCEPTION 'months are kept for 84 months after their newest row at least' USING ERRCODE = 'CU010';
    END IF;
    -- An old snapshot would show neither a new hold nor a thread that woke up.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention reads committed rows as they are now: use READ COMMITTED' USING ERRCODE = 'CU010';
    END IF;
END
$fn$;

-- Every month that could be due, with what forbids dropping it.
CREATE OR REPLACE FUNCTION cuo_retention_report(p_months integer DEFAULT 84) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_month date;
BEGIN
    PERFORM cuo_require_floor(p_months);
    FOR v_month IN SELECT DISTINCT m.month FROM cuo_months() AS m
                   WHERE m.month + make_interval(months => p_months) < now() AT TIME ZONE 'UTC' ORDER BY 1 LOOP
        RETURN NEXT cuo_month_facts(v_month, p_months);
    END LOOP;
END
$fn$;
