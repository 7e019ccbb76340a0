"""Groups from the records of the log.

Records come in the order of the log and, since the log is compacted, may come without those that
were written before or along with them. So they are only collected at first, the last word on each
key, and become groups when all have been read. Bytes that are no record are counted and passed
over: one of them must not cost all groups their offsets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.kafka.groups.consumer_types import Loaded
from tidelog.kafka.groups.reconcile import Current, MemberState
from tidelog.kafka.groups.records import (
    ClassicKey,
    ClassicValue,
    CurrentKey,
    CurrentValue,
    GroupEpochKey,
    GroupEpochValue,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
    Value,
    decode_key,
    decode_value,
    expect,
)
from tidelog.kafka.groups.wire import CorruptRecord

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True)
class LoadedGroup:
    """What the log says about one group, of either protocol."""

    offsets: dict[tuple[str, int], OffsetValue] = field(default_factory=dict)
    classic: ClassicValue | None = None
    consumer: Loaded = field(default_factory=Loaded)

    @property
    def is_consumer(self) -> bool:
        """The epoch proves a consumer group; one that lacks it was cut off while it began."""
        return self.consumer.epoch is not None or bool(self.consumer.members)

    @property
    def is_nothing(self) -> bool:
        return not self.offsets and self.classic is None and not self.is_consumer


class Loading:
    """Collects what the records of one partition say."""

    def __init__(self) -> None:
        self.records = 0
        self.corrupt = 0
        self._groups: dict[str, LoadedGroup] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Note what one record says."""
        self.records += 1
        if key is None:
            self.corrupt += 1
            return
        try:
            about = decode_key(key)
            if about is not None:
                said = None if value is None else decode_value(about, value)
                self._note(self._groups.setdefault(about.group, LoadedGroup()), about, said)
        except CorruptRecord:
            self.corrupt += 1

    def groups(self) -> Iterator[tuple[str, LoadedGroup]]:
        for group_id, group in self._groups.items():
            if not group.is_nothing:
                yield group_id, group

    def _note(self, group: LoadedGroup, key: Key, value: Value | None) -> None:
        consumer = group.consumer
        match key:
            case OffsetKey():
                _set(group.offsets, (key.topic, key.partition), expect(value, OffsetValue))
            case ClassicKey():
                group.classic = expect(value, ClassicValue)
            case GroupEpochKey():
                epoch = expect(value, GroupEpochValue)
                consumer.epoch = None if epoch is None else epoch.epoch
                consumer.metadata_hash = 0 if epoch is None else epoch.metadata_hash
            case TargetEpochKey():
                target_epoch = expect(value, TargetEpochValue)
                consumer.target_epoch = 0 if target_epoch is None else target_epoch.epoch
            case MemberKey():
                _set(consumer.members, key.member_id, expect(value, MemberValue))
            case TargetKey():
                target = expect(value, TargetValue)
                _set(consumer.targets, key.member_id, None if target is None else target.partitions)
            case CurrentKey():
                _set(consumer.currents, key.member_id, _current(expect(value, CurrentValue)))


def _set(known: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def _current(value: CurrentValue | None) -> Current | None:
    if value is None:
        return None
    try:
        state = MemberState(value.state)
    except ValueError:
        raise CorruptRecord(f"{value.state} is no state of a member") from None
    return Current(value.epoch, value.previous_epoch, state, value.assigned, value.revoking)
