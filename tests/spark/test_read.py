"""Batch reads: the rows are the records, and options choose which."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException, PythonException
from tests.spark.conftest import BOTH, Sent, Topics

from tidelog.client import Admin, Cluster, TopicPartition
from tidelog.records import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

Read = Callable[..., "DataFrame"]
UTC = datetime.UTC


def values(rows: list[Row]) -> list[bytes]:
    return [bytes(row.value) for row in rows]


@BOTH
@pytest.mark.parametrize("codec", list(Codec))
def test_rows_are_the_records_whatever_packs_them(codec: Codec, read: Read, topics: Topics) -> None:
    topic = topics.create(2)
    sent = [
        Sent(
            None if number % 5 == 0 else b"value-%d" % number,
            None if number % 3 == 0 else b"key-%d" % number,
            number % 2,
            (("a", b"%d" % number), ("none", None)) if number % 4 == 0 else (),
            1_700_000_000_123 + number,
        )
        for number in range(200)
    ]
    topics.send(topic, sent, codec)
    rows = read(topic, includeHeaders="true").collect()
    assert len(rows) == len(sent)
    found = {(row.partition, row.offset): row for row in rows}
    for number, each in enumerate(sent):
        row = found[each.partition, number // 2]
        assert row.topic == topic
        assert (row.key, row.value) == (each.key, each.value)
        headers = row.headers and tuple((header.key, header.value) for header in row.headers)
        assert headers == (each.headers or None)
        assert each.time is not None
        moment = datetime.datetime.fromtimestamp(0, UTC) + datetime.timedelta(
            milliseconds=each.time
        )
        assert row.timestamp.astimezone(UTC) == moment
        assert row.timestampType == 0


@BOTH
def test_the_schema_is_that_of_sparks_own_source(read: Read, topics: Topics) -> None:
    topic = topics.create()
    assert read(topic).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert read(topic, includeHeaders="true").schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    assert read(topic).collect() == []


@BOTH
def test_times_of_the_broker_are_told_apart(read: Read, topics: Topics) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    before = time.time()
    topics.send(topic, [Sent(b"x", time=5)])
    (row,) = read(topic).collect()
    assert row.timestampType == 1
    assert row.timestamp.astimezone(UTC).timestamp() >= before - 1


def test_columns_are_chosen_by_option_or_by_schema(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send_values(topic, [b"a", b"b"])
    assert [tuple(row) for row in read(topic, columns="offset,value").collect()] == [
        (0, b"a"),
        (1, b"b"),
    ]
    assert [tuple(row) for row in read(topic, "value binary, partition int").collect()] == [
        (b"a", 0),
        (b"b", 0),
    ]
    with pytest.raises(AnalysisException, match="`columns` names 'values'"):
        read(topic, columns="values").collect()
    with pytest.raises(AnalysisException, match="Column `offset` is int"):
        read(topic, "offset int").collect()
    with pytest.raises(AnalysisException, match="`valueFormat` to json"):
        read(topic, "customer string").collect()


@BOTH
def test_topics_are_named_matched_or_assigned(read: Read, topics: Topics) -> None:
    for name in ("match-one", "match-two", "other-match"):
        topics.create(2, name=name)
        topics.send_values(name, [name.encode()] * 4, partitions=2)
    assert read("match-one,match-two").count() == 8
    found = read("", subscribePattern="match-.*").select("topic").distinct().collect()
    assert sorted(row.topic for row in found) == ["match-one", "match-two"]
    rows = read("", assign='{"match-one": [1], "other-match": [0]}').collect()
    assert sorted({(row.topic, row.partition) for row in rows}) == [
        ("match-one", 1),
        ("other-match", 0),
    ]


@BOTH
def test_reads_begin_and_end_where_the_options_say(read: Read, topics: Topics) -> None:
    topic = topics.create(2)
    sent = [Sent(b"%d" % n, partition=n % 2, time=1_000_000 + 1000 * n) for n in range(20)]
    topics.send(topic, sent)

    def found(**options: object) -> list[int]:
        return sorted(int(value) for value in values(read(topic, **options).collect()))

    start, end = f'{{"{topic}": {{"0": 3, "1": -2}}}}', f'{{"{topic}": {{"0": 5, "1": 2}}}}'
    assert found(startingOffsets=start, endingOffsets=end) == [1, 3, 6, 8]
    assert found(endingOffsets=f'{{"{topic}": {{"0": 1, "1": -1}}}}') == [0, *range(1, 20, 2)]
    assert found(startingTimestamp=1_012_500) == list(range(13, 20))
    assert found(endingTimestamp=1_003_000) == [0, 1, 2]
    assert found(startingTimestamp=1_004_000, endingTimestamp=1_006_000) == [4, 5]
    # Times beat offsets.
    by_time = f'{{"{topic}": {{"0": 1018000, "1": 1017000}}}}'
    assert found(startingOffsetsByTimestamp=by_time, startingOffsets="earliest") == [17, 18, 19]


@BOTH
def test_a_time_after_the_last_record_is_an_error_or_the_end(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send(topic, [Sent(b"x", time=1000)])
    with pytest.raises(PySparkException, match="2000"):
        read(topic, startingTimestamp=2000).collect()
    late = read(topic, startingTimestamp=2000, startingOffsetsByTimestampStrategy="latest")
    assert late.collect() == []
    assert read(topic, endingTimestamp=2000).count() == 1


@BOTH
def test_large_partitions_are_cut_into_more_tasks(read: Read, topics: Topics) -> None:
    topic = topics.create(2)
    topics.send_values(topic, [b"%d" % number for number in range(1000)], partitions=2)
    assert read(topic).rdd.getNumPartitions() == 2
    cut = read(topic, minPartitions=6)
    assert cut.rdd.getNumPartitions() == 6
    assert sorted(int(value) for value in values(cut.collect())) == list(range(1000))


def test_tasks_read_no_more_records_than_they_may(read: Read, topics: Topics) -> None:
    topic = topics.create(2)
    topics.send_values(topic, [b"%d" % number for number in range(1000)], partitions=2)
    cut = read(topic, maxRecordsPerPartition=120)
    assert cut.rdd.getNumPartitions() == 10
    assert cut.count() == 1000


def test_a_limit_of_rows_is_pushed_down_by_option(read: Read, topics: Topics) -> None:
    topic = topics.create(2)
    topics.send_values(topic, [b"%d" % number for number in range(100)], partitions=2)
    assert read(topic, rowLimit=7).count() == 7
    assert read(topic, rowLimit=0).count() == 0
    assert read(topic, rowLimit=1000).count() == 100


@BOTH
def test_records_that_are_gone_are_an_error_or_passed_over(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send_values(topic, [b"%d" % number for number in range(6)])
    topics.send_values(topic, [b"%d" % number for number in range(6, 10)])

    async def delete(cluster: Cluster) -> None:
        await Admin(cluster).delete_records(TopicPartition(topic, 0), 6)

    topics.run(delete)
    begin = {"startingOffsets": f'{{"{topic}": {{"0": 2}}}}'}
    with pytest.raises((AnalysisException, Py4JJavaError), match="failOnDataLoss"):
        read(topic, **begin).collect()
    assert values(read(topic, failOnDataLoss="false", **begin).collect()) == [
        b"6",
        b"7",
        b"8",
        b"9",
    ]
    assert read(topic).count() == 4


def test_what_cannot_be_read_is_an_error_that_names_the_option(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send(topic, [Sent(b"x", time=1000)])
    with pytest.raises(AnalysisException, match="`subscribe` names topic 'nowhere'"):
        read("nowhere").collect()
    with pytest.raises(AnalysisException, match="startingOffsetsByTimestampStrategy"):
        read(topic, startingTimestamp=2000).collect()


# --- Formats --------------------------------------------------------------------------------------

GOOD = [b'{"id": 1, "name": "a", "at": "2024-05-06T07:08:09Z"}', b'{"id": 2, "tags": ["x", "y"]}']
BAD = [b"{", b'{"id": "no number"}', b'{"id": 99999999999999999999}', b"", b"\xff", b"[1]"]
FIELDS = "id long, name string, at timestamp, tags array<string>"


def test_json_values_become_columns(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send(topic, [Sent(value, key=b"k") for value in [*GOOD, None]])
    frame = read(
        topic, f"{FIELDS}, _key string, _offset long", valueFormat="json", keyFormat="string"
    )
    one, two, three = frame.orderBy("_offset").collect()
    assert (one.id, one.name, one._key) == (1, "a", "k")
    assert one.at.astimezone(UTC) == datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert (two.id, two.name, two.tags) == (2, None, ["x", "y"])
    assert (three.id, three.name, three._offset) == (None, None, 2)


def test_bad_values_are_kept_dropped_or_fatal(read: Read, topics: Topics) -> None:
    topic = topics.create()
    mixed = [GOOD[0], *BAD, GOOD[1]]
    topics.send_values(topic, mixed)
    schema = f"{FIELDS}, _corrupt binary, _offset long"
    kept = read(topic, schema, valueFormat="json").orderBy("_offset").collect()
    assert [row.id for row in kept] == [1, *[None] * len(BAD), 2]
    assert [row._corrupt for row in kept] == [None, *BAD, None]
    text = read(topic, "id long, _corrupt string", valueFormat="json", mode="PERMISSIVE").collect()
    assert [row._corrupt for row in text] == [
        None,
        *(value.decode(errors="replace") for value in BAD),
        None,
    ]
    dropped = read(topic, FIELDS, valueFormat="json", mode="DROPMALFORMED").collect()
    assert [row.id for row in dropped] == [1, 2]
    with pytest.raises(PythonException, match=f"offset 1 of partition {topic}/0"):
        read(topic, FIELDS, valueFormat="json", mode="FAILFAST").collect()


def test_strings_are_checked_like_any_other_format(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send_values(topic, ["größe".encode(), b"\xff\xfe", None])
    assert [row.value for row in read(topic, valueFormat="string").collect()] == [
        "größe",
        None,
        None,
    ]
    dropped = read(topic, valueFormat="string", mode="DROPMALFORMED").collect()
    assert [row.value for row in dropped] == ["größe", None]
    with pytest.raises(PythonException, match="no string"):
        read(topic, valueFormat="string", mode="FAILFAST").collect()


def test_keys_may_be_json_too(read: Read, topics: Topics) -> None:
    topic = topics.create()
    topics.send(topic, [Sent(GOOD[0], b'{"id": 7}'), Sent(GOOD[1], None), Sent(GOOD[0], b"{")])
    schema = "id long, _key struct<id: long>, _offset long"
    rows = read(topic, schema, valueFormat="json", keyFormat="json").orderBy("_offset").collect()
    assert [row._key and row._key.id for row in rows] == [7, None, None]


AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "amount",
     "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "note", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"""


def avro(**fields: Any) -> bytes:
    import io
    import json

    import fastavro

    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(AVRO)), fields)
    return buffer.getvalue()


def test_avro_values_become_the_columns_of_their_schema(read: Read, topics: Topics) -> None:
    from decimal import Decimal

    topic = topics.create()
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    record = avro(id=5, amount=Decimal("12.30"), note=None, at=moment)
    topics.send_values(topic, [record, b"\x01", b"\0\0\0\0\7" + record])
    rows = read(topic, valueFormat="avro", avroSchema=AVRO).orderBy("_offset").collect()
    assert (rows[0].id, rows[0].amount, rows[0].note) == (5, Decimal("12.30"), None)
    assert rows[0].at.astimezone(UTC) == moment
    assert rows[1].id is None
    assert bytes(rows[1]._corrupt) == b"\x01"
    framed = read(
        topic, valueFormat="avro", avroSchema=AVRO, avroFraming="confluent", mode="DROPMALFORMED"
    )
    assert [row.id for row in framed.collect()] == [5]
