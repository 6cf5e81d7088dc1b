DROP TABLE IF EXISTS cuo_seal_leaves, cuo_seal_heads;
