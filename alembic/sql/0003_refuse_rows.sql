DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_holds) THEN
        RAISE EXCEPTION 'downgrade refused: there are legal holds'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$;
