"""Fetch requests from bytes and their answers to bytes, in all versions from 4 on.

    version   4   isolation level
              5   log start offsets
              7   sessions (KIP-227)
              9   the client's leader epoch (KIP-320)
             11   the client's rack, and the replica to read from instead (KIP-392)
             12   flexible; epoch of the last record that was read, and where logs diverge (KIP-595)
             13   topics by id
             15   a replica's id moves to a tagged field
             16   addresses of leaders (KIP-951)

An answer is a list of buffers, so that batches go out from where they lie.
"""

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from tidelog.kafka.codec import Buffer
from tidelog.kafka.leadership import encode_leader
from tidelog.kafka.primitives import (
    INT32,
    NO_TAGS,
    array_length,
    read_count,
    read_name,
    read_string,
    read_varint,
    skip_tags,
    tagged,
    varint,
)
from tidelog.kafka.reading import Malformed

FIRST_WITH_SESSION: Final = 7
FIRST_WITH_ZSTD: Final = 10
FIRST_WITH_RACK: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_ID: Final = 13
_FIRST_WITH_REPLICA_TAG: Final = 15
FIRST_WITH_ENDPOINTS: Final = 16
CONSUMER: Final = -1
# Of one request. Each costs a lookup and an answer. A topic without partitions counts as one.
MAX_PARTITIONS: Final = 100_000

_LIMITS: Final = struct.Struct(">iiib")  # longest wait, fewest bytes, most bytes, isolation level
_SESSION: Final = struct.Struct(">ii")
_ANSWER: Final = struct.Struct(">ihi")  # throttle time, error, session
_DIVERGING: Final = struct.Struct(">iqB")  # epoch, end offset, no tagged fields
_REPLICA: Final = struct.Struct(">i")
_REPLICA_TAG: Final = 1
_ASKED: Final = {
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
    12: struct.Struct(">iiqiqi"),
}
_TOLD: Final = {4: struct.Struct(">ihqq"), 5: struct.Struct(">ihqqq")}


class Asked(NamedTuple):
    """What a client wants of one partition."""

    partition: int
    epoch: int  # that it believes in; -1: none
    offset: int
    last_epoch: int  # of the last record that it has; -1: unknown
    max_bytes: int


class TopicToRead(NamedTuple):
    key: bytes  # the name with its length, or the id, as it came
    name: str  # "" if the topic is given by its id
    partitions: list[Asked]


@dataclass(slots=True)
class FetchRequest:
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[TopicToRead]
    forgotten: list[tuple[bytes, list[int]]]
    rack: str


@dataclass(slots=True)
class Fetched:
    """What a client gets of one partition."""

    index: int
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    log_start: int = -1
    parts: list[bytes | memoryview] = field(default_factory=list)
    bytes: int = 0
    preferred: int = -1  # the replica to read from instead
    diverging: tuple[int, int] | None = None  # epoch and end offset
    leader: tuple[int, int] | None = None  # node and epoch, if the client is wrong about them


def parse(version: int, body: memoryview) -> FetchRequest:
    """Read a request; raises `Malformed`."""
    try:
        return _parse(version, body)
    except (struct.error, IndexError):
        raise Malformed("the request ends too early") from None
    except UnicodeDecodeError:
        raise Malformed("a name that is not UTF-8") from None


def _parse(version: int, body: memoryview) -> FetchRequest:
    flexible = version >= FIRST_FLEXIBLE
    replica_id, position = CONSUMER, 0
    if version < _FIRST_WITH_REPLICA_TAG:
        replica_id = INT32.unpack_from(body)[0]
        position = 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(body, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= FIRST_WITH_SESSION:
        session_id, session_epoch = _SESSION.unpack_from(body, position)
        position += _SESSION.size
    topics, position = _read_topics(version, flexible, body, position)
    forgotten: list[tuple[bytes, list[int]]] = []
    rack: str | None = ""
    if version >= FIRST_WITH_SESSION:
        forgotten, position = _read_forgotten(version, flexible, body, position)
    if version >= FIRST_WITH_RACK:
        rack, position = read_string(body, position, flexible)
    if version >= _FIRST_WITH_REPLICA_TAG:
        replica_id = _read_replica(body, position)
    elif flexible:
        skip_tags(body, position)
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack or "",
    )


def _read_topic(
    version: int, flexible: bool, body: memoryview, position: int
) -> tuple[bytes, str, int]:
    start = position
    name = ""
    if version >= FIRST_WITH_ID:
        position += 16
        if position > len(body):
            raise IndexError
    else:
        name, position = read_name(body, position, flexible)
    return bytes(body[start:position]), name, position


def _read_topics(
    version: int, flexible: bool, body: memoryview, position: int
) -> tuple[list[TopicToRead], int]:
    asked = _ASKED[max(since for since in _ASKED if since <= version)]
    count, position = read_count(body, position, flexible, 3)
    topics: list[TopicToRead] = []
    left = MAX_PARTITIONS
    for _ in range(count):
        key, name, position = _read_topic(version, flexible, body, position)
        number, position = read_count(body, position, flexible, asked.size)
        left -= max(1, number)
        if left < 0:
            raise Malformed(f"more than {MAX_PARTITIONS} partitions")
        partitions: list[Asked] = []
        for _ in range(number):
            values = asked.unpack_from(body, position)
            position += asked.size
            if flexible:
                position = skip_tags(body, position)
            if version >= 12:
                index, epoch, offset, last_epoch, _, most = values
                partitions.append(Asked(index, epoch, offset, last_epoch, most))
            elif version >= 9:
                partitions.append(Asked(values[0], values[1], values[2], -1, values[-1]))
            else:
                partitions.append(Asked(values[0], -1, values[1], -1, values[-1]))
        if flexible:
            position = skip_tags(body, position)
        topics.append(TopicToRead(key, name, partitions))
    return topics, position


def _read_forgotten(
    version: int, flexible: bool, body: memoryview, position: int
) -> tuple[list[tuple[bytes, list[int]]], int]:
    count, position = read_count(body, position, flexible, 3)
    forgotten: list[tuple[bytes, list[int]]] = []
    left = MAX_PARTITIONS
    for _ in range(count):
        key, _, position = _read_topic(version, flexible, body, position)
        number, position = read_count(body, position, flexible, 4)
        left -= max(1, number)
        if left < 0:
            raise Malformed(f"more than {MAX_PARTITIONS} partitions to forget")
        indexes = [INT32.unpack_from(body, position + 4 * each)[0] for each in range(number)]
        position += 4 * max(0, number)
        if flexible:
            position = skip_tags(body, position)
        forgotten.append((key, indexes))
    return forgotten, position


def _read_replica(body: memoryview, position: int) -> int:
    """Find the replica's id among the tagged fields at the end."""
    replica_id = CONSUMER
    count, position = read_varint(body, position)
    for _ in range(count):
        tag, position = read_varint(body, position)
        size, position = read_varint(body, position)
        if position + size > len(body):
            raise Malformed(f"a tagged field of {size} bytes goes past the end")
        if tag == _REPLICA_TAG:
            replica_id = _REPLICA.unpack_from(body[position : position + size])[0]
        position += size
    return replica_id


def encode(
    version: int,
    error: ErrorCode,
    session_id: int,
    topics: list[tuple[bytes, list[Fetched]]],
    *,
    committed_only: bool,
    endpoints: bytes,
) -> list[Buffer]:
    """Write an answer; `endpoints` are the addresses of the leaders that it names, or empty."""
    flexible = version >= FIRST_FLEXIBLE
    out: list[Buffer] = []
    head = bytearray()
    if version >= FIRST_WITH_SESSION:
        head += _ANSWER.pack(0, error.value, session_id)
    else:
        head += INT32.pack(0)
    head += array_length(len(topics), flexible)
    # Nothing is ever aborted. Kafka has an empty list for those who read what is committed only.
    aborted = array_length(0 if committed_only else -1, flexible)
    told = _TOLD[4 if version < 5 else 5]
    for key, partitions in topics:
        head += key
        head += array_length(len(partitions), flexible)
        for each in partitions:
            mark = each.high_watermark
            values = (each.index, each.error.value, mark, mark)
            head += told.pack(*values) if version < 5 else told.pack(*values, each.log_start)
            head += aborted
            if version >= FIRST_WITH_RACK:
                head += INT32.pack(each.preferred)
            head += varint(each.bytes + 1) if flexible else INT32.pack(each.bytes)
            if each.parts:
                out.append(head)
                out += each.parts
                head = bytearray()
            if flexible:
                head += _tags(each)
        if flexible:
            head += NO_TAGS
    if flexible:
        with_endpoints = endpoints and version >= FIRST_WITH_ENDPOINTS
        head += tagged({0: endpoints}) if with_endpoints else NO_TAGS
    out.append(head)
    return out


def _tags(each: Fetched) -> bytes:
    if each.diverging is None and each.leader is None:
        return NO_TAGS
    fields: dict[int, bytes] = {}
    if each.diverging is not None:
        fields[0] = _DIVERGING.pack(*each.diverging, 0)
    if each.leader is not None:
        fields[1] = encode_leader(*each.leader)
    return tagged(fields)
