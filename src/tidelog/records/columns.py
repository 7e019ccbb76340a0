"""Records as columns: the buffers between the kernels and Arrow.

The layout is Arrow's, so that `arrow.py` wraps these buffers and copies nothing: 32-bit offsets
into one run of bytes, and a bitmap that says which entries are there. Nothing in this file looks at
a record; `kernels.py` fills a `Columns` on the way in, and `framing.py` reads a
`Source` on the way out.

Rules:
- Rows are counted before anything is allocated, and every row takes bytes of its section, so a
  header that lies about its count allocates nothing.
- The keys and the values are each given room for the whole of the sections, since pages nobody
  writes to cost nothing, and `fit` gives back what is left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.records.batch import Batch
from tidelog.records.types import Buffer

# Arrow's `binary` and `string` count bytes in 32 bits.
MAX_COLUMN_BYTES: Final = 2**31 - 1

# A record has seven fields of a byte or more.
MIN_RECORD_SIZE: Final = 7

# Batches of Kafka's default size that a consumer fetches of a partition at most, by default.
_FIRST_SPANS: Final = 64

# Headers there is room for once there is one; most records have none.
_FIRST_HEADERS: Final = 64


_NO_OFFSETS: Final = memoryview(bytes(4)).cast("i")
_NO_BYTES: Final = memoryview(b"")


def allocate(size: int) -> memoryview:
    """Return `size` bytes from Arrow's pool, which keeps pages that were freed and does not clear.

    With the C library's allocator, fresh pages would cost more than all the rest of a conversion.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")


def _ones(entries: int) -> memoryview:
    """Return a bitmap of entries that are all there, until a null clears its bit."""
    return memoryview(bytearray(b"\xff") * ((entries + 7) // 8))


def _int32s(size: int) -> memoryview:
    return allocate(size * 4).cast("i")


def _int64s(size: int) -> memoryview:
    return allocate(size * 8).cast("q")


@dataclass(slots=True)
class BinaryColumn:
    """Byte strings or nulls: entry i is data[offsets[start + i] : offsets[start + i + 1]]."""

    offsets: memoryview  # int32, one more than there are entries
    validity: memoryview | None  # bit start + i is set if entry i is there; None if all are
    data: memoryview
    start: int = 0  # where entry 0 is; more than 0 in a slice of an array
    nulls: int = 0  # entries that are not there

    @property
    def end(self) -> int:
        """How far offsets may go."""
        return len(self.data)

    @classmethod
    def none(cls) -> BinaryColumn:
        """Return a column without entries, which `grow` can make room in."""
        return cls(_NO_OFFSETS, _NO_BYTES, _NO_BYTES)

    @classmethod
    def empty(cls, offsets: memoryview, size: int) -> BinaryColumn:
        """Make room for entries that take at most `size` bytes together, with these offsets."""
        offsets[0] = 0
        return cls(offsets, _ones(len(offsets) - 1), allocate(size))

    def grow(self, entries: int) -> None:
        """Make room for more entries; those that are there stay."""
        offsets, validity = _int32s(entries + 1), _ones(entries)
        offsets[: len(self.offsets)] = self.offsets
        if self.validity is not None:
            validity[: len(self.validity)] = self.validity
        self.offsets, self.validity = offsets, validity

    def fit(self, entries: int) -> None:
        """Give back the room that `entries` entries left, if that is worth a copy."""
        used = self.offsets[entries]
        if used < len(self.data) // 2:
            self.data = memoryview(bytes(self.data[:used]))
        else:
            self.data = self.data[:used]
        if not self.nulls:
            self.validity = None


class Columns:
    """Room for the records of some batches, which `kernels.decode` fills."""

    __slots__ = (
        "header_keys",
        "header_offsets",
        "header_room",
        "header_values",
        "headers",
        "keys",
        "offsets",
        "rows",
        "size",
        "timestamps",
        "values",
    )

    rows: int
    offsets: memoryview  # int64
    timestamps: memoryview  # int64, milliseconds
    keys: BinaryColumn | None  # None: not asked for, and so not copied
    values: BinaryColumn | None
    header_offsets: memoryview | None  # int32, rows + 1 of them; None: not asked for
    header_keys: BinaryColumn
    header_values: BinaryColumn
    headers: int  # entries of header_keys and header_values
    header_room: int  # entries they have room for; 0 until there is one
    size: int  # bytes that all columns together can take

    def __init__(self, rows: int, size: int, *, keys: bool, values: bool, headers: bool) -> None:
        """Make room for `rows` records that take `size` bytes together."""
        if size > MAX_COLUMN_BYTES:
            raise too_many_bytes()
        self.rows = rows
        # The numbers of all columns are one allocation: small batches feel each.
        numbers = allocate(rows * 16 + (rows + 1) * 12)
        times, ends = rows * 8, rows * 16
        self.offsets = numbers[:times].cast("q")
        self.timestamps = numbers[times:ends].cast("q")
        starts = numbers[ends:].cast("i")
        entries = rows + 1
        self.keys = BinaryColumn.empty(starts[:entries], size) if keys else None
        self.values = BinaryColumn.empty(starts[entries : 2 * entries], size) if values else None
        self.size = size
        self.headers = self.header_room = 0
        self.header_keys = BinaryColumn.none()
        self.header_values = BinaryColumn.none()
        self.header_offsets = None
        if headers:
            self.header_offsets = starts[2 * entries :]
            self.header_offsets[0] = 0

    def grow_headers(self, needed: int) -> None:
        """Make room for at least `needed` headers."""
        if not self.header_room:
            self.header_keys.data = allocate(self.size)
            self.header_values.data = allocate(self.size)
        self.header_room = max(needed, self.header_room * 2, _FIRST_HEADERS)
        self.header_keys.grow(self.header_room)
        self.header_values.grow(self.header_room)

    def fit(self) -> None:
        """Give back the room that nothing was written to."""
        for column in (self.keys, self.values):
            if column is not None:
                column.fit(self.rows)
        self.header_keys.fit(self.headers)
        self.header_values.fit(self.headers)


class Spans:
    """Batches to decode together, in order: which bytes their records are, what they count from.

    A plain batch, neither compressed nor out of the ordinary, is a row of numbers and no object:
    producers that send as soon as they can make batches of a few records.
    """

    __slots__ = ("batches", "buffer", "fields", "rows", "size", "special")

    # special, start, stop, count, base offset, last offset delta, base timestamp, maximum
    # timestamp, whether all records have the maximum, CRC
    WIDTH: Final = 10

    buffer: memoryview  # of plain batches; their CRC is checked when they are decoded
    special: list[tuple[Batch, memoryview]]  # all other batches, with their unpacked records
    fields: memoryview  # int64, WIDTH for each batch; the first is -1 or a place in `special`
    batches: int
    rows: int  # records of all batches; those their bytes can hold, whatever a header says
    size: int  # bytes of all records

    def __init__(self, buffer: Buffer = b"") -> None:
        self.buffer = memoryview(buffer).cast("B")
        self.special = []
        self.fields = _int64s(self.WIDTH * _FIRST_SPANS)
        self.batches = self.rows = self.size = 0

    def grow(self) -> None:
        """Make room for as many batches again."""
        fields = _int64s(len(self.fields) * 2)
        fields[: len(self.fields)] = self.fields
        self.fields = fields

    def add(self, batch: Batch, section: memoryview) -> None:
        """Add a batch with its unpacked records, whose CRC is no more of interest."""
        if (self.batches + 1) * self.WIDTH > len(self.fields):
            self.grow()
        self.fields[self.batches * self.WIDTH] = len(self.special)
        self.special.append((batch, section))
        self.batches += 1
        self.rows += min(batch.count, len(section) // MIN_RECORD_SIZE)
        self.size += len(section)
        if self.size > MAX_COLUMN_BYTES:
            raise too_many_bytes()


def too_many_bytes() -> ValueError:
    """Say that the records of some batches are more than Arrow can hold together."""
    return ValueError(
        f"these batches unpack to more than the {MAX_COLUMN_BYTES} bytes that an Arrow batch "
        "holds; convert fewer at a time"
    )


@dataclass(frozen=True, slots=True)
class ListColumn:
    """Lists or nulls: list i is the entries offsets[start + i] to offsets[start + i + 1]."""

    offsets: memoryview  # int32
    validity: memoryview | None
    start: int
    end: int  # entries there are
    data: None = None  # entries are in columns of their own


@dataclass(frozen=True, slots=True)
class Source:
    """Columns to encode, which `kernels.encode` reads."""

    timestamps: memoryview  # int64, one for each row
    keys: BinaryColumn | None  # None: no record has a key
    values: BinaryColumn | None  # None: every record is a tombstone
    headers: ListColumn | None  # None: no record has headers
    header_keys: BinaryColumn | None
    header_values: BinaryColumn | None
