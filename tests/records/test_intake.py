"""What a broker takes from a client, what it refuses, and how it says why."""

import struct
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.records.forms import Form, using
from tests.records.samples import records, some_batch, some_records

from tidelog.records import (
    HEADER_SIZE,
    Batch,
    BatchType,
    Codec,
    CorruptBatch,
    MarkerType,
    Offset,
    OldFormat,
    Record,
    RefusedBatch,
    Survey,
    Term,
    TimestampType,
    accept_batch,
    build_batch,
    empty_like,
    filter_batch,
    ghost,
    internal_batch,
    survey_records,
    transaction_marker,
)


def sealed(data: bytearray) -> bytes:
    """Make the CRC of a batch true again."""
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return bytes(data)


def claiming(batch: Batch, **fields: Any) -> bytes:
    """Return a batch with a true CRC whose header claims something else."""
    places = {"attributes": (21, ">h"), "delta": (23, ">i"), "count": (57, ">i")}
    data = bytearray(batch.data)
    for name, number in fields.items():
        position, form = places[name]
        struct.pack_into(form, data, position, number)
    return sealed(data)


@given(written=records(), codec=st.sampled_from(Codec))
def test_what_a_client_wrote_is_taken_as_it_is(written: list[Record], codec: Codec) -> None:
    written = [replace(record, offset_delta=place) for place, record in enumerate(written)]
    buffer = bytearray(build_batch(written, codec=codec, term=Term(-1)).data)
    batch = accept_batch(buffer)
    assert batch.data.obj is buffer
    assert batch.count == len(written)
    assert batch.stamp(Offset(900), Term(4)) is batch
    assert Batch.parse(buffer).last_offset == 900 + len(written) - 1


@pytest.mark.parametrize("transactional", [True, False])
def test_idempotent_and_transactional_batches_are_taken(transactional: bool) -> None:
    batch = build_batch(
        some_records(),
        producer_id=0,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )
    assert accept_batch(batch.data) == batch


def producer(**fields: Any) -> Batch:
    """Return a batch of a producer, some of whose numbers may be wrong."""
    good = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 3}
    return build_batch(some_records(), **(good | fields))


def with_horizon() -> Batch:
    marked = filter_batch(some_batch(), lambda _: True, delete_horizon=5)
    assert marked is not None
    return marked


COMMIT = transaction_marker(
    MarkerType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0
)
REFUSED: dict[str, tuple[bytes | memoryview, str]] = {
    "a second batch": (bytes(some_batch().data) * 2, "followed by more"),
    "bytes after the batch": (bytes(some_batch().data) + b"\0", "followed by more"),
    "a transaction marker": (COMMIT.data, "control batch"),
    "a configuration": (internal_batch(BatchType.CONFIGURATION, b"x").data, "control batch"),
    "a snapshot": (internal_batch(BatchType.SNAPSHOT, b"x").data, "control batch"),
    "a ghost": (ghost(Offset(0), Offset(9), Term(1)).data, "control batch"),
    "a delete horizon": (with_horizon().data, "delete horizon"),
    "an offset": (some_batch().stamp(Offset(1), Term(1)).data, "does not begin at offset 0"),
    "no records": (empty_like(some_batch(1)).data, "has no records"),
    "gaps": (build_batch([Record(4, 0, None, b"v")]).data, "has 1 records for 5 offsets"),
    "the broker's time": (
        build_batch(some_records(), timestamp_type=TimestampType.LOG_APPEND).data,
        "times that only brokers set",
    ),
    "a transaction of nobody": (
        build_batch(some_records(), transactional=True).data,
        "transactional and has no producer",
    ),
    "a producer without epoch": (producer(producer_epoch=-1).data, "epoch -1"),
    "a producer without sequence": (producer(base_sequence=-1).data, "sequence -1"),
    "a producer that cannot be": (producer(producer_id=-2).data, "producer -2"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_for_clients_to_write_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RefusedBatch, match=reason) as raised:
        accept_batch(data)
    assert str(raised.value) == raised.value.reason


def test_damage_and_old_formats_are_not_mistaken_for_what_is_refused() -> None:
    data = bytearray(some_batch().data)
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        accept_batch(data)
    data[16] = 1
    with pytest.raises(OldFormat):
        accept_batch(data)
    with pytest.raises(CorruptBatch, match="0 are left"):
        accept_batch(b"")


@pytest.mark.parametrize("codec", Codec)
def test_nothing_is_unpacked_to_take_a_batch(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(*_: object) -> memoryview:
        raise AssertionError("unpacked")

    monkeypatch.setattr("tidelog.records.codecs.decompress", unpacked)
    batch = some_batch(20, codec)
    assert accept_batch(batch.data) == batch
    with pytest.raises(AssertionError, match="unpacked"):
        survey_records(batch)


@given(written=records(max_size=20), codec=st.sampled_from(Codec))
def test_a_survey_says_what_reading_record_by_record_says(
    form: Form, written: list[Record], codec: Codec
) -> None:
    times = [record.timestamp for record in written]
    keyless = sum(record.key is None for record in written)
    with using(form):
        found = survey_records(build_batch(written, codec=codec))
    assert found == Survey(min(times), max(times), keyless, build_batch(written).size - HEADER_SIZE)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("claimed", [1, 2, 4, 1000, 2**31 - 1])
def test_a_survey_finds_a_count_that_is_not_true(form: Form, codec: Codec, claimed: int) -> None:
    # The header agrees with itself, so the batch would be given as many offsets as it claims.
    lying = claiming(some_batch(3, codec), count=claimed, delta=claimed - 1)
    batch = accept_batch(lying)
    with using(form), pytest.raises(CorruptBatch):
        survey_records(batch)


def test_a_survey_finds_damage_in_headers_of_records(form: Form) -> None:
    batch = build_batch([Record(0, 0, None, None, (("key", b"v"),))])
    batch.data[batch.size - 4] = 0xFF  # inside the key of the header
    with using(form), pytest.raises(CorruptBatch, match="UTF-8"):
        survey_records(batch)


def test_a_survey_unpacks_no_more_than_its_limit(form: Form) -> None:
    batch = build_batch([Record(0, 0, None, bytes(5000))], codec=Codec.ZSTD)
    with using(form):
        assert survey_records(batch, 5020).without_key == 1
        with pytest.raises(CorruptBatch, match="more than the 5000"):
            survey_records(batch, 5000)


def test_a_largest_time_that_a_client_got_wrong_can_be_put_right() -> None:
    written = [Record(0, 9_000, None, b"a"), Record(1, 7_000, None, b"b")]
    batch = build_batch(written).set_time(7_000, TimestampType.CREATE)
    found = survey_records(accept_batch(batch.data))
    assert (found.min_timestamp, found.max_timestamp) == (7_000, 9_000)
    batch.set_time(found.max_timestamp, TimestampType.CREATE)
    assert batch == build_batch(written)


def test_a_batch_without_records_cannot_be_surveyed() -> None:
    with pytest.raises(ValueError, match="no records"):
        survey_records(empty_like(some_batch()))
