REVOKE ALL ON FUNCTION cuo_digest_fits(jsonb, bytea) FROM PUBLIC;
