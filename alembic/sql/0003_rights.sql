SELECT cuo_protect('cuo_holds'::regclass, true, false);
GRANT SELECT ON cuo_holds TO <app>, <auditor>;
REVOKE UPDATE, DELETE, TRUNCATE ON cuo_holds FROM <app>, <archiver>, <auditor>, PUBLIC;
DO $do$
DECLARE
    f text;
BEGIN
    FOR f IN SELECT p.oid::regprocedure || ' FROM ' || CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
             FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND a.grantee <> p.proowner AND p.proname IN (
                 'cuo_months', 'cuo_month_root', 'cuo_retention_says', 'cuo_delta_reaches', 'cuo_month_facts', 'cuo_require_floor',
                 'cuo_retention_report', 'cuo_drop_tenant_month', 'cuo_drop_month', 'cuo_archive_failed', 'cuo_hold', 'cuo_list_holds',
                 'cuo_waiting_runs', 'cuo_derived_runs', 'cuo_derived_threads', 'cuo_index_tenants', 'cuo_rebuild_index') LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || f;
    END LOOP;
END
$do$;
GRANT EXECUTE ON FUNCTION cuo_retention_report(integer), cuo_drop_month(date, integer, integer, integer), cuo_archive_failed(date, text, text),
    cuo_hold(uuid, uuid, uuid, text, text), cuo_list_holds(uuid), cuo_waiting_runs(interval), cuo_index_tenants(),
    cuo_rebuild_index(uuid, boolean) TO <archiver>;
