"""What a client may write: the checks between the bytes of a produce request and the log.

Rules:
- `accept_batch` looks at the header and the CRC and at nothing else, and it views the bytes where
  they are. After it, the batch has one offset for each record it claims, and only `stamp` is
  missing.
- `survey_records` unpacks and walks all records of a batch and makes no object for any. A claim of
  the header that the records do not keep is damage. A server does both before it appends.
- What a client may not write is refused, though it may be a valid batch: markers and batches of
  ours come from this side only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.records import codecs, kernels
from tidelog.records.batch import Batch
from tidelog.records.builder import unpack
from tidelog.records.errors import RefusedBatch
from tidelog.records.types import NO_PRODUCER, BatchType, Buffer, TimestampType


@dataclass(frozen=True, slots=True)
class Survey:
    """What the records of a batch are like, all of them together."""

    min_timestamp: int  # of the records, whatever the header says
    max_timestamp: int
    without_key: int  # records that have none, which a compacted topic does not take
    size: int  # bytes of the records, unpacked


def accept_batch(buffer: Buffer) -> Batch:
    """View the one batch that fills `buffer`; raise unless a client may write it.

    `CorruptBatch` means that the bytes are no valid batch, `OldFormat` that they are a message of
    an old version, and `RefusedBatch` that they are a batch which is not for clients to write.
    """
    batch = Batch.parse(buffer)
    if batch.size != memoryview(buffer).nbytes:
        raise RefusedBatch(f"{batch} is followed by more, where one batch at a time is taken")
    batch.check_crc()
    if (
        batch.type is not BatchType.DATA
        or batch.is_control
        or batch.has_delete_horizon
        or batch.base_offset
        or not batch.count
        or batch.count != batch.last_offset_delta + 1
        or batch.timestamp_type is not TimestampType.CREATE
        or not _has_sane_producer(batch)
    ):
        raise RefusedBatch(_refusal(batch))
    return batch


def survey_records(batch: Batch, limit: int = codecs.MAX_DECOMPRESSED) -> Survey:
    """Unpack a batch and check every record; raise `CorruptBatch` if one is not what it should be.

    That includes their count and their offsets; records that unpack to more than `limit` bytes are
    `OverLimit`. The largest time is returned and not compared with the header, because there are
    clients that write the time of the last record there: `Batch.set_time` puts that right.
    """
    if not batch.count:
        raise ValueError(f"{batch} has no records to look at")
    section = unpack(batch, limit)
    return Survey(*kernels.survey(batch, section), len(section))


def _has_sane_producer(batch: Batch) -> bool:
    if batch.producer_id == NO_PRODUCER:
        return not batch.is_transactional
    return batch.producer_id >= 0 and batch.producer_epoch >= 0 and batch.base_sequence >= 0


def _refusal(batch: Batch) -> str:
    """Say why a batch was refused; the first reason that applies."""
    offsets = batch.last_offset_delta + 1
    reasons = (
        (batch.is_control, "is a control batch, which only brokers write"),
        (batch.has_delete_horizon, "has a delete horizon, which only brokers set"),
        (batch.base_offset != 0, "does not begin at offset 0, as new batches do"),
        (not batch.count, "has no records"),
        (batch.count != offsets, f"has {batch.count} records for {offsets} offsets"),
        (batch.timestamp_type is not TimestampType.CREATE, "has times that only brokers set"),
        (batch.producer_id == NO_PRODUCER, "is transactional and has no producer"),
        (
            not _has_sane_producer(batch),
            f"has producer {batch.producer_id}, epoch {batch.producer_epoch} and sequence "
            f"{batch.base_sequence}, one of which does not exist",
        ),
    )
    return next(f"{batch} {reason}" for applies, reason in reasons if applies)
