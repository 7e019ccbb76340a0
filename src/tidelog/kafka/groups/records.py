"""Keys and values of the internal topic, in Kafka's own formats, so that Kafka's tools read them.

    key   what                                       value
    0, 1  offset of (group, topic, partition)        version 3; 1 when the client set an expiry
    2     a generation of a classic group            version 3
    3     epoch of a consumer group (KIP-848)        version 0, flexible
    5     subscription of one of its members         version 0, flexible
    6     epoch of its target assignment             version 0, flexible
    7     target assignment of a member              version 0, flexible
    8     current assignment of a member             version 0, flexible

A key begins with its number, a value with its version, both 16 bits. Values of versions 0 to 3 are
read, so that a topic that Kafka wrote can be taken over. A record whose value is missing is a
tombstone: what the key names is gone.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar
from uuid import UUID

from tidelog.kafka.groups.outbox import Record
from tidelog.kafka.groups.wire import CorruptRecord, Reader, Writer

NO_TIME: Final = -1
NO_EPOCH: Final = -1

Assigned = frozenset[tuple[UUID, int]]  # partitions, each as topic id and index
NO_PARTITIONS: Final[Assigned] = frozenset()


class Kind(IntEnum):
    """The number a key begins with."""

    OFFSET = 1
    CLASSIC = 2
    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_time: int = NO_TIME
    expire_time: int = NO_TIME  # set by clients that speak OffsetCommit 2 to 4 only


@dataclass(frozen=True, slots=True)
class ClassicKey:
    group: str


@dataclass(frozen=True, slots=True)
class ClassicMemberValue:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes  # the metadata of the protocol that was chosen
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_time: int
    members: tuple[ClassicMemberValue, ...]


@dataclass(frozen=True, slots=True)
class GroupEpochKey:
    group: str


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class MemberKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout: int
    assignor: str | None


@dataclass(frozen=True, slots=True)
class TargetEpochKey:
    group: str


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    epoch: int


@dataclass(frozen=True, slots=True)
class TargetKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetValue:
    partitions: Assigned


@dataclass(frozen=True, slots=True)
class CurrentKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentValue:
    epoch: int
    previous_epoch: int
    state: int  # of reconcile.MemberState
    assigned: Assigned
    revoking: Assigned


Key = OffsetKey | ClassicKey | GroupEpochKey | MemberKey | TargetEpochKey | TargetKey | CurrentKey
Value = (
    OffsetValue
    | ClassicValue
    | GroupEpochValue
    | MemberValue
    | TargetEpochValue
    | TargetValue
    | CurrentValue
)

_KINDS: Final[dict[type[Key], Kind]] = {
    OffsetKey: Kind.OFFSET,
    ClassicKey: Kind.CLASSIC,
    GroupEpochKey: Kind.GROUP_EPOCH,
    MemberKey: Kind.MEMBER,
    TargetEpochKey: Kind.TARGET_EPOCH,
    TargetKey: Kind.TARGET,
    CurrentKey: Kind.CURRENT,
}
_GROUP_KEYS: Final[dict[int, type[ClassicKey | GroupEpochKey | TargetEpochKey]]] = {
    Kind.CLASSIC: ClassicKey,
    Kind.GROUP_EPOCH: GroupEpochKey,
    Kind.TARGET_EPOCH: TargetEpochKey,
}
_MEMBER_KEYS: Final[dict[int, type[MemberKey | TargetKey | CurrentKey]]] = {
    Kind.MEMBER: MemberKey,
    Kind.TARGET: TargetKey,
    Kind.CURRENT: CurrentKey,
}
_HASH_TAG: Final = 0
_OFFSET_VERSION: Final = 3
_OFFSET_VERSION_WITH_EXPIRY: Final = 1
_CLASSIC_VERSION: Final = 3
_NEWEST_PLAIN: Final = 3  # version 4 of both is Kafka's flexible one, which no release writes yet


def encode(key: Key, value: Value | None) -> Record:
    """Return the record that says `value` of `key`, or that `key` is gone."""
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: Key) -> bytes:
    out = Writer()
    out.int16(_KINDS[type(key)])
    out.string(key.group)
    match key:
        case OffsetKey():
            out.string(key.topic)
            out.int32(key.partition)
        case MemberKey() | TargetKey() | CurrentKey():
            out.string(key.member_id)
        case ClassicKey() | GroupEpochKey() | TargetEpochKey():
            pass
    return out.finish()


def decode_key(data: bytes) -> Key | None:
    """Return the key, or None for one of a kind that is not kept here (a newer Kafka's)."""
    source = Reader(data)
    kind = source.int16()
    key: Key
    if kind in {0, Kind.OFFSET}:
        key = OffsetKey(source.string(), source.string(), source.int32())
    elif kind in _GROUP_KEYS:
        key = _GROUP_KEYS[kind](source.string())
    elif kind in _MEMBER_KEYS:
        key = _MEMBER_KEYS[kind](source.string(), source.string())
    elif kind < 0:
        raise CorruptRecord(f"{kind} is no kind of key")
    else:
        return None
    source.end()
    return key


def encode_value(value: Value) -> bytes:
    out = Writer()
    match value:
        case OffsetValue():
            _write_offset(out, value)
        case ClassicValue():
            _write_classic(out, value)
        case GroupEpochValue():
            out.int16(0)
            out.int32(value.epoch)
            tagged = Writer()
            tagged.int64(value.metadata_hash)
            out.tags({_HASH_TAG: tagged.finish()} if value.metadata_hash else None)
        case MemberValue():
            _write_member(out, value)
        case TargetEpochValue():
            out.int16(0)
            out.int32(value.epoch)
            out.tags()
        case TargetValue():
            out.int16(0)
            _write_partitions(out, value.partitions)
            out.tags()
        case CurrentValue():
            out.int16(0)
            out.int32(value.epoch)
            out.int32(value.previous_epoch)
            out.int8(value.state)
            _write_partitions(out, value.assigned)
            _write_partitions(out, value.revoking)
            out.tags()
    return out.finish()


def decode_value(key: Key, data: bytes) -> Value:
    """Read the value that belongs to this key."""
    source = Reader(data)
    version = source.int16()
    value: Value
    match key:
        case OffsetKey():
            value = _read_offset(source, _at_most(version, _NEWEST_PLAIN))
        case ClassicKey():
            value = _read_classic(source, _at_most(version, _NEWEST_PLAIN))
        case GroupEpochKey():
            _at_most(version, 0)
            epoch = source.int32()
            tagged = source.tags().get(_HASH_TAG)
            value = GroupEpochValue(epoch, Reader(tagged).int64() if tagged is not None else 0)
        case MemberKey():
            _at_most(version, 0)
            value = _read_member(source)
        case TargetEpochKey():
            _at_most(version, 0)
            value = TargetEpochValue(source.int32())
            source.tags()
        case TargetKey():
            _at_most(version, 0)
            value = TargetValue(_read_partitions(source))
            source.tags()
        case CurrentKey():
            _at_most(version, 0)
            value = CurrentValue(
                source.int32(),
                source.int32(),
                source.int8(),
                _read_partitions(source),
                _read_partitions(source),
            )
            source.tags()
    source.end()
    return value


_V = TypeVar("_V", bound=Value)


def expect(value: Value | None, kind: type[_V]) -> _V | None:
    """Narrow a value to the type that its key promises."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"a {type(value).__name__} stands where a {kind.__name__} belongs")


def _at_most(version: int, newest: int) -> int:
    if 0 <= version <= newest:
        return version
    raise CorruptRecord(f"version {version} of a value is not known here")


def _write_offset(out: Writer, value: OffsetValue) -> None:
    if value.expire_time == NO_TIME:
        out.int16(_OFFSET_VERSION)
        out.int64(value.offset)
        out.int32(value.leader_epoch)
        out.string(value.metadata)
        out.int64(value.commit_time)
    else:
        out.int16(_OFFSET_VERSION_WITH_EXPIRY)
        out.int64(value.offset)
        out.string(value.metadata)
        out.int64(value.commit_time)
        out.int64(value.expire_time)


def _read_offset(source: Reader, version: int) -> OffsetValue:
    offset = source.int64()
    leader_epoch = source.int32() if version >= 3 else NO_EPOCH
    metadata = source.string()
    commit_time = source.int64()
    expire_time = source.int64() if version == 1 else NO_TIME
    return OffsetValue(offset, leader_epoch, metadata, commit_time, expire_time)


def _write_classic(out: Writer, value: ClassicValue) -> None:
    out.int16(_CLASSIC_VERSION)
    out.string(value.protocol_type)
    out.int32(value.generation)
    out.string(value.protocol)
    out.string(value.leader)
    out.int64(value.state_time)
    out.int32(len(value.members))
    for member in value.members:
        out.string(member.member_id)
        out.string(member.instance_id)
        out.string(member.client_id)
        out.string(member.client_host)
        out.int32(member.rebalance_timeout)
        out.int32(member.session_timeout)
        out.blob(member.subscription)
        out.blob(member.assignment)


def _read_classic(source: Reader, version: int) -> ClassicValue:
    protocol_type = source.string()
    generation = source.int32()
    protocol = source.nullable_string()
    leader = source.nullable_string()
    state_time = source.int64() if version >= 2 else NO_TIME
    members = tuple(_read_classic_member(source, version) for _ in range(source.length()))
    instances = [one.instance_id for one in members if one.instance_id is not None]
    if len({one.member_id for one in members}) < len(members) or len(set(instances)) < len(
        instances
    ):
        raise CorruptRecord("a member is there twice")
    return ClassicValue(protocol_type, generation, protocol, leader, state_time, members)


def _read_classic_member(source: Reader, version: int) -> ClassicMemberValue:
    member_id = source.string()
    instance_id = source.nullable_string() if version >= 3 else None
    client_id = source.string()
    client_host = source.string()
    rebalance_timeout = source.int32() if version >= 1 else -1
    session_timeout = source.int32()
    return ClassicMemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout if version >= 1 else session_timeout,
        session_timeout,
        source.blob(),
        source.blob(),
    )


def _write_member(out: Writer, value: MemberValue) -> None:
    out.int16(0)
    out.compact_string(value.instance_id)
    out.compact_string(value.rack_id)
    out.compact_string(value.client_id)
    out.compact_string(value.client_host)
    out.compact_length(len(value.topics))
    for topic in value.topics:
        out.compact_string(topic)
    out.compact_string(value.regex)
    out.int32(value.rebalance_timeout)
    out.compact_string(value.assignor)
    out.tags()


def _read_member(source: Reader) -> MemberValue:
    value = MemberValue(
        source.nullable_compact_string(),
        source.nullable_compact_string(),
        source.compact_string(),
        source.compact_string(),
        tuple(source.compact_string() for _ in range(source.compact_length())),
        source.nullable_compact_string(),
        source.int32(),
        source.nullable_compact_string(),
    )
    source.tags()
    return value


def by_topic(partitions: Assigned) -> dict[UUID, list[int]]:
    """Group partitions by topic, both in order, so that equal sets look equal."""
    grouped: dict[UUID, list[int]] = {}
    for topic, index in sorted(partitions):
        grouped.setdefault(topic, []).append(index)
    return grouped


def _write_partitions(out: Writer, partitions: Assigned) -> None:
    grouped = by_topic(partitions)
    out.compact_length(len(grouped))
    for topic, indexes in grouped.items():
        out.uuid(topic)
        out.compact_length(len(indexes))
        for index in indexes:
            out.int32(index)
        out.tags()


def _read_partitions(source: Reader) -> Assigned:
    partitions = set()
    for _ in range(source.compact_length()):
        topic = source.uuid()
        for _ in range(source.compact_length()):
            partitions.add((topic, source.int32()))
        source.tags()
    return frozenset(partitions)
