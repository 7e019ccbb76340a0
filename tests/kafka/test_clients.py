"""Producers and consumers that people use, against live nodes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.kafka.live import Live, live, until

import kafka
from tidelog.raft import events as ev

SECONDS = 30
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Live]:
    """Return three live nodes that all tests of this module share."""
    with live(tmp_path_factory.mktemp("live"), 3) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Live) -> str:
    """Return a topic of one partition on all three nodes."""
    name = f"tides-{next(_numbers)}"
    node = cluster.nodes[1]
    creating = node.controller.create_topic(name, 1, 3, {})
    asyncio.run_coroutine_threadsafe(creating, node.loop).result(SECONDS)
    until(lambda: all(each.leader_of(name, 0)[0] for each in cluster.nodes.values()), "a leader")
    return name


def produce(cluster: Live, topic: str, values: list[bytes], **config: Any) -> None:
    """Produce with librdkafka; all must be delivered."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 2, **config})
    for value in values:
        producer.produce(
            topic,
            key=b"key",
            value=value,
            headers={"header": b"h"},
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert failures == []


def new_consumer(cluster: Live, **config: Any) -> Consumer:
    """Return a consumer that has no group to commit to."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            **config,
        }
    )


def consume(cluster: Live, topic: str, count: int, **config: Any) -> list[Any]:
    """Consume with librdkafka, from the beginning."""
    consumer = new_consumer(cluster, **config)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        return receive(consumer, count)
    finally:
        consumer.close()


def receive(consumer: Consumer, count: int) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(messages) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_librdkafka_writes_and_reads(cluster: Live, topic: str, acks: str, codec: str) -> None:
    values = [b"value %d " % number * 10 for number in range(300)]
    idempotent = acks == "all"
    config = {"acks": acks, "compression.type": codec, "enable.idempotence": idempotent}
    produce(cluster, topic, values, **config)
    messages = consume(cluster, topic, len(values), **{"check.crcs": True})
    assert [each.value() for each in messages] == values
    assert [each.offset() for each in messages] == list(range(len(values)))
    assert messages[0].key() == b"key"
    assert messages[0].headers() == [("header", b"h")]


def test_librdkafka_finds_offsets_and_times(cluster: Live, topic: str) -> None:
    before = int(time.time() * 1000)
    produce(cluster, topic, [b"a", b"b", b"c"])
    consumer = new_consumer(cluster)
    partition = TopicPartition(topic, 0)
    assert consumer.get_watermark_offsets(partition, SECONDS) == (0, 3)
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, before - 1000)], SECONDS)
    assert found.offset == 0
    (end,) = consumer.offsets_for_times([TopicPartition(topic, 0, before + 10**8)], SECONDS)
    assert end.offset == -1
    consumer.close()


def test_kafka_python_writes_and_reads(cluster: Live, topic: str) -> None:
    bootstrap = cluster.bootstrap.split(",")
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    sent = [producer.send(topic, b"%d" % number) for number in range(100)]
    assert [each.get(SECONDS).offset for each in sent] == list(range(100))
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=SECONDS * 1000,
    )
    received = [each.value for each in itertools.islice(consumer, 100)]
    consumer.close()
    assert received == [b"%d" % number for number in range(100)]


def test_aiokafka_writes_and_reads(cluster: Live, topic: str) -> None:
    async def story() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=True
        )
        await producer.start()
        try:
            for number in range(20):
                sent = await producer.send_and_wait(topic, b"%d" % number)
                assert sent.offset == number
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            group_id=None,
        )
        await consumer.start()
        try:
            received = [(await consumer.getone()).value for _ in range(20)]
        finally:
            await consumer.stop()
        assert received == [b"%d" % number for number in range(20)]

    asyncio.run(asyncio.wait_for(story(), SECONDS))


def move_leader(cluster: Live, topic: str) -> None:
    """Hand leadership to another node."""
    leader = next(
        node
        for node in cluster.nodes.values()
        if (found := node.partition(topic, 0)) is not None and found.is_leader
    )
    partition = leader.partition(topic, 0)
    assert partition is not None
    target = next(v for v in partition.core.configuration.voters if v.id != leader.id)
    asking = leader.groups.ask(partition.hosted, lambda token: ev.Transfer(token, target), SECONDS)
    asyncio.run_coroutine_threadsafe(asking, leader.loop).result(SECONDS)

    def moved() -> bool:
        found = cluster.nodes[target.id].partition(topic, 0)
        return found is not None and found.is_leader

    until(moved, "the new leader")


def test_nothing_is_lost_or_doubled_while_leadership_moves(cluster: Live, topic: str) -> None:
    failures: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1}
    )
    consumer = new_consumer(cluster)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = [b"%d" % number for number in range(2500)]
    received: list[Any] = []
    for start in range(0, len(values), 500):
        for value in values[start : start + 500]:
            producer.produce(
                topic,
                value,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        move_leader(cluster, topic)
        producer.poll(0)
        received += receive(consumer, 100)
    assert producer.flush(SECONDS) == 0
    assert failures == []
    received += receive(consumer, len(values) - len(received))
    consumer.close()
    assert [each.value() for each in received] == values
    assert len({each.leader_epoch() for each in received}) > 1
