"""A value that was read is written again as it was: threads go on for years."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import uuid
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from cuo_checkpoint.errors import UnserialisableValue
from cuo_checkpoint.serde import Serializer


class Prices(RootModel[dict[str, int]]):
    pass


class Frozen(RootModel[tuple[int, ...]], frozen=True):
    pass


class Order(BaseModel):
    prices: Prices
    frozen: Frozen = Frozen((1, 2))


class Folder(pathlib.PurePosixPath):
    pass


class Ticket(uuid.UUID):
    pass


class Host(ipaddress.IPv4Address):
    pass


@dataclasses.dataclass
class Marked(pathlib.PurePosixPath):
    mark: int = 1


@pytest.mark.parametrize(
    "value",
    [Prices({"b": 1, "a": 2}), Frozen((3,)), Order(prices=Prices({})), [Prices({"x": 1})]],
    ids=str,
)
def test_a_root_model_is_the_same_after_any_number_of_turns(value: Any) -> None:
    """Reading leaves nothing on the object that writing it again would refuse."""
    codec = Serializer(allowed_types=[Prices, Frozen, Order])
    text = codec.dumps(value)
    for _ in range(3):
        value_read = codec.loads(text)
        assert value_read == value
        assert codec.dumps(value_read) == text


@pytest.mark.parametrize(
    "value",
    [Folder("a/b"), Ticket(int=5, is_safe=uuid.SafeUUID.unknown), Host("10.0.0.1"), Marked()],
    ids=lambda value: type(value).__name__,
)
def test_a_subclass_of_a_library_class_is_refused(value: Any) -> None:
    """Its attributes are the library's caches: so its stored form would be no function of its value."""
    codec = Serializer(allowed_types="any")
    with pytest.raises(UnserialisableValue, match=r"x\[0\].*inherits from") as refused:
        codec.dumps([value], path="x")
    assert refused.value.path == "x[0]"
