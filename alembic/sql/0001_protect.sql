-- Row security (enabled and forced), the three policies and, for the log, the refusal triggers.
-- Row triggers are inherited by months; statement triggers and policies are not: call this on each month too.
CREATE OR REPLACE FUNCTION cuo_protect(p_table regclass, p_append_only boolean, p_is_month boolean) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_name text;
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', p_table);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', p_table);
    EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', p_table);
    -- Default privileges of the database (hosted ones have them) may have given rights to others.
    FOR v_name IN SELECT DISTINCT a.grantee::regrole::text FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.oid = p_table AND a.grantee <> 0 AND a.grantee <> c.relowner LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', p_table, v_name);
    END LOOP;
    FOREACH v_name IN ARRAY ARRAY['cuo_tenant_rls', 'cuo_owner_reads', 'cuo_auditor_reads'] LOOP
        EXECUTE format('DROP POLICY IF EXISTS %I ON %s', v_name, p_table);
    END LOOP;
    EXECUTE format('CREATE POLICY cuo_tenant_rls ON %s USING (tenant_id = cuo_tenant()) WITH CHECK (tenant_id = cuo_tenant())', p_table);
    -- Forced row security blinds the owner's own guarded functions too; they must be able to count.
    EXECUTE format('CREATE POLICY cuo_owner_reads ON %s FOR SELECT TO CURRENT_USER USING (true)', p_table);
    EXECUTE format('CREATE POLICY cuo_auditor_reads ON %s FOR SELECT TO <auditor> USING (true)', p_table);
    IF p_append_only THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cuo_forbid_change()', p_table);
        EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_change_stmt BEFORE UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cuo_forbid_change()', p_table);
        IF NOT p_is_month THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_change BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION cuo_forbid_change()', p_table);
        END IF;
    END IF;
END
$fn$;
