"""What a request must look like before anything is done with it. Pure."""

from __future__ import annotations

import unicodedata
from typing import Final

from cuo_supervisor.errors import UsageError

__all__ = ["MAX_QUERY_BYTES", "check_query", "normalise_query"]

MAX_QUERY_BYTES: Final = 16 * 1024
"""Longest query, in UTF-8. A request is a sentence or a short mail, not a document."""


def check_query(query: object) -> str:
    """The query as given, if it can be routed and stored.

    Raises UsageError for anything but text, for nothing but blanks, NUL, lone surrogates (bytes
    that were not UTF-8), and more than 16 KiB. The message never repeats the query.
    """
    if not isinstance(query, str):
        raise UsageError(f"the query must be text, not {type(query).__name__}")
    if not query.strip():
        raise UsageError("the query is empty; say in words what you want done")
    if "\x00" in query:
        raise UsageError("the query holds a NUL character; remove it and try again")
    try:
        size = len(query.encode())
    except UnicodeEncodeError:
        raise UsageError(
            "the query is not valid UTF-8; check the terminal's or file's encoding"
        ) from None
    if size > MAX_QUERY_BYTES:
        raise UsageError(
            f"the query is {size} bytes long, at most {MAX_QUERY_BYTES} are accepted; shorten it"
        )
    return query


def normalise_query(query: str) -> str:
    """NFC, diacritics kept, so that every later step sees one spelling of each letter."""
    return unicodedata.normalize("NFC", query)
