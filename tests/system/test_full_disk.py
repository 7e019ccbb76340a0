"""Node processes on small file systems that fill up under real clients: nothing acknowledged is
lost, whatever dies meanwhile, and deleting a topic works on the last byte."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from tests.smalldisks import MIB, fill, free_bytes, make_room, small_disk
from tests.system.system import PATIENCE, System, system, until

from tidelog.cluster.reserve import NAME
from tidelog.server.nodes import LocalCluster

DISK_MIB = 40  # so 5 MiB are LOW, and 1.25 MiB are FULL
SEGMENT = str(1 << 20)
SIZE = 20_000


class Writer:
    """An idempotent producer that knows what was acknowledged, and gives up soon."""

    def __init__(self, cluster: System, topic: str, patience_s: float = 4.0) -> None:
        self._topic = topic
        self._count = 0
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(patience_s * 1000),
                "linger.ms": 0,
            },
            logger=logging.getLogger("librdkafka"),
        )

    def write(self, count: int) -> None:
        """Write records and wait for what becomes of them."""
        for _ in range(count):
            self._count += 1
            value = f"{self._topic}-{self._count} ".encode().ljust(SIZE, b".")
            self._producer.produce(self._topic, value, on_delivery=self._told)
        assert self._producer.flush(PATIENCE) == 0

    def _told(self, error: confluent_kafka.KafkaError | None, message: object) -> None:
        assert isinstance(message, confluent_kafka.Message)
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.refused.append(str(error))

    def fill(self) -> None:
        """Write until the cluster refuses; at a pace at which a small disk has a threshold."""
        while not self.refused:
            self.write(20)
            time.sleep(0.02)

    def is_refused(self) -> bool:
        """Write one record, and tell what becomes of it."""
        before = len(self.refused)
        self.write(1)
        return len(self.refused) > before

    def write_again(self) -> None:
        """Write until that works again."""
        until(lambda: not self.is_refused(), "a write that is taken")


def read(cluster: System, topic: str) -> list[bytes]:
    """Read a topic to its end, without a group."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
        },
        logger=logging.getLogger("librdkafka"),
    )
    values: list[bytes] = []
    with contextlib.closing(consumer):
        place = confluent_kafka.TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, PATIENCE)
        consumer.assign([place])

        def done() -> bool:
            found = consumer.consume(1000, 0.5)
            values.extend(each.value() or b"" for each in found if each.error() is None)
            return len(values) >= end

        until(done, f"reading {topic}")
    return values


def read_as_group(cluster: System, topic: str, group: str) -> int:
    """Join a group, read a topic to its end and commit that; return how many records there were."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        },
        logger=logging.getLogger("librdkafka"),
    )
    count = 0
    with contextlib.closing(consumer):
        place = confluent_kafka.TopicPartition(topic, 0)
        _, end = consumer.get_watermark_offsets(place, PATIENCE)
        consumer.subscribe([topic])

        def done() -> bool:
            nonlocal count
            count += sum(each.error() is None for each in consumer.consume(1000, 0.5))
            return count >= end

        until(done, f"reading {topic} in a group")
        consumer.commit(asynchronous=False)
        [committed] = consumer.committed([place], PATIENCE)
    assert committed.offset == end
    return count


def check(cluster: System, topic: str, writer: Writer) -> None:
    """All that was acknowledged is there, once and in order."""
    acknowledged = set(writer.acknowledged)
    assert [value for value in read(cluster, topic) if value in acknowledged] == list(
        writer.acknowledged
    )


def delete(cluster: System, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([topic], operation_timeout=PATIENCE)[topic].result(PATIENCE)


@contextlib.contextmanager
def small(data: Path, nodes: int) -> Iterator[tuple[System, list[Path]]]:
    """Nodes that have a small file system each."""
    with contextlib.ExitStack() as stack:
        each = [data / f"node-{number + 1}" for number in range(nodes)]
        disks = [stack.enter_context(small_disk(at, DISK_MIB)) for at in each]
        cluster = LocalCluster(data)
        cluster.prepare(nodes, 0, settings="housekeeping_s = 0.5\n")
        yield stack.enter_context(system(data, prepared=cluster)), disks


def fill_up(cluster: System, number: int, disk: Path) -> None:
    """Fill a disk to the last byte, when its node has a reserve, and wait until that is in use."""
    fill(disk, 6 * MIB)
    until((disk / NAME).exists, "a reserve")
    fill(disk)
    until(lambda: f"the disk of {disk.resolve()} is full" in cluster.log_of(number), "a log line")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[System, list[Path]]]:
    with small(tmp_path, 1) as both:
        yield both


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[System, list[Path]]]:
    with small(tmp_path, 3) as both:
        yield both


def test_a_node_alone_that_is_killed_on_a_full_disk(
    alone: tuple[System, list[Path]],
) -> None:
    cluster, (disk,) = alone
    for topic in ("t", "u"):
        cluster.create(topic, replicas=1, segment_bytes=SEGMENT)
    writer = Writer(cluster, "t")
    writer.fill()
    assert len(writer.acknowledged) * SIZE > 20 * MIB, "most of the disk is used"
    assert free_bytes(disk) > 0
    check(cluster, "t", writer)
    fill(disk)
    cluster.kill(1)
    cluster.start(1)
    check(cluster, "t", writer)
    delete(cluster, "t")
    until(lambda: not (disk / "topics" / "t").exists(), "its files are gone")
    other = Writer(cluster, "u")
    other.write_again()
    check(cluster, "u", other)


def test_one_of_three_falls_behind_and_catches_up(
    three: tuple[System, list[Path]],
) -> None:
    cluster, disks = three
    cluster.create("t", segment_bytes=SEGMENT)
    writer = Writer(cluster, "t", patience_s=30)
    writer.write(100)
    full, epoch = cluster.leader("t")
    fill_up(cluster, full, disks[full - 1])
    writer.write(100)
    leader, _ = cluster.leader("t", after=epoch)
    assert leader != full
    cluster.kill(full)
    writer.write(100)
    cluster.start(full)
    writer.write(100)
    make_room(disks[full - 1])
    writer.write(100)
    assert writer.refused == []
    [log] = disks[full - 1].glob("topics/t/*/log")
    size = len(writer.acknowledged) * SIZE
    until(lambda: sum(path.stat().st_size for path in log.glob("*.log")) > size, "it has caught up")
    cluster.kill(leader)  # what is read now comes from a majority with the one that was full
    cluster.leader("t", by=cluster.running(), after=epoch + 1)
    check(cluster, "t", writer)
    cluster.start(leader)


def test_two_of_three_refuse_honestly_and_come_back(
    three: tuple[System, list[Path]],
) -> None:
    cluster, disks = three
    for topic in ("t", "u"):
        cluster.create(topic, segment_bytes=SEGMENT)
    writer = Writer(cluster, "t")
    writer.write(200)
    assert read_as_group(cluster, "t", "before") == 200
    for full in (1, 2):
        fill_up(cluster, full, disks[full - 1])
    until(writer.is_refused, "a write that is refused")
    check(cluster, "t", writer)
    assert read_as_group(cluster, "t", "meanwhile") >= 200
    cluster.kill(1, 2)
    cluster.start(1, 2)
    check(cluster, "t", writer)
    delete(cluster, "t")
    files = [disk / "topics" / "t" for disk in disks]
    until(lambda: not any(path.exists() for path in files), "its files are gone")
    other = Writer(cluster, "u")
    for full in (1, 2):
        make_room(disks[full - 1])
    other.write_again()
    check(cluster, "u", other)
