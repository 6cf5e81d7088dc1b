DO $do$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['<app_lit>', '<archiver_lit>', '<auditor_lit>'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', wanted);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's migration was quicker
                WHEN insufficient_privilege THEN
                    RAISE EXCEPTION 'role "%" does not exist and "%" may not create it', wanted, current_user
                        USING HINT = 'have an administrator run: CREATE ROLE ' || quote_ident(wanted) || ' LOGIN';
            END;
        END IF;
        IF (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = wanted) THEN
            RAISE EXCEPTION 'role "%" must be neither superuser nor BYPASSRLS', wanted;
        END IF;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO <app>, <archiver>, <auditor>', current_schema());
END
$do$;
