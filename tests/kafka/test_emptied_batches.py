"""Clients read past the batches that compaction emptied, whatever codec these were written with."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator

import aiokafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.cluster.nodes import PATIENCE
from tests.kafka.live import Live, live, until

import kafka
from tidelog.cluster import partition as partition_module
from tidelog.cluster.node import Node
from tidelog.cluster.partition import Partition, Produced, ProduceFailed
from tidelog.raft.types import Level
from tidelog.records import HEADER_SIZE, Batch, Codec, Record, build_batch
from tidelog.records.batch import seal
from tidelog.storage import wall_ms

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
KEYS = 20
END = 3 * KEYS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One node that compacts as often as it can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_module, "COMPACT_EVERY_MS", 100)
        with live(tmp_path_factory.mktemp("live"), 1) as cluster:
            yield cluster


def with_its_codec(batch: Batch) -> Batch:
    """Empty a batch and leave it its codec, as an older release did."""
    return seal(
        bytearray(HEADER_SIZE),
        attributes=batch.attributes,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        count=0,
        base_offset=batch.base_offset,
        term=batch.term,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def compacted(cluster: Live, topic: str, codec: Codec, *, keeps_codec: bool) -> None:
    """Make a topic whose compressed first batch lost all its records, and whose last did too."""
    node = cluster.nodes[1]
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    creating = node.controller.create_topic(topic, 1, 1, settings)
    asyncio.run_coroutine_threadsafe(creating, node.loop).result(PATIENCE)
    until(lambda: node.leader_of(topic, 0)[0], "a leader")
    partition = node.partition(topic, 0)
    assert partition is not None
    write(partition, node, batch(1, codec, "key", b"old"))
    write(partition, node, batch(2, Codec.NONE, "key", b"new"))
    write(partition, node, batch(3, codec, "gone", None))

    def emptied() -> bool:
        batches = partition.replica.log.read(partition.replica.log.start, 1 << 20)
        bases = [
            (partition.replica.machines.translation.to_client(each.base_offset), each.is_compressed)
            for each in batches
            if each.producer_id >= 0 and not each.count
        ]
        return bases == [(0, keeps_codec), (2 * KEYS, keeps_codec)]

    until(emptied, "the first and the last batch to be emptied")


def write(partition: Partition, node: Node, batch: Batch) -> None:
    """Write one batch as its producer's first and last."""
    written: concurrent.futures.Future[Produced | ProduceFailed] = concurrent.futures.Future()
    node.loop.call_soon_threadsafe(
        partition.produce, batch, Level.QUORUM, PATIENCE, written.set_result
    )
    assert isinstance(written.result(PATIENCE), Produced)


def batch(producer: int, codec: Codec, prefix: str, value: bytes | None) -> Batch:
    keys = [f"{prefix}-{number}".encode() for number in range(KEYS)]
    return build_batch(
        [Record(place, wall_ms(), key, value) for place, key in enumerate(keys)],
        codec=codec,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
    )


def read_by_librdkafka(cluster: Live, topic: str) -> tuple[list[int], int]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    offsets: list[int] = []
    end = -1

    def at_the_end() -> bool:
        nonlocal end
        for message in consumer.consume(100, 0.1):
            offset, error = message.offset(), message.error()
            assert offset is not None
            if error is None:
                offsets.append(offset)
            else:
                assert error.name() == "_PARTITION_EOF", error
                end = offset
        return end == END

    until(at_the_end, "librdkafka to come to the end")
    consumer.close()
    return offsets, end


def read_by_kafka_python(cluster: Live, topic: str) -> tuple[list[int], int]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=None)
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    offsets: list[int] = []

    def at_the_end() -> bool:
        for records in consumer.poll(100).values():
            offsets.extend(record.offset for record in records)
        return bool(consumer.position(place) == END)

    until(at_the_end, "kafka-python to come to the end")
    end = consumer.position(place)
    consumer.close()
    return offsets, end


def read_by_aiokafka(cluster: Live, topic: str) -> tuple[list[int], int]:
    async def story() -> tuple[list[int], int]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            group_id=None,
        )
        place = aiokafka.TopicPartition(topic, 0)
        await consumer.start()
        try:
            offsets: list[int] = []
            while (end := await consumer.position(place)) < END:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    offsets.extend(record.offset for record in records)
            return offsets, end
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(story(), PATIENCE))


READERS: list[Callable[[Live, str], tuple[list[int], int]]] = [
    read_by_librdkafka,
    read_by_kafka_python,
    read_by_aiokafka,
]


@pytest.mark.parametrize("codec", CODECS, ids=[codec.name for codec in CODECS])
def test_clients_read_past_a_batch_that_compaction_emptied(cluster: Live, codec: Codec) -> None:
    topic = f"today-{codec.name}"
    compacted(cluster, topic, codec, keeps_codec=False)
    for read in READERS:
        assert read(cluster, topic) == (list(range(KEYS, 2 * KEYS)), END), read.__name__


@pytest.mark.parametrize("codec", CODECS, ids=[codec.name for codec in CODECS])
def test_clients_read_past_an_empty_batch_that_an_older_release_left_its_codec(
    cluster: Live, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.storage.cleaning.empty_like", with_its_codec)
    topic = f"yesterday-{codec.name}"
    compacted(cluster, topic, codec, keeps_codec=True)
    for read in READERS:
        assert read(cluster, topic) == (list(range(KEYS, 2 * KEYS)), END), read.__name__
