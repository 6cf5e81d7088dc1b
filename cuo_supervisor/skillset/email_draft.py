"""email-genie-draft: the frame of an e-mail on a topic, for a person to complete and send.

The language follows the topic: Vietnamese if it carries Vietnamese marks, else English.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "run"]

ARGUMENTS: Final = ("topic", "recipient", "address")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """{"to", "subject", "text", "open"}. Raises ValueError or TypeError naming a wrong argument."""
    topic = arguments.get("topic")
    if not isinstance(topic, str) or not topic.strip():
        raise ValueError("topic")
    for name in ("recipient", "address"):
        if not isinstance(arguments.get(name), str | None):
            raise TypeError(name)
    # A line break would let a topic write header lines of its own.
    topic = " ".join(topic.split())
    recipient = " ".join(str(arguments.get("recipient") or "").split())
    vietnamese = _is_vietnamese(topic)
    if vietnamese:
        lines = (
            f"Kính gửi {recipient or '[người nhận]'},",
            "",
            f"Tôi viết thư này về: {topic}.",
            "",
            "[nội dung chính]",
            "",
            "Nếu cần thêm thông tin, xin cho tôi biết.",
            "",
            "Trân trọng,",
            "[người gửi]",
            "",
        )
    else:
        lines = (
            f"Dear {recipient or '[recipient]'},",
            "",
            f"I am writing about {topic}.",
            "",
            "[main points]",
            "",
            "Please let me know if you need anything further.",
            "",
            "Kind regards,",
            "[sender]",
            "",
        )
    subject = topic[:1].upper() + topic[1:]
    text = "\n".join(lines)
    address = arguments.get("address")
    still_open = ["body", "sender"] + ([] if recipient else ["recipient"])
    return {
        "to": address,
        "subject": subject,
        "text": text,
        "language": "vi" if vietnamese else "en",
        "open": sorted(still_open),
        "effect": {
            "kind": "draft",
            "text": f"To: {address or recipient or '[recipient]'}\nSubject: {subject}\n\n{text}",
        },
    }


def _is_vietnamese(text: str) -> bool:
    decomposed = unicodedata.normalize("NFD", text)
    return "đ" in text.lower() or any(unicodedata.combining(c) for c in decomposed)
