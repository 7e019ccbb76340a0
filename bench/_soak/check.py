"""The reckoning of a soak run: what the topics hold, against what was acknowledged and seen.

Every topic is read once more from its first offset to its end:

- offsets count up by one, except where compaction has been;
- the records of a partition are in the order in which they were written, and none is there twice;
- everything acknowledged is there. Of a topic with retention: from the first record that is left;
- of a compacted topic: no key has a value that is older than the newest acknowledged one;
- nothing is there that nobody wrote. A record that was refused may be there.

Groups must have seen everything acknowledged of the topics that keep everything, and must have
committed the ends of all their topics. And a compacted topic must not consist of ever more files.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)

from bench._clusters import Tidelog
from bench._soak.load import COMMON, LOG, PATIENCE_S, Group, Writer
from bench._soak.topics import PARTITIONS, Numbers, number_of
from bench._soak.watch import Verdict
from tidelog.storage.segment import parse_name

SHOWN = 5
# A minute of the load closes a segment or two, and four of a size become one.
FILES_OF_A_TERM = 16
# A run that is shorter has not written enough for retention and compaction to be seen.
LONG_ENOUGH_S = 300.0


class Reading:
    """What one topic holds."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.numbers = Numbers()
        self.records = 0
        self.starts: dict[int, int] = {}  # the first offset of each partition
        self.first: dict[int, int] = {}  # the first number of each partition
        self.faults: list[str] = []
        self.fault_count = 0
        self._offsets: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._newest: dict[int, int] = {}

    def take(self, partition: int, offset: int, value: bytes) -> None:
        number = number_of(value)
        shape, place = self.writer.shape, f"{self.writer.shape.name}/{partition}"
        self.records += 1
        if number >= self.writer.next or number % PARTITIONS != partition:
            self.fault(f"{place} has {number} at {offset}, which nobody wrote there")
        if not self.numbers.add(number):
            self.fault(f"{place} has {number} a second time, at {offset}")
        before = self._offsets.get(partition)
        if before is not None and offset != before + 1 and not shape.keys:
            self.fault(f"{place} has nothing between {before} and {offset}")
        if number <= self._last.get(partition, -1) and number not in self.writer.failed:
            self.fault(f"{place} has {number} at {offset}, after {self._last[partition]}")
        self._offsets[partition] = offset
        self._last[partition] = max(number, self._last.get(partition, -1))
        self.first.setdefault(partition, number)
        if shape.keys:
            self._newest[number % shape.keys] = number

    def fault(self, text: str) -> None:
        self.fault_count += 1
        if len(self.faults) < SHOWN:
            self.faults.append(text)

    def finish(self) -> None:
        """Look for what is missing."""
        writer = self.writer
        if writer.shape.keys:
            for key, number in writer.newest.items():
                if self._newest.get(key, -1) < number:
                    self.fault(
                        f"the newest value of key {key} is {self._newest.get(key)},"
                        f" but {number} was acknowledged"
                    )
            return
        missing = writer.acknowledged.array(writer.next) & ~self.numbers.array(writer.next)
        if not writer.shape.is_whole:
            for partition in range(PARTITIONS):
                # What retention took away is no loss.
                missing[partition : self.first.get(partition, writer.next) : PARTITIONS] = False
        for number in np.flatnonzero(missing).tolist():
            self.fault(f"{writer.shape.name} lost {number}, which was acknowledged")


def read_back(cluster: Tidelog, writer: Writer) -> Reading:
    """Read a topic whole."""
    found = Reading(writer)
    consumer = Consumer(
        {
            **COMMON,
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "soak-check",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        },
        logger=LOG,
    )
    places = [
        TopicPartition(writer.shape.name, index, OFFSET_BEGINNING) for index in range(PARTITIONS)
    ]
    for place in places:
        found.starts[place.partition] = consumer.get_watermark_offsets(place, PATIENCE_S)[0]
    consumer.assign(places)
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS:
        if time.monotonic() > deadline:
            found.fault(f"{writer.shape.name} cannot be read to its end")
            break
        for message in consumer.consume(5000, 0.5):
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                found.take(partition, message.offset() or 0, message.value() or b"")
                deadline = time.monotonic() + PATIENCE_S
            elif error.code() == -191:  # the end of a partition
                ended.add(partition)
            else:
                found.fault(f"{writer.shape.name}/{partition} cannot be read: {error}")
                ended.add(partition)
    consumer.close()
    found.finish()
    return found


def topic_verdicts(found: Reading, seconds: float) -> Iterator[Verdict]:
    writer, name = found.writer, found.writer.shape.name
    yield Verdict(
        not found.fault_count,
        f"{name}: {writer.acknowledged.count:,} acknowledged, {found.records:,} there,"
        f" {writer.failed.count:,} refused, {found.fault_count:,} faults"
        + "".join(f"\n      {text}" for text in found.faults),
    )
    if seconds < LONG_ENOUGH_S or writer.shape.is_whole:
        return
    if writer.shape.keys:
        yield Verdict(
            found.records < writer.next / 2,
            f"{name}: compaction left {found.records:,} of {writer.next:,} records",
        )
    else:
        yield Verdict(
            all(start > 0 for start in found.starts.values()),
            f"{name}: retention took everything before {sorted(found.starts.items())}",
        )


# --- Groups -----------------------------------------------------------------------------------


def file_verdicts(cluster: Tidelog, topic: str) -> Iterator[Verdict]:
    """Count the segments of a compacted topic: merges keep those of one term few."""
    replicas = [
        replica
        for node in cluster.local.nodes
        for replica in sorted((node.directory / "topics" / topic).iterdir())
    ]
    found = [terms_of(each.name for each in replica.glob("log/*.log")) for replica in replicas]
    most = max(max(terms.values(), default=0) for terms in found)
    files = max(sum(terms.values()) for terms in found)
    yield Verdict(
        most <= FILES_OF_A_TERM,
        f"{topic}: a replica has {files} files or fewer, and of one term {most} or fewer"
        f" (allowed: {FILES_OF_A_TERM} of a term)",
    )


def terms_of(names: Iterable[str]) -> Counter[int]:
    """How many segments each term has, by their names."""
    return Counter(found[1] for name in names if (found := parse_name(name)) is not None)


def unseen(group: Group, writer: Writer) -> npt.NDArray[np.bool_]:
    """Numbers that were acknowledged and that nobody of the group was given."""
    size = writer.next
    return writer.acknowledged.array(size) & ~group.seen(writer.shape.name, size)


def wait_seen(groups: list[Group], writers: dict[str, Writer]) -> None:
    """Return when the groups have seen everything, or have had long enough."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and any(
        unseen(group, writers[topic]).any()
        for group in groups
        for topic in group.topics
        if writers[topic].shape.is_whole
    ):
        time.sleep(0.5)
    time.sleep(3.0)  # for the topics that do not say what is to be seen, and for commits


def group_verdicts(cluster: Tidelog, group: Group, writers: dict[str, Writer]) -> Iterator[Verdict]:
    for topic in group.topics:
        if writers[topic].shape.is_whole:
            lost = np.flatnonzero(unseen(group, writers[topic]))
            yield Verdict(
                not lost.size,
                f"{group.name} saw {'all' if not lost.size else f'all but {lost.size:,}'} of"
                f" {topic}" + (f", first missing: {lost[:SHOWN].tolist()}" if lost.size else ""),
            )
    behind = {
        place: (committed, end)
        for place, committed, end in _committed(cluster, group)
        if committed != end
    }
    again = group.again({name: writer.next for name, writer in writers.items()})
    yield Verdict(
        not behind,
        f"{group.name} committed the ends of its topics; {again:,} records came twice"
        if not behind
        else f"{group.name} did not commit the ends of (committed, end): {behind}",
    )


def _committed(cluster: Tidelog, group: Group) -> Iterator[tuple[str, int, int]]:
    """Committed offset and end of each partition."""
    consumer = Consumer(
        {**COMMON, "bootstrap.servers": cluster.bootstrap, "group.id": group.name}, logger=LOG
    )
    try:
        places = [
            TopicPartition(topic, index) for topic in group.topics for index in range(PARTITIONS)
        ]
        told = cluster.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group.name, places)]
        )
        for place in told[group.name].result(PATIENCE_S).topic_partitions:
            end = consumer.get_watermark_offsets(
                TopicPartition(place.topic, place.partition), PATIENCE_S
            )[1]
            yield f"{place.topic}/{place.partition}", place.offset, end
    except KafkaException as error:
        yield f"{group.name}: {error.args[0]}", -1, 0
    finally:
        consumer.close()
