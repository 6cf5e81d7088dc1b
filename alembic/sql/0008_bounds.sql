-- 0007 left its bounds unproven where a row was beyond them, with a hint that does not help: no rebuilding
-- touches a lease. A lease beyond all bounds has run out for all anybody knows, so it is said to have.
DO $do$
DECLARE
    v_tenant uuid;
BEGIN
    FOR v_tenant IN SELECT DISTINCT r.tenant_id FROM cuo_runs r WHERE NOT r.lease_until BETWEEN '2000-01-01Z' AND '9000-01-01Z' LOOP
        PERFORM set_config('auth.tenant_id', v_tenant::text, true);
        UPDATE cuo_runs r SET lease_until = now()
            WHERE r.tenant_id = v_tenant AND NOT r.lease_until BETWEEN '2000-01-01Z' AND '9000-01-01Z' AND r.trace_id ~ '^[0-9a-f]{32}$';
    END LOOP;
    PERFORM set_config('auth.tenant_id', '', true);
END
$do$;
DO $do$
BEGIN
    ALTER TABLE cuo_runs VALIDATE CONSTRAINT cuo_runs_lease;
EXCEPTION WHEN check_violation THEN
    RAISE WARNING 'a run''s lease is beyond its bounds, and its trace id is none either: see the next warning';
END
$do$;
DO $do$
BEGIN
    ALTER TABLE cuo_runs VALIDATE CONSTRAINT cuo_runs_trace;
EXCEPTION WHEN check_violation THEN
    RAISE WARNING 'a run''s trace id is no trace id. Its chain holds it and cannot be mended: the run takes no more rows. Find it: SELECT tenant_id, run_id FROM cuo_runs WHERE trace_id !~ ''^[0-9a-f]{32}$''; what was written by hand there is named by cuo-archive verify';
END
$do$;
DO $do$
BEGIN
    ALTER TABLE cuo_threads VALIDATE CONSTRAINT cuo_threads_last_write;
EXCEPTION WHEN check_violation THEN
    RAISE WARNING 'a thread''s last write is beyond its bounds; mend it with cuo-archive rebuild-index, then, as the owner: ALTER TABLE cuo_threads VALIDATE CONSTRAINT cuo_threads_last_write';
END
$do$;
