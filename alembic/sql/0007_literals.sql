-- These hold bytea literals with a backslash, which a session with standard_conforming_strings = off
-- would read as another value: another hash, so a chain that never verifies.
ALTER FUNCTION cuo_genesis(uuid, uuid) SET standard_conforming_strings = on;
ALTER FUNCTION cuo_chain_write(uuid, uuid, text, bigint, bytea, text[], text[]) SET standard_conforming_strings = on;
ALTER FUNCTION cuo_chain_link() SET standard_conforming_strings = on;
