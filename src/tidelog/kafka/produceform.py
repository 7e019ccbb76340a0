"""Produce requests from bytes and their answers to bytes, in all versions from 3 on.

    version   3   transactional id; what Kafka 2.1 sends is 7
              5   the answer has the log's start offset
              8   the answer has messages for errors, and names the records to blame (KIP-467)
              9   flexible
             10   the answer names the leader and its address if it is elsewhere (KIP-951)
             13   topics by id

Records are views of the request's own buffer. What names a topic is kept as the bytes it came in,
and leaves in the answer as it came.
"""

import struct
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.kafka.leadership import encode_leader
from tidelog.kafka.primitives import (
    INT32,
    NO_TAGS,
    array_length,
    read_count,
    read_name,
    read_records,
    read_string,
    skip_tags,
    string,
    tagged,
)
from tidelog.kafka.reading import Malformed

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_LEADER: Final = 10
FIRST_WITH_ID: Final = 13
# Of one request. A partition without records takes six bytes, so the size of a request alone would
# allow millions, each with an answer. A topic without partitions counts as one.
MAX_PARTITIONS: Final = 100_000

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_AND_START: Final = struct.Struct(">ihqqq")
_NO_THROTTLE: Final = INT32.pack(0)
_NONE: Final = ErrorCode.none


@dataclass(slots=True)
class TopicToWrite:
    key: bytes  # the name with its length, or the id, as it came
    name: str  # "" if the topic is given by its id
    partitions: list[tuple[int, memoryview | None]]


@dataclass(slots=True)
class ProduceRequest:
    transactional: bool
    acks: int
    timeout_ms: int
    topics: list[TopicToWrite]


class Written:
    """What came of one partition's records."""

    __slots__ = ("append_time", "error", "faulty", "index", "leader", "message", "offset", "start")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error = _NONE
        self.offset = -1
        self.append_time = -1
        self.start = -1
        self.message: str | None = None
        self.faulty: tuple[int, ...] = ()  # records of the batch for which all of it was refused
        self.leader: tuple[int, int] | None = None  # node and epoch, if it is elsewhere


class ManyPartitions(Exception):
    """A request names more partitions than it may if it is to be read at once."""


def parse(version: int, body: memoryview, most: int = MAX_PARTITIONS) -> ProduceRequest:
    """Read a request; raises `Malformed`, or `ManyPartitions` if there are more than `most`."""
    try:
        return _parse(version, body, most)
    except (struct.error, IndexError):
        raise Malformed("the request ends too early") from None
    except UnicodeDecodeError:
        raise Malformed("a name that is not UTF-8") from None


def _parse(version: int, body: memoryview, most: int) -> ProduceRequest:
    flexible = version >= FIRST_FLEXIBLE
    transactional_id, position = read_string(body, 0, flexible)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, position)
    position += _ACKS_AND_TIMEOUT.size
    count, position = read_count(body, position, flexible, 3)
    topics: list[TopicToWrite] = []
    left = most
    for _ in range(count):
        start = position
        name = ""
        if version >= FIRST_WITH_ID:
            position += 16
        else:
            name, position = read_name(body, position, flexible)
        key = bytes(body[start:position])
        partition_count, position = read_count(body, position, flexible, 6)
        left -= max(1, partition_count)
        if left < 0:
            if most < MAX_PARTITIONS:
                raise ManyPartitions
            raise Malformed(f"more than {MAX_PARTITIONS} partitions")
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index = INT32.unpack_from(body, position)[0]
            records, position = read_records(body, position + 4, flexible)
            if flexible:
                position = skip_tags(body, position)
            partitions.append((index, records))
        if flexible:
            position = skip_tags(body, position)
        topics.append(TopicToWrite(key, name, partitions))
    if flexible:
        skip_tags(body, position)
    return ProduceRequest(transactional_id is not None, acks, timeout_ms, topics)


def encode(version: int, topics: list[tuple[bytes, list[Written]]], endpoints: bytes) -> bytes:
    """Write an answer; `endpoints` are the addresses of the leaders that it names, or empty."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [array_length(len(topics), flexible)]
    for key, partitions in topics:
        parts.append(key)
        parts.append(array_length(len(partitions), flexible))
        for each in partitions:
            _encode_partition(parts, version, flexible, each)
        if flexible:
            parts.append(NO_TAGS)
    parts.append(_NO_THROTTLE)
    if flexible:
        parts.append(tagged({0: endpoints}) if endpoints else NO_TAGS)
    return b"".join(parts)


def _encode_partition(parts: list[bytes], version: int, flexible: bool, each: Written) -> None:
    fixed = (each.index, each.error.value, each.offset, each.append_time)
    if version < 5:
        parts.append(_PARTITION.pack(*fixed))
        return
    parts.append(_PARTITION_AND_START.pack(*fixed, each.start))
    if version < 8:
        return
    parts.append(array_length(len(each.faulty), flexible))
    for record in each.faulty:
        parts.append(INT32.pack(record))
        parts.append(string(None, flexible))  # what is said of the batch says it
        if flexible:
            parts.append(NO_TAGS)
    parts.append(string(each.message, flexible))
    if flexible:
        leader = each.leader if version >= FIRST_WITH_LEADER else None
        parts.append(NO_TAGS if leader is None else tagged({0: encode_leader(*leader)}))
