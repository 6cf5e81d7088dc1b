DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_seal_heads) OR EXISTS (SELECT FROM cuo_seal_leaves) THEN
        RAISE EXCEPTION 'downgrade refused: the log is sealed'
            USING HINT = 'export it first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$;
