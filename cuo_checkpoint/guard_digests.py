"""A digest of each function that the migrations make: its body and all that says how it runs.

By name and number of arguments, as `cuo_checkpoint.guards` reads them from a freshly migrated database
of any supported version, in any schema. `tests/integration/test_guards.py` holds the two against
each other and, after a new revision, shows what to put here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FUNCTIONS"]

FUNCTIONS: Final[Mapping[str, str]] = {
    "cuo_append/19": "4e1874a89526ce759744de3efc7adcba",
    "cuo_archive_failed/3": "c07e652191d7e7c602ed0e5774cf14c7",
    "cuo_canonical/1": "4e12516d391820cebed98f165df34ae9",
    "cuo_chain_append/4": "24ebb322b927b7f3c6ca32fc8ed9ac9c",
    "cuo_chain_link/0": "24c8331b895ab7c32bce74c149d19385",
    "cuo_chain_write/7": "292a5337bf06fcf8fab6db0b07e2b447",
    "cuo_claim/10": "7b7fc2b949238f54b61d301d9a476c81",
    "cuo_claim/8": "d0f93d054b38f3e0e107a632d4d8f63d",
    "cuo_delta_reaches/7": "c8eda5d7893a3ae36789887d99e66b2c",
    "cuo_derived_runs/1": "af0cf37a511dc18e8ccce5454765a350",
    "cuo_derived_threads/1": "078681973ef40dd1db411a01d138885a",
    "cuo_digest_fits/2": "1c9b215bdb9e9d568c894cb39257caf7",
    "cuo_drop_month/4": "4cd224aa4a8860b758e23b47db536447",
    "cuo_drop_tenant_month/5": "f2f8b5cda9aa6f64bf37002c838348a8",
    "cuo_ensure_partitions/0": "1e85edb2e3df8ae4bce2c7f8e7e78676",
    "cuo_find/7": "3273944ee4c280bfff61845cb29e42e7",
    "cuo_forbid_change/0": "354368d10e6568ac9dde915d8891dfbb",
    "cuo_genesis/2": "a58063971b223ff76221058fb5bb1018",
    "cuo_get/7": "ced7591f0d85263e58882ade633a37d3",
    "cuo_hold/5": "27e58aabbea4214b0fb24e3d3bf5a0d6",
    "cuo_id_time/1": "6ec6d990ef23e77a685a0fab20a729ec",
    "cuo_index_tenants/0": "ebcc5d2ad915b1337d3d59f563289536",
    "cuo_jcs/1": "36b256156cc6e2593c6774cdde882190",
    "cuo_jcs_time/1": "aa8fa3841fc6c365503aa907815b9615",
    "cuo_list/9": "eefc12b1d59a1e190f745c727562a4b0",
    "cuo_list_holds/1": "785878dccec9ee4a76fea446781f4753",
    "cuo_log_after/0": "5495b4c75ddf7ee670579263cd64fa7d",
    "cuo_log_before/0": "cefa28e61790e69b458cae9ebb3cce28",
    "cuo_month_facts/2": "154abf6f279e78c685b4f9323791007e",
    "cuo_month_root/4": "f33b932e60c04cd0d2afe96de50f2ed9",
    "cuo_months/0": "95a888e33815f848757177e68857ff0b",
    "cuo_open_run/4": "7c8106533b3ebc10f1b067eeb5f76302",
    "cuo_owner/0": "b567aebddc6633dd1c87b31b6f6041a5",
    "cuo_pending/6": "12e1687ab831948d8e28094fd75e9a4f",
    "cuo_protect/3": "3aca3990c2c488e8d084e8f268f1c874",
    "cuo_rebuild_index/2": "9d7a91289f19fcc53d0ccf6b5d7528bf",
    "cuo_record_refused/7": "fadda942be54f8c616dcefd8997ed616",
    "cuo_require_floor/1": "9145221bbc2cc0bbeb370dfe1c64a04e",
    "cuo_require_parent/4": "493c42341d6449a90afdf07ba1b3069f",
    "cuo_retention_report/1": "fdf2683d5629cd0324505c5ccca95a4e",
    "cuo_retention_says/3": "36684dfb4ff9d56afc77f3c92ccde64a",
    "cuo_run_genesis/0": "6338c1f4760f8d94ce340593ab9fd569",
    "cuo_run_opened/0": "fe1c97d3476298bfb75eaecc1ee64e40",
    "cuo_run_stays_closed/0": "dd8985fe0563ddd3eb210de83f3c94a9",
    "cuo_tenant/0": "a0fddd40e73086a01164a3d5f030125a",
    "cuo_tombstone/6": "b3f3eda3b6383f3cc191c7ecdb78af7b",
    "cuo_tombstone_before/0": "7854e2fed09ed12bae419d20058eecd5",
    "cuo_waiting_runs/1": "401651a458cc60fcb6f88e0d1170d66e",
    "cuo_write_before/0": "b63b5213683a40f78a137e100a14be29",
}
