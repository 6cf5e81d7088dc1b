DO $do$
BEGIN
    PERFORM cuo_protect('cuo_seal_leaves'::regclass, true, false);
    PERFORM cuo_protect('cuo_seal_heads'::regclass, true, false);
END
$do$;
GRANT SELECT ON cuo_seal_leaves, cuo_seal_heads TO <app>;
-- The auditor inserts as the tenant it has set, by the policy that binds every role.
GRANT SELECT, INSERT ON cuo_seal_leaves, cuo_seal_heads TO <auditor>;
