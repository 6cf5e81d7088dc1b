"""NumPy arrays and scalars: raw bytes in base64 with dtype, shape and memory order.

NumPy is optional. It is never imported for writing (an array cannot exist without it) and only
imported for reading when a row holds an array. No pickle, so no object arrays.
"""

from __future__ import annotations

import base64
import importlib
import math
import sys
from typing import Any

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tag, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.tags import Broken, Refused, type_name

__all__ = ["TAGS", "ArrayPlan", "is_numpy"]

_KINDS = frozenset("biufcSUMm")
"""bool, integers, floats, complex, bytes, text, moments, spans. Not O (objects), V (records)."""


def is_numpy(kind: type) -> bool:
    """Whether `kind` is NumPy's array or one of its scalars, exactly."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (
        kind is numpy.ndarray
        or (issubclass(kind, numpy.generic) and numpy.dtype(kind).type is kind)
    )


class ArrayPlan:
    """Writes arrays and scalars; stateless."""

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        dtype = value.dtype
        name = type_name(type(value))
        if dtype.kind not in _KINDS or dtype.metadata:
            raise Refused(name, f"dtype of kind {dtype.kind!r} cannot be stored")
        if not value.ndim and type(value).__name__ != "ndarray":
            if dtype.kind in "SU":
                raise Refused(name, "a scalar of text; store str or bytes")
            return {"$numpy": _pack(enc, value.tobytes()), "$dtype": dtype.str}
        flags = value.flags
        order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        tree: dict[str, JsonValue] = {
            "$ndarray": _pack(enc, value.tobytes(order=order)),
            "$dtype": dtype.str,
            "$shape": list(value.shape),
            "$order": order,
        }
        if not flags.writeable:
            tree["$readonly"] = True
        return tree


def _pack(enc: Encoder, raw: bytes) -> str:
    enc.charge(len(raw), raw)
    return base64.b64encode(raw).decode("ascii")


def _dtype(numpy: Any, tree: JsonValue) -> Any:
    text = expect(tree, str)
    dtype = numpy.dtype(text)
    if dtype.kind not in _KINDS or dtype.str != text:
        raise Broken("numpy", "a dtype that is never stored")
    return dtype


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise Broken("numpy", "NumPy is not installed here") from error


def _read_array(dec: Decoder, tree: Tree, depth: int) -> Any:
    numpy = _numpy()
    dtype = _dtype(numpy, tree["$dtype"])
    shape = [expect(length, int) for length in expect(tree["$shape"], list)]
    raw = base64.b64decode(expect(tree["$ndarray"], str), validate=True)
    if math.prod(shape) * dtype.itemsize != len(raw) or any(length < 0 for length in shape):
        raise Broken("numpy.ndarray", "bytes that do not fill its shape")
    order = tree["$order"]
    if order not in ("C", "F") or tree.get("$readonly", True) is not True:
        raise Broken("numpy.ndarray", "malformed")
    value = numpy.ndarray(shape, dtype, buffer=raw or None, order=order).copy(order=order)
    value.flags.writeable = "$readonly" not in tree
    return value


def _read_scalar(dec: Decoder, tree: Tree, depth: int) -> Any:
    numpy = _numpy()
    dtype = _dtype(numpy, tree["$dtype"])
    raw = base64.b64decode(expect(tree["$numpy"], str), validate=True)
    if len(raw) != dtype.itemsize or dtype.kind in "SU":
        raise Broken("numpy", "bytes that do not fill its type")
    return numpy.frombuffer(raw, dtype)[0]


TAGS: dict[str, Tag] = {
    "$ndarray": Tag(_read_array, frozenset({"$dtype", "$shape", "$order", "$readonly"})),
    "$numpy": Tag(_read_scalar, frozenset({"$dtype"})),
}
"""`$tag` -> how it is read."""
