-- What default privileges of the database gave to others on functions made since 0001 goes as well.
DO $do$
DECLARE
    f text;
BEGIN
    FOR f IN SELECT DISTINCT format('FUNCTION %s FROM %s', p.oid::regprocedure, a.grantee::regrole)
             FROM pg_proc p, aclexplode(p.proacl) a
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'cuo\_%'
               AND a.grantee NOT IN (0, p.proowner, '<app>'::regrole, '<archiver>'::regrole, '<auditor>'::regrole) LOOP
        EXECUTE 'REVOKE ALL ON ' || f;
    END LOOP;
END
$do$;
