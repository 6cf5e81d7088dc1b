DROP VIEW IF EXISTS cuo_memory_audit_json;
DROP TABLE IF EXISTS cuo_memory_audit, cuo_runs, cuo_threads;
DROP FUNCTION IF EXISTS cuo_ensure_partitions(), cuo_open_run(uuid, uuid, text, text), cuo_chain_link(),
    cuo_chain_append(uuid, uuid, text[], text[]), cuo_canonical(jsonb),
    cuo_chain_write(uuid, uuid, text, bigint, bytea, text[], text[]), cuo_owner(), cuo_genesis(uuid, uuid), cuo_jcs_time(timestamptz),
    cuo_run_genesis(), cuo_run_opened(), cuo_run_stays_closed(),
    cuo_jcs(text), cuo_protect(regclass, boolean, boolean), cuo_forbid_change(), cuo_tenant();
DROP POLICY IF EXISTS cuo_version_reads ON cuo_alembic_version;
DROP POLICY IF EXISTS cuo_version_owner ON cuo_alembic_version;
ALTER TABLE cuo_alembic_version NO FORCE ROW LEVEL SECURITY;
ALTER TABLE cuo_alembic_version DISABLE ROW LEVEL SECURITY;
