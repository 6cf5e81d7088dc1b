REVOKE ALL ON FUNCTION cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[], text, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[], text, boolean) TO <app>;
