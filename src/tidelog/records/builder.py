"""Batches from records and records from batches, an object for each record.

Batches of clients pass through the broker as bytes. What is built here are configurations, markers,
snapshots and placeholders, what compaction keeps of a batch, and what tools and tests need. Records
by the million go through `arrow.py`.

Rules:
- A batch that is rewritten keeps its place: base offset, last offset, term, producer, sequence,
  codec and attributes stay, so offsets, idempotence and transactions do not notice. Only a batch
  that loses all of its records loses its codec as well.
- A delete horizon is the time after which the tombstones of a batch may go. As in Kafka it sits in
  the base timestamp field under an attribute bit, and the records count their times from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from tidelog.records import codecs, kernels
from tidelog.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_BIT,
    MAX_INT32,
    MAX_INT64,
    TRANSACTIONAL_BIT,
    TYPE_SHIFT,
    Batch,
    seal,
)
from tidelog.records.errors import CorruptBatch
from tidelog.records.types import (
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchType,
    Buffer,
    Codec,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
)

_FIRST_OFFSET: Final = Offset(0)
_NO_TERM_YET: Final = Term(0)

# The key of every control record: version, type. Kafka knows types 0 to 6.
_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VERSION: Final = 0
_FIRST_INTERNAL: Final = 100  # the type in the key is this and the batch type
_MARKER_VALUE: Final = Struct(">hi")  # version, coordinator epoch
_MARKER_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, as the control batch that ends it says."""

    type: MarkerType
    coordinator_epoch: int  # of the coordinator that ended it; an older one is fenced


def attribute_bits(
    codec: Codec,
    *,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE,
    type: BatchType = BatchType.DATA,
) -> int:
    """Return the attributes of a new batch."""
    return (
        codec
        | timestamp_type * LOG_APPEND_BIT
        | transactional * TRANSACTIONAL_BIT
        | (control or type is not BatchType.DATA) * CONTROL_BIT
        | type << TYPE_SHIFT
    )


def build_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: Offset = _FIRST_OFFSET,
    term: Term = _NO_TERM_YET,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE,
    type: BatchType = BatchType.DATA,
) -> Batch:
    """Build one batch. Its last offset is that of the last record."""
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    return seal(
        _with_header_room(codec, _write_records(records, base_timestamp)),
        attributes=attribute_bits(
            codec,
            transactional=transactional,
            control=control,
            timestamp_type=timestamp_type,
            type=type,
        ),
        last_offset_delta=records[-1].offset_delta if records else 0,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp for record in records), default=NO_TIMESTAMP),
        count=len(records),
        base_offset=base_offset,
        term=term,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def read_records(batch: Batch, limit: int = codecs.MAX_DECOMPRESSED) -> Iterator[Record]:
    """Yield the records of a batch, which may not unpack to more than `limit` bytes."""
    if batch.count:
        yield from kernels.read(batch, unpack(batch, limit))
    elif batch.size > HEADER_SIZE:
        raise CorruptBatch(
            HEADER_SIZE, f"{batch.size - HEADER_SIZE} bytes of no records in {batch}"
        )


def unpack(batch: Batch, limit: int = codecs.MAX_DECOMPRESSED) -> memoryview:
    """Return the records section of a batch, unpacked to at most `limit` bytes."""
    try:
        return codecs.decompress(batch.codec, batch.records, limit)
    except CorruptBatch as error:
        raise type(error)(HEADER_SIZE + error.position, f"{error.reason}, in {batch}") from None


def recompress(
    batch: Batch,
    codec: Codec,
    limit: int = codecs.MAX_DECOMPRESSED,
    *,
    level: int | None = None,
) -> Batch:
    """Return the batch with its records packed another way; nothing else of it changes."""
    return seal(
        _with_header_room(codec, unpack(batch, limit), level),
        attributes=batch.attributes & ~CODEC_MASK | codec,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        count=batch.count,
        base_offset=batch.base_offset,
        term=batch.term,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def internal_batch(type: BatchType, payload: bytes, *, timestamp: int = 0) -> Batch:
    """Build a batch of ours: one control record, whose value is the payload.

    Its key says the type again in the form of Kafka's control records, without which Kafka's tools
    cannot read a segment.
    """
    key = _CONTROL_KEY.pack(_CONTROL_VERSION, _FIRST_INTERNAL + type)
    return build_batch([Record(0, timestamp, key, payload)], type=type)


def internal_payload(batch: Batch) -> bytes:
    """Return what `internal_batch` was given."""
    for record in read_records(batch):
        if record.value is not None:
            return record.value
    raise CorruptBatch(HEADER_SIZE, f"no payload in {batch}")


def ghost(base: Offset, last: Offset, term: Term) -> Batch:
    """Build the header that stands for the gap [base, last]: 61 bytes, however long the gap."""
    return seal(
        bytearray(HEADER_SIZE),
        attributes=attribute_bits(Codec.NONE, type=BatchType.GHOST),
        last_offset_delta=min(last - base, MAX_INT32),
        base_timestamp=last,
        max_timestamp=NO_TIMESTAMP,
        count=0,
        base_offset=base,
        term=term,
    )


def placeholder(offset: Offset, term: Term, timestamp: int = NO_TIMESTAMP) -> Batch:
    """Build the header that keeps `offset` in a segment when compaction removed what was there."""
    return seal(
        bytearray(HEADER_SIZE),
        attributes=attribute_bits(Codec.NONE, type=BatchType.PLACEHOLDER),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        count=0,
        base_offset=offset,
        term=term,
    )


def transaction_marker(
    type: MarkerType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
) -> Batch:
    """Build the control batch that ends a producer's transaction in this partition."""
    if not -MAX_INT32 - 1 <= coordinator_epoch <= MAX_INT32:
        raise ValueError(f"coordinator epoch {coordinator_epoch} does not fit in a marker")
    key = _CONTROL_KEY.pack(_CONTROL_VERSION, type)
    value = _MARKER_VALUE.pack(_MARKER_VERSION, coordinator_epoch)
    return build_batch(
        [Record(0, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Batch) -> Marker:
    """Return how the transaction ended that this control batch ends."""
    record = next(read_records(batch), None)
    key = record.key if record else None
    value = record.value if record else None
    if not batch.is_control or batch.type is not BatchType.DATA or key is None or value is None:
        raise CorruptBatch(0, f"no transaction marker: {batch}")
    # Later versions of either may only add fields at the end.
    if len(key) < _CONTROL_KEY.size or len(value) < _MARKER_VALUE.size:
        raise CorruptBatch(HEADER_SIZE, f"a transaction marker cut short, in {batch}")
    _, kind = _CONTROL_KEY.unpack_from(key)
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    try:
        return Marker(MarkerType(kind), coordinator_epoch)
    except ValueError:
        raise CorruptBatch(HEADER_SIZE, f"a control record of type {kind}, in {batch}") from None


def filter_batch(
    batch: Batch, keep: Callable[[Record], bool], *, delete_horizon: int | None = None
) -> Batch | None:
    """Return the batch with the records that `keep` keeps; None if that is not a single one.

    A batch that keeps all of them is returned as it is, unless a delete horizon is to be set. A
    batch that has a horizon keeps the one it has, and one with times so far from it that they
    cannot be counted from it gets none: its tombstones stay, and no record is lost.
    """
    records = list(read_records(batch))
    kept = [record for record in records if keep(record)]
    if not kept:
        return None
    sets_horizon = (
        delete_horizon is not None
        and not batch.has_delete_horizon
        and (
            batch.timestamp_type is TimestampType.LOG_APPEND
            or all(_counts_from(delete_horizon, record) for record in kept)
        )
    )
    if len(kept) == len(records) and not sets_horizon:
        return batch
    if sets_horizon:
        assert delete_horizon is not None
        return _rebuild(batch, kept, delete_horizon, batch.attributes | DELETE_HORIZON_BIT)
    return _rebuild(batch, kept, batch.base_timestamp, batch.attributes)


def empty_like(batch: Batch) -> Batch:
    """Return the batch without records, which still tells a producer's last sequence.

    It has no codec either: Kafka clients unpack whatever the attributes call compressed, and no
    codec unpacks zero bytes.
    """
    return _rebuild(batch, (), batch.base_timestamp, batch.attributes & ~CODEC_MASK)


def _rebuild(
    batch: Batch, records: Sequence[Record], base_timestamp: int, attributes: int
) -> Batch:
    max_timestamp = batch.max_timestamp
    if batch.timestamp_type is TimestampType.LOG_APPEND:
        # Nobody reads the times of the records then, and the one they share may be too far from a
        # base timestamp that came from a client.
        records = [replace(record, timestamp=base_timestamp) for record in records]
    elif records:
        max_timestamp = max(record.timestamp for record in records)
    return seal(
        _with_header_room(batch.codec, _write_records(records, base_timestamp)),
        attributes=attributes,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        count=len(records),
        base_offset=batch.base_offset,
        term=batch.term,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def _with_header_room(codec: Codec, section: Buffer, level: int | None = None) -> bytearray:
    data = bytearray(HEADER_SIZE)
    # Not even an empty frame: a batch without records is a header and nothing else.
    data += codecs.compress(codec, section, level) if section else b""
    return data


def _write_records(records: Sequence[Record], base_timestamp: int) -> bytearray:
    section = bytearray()
    last = -1
    for record in records:
        if not last < record.offset_delta <= MAX_INT32:
            raise ValueError(f"offset delta {record.offset_delta} cannot follow {last} in a batch")
        last = record.offset_delta
        if not _counts_from(base_timestamp, record):
            raise ValueError(f"timestamp {record.timestamp} is too far from {base_timestamp}")
        body = bytearray(1)  # attributes
        _write_number(body, record.timestamp - base_timestamp)
        _write_number(body, record.offset_delta)
        _write_run(body, record.key)
        _write_run(body, record.value)
        _write_number(body, len(record.headers))
        for key, value in record.headers:
            _write_run(body, key.encode())
            _write_run(body, value)
        _write_number(section, len(body))
        section += body
    return section


def _counts_from(base_timestamp: int, record: Record) -> bool:
    """Tell whether the time of a record is within 64 bits of a base timestamp."""
    return -MAX_INT64 - 1 <= record.timestamp - base_timestamp <= MAX_INT64


def _write_run(body: bytearray, run: bytes | None) -> None:
    if run is None:
        body.append(1)  # the varint of -1
    else:
        _write_number(body, len(run))
        body += run


def _write_number(body: bytearray, number: int) -> None:
    number = number << 1 if number >= 0 else ~number << 1 | 1
    while number > 0x7F:
        body.append(number & 0x7F | 0x80)
        number >>= 7
    body.append(number)
