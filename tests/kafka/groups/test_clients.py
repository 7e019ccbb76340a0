"""Groups of the consumers that people use: they share a topic, come and go, and miss nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)
from confluent_kafka import admin as rd_admin

import kafka
from tidelog.server.local import Local, local

rd: Any = rd_admin  # its classes are not among what it says to export
PARTITIONS = 6
PATIENCE = 60.0
ROUND = 300  # messages that are produced between two changes of a group
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Local]:
    """Return a broker that all tests of this module share."""
    with local() as running:
        yield running


@pytest.fixture
def topic(broker: Local) -> str:
    """Create a topic that no other test has."""
    name = f"tides-{next(_numbers)}"
    create(broker, name)
    return name


def create(broker: Local, name: str) -> None:
    client = rd.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    client.create_topics([rd.NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE)


class Feed:
    """Produces messages that are all different."""

    def __init__(self, broker: Local, topic: str) -> None:
        self.produced = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def go_on(self) -> None:
        for number in range(self.produced, self.produced + ROUND):
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(PATIENCE) == 0
        self.produced += ROUND

    def is_all_in(self, seen: Counter[bytes]) -> bool:
        return len(seen) == self.produced

    def check(self, seen: Counter[bytes]) -> None:
        """See that every message came once."""
        assert seen == Counter(b"%d" % number for number in range(self.produced))


class Reader:
    """A consumer that polls on a thread of its own, since some wait for each other there."""

    def __init__(self, seen: Counter[bytes], consumer: Any) -> None:
        self.assigned = 0
        self._seen = seen
        self._consumer = consumer
        self._leaving = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            while not self._leaving.is_set():
                for value in self._poll():
                    self._seen[value] += 1
                self.assigned = len(self._consumer.assignment())
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001  # raised again on the test's thread
            self._error = error

    def _poll(self) -> list[bytes]:
        if isinstance(self._consumer, Consumer):
            message = self._consumer.poll(0.05)
            if message is None:
                return []
            assert message.error() is None, message.error()
            return [message.value() or b""]
        records = self._consumer.poll(timeout_ms=50)
        return [record.value for part in records.values() for record in part]


def until(holds: Callable[[], bool], readers: list[Reader], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        for reader in readers:
            reader.check()
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE} s"
        time.sleep(0.02)


def come_and_go(broker: Local, topic: str, new: Callable[[], Any]) -> None:
    """Two consumers share a topic, a third joins, the first leaves: every message comes once."""
    seen: Counter[bytes] = Counter()
    feed = Feed(broker, topic)
    readers: list[Reader] = []

    def share(*sizes: int) -> None:
        until(
            lambda: sorted(reader.assigned for reader in readers) == sorted(sizes),
            readers,
            f"shares of {sizes}",
        )
        feed.go_on()
        until(lambda: feed.is_all_in(seen), readers, f"{feed.produced} messages")

    try:
        readers += [Reader(seen, new()), Reader(seen, new())]
        share(3, 3)
        readers.append(Reader(seen, new()))
        share(2, 2, 2)
        readers.pop(0).leave()
        share(3, 3)
    finally:
        for reader in readers:
            reader.leave()
    feed.check(seen)


def confluent(broker: Local, group: str, topic: str, **config: Any) -> Consumer:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(settings | {key.replace("_", "."): value for key, value in config.items()})
    consumer.subscribe([topic])
    return consumer


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_classic_consumers_of_librdkafka_share_a_topic(
    broker: Local, topic: str, strategy: str
) -> None:
    come_and_go(
        broker,
        topic,
        lambda: confluent(broker, topic, topic, partition_assignment_strategy=strategy),
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumers_of_librdkafka_share_a_topic_by_the_new_protocol(
    broker: Local, topic: str, assignor: str
) -> None:
    come_and_go(
        broker,
        topic,
        lambda: confluent(
            broker, topic, topic, group_protocol="consumer", group_remote_assignor=assignor
        ),
    )


def test_consumers_of_librdkafka_follow_a_pattern_by_the_new_protocol(
    broker: Local, topic: str
) -> None:
    come_and_go(
        broker,
        topic,
        lambda: confluent(broker, topic, f"^{topic}.*", group_protocol="consumer"),
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_static_members_of_librdkafka_come_back_without_a_rebalance(
    broker: Local, topic: str, protocol: str
) -> None:
    seen: Counter[bytes] = Counter()
    feed = Feed(broker, topic)

    def new(number: int) -> Reader:
        name = f"instance-{number}"
        return Reader(
            seen,
            confluent(broker, topic, topic, group_protocol=protocol, group_instance_id=name),
        )

    readers = [new(1), new(2)]
    until(lambda: [one.assigned for one in readers] == [3, 3], readers, "equal shares")
    feed.go_on()
    until(lambda: feed.is_all_in(seen), readers, "all messages")
    readers.pop().leave()
    feed.go_on()
    until(lambda: len(seen) >= feed.produced - ROUND // 2, readers, "half of the messages")
    assert readers[0].assigned == 3, "nobody takes the place of one that is away"
    readers.append(new(2))
    until(lambda: feed.is_all_in(seen), readers, "all messages")
    for reader in readers:
        reader.leave()
    feed.check(seen)


def test_consumers_of_kafka_python_share_a_topic(broker: Local, topic: str) -> None:
    come_and_go(
        broker,
        topic,
        lambda: kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
        ),
    )


def test_consumers_of_aiokafka_share_a_topic(broker: Local, topic: str) -> None:
    async def story() -> None:
        seen: Counter[bytes] = Counter()
        feed = Feed(broker, topic)

        async def start() -> tuple[Any, asyncio.Task[None]]:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap,
                group_id=topic,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=300,
                partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            )
            await consumer.start()

            async def read() -> None:
                async for message in consumer:
                    seen[message.value] += 1

            return consumer, asyncio.ensure_future(read())

        async def leave(consumer: Any, task: asyncio.Task[None]) -> None:
            task.cancel()
            await asyncio.wait([task])
            await consumer.stop()

        async def share(*sizes: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while sorted(len(one.assignment()) for one, _ in running) != sorted(sizes):
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(feed.go_on)
                while not feed.is_all_in(seen):
                    await asyncio.sleep(0.02)

        running = list(await asyncio.gather(start(), start()))
        await share(3, 3)
        running.append(await start())
        await share(2, 2, 2)
        await leave(*running.pop(0))
        await share(3, 3)
        for one in running:
            await leave(*one)
        feed.check(seen)

    asyncio.run(story())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_tools_see_and_change_groups(broker: Local, topic: str, protocol: str) -> None:
    tool = rd.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    feed = Feed(broker, topic)
    seen: Counter[bytes] = Counter()
    reader = Reader(seen, confluent(broker, topic, topic, group_protocol=protocol))
    feed.go_on()
    until(lambda: feed.is_all_in(seen), [reader], "all messages")
    described = tool.describe_consumer_groups([topic])[topic].result(PATIENCE)
    assert described.state == ConsumerGroupState.STABLE
    assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
    listed = tool.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(PATIENCE)
    assert topic in {one.group_id for one in listed.valid}
    reader.leave()

    asked = ConsumerGroupTopicPartitions(topic)
    offsets = tool.list_consumer_group_offsets([asked])[topic].result(PATIENCE)
    assert {one.offset for one in offsets.topic_partitions} == {ROUND // PARTITIONS}
    back = ConsumerGroupTopicPartitions(
        topic, [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    )
    tool.alter_consumer_group_offsets([back])[topic].result(PATIENCE)
    again: Counter[bytes] = Counter()
    reader = Reader(again, confluent(broker, topic, topic, group_protocol=protocol))
    until(lambda: feed.is_all_in(again), [reader], "all messages once more")
    reader.leave()
    tool.delete_consumer_groups([topic])[topic].result(PATIENCE)
    listed = tool.list_consumer_groups().result(PATIENCE)
    assert topic not in {one.group_id for one in listed.valid}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_offsets_survive_a_restart(tmp_path: Path, protocol: str) -> None:
    seen: Counter[bytes] = Counter()
    with local(data=tmp_path) as broker:
        create(broker, "t")
        feed = Feed(broker, "t")
        feed.go_on()
        reader = Reader(seen, confluent(broker, "g", "t", group_protocol=protocol))
        until(lambda: feed.is_all_in(seen), [reader], "all messages")
        reader.leave()
    with local(data=tmp_path) as broker:
        rest = Feed(broker, "t")
        rest.produced = feed.produced
        rest.go_on()
        reader = Reader(seen, confluent(broker, "g", "t", group_protocol=protocol))
        until(lambda: rest.is_all_in(seen), [reader], "the rest of the messages")
        reader.leave()
    rest.check(seen)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_is_killed(protocol: str) -> None:
    seen: Counter[bytes] = Counter()
    with local(nodes=3) as broker:
        assert broker.cluster is not None
        tool = rd.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        tool.create_topics([rd.NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE)
        feed = Feed(broker, "t")
        readers = [
            Reader(seen, confluent(broker, "g", "t", group_protocol=protocol)) for _ in range(2)
        ]
        until(lambda: [one.assigned for one in readers] == [3, 3], readers, "equal shares")
        feed.go_on()
        until(lambda: feed.is_all_in(seen), readers, "all messages")
        coordinator = tool.describe_consumer_groups(["g"])["g"].result(PATIENCE).coordinator.id
        broker.cluster.kill(coordinator)
        feed.go_on()
        until(lambda: feed.is_all_in(seen), readers, "all messages")
        described = tool.describe_consumer_groups(["g"])["g"].result(PATIENCE)
        assert described.coordinator.id != coordinator
        assert len(described.members) == 2
        for reader in readers:
            reader.leave()
    # What was read and not yet committed when the leader of its partition died may come again.
    assert set(seen) == {b"%d" % number for number in range(feed.produced)}
