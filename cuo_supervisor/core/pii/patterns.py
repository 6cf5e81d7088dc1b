"""Shapes made of more than digits: addresses, tokens, keys, URLs, IBANs, passports.

Every quantifier is bounded, and every pattern starts at a boundary of its own character class (or
at a literal), so each stretch of text is looked at a bounded number of times: hostile input costs
linear time. Patterns run on folded text (`folding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from .checks import IBAN_LENGTHS, is_iban
from .contexts import Contexts
from .folding import Folded
from .kinds import Kind, Span

__all__ = ["find_shapes"]

_EMAIL_DOMAIN: Final = re.compile(r"@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_EMAIL_LOCAL: Final = re.compile(r"[\w.+%'~!#$&*-]")
_EMAIL_REACH: Final = 256

_SECRET: Final = re.compile(
    r"""(?x) (?<![A-Za-z0-9_]) (?:
        sk-[A-Za-z0-9_-]{16,200}                      # OpenAI, Anthropic and many alike
      | (?:sk|rk|pk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,200}    # Stripe
      | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])        # AWS
      | gh[pousr]_[A-Za-z0-9]{30,255} | github_pat_[A-Za-z0-9_]{22,255}
      | glpat-[A-Za-z0-9_-]{20,64}
      | AIza[A-Za-z0-9_-]{35} | ya29\.[A-Za-z0-9_-]{20,400}       # Google
      | xox[abeoprs]-[A-Za-z0-9-]{10,250}             # Slack
      | hf_[A-Za-z0-9]{30,64} | r8_[A-Za-z0-9]{30,64} # Hugging Face, Replicate
      | gsk_[A-Za-z0-9]{40,80} | xai-[A-Za-z0-9]{40,120} | pplx-[A-Za-z0-9]{40,80}
      | npm_[A-Za-z0-9]{36} | pypi-[A-Za-z0-9_-]{50,250}
      | SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}            # SendGrid
      | dop_v1_[a-f0-9]{64} | AGE-SECRET-KEY-1[A-Z0-9]{50,70}
      | (?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{20,100}={0,2}  # Azure
    )"""
)
_SECRET_HINTS: Final = (
    "sk-", "sk_", "rk_", "pk_", "whsec_", "AKIA", "ASIA", "ABIA", "ACCA", "ghp_", "gho_", "ghu_",
    "ghs_", "ghr_", "github_pat_", "glpat-", "AIza", "ya29.", "xox", "hf_", "r8_", "gsk_", "xai-",
    "pplx-", "npm_", "pypi-", "SG.", "dop_v1_", "AGE-SECRET", "AccountKey=", "SharedAccessKey=",
)  # fmt: skip

_NAMED_SECRET: Final = re.compile(
    r"""(?x) (?<![a-z0-9]) (?:
        (?P<word> password | passwd | pwd | pass\ ?phrase | mat\ khau )
      | api[ _-]?key | access[ _-]?key(?:[ _-]id)? | secret(?:[ _-](?:access[ _-])?key)?
      | client[ _-]?secret | private[ _-]?key | auth[ _-]?token | access[ _-]?token | token
    ) ["']?\ {0,3} (?P<sign> [:=] | \b(?:is|la)\b ) \ {0,3}["']?
    (?!\[redacted-|\[scan-failed) (?P<value> [^\s"',;]{4,256} )"""
)
_NAMED_HINTS: Final = ("pass", "pwd", "mat khau", "key", "secret", "token", "bearer")
_BEARER: Final = re.compile(r"(?<![a-z0-9])bearer {1,3}(?P<value>[a-z0-9._~+/-]{16,4000}={0,2})")

_JWT: Final = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{2,8000}(?:\.[A-Za-z0-9_-]{0,2000}){0,3}"
)
_URL_PASSWORD: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<user>[^\s/@]{0,256}:[^\s/]{1,256})@"
)
_KEY_BLOCK: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")

_IPV4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_VERSION_BEFORE: Final = re.compile(r"(?:version|phien ban|ver\.?|release|build)[ :=]{0,2}$")
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{0,4})(?![\w:])"
)

_IBAN: Final = re.compile(r"(?<!\w)[A-Za-z]{2}\d{2}[A-Za-z0-9 -]{11,44}")
_PASSPORT: Final = re.compile(r"(?<!\w)[a-z]{1,2} ?\d{6,8}(?!\w)")


def find_shapes(folded: Folded, contexts: Contexts, *, digits: bool) -> Iterator[Span]:
    """Spans (in folded offsets) of every non-numeric shape. They may overlap.

    `digits` says whether the text holds any: addresses of machines, IBANs and passports all do.
    """
    text = folded.text
    # Substring tests cost microseconds; most texts have none of these marks.
    if "@" in text:
        yield from _emails(text)
    if "://" in text:
        for match in _URL_PASSWORD.finditer(text):
            yield Span(match.start("user"), match.end("user"), Kind.URL_PASSWORD)
    if "eyJ" in text:
        yield from _whole(_JWT, text, Kind.JWT)
    if any(map(text.__contains__, _SECRET_HINTS)):
        yield from _whole(_SECRET, text, Kind.SECRET)
    if "PRIVATE KEY" in text:
        yield from _key_blocks(text)
    if any(map(folded.lower.__contains__, _NAMED_HINTS)):
        yield from _named_secrets(folded.lower)
    if not digits:
        return
    if text.count(":") >= 2:
        yield from _ipv6(text)
    if text.count(".") >= 3:
        yield from _ipv4(text, folded.lower)
    yield from _ibans(text, contexts)
    if contexts.has(Kind.PASSPORT):
        for match in _PASSPORT.finditer(folded.lower):
            if Kind.PASSPORT in contexts.near(match.start(), match.end(), 0):
                yield Span(match.start(), match.end(), Kind.PASSPORT)


def _whole(pattern: re.Pattern[str], text: str, kind: Kind) -> Iterator[Span]:
    for match in pattern.finditer(text):
        yield Span(match.start(), match.end(), kind)


def _emails(text: str) -> Iterator[Span]:
    # From the "@" outwards: a pattern that starts with the local part either rescans long words
    # or misses names longer than its bound.
    for match in _EMAIL_DOMAIN.finditer(text):
        start = at = match.start()
        if at and text[at - 1] == '"':
            opening = text.rfind('"', max(0, at - 1 - _EMAIL_REACH), at - 1)
            start = opening if opening >= 0 else at
        else:
            limit = max(0, at - _EMAIL_REACH)
            while start > limit and _EMAIL_LOCAL.match(text, start - 1):
                start -= 1
            # A quote the address stands in is not the address's; within it, it may be (o'brien@).
            name = text[start:at]
            start += len(name) - len(name.lstrip("'") or name)
        if start < at:
            yield Span(start, match.end(), Kind.EMAIL)


def _key_blocks(text: str) -> Iterator[Span]:
    position = 0
    while (begin := _KEY_BLOCK.search(text, position)) is not None:
        end = _KEY_END.search(text, begin.end())
        # No end line: the key was cut; everything after its first line may be key.
        position = end.end() if end else len(text)
        yield Span(begin.start(), position, Kind.SECRET)


def _named_secrets(lower: str) -> Iterator[Span]:
    for match in _NAMED_SECRET.finditer(lower):
        value = match["value"]
        telling = any(ch.isdigit() for ch in value)
        if match["sign"] in ":=":
            # "token: ..." also starts ordinary sentences; a password after ":" is taken as one.
            wanted = match["word"] is not None or telling or len(value) >= 20
        else:
            wanted = match["word"] is not None and telling
        if wanted:
            yield Span(match.start("value"), match.end("value"), Kind.SECRET)
    if "bearer" in lower:
        for match in _BEARER.finditer(lower):
            yield Span(match.start("value"), match.end("value"), Kind.SECRET)


def _ipv4(text: str, lower: str) -> Iterator[Span]:
    for match in _IPV4.finditer(text):
        if _VERSION_BEFORE.search(lower, max(0, match.start() - 14), match.start()):
            continue
        if all(int(part) <= 255 for part in match[0].split(".")):
            yield Span(match.start(), match.end(), Kind.IP)


def _ipv6(text: str) -> Iterator[Span]:
    for match in _IPV6.finditer(text):
        found = match[0]
        if not any(ch.isdigit() for ch in found):  # "a::b" is more often code than an address
            continue
        try:
            IPv6Address(found)
        except AddressValueError:
            continue
        yield Span(match.start(), match.end(), Kind.IP)


def _ibans(text: str, contexts: Contexts) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        length = IBAN_LENGTHS.get(text[match.start() : match.start() + 2].upper())
        named = Kind.IBAN in contexts.near(match.start(), match.end(), 0)
        if length is None and not named:
            continue
        end, compact = _take(text, match.start(), match.end(), length or 34)
        valid = (end == len(text) or not text[end].isalnum()) and is_iban(compact.upper())
        if valid or (named and sum(ch.isdigit() for ch in compact) >= 10):
            yield Span(match.start(), end, Kind.IBAN)


def _take(text: str, start: int, limit: int, count: int) -> tuple[int, str]:
    """The first `count` letters and digits from `start`, and where they end."""
    taken: list[str] = []
    at = start
    while at < limit and len(taken) < count:
        if text[at].isalnum():
            taken.append(text[at])
        at += 1
    return at, "".join(taken)
