from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import Form, using
from tests.records.samples import as_read, records, some_batch, some_records

from tidelog.records import (
    HEADER_SIZE,
    Batch,
    BatchType,
    Codec,
    CorruptBatch,
    Marker,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
    build_batch,
    empty_like,
    filter_batch,
    internal_batch,
    internal_payload,
    placeholder,
    read_marker,
    read_records,
    transaction_marker,
)

HORIZON = 1_800_000_000_000


@given(
    written=records(),
    codec=st.sampled_from(Codec),
    timestamp_type=st.sampled_from(TimestampType),
    transactional=st.booleans(),
)
def test_what_was_written_is_read_back(
    form: Form,
    written: list[Record],
    codec: Codec,
    timestamp_type: TimestampType,
    transactional: bool,
) -> None:
    built = build_batch(
        written,
        codec=codec,
        base_offset=Offset(100),
        term=Term(4),
        producer_id=7,
        producer_epoch=2,
        base_sequence=30,
        transactional=transactional,
        timestamp_type=timestamp_type,
    )
    batch = Batch.parse(bytes(built.data))
    batch.check_crc()
    assert (batch.base_offset, batch.term, batch.codec) == (100, 4, codec)
    assert batch.last_offset == 100 + written[-1].offset_delta
    assert batch.max_timestamp == max(record.timestamp for record in written)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 30)
    assert batch.is_transactional is transactional
    assert batch.timestamp_type is timestamp_type
    with using(form):
        assert list(read_records(batch)) == as_read(batch, written)


def test_an_empty_batch_is_a_header_whatever_the_codec() -> None:
    for codec in Codec:
        batch = build_batch([], codec=codec)
        assert (batch.size, batch.count) == (HEADER_SIZE, 0)
        assert list(read_records(batch)) == []


@pytest.mark.parametrize("deltas", [(-1,), (0, 0), (1, 0), (2**31,)])
def test_offsets_that_do_not_rise_are_refused(deltas: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="offset delta"):
        build_batch([Record(delta, 0, None, None) for delta in deltas])


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no batch"):
        build_batch(some_records(), term=Term(2**31))
    with pytest.raises(ValueError, match="no batch"):
        build_batch([Record(0, 2**63, None, None)])
    with pytest.raises(ValueError, match="no batch"):
        build_batch(some_records(), base_offset=Offset(-1))


@given(payload=st.binary(max_size=300), kind=st.sampled_from(BatchType))
def test_a_payload_travels_in_a_batch_of_ours(payload: bytes, kind: BatchType) -> None:
    if kind is BatchType.GHOST:
        return
    batch = internal_batch(kind, payload, timestamp=12)
    batch.check_crc()
    assert batch.type is kind
    assert batch.is_control is (kind is not BatchType.DATA)
    assert (batch.count, batch.max_timestamp) == (1, 12)
    assert internal_payload(batch) == payload


@pytest.mark.parametrize("kind", [BatchType.CONFIGURATION, BatchType.SNAPSHOT, BatchType.CHANGELOG])
def test_the_record_of_a_batch_of_ours_has_the_key_of_a_control_record(kind: BatchType) -> None:
    """Kafka's tools read a version and a type from it, and stop at a record without."""
    batch = internal_batch(kind, b"payload")
    key = b"\x00\x00" + (100 + kind).to_bytes(2, "big")
    body = b"\x00\x00\x00" + b"\x08" + key + b"\x0e" + b"payload" + b"\x00"
    assert bytes(batch.records) == bytes([len(body) << 1]) + body
    assert batch.is_control


def test_a_batch_without_payload_says_so() -> None:
    with pytest.raises(CorruptBatch, match="no payload in placeholder"):
        internal_payload(placeholder(Offset(3), Term(1)))


@pytest.mark.parametrize("kind", MarkerType)
def test_a_transaction_marker_is_the_control_record_that_kafka_writes(kind: MarkerType) -> None:
    batch = transaction_marker(
        kind, producer_id=9, producer_epoch=3, coordinator_epoch=17, timestamp=5
    )
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.type, batch.producer_id, batch.producer_epoch) == (BatchType.DATA, 9, 3)
    assert batch.base_sequence == -1
    (record,) = read_records(batch)
    assert record.key == bytes([0, 0, 0, kind])
    assert record.value == bytes([0, 0, 0, 0, 0, 17])
    assert read_marker(batch) == Marker(kind, 17)


@pytest.mark.parametrize(
    ("record", "control", "reason"),
    [
        (Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\1"), False, "no transaction marker"),
        (Record(0, 0, None, b"\0\0\0\0\0\1"), True, "no transaction marker"),
        (Record(0, 0, b"\0\0\0\1", None), True, "no transaction marker"),
        (Record(0, 0, b"\0\0\0", b"\0\0\0\0\0\1"), True, "cut short"),
        (Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0"), True, "cut short"),
        (Record(0, 0, b"\0\0\0\2", b"\0\0\0\0\0\1"), True, "control record of type 2"),
    ],
)
def test_what_is_no_marker_is_refused(record: Record, control: bool, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason):
        read_marker(build_batch([record], control=control))


def odd(record: Record) -> bool:
    return record.offset_delta % 2 == 1


@given(written=records(max_size=20), codec=st.sampled_from(Codec))
def test_a_filtered_batch_keeps_its_place_and_the_records_that_were_kept(
    written: list[Record], codec: Codec
) -> None:
    batch = build_batch(
        written,
        codec=codec,
        base_offset=Offset(50),
        term=Term(2),
        producer_id=5,
        producer_epoch=1,
        base_sequence=8,
        transactional=True,
    )
    kept = [record for record in written if odd(record)]
    filtered = filter_batch(batch, odd)
    if not kept:
        assert filtered is None
        return
    assert filtered is not None
    filtered.check_crc()
    assert list(read_records(filtered)) == kept
    assert filtered.max_timestamp == max(record.timestamp for record in kept)
    for field in (
        "base_offset",
        "last_offset",
        "term",
        "attributes",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    ):
        assert getattr(filtered, field) == getattr(batch, field)


def test_a_batch_that_loses_nothing_stays_as_it_is() -> None:
    batch = some_batch()
    assert filter_batch(batch, lambda _: True) is batch


def test_the_time_that_the_broker_gave_survives_a_filter() -> None:
    batch = build_batch(some_records(4), timestamp_type=TimestampType.LOG_APPEND)
    filtered = filter_batch(batch, lambda record: record.offset_delta == 1)
    assert filtered is not None
    assert filtered.max_timestamp == batch.max_timestamp
    assert [record.timestamp for record in read_records(filtered)] == [batch.max_timestamp]


@given(written=records(), keep=st.sampled_from([odd, lambda _: True]))
def test_a_delete_horizon_changes_no_record(
    written: list[Record], keep: Callable[[Record], bool]
) -> None:
    kept = [record for record in written if keep(record)]
    marked = filter_batch(build_batch(written), keep, delete_horizon=HORIZON)
    if not kept:
        assert marked is None
        return
    assert marked is not None
    marked.check_crc()
    assert marked.has_delete_horizon
    assert marked.base_timestamp == HORIZON
    assert list(read_records(marked)) == kept


def test_a_delete_horizon_is_set_once() -> None:
    batch = filter_batch(some_batch(4), lambda _: True, delete_horizon=HORIZON)
    assert batch is not None
    assert filter_batch(batch, lambda _: True, delete_horizon=HORIZON + 1) is batch
    fewer = filter_batch(batch, odd, delete_horizon=HORIZON + 1)
    assert fewer is not None
    assert fewer.base_timestamp == HORIZON
    assert list(read_records(fewer)) == [record for record in some_records(4) if odd(record)]


def test_times_too_far_apart_make_no_batch() -> None:
    far = [Record(0, 2**63 - 1, None, None), Record(1, -2, None, None)]
    with pytest.raises(ValueError, match="too far"):
        build_batch(far)
    near = [Record(0, 2**63 - 1, None, None), Record(1, -1, None, None)]
    assert list(read_records(build_batch(near))) == near


def test_a_horizon_too_far_from_a_time_is_not_set_and_no_record_is_lost() -> None:
    written = [Record(0, -(2**63), b"k", None), Record(1, -(2**63), b"k", b"v")]
    batch = build_batch(written)
    assert filter_batch(batch, lambda _: True, delete_horizon=HORIZON) is batch
    fewer = filter_batch(batch, odd, delete_horizon=HORIZON)
    assert fewer is not None
    assert not fewer.has_delete_horizon
    assert list(read_records(fewer)) == written[1:]


def test_a_batch_with_the_brokers_time_is_rewritten_whatever_the_client_said() -> None:
    batch = build_batch([Record(n, -(2**63), b"k", None) for n in range(2)])
    batch.set_time(1_700_000_000_000, TimestampType.LOG_APPEND)
    for horizon in (None, HORIZON):
        fewer = filter_batch(batch, odd, delete_horizon=horizon)
        assert fewer is not None
        fewer.check_crc()
        assert fewer.has_delete_horizon is (horizon is not None)
        assert list(read_records(fewer)) == [Record(1, 1_700_000_000_000, b"k", None)]


@pytest.mark.parametrize("epoch", [2**31, -(2**31) - 1])
def test_a_marker_of_an_epoch_that_does_not_fit_is_refused(epoch: int) -> None:
    with pytest.raises(ValueError, match="coordinator epoch"):
        transaction_marker(
            MarkerType.ABORT,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=epoch,
            timestamp=0,
        )


def test_an_emptied_batch_still_tells_its_offsets_and_its_producers_sequence() -> None:
    batch = build_batch(
        some_records(5),
        codec=Codec.ZSTD,
        base_offset=Offset(50),
        term=Term(2),
        producer_id=5,
        producer_epoch=1,
        base_sequence=8,
    )
    empty = empty_like(batch)
    empty.check_crc()
    assert (empty.size, empty.count) == (HEADER_SIZE, 0)
    assert (empty.base_offset, empty.last_offset, empty.term) == (50, 54, 2)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence) == (5, 1, 8)
    assert empty.max_timestamp == batch.max_timestamp
    assert list(read_records(empty)) == []


@pytest.mark.parametrize("codec", Codec)
def test_an_emptied_batch_has_no_codec(codec: Codec) -> None:
    batch = build_batch(some_records(3), codec=codec, producer_id=5, producer_epoch=1)
    empty = empty_like(batch)
    empty.check_crc()
    assert not empty.is_compressed
    assert empty.attributes == batch.attributes - codec
