DO $do$
DECLARE
    f text;
BEGIN
    PERFORM cuo_protect('cuo_langgraph_checkpoints'::regclass, true, false);
    PERFORM cuo_protect('cuo_langgraph_writes'::regclass, true, false);
    PERFORM cuo_protect('cuo_thread_tombstones'::regclass, true, false);
    FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'cuo\_%' LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
    END LOOP;
    -- What default privileges of the database gave to others on functions and views goes as well.
    FOR f IN SELECT DISTINCT format('FUNCTION %s FROM %s', p.oid::regprocedure, a.grantee::regrole)
             FROM pg_proc p, aclexplode(p.proacl) a
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'cuo\_%'
               AND a.grantee NOT IN (0, p.proowner, '<app>'::regrole, '<archiver>'::regrole, '<auditor>'::regrole)
             UNION SELECT DISTINCT format('TABLE %s FROM %s', c.oid::regclass, a.grantee::regrole)
             FROM pg_class c, aclexplode(c.relacl) a
             WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind = 'v' AND c.relname LIKE 'cuo\_%'
               AND a.grantee NOT IN (0, c.relowner, '<app>'::regrole, '<archiver>'::regrole, '<auditor>'::regrole) LOOP
        EXECUTE 'REVOKE ALL ON ' || f;
    END LOOP;
END
$do$;
GRANT SELECT ON cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_thread_tombstones, cuo_checkpoints_full TO <app>, <auditor>;
GRANT INSERT (checkpoint_id, tenant_id, run_id, parent_checkpoint_id, node_name, edge_from, edge_to, kind, state_json, trace_id,
              thread_id, checkpoint_ns, step, phase, ordinal, lg_checkpoint_id, lg_parent_id, langgraph, state_sha256, langgraph_sha256)
    ON cuo_langgraph_checkpoints TO <app>;
REVOKE UPDATE, DELETE, TRUNCATE ON cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_thread_tombstones, cuo_memory_audit
    FROM <app>, <archiver>, <auditor>, PUBLIC;
GRANT EXECUTE ON FUNCTION
    cuo_append(uuid, text, text, uuid, text, text, text, jsonb, jsonb, text, boolean, jsonb, text[], text[], text, boolean, boolean, boolean, boolean),
    cuo_record_refused(uuid, text, text, text, uuid, text, text),
    cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[]),
    cuo_get(uuid, text, text, text, boolean, boolean, uuid),
    cuo_pending(uuid, text, text, text, timestamptz, timestamptz),
    cuo_list(uuid, text, text, text, jsonb, text, bigint, bigint, timestamptz),
    cuo_find(uuid, text, text, text, timestamptz, timestamptz, bigint),
    cuo_id_time(text),
    cuo_tombstone(uuid, text, text, uuid, uuid, text) TO <app>;
