"""Batches that aiokafka wrote are read here, and those written here are read by aiokafka."""

from dataclasses import replace
from typing import Any

import pytest
from aiokafka.record import default_records
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import Form, using
from tests.records.samples import as_read, records

from tidelog.records import (
    Batch,
    Codec,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
    build_batch,
    parse_batches,
    read_records,
    transaction_marker,
)
from tidelog.records.arrow import from_arrow, to_arrow

PLAIN_PYTHON = [default_records._DefaultRecordBatchBuilderPy, default_records._DefaultRecordBatchPy]


def theirs(written: list[Record], codec: Codec, builder: Any = DefaultRecordBatchBuilder) -> bytes:
    """Let aiokafka build a batch; it counts offsets from the first record."""
    batch = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=3,
        producer_epoch=1,
        base_sequence=20,
        batch_size=1_000_000,
    )
    for place, record in enumerate(written):
        added = batch.append(
            place, record.timestamp, record.key, record.value, list(record.headers)
        )
        assert added is not None
    return bytes(batch.build())


def as_theirs(batch: Any) -> list[Record]:
    """Return what aiokafka reads of a batch."""
    return [
        Record(
            record.offset - batch.base_offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(record.headers),
        )
        for record in batch
    ]


def in_order(written: list[Record]) -> list[Record]:
    """Number records as a producer does."""
    return [replace(record, offset_delta=place) for place, record in enumerate(written)]


@given(written=records(), codec=st.sampled_from(Codec))
def test_what_aiokafka_wrote_is_read_here(form: Form, written: list[Record], codec: Codec) -> None:
    # To aiokafka's builder a first timestamp of -1 means that there was none yet.
    written = in_order([replace(record, timestamp=abs(record.timestamp)) for record in written])
    for builder in (DefaultRecordBatchBuilder, PLAIN_PYTHON[0]):
        batch = Batch.parse(theirs(written, codec, builder))
        batch.check_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (3, 1, 20)
        assert batch.last_offset_delta == len(written) - 1
        with using(form):
            assert list(read_records(batch)) == written
            assert to_arrow([batch]).column("value").to_pylist() == [r.value for r in written]


@given(
    written=records(), codec=st.sampled_from(Codec), timestamp_type=st.sampled_from(TimestampType)
)
def test_what_was_written_here_is_read_by_aiokafka(
    written: list[Record], codec: Codec, timestamp_type: TimestampType
) -> None:
    ours = build_batch(
        written,
        codec=codec,
        base_offset=Offset(70),
        term=Term(5),
        timestamp_type=timestamp_type,
        producer_id=4,
    )
    for reader in (DefaultRecordBatch, PLAIN_PYTHON[1]):
        batch = reader(bytes(ours.data))
        assert batch.validate_crc()
        assert batch.base_offset == 70
        assert batch.next_offset == ours.last_offset + 1
        assert batch.producer_id == 4
        assert as_theirs(batch) == as_read(ours, written)


@given(written=records(max_size=30), codec=st.sampled_from(Codec))
def test_columns_written_here_are_read_by_aiokafka(
    form: Form, written: list[Record], codec: Codec
) -> None:
    with using(form):
        table = to_arrow([build_batch(written)])
        data = b"".join(b.data for b in from_arrow(table, codec=codec, max_batch_bytes=500))
    found = []
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += as_theirs(batch)
    assert in_order(found) == in_order(written)


def test_small_records_make_the_same_bytes_on_both_sides() -> None:
    written = in_order([Record(0, 1000 + n, b"k%d" % n, b"v" * n, ()) for n in range(40)])
    ours = build_batch(written, producer_id=3, producer_epoch=1, base_sequence=20)
    assert bytes(ours.stamp(Offset(0), Term(0)).data[16:]) == theirs(written, Codec.NONE)[16:]


@pytest.mark.parametrize("kind", MarkerType)
def test_aiokafka_understands_our_transaction_markers(kind: MarkerType) -> None:
    marker = transaction_marker(
        kind, producer_id=8, producer_epoch=2, coordinator_epoch=1, timestamp=99
    )
    batch = DefaultRecordBatch(bytes(marker.data))
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    (record,) = batch
    assert record.key == bytes([0, 0, 0, kind])


def test_many_batches_in_one_buffer_are_the_same_batches_on_both_sides() -> None:
    data = b"".join(theirs([Record(0, n, b"k", b"v" * n)], Codec.NONE) for n in range(5))
    assert [batch.count for batch in parse_batches(data)] == [1] * 5
