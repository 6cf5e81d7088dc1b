-- What cuo_runs must say of a tenant, from its chains, tombstones and cuts. Leases are not in the
-- log: a derived one has run out.
CREATE OR REPLACE FUNCTION cuo_derived_runs(p_tenant uuid) RETURNS SETOF cuo_runs
LANGUAGE sql
SET search_path FROM CURRENT
AS $fn$
    WITH cut AS (
        SELECT q.run_id, (array_agg(q.thread_id ORDER BY q.n DESC))[1] AS thread_id, (array_agg(q.first_at ORDER BY q.n DESC))[1] AS first_at, sum(q.log_rows) AS log_rows
        FROM (SELECT DISTINCT ON ((c ->> 'run_id'), (g ->> 'from')) (c ->> 'run_id')::uuid AS run_id, c ->> 'thread_id' AS thread_id,
                     (c ->> 'first_at')::timestamptz AS first_at, (g ->> 'log_rows')::bigint AS log_rows, a.chain_seq AS n
              FROM cuo_memory_audit a, jsonb_array_elements(a.body::jsonb -> 'cuts') AS c, jsonb_array_elements(c -> 'gaps') AS g
              WHERE a.tenant_id = p_tenant AND a.run_id = '<retention>' AND a.kind = 'month_dropped'
              ORDER BY (c ->> 'run_id'), (g ->> 'from'), a.chain_seq DESC) AS q
        GROUP BY q.run_id
    ), chain AS (
        SELECT a.run_id, max(a.chain_seq) AS seq, min(a.chain_seq) AS low, min(a.created_at) AS first_at, max(a.created_at) AS newest_at,
               min(a.trace_id) AS trace_id, count(*) FILTER (WHERE a.kind = 'cuo.checkpoint_written') AS log_rows,
               max(a.chain_seq) FILTER (WHERE a.kind = 'close') AS closed,
               max(a.chain_seq) FILTER (WHERE a.kind = 'waiting') AS waited,
               max(a.chain_seq) FILTER (WHERE a.kind = 'cuo.checkpoint_written') AS told,
               bool_or(a.kind = 'tombstone') AS hides
        FROM cuo_memory_audit a WHERE a.tenant_id = p_tenant GROUP BY a.run_id
    ), said AS (
        SELECT a.run_id, (array_agg(a.row_sha256) FILTER (WHERE a.chain_seq = c.seq))[1] AS head,
               max(a.body::jsonb ->> 'thread_id') FILTER (WHERE a.chain_seq = 1) AS thread_id,
               max(a.body::jsonb ->> 'outcome') FILTER (WHERE a.chain_seq = c.closed) AS outcome,
               max(a.body::jsonb ->> 'task_id') FILTER (WHERE a.chain_seq = c.waited) AS task_id,
               max(a.created_at) FILTER (WHERE a.chain_seq = c.waited) AS waited_at,
               max(a.created_at) FILTER (WHERE a.chain_seq = c.told) AS told_at
        FROM chain c JOIN cuo_memory_audit a ON a.tenant_id = p_tenant AND a.run_id = c.run_id AND a.chain_seq IN (1, c.seq, c.closed, c.waited, c.told)
        GROUP BY a.run_id
    ), last AS (
        -- One append's rows share checkpoint and time; a copied thread has many appends at one time.
        SELECT q.run_id, array_agg(k.checkpoint_id ORDER BY k.seq) AS ids
        FROM (SELECT DISTINCT ON (s.run_id) s.run_id, k.created_at, k.thread_id, k.checkpoint_ns, k.lg_checkpoint_id
              FROM said s JOIN cuo_langgraph_checkpoints k ON k.tenant_id = p_tenant AND k.run_id = s.run_id AND k.created_at = s.told_at
              ORDER BY s.run_id, k.seq DESC) AS q
        JOIN cuo_langgraph_checkpoints k ON k.tenant_id = p_tenant AND k.run_id = q.run_id AND k.created_at = q.created_at
            AND k.thread_id = q.thread_id AND k.checkpoint_ns = q.checkpoint_ns AND k.lg_checkpoint_id IS NOT DISTINCT FROM q.lg_checkpoint_id
        GROUP BY q.run_id
    ), hiding AS (
        SELECT t.hidden_run_id AS run_id, NULL::text AS thread_id, t.created_at, t.run_id AS by_run FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant AND t.kind = 'delete_run'
        UNION ALL SELECT NULL, t.thread_id, t.created_at, t.run_id FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant AND t.kind = 'delete_thread'
    ), named AS (
        SELECT c.*, s.head, coalesce(s.thread_id, cut.thread_id, '$unknown') AS thread_id, s.outcome AS how, s.task_id, s.waited_at, s.told_at, l.ids,
               CASE WHEN c.low = 1 THEN c.first_at ELSE coalesce(cut.first_at, c.first_at) END AS began,
               c.log_rows + coalesce(cut.log_rows, 0) AS logged,
               c.closed IS NOT NULL AND s.outcome = 'run_failed' AND coalesce(c.told > c.closed, false) AS again,
               c.hides AND c.closed IS NULL AND c.log_rows = 0 AS tombstone
        FROM chain c JOIN said s USING (run_id) LEFT JOIN last l USING (run_id) LEFT JOIN cut USING (run_id)
    )
    SELECT p_tenant, n.run_id, n.thread_id,
           CASE WHEN n.run_id = '<retention>' OR n.tombstone OR (n.closed IS NOT NULL AND NOT n.again) THEN 'closed'
                -- A waiting run goes on with an answer, with a checkpoint, or, at a breakpoint, with any write.
                WHEN n.waited > coalesce(n.closed, 0)
                     AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints k WHERE k.tenant_id = p_tenant AND k.run_id = n.run_id
                                     AND k.created_at > n.waited_at AND k.langgraph ? 'channel_versions')
                     AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = p_tenant AND w.thread_id = n.thread_id AND w.run_id = n.run_id
                                     AND w.created_at > n.waited_at AND (w.channel = '__resume__' OR (n.task_id IS NULL AND w.lg_checkpoint_id NOT LIKE '$%')))
                THEN 'waiting' ELSE 'open' END,
           CASE WHEN n.run_id = '<retention>' THEN 'retention' WHEN n.tombstone THEN 'tombstone' ELSE n.how END,
           n.trace_id, n.began, n.newest_at, n.logged, coalesce(n.ids, ARRAY[]::uuid[]), n.seq, n.head, NULL::text, n.newest_at + interval '15 minutes',
           EXISTS (SELECT FROM hiding h WHERE h.run_id = n.run_id
                   OR (h.thread_id = n.thread_id AND h.by_run <> n.run_id AND n.began <= h.created_at))
    FROM named n
$fn$;

-- What cuo_threads must say of a tenant.
CREATE OR REPLACE FUNCTION cuo_derived_threads(p_tenant uuid) RETURNS SETOF cuo_threads
LANGUAGE sql
SET search_path FROM CURRENT
AS $fn$
    WITH run AS (SELECT r.run_id, r.hidden FROM cuo_derived_runs(p_tenant) AS r),
    hid AS (
        SELECT t.thread_id, t.kind, t.up_to_seq, t.created_at, t.hidden_run_id FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant
    ), carrier AS (
        SELECT c.thread_id, c.checkpoint_ns, c.seq, c.lg_checkpoint_id, c.created_at, c.run_id, coalesce(r.hidden, false) AS hidden
        FROM cuo_langgraph_checkpoints c LEFT JOIN run r USING (run_id)
        WHERE c.tenant_id = p_tenant AND c.langgraph ? 'channel_versions'
    ), log AS (
        SELECT c.thread_id, c.checkpoint_ns, max(c.seq) AS seq, min(c.created_at) AS first_at, NULL::timestamptz AS write_at, NULL::text AS write_id
        FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = p_tenant GROUP BY 1, 2
        UNION ALL
        SELECT w.thread_id, w.checkpoint_ns, max(w.seq), min(w.created_at), max(w.created_at), max(w.lg_checkpoint_id COLLATE "C")
        FROM cuo_langgraph_writes w WHERE w.tenant_id = p_tenant GROUP BY 1, 2
        UNION ALL
        SELECT h.thread_id, '', max(h.up_to_seq), min(h.created_at), NULL, NULL FROM hid h GROUP BY 1
    ), spaces AS (
        SELECT l.thread_id, l.checkpoint_ns, min(l.first_at) AS first_at, max(l.write_at) AS write_at, max(l.write_id COLLATE "C") AS write_id,
               max(max(l.seq)) OVER (PARTITION BY l.thread_id) AS top, min(min(l.first_at)) OVER (PARTITION BY l.thread_id) AS began
        FROM log l GROUP BY l.thread_id, l.checkpoint_ns
    ), roots AS (
        -- Rows of a subgraph alone still make the thread's own row, which is its lock.
        SELECT * FROM spaces
        UNION ALL
        SELECT DISTINCT ON (s.thread_id) s.thread_id, '', s.began, NULL::timestamptz, NULL::text, s.top, s.began FROM spaces s
        WHERE NOT EXISTS (SELECT FROM spaces r WHERE r.thread_id = s.thread_id AND r.checkpoint_ns = '')
    ), placed AS (
        SELECT s.*,
               coalesce((SELECT max(CASE h.kind WHEN 'delete_thread' THEN h.up_to_seq WHEN 'prune' THEN (
                   SELECT max(k.seq) - 1 FROM carrier k WHERE k.thread_id = s.thread_id AND k.checkpoint_ns = s.checkpoint_ns AND k.seq <= h.up_to_seq
                   AND NOT EXISTS (SELECT FROM hid d WHERE d.kind = 'delete_run' AND d.hidden_run_id = k.run_id AND d.created_at <= h.created_at)) END)
                   FROM hid h WHERE h.thread_id = s.thread_id AND h.created_at >= s.first_at), 0) AS hidden_seq,
               coalesce((SELECT h.kind = 'delete_thread' FROM hid h WHERE h.thread_id = s.thread_id AND h.kind IN ('delete_thread', 'reopen')
                         ORDER BY h.created_at DESC LIMIT 1), false) AS gone,
               (SELECT max(k.lg_checkpoint_id COLLATE "C") FROM carrier k WHERE k.thread_id = s.thread_id AND k.checkpoint_ns = s.checkpoint_ns) AS greatest
        FROM roots s
    )
    SELECT p_tenant, p.thread_id, p.checkpoint_ns, CASE WHEN p.checkpoint_ns = '' THEN p.top ELSE 0 END,
           coalesce(n.seq, 0), n.lg_checkpoint_id, n.created_at, p.greatest, p.write_id,
           CASE WHEN p.checkpoint_ns = '' THEN p.began ELSE p.first_at END, p.write_at, p.hidden_seq, p.gone
    FROM placed p LEFT JOIN LATERAL (
        SELECT k.seq, k.lg_checkpoint_id, k.created_at FROM carrier k
        WHERE k.thread_id = p.thread_id AND k.checkpoint_ns = p.checkpoint_ns AND k.seq > p.hidden_seq AND NOT k.hidden
        ORDER BY k.seq DESC LIMIT 1) AS n ON true
$fn$;

-- Tenants that anything speaks of.
CREATE OR REPLACE FUNCTION cuo_index_tenants() RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT tenant_id FROM cuo_runs UNION SELECT tenant_id FROM cuo_threads UNION SELECT tenant_id FROM cuo_memory_audit
    UNION SELECT tenant_id FROM cuo_thread_tombstones ORDER BY 1
$fn$;

-- Where the index and the log disagree, column by column; p_apply makes the index follow the log.
-- Of months that are gone the index may remember more than the log shows, and a row of it may
-- outlive its thread's rows; wider bounds are no error either. Applying stops the tenant's writers
-- (and others') for as long as it takes.
CREATE OR REPLACE FUNCTION cuo_rebuild_index(p_tenant uuid, p_apply boolean) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_was     text := current_setting('auth.tenant_id', true);
    v_dropped timestamptz;
    v_found   jsonb[];
    v_one     jsonb;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rebuilding reads rows as they are now: use READ COMMITTED' USING ERRCODE = 'CU010';
    END IF;
    IF p_apply THEN
        LOCK TABLE cuo_threads, cuo_runs IN EXCLUSIVE MODE;
    END IF;
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT max(((a.body::jsonb ->> 'month') || '-01')::timestamp + interval '1 month') AT TIME ZONE 'UTC' INTO v_dropped
        FROM cuo_memory_audit a WHERE a.tenant_id = p_tenant AND a.run_id = '<retention>' AND a.kind = 'month_dropped';
    WITH pair AS (
        SELECT coalesce(d.run_id, i.run_id) AS run_id, i.run_id IS NULL AS lost, d.run_id IS NULL AS stray,
               to_jsonb(i) - '{tenant_id,run_id,lease_owner,lease_until}'::text[] AS held,
               to_jsonb(d) - '{tenant_id,run_id,lease_owner,lease_until}'::text[] AS due, i.first_at < v_dropped AS old
        FROM cuo_derived_runs(p_tenant) AS d FULL JOIN (SELECT * FROM cuo_runs WHERE tenant_id = p_tenant) AS i USING (run_id)
    )
    SELECT array_agg(jsonb_build_object('table', 'cuo_runs', 'run_id', q.run_id, 'columns', q.columns) ORDER BY q.run_id) INTO v_found FROM (
        SELECT p.run_id, CASE WHEN p.lost THEN '["missing"]' WHEN p.stray THEN '["not in the log"]' ELSE (
            SELECT coalesce(jsonb_agg(e.key ORDER BY e.key), '[]') FROM jsonb_each(p.due) AS e
            WHERE e.value IS DISTINCT FROM p.held -> e.key
              -- A waiting row, close or last rows may lie in a month that is gone.
              AND NOT (p.old AND e.key IN ('state', 'outcome', 'last_rows') AND (e.value = 'null' OR e.value = '[]' OR e.value = '"open"'))) END AS columns
        FROM pair p) AS q WHERE q.columns <> '[]';
    WITH pair AS (
        SELECT coalesce(d.thread_id, i.thread_id) AS thread_id, coalesce(d.checkpoint_ns, i.checkpoint_ns) AS checkpoint_ns,
               i.thread_id IS NULL AS lost, d.thread_id IS NULL AS stray, i AS held, d AS due, coalesce(i.first_at < v_dropped, false) AS old
        FROM cuo_derived_threads(p_tenant) AS d FULL JOIN (SELECT * FROM cuo_threads WHERE tenant_id = p_tenant) AS i USING (thread_id, checkpoint_ns)
    )
    SELECT v_found || array_agg(jsonb_build_object('table', 'cuo_threads', 'thread_id', q.thread_id, 'checkpoint_ns', q.checkpoint_ns, 'columns', q.columns)
                                ORDER BY q.thread_id, q.checkpoint_ns) INTO v_found FROM (
        SELECT p.thread_id, p.checkpoint_ns, CASE
            WHEN p.lost THEN '["missing"]'::jsonb
            WHEN p.stray THEN CASE WHEN ((p.held).newest_id IS NULL AND (p.held).head_seq = 0) OR (p.old AND coalesce(greatest((p.held).newest_at, (p.held).last_write_at) < v_dropped, true))
                                   THEN '[]' ELSE '["not in the log"]' END::jsonb
            ELSE to_jsonb(array_remove(ARRAY[
                CASE WHEN (p.held).head_seq <> (p.due).head_seq AND NOT (p.old AND (p.held).head_seq > (p.due).head_seq) THEN 'head_seq' END,
                CASE WHEN (p.held).newest_seq <> (p.due).newest_seq THEN 'newest_seq' END,
                CASE WHEN (p.held).newest_id IS DISTINCT FROM (p.due).newest_id THEN 'newest_id' END,
                CASE WHEN (p.held).newest_at IS DISTINCT FROM (p.due).newest_at THEN 'newest_at' END,
                CASE WHEN (p.held).greatest_id IS DISTINCT FROM (p.due).greatest_id
                          AND NOT (p.old AND coalesce((p.held).greatest_id COLLATE "C" > (p.due).greatest_id COLLATE "C", (p.due).greatest_id IS NULL)) THEN 'greatest_id' END,
                CASE WHEN (p.held).greatest_write_id IS DISTINCT FROM (p.due).greatest_write_id
                          AND NOT (p.old AND coalesce((p.held).greatest_write_id COLLATE "C" > (p.due).greatest_write_id COLLATE "C", (p.due).greatest_write_id IS NULL)) THEN 'greatest_write_id' END,
                CASE WHEN (p.held).first_at > (p.due).first_at THEN 'first_at' END,
                CASE WHEN (p.held).last_write_at IS DISTINCT FROM (p.due).last_write_at
                          AND NOT (p.old AND coalesce((p.held).last_write_at > (p.due).last_write_at, (p.due).last_write_at IS NULL)) THEN 'last_write_at' END,
                CASE WHEN (p.held).hidden_seq <> (p.due).hidden_seq
                          AND NOT (p.old AND (p.held).hidden_seq > (p.due).hidden_seq AND ((p.due).newest_seq = 0 OR (p.held).hidden_seq < (p.due).newest_seq)) THEN 'hidden_seq' END,
                CASE WHEN (p.held).deleted <> (p.due).deleted THEN 'deleted' END], NULL)) END AS columns
        FROM pair p) AS q WHERE q.columns <> '[]';
    FOREACH v_one IN ARRAY coalesce(v_found, ARRAY[]::jsonb[]) LOOP
        RETURN NEXT v_one;
    END LOOP;
    IF p_apply AND v_found IS NOT NULL THEN
        DELETE FROM cuo_runs r WHERE r.tenant_id = p_tenant
            AND r.run_id IN (SELECT (f ->> 'run_id')::uuid FROM unnest(v_found) AS f WHERE f ->> 'table' = 'cuo_runs');
        INSERT INTO cuo_runs SELECT d.* FROM cuo_derived_runs(p_tenant) AS d
            WHERE d.run_id IN (SELECT (f ->> 'run_id')::uuid FROM unnest(v_found) AS f WHERE f ->> 'table' = 'cuo_runs');
        DELETE FROM cuo_threads t USING unnest(v_found) AS f
            WHERE t.tenant_id = p_tenant AND f ->> 'table' = 'cuo_threads' AND t.thread_id = f ->> 'thread_id' AND t.checkpoint_ns = f ->> 'checkpoint_ns';
        INSERT INTO cuo_threads SELECT d.* FROM cuo_derived_threads(p_tenant) AS d JOIN unnest(v_found) AS f
            ON f ->> 'table' = 'cuo_threads' AND d.thread_id = f ->> 'thread_id' AND d.checkpoint_ns = f ->> 'checkpoint_ns';
    END IF;
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
END
$fn$;
