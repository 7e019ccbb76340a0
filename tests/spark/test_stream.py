"""Streams: every record once, in batches of the size that was asked for, across restarts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.conftest import BOTH, Sent, Streams, Topics

import tidelog
from tidelog.client import Admin, Cluster, TopicPartition
from tidelog.spark import LagListener, lag_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]


class Taken:
    """What a stream handed to `foreachBatch`."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.batches.append([bytes(row.value) for row in frame.collect()])

    @property
    def values(self) -> list[int]:
        return sorted(int(value) for batch in self.batches for value in batch)


def numbers(low: int, high: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(low, high)]


@BOTH
def test_a_stream_goes_on_where_it_stopped_and_finds_new_partitions(
    streams: Streams, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.send_values(topic, numbers(0, 100), partitions=2)
    frame = streams.frame(topic, maxOffsetsPerTrigger=40)
    taken = Taken()
    streams.to_batches(frame, taken).awaitTermination()
    assert taken.values == list(range(100))
    assert [len(batch) for batch in taken.batches] == [40, 40, 20]

    async def grow(cluster: Cluster) -> None:
        await Admin(cluster).add_partitions(topic, 3)

    topics.run(grow)
    topics.send_values(topic, numbers(100, 150), partitions=3)
    query = streams.to_batches(frame, taken)
    query.awaitTermination()
    assert taken.values == list(range(150))
    progress = query.recentProgress[-1]
    assert progress.sources[0].endOffset is not None
    assert lag_of(progress).total == 0
    assert len(lag_of(progress).by_partition) == 3


@BOTH
def test_a_stream_is_limited_in_proportion_and_tells_its_lag(
    spark: SparkSession, streams: Streams, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.send(topic, [Sent(b"%d" % n, partition=int(n % 10 == 0)) for n in range(100)])
    frame = streams.frame(topic, maxOffsetsPerTrigger=50)
    listener = LagListener()
    spark.streams.addListener(listener)
    seen: list[Counter[int]] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.append(Counter(row.partition for row in batch.collect()))

    query = streams.to_batches(frame, take)
    query.awaitTermination()
    spark.streams.removeListener(listener)
    assert seen == [Counter({0: 45, 1: 5}), Counter({0: 45, 1: 5})]
    lags = [lag_of(progress).total for progress in query.recentProgress if progress.numInputRows]
    assert lags == [50, 0]
    assert lag_of(query.recentProgress[0]).largest == 45


@BOTH
def test_a_running_stream_waits_for_enough_records(streams: Streams, topics: Topics) -> None:
    topic = topics.create()
    frame = streams.frame(topic, minOffsetsPerTrigger=50, maxTriggerDelay="1h")
    taken = Taken()
    query = streams.to_batches(frame, taken, processingTime="100 milliseconds")
    try:
        topics.send_values(topic, numbers(0, 10))
        query.processAllAvailable()
        assert len(taken.values) == 10  # the first batch never waits
        topics.send_values(topic, numbers(10, 40))
        query.processAllAvailable()
        assert len(taken.values) == 10
        topics.send_values(topic, numbers(40, 70))
        deadline = time.monotonic() + 120
        while len(taken.values) < 70 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [len(batch) for batch in taken.batches] == [10, 60]
    finally:
        query.stop()


@BOTH
def test_a_new_stream_begins_at_the_end_unless_told_otherwise(
    streams: Streams, topics: Topics
) -> None:
    topic = topics.create()
    topics.send(topic, [Sent(b"%d" % number, time=1000 + number) for number in range(10)])
    latest, by_time = Taken(), Taken()
    frame = streams.frame(topic, startingOffsets="latest")
    streams.to_batches(frame, latest, "latest").awaitTermination()
    frame = streams.frame(topic, startingTimestamp=1007)
    streams.to_batches(frame, by_time, "time").awaitTermination()
    assert latest.values == []
    assert by_time.values == [7, 8, 9]


@BOTH
def test_a_stream_fails_when_records_are_lost_unless_told_otherwise(
    streams: Streams, topics: Topics
) -> None:
    topic = topics.create()
    topics.send_values(topic, numbers(0, 10))
    strict, loose = Taken(), Taken()
    lenient = {"failOnDataLoss": "false"}
    streams.to_batches(streams.frame(topic), strict, "strict").awaitTermination()
    streams.to_batches(streams.frame(topic, **lenient), loose, "loose").awaitTermination()
    topics.send_values(topic, numbers(10, 25))
    topics.send_values(topic, numbers(25, 30))

    async def delete(cluster: Cluster) -> None:
        await Admin(cluster).delete_records(TopicPartition(topic, 0), 25)

    topics.run(delete)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        streams.to_batches(streams.frame(topic), strict, "strict").awaitTermination()
    streams.to_batches(streams.frame(topic, **lenient), loose, "loose").awaitTermination()
    assert loose.values == [*range(10), *range(25, 30)]


@BOTH
def test_a_stream_from_topic_to_topic_goes_on_where_it_stopped(
    streams: Streams, topics: Topics, read: Read
) -> None:
    origin, target = topics.create(2), topics.create(2)
    frame = streams.frame(origin, maxOffsetsPerTrigger=30).select("key", "value")
    for low, high in ((0, 50), (50, 80)):
        topics.send_values(origin, numbers(low, high), partitions=2)
        streams.to_topic(frame, target).awaitTermination()
    assert Counter(int(row.value) for row in read(target).collect()) == Counter(range(80))


def test_what_a_batch_wrote_before_a_crash_is_not_written_again(
    streams: Streams, topics: Topics, read: Read, tmp_path: Path
) -> None:
    source, target = topics.create(2), topics.create(2)
    topics.send_values(source, numbers(0, 100), partitions=2)
    frame = streams.frame(source, maxOffsetsPerTrigger=50).select("value")
    streams.to_topic(frame, target).awaitTermination()
    # As if the driver had died after the last batch was written and before that was noted.
    commits = tmp_path / "query" / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    for path in (last, commits / f".{last.name}.crc"):
        path.unlink(missing_ok=True)
    topics.send_values(source, numbers(100, 120), partitions=2)
    query = streams.to_topic(frame, target)
    query.awaitTermination()
    assert query.recentProgress[0].batchId == int(last.name)
    found = Counter(int(row.value) for row in read(target, valueFormat="string").collect())
    assert found == Counter(range(120))


@BOTH
def test_a_stream_outlives_a_broker_that_is_killed(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    with tidelog.local(nodes=3) as broker:
        topics = Topics(broker.bootstrap, replicas=3)
        streams = Streams(spark, topics, tmp_path, source)
        origin, target = topics.create(3), topics.create(3)
        topics.send_values(origin, numbers(0, 300), partitions=3)
        # Java's admin client waits as long for a leader that it was told of before it died.
        patience = {f"kafka_{each}_timeout_ms": 15_000 for each in ("request", "default_api")}
        given = patience if source == "kafka" else {}
        frame = streams.frame(origin, maxOffsetsPerTrigger=100, **given).select("value")
        query = streams.to_topic(frame, target, processingTime="200 milliseconds")
        try:
            deadline = time.monotonic() + 120
            while not query.recentProgress and time.monotonic() < deadline:
                time.sleep(0.1)

            async def leader(cluster: Cluster) -> int:
                node, _ = await cluster.leader(TopicPartition(origin, 0), cluster.deadline())
                return node.id

            assert broker.cluster is not None
            broker.cluster.kill(topics.run(leader))
            topics.send_values(origin, numbers(300, 600), partitions=3)
            query.processAllAvailable()
        finally:
            query.stop()
        rows = (
            spark.read.format("tidelog")
            .options(**topics.options(subscribe=target, valueFormat="string"))
            .load()
            .collect()
        )
        found = Counter(int(row.value) for row in rows)
        assert found.keys() == set(range(600))
        # The connector's sink promises at least once, ours once.
        assert source == "kafka" or found == Counter(range(600))
