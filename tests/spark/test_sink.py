"""Batch writes: rows become records, where and how the columns and options say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from tests.spark.conftest import BOTH, Topics

from tidelog.client.partitioner import partition_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
Write = Callable[..., None]


@pytest.fixture
def write(topics: Topics, source: str) -> Write:
    """Append a frame, with these options."""

    def run(frame: DataFrame, *, mode: str = "append", **options: object) -> None:
        frame.write.format(source).mode(mode).options(**topics.options(**options)).save()

    return run


def texts(frame: DataFrame) -> DataFrame:
    """Return records with keys and values as text."""
    return frame.withColumns({"key": frame.key.cast("string"), "value": frame.value.cast("string")})


@BOTH
def test_all_columns_of_a_record_are_written(
    spark: SparkSession, topics: Topics, read: Read, write: Write
) -> None:
    topic = topics.create(4)
    rows: list[tuple[Any, ...]] = [
        ("k1", "v1", [("h", b"1"), ("none", None)], None),
        (None, None, [], 3),
        ("k2", "größe", None, 0),
    ]
    schema = (
        "key string, value string, headers array<struct<key: string, value: binary>>, partition int"
    )
    write(spark.createDataFrame(rows, schema), topic=topic, includeHeaders="true")
    found = {row.key: row for row in texts(read(topic, includeHeaders="true")).collect()}
    assert {key: (row.value, row.partition) for key, row in found.items()} == {
        "k1": ("v1", partition_of(b"k1", 4)),
        None: (None, 3),
        "k2": ("größe", 0),
    }
    assert [(each.key, each.value) for each in found["k1"].headers] == [("h", b"1"), ("none", None)]
    assert found["k2"].headers is None


@BOTH
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_go_round_whatever_packs_them(
    codec: str, spark: SparkSession, topics: Topics, read: Read, write: Write
) -> None:
    topic = topics.create(3)
    frame = spark.range(20_000).selectExpr("cast(id AS string) AS key", "repeat(id, 5) AS value")
    write(frame, topic=topic, kafka_compression_type=codec)
    found = texts(read(topic)).select("key", "value")
    assert found.exceptAll(frame).count() == 0
    assert found.count() == 20_000


@BOTH
def test_a_column_says_which_topic(
    spark: SparkSession, topics: Topics, read: Read, write: Write
) -> None:
    one, two = topics.create(), topics.create()
    frame = spark.createDataFrame(
        [(one, "a"), (two, "b"), (one, "c")], "topic string, value string"
    )
    write(frame)
    assert sorted(row.value for row in texts(read(one)).collect()) == ["a", "c"]
    assert [row.value for row in texts(read(two)).collect()] == ["b"]
    write(frame, topic=two)
    assert read(two).count() == 4


@BOTH
def test_a_read_of_a_topic_can_be_written_as_it_is(
    spark: SparkSession, topics: Topics, read: Read, write: Write
) -> None:
    source, target = topics.create(2), topics.create(2)
    topics.send_values(source, [b"%d" % number for number in range(50)], partitions=2)
    write(read(source), topic=target)
    place = ("partition", "value")
    assert Counter(read(source).select(*place).collect()) == Counter(
        read(target).select(*place).collect()
    )


def test_a_task_that_is_tried_again_writes_nothing_twice(
    spark: SparkSession, topics: Topics, read: Read, write: Write, tmp_path: Path
) -> None:
    topic, mark = topics.create(2), tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        # The first attempt dies after its first rows are on their way.
        for number, batch in enumerate(batches):
            if number == 1 and not mark.exists():
                mark.touch()
                raise RuntimeError("planned")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        frame = spark.range(0, 3000, 1, 1).selectExpr("cast(id AS string) AS value")
        write(frame.mapInArrow(fail_once, frame.schema), topic=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert mark.exists()
    found = Counter(int(row.value) for row in read(topic, valueFormat="string").collect())
    assert found == Counter(range(3000))


def test_an_application_says_which_writes_are_the_same(
    spark: SparkSession, topics: Topics, read: Read, write: Write
) -> None:
    topic = topics.create(2)
    frame = spark.range(100).selectExpr("cast(id AS string) AS value")
    for version in (1, 1, 2):
        write(frame, topic=topic, txnAppId="nightly", txnVersion=version)
    assert read(topic).count() == 200
    with pytest.raises(PythonException, match="later batch"):
        write(frame, topic=topic, txnAppId="nightly", txnVersion=1)
    write(frame, topic=topic)
    write(frame, topic=topic)
    assert read(topic).count() == 400


def test_frames_that_are_no_records_are_refused_with_a_hint(
    spark: SparkSession, topics: Topics, write: Write
) -> None:
    topic = topics.create()
    with pytest.raises(AnalysisException, match="no column `value`"):
        write(spark.range(1), topic=topic)
    with pytest.raises(AnalysisException, match="Column `value` is bigint: cast it to binary"):
        write(spark.range(1).withColumnRenamed("id", "value"), topic=topic)
    with pytest.raises(AnalysisException, match="Set the option `topic`"):
        write(spark.sql("SELECT 'x' AS value"))
    with pytest.raises(AnalysisException, match="not overwritten"):
        write(spark.sql("SELECT 'x' AS value"), topic=topic, mode="overwrite")
    with pytest.raises(PythonException, match="Column `topic` is null"):
        write(spark.createDataFrame([(None, "a")], "topic string, value string"))
    with pytest.raises(PythonException, match="does not exist"):
        write(spark.sql("SELECT 'x' AS value"), topic="nowhere")
