"""Retention: whole months past the floor go, legal holds keep them, the index can be rebuilt.

Nothing here trusts its caller. The floor, the holds, the seals and what live threads still need
are judged inside the functions, after their locks; only the archiver may call them. A month goes
in one transaction with the chain rows that say so, so there is no half-dropped month.

Errors raised for the client to translate:
  CU010 retention refuses      CU011 the log changed meanwhile, try again

Revision ID: 0003
Revises: 0002
"""

import re

from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SYSTEM_TENANT = "00000000-0000-8000-8000-73797374656d"
"""Reserved: whose rows speak of the whole log. The last six bytes spell "system"."""

RETENTION_RUN = "00000000-0000-8000-8000-726574656e74"
"""Reserved in every tenant: the run whose chain says what was dropped and held ("retent")."""


def _roles() -> dict[str, str]:
    quote = op.get_context().dialect.identifier_preparer.quote_identifier
    return {
        n: quote(context.config.attributes[f"{n}_role"]) for n in ("app", "archiver", "auditor")
    }


def _run(script: str) -> None:
    """Executes a script statement by statement; a semicolon inside $fn$ or $do$ ends nothing."""
    script = script.replace("<system>", SYSTEM_TENANT).replace("<retention>", RETENTION_RUN)
    for name, quoted in _roles().items():
        script = script.replace(f"<{name}>", quoted)
    statement, inside = "", False
    for part in re.split(r"(\$(?:fn|do)\$)", script):
        if part in ("$fn$", "$do$"):
            inside = not inside
            statement += part
        elif inside:
            statement += part
        else:
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


HOLDS = """
CREATE TABLE IF NOT EXISTS cuo_holds (
    tenant_id   uuid NOT NULL,
    hold_id     uuid NOT NULL DEFAULT gen_random_uuid(),
    kind        text NOT NULL CONSTRAINT cuo_holds_kind CHECK (kind IN ('set', 'release')),
    held_run_id uuid,
    releases    uuid,
    reason      text NOT NULL CHECK (length(reason) BETWEEN 1 AND 2000),
    placed_by   text NOT NULL CHECK (length(placed_by) BETWEEN 1 AND 200),
    created_at  timestamptz NOT NULL DEFAULT now(),
    row_sha256  bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, hold_id),
    CONSTRAINT cuo_holds_release CHECK ((kind = 'release') = (releases IS NOT NULL))
);
CREATE UNIQUE INDEX IF NOT EXISTS cuo_holds_released_idx ON cuo_holds (tenant_id, releases)
"""

HELPERS = """
-- The months there are, read from the bounds and never from the names.
CREATE OR REPLACE FUNCTION cuo_months() RETURNS TABLE (parent text, name text, month date)
LANGUAGE sql STABLE
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
    SELECT p.relname::text, c.relname::text, b.month
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bounds) AS e
    CROSS JOIN LATERAL (SELECT substring(e.bounds FROM '[0-9]{4}-[0-9]{2}-01')::date AS month) AS b
    WHERE p.oid IN ('cuo_langgraph_checkpoints'::regclass, 'cuo_langgraph_writes'::regclass, 'cuo_memory_audit'::regclass)
      AND e.bounds = format('FOR VALUES FROM (%L) TO (%L)', to_char(b.month, 'YYYY-MM-DD') || ' 00:00:00+00',
                            to_char(b.month + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00')
$fn$;

-- The root of a set of rows: SHA-256 over the roots of its buckets, a bucket being the row digests
-- that begin with the same byte, sorted and joined. (One string of all would meet the 1 GB limit.)
CREATE OR REPLACE FUNCTION cuo_month_root(p_table regclass, p_tenant uuid, p_from timestamptz, p_to timestamptz,
                                          OUT n bigint, OUT root bytea)
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    EXECUTE format('SELECT coalesce(sum(b.n), 0), sha256(coalesce(string_agg(b.root, ''''::bytea ORDER BY b.byte), ''''::bytea)) FROM (
        SELECT get_byte(row_sha256, 0) AS byte, count(*) AS n, sha256(string_agg(row_sha256, ''''::bytea ORDER BY row_sha256)) AS root
        FROM %s WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 GROUP BY 1) AS b', p_table)
        INTO n, root USING p_tenant, p_from, p_to;
END
$fn$;

-- Appends one row to the chain of the tenant's reserved run.
CREATE OR REPLACE FUNCTION cuo_retention_says(p_tenant uuid, p_kind text, p_body text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    IF cuo_open_run(p_tenant, '<retention>', '$retention', repeat('0', 32)) THEN
        -- Closed, so that no thread takes it for a run to carry on.
        UPDATE cuo_runs SET state = 'closed', outcome = 'retention', lease_until = NULL
            WHERE tenant_id = p_tenant AND run_id = '<retention>';
    END IF;
    PERFORM cuo_chain_append(p_tenant, '<retention>', ARRAY[p_kind], ARRAY[p_body]);
END
$fn$;

-- Whether a checkpoint's delta channels are rebuilt from rows of the span. Its metadata counts the
-- supersteps since each channel's snapshot; that many ancestors are needed.
CREATE OR REPLACE FUNCTION cuo_delta_reaches(p_tenant uuid, p_thread text, p_ns text, p_seq bigint, p_at timestamptz,
                                             p_from timestamptz, p_to timestamptz) RETURNS boolean
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_at     timestamptz := p_at;
    v_first  timestamptz;
    v_seq    bigint := p_seq;
    v_parent text;
    v_left   numeric;
BEGIN
    EXECUTE 'SELECT c.lg_parent_id, (SELECT max(v::numeric) FROM jsonb_path_query(c.langgraph #> ''{metadata,counters_since_delta_snapshot}'',
                                     ''strict $.** ? (@.type() == "number")'') AS v)
             FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3
               AND c.seq = $4 AND c.created_at = $5'
        INTO v_parent, v_left USING p_tenant, p_thread, p_ns, p_seq, p_at;
    SELECT t.first_at INTO v_first FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
    -- One more than counted: the ancestor that holds the snapshot.
    WHILE v_parent IS NOT NULL AND v_left >= 0 LOOP
        EXECUTE 'SELECT c.lg_parent_id, c.seq, c.created_at FROM cuo_langgraph_checkpoints c
                 WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                   AND c.langgraph ? ''channel_versions'' AND c.created_at >= $5 AND c.created_at <= $6 AND c.seq < $7
                 ORDER BY c.seq DESC LIMIT 1'
            INTO v_parent, v_seq, v_at
            USING p_tenant, p_thread, p_ns, v_parent, v_first, v_at + interval '1 day', v_seq;
        IF v_at >= p_from AND v_at < p_to THEN
            RETURN true;
        END IF;
        EXIT WHEN v_at IS NULL OR v_at < p_from;
        v_left := v_left - 1;
    END LOOP;
    RETURN false;
END
$fn$
"""

FACTS = """
-- What a month holds and what forbids dropping it. Reads the month itself, not estimates.
CREATE OR REPLACE FUNCTION cuo_month_facts(p_month date, p_months integer) RETURNS jsonb
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_start   timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end     timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_since   timestamptz := (now() AT TIME ZONE 'UTC' - make_interval(months => p_months)) AT TIME ZONE 'UTC';
    v_kept    timestamptz;
    v_table   record;
    v_thread  record;
    v_names   jsonb := '{}';
    v_rows    jsonb := '{}';
    v_blind   text[] := ARRAY[]::text[];
    v_why     jsonb[] := ARRAY[]::jsonb[];
    v_n       bigint;
    v_at      timestamptz;
    v_newest  timestamptz;
    v_bytes   bigint := 0;
    v_runs    bigint := 0;
    v_tenants bigint := 0;
    v_some    text[];
BEGIN
    FOR v_table IN SELECT m.parent, m.name FROM cuo_months() AS m WHERE m.month = p_month ORDER BY m.parent LOOP
        EXECUTE format('SELECT count(*), max(created_at) FROM %I', v_table.name) INTO v_n, v_at;
        v_names := v_names || jsonb_build_object(v_table.parent, v_table.name);
        v_rows := v_rows || jsonb_build_object(v_table.parent, v_n);
        v_newest := greatest(v_newest, v_at);
        v_bytes := v_bytes + pg_total_relation_size(quote_ident(v_table.name)::regclass);
        -- Forced row security shows an owner without its policy an empty month, and an empty month may go.
        IF NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = quote_ident(v_table.name)::regclass AND p.polname = 'cuo_owner_reads'
                       AND (SELECT relowner FROM pg_class WHERE oid = p.polrelid) = ANY (p.polroles))
           OR (v_n = 0 AND pg_relation_size(quote_ident(v_table.name)::regclass) > 0) THEN
            v_blind := v_blind || v_table.name;
        END IF;
    END LOOP;
    IF (SELECT count(*) FROM jsonb_object_keys(v_names)) < 3 THEN
        RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'rows', v_rows, 'bytes', v_bytes, 'runs', 0, 'tenants', 0, 'newest_row', v_newest,
            'refusals', jsonb_build_array(jsonb_build_object('code', 'incomplete',
                'detail', 'one of its three tables is missing: somebody removed it, or it was never made')));
    END IF;
    IF cardinality(v_blind) > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'blind', 'detail', 'rows may be hidden from the owner in ' || array_to_string(v_blind, ', '));
    END IF;
    EXECUTE format('SELECT count(DISTINCT (tenant_id, run_id)), count(DISTINCT tenant_id), count(*) FILTER (WHERE kind = ''cuo.checkpoint_written'') FROM %I',
                   v_names ->> 'cuo_memory_audit') INTO v_runs, v_tenants, v_n;
    IF v_n <> (v_rows ->> 'cuo_langgraph_checkpoints')::bigint THEN
        v_why := v_why || jsonb_build_object('code', 'uneven', 'detail', format('%s log rows, but chains speak of %s: verify before anything goes',
            v_rows ->> 'cuo_langgraph_checkpoints', v_n));
    END IF;

    -- The floor. An empty month counts from its end.
    v_kept := (coalesce(v_newest, v_end) AT TIME ZONE 'UTC' + make_interval(months => p_months)) AT TIME ZONE 'UTC';
    IF now() <= v_kept OR clock_timestamp() <= v_kept THEN
        v_why := v_why || jsonb_build_object('code', 'young', 'detail', 'kept until ' || to_char(v_kept, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
    END IF;
    -- Months are only ever made for the current one and three ahead, so a year of them without a hole
    -- is a clock that was right for a year. A clock that jumped has a hole behind it.
    SELECT count(*) INTO v_n FROM generate_series(0, 12) AS g(n)
        WHERE NOT EXISTS (SELECT FROM cuo_months() AS m WHERE m.parent = 'cuo_memory_audit'
                          AND m.month = (date_trunc('month', now() AT TIME ZONE 'UTC') - make_interval(months => g.n))::date);
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'clock', 'detail', format(
            '%s of the current and the last twelve months are not there: the clock may have jumped', v_n));
    END IF;

    EXECUTE format('SELECT count(*), (array_agg(h.hold_id::text ORDER BY h.created_at))[1 : 3] FROM cuo_holds h WHERE h.kind = ''set''
        AND NOT EXISTS (SELECT FROM cuo_holds r WHERE r.tenant_id = h.tenant_id AND r.releases = h.hold_id)
        AND EXISTS (SELECT FROM %I a WHERE a.tenant_id = h.tenant_id AND (h.held_run_id IS NULL OR a.run_id = h.held_run_id))',
        v_names ->> 'cuo_memory_audit') INTO v_n, v_some;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'hold', 'detail', format('%s legal holds: %s', v_n, array_to_string(v_some, ', ')));
    END IF;

    -- An unfinished run needs its claims (an answer counts once, a skill runs once) and its rows.
    -- One that nobody touched since the floor is over; a waiting one never is.
    EXECUTE format('SELECT count(*), (array_agg(r.run_id::text ORDER BY r.first_at))[1 : 3] FROM cuo_runs r
        WHERE NOT r.hidden AND r.first_at < $2
          AND (r.state = ''waiting'' OR ((r.state = ''open'' OR r.outcome = ''run_failed'') AND greatest(r.newest_at, r.lease_until) >= $1))
          AND EXISTS (SELECT FROM %I a WHERE a.tenant_id = r.tenant_id AND a.run_id = r.run_id)',
        v_names ->> 'cuo_memory_audit') INTO v_n, v_some USING v_since, v_end;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'run', 'detail', format('%s unfinished runs: %s', v_n, array_to_string(v_some, ', ')));
    END IF;

    -- A thread in use needs its newest checkpoint. A namespace of one task (its last part has a
    -- colon) is done with once the thread itself has moved on.
    SELECT count(*), (array_agg(q.thread_id ORDER BY q.thread_id))[1 : 3] INTO v_n, v_some FROM (
        SELECT DISTINCT t.tenant_id, t.thread_id FROM cuo_threads t
        WHERE NOT t.deleted AND t.newest_at >= v_start AND t.newest_at < v_end
          AND regexp_replace(t.checkpoint_ns, '^.*[|]', '') !~ ':'
          AND (EXISTS (SELECT FROM cuo_threads o WHERE o.tenant_id = t.tenant_id AND o.thread_id = t.thread_id
                       AND greatest(o.newest_at, o.last_write_at) >= v_since)
               OR EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = t.tenant_id AND r.thread_id = t.thread_id
                          AND NOT r.hidden AND r.newest_at >= v_since))) AS q;
    IF v_n > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'thread', 'detail', format('the newest checkpoint of %s threads in use: %s', v_n, array_to_string(v_some, ', ')));
    END IF;
    v_some := ARRAY[]::text[];
    FOR v_thread IN SELECT t.tenant_id, t.thread_id, t.checkpoint_ns, t.newest_seq, t.newest_at FROM cuo_threads t
                    WHERE NOT t.deleted AND t.first_at < v_end AND t.newest_at >= greatest(v_end, v_since)
                      AND regexp_replace(t.checkpoint_ns, '^.*[|]', '') !~ ':' LOOP
        IF cuo_delta_reaches(v_thread.tenant_id, v_thread.thread_id, v_thread.checkpoint_ns, v_thread.newest_seq, v_thread.newest_at, v_start, v_end) THEN
            v_some := v_some || v_thread.thread_id;
        END IF;
    END LOOP;
    IF cardinality(v_some) > 0 THEN
        v_why := v_why || jsonb_build_object('code', 'delta', 'detail', format('delta channels of %s threads reach back into it: %s',
            cardinality(v_some), array_to_string(v_some[1 : 3], ', ')));
    END IF;

    IF to_regclass('cuo_seal_heads') IS NOT NULL THEN
        EXECUTE 'SELECT EXISTS (SELECT FROM cuo_seal_heads)::integer' INTO v_n;
        IF v_n > 0 THEN
            EXECUTE format('SELECT count(*), (array_agg(a.run_id::text))[1 : 3] FROM (
                    SELECT tenant_id, run_id, max(chain_seq) AS top FROM %I GROUP BY 1, 2) AS a
                WHERE NOT EXISTS (SELECT FROM cuo_seal_leaves l WHERE l.tenant_id = a.tenant_id AND l.run_id = a.run_id AND l.chain_seq >= a.top)',
                v_names ->> 'cuo_memory_audit') INTO v_n, v_some;
            IF v_n > 0 THEN
                v_why := v_why || jsonb_build_object('code', 'unsealed', 'detail', format('the chains of %s runs are not sealed: %s', v_n, array_to_string(v_some, ', ')));
            END IF;
        END IF;
    END IF;
    RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'rows', v_rows, 'bytes', v_bytes, 'runs', v_runs, 'tenants', v_tenants,
                              'newest_row', v_newest, 'refusals', to_jsonb(v_why));
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_require_floor(p_months integer) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF p_months IS NULL OR p_months < 84 OR p_months > 12000 THEN
        RAISE EXCEPTION 'months are kept for 84 months after their newest row at least' USING ERRCODE = 'CU010';
    END IF;
    -- An old snapshot would show neither a new hold nor a thread that woke up.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'retention reads committed rows as they are now: use READ COMMITTED' USING ERRCODE = 'CU010';
    END IF;
END
$fn$;

-- Every month that could be due, with what forbids dropping it.
CREATE OR REPLACE FUNCTION cuo_retention_report(p_months integer DEFAULT 84) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_month date;
BEGIN
    PERFORM cuo_require_floor(p_months);
    FOR v_month IN SELECT DISTINCT m.month FROM cuo_months() AS m
                   WHERE m.month + make_interval(months => p_months) < now() AT TIME ZONE 'UTC' ORDER BY 1 LOOP
        RETURN NEXT cuo_month_facts(v_month, p_months);
    END LOOP;
END
$fn$
"""

DROP = """
-- Writes into one tenant's chain what goes with the month, and takes its index rows away.
-- A cut says, of a run that has rows in other months too, which of its chain rows are gone, the
-- digest the next one follows, and how many log rows went.
CREATE OR REPLACE FUNCTION cuo_drop_tenant_month(p_tenant uuid, p_month date, p_months integer, p_names jsonb, p_newest timestamptz,
                                                 OUT roots bytea, OUT dead bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_start  timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end    timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_audit  text := quote_ident(p_names ->> 'cuo_memory_audit');
    v_log    text := quote_ident(p_names ->> 'cuo_langgraph_checkpoints');
    v_writes text := quote_ident(p_names ->> 'cuo_langgraph_writes');
    v_dead   uuid[];
    v_alive  uuid[];
    v_heads  bigint[];
    v_cuts   text;
    v_tables text := '';
    v_parent text;
    v_root   record;
    v_n      bigint;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    roots := ''::bytea;
    FOREACH v_parent IN ARRAY ARRAY['cuo_holds', 'cuo_langgraph_checkpoints', 'cuo_langgraph_writes', 'cuo_memory_audit', 'cuo_thread_tombstones'] LOOP
        SELECT * INTO v_root FROM cuo_month_root(quote_ident(coalesce(p_names ->> v_parent, v_parent))::regclass, p_tenant, v_start, v_end);
        v_tables := v_tables || ',"' || v_parent || '":{"rows":' || v_root.n || ',"sha256":"' || encode(v_root.root, 'hex') || '"}';
        roots := roots || v_root.root;
    END LOOP;
    -- A run whose index row counts exactly the chain rows that stand here has none elsewhere.
    EXECUTE 'SELECT array_agg(a.run_id ORDER BY a.run_id) FILTER (WHERE NOT a.alive), array_agg(a.top ORDER BY a.run_id) FILTER (WHERE NOT a.alive),
                    array_agg(a.run_id) FILTER (WHERE a.alive)
        FROM (SELECT q.run_id, q.top,
                     CASE WHEN r.chain_seq = q.n AND q.top = q.n THEN false
                          ELSE EXISTS (SELECT FROM cuo_memory_audit o WHERE o.tenant_id = $1 AND o.run_id = q.run_id AND o.created_at < $2)
                            OR EXISTS (SELECT FROM cuo_memory_audit o WHERE o.tenant_id = $1 AND o.run_id = q.run_id AND o.created_at >= $3) END AS alive
              FROM (SELECT run_id, count(*) AS n, max(chain_seq) AS top FROM ' || v_audit || ' WHERE tenant_id = $1 GROUP BY run_id) AS q
              LEFT JOIN cuo_runs r ON r.tenant_id = $1 AND r.run_id = q.run_id) AS a'
        INTO v_dead, v_heads, v_alive USING p_tenant, v_start, v_end;
    -- Cuts told in this month itself are told again, for runs that are still there.
    EXECUTE 'SELECT string_agg(''{"first_at":'' || cuo_jcs_time(c.first_at) || '',"gaps":['' || c.gaps || ''],"run_id":"'' || c.run_id
                    || ''","thread_id":'' || cuo_jcs(c.thread_id) || ''}'', '','' ORDER BY c.run_id) FROM (
        WITH gap AS (
            SELECT g.run_id, min(g.chain_seq) AS low, max(g.chain_seq) AS high, (array_agg(g.row_sha256 ORDER BY g.chain_seq DESC))[1] AS head,
                   count(*) FILTER (WHERE g.kind = ''cuo.checkpoint_written'') AS log_rows
            FROM (SELECT run_id, chain_seq, row_sha256, kind, chain_seq - row_number() OVER (PARTITION BY run_id ORDER BY chain_seq) AS island
                  FROM ' || v_audit || ' WHERE tenant_id = $1 AND run_id = ANY ($2)) AS g
            GROUP BY g.run_id, g.island
            UNION
            SELECT (c ->> ''run_id'')::uuid, (g ->> ''from'')::bigint, (g ->> ''to'')::bigint, decode(g ->> ''head'', ''hex''), (g ->> ''log_rows'')::bigint
            FROM ' || v_audit || ' a, jsonb_array_elements(a.body::jsonb -> ''cuts'') AS c, jsonb_array_elements(c -> ''gaps'') AS g
            WHERE a.tenant_id = $1 AND a.run_id = ''<retention>'' AND a.kind = ''month_dropped'' AND NOT (c ->> ''run_id'')::uuid = ANY ($3)
        )
        SELECT p.run_id, r.first_at, r.thread_id,
               string_agg(''{"from":'' || p.low || '',"head":"'' || encode(p.head, ''hex'') || ''","log_rows":'' || p.log_rows || '',"to":'' || p.high || ''}'', '','' ORDER BY p.low) AS gaps
        FROM gap p JOIN cuo_runs r ON r.tenant_id = $1 AND r.run_id = p.run_id
        GROUP BY p.run_id, r.first_at, r.thread_id) AS c'
        INTO v_cuts USING p_tenant, coalesce(v_alive, ARRAY[]::uuid[]), coalesce(v_dead, ARRAY[]::uuid[]);

    dead := coalesce(cardinality(v_dead), 0);
    SELECT count(*) INTO v_n FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = ANY (v_dead);
    DELETE FROM cuo_runs r USING unnest(v_dead, v_heads) AS d(run_id, top)
        WHERE r.tenant_id = p_tenant AND r.run_id = d.run_id AND r.chain_seq = d.top;
    GET DIAGNOSTICS dead = ROW_COUNT;
    IF dead <> v_n THEN
        RAISE EXCEPTION 'runs of the month went on while it was being dropped, or their chains are cut short' USING ERRCODE = 'CU011';
    END IF;
    -- Threads without a row left anywhere go from the index; deleted ones stay, or their ids could be
    -- used again. head_seq keeps out a thread that somebody is writing to at this moment.
    EXECUTE 'WITH here AS (
            SELECT h.thread_id, max(h.seq) AS top FROM (
                SELECT thread_id, max(seq) AS seq FROM ' || v_log || ' WHERE tenant_id = $1 GROUP BY 1
                UNION ALL SELECT thread_id, max(seq) FROM ' || v_writes || ' WHERE tenant_id = $1 GROUP BY 1) AS h GROUP BY 1
        ), gone AS (
            DELETE FROM cuo_threads t USING here h
            WHERE t.tenant_id = $1 AND t.thread_id = h.thread_id AND t.checkpoint_ns = '''' AND NOT t.deleted AND t.head_seq <= h.top
              AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = $1 AND r.thread_id = t.thread_id AND NOT r.run_id = ANY ($4))
              AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = t.thread_id AND c.created_at < $2)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.thread_id = t.thread_id AND c.created_at >= $3)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = $1 AND w.thread_id = t.thread_id AND w.created_at < $2)
              AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = $1 AND w.thread_id = t.thread_id AND w.created_at >= $3)
            RETURNING t.thread_id
        )
        DELETE FROM cuo_threads t USING gone WHERE t.tenant_id = $1 AND t.thread_id = gone.thread_id AND t.checkpoint_ns <> '''''
        USING p_tenant, v_start, v_end, coalesce(v_dead, ARRAY[]::uuid[]);

    PERFORM cuo_retention_says(p_tenant, 'month_dropped', '{"cuts":[' || coalesce(v_cuts, '') || '],"month":"' || to_char(p_month, 'YYYY-MM')
        || '","newest_row":' || coalesce(cuo_jcs_time(p_newest), 'null') || ',"older_than_months":' || p_months || ',"tables":{' || substr(v_tables, 2) || '}}');
END
$fn$;

-- Drops one month of all three tables, or changes nothing. Returns what it found and did.
-- What is slow comes first, under locks that nobody minds. Then the parents are locked against
-- everybody for as long as DROP TABLE takes; whoever waits for them waits that long or for the
-- time-out, since a lock that is asked for stops those who come later.
CREATE OR REPLACE FUNCTION cuo_drop_month(p_month date, p_months integer DEFAULT 84, p_tries integer DEFAULT 30, p_wait_ms integer DEFAULT 100) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
SET lock_timeout TO '0'
AS $fn$
DECLARE
    v_start  timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end    timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_was    text := current_setting('auth.tenant_id', true);
    v_names  jsonb;
    v_drop   text;
    v_facts  jsonb;
    v_tenant uuid;
    v_done   record;
    v_roots  bytea := ''::bytea;
    v_locked timestamptz;
BEGIN
    PERFORM cuo_require_floor(p_months);
    IF p_month IS NULL OR extract(day FROM p_month) <> 1 OR NOT p_tries BETWEEN 1 AND 1000 OR NOT p_wait_ms BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a month is named by its first day; 1 to 1000 tries of 1 to 1000 ms each' USING ERRCODE = 'CU010';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/retention/' || current_schema(), 0));
    SELECT jsonb_object_agg(m.parent, m.name), string_agg(quote_ident(m.name), ', ' ORDER BY m.name) INTO v_names, v_drop
        FROM cuo_months() AS m WHERE m.month = p_month;
    IF v_names IS NULL THEN
        RETURN jsonb_build_object('month', to_char(p_month, 'YYYY-MM'), 'status', 'absent', 'refusals', '[]'::jsonb);
    END IF;
    EXECUTE 'LOCK TABLE ' || v_drop || ' IN SHARE MODE';
    v_facts := cuo_month_facts(p_month, p_months);
    IF jsonb_array_length(v_facts -> 'refusals') > 0 THEN
        RETURN v_facts || '{"status":"refused"}';
    END IF;

    PERFORM cuo_ensure_partitions();
    FOR v_tenant IN EXECUTE format('SELECT tenant_id FROM %I UNION SELECT tenant_id FROM %I UNION SELECT tenant_id FROM %I
                                    UNION SELECT tenant_id FROM cuo_thread_tombstones WHERE created_at >= $1 AND created_at < $2 ORDER BY 1',
            v_names ->> 'cuo_memory_audit', v_names ->> 'cuo_langgraph_checkpoints', v_names ->> 'cuo_langgraph_writes') USING v_start, v_end LOOP
        SELECT * INTO v_done FROM cuo_drop_tenant_month(v_tenant, p_month, p_months, v_names, (v_facts ->> 'newest_row')::timestamptz);
        v_roots := v_roots || decode(replace(v_tenant::text, '-', ''), 'hex') || v_done.roots;
    END LOOP;
    PERFORM cuo_retention_says('<system>', 'month_dropped', '{"by":' || cuo_jcs(session_user::text) || ',"bytes":' || (v_facts ->> 'bytes')
        || ',"month":"' || to_char(p_month, 'YYYY-MM')
        || '","older_than_months":' || p_months || ',"root_sha256":"' || encode(sha256(v_roots), 'hex')
        || '","rows":' || (SELECT sum(v::bigint) FROM jsonb_each_text(v_facts -> 'rows') AS e(k, v))
        || ',"runs":' || (v_facts ->> 'runs') || ',"tenants":' || (v_facts ->> 'tenants') || ',"whole":true}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);

    FOR v_try IN 1 .. p_tries LOOP
        BEGIN
            PERFORM set_config('lock_timeout', p_wait_ms::text, true);
            -- Readers of the month itself hold nobody up, so they are waited for first.
            EXECUTE 'LOCK TABLE ' || v_drop || ' IN ACCESS EXCLUSIVE MODE';
            -- In the order in which an append takes them.
            LOCK TABLE ONLY cuo_langgraph_writes, ONLY cuo_langgraph_checkpoints, ONLY cuo_memory_audit IN ACCESS EXCLUSIVE MODE;
            v_locked := clock_timestamp();
            EXECUTE 'DROP TABLE ' || v_drop;
            RETURN v_facts || jsonb_build_object('status', 'dropped', 'tries', v_try,
                'locked_ms', round(extract(epoch FROM clock_timestamp() - v_locked) * 1000, 1));
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                IF v_try = p_tries THEN
                    RAISE;
                END IF;
        END;
        PERFORM pg_sleep(least(0.05 * v_try, 1.0) * (0.5 + random()));
    END LOOP;
END
$fn$;

-- Retention failed and changed nothing: says so under the system tenant.
CREATE OR REPLACE FUNCTION cuo_archive_failed(p_month date, p_step text, p_error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_was text := current_setting('auth.tenant_id', true);
BEGIN
    IF p_step !~ '^[a-z_-]{1,40}$' OR p_error !~ '^[A-Za-z0-9_]{1,80}$' THEN
        RAISE EXCEPTION 'a failure is told by the names of its step and its error' USING ERRCODE = 'CU010';
    END IF;
    PERFORM cuo_ensure_partitions();
    PERFORM cuo_retention_says('<system>', 'cuo.checkpoint_archive_failed', '{"by":' || cuo_jcs(session_user::text) || ',"error":' || cuo_jcs(p_error)
        || ',"month":' || coalesce('"' || to_char(p_month, 'YYYY-MM') || '"', 'null') || ',"step":' || cuo_jcs(p_step) || '}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
END
$fn$
"""

HOLDING = """
-- Places a hold, or ends one (p_releases). The chain holds the row's digest, not its words.
CREATE OR REPLACE FUNCTION cuo_hold(p_tenant uuid, p_run uuid, p_releases uuid, p_reason text, p_by text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_was  text := current_setting('auth.tenant_id', true);
    v_id   uuid := gen_random_uuid();
    v_kind text := CASE WHEN p_releases IS NULL THEN 'set' ELSE 'release' END;
    v_run  uuid := p_run;
    v_sha  bytea;
BEGIN
    -- Not while a month is being dropped: the drop would not see it.
    PERFORM pg_advisory_xact_lock(hashtextextended('cuo/retention/' || current_schema(), 0));
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    IF p_releases IS NOT NULL THEN
        SELECT h.held_run_id INTO v_run FROM cuo_holds h WHERE h.tenant_id = p_tenant AND h.hold_id = p_releases AND h.kind = 'set'
            AND NOT EXISTS (SELECT FROM cuo_holds r WHERE r.tenant_id = p_tenant AND r.releases = p_releases);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'tenant % has no hold % in force', p_tenant, p_releases USING ERRCODE = 'CU012';
        END IF;
    ELSIF NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = p_tenant AND (p_run IS NULL OR r.run_id = p_run)) THEN
        RAISE EXCEPTION 'tenant % has no such run', p_tenant USING ERRCODE = 'CU012';
    END IF;
    PERFORM cuo_ensure_partitions();
    v_sha := sha256(convert_to('{"created_at":' || cuo_jcs_time(now()) || ',"held_run_id":' || coalesce('"' || v_run || '"', 'null')
        || ',"hold_id":"' || v_id || '","kind":"' || v_kind || '","placed_by":' || cuo_jcs(p_by) || ',"reason":' || cuo_jcs(p_reason)
        || ',"releases":' || coalesce('"' || p_releases || '"', 'null') || ',"tenant_id":"' || p_tenant || '"}', 'UTF8'));
    INSERT INTO cuo_holds (tenant_id, hold_id, kind, held_run_id, releases, reason, placed_by, row_sha256)
        VALUES (p_tenant, v_id, v_kind, v_run, p_releases, p_reason, p_by, v_sha);
    PERFORM cuo_retention_says(p_tenant, 'hold', '{"held_run_id":' || coalesce('"' || v_run || '"', 'null') || ',"hold_id":"' || v_id
        || '","kind":"' || v_kind || '","releases":' || coalesce('"' || p_releases || '"', 'null') || ',"row_sha256":"' || encode(v_sha, 'hex') || '"}');
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
    RETURN v_id;
END
$fn$;

-- Holds of one tenant, or of all, with the time and reason of their end.
CREATE OR REPLACE FUNCTION cuo_list_holds(p_tenant uuid) RETURNS TABLE (tenant_id uuid, hold_id uuid, run_id uuid, reason text, placed_by text,
    created_at timestamptz, released_at timestamptz, release_reason text, released_by text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT h.tenant_id, h.hold_id, h.held_run_id, h.reason, h.placed_by, h.created_at, r.created_at, r.reason, r.placed_by
    FROM cuo_holds h LEFT JOIN cuo_holds r ON r.tenant_id = h.tenant_id AND r.releases = h.hold_id
    WHERE h.kind = 'set' AND (p_tenant IS NULL OR h.tenant_id = p_tenant) ORDER BY h.created_at, h.hold_id
$fn$;

-- Waiting runs older than this: their approvals have run out.
CREATE OR REPLACE FUNCTION cuo_waiting_runs(p_older interval) RETURNS TABLE (tenant_id uuid, run_id uuid, thread_id text, first_at timestamptz, newest_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT r.tenant_id, r.run_id, r.thread_id, r.first_at, r.newest_at FROM cuo_runs r
    WHERE r.state = 'waiting' AND NOT r.hidden AND r.first_at < now() - p_older ORDER BY r.first_at, r.run_id
$fn$
"""

REBUILD = """
-- What cuo_runs must say of a tenant, from its chains, tombstones and cuts. Leases are not in the
-- log: a derived one has run out.
CREATE OR REPLACE FUNCTION cuo_derived_runs(p_tenant uuid) RETURNS SETOF cuo_runs
LANGUAGE sql
SET search_path FROM CURRENT
AS $fn$
    WITH cut AS (
        SELECT q.run_id, (array_agg(q.thread_id ORDER BY q.n DESC))[1] AS thread_id, (array_agg(q.first_at ORDER BY q.n DESC))[1] AS first_at, sum(q.log_rows) AS log_rows
        FROM (SELECT DISTINCT ON ((c ->> 'run_id'), (g ->> 'from')) (c ->> 'run_id')::uuid AS run_id, c ->> 'thread_id' AS thread_id,
                     (c ->> 'first_at')::timestamptz AS first_at, (g ->> 'log_rows')::bigint AS log_rows, a.chain_seq AS n
              FROM cuo_memory_audit a, jsonb_array_elements(a.body::jsonb -> 'cuts') AS c, jsonb_array_elements(c -> 'gaps') AS g
              WHERE a.tenant_id = p_tenant AND a.run_id = '<retention>' AND a.kind = 'month_dropped'
              ORDER BY (c ->> 'run_id'), (g ->> 'from'), a.chain_seq DESC) AS q
        GROUP BY q.run_id
    ), chain AS (
        SELECT a.run_id, max(a.chain_seq) AS seq, min(a.chain_seq) AS low, min(a.created_at) AS first_at, max(a.created_at) AS newest_at,
               min(a.trace_id) AS trace_id, count(*) FILTER (WHERE a.kind = 'cuo.checkpoint_written') AS log_rows,
               max(a.chain_seq) FILTER (WHERE a.kind = 'close') AS closed,
               max(a.chain_seq) FILTER (WHERE a.kind = 'waiting') AS waited,
               max(a.chain_seq) FILTER (WHERE a.kind = 'cuo.checkpoint_written') AS told,
               bool_or(a.kind = 'tombstone') AS hides
        FROM cuo_memory_audit a WHERE a.tenant_id = p_tenant GROUP BY a.run_id
    ), said AS (
        SELECT a.run_id, (array_agg(a.row_sha256) FILTER (WHERE a.chain_seq = c.seq))[1] AS head,
               max(a.body::jsonb ->> 'thread_id') FILTER (WHERE a.chain_seq = 1) AS thread_id,
               max(a.body::jsonb ->> 'outcome') FILTER (WHERE a.chain_seq = c.closed) AS outcome,
               max(a.body::jsonb ->> 'task_id') FILTER (WHERE a.chain_seq = c.waited) AS task_id,
               max(a.created_at) FILTER (WHERE a.chain_seq = c.waited) AS waited_at,
               max(a.created_at) FILTER (WHERE a.chain_seq = c.told) AS told_at
        FROM chain c JOIN cuo_memory_audit a ON a.tenant_id = p_tenant AND a.run_id = c.run_id AND a.chain_seq IN (1, c.seq, c.closed, c.waited, c.told)
        GROUP BY a.run_id
    ), last AS (
        -- One append's rows share checkpoint and time; a copied thread has many appends at one time.
        SELECT q.run_id, array_agg(k.checkpoint_id ORDER BY k.seq) AS ids
        FROM (SELECT DISTINCT ON (s.run_id) s.run_id, k.created_at, k.thread_id, k.checkpoint_ns, k.lg_checkpoint_id
              FROM said s JOIN cuo_langgraph_checkpoints k ON k.tenant_id = p_tenant AND k.run_id = s.run_id AND k.created_at = s.told_at
              ORDER BY s.run_id, k.seq DESC) AS q
        JOIN cuo_langgraph_checkpoints k ON k.tenant_id = p_tenant AND k.run_id = q.run_id AND k.created_at = q.created_at
            AND k.thread_id = q.thread_id AND k.checkpoint_ns = q.checkpoint_ns AND k.lg_checkpoint_id IS NOT DISTINCT FROM q.lg_checkpoint_id
        GROUP BY q.run_id
    ), hiding AS (
        SELECT t.hidden_run_id AS run_id, NULL::text AS thread_id, t.created_at, t.run_id AS by_run FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant AND t.kind = 'delete_run'
        UNION ALL SELECT NULL, t.thread_id, t.created_at, t.run_id FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant AND t.kind = 'delete_thread'
    ), named AS (
        SELECT c.*, s.head, coalesce(s.thread_id, cut.thread_id, '$unknown') AS thread_id, s.outcome AS how, s.task_id, s.waited_at, s.told_at, l.ids,
               CASE WHEN c.low = 1 THEN c.first_at ELSE coalesce(cut.first_at, c.first_at) END AS began,
               c.log_rows + coalesce(cut.log_rows, 0) AS logged,
               c.closed IS NOT NULL AND s.outcome = 'run_failed' AND coalesce(c.told > c.closed, false) AS again,
               c.hides AND c.closed IS NULL AND c.log_rows = 0 AS tombstone
        FROM chain c JOIN said s USING (run_id) LEFT JOIN last l USING (run_id) LEFT JOIN cut USING (run_id)
    )
    SELECT p_tenant, n.run_id, n.thread_id,
           CASE WHEN n.run_id = '<retention>' OR n.tombstone OR (n.closed IS NOT NULL AND NOT n.again) THEN 'closed'
                -- A waiting run goes on with an answer, with a checkpoint, or, at a breakpoint, with any write.
                WHEN n.waited > coalesce(n.closed, 0)
                     AND NOT EXISTS (SELECT FROM cuo_langgraph_checkpoints k WHERE k.tenant_id = p_tenant AND k.run_id = n.run_id
                                     AND k.created_at > n.waited_at AND k.langgraph ? 'channel_versions')
                     AND NOT EXISTS (SELECT FROM cuo_langgraph_writes w WHERE w.tenant_id = p_tenant AND w.thread_id = n.thread_id AND w.run_id = n.run_id
                                     AND w.created_at > n.waited_at AND (w.channel = '__resume__' OR (n.task_id IS NULL AND w.lg_checkpoint_id NOT LIKE '$%')))
                THEN 'waiting' ELSE 'open' END,
           CASE WHEN n.run_id = '<retention>' THEN 'retention' WHEN n.tombstone THEN 'tombstone' ELSE n.how END,
           n.trace_id, n.began, n.newest_at, n.logged, coalesce(n.ids, ARRAY[]::uuid[]), n.seq, n.head, NULL::text, n.newest_at + interval '15 minutes',
           EXISTS (SELECT FROM hiding h WHERE h.run_id = n.run_id
                   OR (h.thread_id = n.thread_id AND h.by_run <> n.run_id AND n.began <= h.created_at))
    FROM named n
$fn$;

-- What cuo_threads must say of a tenant.
CREATE OR REPLACE FUNCTION cuo_derived_threads(p_tenant uuid) RETURNS SETOF cuo_threads
LANGUAGE sql
SET search_path FROM CURRENT
AS $fn$
    WITH run AS (SELECT r.run_id, r.hidden FROM cuo_derived_runs(p_tenant) AS r),
    hid AS (
        SELECT t.thread_id, t.kind, t.up_to_seq, t.created_at, t.hidden_run_id FROM cuo_thread_tombstones t WHERE t.tenant_id = p_tenant
    ), carrier AS (
        SELECT c.thread_id, c.checkpoint_ns, c.seq, c.lg_checkpoint_id, c.created_at, c.run_id, coalesce(r.hidden, false) AS hidden
        FROM cuo_langgraph_checkpoints c LEFT JOIN run r USING (run_id)
        WHERE c.tenant_id = p_tenant AND c.langgraph ? 'channel_versions'
    ), log AS (
        SELECT c.thread_id, c.checkpoint_ns, max(c.seq) AS seq, min(c.created_at) AS first_at, NULL::timestamptz AS write_at, NULL::text AS write_id
        FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = p_tenant GROUP BY 1, 2
        UNION ALL
        SELECT w.thread_id, w.checkpoint_ns, max(w.seq), min(w.created_at), max(w.created_at), max(w.lg_checkpoint_id COLLATE "C")
        FROM cuo_langgraph_writes w WHERE w.tenant_id = p_tenant GROUP BY 1, 2
        UNION ALL
        SELECT h.thread_id, '', max(h.up_to_seq), min(h.created_at), NULL, NULL FROM hid h GROUP BY 1
    ), spaces AS (
        SELECT l.thread_id, l.checkpoint_ns, min(l.first_at) AS first_at, max(l.write_at) AS write_at, max(l.write_id COLLATE "C") AS write_id,
               max(max(l.seq)) OVER (PARTITION BY l.thread_id) AS top, min(min(l.first_at)) OVER (PARTITION BY l.thread_id) AS began
        FROM log l GROUP BY l.thread_id, l.checkpoint_ns
    ), roots AS (
        -- Rows of a subgraph alone still make the thread's own row, which is its lock.
        SELECT * FROM spaces
        UNION ALL
        SELECT DISTINCT ON (s.thread_id) s.thread_id, '', s.began, NULL::timestamptz, NULL::text, s.top, s.began FROM spaces s
        WHERE NOT EXISTS (SELECT FROM spaces r WHERE r.thread_id = s.thread_id AND r.checkpoint_ns = '')
    ), placed AS (
        SELECT s.*,
               coalesce((SELECT max(CASE h.kind WHEN 'delete_thread' THEN h.up_to_seq WHEN 'prune' THEN (
                   SELECT max(k.seq) - 1 FROM carrier k WHERE k.thread_id = s.thread_id AND k.checkpoint_ns = s.checkpoint_ns AND k.seq <= h.up_to_seq
                   AND NOT EXISTS (SELECT FROM hid d WHERE d.kind = 'delete_run' AND d.hidden_run_id = k.run_id AND d.created_at <= h.created_at)) END)
                   FROM hid h WHERE h.thread_id = s.thread_id AND h.created_at >= s.first_at), 0) AS hidden_seq,
               coalesce((SELECT h.kind = 'delete_thread' FROM hid h WHERE h.thread_id = s.thread_id AND h.kind IN ('delete_thread', 'reopen')
                         ORDER BY h.created_at DESC LIMIT 1), false) AS gone,
               (SELECT max(k.lg_checkpoint_id COLLATE "C") FROM carrier k WHERE k.thread_id = s.thread_id AND k.checkpoint_ns = s.checkpoint_ns) AS greatest
        FROM roots s
    )
    SELECT p_tenant, p.thread_id, p.checkpoint_ns, CASE WHEN p.checkpoint_ns = '' THEN p.top ELSE 0 END,
           coalesce(n.seq, 0), n.lg_checkpoint_id, n.created_at, p.greatest, p.write_id,
           CASE WHEN p.checkpoint_ns = '' THEN p.began ELSE p.first_at END, p.write_at, p.hidden_seq, p.gone
    FROM placed p LEFT JOIN LATERAL (
        SELECT k.seq, k.lg_checkpoint_id, k.created_at FROM carrier k
        WHERE k.thread_id = p.thread_id AND k.checkpoint_ns = p.checkpoint_ns AND k.seq > p.hidden_seq AND NOT k.hidden
        ORDER BY k.seq DESC LIMIT 1) AS n ON true
$fn$;

-- Tenants that anything speaks of.
CREATE OR REPLACE FUNCTION cuo_index_tenants() RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
    SELECT tenant_id FROM cuo_runs UNION SELECT tenant_id FROM cuo_threads UNION SELECT tenant_id FROM cuo_memory_audit
    UNION SELECT tenant_id FROM cuo_thread_tombstones ORDER BY 1
$fn$;

-- Where the index and the log disagree, column by column; p_apply makes the index follow the log.
-- Of months that are gone the index may remember more than the log shows, and a row of it may
-- outlive its thread's rows; wider bounds are no error either. Applying stops the tenant's writers
-- (and others') for as long as it takes.
CREATE OR REPLACE FUNCTION cuo_rebuild_index(p_tenant uuid, p_apply boolean) RETURNS SETOF jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET timezone TO 'UTC'
AS $fn$
DECLARE
    v_was     text := current_setting('auth.tenant_id', true);
    v_dropped timestamptz;
    v_found   jsonb[];
    v_one     jsonb;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rebuilding reads rows as they are now: use READ COMMITTED' USING ERRCODE = 'CU010';
    END IF;
    IF p_apply THEN
        LOCK TABLE cuo_threads, cuo_runs IN EXCLUSIVE MODE;
    END IF;
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT max(((a.body::jsonb ->> 'month') || '-01')::timestamp + interval '1 month') AT TIME ZONE 'UTC' INTO v_dropped
        FROM cuo_memory_audit a WHERE a.tenant_id = p_tenant AND a.run_id = '<retention>' AND a.kind = 'month_dropped';
    WITH pair AS (
        SELECT coalesce(d.run_id, i.run_id) AS run_id, i.run_id IS NULL AS lost, d.run_id IS NULL AS stray,
               to_jsonb(i) - '{tenant_id,run_id,lease_owner,lease_until}'::text[] AS held,
               to_jsonb(d) - '{tenant_id,run_id,lease_owner,lease_until}'::text[] AS due, i.first_at < v_dropped AS old
        FROM cuo_derived_runs(p_tenant) AS d FULL JOIN (SELECT * FROM cuo_runs WHERE tenant_id = p_tenant) AS i USING (run_id)
    )
    SELECT array_agg(jsonb_build_object('table', 'cuo_runs', 'run_id', q.run_id, 'columns', q.columns) ORDER BY q.run_id) INTO v_found FROM (
        SELECT p.run_id, CASE WHEN p.lost THEN '["missing"]' WHEN p.stray THEN '["not in the log"]' ELSE (
            SELECT coalesce(jsonb_agg(e.key ORDER BY e.key), '[]') FROM jsonb_each(p.due) AS e
            WHERE e.value IS DISTINCT FROM p.held -> e.key
              -- A waiting row, close or last rows may lie in a month that is gone.
              AND NOT (p.old AND e.key IN ('state', 'outcome', 'last_rows') AND (e.value = 'null' OR e.value = '[]' OR e.value = '"open"'))) END AS columns
        FROM pair p) AS q WHERE q.columns <> '[]';
    WITH pair AS (
        SELECT coalesce(d.thread_id, i.thread_id) AS thread_id, coalesce(d.checkpoint_ns, i.checkpoint_ns) AS checkpoint_ns,
               i.thread_id IS NULL AS lost, d.thread_id IS NULL AS stray, i AS held, d AS due, coalesce(i.first_at < v_dropped, false) AS old
        FROM cuo_derived_threads(p_tenant) AS d FULL JOIN (SELECT * FROM cuo_threads WHERE tenant_id = p_tenant) AS i USING (thread_id, checkpoint_ns)
    )
    SELECT v_found || array_agg(jsonb_build_object('table', 'cuo_threads', 'thread_id', q.thread_id, 'checkpoint_ns', q.checkpoint_ns, 'columns', q.columns)
                                ORDER BY q.thread_id, q.checkpoint_ns) INTO v_found FROM (
        SELECT p.thread_id, p.checkpoint_ns, CASE
            WHEN p.lost THEN '["missing"]'::jsonb
            WHEN p.stray THEN CASE WHEN ((p.held).newest_id IS NULL AND (p.held).head_seq = 0) OR (p.old AND coalesce(greatest((p.held).newest_at, (p.held).last_write_at) < v_dropped, true))
                                   THEN '[]' ELSE '["not in the log"]' END::jsonb
            ELSE to_jsonb(array_remove(ARRAY[
                CASE WHEN (p.held).head_seq <> (p.due).head_seq AND NOT (p.old AND (p.held).head_seq > (p.due).head_seq) THEN 'head_seq' END,
                CASE WHEN (p.held).newest_seq <> (p.due).newest_seq THEN 'newest_seq' END,
                CASE WHEN (p.held).newest_id IS DISTINCT FROM (p.due).newest_id THEN 'newest_id' END,
                CASE WHEN (p.held).newest_at IS DISTINCT FROM (p.due).newest_at THEN 'newest_at' END,
                CASE WHEN (p.held).greatest_id IS DISTINCT FROM (p.due).greatest_id
                          AND NOT (p.old AND coalesce((p.held).greatest_id COLLATE "C" > (p.due).greatest_id COLLATE "C", (p.due).greatest_id IS NULL)) THEN 'greatest_id' END,
                CASE WHEN (p.held).greatest_write_id IS DISTINCT FROM (p.due).greatest_write_id
                          AND NOT (p.old AND coalesce((p.held).greatest_write_id COLLATE "C" > (p.due).greatest_write_id COLLATE "C", (p.due).greatest_write_id IS NULL)) THEN 'greatest_write_id' END,
                CASE WHEN (p.held).first_at > (p.due).first_at THEN 'first_at' END,
                CASE WHEN (p.held).last_write_at IS DISTINCT FROM (p.due).last_write_at
                          AND NOT (p.old AND coalesce((p.held).last_write_at > (p.due).last_write_at, (p.due).last_write_at IS NULL)) THEN 'last_write_at' END,
                CASE WHEN (p.held).hidden_seq <> (p.due).hidden_seq
                          AND NOT (p.old AND (p.held).hidden_seq > (p.due).hidden_seq AND ((p.due).newest_seq = 0 OR (p.held).hidden_seq < (p.due).newest_seq)) THEN 'hidden_seq' END,
                CASE WHEN (p.held).deleted <> (p.due).deleted THEN 'deleted' END], NULL)) END AS columns
        FROM pair p) AS q WHERE q.columns <> '[]';
    FOREACH v_one IN ARRAY coalesce(v_found, ARRAY[]::jsonb[]) LOOP
        RETURN NEXT v_one;
    END LOOP;
    IF p_apply AND v_found IS NOT NULL THEN
        DELETE FROM cuo_runs r WHERE r.tenant_id = p_tenant
            AND r.run_id IN (SELECT (f ->> 'run_id')::uuid FROM unnest(v_found) AS f WHERE f ->> 'table' = 'cuo_runs');
        INSERT INTO cuo_runs SELECT d.* FROM cuo_derived_runs(p_tenant) AS d
            WHERE d.run_id IN (SELECT (f ->> 'run_id')::uuid FROM unnest(v_found) AS f WHERE f ->> 'table' = 'cuo_runs');
        DELETE FROM cuo_threads t USING unnest(v_found) AS f
            WHERE t.tenant_id = p_tenant AND f ->> 'table' = 'cuo_threads' AND t.thread_id = f ->> 'thread_id' AND t.checkpoint_ns = f ->> 'checkpoint_ns';
        INSERT INTO cuo_threads SELECT d.* FROM cuo_derived_threads(p_tenant) AS d JOIN unnest(v_found) AS f
            ON f ->> 'table' = 'cuo_threads' AND d.thread_id = f ->> 'thread_id' AND d.checkpoint_ns = f ->> 'checkpoint_ns';
    END IF;
    PERFORM set_config('auth.tenant_id', coalesce(v_was, ''), true);
END
$fn$
"""

RIGHTS = """
SELECT cuo_protect('cuo_holds'::regclass, true, false);
GRANT SELECT ON cuo_holds TO <app>, <auditor>;
REVOKE UPDATE, DELETE, TRUNCATE ON cuo_holds FROM <app>, <archiver>, <auditor>, PUBLIC;
DO $do$
DECLARE
    f text;
BEGIN
    FOR f IN SELECT p.oid::regprocedure || ' FROM ' || CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
             FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
             WHERE p.pronamespace = quote_ident(current_schema())::regnamespace AND a.grantee <> p.proowner AND p.proname IN (
                 'cuo_months', 'cuo_month_root', 'cuo_retention_says', 'cuo_delta_reaches', 'cuo_month_facts', 'cuo_require_floor',
                 'cuo_retention_report', 'cuo_drop_tenant_month', 'cuo_drop_month', 'cuo_archive_failed', 'cuo_hold', 'cuo_list_holds',
                 'cuo_waiting_runs', 'cuo_derived_runs', 'cuo_derived_threads', 'cuo_index_tenants', 'cuo_rebuild_index') LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || f;
    END LOOP;
END
$do$;
GRANT EXECUTE ON FUNCTION cuo_retention_report(integer), cuo_drop_month(date, integer, integer, integer), cuo_archive_failed(date, text, text),
    cuo_hold(uuid, uuid, uuid, text, text), cuo_list_holds(uuid), cuo_waiting_runs(interval), cuo_index_tenants(),
    cuo_rebuild_index(uuid, boolean) TO <archiver>
"""

REFUSE_ROWS = """
DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_holds) THEN
        RAISE EXCEPTION 'downgrade refused: there are legal holds'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$
"""


def upgrade() -> None:
    for step in (HOLDS, HELPERS, FACTS, DROP, HOLDING, REBUILD, RIGHTS):
        _run(step)


def downgrade() -> None:
    if context.config.attributes["drop_rows"] != "yes":
        _run(REFUSE_ROWS)
    _run("""
        DROP FUNCTION IF EXISTS cuo_rebuild_index(uuid, boolean), cuo_index_tenants(), cuo_derived_threads(uuid), cuo_derived_runs(uuid),
            cuo_waiting_runs(interval), cuo_list_holds(uuid), cuo_hold(uuid, uuid, uuid, text, text), cuo_archive_failed(date, text, text),
            cuo_drop_month(date, integer, integer, integer), cuo_drop_tenant_month(uuid, date, integer, jsonb, timestamptz),
            cuo_retention_report(integer), cuo_require_floor(integer), cuo_month_facts(date, integer),
            cuo_delta_reaches(uuid, text, text, bigint, timestamptz, timestamptz, timestamptz), cuo_retention_says(uuid, text, text),
            cuo_month_root(regclass, uuid, timestamptz, timestamptz), cuo_months();
        DROP TABLE IF EXISTS cuo_holds
    """)
