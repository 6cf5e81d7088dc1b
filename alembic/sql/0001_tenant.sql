-- The one place that reads the tenant: unset and empty both mean "no tenant", which matches no row.
CREATE OR REPLACE FUNCTION cuo_tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT nullif(pg_catalog.current_setting('auth.tenant_id', true), '')::uuid $fn$;
