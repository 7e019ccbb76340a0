"""Options are those of Spark's own source, and whatever cannot be obeyed is refused in words."""

from __future__ import annotations

import pytest

from tidelog.client import TopicPartition
from tidelog.spark.options import (
    EARLIEST,
    LATEST,
    Format,
    Mode,
    OptionError,
    ReadOptions,
    WriteOptions,
    duration,
    read_options,
    write_options,
)

BASE = {"kafka.bootstrap.servers": "host:1", "subscribe": "orders"}


def reading(*, streaming: bool = False, **more: str) -> ReadOptions:
    return read_options(
        BASE | {k.replace("__", "."): v for k, v in more.items()}, streaming=streaming
    )


def writing(**more: str) -> WriteOptions:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return write_options({"kafka.bootstrap.servers": "host:1", **named})


def test_defaults_are_those_of_sparks_own_source() -> None:
    batch, stream = reading(), reading(streaming=True)
    assert (batch.start.everywhere, batch.end.everywhere) == (EARLIEST, LATEST)
    assert stream.start.everywhere == LATEST
    assert batch.fail_on_loss
    assert not batch.headers
    assert (batch.poll_seconds, batch.max_delay) == (120, 900)
    assert (batch.formats.value, batch.formats.mode) == (Format.BINARY, Mode.PERMISSIVE)


def test_names_count_whatever_their_case() -> None:
    found = read_options(
        {
            "KAFKA.Bootstrap.Servers": "host:1",
            "SUBSCRIBE": "Orders, Payments",
            "FailOnDataLoss": "False",
        },
        streaming=False,
    )
    assert found.topics.names == ("Orders", "Payments")
    assert not found.fail_on_loss


def test_a_time_for_all_beats_times_by_partition_beat_offsets() -> None:
    by_time = '{"orders": {"0": 5}}'
    found = reading(
        startingTimestamp="7", startingOffsetsByTimestamp=by_time, startingOffsets="earliest"
    )
    assert (found.start.everywhere, found.start.is_time) == (7, True)
    found = reading(startingOffsetsByTimestamp=by_time, startingOffsets="earliest")
    assert found.start.each == {TopicPartition("orders", 0): 5}
    assert found.start.is_time


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "a", "assign": "{}"}, "one of `subscribe`, `subscribePattern` and `assign`"),
        ({"startingOffset": "earliest"}, "Did you mean `startingOffsets`"),
        ({"failOnDataLos": "false"}, "Did you mean `failOnDataLoss`"),
        ({"failOnDataLoss": "no"}, "`failOnDataLoss` is 'no': give true or false"),
        ({"minPartitions": "0"}, "`minPartitions` is '0': give a whole number, at least 1"),
        ({"startingOffsets": "latest"}, "`startingOffsets` is 'latest'"),
        ({"endingOffsets": "earliest"}, "`endingOffsets` is 'earliest'"),
        ({"startingOffsets": "{"}, "give a JSON object such as"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "no place in orders"),
        ({"startingOffsets": '{"orders": [1]}'}, "takes numbers by partition"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "-2 \\(earliest\\)"),
        ({"valueFormat": "xml"}, "give one of binary, string, json, avro"),
        ({"valueFormat": "avro"}, "`avroSchema` and `valueFormat` = avro belong together"),
        ({"mode": "strict"}, "`mode` is 'strict'"),
        ({"columns": "a,a"}, "`columns` takes different names"),
        ({"maxTriggerDelay": "soon"}, "such as 30s or 15m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "cannot be as large"),
        ({"kafka.value.deserializer": "x"}, "`kafka.value.deserializer` cannot be set"),
        ({"kafka.auto.offset.reset": "latest"}, "use `startingOffsets`"),
        ({"kafka.enable.auto.commit": "true"}, "kept in the query's checkpoint"),
        ({"kafka.ssl.truststore.location": "x"}, "without encryption"),
        ({"kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT"),
        ({"kafka.isolation.level": "some"}, "read_committed, read_uncommitted"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(BASE | given, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "rowLimit"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"`{name}` has no meaning in a stream"):
        reading(streaming=True, **{name: "5"})


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(OptionError, match="no regular expression"):
        read_options({"kafka.bootstrap.servers": "h", "subscribePattern": "("}, streaming=True)


def test_the_cluster_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        read_options({"subscribe": "orders"}, streaming=True)


def test_options_of_others_and_of_the_client_pass() -> None:
    reading(path="x", checkpointLocation="y", kafka__fetch__min__bytes="1", somethingElse="z")


def test_writes_know_their_options_too() -> None:
    found = writing(topic="t", kafka__acks="1", kafka__compression__type="ZSTD")
    assert (found.topic, found.acks, found.codec, found.headers) == ("t", 1, "zstd", True)
    with pytest.raises(OptionError, match="`txnAppId` and `txnVersion` belong together"):
        writing(txnAppId="a")
    with pytest.raises(OptionError, match=r"goes with `kafka\.acks`"):
        writing(kafka__acks="1", kafka__enable__idempotence="true")
    with pytest.raises(OptionError, match="no transactions"):
        writing(kafka__transactional__id="t")
    with pytest.raises(OptionError, match="column `partition`"):
        writing(kafka__partitioner__class="t")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("30s", 30), ("250ms", 0.25), ("2 h", 7200), ("1500", 1.5)]
)
def test_lengths_of_time_have_units(text: str, seconds: float) -> None:
    assert duration("maxTriggerDelay", text) == seconds
