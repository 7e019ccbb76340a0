# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: nonecheck=False, cdivision=True
"""The loop over rows on the way out: from columns to whole batches, in one pass.

As in `kernels.py`, which is the way in, one source runs compiled and as plain Python, and gives the
same bytes and the same errors. What a record looks like is told there, and a header in `batch.py`.

Rules:
- Columns come from somebody else, and none of their offsets is believed.
- Every row is measured before it is written, against the room that is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

try:
    import cython
except ImportError:  # installed without the compiler: plain Python needs only the names
    from tidelog.records._plain import cython

if cython.compiled:
    from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidelog.records.columns import BinaryColumn, ListColumn, Source

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_LENGTH_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)
_CRC_START = cython.declare(cython.Py_ssize_t, 21)
_MAX_INT32 = cython.declare(cython.longlong, 0x7FFF_FFFF)
_MAX_INT64 = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_READ_ONLY = cython.declare(cython.int, 0x100)  # PyBUF_READ


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_size(number: cython.longlong) -> cython.Py_ssize_t:
    rest: cython.ulonglong = number if number >= 0 else ~number
    size: cython.Py_ssize_t = 1
    rest >>= 6
    while rest:
        size += 1
        rest >>= 7
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _run_size(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return size + _number_size(size) if size > 0 else 1


@cython.final
@cython.cclass
class _Reader:
    """Finds entries of a column that somebody else made, and believes none of its offsets."""

    offsets = cython.declare("const int[::1]")
    validity = cython.declare("const unsigned char[::1]")
    data = cython.declare("const unsigned char[::1]")
    present: cython.bint  # without a column, every entry is null
    nullable: cython.bint
    start: cython.Py_ssize_t
    entries: cython.Py_ssize_t
    end: cython.Py_ssize_t
    at: cython.Py_ssize_t  # where the entry that `find` found begins in `data`

    def __init__(self, column: BinaryColumn | ListColumn | None) -> None:
        self.present = column is not None
        self.nullable = column is not None and column.validity is not None
        self.at = 0
        if column is not None:
            self.start = column.start
            self.entries = len(column.offsets) - 1 - column.start
            self.end = column.end
            self.offsets = column.offsets
            self.data = column.data
            self.validity = column.validity

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2)
    def find(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Go to an entry and return its size, -1 if it is null."""
        slot: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        if not self.present:
            return -1
        slot = self.start + index
        if index < 0 or index >= self.entries:
            raise IndexError(f"entry {index} of a column of {self.entries}")
        if self.nullable and not (self.validity[slot >> 3] >> (slot & 7)) & 1:
            return -1
        self.at = self.offsets[slot]
        stop = self.offsets[slot + 1]
        if self.at < 0 or stop < self.at or stop > self.end:
            raise IndexError(f"entry {index} of a column is outside the column's bytes")
        return stop - self.at


@cython.final
@cython.cclass
class _Output:
    """Writes fields into a buffer; whether there is room was decided before."""

    view = cython.declare("unsigned char[::1]")
    position: cython.Py_ssize_t

    def __init__(self, buffer: memoryview) -> None:
        self.view = buffer
        self.position = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def number(self, number: cython.longlong) -> cython.void:
        """Write a zigzag varint."""
        rest: cython.ulonglong = number if number >= 0 else ~number
        position: cython.Py_ssize_t = self.position
        low: cython.uint = 0 if number >= 0 else 1
        low |= (rest & 0x3F) << 1
        rest >>= 6
        while rest:
            self.view[position] = low | 0x80
            position += 1
            low = rest & 0x7F
            rest >>= 7
        self.view[position] = low
        self.position = position + 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def field(
        self, at: cython.Py_ssize_t, size: cython.int, number: cython.longlong
    ) -> cython.void:
        """Write a number of `size` bytes at `at`, the most significant first."""
        while size:
            size -= 1
            self.view[at + size] = number & 0xFF
            number >>= 8

    @cython.cfunc
    @cython.exceptval(-1)
    def crc(self, at: cython.Py_ssize_t, start: cython.Py_ssize_t) -> cython.int:
        """Write at `at` the CRC of what was written from `start`."""
        crc: cython.longlong
        if cython.compiled:
            covered = cython.cast("char *", cython.address(self.view[start]))
            crc = crc32c(PyMemoryView_FromMemory(covered, self.position - start, _READ_ONLY))
        else:
            crc = crc32c(self.view[start : self.position])
        self.field(at, 4, crc)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def run(self, source: _Reader, size: cython.Py_ssize_t) -> cython.void:
        """Write the entry that `source` found, or a null."""
        self.number(size)
        if size <= 0:
            return
        if cython.compiled:
            memcpy(
                cython.address(self.view[self.position]),
                cython.address(source.data[source.at]),
                size,
            )
        else:
            start, stop = self.position, self.position + size
            self.view[start:stop] = source.data[source.at : source.at + size]
        self.position += size


@cython.final
@cython.cclass
class _Frame:
    """The batch that is being written: where it began, and what its header will say."""

    output: _Output
    template = cython.declare("const unsigned char[::1]")
    sequence: cython.longlong  # of the first record; -1 if records have none
    start: cython.Py_ssize_t  # of the header
    first_row: cython.Py_ssize_t
    base: cython.longlong  # the time of the first record
    largest: cython.longlong
    earliest: cython.longlong  # the times whose distance to the first fits in 64 bits
    latest: cython.longlong

    def __init__(self, output: _Output, template: memoryview, sequence: int) -> None:
        self.output = output
        self.template = template
        self.sequence = sequence

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def open(self, row: cython.Py_ssize_t, timestamp: cython.longlong) -> cython.void:
        """Leave room for a header; the batch begins with this row."""
        self.start = self.output.position
        self.output.position += _HEADER_SIZE
        self.first_row = row
        self.base = self.largest = timestamp
        self.earliest = -_MAX_INT64 - 1 + max(timestamp, 0)
        self.latest = _MAX_INT64 + min(timestamp, 0)

    @cython.cfunc
    @cython.exceptval(-1)
    def close(self, row: cython.Py_ssize_t) -> cython.int:
        """Write the header of a batch that ends before this row."""
        output: _Output = self.output
        start: cython.Py_ssize_t = self.start
        size: cython.longlong = output.position - start
        count: cython.Py_ssize_t = row - self.first_row
        index: cython.Py_ssize_t
        if size - _LENGTH_OVERHEAD > _MAX_INT32:
            raise ValueError(
                f"row {self.first_row} makes a batch of {size} bytes, more than a batch can be"
            )
        for index in range(_HEADER_SIZE):
            output.view[start + index] = self.template[index]
        output.field(start + 8, 4, size - _LENGTH_OVERHEAD)
        output.field(start + 23, 4, count - 1)
        output.field(start + 27, 8, self.base)
        output.field(start + 35, 8, self.largest)
        output.field(start + 53, 4, self.sequence)
        output.field(start + 57, 4, count)
        output.crc(start + 17, start + _CRC_START)
        if self.sequence >= 0:
            self.sequence = (self.sequence + count) & _MAX_INT32  # Kafka wraps to 0 too
        return 0


@cython.locals(timestamps="const long long[::1]")
def encode(
    source: Source,
    limit: cython.Py_ssize_t,
    template: memoryview,
    sequence: cython.longlong,
    buffer: memoryview,
) -> int:
    """Write all rows into `buffer` as batches of at most `limit` bytes; return where they end.

    A record larger than that has a batch of its own. Headers are as `template`, a header, but for
    size, count, times, CRC and sequence.
    """
    keys: _Reader = _Reader(source.keys)
    values: _Reader = _Reader(source.values)
    headers: _Reader = _Reader(source.headers)
    header_keys: _Reader = _Reader(source.header_keys)
    header_values: _Reader = _Reader(source.header_values)
    timestamps = source.timestamps
    output: _Output = _Output(buffer)
    frame: _Frame = _Frame(output, template, sequence)
    room: cython.Py_ssize_t = len(buffer)
    rows: cython.Py_ssize_t = len(source.timestamps)
    row: cython.Py_ssize_t
    timestamp: cython.longlong
    key_size: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    fixed: cython.Py_ssize_t
    count: cython.Py_ssize_t
    index: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for row in range(rows):
        timestamp = timestamps[row]
        key_size = keys.find(row)
        value_size = values.find(row)
        count = max(headers.find(row), 0)
        # Attributes, key, value, count of headers and headers are the same in every batch.
        fixed = 1 + _run_size(key_size) + _run_size(value_size) + _number_size(count)
        for index in range(headers.at, headers.at + count):
            if header_keys.find(index) < 0:
                raise ValueError(f"a header of row {row} has no key; every header needs one")
            fixed += _run_size(header_keys.find(index)) + _run_size(header_values.find(index))
        if row == 0:
            frame.open(row, timestamp)
        size = fixed + _number_size(row - frame.first_row)
        if frame.earliest <= timestamp <= frame.latest:
            size += _number_size(timestamp - frame.base)
        else:
            size = -1
        if row > frame.first_row and (
            size < 0 or size + _number_size(size) > limit - output.position + frame.start
        ):
            frame.close(row)
            frame.open(row, timestamp)
            size = fixed + 2
        if size + _number_size(size) > room - output.position:
            raise IndexError(f"row {row} takes {size} bytes, more than its columns have")
        output.number(size)
        output.number(0)  # attributes
        output.number(timestamp - frame.base)
        output.number(row - frame.first_row)
        output.run(keys, key_size)
        output.run(values, value_size)
        output.number(count)
        for index in range(headers.at, headers.at + count):
            output.run(header_keys, header_keys.find(index))
            output.run(header_values, header_values.find(index))
        frame.largest = max(frame.largest, timestamp)
    if rows:
        frame.close(rows)
    return output.position
