-- A JSON string exactly as RFC 8785 writes it (to_json escapes the same set for text).
CREATE OR REPLACE FUNCTION cuo_jcs(p_text text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT coalesce(pg_catalog.to_json(p_text)::text, 'null') $fn$;

CREATE OR REPLACE FUNCTION cuo_jcs_time(p_at timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT '"' || pg_catalog.to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"' $fn$;

CREATE OR REPLACE FUNCTION cuo_genesis(p_tenant uuid, p_run uuid) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT pg_catalog.sha256(pg_catalog.convert_to('cuo/genesis/v1', 'UTF8') || '\x00'::bytea
        || pg_catalog.convert_to(p_tenant::text || '/' || p_run::text, 'UTF8')) $fn$;

-- The schema's owner, as whom the definer functions run.
CREATE OR REPLACE FUNCTION cuo_owner() RETURNS name
LANGUAGE sql STABLE
SET search_path FROM CURRENT
AS $fn$ SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'cuo_runs'::regclass $fn$;

-- Numbers, times, links and inserts rows after a known head. The caller holds the run's row lock
-- and stores the new head. The server alone does this, so nothing that does not extend a head gets in.
CREATE OR REPLACE FUNCTION cuo_chain_write(p_tenant uuid, p_run uuid, p_trace text, p_seq bigint, p_head bytea,
                                           p_kinds text[], p_bodies text[], OUT seq bigint, OUT head bytea)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_open   text := '{"at":' || cuo_jcs_time(now()) || ',"body":';
    v_close  text := ',"run_id":"' || p_run || '","tenant_id":"' || p_tenant || '","trace_id":"' || p_trace || '","v":1}';
    v_n      integer := cardinality(p_kinds);
    v_bytes  bytea[] := array_fill(NULL::bytea, ARRAY[v_n]);
    v_prevs  bytea[] := v_bytes;
    v_hashes bytea[] := v_bytes;
BEGIN
    seq := p_seq;
    head := p_head;
    FOR i IN 1 .. v_n LOOP
        seq := seq + 1;
        v_bytes[i] := convert_to(v_open || p_bodies[i] || ',"chain_seq":' || seq || ',"kind":"' || p_kinds[i] || '"' || v_close, 'UTF8');
        v_prevs[i] := head;
        head := sha256('\x63756f2f726f772f763100'::bytea || head || v_bytes[i]);
        v_hashes[i] := head;
    END LOOP;
    INSERT INTO cuo_memory_audit (tenant_id, run_id, chain_seq, kind, trace_id, body, row_bytes, prev_sha256, row_sha256)
        SELECT p_tenant, p_run, p_seq + s.n, s.kind, p_trace, s.body, s.bytes, s.prev, s.hash
        FROM unnest(p_kinds, p_bodies, v_bytes, v_prevs, v_hashes) WITH ORDINALITY AS s(kind, body, bytes, prev, hash, n);
END
$fn$;

-- Appends rows to one run's chain, in the order given, under the run's row lock.
CREATE OR REPLACE FUNCTION cuo_chain_append(p_tenant uuid, p_run uuid, p_kinds text[], p_bodies text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_run cuo_runs%ROWTYPE;
    v_new record;
BEGIN
    SELECT * INTO v_run FROM cuo_runs WHERE tenant_id = p_tenant AND run_id = p_run FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % has no chain in this tenant', p_run USING ERRCODE = 'CU009';
    END IF;
    SELECT * INTO v_new FROM cuo_chain_write(p_tenant, p_run, v_run.trace_id, v_run.chain_seq, v_run.chain_head, p_kinds, p_bodies);
    UPDATE cuo_runs SET chain_seq = v_new.seq, chain_head = v_new.head, newest_at = greatest(newest_at, now())
        WHERE tenant_id = p_tenant AND run_id = p_run;
    RETURN v_new.seq;
END
$fn$;

-- The RFC 8785 text of a document, as far as audit bodies need it. Null, so not canonical here, are keys
-- beyond the Basic Multilingual Plane, which it orders by UTF-16, and numbers from 2^53 on, of which
-- PostgreSQL may print a digit more than the shortest form has.
CREATE OR REPLACE FUNCTION cuo_canonical(p_value jsonb) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET extra_float_digits = 1
AS $fn$
DECLARE
    v_number float8;
    v_parts  text[];
BEGIN
    CASE jsonb_typeof(p_value)
        WHEN 'object' THEN
            IF EXISTS (SELECT FROM jsonb_object_keys(p_value) AS k WHERE k ~ '[\U00010000-\U0010ffff]') THEN
                RETURN NULL;
            END IF;
            SELECT array_agg(cuo_jcs(e.key) || ':' || cuo_canonical(e.value) ORDER BY e.key COLLATE "C") INTO v_parts
                FROM jsonb_each(p_value) AS e;
            RETURN '{' || coalesce(array_to_string(v_parts, ',', '?'), '') || '}';
        WHEN 'array' THEN
            SELECT array_agg(cuo_canonical(e.value) ORDER BY e.n) INTO v_parts
                FROM jsonb_array_elements(p_value) WITH ORDINALITY AS e(value, n);
            RETURN '[' || coalesce(array_to_string(v_parts, ',', '?'), '') || ']';
        WHEN 'string' THEN
            RETURN cuo_jcs(p_value #>> ARRAY[]::text[]);
        WHEN 'number' THEN
            v_number := (p_value #>> ARRAY[]::text[])::float8;
            IF v_number = 0 THEN
                RETURN '0';
            ELSIF abs(v_number) >= 9007199254740992 THEN
                RETURN NULL;
            ELSIF abs(v_number) >= 1e-6 THEN
                RETURN trim_scale(v_number::text::numeric)::text;
            END IF;
            RETURN regexp_replace(v_number::text, 'e([+-])0*', 'e\1');
        ELSE
            RETURN p_value::text;
    END CASE;
END
$fn$;

-- A row inserted by hand (or by the ORM) is numbered and linked here; the columns it may set are
-- tenant, run, kind and body. Kinds that only the store may say are refused.
CREATE OR REPLACE FUNCTION cuo_chain_link() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_seq  bigint;
    v_prev bytea;
BEGIN
    IF NEW.chain_seq IS NOT NULL THEN
        -- Only the owner can name this column, and is held to the head as well.
        SELECT r.chain_seq, r.chain_head INTO v_seq, v_prev FROM cuo_runs r
            WHERE r.tenant_id = NEW.tenant_id AND r.run_id = NEW.run_id FOR UPDATE;
        IF NOT FOUND OR NEW.chain_seq <> v_seq + 1 OR NEW.prev_sha256 IS DISTINCT FROM v_prev
           OR NEW.row_sha256 IS DISTINCT FROM sha256('\x63756f2f726f772f763100'::bytea || NEW.prev_sha256 || NEW.row_bytes) THEN
            RAISE EXCEPTION 'row % of run % does not extend its chain', NEW.chain_seq, NEW.run_id USING ERRCODE = 'CU009';
        END IF;
        UPDATE cuo_runs r SET chain_seq = NEW.chain_seq, chain_head = NEW.row_sha256, newest_at = greatest(r.newest_at, now())
            WHERE r.tenant_id = NEW.tenant_id AND r.run_id = NEW.run_id;
        RETURN NEW;
    END IF;
    IF NEW.kind NOT IN ('cuo.checkpoint_replayed', 'cuo.routing_decision', 'cuo.llm_cascade_timeout',
                        'cuo.persona_defer_block', 'cuo.persona_unknown') THEN
        RAISE EXCEPTION 'audit kind "%" is written by the store alone', NEW.kind USING ERRCODE = 'CU009';
    END IF;
    IF jsonb_typeof(NEW.body::jsonb) <> 'object' OR NEW.body IS DISTINCT FROM cuo_canonical(NEW.body::jsonb) THEN
        -- It stands in the chain to the byte, so a body in another form would never verify.
        RAISE EXCEPTION 'an audit body is a JSON object in RFC 8785 form' USING ERRCODE = 'CU009';
    END IF;
    SELECT r.chain_seq + 1, r.chain_head, r.trace_id INTO v_seq, v_prev, NEW.trace_id
        FROM cuo_runs r WHERE r.tenant_id = NEW.tenant_id AND r.run_id = NEW.run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % has no chain in this tenant', NEW.run_id USING ERRCODE = 'CU009';
    END IF;
    NEW.chain_seq := v_seq;
    NEW.created_at := now();
    NEW.prev_sha256 := v_prev;
    NEW.row_bytes := convert_to(
        '{"at":' || cuo_jcs_time(NEW.created_at) || ',"body":' || NEW.body || ',"chain_seq":' || v_seq
        || ',"kind":' || cuo_jcs(NEW.kind) || ',"run_id":"' || NEW.run_id || '","tenant_id":"' || NEW.tenant_id
        || '","trace_id":' || cuo_jcs(NEW.trace_id::text) || ',"v":1}', 'UTF8');
    NEW.row_sha256 := sha256('\x63756f2f726f772f763100'::bytea || v_prev || NEW.row_bytes);
    UPDATE cuo_runs r SET chain_seq = v_seq, chain_head = NEW.row_sha256, newest_at = greatest(r.newest_at, now())
        WHERE r.tenant_id = NEW.tenant_id AND r.run_id = NEW.run_id;
    RETURN NEW;
END
$fn$;

-- The definer functions link what they insert; whoever inserts in their own name is linked or checked.
CREATE OR REPLACE TRIGGER cuo_chain_link BEFORE INSERT ON cuo_memory_audit
    FOR EACH ROW WHEN (NEW.chain_seq IS NULL OR session_user = current_user) EXECUTE FUNCTION cuo_chain_link();

-- Makes sure a run has an index row and a first chain row; returns true when it made them.
CREATE OR REPLACE FUNCTION cuo_open_run(p_tenant uuid, p_run uuid, p_thread text, p_trace text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id, chain_head, lease_until)
        VALUES (p_tenant, p_run, p_thread, p_trace, cuo_genesis(p_tenant, p_run), now() + interval '15 minutes')
        ON CONFLICT (tenant_id, run_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['open'], ARRAY['{"thread_id":' || cuo_jcs(p_thread) || '}']);
    RETURN true;
END
$fn$;

-- A run whose index row somebody else inserts begins its chain as any other does.
CREATE OR REPLACE FUNCTION cuo_run_genesis() RETURNS trigger
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    NEW.chain_head := cuo_genesis(NEW.tenant_id, NEW.run_id);
    RETURN NEW;
END
$fn$;
CREATE OR REPLACE TRIGGER cuo_run_genesis BEFORE INSERT ON cuo_runs
    FOR EACH ROW WHEN (NEW.chain_head IS NULL) EXECUTE FUNCTION cuo_run_genesis();
CREATE OR REPLACE FUNCTION cuo_run_opened() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    PERFORM cuo_chain_append(NEW.tenant_id, NEW.run_id, ARRAY['open'], ARRAY['{"thread_id":' || cuo_jcs(NEW.thread_id) || '}']);
    RETURN NULL;
END
$fn$;
CREATE OR REPLACE TRIGGER cuo_run_opened AFTER INSERT ON cuo_runs
    FOR EACH ROW WHEN (current_user <> cuo_owner()) EXECUTE FUNCTION cuo_run_opened();

-- That a run has ended is not taken back.
CREATE OR REPLACE FUNCTION cuo_run_stays_closed() RETURNS trigger
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    RAISE EXCEPTION 'run % has ended', NEW.run_id USING ERRCODE = 'CU005';
END
$fn$;
CREATE OR REPLACE TRIGGER cuo_run_stays_closed BEFORE UPDATE OF state ON cuo_runs
    FOR EACH ROW WHEN (OLD.state = 'closed' AND NEW.state <> 'closed' AND current_user <> cuo_owner())
    EXECUTE FUNCTION cuo_run_stays_closed();
