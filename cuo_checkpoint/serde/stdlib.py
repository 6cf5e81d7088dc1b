"""Codecs of standard-library values (containers are elsewhere). Each class's tag is `$` and the name of the class.

Exact types only: a subclass of one of these is a class of its own and goes the way of classes.
"""

from __future__ import annotations

import base64
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tag, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.scalars import read_big_integer, read_odd_float
from cuo_checkpoint.serde.tags import Broken, Refused, type_name, unescape_text

__all__ = ["CODECS", "TAGS"]

_TEXTUAL: tuple[type, ...] = (
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.PosixPath,
    pathlib.WindowsPath,
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
    Decimal,
)
"""Classes whose objects are exactly what `str` says and the class reads back."""


# --- writing ----------------------------------------------------------------------------------


def _textual(enc: Encoder, value: Any, depth: int) -> JsonValue:
    kind = type(value)
    text = str(value)
    if str(kind(text)) != text:  # a Windows path such as "./c:x" is read as another one
        raise Refused(type_name(kind), "its text is read as another value")
    return {f"${kind.__name__}": enc.text(text)}


def _uuid(enc: Encoder, value: uuid.UUID, depth: int) -> JsonValue:
    tree: dict[str, JsonValue] = {"$UUID": str(value)}
    if value.is_safe is not uuid.SafeUUID.unknown:
        tree["$is_safe"] = value.is_safe.value
    return tree


def _bytes(enc: Encoder, value: bytes | bytearray, depth: int) -> JsonValue:
    enc.charge(len(value), value)
    return {f"${type(value).__name__}": base64.b64encode(value).decode("ascii")}


def _moment(enc: Encoder, value: datetime | time, depth: int) -> JsonValue:
    """ISO 8601, with the offset when the zone is no more than an offset; else `$tz` beside it."""
    zone = value.tzinfo
    tag = f"${type(value).__name__}"
    tree: dict[str, JsonValue]
    if zone is None or (type(zone) is timezone and _is_bare(zone)):
        tree = {tag: value.isoformat()}
    else:
        tree = {tag: value.replace(tzinfo=None).isoformat()}
        try:
            tree["$tz"] = enc.value(zone, depth + 1)
        except Refused as refused:
            refused.at("tzinfo", depth)
            raise
    if value.fold:
        tree["$fold"] = 1
    return tree


def _is_bare(zone: timezone) -> bool:
    return len(zone.__getinitargs__()) == 1  # type: ignore[attr-defined]


def _date(enc: Encoder, value: date, depth: int) -> JsonValue:
    return {"$date": value.isoformat()}


def _timedelta(enc: Encoder, value: timedelta, depth: int) -> JsonValue:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def _timezone(enc: Encoder, value: timezone, depth: int) -> JsonValue:
    offset = value.utcoffset(None)
    tree: dict[str, JsonValue] = {"$timezone": [offset.days, offset.seconds, offset.microseconds]}
    if not _is_bare(value):
        tree["$name"] = enc.text(value.tzname(None))
    return tree


def _zoneinfo(enc: Encoder, value: ZoneInfo, depth: int) -> JsonValue:
    if value.key is None:
        raise Refused("zoneinfo.ZoneInfo", "read from a file, so it has no name")
    return {"$ZoneInfo": enc.text(value.key)}


def _pattern(enc: Encoder, value: re.Pattern[Any], depth: int) -> JsonValue:
    if value.flags & re.DEBUG:
        raise Refused("re.Pattern", "re.DEBUG prints when compiled")
    return {"$Pattern": enc.value(value.pattern, depth + 1), "$flags": value.flags}


def _refuse(reason: str) -> Callable[[Encoder, Any, int], JsonValue]:
    def refuse(enc: Encoder, value: Any, depth: int) -> JsonValue:
        raise Refused(type_name(type(value)), reason)

    return refuse


CODECS: dict[type, Callable[[Encoder, Any, int], JsonValue]] = {
    **dict.fromkeys(_TEXTUAL, _textual),
    uuid.UUID: _uuid,
    bytes: _bytes,
    bytearray: _bytes,
    datetime: _moment,
    time: _moment,
    date: _date,
    timedelta: _timedelta,
    timezone: _timezone,
    ZoneInfo: _zoneinfo,
    re.Pattern: _pattern,
    memoryview: _refuse("a view of memory somebody else may change; store bytes"),
}
"""Exact type -> codec. A tree is a function of the value alone."""


# --- reading ----------------------------------------------------------------------------------


def _read_text(dec: Decoder, tree: JsonValue, depth: int) -> str:
    text: str = expect(dec.value(tree, depth + 1), str)
    return text


def _read_textual(kind: type) -> Tag:
    tag = f"${kind.__name__}"

    def decode(dec: Decoder, tree: Tree, depth: int) -> Any:
        text = _read_text(dec, tree[tag], depth)
        value = kind(text)
        if str(value) != text:
            raise Broken(tag, "not the text this class writes")
        return value

    return Tag(decode)


def _read_str(dec: Decoder, tree: Tree, depth: int) -> str:
    return unescape_text(expect(tree["$str"], str))


def _read_int(dec: Decoder, tree: Tree, depth: int) -> int:
    return read_big_integer(expect(tree["$int"], str))


def _read_float(dec: Decoder, tree: Tree, depth: int) -> float:
    return read_odd_float(expect(tree["$float"], str))


def _read_uuid(dec: Decoder, tree: Tree, depth: int) -> uuid.UUID:
    text = expect(tree["$UUID"], str)
    safe = uuid.SafeUUID.unknown
    if "$is_safe" in tree:
        safe = uuid.SafeUUID(expect(tree["$is_safe"], int))
    value = uuid.UUID(text, is_safe=safe)
    if str(value) != text:
        raise Broken("$UUID", "not the text this class writes")
    return value


def _read_bytes(kind: type[bytes] | type[bytearray]) -> Tag:
    tag = f"${kind.__name__}"

    def decode(dec: Decoder, tree: Tree, depth: int) -> bytes | bytearray:
        text = expect(tree[tag], str)
        value = base64.b64decode(text, validate=True)
        if base64.b64encode(value).decode("ascii") != text:
            raise Broken(tag, "not canonical base64")
        return kind(value)

    return Tag(decode)


def _read_moment(kind: type[datetime] | type[time]) -> Tag:
    tag = f"${kind.__name__}"

    def decode(dec: Decoder, tree: Tree, depth: int) -> datetime | time:
        text = expect(tree[tag], str)
        value = kind.fromisoformat(text)
        if value.isoformat() != text:
            raise Broken(tag, "not the text this class writes")
        if "$tz" in tree:
            zone = dec.value(tree["$tz"], depth + 1)
            if value.tzinfo is not None or not isinstance(zone, tzinfo):
                raise Broken(tag, "$tz is not a time zone, or a second one")
            value = value.replace(tzinfo=zone)
        if "$fold" in tree:
            if tree["$fold"] != 1 or type(tree["$fold"]) is not int:
                raise Broken(tag, "$fold is 1 or absent")
            value = value.replace(fold=1)
        return value

    return Tag(decode, frozenset({"$tz", "$fold"}))


def _read_date(dec: Decoder, tree: Tree, depth: int) -> date:
    text = expect(tree["$date"], str)
    value = date.fromisoformat(text)
    if value.isoformat() != text:
        raise Broken("$date", "not the text this class writes")
    return value


def _span(parts: JsonValue) -> timedelta:
    days, seconds, microseconds = (expect(part, int) for part in expect(parts, list))
    value = timedelta(days, seconds, microseconds)
    if [value.days, value.seconds, value.microseconds] != parts:
        raise Broken("$timedelta", "not [days, seconds, microseconds] in normal form")
    return value


def _read_timedelta(dec: Decoder, tree: Tree, depth: int) -> timedelta:
    return _span(tree["$timedelta"])


def _read_timezone(dec: Decoder, tree: Tree, depth: int) -> timezone:
    offset = _span(tree["$timezone"])
    if "$name" not in tree:
        return timezone(offset)
    return timezone(offset, _read_text(dec, tree["$name"], depth))


def _read_zoneinfo(dec: Decoder, tree: Tree, depth: int) -> ZoneInfo:
    return ZoneInfo(_read_text(dec, tree["$ZoneInfo"], depth))


def _read_pattern(dec: Decoder, tree: Tree, depth: int) -> re.Pattern[Any]:
    source = dec.value(tree["$Pattern"], depth + 1)
    flags = expect(tree["$flags"], int)
    if type(source) not in (str, bytes) or flags & re.DEBUG:
        raise Broken("$Pattern", "not a pattern and its flags")
    value: re.Pattern[Any] = re.compile(source, flags)
    if value.flags != flags:
        raise Broken("$Pattern", "flags this pattern cannot have")
    return value


TAGS: dict[str, Tag] = {
    **{f"${kind.__name__}": _read_textual(kind) for kind in _TEXTUAL},
    "$str": Tag(_read_str),
    "$int": Tag(_read_int),
    "$float": Tag(_read_float),
    "$UUID": Tag(_read_uuid, frozenset({"$is_safe"})),
    "$bytes": _read_bytes(bytes),
    "$bytearray": _read_bytes(bytearray),
    "$datetime": _read_moment(datetime),
    "$time": _read_moment(time),
    "$date": Tag(_read_date),
    "$timedelta": Tag(_read_timedelta),
    "$timezone": Tag(_read_timezone, frozenset({"$name"})),
    "$ZoneInfo": Tag(_read_zoneinfo),
    "$Pattern": Tag(_read_pattern, frozenset({"$flags"})),
}
"""`$tag` -> how it is read."""
