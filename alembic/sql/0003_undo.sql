DROP FUNCTION IF EXISTS cuo_rebuild_index(uuid, boolean), cuo_index_tenants(), cuo_derived_threads(uuid), cuo_derived_runs(uuid),
    cuo_waiting_runs(interval), cuo_list_holds(uuid), cuo_hold(uuid, uuid, uuid, text, text), cuo_archive_failed(date, text, text),
    cuo_drop_month(date, integer, integer, integer), cuo_drop_tenant_month(uuid, date, integer, jsonb, timestamptz),
    cuo_retention_report(integer), cuo_require_floor(integer), cuo_month_facts(date, integer),
    cuo_delta_reaches(uuid, text, text, bigint, timestamptz, timestamptz, timestamptz), cuo_retention_says(uuid, text, text),
    cuo_month_root(regclass, uuid, timestamptz, timestamptz), cuo_months();
DROP TABLE IF EXISTS cuo_holds;
