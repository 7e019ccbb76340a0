"""Ranges of partitions as Arrow: what was written comes back, cut exactly where it should be."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import tidelog
from tidelog.client import Admin, ClientError, Cluster, Producer, Resource, TopicPartition, bounds
from tidelog.client.arrowread import ArrowReader, Chunk, DataLost
from tidelog.client.arrowwrite import ArrowWriter
from tidelog.client.blocking import Blocking, shared
from tidelog.records import Codec


@pytest.fixture(scope="module")
def blocking(bootstrap: str) -> Iterator[Blocking]:
    with Blocking(bootstrap, timeout=20) as client:
        yield client


def create(blocking: Blocking, topic: str, partitions: int = 1, **config: str) -> TopicPartition:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    blocking.run(Admin(blocking.cluster).create_topic(topic, partitions, 1, settings))
    return TopicPartition(topic, 0)


def produce(
    blocking: Blocking, where: TopicPartition, values: Sequence[bytes | None], **options: Any
) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, **options) as producer:
            for number, value in enumerate(values):
                key = None if number % 3 == 0 else b"k%d" % number
                headers = (("h", b"%d" % number), ("none", None)) if number % 2 else ()
                await producer.send(
                    where.topic, value, key, headers, partition=where.index, timestamp=1000 + number
                )

    blocking.run(work(blocking.cluster))


def read(
    blocking: Blocking, ranges: dict[TopicPartition, tuple[int, int]], **options: Any
) -> pa.Table:
    chunks = list(ArrowReader(blocking, ranges, **options))
    return pa.Table.from_batches([chunk.records for chunk in chunks])


@pytest.mark.parametrize("codec", list(Codec))
def test_columns_hold_what_was_written_whatever_packs_it(codec: Codec, blocking: Blocking) -> None:
    where = create(blocking, f"columns-{codec.name.lower()}")
    values = [None if number % 7 == 0 else b"v%d" % number for number in range(500)]
    produce(blocking, where, values, codec=codec)
    table = read(blocking, {where: (0, 500)})
    found = table.to_pydict()
    assert found["offset"] == list(range(500))
    assert found["value"] == values
    assert found["key"] == [None if n % 3 == 0 else b"k%d" % n for n in range(500)]
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    assert times == list(range(1000, 1500))
    assert found["headers"][1] == [{"key": "h", "value": b"1"}, {"key": "none", "value": None}]
    assert found["headers"][2] == []


def test_a_range_begins_and_ends_inside_of_batches(blocking: Blocking) -> None:
    where = create(blocking, "inside")
    produce(blocking, where, [b"%d" % number for number in range(1000)])
    for low, high in [(0, 1), (1, 999), (500, 501), (998, 1000), (7, 7)]:
        ranges = {where: (low, high)}
        chunks = list(ArrowReader(blocking, ranges, columns=("value",)))
        found = [value for chunk in chunks for value in chunk.records.column("value").to_pylist()]
        assert found == [b"%d" % number for number in range(low, high)]


def test_no_columns_still_count_the_records(blocking: Blocking) -> None:
    where = create(blocking, "counted")
    produce(blocking, where, [b"x"] * 100)
    chunks = list(ArrowReader(blocking, {where: (10, 90)}, columns=()))
    assert sum(chunk.records.num_rows for chunk in chunks) == 80


def test_many_small_batches_make_few_large_ones(blocking: Blocking) -> None:
    where = create(blocking, "gathered")
    row = pa.record_batch({"value": [b"x" * 50] * 100})
    with ArrowWriter(blocking) as writer:
        for _ in range(300):
            writer.write(where.topic, row)
    sizes = [
        chunk.records.num_rows
        for chunk in ArrowReader(blocking, {where: (0, 30_000)}, rows=10_000, max_partition_bytes=1)
    ]
    assert sum(sizes) == 30_000
    assert all(size >= 10_000 for size in sizes[:-1])


def test_several_partitions_are_read_to_their_ends(blocking: Blocking) -> None:
    create(blocking, "several", 3)
    parts = [TopicPartition("several", index) for index in range(3)]
    for where in parts:
        produce(blocking, where, [b"%d" % number for number in range(50 * (where.index + 1))])
    ranges = blocking.run(bounds(blocking.cluster, parts))
    chunks = list(ArrowReader(blocking, ranges))
    for where in parts:
        own = [chunk.records for chunk in chunks if chunk.partition == where]
        assert sum(part.num_rows for part in own) == 50 * (where.index + 1)


def test_times_that_the_broker_gave_are_told_apart(blocking: Blocking) -> None:
    where = create(blocking, "stamped")
    produce(blocking, where, [b"created"])
    change = {"message.timestamp.type": "LogAppendTime"}
    blocking.run(Admin(blocking.cluster).change_settings(Resource.TOPIC, "stamped", change))
    produce(blocking, where, [b"stamped"])
    chunks = list(ArrowReader(blocking, {where: (0, 2)}))
    assert [(chunk.stamped, chunk.records.num_rows) for chunk in chunks] == [(False, 1), (True, 1)]


def test_records_that_are_gone_are_an_error_or_passed_over(blocking: Blocking) -> None:
    where = create(blocking, "gone")
    produce(blocking, where, [b"%d" % number for number in range(40)])
    produce(blocking, where, [b"%d" % number for number in range(40, 100)])
    blocking.run(Admin(blocking.cluster).delete_records(where, 40))
    with pytest.raises(DataLost, match="failOnDataLoss"):
        list(ArrowReader(blocking, {where: (0, 100)}))
    reader = ArrowReader(blocking, {where: (0, 120)}, fail_on_loss=False)
    offsets = [n for chunk in reader for n in chunk.records.column("offset").to_pylist()]
    assert offsets == list(range(40, 100))
    assert len(reader.losses) == 1
    assert "offsets 40 to 99" in reader.losses[0]


def test_a_reader_outlives_a_leader_that_is_killed() -> None:
    with tidelog.local(nodes=3) as broker, Blocking(broker.bootstrap, timeout=60) as blocking:
        blocking.run(Admin(blocking.cluster).create_topic("survives", 1, 3))
        where = TopicPartition("survives", 0)
        rows = pa.record_batch({"value": [b"%d" % number for number in range(1000)]})
        with ArrowWriter(blocking) as writer:
            writer.write(where.topic, rows)
            writer.flush()
            leader, _ = blocking.run(blocking.cluster.leader(where, blocking.cluster.deadline()))
            chunks: list[Chunk] = []
            reading = threading.Thread(
                target=lambda: chunks.extend(ArrowReader(blocking, {where: (0, 2000)}, rows=1))
            )
            reading.start()
            assert broker.cluster is not None
            broker.cluster.kill(leader.id)
            writer.write(where.topic, rows)
        reading.join()
        values = [v for chunk in chunks for v in chunk.records.column("value").to_pylist()]
        assert values == 2 * [b"%d" % number for number in range(1000)]


def test_a_process_keeps_one_client_for_each_cluster(bootstrap: str) -> None:
    one = shared(bootstrap, client_id="one")
    assert shared(bootstrap, client_id="one") is one
    others = [shared(bootstrap, client_id=f"other-{number}") for number in range(8)]
    assert one.closed
    assert shared(bootstrap, client_id="one") is not one
    for client in [shared(bootstrap, client_id="one"), *others]:
        client.close()


def test_a_forked_process_opens_clients_of_its_own(bootstrap: str) -> None:
    parent = shared(bootstrap, client_id="forked")
    before = parent.run(parent.cluster.metadata()).cluster_id
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = shared(bootstrap, client_id="forked")
        same = found.run(found.cluster.metadata()).cluster_id == before and found is not parent
        os.write(writer, b"1" if same else b"0")
        os._exit(0)
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)
    parent.close()


def test_a_client_that_is_closed_says_so(bootstrap: str) -> None:
    client = Blocking(bootstrap)
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.run(asyncio.sleep(0))
