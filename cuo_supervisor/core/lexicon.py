"""Closed word lists of the scorer and the extractors, folded. Pure data.

These are the grammar words of two languages, not the vocabulary of any skill: skills bring
their own words in their manifests.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACCOUNT_CONTEXT",
    "ASKING_OPENERS",
    "BANKS",
    "CONDITIONALS",
    "FILLERS",
    "GENERIC_PARTY",
    "MARKED_NEGATORS",
    "MARKED_REVERSALS",
    "NAME_LIKE",
    "NAME_STOPS",
    "NEGATORS",
    "PHONE_CONTEXT",
    "QUESTIONS",
    "REPORTS",
    "REVERSALS",
    "TAX_CONTEXT",
    "UNMARKED_SIGNS",
    "VIETNAM_SIGNS",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILLERS: Final = _words(
    # English
    "a an the this that these those i me my we us our you your it its he she they them their "
    "is are was were be been am do does did can could will would shall should may might must "
    "please kindly just now so and or of for to from in on at by with about into as if then "
    "whether which what who how why when where some any all here there need want like let lets "
    "help go get make have has had up out also too hi hello hey thanks thank right ok okay "
    # Vietnamese, folded
    "cho cua la va voi thi ma o tai toi ban anh chi em minh giup gium ho hay di nhe nha a oi "
    "xin vui long lam can muon nay kia do duoc co ve de den tu vao len ra trong ngoai cac "
    "nhung mot cai chiec rang se dang khong"
)
"""Words that carry no intent by themselves."""

NEGATORS: Final = _words("don't dont not never no nobody none cannot can't won't shouldn't mustn't")
"""English prohibitions; any other word in n't counts too. "không" is handled by its place."""

REVERSALS: Final = _words(
    "cancel undo revoke void abort stop delete remove withdraw refuse reject skip ignore without "
    "instead reverse dispute postpone pause hold forget refund"
)
"""Acts that turn a request into its opposite, or put it off."""

MARKED_NEGATORS: Final = ("đừng", "chớ", "chẳng")
MARKED_REVERSALS: Final = ("dừng", "hủy", "xóa", "ngừng", "hoãn", "khoan", "thôi", "bỏ", "sửa")
"""Counted only as written here: without marks they are mostly other words (dùng, cho, hoàn,
khoản, thời). "khoan" has no mark of its own and counts where it opens the request."""

UNMARKED_SIGNS: Final = (
    ("dung", "co"), ("khong", "duoc"), ("xoa", "bo"), ("huy", "bo"), ("thu", "hoi"),
    ("tam", "dung"), ("tam", "hoan"), ("tam", "ngung"), ("khoan", "hay"), ("khoan", "da"),
    ("thoi", "khong"), ("thoi", "dung"),
)  # fmt: skip
"""Pairs that say the same without marks."""

REPORTS: Final = (
    ("already",), ("yesterday",), ("said",), ("says",), ("told",), ("asked",), ("complained",),
    ("da",), ("roi",), ("hom", "qua"), ("bao", "la"), ("noi", "la"), ("noi", "rang"),
)  # fmt: skip
"""Signs that an act is told of, not asked for."""

ASKING_OPENERS: Final = _words("did has have had was were does who whose")
"""First words that make a sentence a question about what has happened."""

QUESTIONS: Final = (
    ("how",), ("why",), ("what",), ("when",), ("who",), ("where",), ("which",), ("explain",),
    ("lam", "sao"), ("the", "nao"), ("nhu", "the", "nao"), ("la", "gi"), ("tai", "sao"),
    ("vi", "sao"), ("khi", "nao"), ("bao", "gio"), ("o", "dau"), ("bao", "nhieu"),
    ("giai", "thich"),
)  # fmt: skip
"""Openers that ask to be told something, not to have it done."""

CONDITIONALS: Final = (
    ("if",), ("unless",), ("until",), ("once",), ("should", "we"), ("neu",), ("gia", "su"),
    ("tru", "khi"), ("cho", "den", "khi"),
)  # fmt: skip
"""Signs that the act is in doubt or tied to something that has not happened."""

VIETNAM_SIGNS: Final = _words("vnd vnđ mst gtgt bhxh vietnam vietnamese viet nam dong stk")
"""Words that place a request in Vietnam even when typed without marks."""

TAX_CONTEXT: Final = _words("mst tax tin thue taxcode taxid")
PHONE_CONTEXT: Final = _words(
    "phone sdt dt call goi hotline tel mobile thoai extension fax zalo sms ticket kho"
)
ACCOUNT_CONTEXT: Final = _words("stk tk account acct acc khoan iban")

GENERIC_PARTY: Final = _words(
    "customer customers client clients company supplier vendor partner mr mrs ms anh chi ong ba "
    "khach hang nha cung cap doi tac cong ty team doi"
)
"""Words that introduce a name and are no name alone."""

NAME_LIKE: Final = _words("minh an anh do ho ha chi mai")
"""Grammar words that, unmarked, are also common parts of names."""

NAME_STOPS: Final = _words(
    "the a an for to from of at in on by with about regarding re into onto as is are and or but "
    "account acct stk tk bank amount today tomorrow yesterday week month quarter year next last "
    "this that these those my our your their his her us me them it please now asap via using "
    "cho cua voi ve tai vao den tu so tien ngan hang thang tuan nam ngay quy hom nay mai nhe "
    "sang thanh qua bang trong tren email e-mail phone mst tax deal crm stage invoice invoices "
    "pricing overdue unpaid payment because since until before after when while "
    "which who stating saying asking khi nen la thi da dang se giup gium ho"
)
"""Words that end a name (folded)."""

BANKS: Final = {
    "vietcombank": "Vietcombank", "vcb": "Vietcombank", "techcombank": "Techcombank",
    "tcb": "Techcombank", "bidv": "BIDV", "vietinbank": "VietinBank", "ctg": "VietinBank",
    "agribank": "Agribank", "acb": "ACB", "mbbank": "MB Bank", "mb": "MB Bank",
    "sacombank": "Sacombank", "vpbank": "VPBank", "tpbank": "TPBank", "vib": "VIB",
    "hdbank": "HDBank", "shb": "SHB", "eximbank": "Eximbank", "msb": "MSB", "ocb": "OCB",
}  # fmt: skip
"""Common short names of Vietnamese banks."""
