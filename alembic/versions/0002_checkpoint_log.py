"""The checkpoint log: partitioned tables, row security, REVOKE, and the functions of the hot path.

One call appends everything that belongs together (log rows, pending writes, audit rows, index
update) in one statement and so in one transaction. Identity is decided under the thread's row
lock, because a unique key that contains the partition column identifies nothing.

Errors raised for the client to translate:
  CU001 same id, different bytes     CU002 stale parent      CU003 thread deleted
  CU004 parent missing or not older  CU008 append-only       CU009 chain

Revision ID: 0002
Revises: 0001
"""

import re

from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _roles() -> dict[str, str]:
    quote = op.get_context().dialect.identifier_preparer.quote_identifier
    return {
        n: quote(context.config.attributes[f"{n}_role"]) for n in ("app", "archiver", "auditor")
    }


def _run(script: str) -> None:
    """Executes a script statement by statement; a semicolon inside $fn$ or $do$ ends nothing."""
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


TABLES = """
CREATE TABLE IF NOT EXISTS cuo_langgraph_checkpoints (
    checkpoint_id        uuid NOT NULL,
    tenant_id            uuid NOT NULL,
    run_id               uuid NOT NULL,
    parent_checkpoint_id uuid,
    node_name            text,
    edge_from            text,
    edge_to              text,
    kind                 text NOT NULL CONSTRAINT cuo_langgraph_checkpoints_kind
                         CHECK (kind IN ('node_entered','node_completed','edge_traversed','run_started','run_completed','run_failed')),
    state_json           jsonb NOT NULL,
    trace_id             char(32) NOT NULL CHECK (trace_id ~ '^[0-9a-f]{32}$'),
    created_at           timestamptz NOT NULL DEFAULT now(),
    thread_id            text NOT NULL,
    checkpoint_ns        text NOT NULL DEFAULT '',
    seq                  bigint NOT NULL,
    step                 integer,
    phase                integer NOT NULL DEFAULT 0,
    ordinal              integer NOT NULL DEFAULT 0,
    lg_checkpoint_id     text,
    lg_parent_id         text,
    langgraph            jsonb,
    state_sha256         bytea NOT NULL CHECK (length(state_sha256) = 32),
    langgraph_sha256     bytea CHECK (length(langgraph_sha256) = 32),
    row_sha256           bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, checkpoint_id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX IF NOT EXISTS checkpoints_run_idx ON cuo_langgraph_checkpoints (tenant_id, run_id, created_at);
CREATE INDEX IF NOT EXISTS checkpoints_thread_idx ON cuo_langgraph_checkpoints (tenant_id, thread_id, checkpoint_ns, seq DESC);
CREATE INDEX IF NOT EXISTS checkpoints_lg_idx ON cuo_langgraph_checkpoints (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id);
CREATE TABLE IF NOT EXISTS cuo_langgraph_writes (
    tenant_id        uuid NOT NULL,
    thread_id        text NOT NULL,
    checkpoint_ns    text NOT NULL,
    lg_checkpoint_id text NOT NULL,
    task_id          text NOT NULL,
    task_path        text NOT NULL DEFAULT '',
    idx              integer NOT NULL,
    channel          text NOT NULL,
    value            jsonb NOT NULL,
    run_id           uuid NOT NULL,
    seq              bigint NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    value_sha256     bytea NOT NULL CHECK (length(value_sha256) = 32),
    row_sha256       bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id, task_id, idx, seq, created_at)
) PARTITION BY RANGE (created_at);
CREATE TABLE IF NOT EXISTS cuo_thread_tombstones (
    tenant_id     uuid NOT NULL,
    tombstone_id  uuid NOT NULL DEFAULT gen_random_uuid(),
    thread_id     text NOT NULL,
    kind          text NOT NULL CONSTRAINT cuo_thread_tombstones_kind
                  CHECK (kind IN ('delete_thread', 'delete_run', 'prune', 'reopen')),
    hidden_run_id uuid,
    up_to_seq     bigint NOT NULL,
    run_id        uuid NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    row_sha256    bytea NOT NULL CHECK (length(row_sha256) = 32),
    PRIMARY KEY (tenant_id, tombstone_id)
);
CREATE INDEX IF NOT EXISTS tombstones_thread_idx ON cuo_thread_tombstones (tenant_id, thread_id, created_at);
DO $do$
BEGIN
    -- lz4 stores the same 190 kB state in a ninth of pglz's time; servers built without it keep pglz.
    ALTER TABLE cuo_langgraph_checkpoints ALTER COLUMN state_json SET COMPRESSION lz4;
    ALTER TABLE cuo_langgraph_checkpoints ALTER COLUMN langgraph SET COMPRESSION lz4;
    ALTER TABLE cuo_langgraph_writes ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN NULL;
END
$do$
"""

TRIGGERS = """
-- Numbers a hand-made row and digests every row: row_sha256 is the SHA-256 of the RFC 8785 text of
-- all columns, the two documents standing in it by their own digests.
CREATE OR REPLACE FUNCTION cuo_log_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF NEW.seq IS NULL THEN
        NEW.created_at := now();
        INSERT INTO cuo_threads (tenant_id, thread_id) VALUES (NEW.tenant_id, NEW.thread_id) ON CONFLICT DO NOTHING;
        UPDATE cuo_threads t SET head_seq = t.head_seq + 1
            WHERE t.tenant_id = NEW.tenant_id AND t.thread_id = NEW.thread_id AND t.checkpoint_ns = ''
            RETURNING t.head_seq INTO NEW.seq;
    END IF;
    NEW.row_sha256 := sha256(convert_to(
        '{"checkpoint_id":"' || NEW.checkpoint_id || '","checkpoint_ns":' || cuo_jcs(NEW.checkpoint_ns)
        || ',"created_at":' || cuo_jcs_time(NEW.created_at)
        || ',"edge_from":' || cuo_jcs(NEW.edge_from) || ',"edge_to":' || cuo_jcs(NEW.edge_to)
        || ',"kind":"' || NEW.kind
        || '","langgraph_sha256":' || coalesce('"' || encode(NEW.langgraph_sha256, 'hex') || '"', 'null')
        || ',"lg_checkpoint_id":' || cuo_jcs(NEW.lg_checkpoint_id) || ',"lg_parent_id":' || cuo_jcs(NEW.lg_parent_id)
        || ',"node_name":' || cuo_jcs(NEW.node_name) || ',"ordinal":' || NEW.ordinal
        || ',"parent_checkpoint_id":' || coalesce('"' || NEW.parent_checkpoint_id || '"', 'null')
        || ',"phase":' || NEW.phase || ',"run_id":"' || NEW.run_id || '","seq":' || NEW.seq
        || ',"state_sha256":"' || encode(NEW.state_sha256, 'hex') || '","step":' || coalesce(NEW.step::text, 'null')
        || ',"tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"trace_id":"' || NEW.trace_id || '"}', 'UTF8'));
    RETURN NEW;
END
$fn$;

-- After every insert: parents exist and are older, each row is chained, the index tables follow.
CREATE OR REPLACE FUNCTION cuo_log_after() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_run     record;
    v_kinds   text[];
    v_bodies  text[];
    v_ids     uuid[];
    v_known   uuid[];
    v_missing uuid;
    v_end     text;
    v_rows    bigint;
    v_first   timestamptz;
BEGIN
    FOR v_run IN
        SELECT n.tenant_id, n.run_id, min(n.thread_id) AS thread_id, min(n.trace_id::text) AS trace_id, count(*) AS n_rows
        FROM new_rows n GROUP BY n.tenant_id, n.run_id ORDER BY min(n.seq)
    LOOP
        PERFORM cuo_open_run(v_run.tenant_id, v_run.run_id, v_run.thread_id, v_run.trace_id);
        SELECT r.last_rows, r.first_at, r.log_rows INTO v_known, v_first, v_rows
            FROM cuo_runs r WHERE r.tenant_id = v_run.tenant_id AND r.run_id = v_run.run_id FOR UPDATE;
        -- Nearly every parent is in this batch or the one before; anything else is looked up by month range.
        FOR v_missing IN
            SELECT n.parent_checkpoint_id FROM new_rows n
            WHERE n.tenant_id = v_run.tenant_id AND n.run_id = v_run.run_id
              AND n.parent_checkpoint_id IS NOT NULL AND NOT n.parent_checkpoint_id = ANY (v_known)
              AND NOT EXISTS (SELECT FROM new_rows p WHERE p.tenant_id = n.tenant_id
                              AND p.checkpoint_id = n.parent_checkpoint_id AND p.seq < n.seq AND p.thread_id = n.thread_id)
        LOOP
            PERFORM cuo_require_parent(v_run.tenant_id, v_missing, v_run.thread_id, (SELECT array_agg(n.checkpoint_id) FROM new_rows n));
        END LOOP;
        SELECT array_agg('cuo.checkpoint_written'::text ORDER BY n.seq),
               array_agg('{"checkpoint_id":"' || n.checkpoint_id || '","kind":"' || n.kind
                   || '","node_name":' || cuo_jcs(n.node_name) || ',"row_sha256":"' || encode(n.row_sha256, 'hex')
                   || '","run_id":"' || n.run_id || '","seq":' || n.seq
                   || ',"state_sha256":"' || encode(n.state_sha256, 'hex') || '"}' ORDER BY n.seq),
               array_agg(n.checkpoint_id ORDER BY n.seq),
               min(n.kind) FILTER (WHERE n.kind IN ('run_completed', 'run_failed'))
            INTO v_kinds, v_bodies, v_ids, v_end
            FROM new_rows n WHERE n.tenant_id = v_run.tenant_id AND n.run_id = v_run.run_id;
        IF v_end IS NOT NULL THEN
            v_kinds := v_kinds || 'close'::text;
            v_bodies := v_bodies || ('{"log_rows":' || (v_rows + v_run.n_rows) || ',"outcome":"' || v_end || '"}');
        END IF;
        PERFORM cuo_chain_append(v_run.tenant_id, v_run.run_id, v_kinds, v_bodies);
        UPDATE cuo_runs r SET
            log_rows = r.log_rows + v_run.n_rows, last_rows = v_ids, lease_until = now() + interval '15 minutes',
            state = CASE WHEN v_end IS NOT NULL THEN 'closed' ELSE r.state END,
            outcome = coalesce(v_end, r.outcome)
            WHERE r.tenant_id = v_run.tenant_id AND r.run_id = v_run.run_id;
    END LOOP;
    INSERT INTO cuo_threads AS t (tenant_id, thread_id, checkpoint_ns, head_seq, newest_seq, newest_id, newest_at, greatest_id, first_at)
        SELECT n.tenant_id, n.thread_id, n.checkpoint_ns, CASE WHEN n.checkpoint_ns = '' THEN max(n.seq) ELSE 0 END,
               coalesce(max(n.seq) FILTER (WHERE n.langgraph ? 'channel_versions'), 0),
               (array_agg(n.lg_checkpoint_id ORDER BY n.seq DESC) FILTER (WHERE n.langgraph ? 'channel_versions'))[1],
               max(n.created_at) FILTER (WHERE n.langgraph ? 'channel_versions'),
               max(n.lg_checkpoint_id COLLATE "C") FILTER (WHERE n.langgraph ? 'channel_versions'),
               min(n.created_at)
        FROM new_rows n GROUP BY n.tenant_id, n.thread_id, n.checkpoint_ns
    ON CONFLICT (tenant_id, thread_id, checkpoint_ns) DO UPDATE SET
        head_seq = greatest(t.head_seq, excluded.head_seq),
        newest_seq = greatest(t.newest_seq, excluded.newest_seq),
        newest_id = CASE WHEN excluded.newest_seq > t.newest_seq THEN excluded.newest_id ELSE t.newest_id END,
        newest_at = CASE WHEN excluded.newest_seq > t.newest_seq THEN excluded.newest_at ELSE t.newest_at END,
        greatest_id = greatest(t.greatest_id COLLATE "C", excluded.greatest_id COLLATE "C"),
        first_at = least(t.first_at, excluded.first_at);
    UPDATE cuo_threads t SET head_seq = n.top
        FROM (SELECT tenant_id, thread_id, max(seq) AS top FROM new_rows WHERE checkpoint_ns <> '' GROUP BY 1, 2) AS n
        WHERE t.tenant_id = n.tenant_id AND t.thread_id = n.thread_id AND t.checkpoint_ns = '' AND t.head_seq < n.top;
    RETURN NULL;
END
$fn$;

-- Rows of the statement under way (p_batch) are in the table already but are not older than one another.
CREATE OR REPLACE FUNCTION cuo_require_parent(p_tenant uuid, p_parent uuid, p_thread text, p_batch uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_found boolean;
    v_first timestamptz;
BEGIN
    SELECT min(first_at) INTO v_first FROM cuo_threads WHERE tenant_id = p_tenant AND thread_id = p_thread;
    -- EXECUTE plans with the bounds in hand, so only the thread's own months are touched.
    EXECUTE 'SELECT true FROM cuo_langgraph_checkpoints
             WHERE tenant_id = $1 AND checkpoint_id = $2 AND created_at >= $3 AND created_at <= $4 LIMIT 1'
        INTO v_found USING p_tenant, p_parent, coalesce(v_first, now()), now() + interval '1 day';
    IF v_found IS NULL OR p_parent = ANY (p_batch) THEN
        RAISE EXCEPTION 'parent row % is not in this tenant, or not older than its child', p_parent USING ERRCODE = 'CU004';
    END IF;
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_write_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    IF NEW.seq IS NULL THEN
        RAISE EXCEPTION 'pending writes are appended through the store' USING ERRCODE = 'CU009';
    END IF;
    NEW.row_sha256 := sha256(convert_to(
        '{"channel":' || cuo_jcs(NEW.channel) || ',"checkpoint_ns":' || cuo_jcs(NEW.checkpoint_ns)
        || ',"created_at":' || cuo_jcs_time(NEW.created_at) || ',"idx":' || NEW.idx
        || ',"lg_checkpoint_id":' || cuo_jcs(NEW.lg_checkpoint_id) || ',"run_id":"' || NEW.run_id
        || '","seq":' || NEW.seq || ',"task_id":' || cuo_jcs(NEW.task_id) || ',"task_path":' || cuo_jcs(NEW.task_path)
        || ',"tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"value_sha256":"' || encode(NEW.value_sha256, 'hex') || '"}', 'UTF8'));
    RETURN NEW;
END
$fn$;

CREATE OR REPLACE FUNCTION cuo_tombstone_before() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
BEGIN
    NEW.row_sha256 := sha256(convert_to(
        '{"created_at":' || cuo_jcs_time(NEW.created_at)
        || ',"hidden_run_id":' || coalesce('"' || NEW.hidden_run_id || '"', 'null') || ',"kind":"' || NEW.kind
        || '","run_id":"' || NEW.run_id || '","tenant_id":"' || NEW.tenant_id || '","thread_id":' || cuo_jcs(NEW.thread_id)
        || ',"tombstone_id":"' || NEW.tombstone_id || '","up_to_seq":' || NEW.up_to_seq || '}', 'UTF8'));
    RETURN NEW;
END
$fn$;

CREATE OR REPLACE TRIGGER cuo_log_before BEFORE INSERT ON cuo_langgraph_checkpoints
    FOR EACH ROW WHEN (NEW.row_sha256 IS NULL OR session_user = current_user) EXECUTE FUNCTION cuo_log_before();
CREATE OR REPLACE TRIGGER cuo_write_before BEFORE INSERT ON cuo_langgraph_writes
    FOR EACH ROW WHEN (NEW.row_sha256 IS NULL OR session_user = current_user) EXECUTE FUNCTION cuo_write_before();
CREATE OR REPLACE TRIGGER cuo_tombstone_before BEFORE INSERT ON cuo_thread_tombstones
    FOR EACH ROW EXECUTE FUNCTION cuo_tombstone_before();
DROP TRIGGER IF EXISTS cuo_log_after ON cuo_langgraph_checkpoints;
CREATE TRIGGER cuo_log_after AFTER INSERT ON cuo_langgraph_checkpoints
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (session_user = current_user OR current_user <> cuo_owner()) EXECUTE FUNCTION cuo_log_after()
"""

APPEND = """
-- The hot path: one call appends all that belongs to one superstep, in one transaction.
-- p_rows:   [{"id","parent","kind","node","from","to","step","phase","ordinal","lg"(object),"lg_sha","state","state_sha"}]
--           a row without "state" shares p_state; rows are inserted in array order.
-- p_writes: [{"lg","task","path","writes":[{"idx","channel","value","sha"}]}], one entry per task
-- p_run_state: open, waiting, or null to leave it; "direct" closes a run that this very call opened.
-- p_adopt:  a call outside any run joins the thread's unfinished run; without one it is p_run.
-- p_chain_parent: a first row without a parent hangs under the run's last row.
-- p_retry:  this call may already have been committed: rows that are there make it a duplicate.
-- Returns the status ("stored" or "duplicate"), the thread's head, the transaction's time and the run.
-- It runs as the owner for callers who are not, so the triggers for hand-made rows stay out of its way.
CREATE OR REPLACE FUNCTION cuo_append(
    p_tenant uuid, p_thread text, p_ns text, p_run uuid, p_trace text,
    p_lg_id text, p_lg_parent text, p_rows jsonb, p_state jsonb, p_state_sha text, p_share_state boolean,
    p_writes jsonb, p_out_kinds text[], p_out_bodies text[], p_run_state text, p_strict boolean,
    p_adopt boolean, p_chain_parent boolean, p_retry boolean,
    OUT status text, OUT seq bigint, OUT at timestamptz, OUT run uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_root     cuo_threads%ROWTYPE;
    v_ns       cuo_threads%ROWTYPE;
    v_run      cuo_runs%ROWTYPE;
    v_carrier  jsonb := p_rows -> 0;
    v_rows     integer := jsonb_array_length(p_rows);
    v_same     boolean;
    v_set      jsonb;
    v_existing jsonb;
    v_deleted  bigint;
    v_kept     integer;
    v_written  integer := 0;
    v_digest   bytea;
    v_opened   boolean := false;
    v_kinds    text[] := ARRAY[]::text[];
    v_bodies   text[] := ARRAY[]::text[];
    v_ids      uuid[];
    v_missing  uuid[];
    v_end      text;
    v_link     record;
    v_id       uuid;
    v_greatest text;
BEGIN
    IF session_user = current_user THEN
        RAISE EXCEPTION 'rows are appended by the application role, not by the owner' USING ERRCODE = 'CU009';
    END IF;
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    at := now();
    run := p_run;
    status := 'stored';
    IF v_carrier IS NULL OR NOT coalesce(v_carrier -> 'lg' ? 'channel_versions', false) THEN
        v_carrier := NULL;
    END IF;
    SELECT * INTO v_root FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '' FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO cuo_threads (tenant_id, thread_id) VALUES (p_tenant, p_thread) ON CONFLICT DO NOTHING;
        SELECT * INTO v_root FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '' FOR UPDATE;
    END IF;
    IF v_root.deleted THEN
        RAISE EXCEPTION 'thread was deleted' USING ERRCODE = 'CU003';
    END IF;
    IF p_ns = '' THEN
        v_ns := v_root;
    ELSE
        SELECT * INTO v_ns FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
        IF NOT FOUND THEN
            INSERT INTO cuo_threads (tenant_id, thread_id, checkpoint_ns) VALUES (p_tenant, p_thread, p_ns) RETURNING * INTO v_ns;
        END IF;
    END IF;
    seq := v_root.head_seq;

    IF v_carrier IS NOT NULL THEN
        -- Ids from LangGraph grow, so an id above the greatest one stored cannot be a duplicate.
        IF v_ns.greatest_id IS NOT NULL AND p_lg_id COLLATE "C" <= v_ns.greatest_id COLLATE "C" THEN
            EXECUTE 'SELECT c.state_sha256 = decode($5, ''hex'') AND c.langgraph_sha256 = decode($6, ''hex'')
                     FROM cuo_langgraph_checkpoints c
                     WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                       AND c.langgraph ? ''channel_versions'' AND c.created_at >= $7 AND c.created_at <= $8 AND c.seq > $9
                     ORDER BY c.seq DESC LIMIT 1'
                INTO v_same
                USING p_tenant, p_thread, p_ns, p_lg_id, coalesce(v_carrier ->> 'state_sha', p_state_sha), v_carrier ->> 'lg_sha',
                      v_ns.first_at, greatest(v_ns.newest_at, now()) + interval '1 day', v_ns.hidden_seq;
            IF v_same THEN
                status := 'duplicate';
                RETURN;
            ELSIF v_same IS NOT NULL THEN
                RAISE EXCEPTION 'checkpoint % already exists with different bytes', p_lg_id USING ERRCODE = 'CU001';
            END IF;
        END IF;
        IF p_strict AND v_ns.newest_id IS NOT NULL AND v_ns.newest_id IS DISTINCT FROM p_lg_parent THEN
            RAISE EXCEPTION 'checkpoint % is no longer the newest', coalesce(p_lg_parent, '(none)')
                USING ERRCODE = 'CU002', DETAIL = v_ns.newest_id;
        END IF;
    ELSIF p_retry AND v_rows > 0 THEN
        EXECUTE 'SELECT true FROM cuo_langgraph_checkpoints c WHERE c.tenant_id = $1 AND c.checkpoint_id = $2
                 AND c.created_at >= $3 AND c.created_at <= $4'
            INTO v_same USING p_tenant, (p_rows -> 0 ->> 'id')::uuid, now() - interval '1 hour', now() + interval '1 hour';
        IF v_same THEN
            status := 'duplicate';
            RETURN;
        END IF;
    END IF;

    IF p_adopt THEN
        SELECT r.run_id INTO run FROM cuo_runs r
            WHERE r.tenant_id = p_tenant AND r.thread_id = p_thread AND NOT r.hidden
              AND (r.run_id = p_run OR r.state <> 'closed')
            ORDER BY (r.run_id = p_run) DESC NULLS LAST, r.first_at DESC LIMIT 1;
        run := coalesce(run, p_run);
    END IF;
    SELECT * INTO v_run FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = run FOR UPDATE;
    IF NOT FOUND THEN
        v_opened := cuo_open_run(p_tenant, run, p_thread, p_trace);
        SELECT * INTO v_run FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = run FOR UPDATE;
    END IF;

    IF v_root.hidden_seq > 0 THEN
        SELECT max(d.up_to_seq) INTO v_deleted FROM cuo_thread_tombstones d
            WHERE d.tenant_id = p_tenant AND d.thread_id = p_thread AND d.kind = 'delete_thread';
    END IF;
    FOR v_set IN SELECT e FROM jsonb_array_elements(p_writes) AS e LOOP
        v_existing := '{}'::jsonb;
        IF v_ns.greatest_write_id IS NOT NULL AND (v_set ->> 'lg') COLLATE "C" <= v_ns.greatest_write_id COLLATE "C" THEN
            EXECUTE 'SELECT coalesce(jsonb_object_agg(w.idx, w.sha), ''{}''::jsonb) FROM (
                         SELECT DISTINCT ON (idx) idx, encode(value_sha256, ''hex'') AS sha FROM cuo_langgraph_writes
                         WHERE tenant_id = $1 AND thread_id = $2 AND checkpoint_ns = $3 AND lg_checkpoint_id = $4
                           AND task_id = $5 AND created_at >= $6 AND created_at <= $7 AND seq > $8
                         ORDER BY idx, seq DESC) AS w'
                INTO v_existing
                USING p_tenant, p_thread, p_ns, v_set ->> 'lg', v_set ->> 'task', v_root.first_at, now() + interval '1 day',
                      coalesce(v_deleted, 0);
        END IF;
        WITH stored AS (
            INSERT INTO cuo_langgraph_writes (tenant_id, thread_id, checkpoint_ns, lg_checkpoint_id, task_id, task_path,
                                              idx, channel, value, run_id, seq, value_sha256, row_sha256)
            SELECT p_tenant, p_thread, p_ns, v_set ->> 'lg', v_set ->> 'task', v_set ->> 'path',
                   (w ->> 'idx')::integer, w ->> 'channel', w -> 'value', run, seq + 1, decode(w ->> 'sha', 'hex'),
                   sha256(convert_to('{"channel":' || cuo_jcs(w ->> 'channel') || ',"checkpoint_ns":' || cuo_jcs(p_ns)
                       || ',"created_at":' || cuo_jcs_time(now()) || ',"idx":' || (w ->> 'idx')
                       || ',"lg_checkpoint_id":' || cuo_jcs(v_set ->> 'lg') || ',"run_id":"' || run
                       || '","seq":' || (seq + 1) || ',"task_id":' || cuo_jcs(v_set ->> 'task') || ',"task_path":' || cuo_jcs(v_set ->> 'path')
                       || ',"tenant_id":"' || p_tenant || '","thread_id":' || cuo_jcs(p_thread)
                       || ',"value_sha256":"' || (w ->> 'sha') || '"}', 'UTF8'))
            FROM jsonb_array_elements(v_set -> 'writes') AS w
            -- An ordinary write, once there, stays; a special one is kept in every version it took.
            WHERE NOT v_existing ? (w ->> 'idx')
               OR ((w ->> 'idx')::integer < 0 AND v_existing ->> (w ->> 'idx') <> w ->> 'sha')
            RETURNING idx, row_sha256
        )
        SELECT count(*), sha256(coalesce(string_agg(s.row_sha256, ''::bytea ORDER BY s.idx), ''::bytea)) INTO v_kept, v_digest FROM stored s;
        IF v_kept > 0 THEN
            seq := seq + 1;
            v_written := v_written + v_kept;
            v_greatest := greatest(v_greatest COLLATE "C", (v_set ->> 'lg') COLLATE "C");
            v_kinds := v_kinds || 'write_set'::text;
            v_bodies := v_bodies || ('{"checkpoint_ns":' || cuo_jcs(p_ns) || ',"lg_checkpoint_id":' || cuo_jcs(v_set ->> 'lg')
                || ',"seq":' || seq || ',"sha256":"' || encode(v_digest, 'hex') || '","task_id":' || cuo_jcs(v_set ->> 'task')
                || ',"writes":' || v_kept || '}');
        END IF;
    END LOOP;
    IF v_written = 0 AND v_rows = 0 AND cardinality(p_out_kinds) = 0 THEN
        status := 'duplicate';
        RETURN;
    END IF;
    -- What a graph hands over is embedded as it stands, so it is held to the canonical form; what the
    -- store alone may say cannot be handed over.
    IF cardinality(p_out_kinds) > 0 AND (
        cardinality(p_out_kinds) <> cardinality(p_out_bodies)
        OR p_out_kinds && ARRAY['open', 'close', 'write_set', 'tombstone', 'refused_overwrite', 'month_dropped', 'hold',
                                'cuo.checkpoint_written', 'cuo.checkpoint_archive_failed']
        OR EXISTS (SELECT FROM unnest(p_out_bodies) AS b(body)
                   WHERE jsonb_typeof(b.body::jsonb) <> 'object' OR b.body IS DISTINCT FROM cuo_canonical(b.body::jsonb))) THEN
        RAISE EXCEPTION 'an audit row is of a kind that only the store writes, or its body is not in the form of RFC 8785'
            USING ERRCODE = 'CU009';
    END IF;
    v_kinds := v_kinds || p_out_kinds;
    v_bodies := v_bodies || p_out_bodies;

    IF v_rows > 0 THEN
        v_id := (p_rows -> 0 ->> 'id')::uuid;
        WITH given AS (
            SELECT r, e.n, (r ->> 'id')::uuid AS id, r ->> 'kind' AS kind,
                   coalesce((r ->> 'parent')::uuid, CASE WHEN e.n = 1 AND p_chain_parent THEN v_run.last_rows[cardinality(v_run.last_rows)] END) AS parent,
                   CASE WHEN jsonb_typeof(r -> 'lg') = 'object' THEN r -> 'lg' END AS lg,
                   CASE WHEN e.n = 1 AND v_carrier IS NOT NULL THEN p_lg_parent END AS lg_parent,
                   coalesce(r ->> 'state_sha', p_state_sha) AS sha
            FROM jsonb_array_elements(p_rows) WITH ORDINALITY AS e(r, n)
        ), stored AS (
            INSERT INTO cuo_langgraph_checkpoints (
                checkpoint_id, tenant_id, run_id, parent_checkpoint_id, node_name, edge_from, edge_to, kind, state_json,
                trace_id, thread_id, checkpoint_ns, seq, step, phase, ordinal, lg_checkpoint_id, lg_parent_id,
                langgraph, state_sha256, langgraph_sha256, row_sha256)
            SELECT g.id, p_tenant, run, g.parent, g.r ->> 'node', g.r ->> 'from', g.r ->> 'to', g.kind,
                   CASE WHEN g.r ? 'state' THEN g.r -> 'state'
                        WHEN p_share_state AND g.n > 1 THEN jsonb_build_object('$state_of', v_id)
                        ELSE p_state END,
                   p_trace, p_thread, p_ns, seq + g.n, (g.r ->> 'step')::integer, (g.r ->> 'phase')::integer, (g.r ->> 'ordinal')::integer,
                   p_lg_id, g.lg_parent, g.lg, decode(g.sha, 'hex'), decode(g.r ->> 'lg_sha', 'hex'),
                   sha256(convert_to('{"checkpoint_id":"' || g.id || '","checkpoint_ns":' || cuo_jcs(p_ns)
                       || ',"created_at":' || cuo_jcs_time(now())
                       || ',"edge_from":' || cuo_jcs(g.r ->> 'from') || ',"edge_to":' || cuo_jcs(g.r ->> 'to') || ',"kind":"' || g.kind
                       || '","langgraph_sha256":' || coalesce('"' || (g.r ->> 'lg_sha') || '"', 'null')
                       || ',"lg_checkpoint_id":' || cuo_jcs(p_lg_id) || ',"lg_parent_id":' || cuo_jcs(g.lg_parent)
                       || ',"node_name":' || cuo_jcs(g.r ->> 'node') || ',"ordinal":' || (g.r ->> 'ordinal')
                       || ',"parent_checkpoint_id":' || coalesce('"' || g.parent || '"', 'null')
                       || ',"phase":' || (g.r ->> 'phase') || ',"run_id":"' || run || '","seq":' || (seq + g.n)
                       || ',"state_sha256":"' || g.sha || '","step":' || coalesce(g.r ->> 'step', 'null')
                       || ',"tenant_id":"' || p_tenant || '","thread_id":' || cuo_jcs(p_thread) || ',"trace_id":"' || p_trace || '"}', 'UTF8'))
            FROM given g
            RETURNING checkpoint_id, kind, node_name, cuo_langgraph_checkpoints.seq AS n, row_sha256, state_sha256
        )
        SELECT array_agg(s.checkpoint_id ORDER BY s.n),
               v_bodies || array_agg('{"checkpoint_id":"' || s.checkpoint_id || '","kind":"' || s.kind
                   || '","node_name":' || cuo_jcs(s.node_name) || ',"row_sha256":"' || encode(s.row_sha256, 'hex')
                   || '","run_id":"' || run || '","seq":' || s.n || ',"state_sha256":"' || encode(s.state_sha256, 'hex') || '"}' ORDER BY s.n),
               min(s.kind) FILTER (WHERE s.kind IN ('run_completed', 'run_failed')),
               (SELECT array_agg(g.parent) FROM given g
                WHERE g.parent IS NOT NULL AND g.parent <> ALL (v_run.last_rows) AND g.parent NOT IN (SELECT p.id FROM given p WHERE p.n < g.n))
            INTO v_ids, v_bodies, v_end, v_missing
            FROM stored s;
        v_kinds := v_kinds || array_fill('cuo.checkpoint_written'::text, ARRAY[v_rows]);
        seq := seq + v_rows;
        -- Nearly every parent is in this batch or the one before; anything else is looked up by month range.
        IF v_missing IS NOT NULL THEN
            FOREACH v_id IN ARRAY v_missing LOOP
                PERFORM cuo_require_parent(p_tenant, v_id, p_thread, v_ids);
            END LOOP;
        END IF;
        IF v_end IS NOT NULL THEN
            v_kinds := v_kinds || 'close'::text;
            v_bodies := v_bodies || ('{"log_rows":' || (v_run.log_rows + v_rows) || ',"outcome":"' || v_end || '"}');
        END IF;
    END IF;
    IF p_run_state = 'direct' AND v_opened THEN
        v_end := 'direct';
        v_kinds := v_kinds || 'close'::text;
        v_bodies := v_bodies || ('{"log_rows":' || (v_run.log_rows + v_rows) || ',"outcome":"direct"}');
    END IF;

    SELECT * INTO v_link FROM cuo_chain_write(p_tenant, run, v_run.trace_id, v_run.chain_seq, v_run.chain_head, v_kinds, v_bodies);
    UPDATE cuo_runs r SET
        chain_seq = v_link.seq, chain_head = v_link.head, newest_at = greatest(r.newest_at, now()),
        log_rows = r.log_rows + v_rows, last_rows = coalesce(v_ids, r.last_rows), lease_until = now() + interval '15 minutes',
        -- A run that failed is open again once it is carried on under its own id.
        state = CASE WHEN v_end IS NOT NULL THEN 'closed' WHEN r.state = 'closed' AND NOT (p_run_state = 'open' AND r.outcome = 'run_failed') THEN 'closed' ELSE coalesce(nullif(p_run_state, 'direct'), r.state) END,
        outcome = coalesce(v_end, r.outcome)
        WHERE r.tenant_id = p_tenant AND r.run_id = run;
    UPDATE cuo_threads t SET
        head_seq = CASE WHEN t.checkpoint_ns = '' THEN seq ELSE t.head_seq END,
        newest_seq = CASE WHEN here AND v_carrier IS NOT NULL THEN seq - v_rows + 1 ELSE t.newest_seq END,
        newest_id = CASE WHEN here AND v_carrier IS NOT NULL THEN p_lg_id ELSE t.newest_id END,
        newest_at = CASE WHEN here AND v_carrier IS NOT NULL THEN now() ELSE t.newest_at END,
        greatest_id = CASE WHEN here AND v_carrier IS NOT NULL THEN greatest(t.greatest_id COLLATE "C", p_lg_id COLLATE "C") ELSE t.greatest_id END,
        greatest_write_id = CASE WHEN here THEN greatest(t.greatest_write_id COLLATE "C", v_greatest COLLATE "C") ELSE t.greatest_write_id END,
        last_write_at = CASE WHEN here AND v_written > 0 THEN greatest(t.last_write_at, now()) ELSE t.last_write_at END,
        first_at = least(t.first_at, now())
        FROM (SELECT p_ns AS ns, true AS here UNION ALL SELECT '', false WHERE p_ns <> '') AS touched(ns, here)
        WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = touched.ns;
END
$fn$;

-- An attempt to overwrite is recorded on its own, because the attempt itself was rolled back.
CREATE OR REPLACE FUNCTION cuo_record_refused(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_run uuid, p_trace text, p_state_sha text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_opened boolean;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    v_opened := cuo_open_run(p_tenant, p_run, p_thread, p_trace);
    PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['refused_overwrite'],
        ARRAY['{"checkpoint_ns":' || cuo_jcs(p_ns) || ',"lg_checkpoint_id":' || cuo_jcs(p_lg_id)
              || ',"refused_state_sha256":' || cuo_jcs(p_state_sha) || ',"thread_id":' || cuo_jcs(p_thread) || '}']);
    IF v_opened THEN
        -- A chain made for the attempt alone is no run that anybody could continue.
        PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['close'], ARRAY['{"log_rows":0,"outcome":"refused"}']);
        UPDATE cuo_runs r SET state = 'closed', outcome = 'refused' WHERE r.tenant_id = p_tenant AND r.run_id = p_run;
    END IF;
END
$fn$;

-- Claims the one right to run a step's effect: true for the first caller of this (run, name), ever.
-- p_approval: what the chain says of a person's answer, when it counts and when it came second.
CREATE OR REPLACE FUNCTION cuo_claim(p_tenant uuid, p_thread text, p_run uuid, p_trace text, p_name text, p_value jsonb, p_sha text, p_approval text[] DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_status text;
BEGIN
    SELECT a.status INTO v_status FROM cuo_append(
        p_tenant, p_thread, '', p_run, p_trace, '$claim/' || p_run, NULL, '[]'::jsonb, NULL, NULL, false,
        jsonb_build_array(jsonb_build_object('lg', '$claim/' || p_run, 'task', p_name, 'path', '', 'writes',
            jsonb_build_array(jsonb_build_object('idx', 0, 'channel', p_name, 'value', p_value, 'sha', p_sha)))),
        ARRAY[]::text[], ARRAY[]::text[], NULL, false, false, false, false) AS a;
    IF p_approval IS NOT NULL THEN
        PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['approval'], ARRAY[p_approval[CASE WHEN v_status = 'stored' THEN 1 ELSE 2 END]]);
    END IF;
    RETURN v_status = 'stored';
END
$fn$
"""

READ = """
CREATE OR REPLACE VIEW cuo_checkpoints_full WITH (security_invoker = true) AS
    SELECT c.checkpoint_id, c.tenant_id, c.run_id, c.parent_checkpoint_id, c.node_name, c.edge_from, c.edge_to, c.kind,
           coalesce(h.state_json, c.state_json) AS state_json, c.trace_id, c.created_at, c.thread_id, c.checkpoint_ns,
           c.seq, c.step, c.phase, c.ordinal, c.lg_checkpoint_id, c.lg_parent_id, c.langgraph,
           c.state_sha256, c.langgraph_sha256, c.row_sha256
    FROM cuo_langgraph_checkpoints c
    LEFT JOIN cuo_langgraph_checkpoints h
        ON h.tenant_id = c.tenant_id AND h.created_at = c.created_at AND h.checkpoint_id = (c.state_json ->> '$state_of')::uuid;

-- The moment inside a time-ordered id (UUID version 6, which LangGraph makes); null for any other id.
CREATE OR REPLACE FUNCTION cuo_id_time(p_id text) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $fn$
    SELECT CASE WHEN p_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-'
                THEN to_timestamp(('x' || substr(p_id, 1, 8) || substr(p_id, 10, 4) || substr(p_id, 16, 3))::bit(60)::bigint / 1e7 - 12219292800) END
$fn$;

-- Where a checkpoint stands. The time inside its id says which month to look in first; if it is not
-- there (a copy, an id of another kind, a clock that is days off), spans twice as long each time, newest first.
CREATE OR REPLACE FUNCTION cuo_find(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_from timestamptz, p_to timestamptz, p_above bigint,
    OUT seq bigint, OUT at timestamptz)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_low    timestamptz := cuo_id_time(p_lg_id) - interval '1 day';
    v_high   timestamptz := v_low + interval '2 days';
    v_months integer := 0;
BEGIN
    LOOP
        IF v_low IS NOT NULL AND v_low <= p_to AND v_high >= p_from THEN
            EXECUTE 'SELECT c.seq, c.created_at FROM cuo_langgraph_checkpoints c
                     WHERE c.tenant_id = $1 AND c.thread_id = $2 AND ($3::text IS NULL OR c.checkpoint_ns = $3) AND c.lg_checkpoint_id = $4
                       AND c.langgraph ? ''channel_versions'' AND c.created_at >= $5 AND c.created_at <= $6 AND c.seq > $7
                       AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
                     ORDER BY c.seq DESC LIMIT 1'
                INTO seq, at USING p_tenant, p_thread, p_ns, p_lg_id, greatest(v_low, p_from), least(v_high, p_to), p_above;
            EXIT WHEN seq IS NOT NULL;
        END IF;
        EXIT WHEN v_months > 0 AND v_low <= p_from;
        v_high := CASE WHEN v_months = 0 THEN p_to ELSE v_low END;
        v_low := date_trunc('month', v_high, 'UTC') - make_interval(months => v_months);
        v_months := greatest(1, v_months * 2);
    END LOOP;
END
$fn$;

-- One checkpoint as LangGraph sees it, the newest when p_lg_id is null, with its pending writes.
-- With p_events, also the log rows about it and the run a resume continues: p_run, else the thread's
-- newest unfinished one.
CREATE OR REPLACE FUNCTION cuo_get(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_events boolean, p_pruned boolean DEFAULT false, p_run uuid DEFAULT NULL,
    OUT lg_id text, OUT lg_parent text, OUT run_id uuid, OUT seq bigint, OUT at timestamptz, OUT state jsonb, OUT langgraph jsonb,
    OUT writes jsonb, OUT events jsonb, OUT open_run jsonb, OUT deleted boolean)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_ns cuo_threads%ROWTYPE;
    v_root cuo_threads%ROWTYPE;
    v_seq bigint;
    v_at timestamptz;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT * INTO v_root FROM cuo_threads t WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = '';
    deleted := coalesce(v_root.deleted, false);
    IF p_ns = '' THEN
        v_ns := v_root;
    ELSE
        SELECT * INTO v_ns FROM cuo_threads t WHERE t.tenant_id = p_tenant AND t.thread_id = p_thread AND t.checkpoint_ns = p_ns;
    END IF;
    IF p_events AND v_root.thread_id IS NOT NULL THEN
        SELECT jsonb_build_object('run_id', r.run_id, 'state', r.state, 'trace_id', r.trace_id,
                                  'stale', coalesce(r.lease_until < now(), true), 'last', r.last_rows[cardinality(r.last_rows)])
            INTO open_run FROM cuo_runs r
            WHERE r.tenant_id = p_tenant AND r.thread_id = p_thread AND NOT r.hidden
              AND (r.run_id = p_run OR r.state <> 'closed')
            ORDER BY (r.run_id = p_run) DESC NULLS LAST, r.first_at DESC LIMIT 1;
    END IF;
    IF v_ns.newest_id IS NULL THEN
        RETURN;
    END IF;
    v_seq := v_ns.newest_seq;
    v_at := v_ns.newest_at;
    IF p_lg_id IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_seq, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_lg_id, v_ns.first_at,
            greatest(v_ns.newest_at, clock_timestamp()), CASE WHEN p_pruned AND NOT deleted THEN 0 ELSE v_ns.hidden_seq END) AS f;
    END IF;
    -- EXECUTE plans with the time in hand, so only the month that holds the row is touched.
    EXECUTE 'SELECT c.lg_checkpoint_id, c.lg_parent_id, c.run_id, c.seq, c.created_at, c.state_json, c.langgraph FROM cuo_langgraph_checkpoints c
             WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.seq = $4 AND c.created_at = $5'
        INTO lg_id, lg_parent, run_id, seq, at, state, langgraph
        USING p_tenant, p_thread, p_ns, v_seq, v_at;
    IF lg_id IS NULL THEN
        RETURN;
    END IF;
    IF v_ns.greatest_write_id IS NOT NULL AND lg_id COLLATE "C" <= v_ns.greatest_write_id COLLATE "C" THEN
        writes := cuo_pending(p_tenant, p_thread, p_ns, lg_id, least(at, v_ns.last_write_at) - interval '1 day', v_ns.last_write_at);
    END IF;
    IF p_events THEN
        EXECUTE 'SELECT jsonb_agg(jsonb_build_object(''id'', c.checkpoint_id, ''run'', c.run_id, ''kind'', c.kind, ''node'', c.node_name,
                            ''phase'', c.phase, ''ordinal'', c.ordinal, ''seq'', c.seq) ORDER BY c.seq)
                 FROM cuo_langgraph_checkpoints c
                 WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.lg_checkpoint_id = $4
                   AND c.created_at >= $5 AND c.created_at <= now() + interval ''1 day'''
            INTO events USING p_tenant, p_thread, p_ns, lg_id, at;
    END IF;
END
$fn$;

-- Pending writes of one checkpoint in LangGraph's order, the newest version of each.
CREATE OR REPLACE FUNCTION cuo_pending(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_from timestamptz, p_to timestamptz) RETURNS jsonb
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_writes  jsonb;
    v_deleted bigint;
    v_hiding  boolean;
BEGIN
    -- What was deleted stays so when its checkpoint's id is used again, and a hidden run's writes go with it.
    SELECT max(d.up_to_seq) FILTER (WHERE d.kind = 'delete_thread'), coalesce(bool_or(d.kind = 'delete_run'), false)
        INTO v_deleted, v_hiding
        FROM cuo_thread_tombstones d WHERE d.tenant_id = p_tenant AND d.thread_id = p_thread;
    EXECUTE 'SELECT jsonb_agg(jsonb_build_array(w.task_id, w.channel, w.value, w.task_path, w.idx)
                              ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx)
             FROM (SELECT DISTINCT ON (task_id, idx) * FROM cuo_langgraph_writes
                   WHERE tenant_id = $1 AND thread_id = $2 AND checkpoint_ns = $3 AND lg_checkpoint_id = $4
                     AND created_at >= $5 AND created_at <= $6 AND seq > $7
                     AND NOT ($8 AND EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = $1 AND r.run_id = cuo_langgraph_writes.run_id AND r.hidden))
                   ORDER BY task_id, idx, seq DESC) AS w'
        INTO v_writes USING p_tenant, p_thread, p_ns, p_lg_id, p_from, p_to, coalesce(v_deleted, 0), v_hiding;
    RETURN v_writes;
END
$fn$;

-- Checkpoints newest first. Filter keys and values are data: each is compared, none is spelled into SQL.
-- p_after_seq, p_after_at: where the page before this one ended. A limited page reads only as many months
-- as it needs: it counts in spans twice as long each time. A row is stamped when its transaction begins and
-- numbered when it has the thread's lock, so a day of slack keeps the order of seq exact.
CREATE OR REPLACE FUNCTION cuo_list(p_tenant uuid, p_thread text, p_ns text, p_lg_id text, p_filter jsonb, p_before text, p_limit bigint,
    p_after_seq bigint, p_after_at timestamptz)
    RETURNS TABLE (thread_id text, checkpoint_ns text, lg_id text, lg_parent text, run_id uuid, seq bigint, at timestamptz, state jsonb, langgraph jsonb, writes jsonb)
LANGUAGE plpgsql SECURITY INVOKER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_from   timestamptz;
    v_to     timestamptz;
    v_mark   timestamptz;
    v_before bigint;
    v_seq    bigint;
    v_at     timestamptz;
    v_months integer := 1;
    v_count  bigint;
    v_rows   text := '
        FROM cuo_langgraph_checkpoints c
        JOIN cuo_threads t ON t.tenant_id = c.tenant_id AND t.thread_id = c.thread_id AND t.checkpoint_ns = c.checkpoint_ns
        WHERE c.tenant_id = $1 AND ($2::text IS NULL OR c.thread_id = $2) AND ($3::text IS NULL OR c.checkpoint_ns = $3)
          AND ($4::text IS NULL OR c.lg_checkpoint_id = $4) AND c.langgraph ? ''channel_versions''
          AND c.created_at >= $7 AND c.created_at <= $8 AND c.seq > t.hidden_seq
          AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
          AND ($5::jsonb IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each($5) f WHERE (c.langgraph -> ''metadata'' -> f.key) IS DISTINCT FROM f.value))
          AND ($9::text IS NULL OR CASE WHEN $10::bigint IS NOT NULL THEN c.seq < $10 ELSE c.lg_checkpoint_id COLLATE "C" < $9 COLLATE "C" END)
          AND ($11::bigint IS NULL OR c.seq < $11)';
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    SELECT min(t.first_at), max(t.newest_at) + interval '1 day' INTO v_from, v_to FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND (p_thread IS NULL OR t.thread_id = p_thread) AND (p_ns IS NULL OR t.checkpoint_ns = p_ns)
          AND t.newest_id IS NOT NULL;
    IF v_from IS NULL THEN
        RETURN;
    END IF;
    IF p_before IS NOT NULL AND p_thread IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_before, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_before, v_from, v_to, 0) AS f;
        v_to := least(v_to, v_at + interval '1 day');
    END IF;
    IF p_lg_id IS NOT NULL AND p_thread IS NOT NULL THEN
        SELECT f.seq, f.at INTO v_seq, v_at FROM cuo_find(p_tenant, p_thread, p_ns, p_lg_id, v_from, v_to, 0) AS f;
        IF v_seq IS NULL THEN
            RETURN;
        ELSIF p_ns IS NOT NULL THEN
            v_from := v_at;
            v_to := v_at;
        END IF;
    END IF;
    v_to := least(v_to, p_after_at + interval '1 day');
    v_mark := least(date_trunc('month', v_to, 'UTC'), v_to - interval '1 day');
    WHILE p_limit IS NOT NULL AND v_mark > v_from LOOP
        EXECUTE 'SELECT count(*) FROM (SELECT' || v_rows || ' LIMIT $6) AS q' INTO v_count
            USING p_tenant, p_thread, p_ns, p_lg_id, p_filter, p_limit, v_mark, v_to, p_before, v_before, p_after_seq;
        EXIT WHEN v_count >= p_limit;
        v_mark := v_mark - make_interval(months => v_months);
        v_months := v_months * 2;
    END LOOP;
    IF p_limit IS NOT NULL THEN
        v_from := greatest(v_from, v_mark - interval '1 day');
    END IF;
    RETURN QUERY EXECUTE '
        SELECT c.thread_id, c.checkpoint_ns, c.lg_checkpoint_id, c.lg_parent_id, c.run_id, c.seq, c.created_at, c.state_json, c.langgraph,
               CASE WHEN t.last_write_at IS NOT NULL AND c.lg_checkpoint_id COLLATE "C" <= t.greatest_write_id COLLATE "C"
                    THEN cuo_pending(c.tenant_id, c.thread_id, c.checkpoint_ns, c.lg_checkpoint_id,
                                     least(c.created_at, t.last_write_at) - interval ''1 day'', t.last_write_at) END'
        || v_rows || '
        ORDER BY CASE WHEN $2::text IS NULL THEN c.created_at END DESC, c.seq DESC LIMIT $6'
        USING p_tenant, p_thread, p_ns, p_lg_id, p_filter, p_limit, v_from, v_to, p_before, v_before, p_after_seq;
END
$fn$
"""

HIDE = """
-- Hides rows from the LangGraph view; the log keeps them. One appended fact, one chain row.
CREATE OR REPLACE FUNCTION cuo_tombstone(p_tenant uuid, p_kind text, p_thread text, p_hidden_run uuid, p_run uuid, p_trace text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
AS $fn$
DECLARE
    v_thread text;
    v_head bigint;
    v_id uuid;
    v_sha bytea;
    v_done integer := 0;
    v_ns record;
    v_new record;
BEGIN
    PERFORM set_config('auth.tenant_id', p_tenant::text, true);
    FOR v_thread IN
        SELECT t.thread_id FROM cuo_threads t
        WHERE t.tenant_id = p_tenant AND t.checkpoint_ns = ''
          AND t.thread_id = coalesce(p_thread, (SELECT r.thread_id FROM cuo_runs r WHERE r.tenant_id = p_tenant AND r.run_id = p_hidden_run))
    LOOP
        SELECT t.head_seq INTO v_head FROM cuo_threads t
            WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.checkpoint_ns = '' FOR UPDATE;
        -- A call whose answer was lost comes again with the run it was given: it has been done.
        CONTINUE WHEN EXISTS (SELECT FROM cuo_thread_tombstones d
                              WHERE d.tenant_id = p_tenant AND d.thread_id = v_thread AND d.run_id = p_run);
        PERFORM cuo_open_run(p_tenant, p_run, v_thread, p_trace);
        v_id := gen_random_uuid();
        INSERT INTO cuo_thread_tombstones (tenant_id, tombstone_id, thread_id, kind, hidden_run_id, up_to_seq, run_id)
            VALUES (p_tenant, v_id, v_thread, p_kind, p_hidden_run, v_head, p_run) RETURNING row_sha256 INTO v_sha;
        PERFORM cuo_chain_append(p_tenant, p_run, ARRAY['tombstone'], ARRAY['{"kind":"' || p_kind || '","row_sha256":"'
            || encode(v_sha, 'hex') || '","thread_id":' || cuo_jcs(v_thread) || ',"tombstone_id":"' || v_id || '"}']);
        UPDATE cuo_runs r SET state = 'closed', outcome = 'tombstone' WHERE r.tenant_id = p_tenant AND r.run_id = p_run AND r.log_rows = 0;
        IF p_kind = 'delete_thread' THEN
            UPDATE cuo_threads t SET deleted = true, hidden_seq = v_head, newest_seq = 0, newest_id = NULL, newest_at = NULL
                WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread;
            UPDATE cuo_runs r SET hidden = true WHERE r.tenant_id = p_tenant AND r.thread_id = v_thread AND r.run_id <> p_run;
        ELSIF p_kind = 'reopen' THEN
            UPDATE cuo_threads t SET deleted = false WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread;
        ELSIF p_kind = 'prune' THEN
            UPDATE cuo_threads t SET hidden_seq = greatest(t.hidden_seq, t.newest_seq - 1)
                WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.newest_seq > 0;
        ELSIF p_kind = 'delete_run' THEN
            UPDATE cuo_runs r SET hidden = true WHERE r.tenant_id = p_tenant AND r.run_id = p_hidden_run;
            FOR v_ns IN SELECT t.checkpoint_ns, t.first_at, t.newest_at, t.hidden_seq FROM cuo_threads t
                        WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.newest_id IS NOT NULL LOOP
                EXECUTE 'SELECT c.seq, c.lg_checkpoint_id AS lg_id, c.created_at AS at FROM cuo_langgraph_checkpoints c
                         WHERE c.tenant_id = $1 AND c.thread_id = $2 AND c.checkpoint_ns = $3 AND c.langgraph ? ''channel_versions''
                           AND c.created_at >= $4 AND c.created_at <= $5 AND c.seq > $6
                           AND NOT EXISTS (SELECT FROM cuo_runs r WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id AND r.hidden)
                         ORDER BY c.seq DESC LIMIT 1'
                    INTO v_new USING p_tenant, v_thread, v_ns.checkpoint_ns, v_ns.first_at, v_ns.newest_at + interval '1 day', v_ns.hidden_seq;
                UPDATE cuo_threads t SET newest_seq = coalesce(v_new.seq, 0), newest_id = v_new.lg_id, newest_at = v_new.at
                    WHERE t.tenant_id = p_tenant AND t.thread_id = v_thread AND t.checkpoint_ns = v_ns.checkpoint_ns;
            END LOOP;
        END IF;
        v_done := v_done + 1;
    END LOOP;
    RETURN v_done;
END
$fn$
"""

RIGHTS = """
DO $do$
DECLARE
    f text;
BEGIN
    PERFORM cuo_protect('cuo_langgraph_checkpoints'::regclass, true, false);
    PERFORM cuo_protect('cuo_langgraph_writes'::regclass, true, false);
    PERFORM cuo_protect('cuo_thread_tombstones'::regclass, true, false);
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
             WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind = 'v' AND c.relname LIKE 'cuo\\_%'
               AND a.grantee NOT IN (0, c.relowner, '{app}'::regrole, '{archiver}'::regrole, '{auditor}'::regrole) LOOP
        EXECUTE 'REVOKE ALL ON ' || f;
    END LOOP;
END
$do$;
GRANT SELECT ON cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_thread_tombstones, cuo_checkpoints_full TO {app}, {auditor};
GRANT INSERT (checkpoint_id, tenant_id, run_id, parent_checkpoint_id, node_name, edge_from, edge_to, kind, state_json, trace_id,
              thread_id, checkpoint_ns, step, phase, ordinal, lg_checkpoint_id, lg_parent_id, langgraph, state_sha256, langgraph_sha256)
    ON cuo_langgraph_checkpoints TO {app};
REVOKE UPDATE, DELETE, TRUNCATE ON cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_thread_tombstones, cuo_memory_audit
    FROM {app}, {archiver}, {auditor}, PUBLIC;
GRANT EXECUTE ON FUNCTION
    cuo_append(uuid, text, text, uuid, text, text, text, jsonb, jsonb, text, boolean, jsonb, text[], text[], text, boolean, boolean, boolean, boolean),
    cuo_record_refused(uuid, text, text, text, uuid, text, text),
    cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[]),
    cuo_get(uuid, text, text, text, boolean, boolean, uuid),
    cuo_pending(uuid, text, text, text, timestamptz, timestamptz),
    cuo_list(uuid, text, text, text, jsonb, text, bigint, bigint, timestamptz),
    cuo_find(uuid, text, text, text, timestamptz, timestamptz, bigint),
    cuo_id_time(text),
    cuo_tombstone(uuid, text, text, uuid, uuid, text) TO {app}
"""

REFUSE_ROWS = """
DO $do$
BEGIN
    IF EXISTS (SELECT FROM cuo_langgraph_checkpoints) OR EXISTS (SELECT FROM cuo_langgraph_writes)
       OR EXISTS (SELECT FROM cuo_thread_tombstones) THEN
        RAISE EXCEPTION 'downgrade refused: the log holds rows'
            USING HINT = 'export them first, then say so: alembic -x drop_rows=yes downgrade ...';
    END IF;
END
$do$
"""


def upgrade() -> None:
    for step in (TABLES, TRIGGERS, APPEND, READ, HIDE):
        _run(step)
    _run(RIGHTS.format(**_roles()))
    _run("SELECT cuo_ensure_partitions()")


def downgrade() -> None:
    if context.config.attributes["drop_rows"] != "yes":
        _run(REFUSE_ROWS)
    _run("""
        DROP FUNCTION IF EXISTS cuo_tombstone(uuid, text, text, uuid, uuid, text);
        DROP FUNCTION IF EXISTS cuo_list(uuid, text, text, text, jsonb, text, bigint, bigint, timestamptz);
        DROP FUNCTION IF EXISTS cuo_find(uuid, text, text, text, timestamptz, timestamptz, bigint), cuo_id_time(text);
        DROP FUNCTION IF EXISTS cuo_get(uuid, text, text, text, boolean, boolean, uuid);
        DROP FUNCTION IF EXISTS cuo_pending(uuid, text, text, text, timestamptz, timestamptz);
        DROP FUNCTION IF EXISTS cuo_claim(uuid, text, uuid, text, text, jsonb, text, text[]);
        DROP FUNCTION IF EXISTS cuo_record_refused(uuid, text, text, text, uuid, text, text);
        DROP FUNCTION IF EXISTS cuo_append(uuid, text, text, uuid, text, text, text, jsonb, jsonb, text, boolean, jsonb, text[], text[], text, boolean, boolean, boolean, boolean);
        DROP VIEW IF EXISTS cuo_checkpoints_full;
        DROP TABLE IF EXISTS cuo_langgraph_checkpoints, cuo_langgraph_writes, cuo_thread_tombstones;
        DROP FUNCTION IF EXISTS cuo_log_before(), cuo_log_after(), cuo_write_before(), cuo_tombstone_before(), cuo_require_parent(uuid, uuid, text, uuid[])
    """)
