-- Claims the one right to run a step's effect: true for the first caller of this (run, name), ever.
-- p_approval: what the chain says of a person's answer, when it counts and when it came second.
-- p_attempt: what tells this call from every other; p_retry: it may have been committed already, and
-- then it is still the one that won.
CREATE OR REPLACE FUNCTION cuo_claim(p_tenant uuid, p_thread text, p_run uuid, p_trace text, p_name text, p_value jsonb, p_sha text, p_approval text[],
    p_attempt text, p_retry boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_status text;
    v_first  timestamptz;
    v_mine   boolean;
BEGIN
    -- It stands in the chain to the byte, so it is held to the form every other body is held to.
    IF EXISTS (SELECT FROM unnest(p_approval) AS b(body)
               WHERE jsonb_typeof(b.body::jsonb) <> 'object' OR b.body IS DISTINCT FROM cuo_canonical(b.body::jsonb)) THEN
        RAISE EXCEPTION 'an audit body is a JSON object in RFC 8785 form' USING ERRCODE = 'CU009';
    END IF;
    IF p_retry THEN
        PERFORM set_config('auth.tenant_id', p_tenant::text, true);
        SELECT r.first_at INTO v_first FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = p_run;
        EXECUTE 'SELECT w.task_path = $7 FROM cuo_langgraph_writes w
                 WHERE w.tenant_id = $1 AND w.thread_id = $2 AND w.checkpoint_ns = '''' AND w.lg_checkpoint_id = $3 AND w.task_id = $4
                   AND w.idx = 0 AND w.created_at >= $5 AND w.created_at <= $6'
            INTO v_mine
            USING p_tenant, p_thread, '$claim/' || p_run, p_name, v_first - interval '1 day', now() + interval '1 day', p_attempt;
        IF v_mine THEN
            RETURN true;
        END IF;
    END IF;
    SELECT a.status INTO v_status FROM cuo_append(
        p_tenant, p_thread, '', p_run, p_trace, '$claim/' || p_run, NULL, '[]'::jsonb, NULL, NULL, false,
        jsonb_build_array(jsonb_build_object('lg', '$claim/' || p_run, 'task', p_name, 'path', p_attempt, 'writes',
            jsonb_build_array(jsonb_build_object('idx', 0, 'channel', p_name, 'value', p_value, 'sha', p_sha)))),
        ARRAY[]::text[], ARRAY[]::text[], NULL, false, false, false, false) AS a;
    IF p_approval IS NOT NULL THEN
        PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['approval'], ARRAY[p_approval[CASE WHEN v_status = 'stored' THEN 1 ELSE 2 END]]);
    END IF;
    RETURN v_status = 'stored';
END
$fn$;

-- The claim of older code, which tells no call from another.
CREATE OR REPLACE FUNCTION cuo_claim(p_tenant uuid, p_thread text, p_run uuid, p_trace text, p_name text, p_value jsonb, p_sha text, p_approval text[] DEFAULT NULL) RETURNS boolean
LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$ SELECT cuo_claim(p_tenant, p_thread, p_run, p_trace, p_name, p_value, p_sha, p_approval, '', false) $fn$;
