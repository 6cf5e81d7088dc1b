"""inv-dunning-draft: a payment reminder in Vietnamese and English, for a person to send.

What is not known stays an open bracket in the text; nothing is looked up or made up, and the
letter threatens nothing but the next reminder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "LEVELS", "run"]

ARGUMENTS: Final = ("customer", "amount_vnd", "level")

LEVELS: Final = {
    "first": (
        "Nhắc thanh toán",
        "Có thể Quý công ty chưa kịp để ý, nên chúng tôi xin nhắc về khoản thanh toán nêu trên.",
        "Payment reminder",
        "This may have slipped through, so we would like to remind you of the amount above.",
    ),
    "second": (
        "Nhắc thanh toán lần hai",
        (
            "Chúng tôi chưa ghi nhận khoản thanh toán sau lần nhắc trước. Mong Quý công ty "
            "thanh toán hoặc báo ngày dự kiến trong vòng 7 ngày."
        ),
        "Second payment reminder",
        (
            "We have not seen a payment since our last reminder. Please pay, or tell us the date "
            "you expect to pay, within 7 days."
        ),
    ),
    "final": (
        "Nhắc thanh toán lần cuối",
        (
            "Đây là lần nhắc cuối bằng thư. Nếu có vướng mắc về hóa đơn, xin liên hệ để hai bên "
            "cùng giải quyết."
        ),
        "Final payment reminder",
        (
            "This is our last reminder by letter. If anything about the invoice is in dispute, "
            "please contact us so that we can settle it together."
        ),
    ),
}


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """{"subject", "text", "open"}; `open` names what a person still has to fill in.

    Raises ValueError naming an argument that is wrong.
    """
    customer = arguments.get("customer")
    if customer is not None and (not isinstance(customer, str) or not customer.strip()):
        raise ValueError("customer")
    amount = arguments.get("amount_vnd")
    if amount is not None and (isinstance(amount, bool) or not isinstance(amount, int)):
        raise ValueError("amount_vnd")
    level = arguments.get("level", "first")
    if level not in LEVELS:
        raise ValueError("level")
    title_vi, body_vi, title_en, body_en = LEVELS[level]
    name_vi = customer.strip() if customer else "[tên khách hàng]"
    name_en = customer.strip() if customer else "[customer]"
    due_vi = _dong(amount, "[số tiền]")
    due_en = _dong(amount, "[amount]")
    text = "\n".join(
        (
            f"Kính gửi {name_vi},",
            "",
            f"Hóa đơn: [số hóa đơn]. Số tiền còn phải thanh toán: {due_vi}.",
            body_vi,
            "Nếu đã thanh toán, xin bỏ qua thư này và gửi chúng tôi chứng từ để đối chiếu.",
            "",
            "Trân trọng,",
            "[người ký]",
            "",
            "---",
            "",
            f"Dear {name_en},",
            "",
            f"Invoice: [invoice number]. Amount outstanding: {due_en}.",
            body_en,
            "If you have already paid, please disregard this letter and send us the voucher.",
            "",
            "Kind regards,",
            "[signatory]",
            "",
        )
    )
    still_open = ["invoice_number", "signatory"]
    still_open += [name for name in ("customer", "amount_vnd") if arguments.get(name) is None]
    return {
        "subject": f"{title_vi} / {title_en}",
        "text": text,
        "level": level,
        "open": sorted(still_open),
        "effect": {"kind": "draft", "text": f"{title_vi} / {title_en}\n\n{text}"},
    }


def _dong(amount: int | None, missing: str) -> str:
    """1234567 as 1.234.567 VND."""
    return missing if amount is None else f"{amount:,}".replace(",", ".") + " VND"
