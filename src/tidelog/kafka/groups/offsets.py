"""The committed offsets of one group: what was read, by whom nobody asks.

An offset expires when nobody can want it any more (KIP-211): its group has no members, or none that
subscribes to its topic, and the retention has passed since the later of the commit and the moment
the group became empty.
"""

from collections.abc import Callable, Iterator

from tidelog.kafka.groups.outbox import Outbox
from tidelog.kafka.groups.records import NO_TIME, OffsetKey, OffsetValue, encode


class Offsets:
    """Offsets by topic and partition. Every change but `load` leaves a record in the outbox."""

    def __init__(self, group: str, outbox: Outbox) -> None:
        self._group = group
        self._outbox = outbox
        self._topics: dict[str, dict[int, OffsetValue]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, int, OffsetValue]]:
        for topic, partitions in self._topics.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def all(self) -> tuple[tuple[str, int, OffsetValue], ...]:
        """Return all offsets, as fast as this can be done: there may be a lot."""
        return tuple(
            [
                (topic, partition, value)
                for topic, partitions in self._topics.items()
                for partition, value in partitions.items()
            ]
        )

    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def partitions(self, topic: str) -> tuple[int, ...]:
        return tuple(self._topics.get(topic, ()))

    def get(self, topic: str, partition: int) -> OffsetValue | None:
        return self._topics.get(topic, {}).get(partition)

    def commit(self, topic: str, partition: int, value: OffsetValue) -> None:
        self.load(topic, partition, value)
        self._outbox.write(encode(OffsetKey(self._group, topic, partition), value))

    def load(self, topic: str, partition: int, value: OffsetValue | None) -> None:
        """Take what a record of the log says."""
        if value is None:
            self._drop(topic, partition)
            return
        partitions = self._topics.setdefault(topic, {})
        self._count += partition not in partitions
        partitions[partition] = value

    def delete(self, topic: str, partition: int) -> bool:
        """Forget an offset. Deleting one that is not there changes nothing, and says so."""
        if not self._drop(topic, partition):
            return False
        self._outbox.write(encode(OffsetKey(self._group, topic, partition), None))
        return True

    def delete_topic(self, topic: str) -> int:
        partitions = self.partitions(topic)
        for partition in partitions:
            self.delete(topic, partition)
        return len(partitions)

    def delete_all(self) -> None:
        for topic in self.topics():
            self.delete_topic(topic)

    def expire(self, now: int, retention: int, *, base: int, in_use: Callable[[str], bool]) -> int:
        """Forget what has expired; return how many that were.

        `base` is when the group became empty, or `NO_TIME` when that does not count. `in_use` tells
        whether a member still subscribes to a topic.
        """
        expired = []
        for topic, partitions in self._topics.items():
            if in_use(topic):
                continue
            for partition, value in partitions.items():
                if value.expire_time != NO_TIME:
                    due = value.expire_time
                else:
                    due = max(value.commit_time, base) + retention
                if due <= now:
                    expired.append((topic, partition))
        for topic, partition in expired:
            self.delete(topic, partition)
        return len(expired)

    def _drop(self, topic: str, partition: int) -> bool:
        partitions = self._topics.get(topic)
        if partitions is None or partitions.pop(partition, None) is None:
            return False
        self._count -= 1
        if not partitions:
            del self._topics[topic]
        return True
