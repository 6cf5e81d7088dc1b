DO $do$
DECLARE
    f text;
BEGIN
    PERFORM cuo_protect('cuo_threads'::regclass, false, false);
    PERFORM cuo_protect('cuo_runs'::regclass, false, false);
    PERFORM cuo_protect('cuo_memory_audit'::regclass, true, false);
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
             WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND (c.relkind = 'v' OR c.relname = 'cuo_alembic_version') AND c.relname LIKE 'cuo\_%'
               AND a.grantee NOT IN (0, c.relowner, '<app>'::regrole, '<archiver>'::regrole, '<auditor>'::regrole) LOOP
        EXECUTE 'REVOKE ALL ON ' || f;
    END LOOP;
END
$do$;
GRANT EXECUTE ON FUNCTION cuo_tenant(), cuo_owner(), cuo_ensure_partitions() TO <app>, <archiver>, <auditor>;
GRANT EXECUTE ON FUNCTION cuo_jcs(text), cuo_jcs_time(timestamptz), cuo_genesis(uuid, uuid) TO <app>, <auditor>;
GRANT SELECT ON cuo_threads, cuo_runs TO <app>;
GRANT INSERT (tenant_id, thread_id, checkpoint_ns) ON cuo_threads TO <app>;
GRANT INSERT (tenant_id, run_id, thread_id, trace_id) ON cuo_runs TO <app>;
GRANT UPDATE (lease_owner, lease_until, state) ON cuo_runs TO <app>;
GRANT UPDATE (last_write_at) ON cuo_threads TO <app>;
GRANT SELECT ON cuo_threads, cuo_runs, cuo_memory_audit TO <auditor>;
GRANT SELECT ON cuo_memory_audit TO <app>;
GRANT INSERT (tenant_id, run_id, kind, body) ON cuo_memory_audit TO <app>;
CREATE OR REPLACE VIEW cuo_memory_audit_json WITH (security_invoker = true) AS
    SELECT tenant_id, run_id, chain_seq, kind, trace_id, created_at, body::jsonb AS body,
           encode(prev_sha256, 'hex') AS prev_sha256, encode(row_sha256, 'hex') AS row_sha256
    FROM cuo_memory_audit;
GRANT SELECT ON cuo_memory_audit_json TO <app>, <auditor>;
ALTER TABLE cuo_alembic_version ENABLE ROW LEVEL SECURITY;
ALTER TABLE cuo_alembic_version FORCE ROW LEVEL SECURITY;
REVOKE ALL ON cuo_alembic_version FROM PUBLIC;
DROP POLICY IF EXISTS cuo_version_reads ON cuo_alembic_version;
DROP POLICY IF EXISTS cuo_version_owner ON cuo_alembic_version;
CREATE POLICY cuo_version_reads ON cuo_alembic_version FOR SELECT USING (true);
CREATE POLICY cuo_version_owner ON cuo_alembic_version TO CURRENT_USER USING (true) WITH CHECK (true);
GRANT SELECT ON cuo_alembic_version TO <app>, <archiver>, <auditor>;
