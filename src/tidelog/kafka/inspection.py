"""Produce: the batches of a request are inspected, record by record, before one is written.

A right CRC says that the bytes arrived as they were sent, and no more. A batch whose records are
garbage would stop every consumer at its offset, so it is refused here, and clients are told
INVALID_RECORD as by Kafka.

Rules:
- What is quick is inspected at once. `Allowance` bounds how long a request may hold the event loop
  for that; one that needs more is inspected on a thread (`Partly` says so).
- Nothing of a request is written before all of it was inspected, so a request that moves to the
  thread can begin anew there. Inspection changes a batch only in ways that may be repeated.
- A batch may unpack to `UNPACKED` times what it may be on the wire, and never to more than this
  release can unpack elsewhere. MESSAGE_TOO_LARGE makes Java's producer split the batch.
"""

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.configs import TopicConfig
from tidelog.kafka.errors import Refused
from tidelog.records import (
    MAX_DECOMPRESSED,
    Batch,
    Codec,
    CorruptBatch,
    OldFormat,
    OverLimit,
    RefusedBatch,
    TimestampType,
    accept_batch,
    read_records,
    recompress,
    survey_records,
)

CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
# Text and JSON shrink to a tenth, logs that repeat themselves to a thirtieth.
UNPACKED: Final = 64
# Bytes that a request may have unpacked on the event loop: 1 to 2 ms with gzip, the slowest.
ALLOWANCE: Final = 512 * 1024
# What other work costs beside unpacking a byte: the CRC and the walk over plain records take a
# twentieth of the time, and packing records anew takes several times as long.
_PLAIN_SHARE: Final = 16
_PACKING_FACTOR: Final = 8


class FaultyRecords(Refused):
    """A batch that was refused for some of its records, which the client is told.

    It may then write the others again without them.
    """

    def __init__(self, message: str, records: tuple[int, ...]) -> None:
        super().__init__(ErrorCode.invalid_record, message)
        self.records = records


class Partly(Exception):
    """The rest of the request would hold the event loop for too long."""


@dataclass(slots=True)
class Allowance:
    """What is left of the time that one request may take, in bytes unpacked."""

    left: int

    def spend(self, cost: int) -> None:
        if cost > self.left:
            raise Partly
        self.left -= cost


@dataclass(frozen=True, slots=True)
class Rules:
    """What the batches of one topic must be like."""

    max_bytes: int
    needs_keys: bool
    codec: Codec | None  # that the log holds; None: as it comes
    level: int | None  # of compression; None: the codec's own
    takes_zstd: bool
    transactional: bool  # the request names a transaction

    @classmethod
    def of(cls, config: TopicConfig, *, takes_zstd: bool, transactional: bool) -> "Rules":
        return cls(
            config.max_message_bytes,
            config.compacts,
            CODECS.get(config.compression_type),
            config.compression_level,
            takes_zstd,
            transactional,
        )

    @property
    def max_unpacked(self) -> int:
        return min(self.max_bytes * UNPACKED, MAX_DECOMPRESSED)


def inspect(records: memoryview | None, rules: Rules, allowance: Allowance | None = None) -> Batch:
    """View the batch that the log may have; raise `Refused`, or `Partly` past the allowance."""
    if not records:
        raise Refused(ErrorCode.invalid_record, "there are no records")
    if len(records) > rules.max_bytes:
        raise _too_large(len(records), rules.max_bytes)
    if allowance is not None:
        allowance.spend(len(records) // _PLAIN_SHARE)
    try:
        batch = accept_batch(records)
    except OldFormat as error:
        raise Refused(ErrorCode.unsupported_for_message_format, str(error)) from error
    except CorruptBatch as error:
        raise Refused(ErrorCode.corrupt_message, str(error)) from error
    except RefusedBatch as error:
        raise Refused(ErrorCode.invalid_record, str(error)) from error
    if batch.is_transactional or rules.transactional:
        raise Refused(ErrorCode.invalid_txn_state, "transactions are not served here")
    if batch.codec is Codec.ZSTD and not rules.takes_zstd:
        raise Refused(
            ErrorCode.unsupported_compression_type,
            "zstd needs version 7 of Produce requests or a newer one",
        )
    return _inspect_records(batch, rules, allowance)


def _inspect_records(batch: Batch, rules: Rules, allowance: Allowance | None) -> Batch:
    most = rules.max_unpacked
    limit = most if allowance is None else min(most, allowance.left)
    if not batch.is_compressed:
        limit = batch.size
    try:
        found = survey_records(batch, limit)
        if allowance is not None and batch.is_compressed:
            allowance.spend(found.size)
        if rules.needs_keys and found.without_key:
            raise FaultyRecords(
                f"{found.without_key} records have no key, which a compacted topic needs",
                tuple(place for place, each in enumerate(read_records(batch)) if each.key is None),
            )
        if found.max_timestamp != batch.max_timestamp:
            # Retention and searches by time go by the header, and some clients write another time.
            batch = batch.set_time(found.max_timestamp, TimestampType.CREATE)
        if rules.codec is not None and rules.codec is not batch.codec:
            if allowance is not None and rules.codec is not Codec.NONE:
                allowance.spend(found.size * _PACKING_FACTOR)
            batch = recompress(batch, rules.codec, most, level=rules.level)
            if batch.size > rules.max_bytes:
                raise _too_large(batch.size, rules.max_bytes)
    except OverLimit as error:
        if limit < most:
            raise Partly from None
        raise Refused(ErrorCode.message_too_large, str(error)) from error
    except CorruptBatch as error:
        raise Refused(ErrorCode.invalid_record, str(error)) from error
    return batch


def _too_large(size: int, most: int) -> Refused:
    return Refused(
        ErrorCode.message_too_large,
        f"the batch has {size} bytes and max.message.bytes allows {most}",
    )
