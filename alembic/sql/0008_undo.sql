DROP FUNCTION IF EXISTS cuo_digest_fits(jsonb, bytea);
ALTER FUNCTION cuo_months() RESET datestyle;
