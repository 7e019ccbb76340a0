"""The clients that people use, as they come: what one writes, all of them read."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioPartition
from tests.system.pythonworkload import UNCLOSED
from tests.system.system import PATIENCE, System, until
from tests.system.workload import EAGER, LOG

import kafka

PARTITIONS = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# kafka-python needs a package of its own for each of the others.
PLAIN_CODECS = ("none", "gzip")
pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.filterwarnings(UNCLOSED)]
names = (f"clients-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as a client sees it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


SAMPLES = [
    Sent(b"key", b"value", (("a", b"1"), ("b", b""), ("a", b"2"))),
    Sent(None, b"without a key", ()),
    Sent(b"deleted", None, ()),
    Sent(b"", b"", ()),
    Sent("\N{WATER WAVE}".encode(), b"\x00\xff" * 500, (("\N{WATER WAVE}", b"\xff"),)),
    Sent(b"long", b"tide " * 10_000, ()),
]

Writer = Callable[[System, str, str, Any], None]
Reader = Callable[[System, str, int], list[Sent]]


# --- librdkafka ---------------------------------------------------------------------------------


def write_confluent(cluster: System, topic: str, codec: str, acks: Any) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "compression.type": codec,
            "linger.ms": 20,
        },
        logger=LOG,
    )
    failed: list[Any] = []
    for number, each in enumerate(SAMPLES):
        producer.produce(
            topic,
            each.value,
            each.key,
            number % PARTITIONS,
            headers=list(each.headers),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(PATIENCE) == 0
    assert not failed


def read_confluent(cluster: System, topic: str, count: int) -> list[Sent]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "auto.offset.reset": "error"},
        logger=LOG,
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    )
    found: list[Sent] = []

    def enough() -> bool:
        for message in consumer.consume(100, 0.1):
            assert message.error() is None
            headers = tuple(message.headers() or ())
            found.append(Sent(message.key(), message.value(), headers))  # type: ignore[arg-type]
        return len(found) >= count

    until(enough, f"{count} records of {topic}")
    consumer.close()
    return found


# --- kafka-python -------------------------------------------------------------------------------


def write_python(cluster: System, topic: str, codec: str, acks: Any) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap.split(","),
        acks=acks if acks == "all" else int(acks),
        enable_idempotence=acks == "all",
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
    )
    with closing(producer):
        futures = [
            producer.send(
                topic, each.value, each.key, list(each.headers), partition=number % PARTITIONS
            )
            for number, each in enumerate(SAMPLES)
        ]
        for future in futures:
            future.get(PATIENCE)


def read_python(cluster: System, topic: str, count: int) -> list[Sent]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest", group_id=None
    )
    consumer.assign([kafka.TopicPartition(topic, index) for index in range(PARTITIONS)])
    found: list[Sent] = []

    def enough() -> bool:
        for records in consumer.poll(100).values():
            found.extend(Sent(each.key, each.value, tuple(each.headers)) for each in records)
        return len(found) >= count

    with closing(consumer):
        until(enough, f"{count} records of {topic}")
    return found


# --- aiokafka -----------------------------------------------------------------------------------


def write_aio(cluster: System, topic: str, codec: str, acks: Any) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    number % PARTITIONS,
                    headers=list(each.headers),
                )
                for number, each in enumerate(SAMPLES)
            ]
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*futures)
        finally:
            await producer.stop()

    asyncio.run(write())


def read_aio(cluster: System, topic: str, count: int) -> list[Sent]:
    async def read() -> list[Sent]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        consumer.assign([AioPartition(topic, index) for index in range(PARTITIONS)])
        found: list[Sent] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while len(found) < count:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found += [Sent(each.key, each.value, each.headers) for each in records]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


WRITERS: dict[str, Writer] = {
    "librdkafka": write_confluent,
    "kafka-python": write_python,
    "aiokafka": write_aio,
}
READERS: dict[str, Reader] = {
    "librdkafka": read_confluent,
    "kafka-python": read_python,
    "aiokafka": read_aio,
}


def matrix() -> Iterator[tuple[str, str]]:
    for writer in WRITERS:
        for codec in PLAIN_CODECS if writer == "kafka-python" else CODECS:
            yield writer, codec


@pytest.mark.parametrize(("writer", "codec"), list(matrix()))
def test_what_one_client_writes_all_read(calm: System, writer: str, codec: str) -> None:
    topic = next(names)
    calm.create(topic, PARTITIONS)
    levels = ("all", "1", "0")
    for acks in levels:
        WRITERS[writer](calm, topic, codec, acks)
    # One who writes to a partition is read in order; between partitions there is none.
    expected = [
        [each for number, each in enumerate(SAMPLES) if number % PARTITIONS == index] * len(levels)
        for index in range(PARTITIONS)
    ]
    for name, read in READERS.items():
        if name == "kafka-python" and codec not in PLAIN_CODECS:
            continue
        found = read(calm, topic, len(SAMPLES) * len(levels))
        for index in range(PARTITIONS):
            of_partition = [each for each in found if each in expected[index]]
            assert of_partition == expected[index], name
        assert len(found) == len(SAMPLES) * len(levels), name


# --- Leaders that change ------------------------------------------------------------------------


class Follower(threading.Thread):
    """A consumer that follows a topic and keeps the values that it was given."""

    def __init__(self, cluster: System, topic: str) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.topic = topic
        self.values: list[bytes] = []
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.follow()
        except BaseException as error:  # noqa: BLE001  # raised again on the test's thread
            self.error = error

    def follow(self) -> None:
        """Read until it is enough."""
        raise AssertionError


class ConfluentFollower(Follower):
    def follow(self) -> None:
        """Every record, and an error where one is missing."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "none",
                "auto.offset.reset": "error",
                **EAGER,
            },
            logger=LOG,
        )
        consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
        while not self.done.is_set():
            for message in consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                self.values.append(bytes(message.value() or b""))
        consumer.close()


class PythonFollower(Follower):
    def follow(self) -> None:
        """The same with kafka-python."""
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap.split(","),
            group_id=None,
            auto_offset_reset="none",
            reconnect_backoff_max_ms=300,
            request_timeout_ms=5_000,
        )
        place = kafka.TopicPartition(self.topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        with closing(consumer):
            while not self.done.is_set():
                for records in consumer.poll(100).values():
                    self.values.extend(each.value for each in records)


class AioFollower(Follower):
    def follow(self) -> None:
        """The same with aiokafka."""
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap,
            group_id=None,
            auto_offset_reset="none",
            request_timeout_ms=5_000,
            metadata_max_age_ms=1_000,
        )
        await consumer.start()
        place = AioPartition(self.topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        try:
            while not self.done.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.values += [each.value for each in records]
        finally:
            await consumer.stop()


def test_consumers_follow_leaders_that_are_killed_and_that_leave(cluster: System) -> None:
    """Each of them is given every record once, in order, whatever becomes of the leaders."""
    cluster.create("t")
    followers = [kind(cluster, "t") for kind in (ConfluentFollower, PythonFollower, AioFollower)]
    for follower in followers:
        follower.start()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **EAGER}, logger=LOG
    )
    written: list[bytes] = []

    def write(count: int) -> None:
        for _ in range(count):
            written.append(b"%d" % len(written))
            producer.produce("t", written[-1])
            producer.poll(0)
            time.sleep(0.002)

    for number in range(4):
        write(100)
        leader, epoch = cluster.leader("t")
        if number % 2:
            cluster.stop(leader)
        else:
            cluster.kill(leader)
        write(100)
        cluster.leader("t", after=epoch)
        cluster.start(leader)
    assert producer.flush(PATIENCE) == 0

    def all_read() -> bool:
        return all(each.error or len(each.values) >= len(written) for each in followers)

    until(all_read, "all consumers to be at the end")
    for follower in followers:
        follower.done.set()
        follower.join(PATIENCE)
        if follower.error is not None:
            raise follower.error
        assert follower.values == written, type(follower).__name__
