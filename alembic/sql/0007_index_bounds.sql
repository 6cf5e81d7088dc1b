-- What the application's role may set by hand in the index tables stays within what every reader can
-- hold: one tenant's row that no client can load would stop what reads across tenants. A row
-- that is there already and is beyond them stays; then the check holds for new rows alone.
ALTER TABLE cuo_runs DROP CONSTRAINT IF EXISTS cuo_runs_trace, DROP CONSTRAINT IF EXISTS cuo_runs_lease;
ALTER TABLE cuo_runs
    ADD CONSTRAINT cuo_runs_trace CHECK (trace_id ~ '^[0-9a-f]{32}$') NOT VALID,
    ADD CONSTRAINT cuo_runs_lease CHECK (lease_until BETWEEN '2000-01-01Z' AND '9000-01-01Z') NOT VALID;
ALTER TABLE cuo_threads DROP CONSTRAINT IF EXISTS cuo_threads_last_write;
ALTER TABLE cuo_threads
    ADD CONSTRAINT cuo_threads_last_write CHECK (last_write_at BETWEEN '2000-01-01Z' AND '9000-01-01Z') NOT VALID;
DO $do$
BEGIN
    ALTER TABLE cuo_runs VALIDATE CONSTRAINT cuo_runs_trace;
    ALTER TABLE cuo_runs VALIDATE CONSTRAINT cuo_runs_lease;
    ALTER TABLE cuo_threads VALIDATE CONSTRAINT cuo_threads_last_write;
EXCEPTION WHEN check_violation THEN
    RAISE WARNING 'an index row is beyond its bounds: %; repair it with cuo-archive rebuild-index', SQLERRM;
END
$do$;
