-- Places a hold, or ends one (p_releases). The chain holds the row's digest, not its words.
CREATE OR REPLACE FUNCTION cuo_hold(p_tenant uuid, p_run uuid, p_releases uuid, p_reason text, p_by text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_was  text := current_setting('auth.tenant_id', true);
    v_id   uuid := gen_random_uuid();
    v_kind text := CASE WHEN p_releases IS NULL THEN 'set' ELSE 'release' END;
    v_run  uuid := p_run;
    v_sha  bytea;
BEGIN
    -- Not while a month is being dropped: the drop would not see it.
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/retention/' || current_schema(), 0));
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    IF p_releases IS NOT NULL THEN
        SELECT h.held_run_id INTO v_run FROM cuo_holds h WHERE h.tenant_id = p_tenant AND h.hold_id = p_releases AND h.kind = 'set'
            AND NOT EXISTS (SELECT FROM cuo_holds r WHERE r.tenant_id = p_tenant AND r.releases = p_releases);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'tenant % has no hold % in force', p_tenant, p_releases USING ERRCODE = 'CU012';
        END IF;
    ELSIF NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = p_tenant AND (p_run IS NULL OR r.run_id = p_run)) THEN
        RAISE EXCEPTION 'tenant % has no such run', p_tenant USING ERRCODE = 'CU012';
    END IF;
    PERFORM cuo_ensure_partitions();
    v_sha := sha256(convert_to('{"created_at":' || cuo_jcs_time(now()) || ',"held_run_id":' || coalesce('"' || v_run || '"', 'null')
        || ',"hold_id":"' || v_id || '","kind":"' || v_kind || '","placed_by":' || cuo_jcs(p_by) || ',"reason":' || cuo_jcs(p_reason)
        || ',"releases":' || coalesce('"' || p_releases || '"', 'null') || ',"tenant_id":"' || p_tenant || '"}', 'UTF8'));
    INSERT INTO cuo_holds (tenant_id, hold_id, kind, held_run_id, releases, reason, placed_by, row_sha256)
        VALUES (p_tenant, v_id, v_kind, v_run, p_releases, p_reason, p_by, v_sha);
    PERFORM cuo_retention_says(p_tenant, 'hold', '{"held_run_id":' || coalesce('"' || v_run || '"', 'null') || ',"hold_id":"' || v_id
        || '","kind":"' || v_kind || '","releases":' || coalesce('"' || p_releases || '"', 'null') || ',"row_sha256":"' || encode(v_sha, 'hex') || '"}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
    RETURN v_id;
END
$fn$;

-- Holds of one tenant, or of all, with the time and reason of their end.
CREATE OR REPLACE FUNCTION cuo_list_holds(p_tenant uuid) RETURNS TABLE (tenant_id uuid, hold_id uuid, run_id uuid, reason text, placed_by text,
    created_at timestamptz, released_at timestamptz, release_reason text, released_by text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT h.tenant_id, h.hold_id, h.held_run_id, h.reason, h.placed_by, h.created_at, r.created_at, r.reason, r.placed_by
    FROM cuo_holds h LEFT JOIN cuo_holds r ON r.tenant_id = h.tenant_id AND r.releases = h.hold_id
    WHERE h.kind = 'set' AND (p_tenant IS NULL OR h.tenant_id = p_tenant) ORDER BY h.created_at, h.hold_id
$fn$;

-- Waiting runs older than this: their approvals have run out.
CREATE OR REPLACE FUNCTION cuo_waiting_runs(p_older interval) RETURNS TABLE (tenant_id uuid, run_id uuid, thread_id text, first_at timestamptz, newest_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT r.tenant_id, r.run_id, r.thread_id, r.first_at, r.newest_at FROM cuo_runs r
    WHERE r.state = 'waiting' AND NOT r.hidden AND r.first_at < now() - p_older ORDER BY r.first_at, r.run_id
$fn$;
