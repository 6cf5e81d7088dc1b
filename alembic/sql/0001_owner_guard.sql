DO $do$
BEGIN
    IF (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user) THEN
        RAISE EXCEPTION 'migrations must run as an owner that row security binds, not as "%"', current_user
            USING HINT = 'CREATE ROLE cyberos_owner LOGIN CREATEROLE; GRANT CREATE ON DATABASE ... TO cyberos_owner; and migrate as that role';
    END IF;
END
$do$;
