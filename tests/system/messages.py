"""Requests of every API with plausible values, and ways to damage them."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import types
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_request_schema
from kio.static.primitive import Records

from tidelog.kafka import codec
from tidelog.records import Record, build_batch

# Names of what the requests are about: never those of a test's own topics.
NAMES = ("fuzz", "fuzz-2", "", "x" * 300, "retention.ms", "consumer", "range")
OPERATIONS = ("status", "log", "drain", "undrain", "decommission", "features")
BATCH = bytes(build_batch([Record(0, 1_700_000_000_000, b"key", b"value")]).data)
HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"


def request(api_key: int, version: int, chance: random.Random) -> bytes:
    """Return the body of a request that can be read."""
    if api_key == codec.OPERATIONS:
        return json.dumps(_operation(chance)).encode()
    return codec.encode(_fill(load_request_schema(api_key, version), chance))


def _operation(chance: random.Random) -> object:
    """Return what an operator might ask for, of nodes that are there and of others."""
    node: object = chance.choice((1, 1, 2, -1, 10**30, "1", 1.0, True, None, [], {}))
    topic = chance.choice((*NAMES, None, 7))
    return {
        "operation": chance.choice((*OPERATIONS, "node", "", "\ud800")),
        "arguments": {"node": node, "topic": topic, "partition": chance.choice((0, -1, None, 9))},
    }


def _fill(kind: Any, chance: random.Random) -> Any:
    return kind(
        **{field.name: _some(_plain(field.type), chance) for field in dataclasses.fields(kind)}
    )


def _plain(kind: Any) -> Any:
    supertype = getattr(kind, "__supertype__", None)
    return kind if supertype is None else _plain(supertype)


def _some(kind: Any, chance: random.Random) -> Any:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _some(_plain(chance.choice(parts)), chance)
    if kind is types.NoneType:
        return None
    if origin is tuple:
        part = _plain(parts[0])
        return tuple(_some(part, chance) for _ in range(chance.choice((0, 1, 1, 2))))
    if dataclasses.is_dataclass(kind):
        return _fill(kind, chance)
    if kind is Records:
        return BATCH
    name = kind.__name__
    if "Timedelta" in name:
        return timedelta(milliseconds=chance.choice((0, 1, 50)))
    if issubclass(kind, bool):
        return chance.random() < 0.5
    if issubclass(kind, str):
        return chance.choice(NAMES)
    if issubclass(kind, bytes):
        return chance.randbytes(chance.randrange(20))
    if issubclass(kind, UUID):
        return UUID(int=chance.randrange(1, 2**128))
    if issubclass(kind, float):
        return kind(chance.choice((0.0, 1.0, 1e300)))
    assert issubclass(kind, int), kind
    return kind(chance.choice((-1, 0, 0, 1, 1, 2, 3)))


def _flip(sent: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        sent[chance.randrange(len(sent))] ^= 1 << chance.randrange(8)


def _overwrite(sent: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(sent))
    value = chance.choice((HUGE, HUGE_VARINT, b"\xff" * 4, b"\x80" * 4, b"\x00" * 4, b"\x7f\xff"))
    sent[at : at + len(value)] = value


def _insert(sent: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(sent))
    sent[at:at] = chance.choice((HUGE, HUGE_VARINT, chance.randbytes(chance.randrange(1, 40))))


def _cut(sent: bytearray, chance: random.Random) -> None:
    del sent[chance.randrange(len(sent)) :]


def _remove(sent: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(sent))
    del sent[at : at + chance.randrange(1, 8)]


def _repeat(sent: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(sent))
    part = sent[at : at + chance.randrange(1, 30)]
    sent[at:at] = part * chance.randrange(1, 20)


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _overwrite,
    _insert,
    _cut,
    _remove,
    _repeat,
)


def damaged(body: bytes, chance: random.Random) -> bytes:
    """Return the body with one or two damages."""
    sent = bytearray(body or b"\x00")
    for _ in range(chance.choice((1, 1, 2))):
        if sent:
            chance.choice(DAMAGES)(sent, chance)
    return bytes(sent)
