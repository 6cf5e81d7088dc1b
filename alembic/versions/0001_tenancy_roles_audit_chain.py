"""Tenancy, roles, the two index tables, the audit chain.

Everything below is repeatable (IF NOT EXISTS, OR REPLACE), so a database that was mended by
hand or lost its version row can be brought forward. Nothing here names a schema: the migration's
search_path does, and functions keep it (SET search_path FROM CURRENT).

Revision ID: 0001
Revises:
"""

import re

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _roles() -> dict[str, str]:
    quote = op.get_context().dialect.identifier_preparer.quote_identifier
    attributes = context.config.attributes
    return {name: quote(attributes[f"{name}_role"]) for name in ("app", "archiver", "auditor")} | {
        f"{name}_lit": attributes[f"{name}_role"].replace("'", "''")
        for name in ("app", "archiver", "auditor")
    }


def _run(script: str) -> None:
    """Executes a script statement by statement; a semicolon inside $fn$ or $do$ ends nothing."""
    parts = re.split(r"(\$(?:fn|do)\$)", script)
    statement, inside = "", False
    for part in parts:
        if part in ("$fn$", "$do$"):
            inside = not inside
            statement += part
            continue
        if inside:
            statement += part
            continue
        *ended, rest = part.split(";\n")
        for piece in ended:
            _execute(statement + piece)
            statement = ""
        statement += rest
    _execute(statement)


def _execute(statement: str) -> None:
    if statement.strip().rstrip(";").strip():
        # A colon before a word would be read as a bind parameter.
        op.execute(re.sub(r"(?<![:\w]):(?=\w)", r"\\:", statement.strip()))


OWNER_GUARD = """
DO $do$
BEGIN
    IF (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user) THEN
        RAISE EXCEPTION 'migrations must run as an owner that row security binds, not as "%"', current_user
            USING HINT = 'CREATE ROLE cyberos_owner LOGIN CREATEROLE; GRANT CREATE ON DATABASE ... TO cyberos_owner; and migrate as that role';
    END IF;
END
$do$
"""

ROLES = """
DO $do$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['{app_lit}', '{archiver_lit}', '{auditor_lit}'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', wanted);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's migration was quicker
                WHEN insufficient_privilege THEN
                    RAISE EXCEPTION 'role "%" does not exist and "%" may not create it', wanted, current_user
                        USING HINT = 'have an administrator run: CREATE ROLE ' || quote_ident(wanted) || ' LOGIN';
            END;
        END IF;
        IF (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = wanted) THEN
            RAISE EXCEPTION 'role "%" must be neither superuser nor BYPASSRLS', wanted;
        END IF;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO {app}, {archiver}, {auditor}', current_schema());
END
$do$
"""

TENANT = """
-- The one place that reads the tenant: unset and empty both mean "no tenant", which matches no row.
CREATE OR REPLACE FUNCTION cuo_tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT nullif(pg_catalog.current_setting('auth.tenant_id', true), '')::uuid $fn$
"""

FORBID = """
CREATE OR REPLACE FUNCTION cuo_forbid_change() RETURNS trigger
LANGUAGE plpgsql
AS $fn$
BEGIN
    RAISE EXCEPTION '% on "%" is refused: the log is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'CU008',
              HINT = 'whole months past the retention floor are dropped by cuo-archive drop-old-partitions';
END
$fn$
"""

PROTECT = """
-- Row security (enabled and forced), the three policies and, for the log, the refusal triggers.
-- Row triggers are inherited by months; statement triggers and policies are not: call this on each month too.
CREATE OR REPLACE FUNCTION cuo_protect(p_table regclass, p_append_only boolean, p_is_month boolean) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_name text;
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', p_table);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', p_table);
    EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', p_table);
    -- Default privileges of the database (hosted ones have them) may have given rights to others.
    FOR v_name IN SELECT DISTINCT a.grantee::regrole::text FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.oid = p_table AND a.grantee <> 0 AND a.grantee <> c.relowner LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', p_table, v_name);
    END LOOP;
    FOREACH v_name IN ARRAY ARRAY['cuo_tenant_rls', 'cuo_owner_reads', 'cuo_auditor_reads'] LOOP
        EXECUTE format('DROP POLICY IF EXISTS %I ON %s', v_name, p_table);
    END LOOP;
    EXECUTE format('CREATE POLICY cuo_tenant_rls ON %s USING (tenant_id = cuo_tenant()) WITH CHECK (tenant_id = cuo_tenant())', p_table);
    -- Forced row security blinds the owner's own guarded functions too; they must be able to count.
    EXECUTE format('CREATE POLICY cuo_owner_reads ON %s FOR SELECT TO CURRENT_USER USING (true)', p_table);
    EXECUTE format('CREATE POLICY cuo_auditor_reads ON %s FOR SELECT TO {auditor} USING (true)', p_table);
    IF p_append_only THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cuo_forbid_change()', p_table);
        EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_change_stmt BEFORE UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cuo_forbid_change()', p_table);
        IF NOT p_is_month THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER cuo_no_change BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION cuo_forbid_change()', p_table);
        END IF;
    END IF;
END
$fn$
"""

INDEX_TABLES = """
CREATE TABLE IF NOT EXISTS cuo_threads (
    tenant_id       uuid NOT NULL,
    thread_id       text NOT NULL CHECK (thread_id <> '' AND length(thread_id) <= 512),
    checkpoint_ns   text NOT NULL DEFAULT '' CHECK (length(checkpoint_ns) <= 2048),
    head_seq        bigint NOT NULL DEFAULT 0,
    newest_seq      bigint NOT NULL DEFAULT 0,
    newest_id       text,
    newest_at       timestamptz,
    greatest_id     text,
    greatest_write_id text,
    first_at        timestamptz NOT NULL DEFAULT now(),
    last_write_at   timestamptz,
    hidden_seq      bigint NOT NULL DEFAULT 0,
    deleted         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, thread_id, checkpoint_ns)
);
CREATE TABLE IF NOT EXISTS cuo_runs (
    tenant_id       uuid NOT NULL,
    run_id          uuid NOT NULL,
    thread_id       text NOT NULL,
    state           text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'waiting', 'closed')),
    outcome         text,
    trace_id        char(32) NOT NULL,
    first_at        timestamptz NOT NULL DEFAULT now(),
    newest_at       timestamptz NOT NULL DEFAULT now(),
    log_rows        bigint NOT NULL DEFAULT 0,
    last_rows       uuid[] NOT NULL DEFAULT ARRAY[]::uuid[],
    chain_seq       bigint NOT NULL DEFAULT 0,
    chain_head      bytea NOT NULL,
    lease_owner     text,
    lease_until     timestamptz,
    hidden          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, run_id)
);
CREATE INDEX IF NOT EXISTS cuo_runs_thread_idx ON cuo_runs (tenant_id, thread_id, first_at);
CREATE INDEX IF NOT EXISTS cuo_runs_recent_idx ON cuo_runs (tenant_id, first_at DESC, run_id);
COMMENT ON TABLE cuo_threads IS 'Derived index, never evidence: newest rows and the per-thread lock. Rebuildable from the log.';
COMMENT ON TABLE cuo_runs IS 'Derived index, never evidence: state of runs and heads of their chains. Rebuildable from the log.'
"""

AUDIT_TABLE = """
CREATE TABLE IF NOT EXISTS cuo_memory_audit (
    tenant_id   uuid NOT NULL,
    run_id      uuid NOT NULL,
    chain_seq   bigint NOT NULL CHECK (chain_seq > 0),
    kind        text NOT NULL,
    trace_id    char(32) NOT NULL,
    body        text NOT NULL,
    row_bytes   bytea NOT NULL,
    prev_sha256 bytea NOT NULL CHECK (length(prev_sha256) = 32),
    row_sha256  bytea NOT NULL CHECK (length(row_sha256) = 32),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id, chain_seq, created_at),
    CONSTRAINT cuo_memory_audit_kind CHECK (kind IN (
        'cuo.checkpoint_written', 'cuo.checkpoint_replayed', 'cuo.checkpoint_archive_failed',
        'cuo.routing_decision', 'cuo.llm_cascade_timeout', 'cuo.persona_defer_block', 'cuo.persona_unknown',
        'open', 'close', 'waiting', 'approval', 'write_set', 'tombstone', 'refused_overwrite', 'month_dropped', 'hold'))
) PARTITION BY RANGE (created_at);
CREATE INDEX IF NOT EXISTS cuo_memory_audit_kind_idx ON cuo_memory_audit (tenant_id, kind, created_at);
COMMENT ON COLUMN cuo_memory_audit.row_bytes IS 'RFC 8785 bytes of the row; row_sha256 = SHA-256("cuo/row/v1" || 0x00 || prev_sha256 || row_bytes)';
COMMENT ON COLUMN cuo_memory_audit.body IS 'RFC 8785 text of what the row says; embedded verbatim in row_bytes'
"""

CHAIN = """
-- A JSON string exactly as RFC 8785 writes it (to_json escapes the same set for text).
CREATE OR REPLACE FUNCTION cuo_jcs(p_text text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT coalesce(pg_catalog.to_json(p_text)::text, 'null') $fn$;

CREATE OR REPLACE FUNCTION cuo_jcs_time(p_at timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT '"' || pg_catalog.to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"' $fn$;

CREATE OR REPLACE FUNCTION cuo_genesis(p_tenant uuid, p_run uuid) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
AS $fn$ SELECT pg_catalog.sha256(pg_catalog.convert_to('cuo/genesis/v1', 'UTF8') || '\\x00'::bytea
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
    v_open   text := '{{"at":' || cuo_jcs_time(now()) || ',"body":';
    v_close  text := ',"run_id":"' || p_run || '","tenant_id":"' || p_tenant || '","trace_id":"' || p_trace || '","v":1}}';
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
        head := sha256('\\x63756f2f726f772f763100'::bytea || head || v_bytes[i]);
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
            RETURN '{{' || coalesce(array_to_string(v_parts, ',', '?'), '') || '}}';
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
            RETURN regexp_replace(v_number::text, 'e([+-])0*', 'e\\1');
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
           OR NEW.row_sha256 IS DISTINCT FROM sha256('\\x63756f2f726f772f763100'::bytea || NEW.prev_sha256 || NEW.row_bytes) THEN
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
        '{{"at":' || cuo_jcs_time(NEW.created_at) || ',"body":' || NEW.body || ',"chain_seq":' || v_seq
        || ',"kind":' || cuo_jcs(NEW.kind) || ',"run_id":"' || NEW.run_id || '","tenant_id":"' || NEW.tenant_id
        || '","trace_id":' || cuo_jcs(NEW.trace_id::text) || ',"v":1}}', 'UTF8');
    NEW.row_sha256 := sha256('\\x63756f2f726f772f763100'::bytea || v_prev || NEW.row_bytes);
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
    PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['open'], ARRAY['{{"thread_id":' || cuo_jcs(p_thread) || '}}']);
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
    PERFORM cuo_chain_append(NEW.tenant_id, NEW.run_id, ARRAY['open'], ARRAY['{{"thread_id":' || cuo_jcs(NEW.thread_id) || '}}']);
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
    EXECUTE FUNCTION cuo_run_stays_closed()
"""

MONTHS = """
-- Creates the months in use: the current one and the next three, for every partitioned table of
-- this schema. Any role may call it; it can create nothing else. A month is protected before it is
-- attached, so there is no instant at which it is readable without row security. Attaching takes a
-- weaker lock than CREATE TABLE ... PARTITION OF, so writers are not stopped.
CREATE OR REPLACE FUNCTION cuo_ensure_partitions() RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_parent text;
    v_month  date;
    v_name   text;
    v_first  date := date_trunc('month', now() AT TIME ZONE 'UTC')::date;
BEGIN
    IF NOT EXISTS (
        SELECT FROM unnest(ARRAY['cuo_memory_audit', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes']) AS p(parent)
        CROSS JOIN generate_series(0, 3) AS m(n)
        WHERE to_regclass(quote_ident(current_schema()) || '.' || p.parent) IS NOT NULL
          AND NOT EXISTS (SELECT FROM pg_inherits i
                          WHERE i.inhrelid = to_regclass(quote_ident(current_schema()) || '.' || p.parent || to_char(v_first + make_interval(months => m.n), '_YYYY_MM')))
    ) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/months/' || current_schema(), 0));
    FOREACH v_parent IN ARRAY ARRAY['cuo_memory_audit', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes'] LOOP
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_parent) IS NULL;
        FOR n IN 0 .. 3 LOOP
            v_month := (v_first + make_interval(months => n))::date;
            v_name := v_parent || to_char(v_month, '_YYYY_MM');
            CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(quote_ident(current_schema()) || '.' || v_name));
            EXECUTE format('CREATE TABLE IF NOT EXISTS %I (LIKE %I INCLUDING ALL)', v_name, v_parent);
            PERFORM cuo_protect(v_name::regclass, true, true);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_parent, v_name,
                           to_char(v_month, 'YYYY-MM-DD') || ' 00:00:00+00',
                           to_char(v_month + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00');
            RETURN NEXT v_name;
        END LOOP;
    END LOOP;
END
$fn$
"""

RIGHTS = """
DO $do$
DECLARE
    f text;
BEGIN
    PERFORM cuo_protect('cuo_threads'::regclass, false, false);
    PERFORM cuo_protect('cuo_runs'::regclass, false, false);
    PERFORM cuo_protect('cuo_memory_audit'::regclass, true, false);
    FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'cuo\\_%' LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
    END LOOP;
    -- What default privileges of the database gave to others on functions and views goes as well.
    FOR f IN SELECT DISTINCT format('FUNCTION %s FROM %s', p.oid::regprocedure, a.grantee::regrole)
             FROM pg_proc p, aclexplode(p.proacl) a
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND p.proname LIKE 'cuo\\_%'
               AND a.grantee NOT IN (0, p.proowner, '{app}'::regrole, '{archiver}'::regrole, '{auditor}'::regrole)
             UNION SELECT DISTINCT format('TABLE %s FROM %s', c.oid::regclass, a.grantee::regrole)
             FROM pg_class c, aclexplode(c.relacl) a
             WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND (c.relkind = 'v' OR c.relname = 'cuo_alembic_version') AND c.relname LIKE 'cuo\\_%'
               AND a.grantee NOT IN (0, c.relowner, '{app}'::regrole, '{archiver}'::regrole, '{auditor}'::regrole) LOOP
        EXECUTE 'REVOKE ALL ON ' || f;
    END LOOP;
END
$do$;
GRANT EXECUTE ON FUNCTION cuo_tenant(), cuo_owner(), cuo_ensure_partitions() TO {app}, {archiver}, {auditor};
GRANT EXECUTE ON FUNCTION cuo_jcs(text), cuo_jcs_time(timestamptz), cuo_genesis(uuid, uuid) TO {app}, {auditor};
GRANT SELECT ON cuo_threads, cuo_runs TO {app};
GRANT INSERT (tenant_id, thread_id, checkpoint_ns) ON cuo_threads TO {app};
GRANT INSERT (tenant_id, run_id, thread_id, trace_id) ON cuo_runs TO {app};
GRANT UPDATE (lease_owner, lease_until, state) ON cuo_runs TO {app};
GRANT UPDATE (last_write_at) ON cuo_threads TO {app};
GRANT SELECT ON cuo_threads, cuo_runs, cuo_memory_audit TO {auditor};
GRANT SELECT ON cuo_memory_audit TO {app};
GRANT INSERT (tenant_id, run_id, kind, body) ON cuo_memory_audit TO {app};
CREATE OR REPLACE VIEW cuo_memory_audit_json WITH (security_invoker = true) AS
    SELECT tenant_id, run_id, chain_seq, kind, trace_id, created_at, body::jsonb AS body,
           encode(prev_sha256, 'hex') AS prev_sha256, encode(row_sha256, 'hex') AS row_sha256
    FROM cuo_memory_audit;
GRANT SELECT ON cuo_memory_audit_json TO {app}, {auditor};
ALTER TABLE cuo_alembic_version ENABLE ROW LEVEL SECURITY;
ALTER TABLE cuo_alembic_version FORCE ROW LEVEL SECURITY;
REVOKE ALL ON cuo_alembic_version FROM PUBLIC;
DROP POLICY IF EXISTS cuo_version_reads ON cuo_alembic_version;
DROP POLICY IF EXISTS cuo_version_owner ON cuo_alembic_version;
CREATE POLICY cuo_version_reads ON cuo_alembic_version FOR SELECT USING (true);
CREATE POLICY cuo_version_owner ON cuo_alembic_version TO CURRENT_USER USING (true) WITH CHECK (true);
GRANT SELECT ON cuo_alembic_version TO {app}, {archiver}, {auditor}
"""


def upgrade() -> None:
    roles = _roles()
    _run(OWNER_GUARD)
    for step in (ROLES, TENANT, FORBID, PROTECT, INDEX_TABLES, AUDIT_TABLE, CHAIN, MONTHS, RIGHTS):
        text = step.format(**roles) if step in (ROLES, PROTECT, RIGHTS, CHAIN) else step
        _run(text)
    _run("SELECT cuo_ensure_partitions()")


REFUSE_ROWS = """
DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_memory_audit) OR EXISTS (SELECT FROM cuo_runs) OR EXISTS (SELECT FROM cuo_threads) THEN
        RAISE EXCEPTION 'downgrade refused: the log holds rows'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$
"""


def downgrade() -> None:
    if context.config.attributes["drop_rows"] != "yes":
        _run(REFUSE_ROWS)
    _run("""
        DROP VIEW IF EXISTS cuo_memory_audit_json;
        DROP TABLE IF EXISTS cuo_memory_audit, cuo_runs, cuo_threads;
        DROP FUNCTION IF EXISTS cuo_ensure_partitions(), cuo_open_run(uuid, uuid, text, text), cuo_chain_link(),
            cuo_chain_append(uuid, uuid, text[], text[]), cuo_canonical(jsonb),
            cuo_chain_write(uuid, uuid, text, bigint, bytea, text[], text[]), cuo_owner(), cuo_genesis(uuid, uuid), cuo_jcs_time(timestamptz),
            cuo_run_genesis(), cuo_run_opened(), cuo_run_stays_closed(),
            cuo_jcs(text), cuo_protect(regclass, boolean, boolean), cuo_forbid_change(), cuo_tenant();
        DROP POLICY IF EXISTS cuo_version_reads ON cuo_alembic_version;
        DROP POLICY IF EXISTS cuo_version_owner ON cuo_alembic_version;
        ALTER TABLE cuo_alembic_version NO FORCE ROW LEVEL SECURITY;
        ALTER TABLE cuo_alembic_version DISABLE ROW LEVEL SECURITY
    """)
