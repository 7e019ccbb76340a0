"""The largest requests there are: each array of each API, filled with as many elements as allowed.

A request is made once with one element and grown as bytes, since a million objects would take this
process longer than the node that is measured. Elements are all different (names, ids or numbers
that do not exist), or all the same (the topic, the partition and the group that exist).
"""

import dataclasses
import itertools
import json
import struct
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema
from kio.static.primitive import Records

from tidelog.cluster.operations import MAX_QUESTION_BYTES
from tidelog.kafka import codec
from tidelog.kafka.dispatch import Api, Table
from tidelog.kafka.limits import Limits
from tidelog.records import Record, build_batch
from tidelog.storage import wall_ms

PRODUCE: Final = 0
TOPIC: Final = "t"
GROUP: Final = "g"
# Versions beside the newest whose handlers take another way: topics by name instead of by id.
BY_NAME: Final = {0: 12, 1: 12, 8: 9, 9: 9}
# Numbers that are easy to find in bytes: they stand where elements differ.
_NAME: Final = "n0000000"
_NUMBER: Final = 0x5A5B5C5D
_ID: Final = UUID(int=0x5A5B5C5D << 96 | 1 << 64 | 7)
_MARKS: Final[Sequence[tuple[bytes, Callable[[int], bytes]]]] = (
    (_NAME.encode(), lambda number: b"n%07d" % number),
    (_ID.bytes, lambda number: UUID(int=number + 1).bytes),
    (struct.pack(">i", _NUMBER), lambda number: struct.pack(">i", number)),
)
# What a field wants that is not to be guessed from its type.
_VALUES: Final[dict[str, object]] = {
    "acks": -1,
    "client_software_name": "bench",
    "client_software_version": "1",
    "committed_offset": 1,
    "count": 2,
    "endpoint_type": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "max_bytes": 1 << 14,
    "num_partitions": 1,
    "partition_max_bytes": 1 << 12,
    "producer_epoch": -1,
    "producer_id": -1,
    "protocol_type": "consumer",
    "replica_epoch": -1,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "response_partition_limit": 2000,
    "session_epoch": -1,
    "session_timeout": timedelta(seconds=10),
    "timestamp": -1,
    "transactional_id": None,
    "validate_only": True,
}
_EPOCHS: Final = ("epoch", "start_offset")
_PARTITIONS: Final = ("partition", "index", "partitions", "partition_indexes", "partition_index")


@dataclass(frozen=True, slots=True)
class Large:
    """One request, ready to be sent."""

    api: Api
    version: int
    array: str  # that is filled; "" where there is none
    same: bool  # whether its elements are all the same
    elements: int
    body: bytes

    def __str__(self) -> str:
        alike = "same" if self.same else "other"
        what = f"{self.array}, {alike}" if self.array else "-"
        return f"{self.api.name} v{self.version} ({what})"


def largest(table: Table, most: int, topic_id: UUID) -> Iterator[Large]:
    """Yield requests of every API that is served, of `most` elements or as many as fit."""
    for api in table:
        if api.key == codec.OPERATIONS:
            yield from _operations(api)
            continue
        for version in sorted({api.max_version, BY_NAME.get(api.key, api.max_version)}):
            kind = load_request_schema(api.key, version)
            arrays = [*_arrays(kind, ())]
            if not arrays:
                body = codec.encode(_Filler(topic_id, same=True).message(kind))
                yield Large(api, version, "", same=True, elements=0, body=body)
            for path, same in itertools.product(arrays, (False, True)):
                yield _grown(api, version, path, same, most, topic_id)
        if api.key == PRODUCE:
            yield _heavy(api, topic_id)


def _operations(api: Api) -> Iterator[Large]:
    """An operation that is as large as one may be, and one that is as large as a request."""
    for size in (MAX_QUESTION_BYTES, Limits().max_request_bytes - 100):
        empty = json.dumps({"operation": "status", "arguments": {"ignored": []}})
        count = (size - len(empty)) // 2
        body = json.dumps(
            {"operation": "status", "arguments": {"ignored": [1] * count}}, separators=(",", ":")
        )
        yield Large(api, 0, "JSON", same=True, elements=count, body=body.encode()[:size])


def _heavy(api: Api, topic_id: UUID) -> Large:
    """A hundred batches of a megabyte each, whose records are looked at one by one."""
    filler = _Filler(topic_id, same=True)
    filler.batch = _batch(9_000, 100)
    message = filler.message(load_request_schema(api.key, api.max_version))
    (topic,) = message.topic_data
    parts = tuple(dataclasses.replace(topic.partition_data[0], index=0) for _ in range(95))
    whole = dataclasses.replace(
        message, topic_data=(dataclasses.replace(topic, partition_data=parts),)
    )
    return Large(
        api, api.max_version, "records", same=True, elements=95 * 9_000, body=codec.encode(whole)
    )


def _batch(records: int, size: int) -> bytes:
    now = wall_ms()
    batch = build_batch([Record(place, now, b"key", b"v" * size) for place in range(records)])
    return bytes(batch.data)


# --- Growing --------------------------------------------------------------------------------------


def _grown(
    api: Api, version: int, path: tuple[str, ...], same: bool, most: int, topic_id: UUID
) -> Large:
    kind = load_request_schema(api.key, version)
    one = codec.encode(_Filler(topic_id, same=same, inside=path).message(kind))
    none = codec.encode(_Filler(topic_id, same=same, inside=path, empty=True).message(kind))
    length_bytes = 1 if kind.__flexible__ else 4
    at = next(place for place, pair in enumerate(zip(one, none, strict=False)) if len({*pair}) > 1)
    start = at + 1 - length_bytes
    after = at + 1
    element = one[after : after + len(one) - len(none)]
    limits = Limits()
    bytes_allowed = limits.max_produce_bytes if api.key == PRODUCE else limits.max_request_bytes
    count = min(most, (bytes_allowed - len(none) - 200) // max(1, len(element)))
    body = b"".join(
        (
            none[:start],
            _array_length(count, length_bytes),
            _repeated(element, count, same),
            none[after:],
        )
    )
    return Large(api, version, ".".join(path), same, count, body)


def _array_length(count: int, size: int) -> bytes:
    if size == 4:
        return struct.pack(">i", count)
    out, left = bytearray(), count + 1
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _repeated(element: bytes, count: int, same: bool) -> bytes:
    found = [(mark, made) for mark, made in _MARKS if mark in element]
    if same or not found:
        return element * count
    elements = []
    for number in range(count):
        each = element
        for mark, made in found:
            each = each.replace(mark, made(number), 1)
        elements.append(each)
    return b"".join(elements)


# --- Filling --------------------------------------------------------------------------------------


def _arrays(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the arrays of a message, those within others too."""
    for field in dataclasses.fields(kind):
        inner = _plain(field.type)
        here = (*path, field.name)
        if typing.get_origin(inner) is tuple:
            yield here
            element = _plain(typing.get_args(inner)[0])
            if dataclasses.is_dataclass(element):
                yield from _arrays(element, here)


def _plain(kind: Any) -> Any:
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


class _Filler:
    """Makes a message that has one element in each array that is filled."""

    def __init__(
        self, topic_id: UUID, *, same: bool, inside: tuple[str, ...] = (), empty: bool = False
    ) -> None:
        self._topic_id = topic_id
        self._same = same
        self._inside = inside  # the array whose elements differ
        self._empty = empty  # whether it has none
        self.batch = _batch(1, 10)

    def message(self, kind: Any, path: tuple[str, ...] = ()) -> Any:
        return kind(
            **{
                field.name: self._value(field, (*path, field.name))
                for field in dataclasses.fields(kind)
            }
        )

    def _value(self, field: Any, path: tuple[str, ...]) -> Any:
        kind = _plain(field.type)
        if typing.get_origin(kind) is tuple:
            return self._array(_plain(typing.get_args(kind)[0]), path)
        if dataclasses.is_dataclass(kind):
            return None if kind is not field.type else self.message(kind, path)
        return self._single(kind, path)

    def _array(self, element: Any, path: tuple[str, ...]) -> tuple[Any, ...]:
        if path == self._inside and self._empty:
            return ()
        if dataclasses.is_dataclass(element):
            # Beside what is filled, only what leads there, or makes its elements whole.
            return (self.message(element, path),)
        return (self._single(element, path),)

    def _single(self, kind: Any, path: tuple[str, ...]) -> Any:
        name = path[-1]
        differs = not self._same and self._differs(path)
        if kind is Records:
            return self.batch
        if name in _VALUES:
            return _VALUES[name]
        text = str(getattr(kind, "__name__", kind))
        if "Timedelta" in text:
            return timedelta(milliseconds=0 if name == "max_wait" else 1000)
        kind = _supertype(kind)
        if issubclass(kind, bool):
            return False
        if issubclass(kind, UUID):
            return _ID if differs else self._topic_id
        if issubclass(kind, bytes):
            return b""
        if issubclass(kind, str):
            return self._text(name, differs)
        if any(part in name for part in _EPOCHS) and name != "member_epoch":
            return -1
        if differs and (name in _PARTITIONS or len(path) == len(self._inside)):
            return _NUMBER
        return 1 if name in {"broker_ids", "replicas"} else 0

    def _differs(self, path: tuple[str, ...]) -> bool:
        """Whether a field tells an element of the array from the others."""
        own = len(self._inside)
        return path[:own] == self._inside and len(path) <= own + 1

    def _text(self, name: str, differs: bool) -> str:
        if differs:
            return _NAME
        if name in {"group_id", "groups", "groups_names", "group_ids", "coordinator_keys"}:
            return GROUP
        if name in {"name", "topic", "resource_name", "topic_name", "subscribed_topic_names"}:
            return TOPIC
        return ""


def _supertype(kind: Any) -> Any:
    found = getattr(kind, "__supertype__", None)
    return kind if found is None else _supertype(found)
