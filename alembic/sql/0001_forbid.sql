CREATE OR REPLACE FUNCTION cuo_forbid_change() RETURNS trigger
LANGUAGE plpgsql
AS $fn$
BEGIN
    RAISE EXCEPTION '% on "%" is refused: the log is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'CU008',
              HINT = 'whole months past the retention floor are dropped by cuo-archive drop-old-partitions';
END
$fn$;
