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
CREATE UNIQUE INDEX IF NOT EXISTS cuo_holds_released_idx ON cuo_holds (tenant_id, releases);
