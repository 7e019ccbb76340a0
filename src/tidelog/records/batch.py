"""A record batch as bytes: a view that reads the header once and copies nothing.

The layout is Kafka's record batch, version 2, so that Kafka's own tools read what we store:

    position  size  field
           0     8  base offset            patched by `stamp`, not covered by the CRC
           8     4  length of what follows
          12     4  partition leader epoch the term; patched by `stamp`, not covered by the CRC
          16     1  magic                  2
          17     4  CRC32C                 of everything from position 21 to the end
          21     2  attributes             codec, timestamp type, flags, and our batch type
          23     4  last offset delta
          27     8  base timestamp         a ghost keeps its 64-bit last offset here
          35     8  maximum timestamp
          43     8  producer id
          51     2  producer epoch
          53     4  base sequence
          57     4  count of records
          61        records, compressed as the attributes say

Rules:
- `Batch.parse` trusts nothing: after it, every field is in range and `data` is exactly one batch.
  It does not read the records and does not check the CRC; `check_crc` does, and whoever takes bytes
  from a client, a peer or a disk calls it once.
- Parsing is on the path of every produce, append and fetch: one struct, one table lookup that
  decides codec and type together, and a handful of comparisons. What is wrong is worked out only
  after something was found to be wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from tidelog.records.errors import CorruptBatch, OldFormat
from tidelog.records.types import (
    NO_PRODUCER,
    BatchType,
    Buffer,
    Codec,
    Offset,
    Term,
    TimestampType,
)

HEADER_SIZE: Final = 61
# Base offset and length come before the bytes that the length counts.
LENGTH_OVERHEAD: Final = 12
MIN_LENGTH: Final = HEADER_SIZE - LENGTH_OVERHEAD
MAGIC: Final = 2
# The messages of versions 0 and 1 are shorter than our header, but have their version here as well.
MAGIC_POSITION: Final = 16
CRC_START: Final = 21
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_BIT: Final = 1 << 3
TRANSACTIONAL_BIT: Final = 1 << 4
CONTROL_BIT: Final = 1 << 5
DELETE_HORIZON_BIT: Final = 1 << 6
TYPE_SHIFT: Final = 8
TYPE_MASK: Final = 0x7F
# Bit 7 and the sign bit belong to nobody. A batch that sets them means something we do not know.
UNUSED_MASK: Final = ~0x7F7F

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_STAMP: Final = struct.Struct(">qii")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35
_CRC: Final = struct.Struct(">I")
_unpack = HEADER.unpack_from


def _known_attributes() -> dict[int, BatchType]:
    """List every attribute word that is allowed, with the batch type it stands for."""
    return {
        kind << TYPE_SHIFT | flags << 3 | codec: kind
        for kind in BatchType
        for flags in range(16)
        for codec in Codec
        if kind is BatchType.DATA or flags << 3 & CONTROL_BIT
    }


_TYPES: Final = _known_attributes()
_CODECS: Final = tuple(Codec)
_GHOST: Final = BatchType.GHOST  # looking a member up in its enum takes as long as a comparison


class Batch:
    """A view of one whole batch. The fields are those of the header, parsed once."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "data",
        "last_offset",
        "last_offset_delta",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
        "term",
        "type",
    )

    data: memoryview  # exactly this batch's bytes; len(data) == size
    base_offset: Offset  # >= 0
    last_offset: Offset  # >= base_offset; of a ghost, the last offset of the gap
    term: Term  # the partition leader epoch field; -1 in a batch that comes from a client
    size: int  # >= HEADER_SIZE
    crc: int
    attributes: int
    last_offset_delta: int  # >= 0; of a ghost longer than 31 bits, the largest number that fits
    base_timestamp: int  # of a batch with a delete horizon, that horizon; of a ghost, last_offset
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # of records; 0 <= count <= last_offset_delta + 1; size is HEADER_SIZE if it is 0
    type: BatchType

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> Batch:
        """View the batch at `position`; raise `CorruptBatch` if there is no whole, sane one."""
        view = memoryview(buffer)
        if view.format != "B":
            view = view.cast("B")
        return _parse(cls, view, position)

    def check_crc(self, position: int = 0) -> None:
        """Raise `CorruptBatch` unless the bytes are those the CRC was made of.

        `position` is where the batch begins in the caller's buffer or file, for the message.
        """
        actual = crc32c(self.data[CRC_START:])
        if actual != self.crc:
            raise wrong_crc(position, self.crc, actual)

    def stamp(self, base_offset: Offset, term: Term) -> Batch:
        """Give the batch its place in the log: patch base offset and term.

        A writable buffer is patched in place and this very batch returned, moved. A read-only one
        is copied first, and this batch stays as it was. The end of a gap does not move.
        """
        moved = self.last_offset if self.is_ghost else base_offset + self.last_offset_delta
        if not 0 <= base_offset <= moved <= MAX_INT64 or not -1 <= term <= MAX_INT32:
            raise ValueError(f"{self} cannot move to offset {base_offset}, term {term}")
        if self.data.readonly:
            return Batch.parse(bytearray(self.data)).stamp(base_offset, term)
        _STAMP.pack_into(self.data, 0, base_offset, self.size - LENGTH_OVERHEAD, term)
        self.base_offset = base_offset
        self.last_offset = Offset(moved)
        self.term = term
        return self

    def set_time(self, max_timestamp: int, timestamp_type: TimestampType) -> Batch:
        """Say whose times the records have, and which is the largest; make the CRC anew.

        With `LOG_APPEND`, every record has this time from now on, and not a byte of the records is
        touched. With `CREATE`, a maximum that a client got wrong is put right. As with `stamp`, a
        writable buffer is patched and this batch returned, and a read-only one is copied first.
        """
        if not -MAX_INT64 - 1 <= max_timestamp <= MAX_INT64 or self.is_ghost:
            raise ValueError(f"{self} cannot have the time {max_timestamp}")
        if self.data.readonly:
            return Batch.parse(bytearray(self.data)).set_time(max_timestamp, timestamp_type)
        self.attributes = self.attributes & ~LOG_APPEND_BIT | timestamp_type * LOG_APPEND_BIT
        self.max_timestamp = max_timestamp
        _ATTRIBUTES.pack_into(self.data, CRC_START, self.attributes)
        _MAX_TIMESTAMP.pack_into(self.data, _MAX_TIMESTAMP_POSITION, max_timestamp)
        self.crc = crc32c(self.data[CRC_START:])
        _CRC.pack_into(self.data, CRC_START - _CRC.size, self.crc)
        return self

    @property
    def records(self) -> memoryview:
        """The records section as it is stored, compressed or not."""
        return self.data[HEADER_SIZE:]

    @property
    def codec(self) -> Codec:
        """How the records section is compressed."""
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def is_compressed(self) -> bool:
        """Whether the attributes name a codec, which does not mean that there are records."""
        return self.attributes & CODEC_MASK != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the time of the records."""
        return TimestampType((self.attributes & LOG_APPEND_BIT) >> 3)

    @property
    def is_control(self) -> bool:
        """Whether Kafka clients skip this batch: a transaction marker, or a batch of ours."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the time after which tombstones may go."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def is_ghost(self) -> bool:
        """Whether the batch stands for a gap and holds nothing."""
        return self.type is _GHOST

    def __eq__(self, other: object) -> bool:
        """Tell whether two batches are the same bytes, wherever they lie."""
        return self.data == other.data if isinstance(other, Batch) else NotImplemented

    def __hash__(self) -> int:
        """Hash what identifies a batch in a log, which only `stamp` and `set_time` change."""
        return hash((self.base_offset, self.last_offset, self.crc))

    def __str__(self) -> str:
        return (
            f"{self.type.name.lower()} [{self.base_offset}, {self.last_offset}] term {self.term}: "
            f"{self.count} records, {self.size} bytes"
        )

    def __repr__(self) -> str:
        return f"<Batch {self}>"


def parse_batches(buffer: Buffer, position: int = 0) -> Iterator[Batch]:
    """View the batches that fill `buffer` from `position` to its end, one after the other."""
    view = memoryview(buffer)
    if view.format != "B":
        view = view.cast("B")
    end = len(view)
    while position < end:
        batch = _parse(Batch, view, position)
        yield batch
        position += batch.size


def seal(
    data: bytearray | memoryview,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    base_offset: int = 0,
    term: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER,
    base_sequence: int = NO_PRODUCER,
) -> Batch:
    """Write the header of a batch whose records are already in `data`, CRC included; view it."""
    view = memoryview(data)
    try:
        HEADER.pack_into(
            view,
            0,
            base_offset,
            len(view) - LENGTH_OVERHEAD,
            term,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        _CRC.pack_into(view, CRC_START - _CRC.size, crc32c(view[CRC_START:]))
        return _parse(Batch, view, 0)
    except (struct.error, CorruptBatch) as error:
        raise ValueError(f"these fields make no batch: {error}") from None


def wrong_crc(position: int, expected: int, actual: int) -> CorruptBatch:
    """Say that the batch at `position` is not what its CRC was made of."""
    return CorruptBatch(position, f"the CRC says {expected:#010x} and the bytes say {actual:#010x}")


def _parse(cls: type[Batch], view: memoryview, position: int) -> Batch:
    if not 0 <= position <= len(view) - HEADER_SIZE:
        raise _no_header(view, position)
    (
        base,
        length,
        term,
        magic,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = _unpack(view, position)
    size = length + LENGTH_OVERHEAD
    kind = _TYPES.get(attributes)
    last = base_timestamp if kind is _GHOST else base + delta
    if (
        kind is None
        or magic != MAGIC
        or size < HEADER_SIZE
        or position + size > len(view)
        or base < 0
        or delta < 0
        or not base <= last <= MAX_INT64
        or not 0 <= count <= delta + 1
        or term < -1
        or (not count and size != HEADER_SIZE)
        or (kind is _GHOST and count)
    ):
        if 0 <= magic < MAGIC:
            raise _old_format(position, magic)
        raise CorruptBatch(position, _fault(view, position))
    batch = cls()
    batch.data = view[position : position + size]
    batch.base_offset = base
    batch.last_offset = last
    batch.term = term
    batch.size = size
    batch.crc = crc
    batch.attributes = attributes
    batch.last_offset_delta = delta
    batch.base_timestamp = base_timestamp
    batch.max_timestamp = max_timestamp
    batch.producer_id = producer_id
    batch.producer_epoch = producer_epoch
    batch.base_sequence = base_sequence
    batch.count = count
    batch.type = kind
    return batch


def _no_header(view: memoryview, position: int) -> CorruptBatch:
    """Say why there is no header, where the buffer ends before a header would."""
    left = len(view) - position
    if position >= 0 and left > MAGIC_POSITION:
        magic = view[position + MAGIC_POSITION]
        if magic < MAGIC:
            return _old_format(position, magic)
    return CorruptBatch(position, f"a header takes {HEADER_SIZE} bytes and {left} are left")


def _old_format(position: int, magic: int) -> OldFormat:
    return OldFormat(position, f"the magic byte is {magic}, not {MAGIC}")


def _fault(view: memoryview, position: int) -> str:
    """Say what is wrong with a header that `_parse` refused; the first fault that applies."""
    header = _unpack(view, position)
    base, length, term, magic, _, attributes, delta, base_timestamp, *_, count = header
    left = len(view) - position
    kind = attributes >> TYPE_SHIFT & TYPE_MASK
    ghost = kind == BatchType.GHOST
    faults = (
        (magic != MAGIC, f"the magic byte is {magic}, not {MAGIC}"),
        (length < MIN_LENGTH, f"a length of {length} is less than a header"),
        (length + LENGTH_OVERHEAD > left, f"a length of {length} goes past the {left} bytes left"),
        (base < 0, f"the base offset is {base}"),
        (delta < 0, f"the last offset delta is {delta}"),
        (base + delta > MAX_INT64 and not ghost, f"offset {base} + {delta} overflows"),
        (term < -1, f"the leader epoch is {term}"),
        (count < 0, f"the count of records is {count}"),
        (count > delta + 1, f"{count} records do not fit in {delta + 1} offsets"),
        (attributes & UNUSED_MASK != 0, f"attributes {attributes:#x} set bits that mean nothing"),
        (attributes & CODEC_MASK > max(Codec), f"codec {attributes & CODEC_MASK} does not exist"),
        (kind > max(BatchType), f"batch type {kind} does not exist"),
        (kind and not attributes & CONTROL_BIT, f"batch type {kind} without the control bit"),
        (not count and length > MIN_LENGTH, f"{length - MIN_LENGTH} bytes of no records"),
        (count != 0, f"a ghost with {count} records"),
        (base_timestamp < base, f"a ghost from offset {base} back to {base_timestamp}"),
    )
    return next(reason for wrong, reason in faults if wrong)
