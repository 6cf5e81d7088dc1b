-- Makes sure a run has an index row and a first chain row; returns true when it made them. A run lives in
-- one thread, the one its first chain row names.
CREATE OR REPLACE FUNCTION cuo_open_run(p_tenant uuid, p_run uuid, p_thread text, p_trace text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id, chain_head, lease_until)
        VALUES (p_tenant, p_run, p_thread, p_trace, cuo_genesis(p_tenant, p_run), now() + interval '15 minutes')
        ON CONFLICT (tenant_id, run_id) DO NOTHING;
    IF NOT FOUND THEN
        IF (SELECT r.thread_id <> p_thread FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = p_run) THEN
            RAISE EXCEPTION 'run % belongs to another thread', p_run USING ERRCODE = 'CU006';
        END IF;
        RETURN false;
    END IF;
    PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['open'], ARRAY['{"thread_id":' || cuo_jcs(p_thread) || '}']);
    RETURN true;
END
$fn$;
