DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_memory_audit) OR EXISTS (SELECT FROM cuo_runs) OR EXISTS (SELECT FROM cuo_threads) THEN
        RAISE EXCEPTION 'downgrade refused: the log holds rows'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$;
