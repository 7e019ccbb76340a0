"""Batches that librdkafka wrote are read here, and those written here are read by librdkafka.

librdkafka brings a broker for tests of its own, which keeps batches as bytes. What its producer
sent is fetched from there as it was sent, and what was built here is put there for its consumer.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.records.forms import Form, using
from tests.records.samples import some_records

from tidelog.records import (
    Batch,
    Codec,
    MarkerType,
    Record,
    TimestampType,
    accept_batch,
    build_batch,
    parse_batches,
    read_records,
    survey_records,
    transaction_marker,
)
from tidelog.records.arrow import from_arrow, to_arrow

TOPIC = b"tide"
SECONDS = 30.0  # nothing here takes one; the bound is for a machine that is stuck
QUIET = {"log_level": 3}

_HEADER = Struct(">ihhi")  # length, API, version, correlation
_FETCH = Struct(">iiiibi")  # replica, wait, bytes at least, at most, isolation, topics
_FETCH_PARTITION = Struct(">iiqi")  # partitions, partition, offset, bytes at most
_FETCHED = Struct(">iihqqi")  # partitions, partition, error, ends twice, aborted transactions
_PRODUCE = Struct(">hhii")  # no transaction, acks, timeout, topics
_PRODUCE_PARTITION = Struct(">iii")  # partitions, partition, bytes
_PRODUCED = Struct(">iihq")  # partitions, partition, error, base offset


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker of librdkafka, which lives as long as the client that started it."""

    client: Producer
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def ask(self, api: int, version: int, body: bytes) -> bytes:
        """Send one request on a connection of its own; return what follows the correlation."""
        request = _HEADER.pack(len(body) + _HEADER.size - 2, api, version, 0) + b"\0\0" + body
        with socket.create_connection((self.host, self.port), timeout=SECONDS) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.read(int.from_bytes(answer.read(4), "big"))[4:]

    def fetch(self, offset: int) -> bytes:
        """Return the batches at `offset` and after, as they are stored."""
        body = _FETCH.pack(-1, 0, 1, 1 << 24, 0, 1) + _text(TOPIC)
        answer = self.ask(1, 4, body + _FETCH_PARTITION.pack(1, 0, offset, 1 << 24))
        position = 8 + len(_text(TOPIC))
        _, _, error, _, _, _ = _FETCHED.unpack_from(answer, position)
        assert error == 0
        position += _FETCHED.size
        size = int.from_bytes(answer[position : position + 4], "big")
        return answer[position + 4 : position + 4 + size]

    def produce(self, batch: Batch) -> None:
        """Append a batch."""
        body = _PRODUCE.pack(-1, -1, 1000, 1) + _text(TOPIC)
        body += _PRODUCE_PARTITION.pack(1, 0, batch.size) + batch.data
        answer = self.ask(0, 3, body)
        _, _, error, _ = _PRODUCED.unpack_from(answer, 4 + len(_text(TOPIC)))
        assert error == 0


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


@pytest.fixture
def broker() -> Iterator[Broker]:
    client = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", **QUIET})
    (node,) = client.list_topics(TOPIC.decode(), timeout=SECONDS).brokers.values()
    yield Broker(client, node.host, node.port)
    client.flush(SECONDS)


def send(broker: Broker, codec: Codec, written: list[Record]) -> None:
    """Let librdkafka's producer write records, in one batch.

    It compresses a batch only if that makes it smaller, so a few records alone would not do.
    """
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "compression.type": codec.name.lower(),
            "linger.ms": 60_000,  # nothing leaves before the flush, which does not wait for it
            **QUIET,
        }
    )
    for record in written:
        producer.produce(
            TOPIC.decode(),
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=record.timestamp,
            partition=0,
        )
    assert producer.flush(SECONDS) == 0


def consume(broker: Broker, count: int) -> list[Record]:
    """Let librdkafka's consumer read so many records, the CRC checked."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "readers",
            "check.crcs": True,
            "isolation.level": "read_uncommitted",
            **QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC.decode(), 0, 0)])
        found: list[Record] = []
        while len(found) < count:
            message = consumer.poll(SECONDS)
            assert message is not None
            assert message.error() is None
            headers: Any = tuple(message.headers() or ())
            _, timestamp = message.timestamp()
            offset = message.offset()
            assert offset is not None
            found.append(Record(offset, timestamp, message.key(), message.value(), headers))
        return found
    finally:
        consumer.close()


def large_records() -> list[Record]:
    """Return records that are worth compressing and longer than a block of any codec's framing."""
    large = Record(0, 1_700_000_000_000, b"large", b"tide and time " * 10_000)
    return [large, *(Record(r.offset_delta + 1, *_rest(r)) for r in some_records(9))]


def _rest(
    record: Record,
) -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return record.timestamp, record.key, record.value, record.headers


@pytest.mark.parametrize("codec", Codec)
def test_what_librdkafka_wrote_is_read_here(form: Form, broker: Broker, codec: Codec) -> None:
    send(broker, codec, large_records())
    found: list[Record] = []
    while len(found) < len(large_records()):
        batches = list(parse_batches(broker.fetch(len(found))))
        assert batches
        for batch in batches:
            assert batch.codec is codec
            batch.check_crc()
            with using(form):
                read = list(read_records(batch))
                assert to_arrow([batch]).column("key").to_pylist() == [r.key for r in read]
                assert survey_records(batch).max_timestamp == batch.max_timestamp
            found += (Record(batch.base_offset + r.offset_delta, *_rest(r)) for r in read)
    assert found == large_records()


def test_a_batch_of_librdkafka_is_taken_from_a_client(broker: Broker) -> None:
    send(broker, Codec.LZ4, some_records(5))
    (batch,) = parse_batches(broker.fetch(0))
    assert accept_batch(batch.data).count == 5


@pytest.mark.parametrize("codec", Codec)
def test_what_was_written_here_is_read_by_librdkafka(broker: Broker, codec: Codec) -> None:
    broker.produce(build_batch(large_records(), codec=codec))
    assert consume(broker, len(large_records())) == large_records()


@pytest.mark.parametrize("codec", Codec)
def test_columns_written_here_are_read_by_librdkafka(broker: Broker, codec: Codec) -> None:
    table = to_arrow([build_batch(large_records())])
    batches = from_arrow(table, codec=codec, max_batch_bytes=150)
    assert len(batches) > 2
    for batch in batches:
        broker.produce(batch)
    assert consume(broker, len(large_records())) == large_records()


def test_librdkafka_skips_a_marker_and_shows_the_time_of_the_broker(broker: Broker) -> None:
    marker = transaction_marker(
        MarkerType.COMMIT, producer_id=8, producer_epoch=2, coordinator_epoch=1, timestamp=99
    )
    last = build_batch([Record(0, 5, b"b", b"2")])
    broker.produce(build_batch([Record(0, 5, b"a", b"1")]))
    broker.produce(marker)
    broker.produce(last.set_time(1_900_000_000_000, TimestampType.LOG_APPEND))
    assert consume(broker, 2) == [
        Record(0, 5, b"a", b"1"),
        Record(2, 1_900_000_000_000, b"b", b"2"),
    ]
