"""Arrow columns to topics: in order, where they belong, and once, whoever writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidelog.client import (
    Admin,
    ClientError,
    Refused,
    Resource,
    TopicPartition,
    UnknownTopic,
    bounds,
)
from tidelog.client.arrowread import ArrowReader
from tidelog.client.arrowwrite import ArrowWriter
from tidelog.client.blocking import Blocking
from tidelog.client.identity import Superseded, identity_of, standings
from tidelog.client.partitioner import partition_of
from tidelog.records import Codec


@pytest.fixture(scope="module")
def blocking(bootstrap: str) -> Iterator[Blocking]:
    with Blocking(bootstrap, timeout=20) as client:
        yield client


def create(blocking: Blocking, topic: str, partitions: int) -> list[TopicPartition]:
    blocking.run(Admin(blocking.cluster).create_topic(topic, partitions, 1))
    return [TopicPartition(topic, index) for index in range(partitions)]


def read(blocking: Blocking, where: TopicPartition) -> list[dict[str, Any]]:
    ranges = blocking.run(bounds(blocking.cluster, [where]))
    return [row for chunk in ArrowReader(blocking, ranges) for row in chunk.records.to_pylist()]


def numbers(low: int, high: int) -> pa.RecordBatch:
    keys = [b"k%d" % number for number in range(low, high)]
    return pa.record_batch({"key": keys, "value": [b"%d" % number for number in range(low, high)]})


def values(blocking: Blocking, parts: list[TopicPartition]) -> Counter[bytes]:
    return Counter(row["value"] for where in parts for row in read(blocking, where))


@pytest.mark.parametrize("codec", list(Codec))
def test_rows_arrive_in_order_where_their_keys_say(codec: Codec, blocking: Blocking) -> None:
    parts = create(blocking, f"keyed-{codec.name.lower()}", 3)
    with ArrowWriter(blocking, codec=codec, batch_bytes=2000) as writer:
        for low in range(0, 1000, 250):
            writer.write(parts[0].topic, numbers(low, low + 250))
    assert writer.rows == 1000
    for where in parts:
        wanted = [n for n in range(1000) if partition_of(b"k%d" % n, 3) == where.index]
        assert [int(row["value"]) for row in read(blocking, where)] == wanted


def test_all_columns_are_written_and_strings_are_as_good_as_bytes(blocking: Blocking) -> None:
    (where,) = create(blocking, "whole", 1)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "key": pa.array(["a", None]),
            "value": pa.array([None, "text"]),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], header),
        }
    )
    with ArrowWriter(blocking) as writer:
        writer.write(where.topic, rows)
    one, two = read(blocking, where)
    assert (one["key"], one["value"], one["headers"]) == (b"a", None, [{"key": "h", "value": b"1"}])
    assert (two["key"], two["value"], two["headers"]) == (None, b"text", [])


def test_a_column_says_which_partition_and_null_leaves_it_to_the_key(blocking: Blocking) -> None:
    parts = create(blocking, "placed", 4)
    wanted = pa.array([3, None, 0, 3], pa.int32())
    with ArrowWriter(blocking) as writer:
        writer.write("placed", numbers(0, 4), wanted)
        with pytest.raises(ClientError, match="partition 4"):
            writer.write("placed", numbers(0, 1), pa.array([4], pa.int32()))
    found = {int(row["value"]): where.index for where in parts for row in read(blocking, where)}
    assert found == {0: 3, 1: partition_of(b"k1", 4), 2: 0, 3: 3}


def test_rows_without_a_key_reach_every_partition(blocking: Blocking) -> None:
    parts = create(blocking, "keyless", 3)
    with ArrowWriter(blocking) as writer:
        for _ in range(6):
            writer.write("keyless", numbers(0, 100).select(["value"]))
    assert [len(read(blocking, where)) for where in parts] == [200, 200, 200]


@pytest.mark.parametrize("acks", [0, 1])
def test_relaxed_writers_write(acks: int, blocking: Blocking) -> None:
    parts = create(blocking, f"relaxed-{acks}", 2)
    with ArrowWriter(blocking, acks=acks) as writer:
        writer.write(parts[0].topic, numbers(0, 100))
    # A write that nobody answers is there a moment later: one that is answered comes behind it.
    with ArrowWriter(blocking) as writer:
        writer.write(parts[0].topic, numbers(0, 100))
    assert set(values(blocking, parts).values()) == {2}


def test_what_the_cluster_refuses_is_an_error_that_says_what_to_do(blocking: Blocking) -> None:
    create(blocking, "small", 1)
    change = {"max.message.bytes": "1000"}
    blocking.run(Admin(blocking.cluster).change_settings(Resource.TOPIC, "small", change))
    with (
        pytest.raises(Refused, match=r"kafka\.max\.request\.size"),
        ArrowWriter(blocking) as writer,
    ):
        writer.write("small", numbers(0, 1000))
    with pytest.raises(UnknownTopic), ArrowWriter(blocking) as writer:
        writer.write("nowhere", numbers(0, 1))


def test_work_that_is_carried_out_again_writes_nothing_twice(blocking: Blocking) -> None:
    parts = create(blocking, "again", 3)
    identity = identity_of("query", 7, 0)
    for _ in range(3):
        with ArrowWriter(blocking, identity=identity, batch_bytes=500) as writer:
            writer.write("again", numbers(0, 300))
    assert (writer.rows, writer.resumed) == (0, 300)
    assert values(blocking, parts) == Counter(b"%d" % number for number in range(300))


def test_work_that_was_left_half_done_is_finished_in_any_order(blocking: Blocking) -> None:
    parts = create(blocking, "half", 3)
    identity = identity_of("query", 7, 0)
    with ArrowWriter(blocking, identity=identity) as writer:
        writer.write("half", numbers(0, 100))
    with ArrowWriter(blocking) as writer:  # somebody else writes in between
        writer.write("half", numbers(1000, 3000))
    with ArrowWriter(blocking, identity=identity) as writer:
        writer.write("half", numbers(150, 300))
        writer.write("half", numbers(0, 150))
    assert (writer.rows, writer.resumed) == (200, 100)
    wanted = Counter(b"%d" % n for n in [*range(300), *range(1000, 3000)])
    assert values(blocking, parts) == wanted


def test_rows_that_are_equal_are_written_as_often_as_they_come(blocking: Blocking) -> None:
    parts = create(blocking, "equal", 2)
    identity = identity_of("query", 1, 0)
    row = pa.record_batch({"key": [b"k"] * 5, "value": [b"same"] * 5})
    with ArrowWriter(blocking, identity=identity) as writer:
        writer.write("equal", row.slice(0, 2))
    with ArrowWriter(blocking, identity=identity) as writer:
        writer.write("equal", row)
    assert values(blocking, parts) == Counter({b"same": 5})


def test_the_next_batch_writes_and_the_one_before_it_no_more(blocking: Blocking) -> None:
    parts = create(blocking, "fenced", 1)
    for batch in (4, 5):
        with ArrowWriter(blocking, identity=identity_of("query", batch, 0)) as writer:
            writer.write("fenced", numbers(0, 10))
    with (
        pytest.raises(Superseded, match="later batch"),
        ArrowWriter(blocking, identity=identity_of("query", 4, 0)) as writer,
    ):
        writer.write("fenced", numbers(0, 10))
    assert set(values(blocking, parts).values()) == {2}


def test_attempts_that_race_do_not_double_a_row(blocking: Blocking) -> None:
    parts = create(blocking, "race", 1)
    identity = identity_of("query", 0, 0)
    one = ArrowWriter(blocking, identity=identity)
    two = ArrowWriter(blocking, identity=identity)
    # Both looked and found nothing; then one is faster, and cuts the rows differently.
    one.write("race", numbers(0, 1))
    two.write("race", numbers(0, 1))
    one.write("race", numbers(1, 10))
    one.flush()
    two.write("race", numbers(1, 5))
    with pytest.raises(ClientError, match="another attempt"):
        two.flush()
    one.close()
    two.close()
    assert values(blocking, parts) == Counter(b"%d" % number for number in range(10))


def test_tasks_batches_and_queries_have_identities_of_their_own() -> None:
    base = identity_of("q", 3, 0)
    assert identity_of("q", 3, 0) == base
    assert identity_of("q", 3, 1).producer_id != base.producer_id
    assert identity_of("r", 3, 0).producer_id != base.producer_id
    later = identity_of("q", 4, 0)
    assert (later.producer_id, later.epoch) == (base.producer_id, 4)
    # Epochs have 15 bits: the batch after the last one of them has another producer id.
    wrapped = identity_of("q", 2**15 + 3, 0)
    assert (wrapped.producer_id == base.producer_id, wrapped.epoch) == (False, 3)


def test_a_partition_tells_how_far_a_producer_came(blocking: Blocking) -> None:
    parts = create(blocking, "standing", 2)
    identity = identity_of("query", 9, 0)
    with ArrowWriter(blocking, identity=identity) as writer:
        writer.write("standing", numbers(0, 40), pa.array([1] * 40, pa.int32()))
    found = blocking.run(standings(blocking.cluster, parts, identity))
    assert {where.index: each.last_sequence for where, each in found.items()} == {1: 39}
