DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_langgraph_checkpoints) OR EXISTS (SELECT FROM cuo_langgraph_writes)
       OR EXISTS (SELECT FROM cuo_thread_tombstones) THEN
        RAISE EXCEPTION 'downgrade refused: the log holds rows'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$;
