"""Requests of every API with random values: each gets an answer that can be sent."""

import asyncio
import dataclasses
import random
import types
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from tests.kafka.desk import Desk, PretendPartition, versions

from tidelog.kafka import admin, codec
from tidelog.kafka.apis import default_table

# Every API whose handler takes messages; those that take bytes have walks of their own
# (`test_hostile`, `test_operations`).
KEYS = [api.key for api in default_table() if api.handler is not None]
ROUNDS = 60
NAMES = (
    "tides",
    "ebb",
    "",
    "1",
    "no name",
    "x" * 20_000,
    "\N{WATER WAVE}" * 7_000,
    "__consumer_offsets",
    "cleanup.policy",
    "retention.ms",
    "num.partitions",
)
NUMBERS = (0, 1, 2, 3, 4, 8, 10, 16, 32, -1, -2, 127, -128)
LARGE = (2**31 - 1, -(2**31))


def some(kind: Any, chance: random.Random) -> Any:
    """Return a random value for a field of this type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return some(chance.choice(parts), chance)
    if kind is types.NoneType:
        return None
    if origin is tuple:
        return tuple(some(parts[0], chance) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    if dataclasses.is_dataclass(kind):
        return fill(kind, chance)
    name = kind.__name__
    if "Timedelta" in name:
        return timedelta(milliseconds=chance.choice((0, -1, 20_000)))
    if issubclass(kind, bool):
        return chance.random() < 0.5
    if issubclass(kind, str):
        return chance.choice(NAMES)
    if issubclass(kind, UUID):
        return UUID(int=chance.randrange(1, 2**128))
    assert issubclass(kind, int), kind
    wide = NUMBERS if name in ("i8", "i16") else NUMBERS + LARGE
    return kind(chance.choice(wide))


def fill(kind: Any, chance: random.Random) -> Any:
    """Return a message whose fields are random."""
    return kind(
        **{field.name: some(_type(field.type), chance) for field in dataclasses.fields(kind)}
    )


def _type(kind: Any) -> Any:
    supertype = getattr(kind, "__supertype__", None)
    return kind if supertype is None else _type(supertype)


@pytest.mark.parametrize("key", KEYS, ids=codec.api_name)
def test_whatever_is_asked_is_answered(
    key: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CATCH_UP_S", 0.0)
    chance = random.Random(key)
    desk = Desk(tmp_path)
    desk.create("tides", 2, 3)
    desk.node.host(PretendPartition("tides", 0))
    desk.node.lead("tides", 0, 1)
    api = desk.table.get(key)
    assert api is not None
    assert api.handler is not None
    handler = api.handler

    async def main() -> None:
        for _ in range(ROUNDS):
            version = chance.choice(versions(key))
            sent = codec.encode(fill(load_request_schema(key, version), chance))
            answer = await handler(desk.context, codec.decode_request(key, version, sent))
            assert codec.encode(answer)

    asyncio.run(main())
    desk.node.state.check_invariants()


def test_a_request_that_names_too_much_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MAX_NAMED", 3)
    desk = Desk(tmp_path)
    asked = [{"name": "tides", "partition_indexes": [0, 1]}] * 2
    with pytest.raises(codec.Malformed, match="more than 3"):
        desk.ask(46, 0, topics=asked, timeout=timedelta(seconds=1))
