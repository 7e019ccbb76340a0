"""Records as columns: the buffers between the kernels and Arrow.

The layout is Arrow's, so that `arrow.py` wraps these buffers and copies nothing: 32-bit offsets
into one run of bytes, and a bitmap that says which entries are there. Nothing in this file looks at
a record; `kernels.py` fills a `Columns` on the way in and reads a `Source` on the way out.

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

# Arrow's `binary` and `string` count bytes in 32 bits.
MAX_COLUMN_BYTES: Final = 2**31 - 1

# Headers there is room for once there is one; most records have none.
_FIRST_HEADERS: Final = 64


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
    def empty(cls, entries: int, size: int) -> BinaryColumn:
        """Make room for `entries` entries that take at most `size` bytes together."""
        offsets = _int32s(entries + 1)
        offsets[0] = 0
        return cls(offsets, _ones(entries), allocate(size))

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
            raise ValueError(
                f"{size} bytes of records are more than the {MAX_COLUMN_BYTES} that an Arrow batch "
                "holds; convert fewer batches at a time"
            )
        self.rows = rows
        self.offsets = _int64s(rows)
        self.timestamps = _int64s(rows)
        self.keys = BinaryColumn.empty(rows, size) if keys else None
        self.values = BinaryColumn.empty(rows, size) if values else None
        self.size = size
        self.headers = self.header_room = 0
        self.header_keys = BinaryColumn.empty(0, 0)
        self.header_values = BinaryColumn.empty(0, 0)
        self.header_offsets = None
        if headers:
            self.header_offsets = _int32s(rows + 1)
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
