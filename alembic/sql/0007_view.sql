-- A state that is no reference stays what it is: a cast that fails would fail the whole reading.
CREATE OR REPLACE VIEW cuo_checkpoints_full WITH (security_invoker = true) AS
    SELECT c.checkpoint_id, c.tenant_id, c.run_id, c.parent_checkpoint_id, c.node_name, c.edge_from, c.edge_to, c.kind,
           coalesce(h.state_json, c.state_json) AS state_json, c.trace_id, c.created_at, c.thread_id, c.checkpoint_ns,
           c.seq, c.step, c.phase, c.ordinal, c.lg_checkpoint_id, c.lg_parent_id, c.langgraph,
           c.state_sha256, c.langgraph_sha256, c.row_sha256
    FROM cuo_langgraph_checkpoints c
    LEFT JOIN cuo_langgraph_checkpoints h
        ON h.tenant_id = c.tenant_id AND h.created_at = c.created_at
           AND h.checkpoint_id = CASE WHEN c.state_json ->> '$state_of' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                      THEN (c.state_json ->> '$state_of')::uuid END;
