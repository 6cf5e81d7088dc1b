-- Creates the months in use: the current one and the next three, for every partitioned table of
-- this schema. Any role may call it; it can create nothing else. A month is protected before it is
-- attached, so there is no instant at which it is readable without row security. Attaching takes a
-- weaker lock than CREATE TABLE ... PARTITION OF, so writers are not stopped. Whoever holds the lock for
-- long (any role may take it) must not stop every start of the program: the wait ends.
CREATE OR REPLACE FUNCTION cuo_ensure_partitions() RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '20s'
AS $fn$
DECLARE
    v_parent text;
    v_month  date;
    v_name   text;
    v_first  date := date_trunc('month', now() AT TIME ZONE 'UTC')::date;
BEGIN
    IF NOT EXISTS (
        SELECT FROM unnest(ARRAY['cuo_memory_audit', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes']) AS p(parent)
        CROSS JOIN generate_series(0, 3) AS m(n)
        WHERE to_regclass(quote_ident(current_schema()) || '.' || p.parent) IS NOT NULL
          AND NOT EXISTS (SELECT FROM pg_inherits i
                          WHERE i.inhrelid = to_regclass(quote_ident(current_schema()) || '.' || p.parent || to_char(v_first + make_interval(months => m.n), '_YYYY_MM')))
    ) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/months/' || current_schema(), 0));
    FOREACH v_parent IN ARRAY ARRAY['cuo_memory_audit', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes'] LOOP
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_parent) IS NULL;
        FOR n IN 0 .. 3 LOOP
            v_month := (v_first + make_interval(months => n))::date;
            v_name := v_parent || to_char(v_month, '_YYYY_MM');
            CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(quote_ident(current_schema()) || '.' || v_name));
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I (LIKE %I INCLUDING ALL)', v_name, v_parent);
            PERFORM cuo_protect(v_name::regclass, true, true);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_parent, v_name,
                           to_char(v_month, 'YYYY-MM-DD') || ' 00:00:00+00',
                           to_char(v_month + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00');
            RETURN NEXT v_name;
        END LOOP;
    END LOOP;
END
$fn$;
