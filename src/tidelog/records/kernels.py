# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: nonecheck=False, cdivision=True
"""The loops over single records: columns from bytes and bytes from columns, each in one pass.

This file is ordinary Python, and Cython's pure mode compiles it as it stands: annotations such as
`cython.Py_ssize_t` give the C types of the compiled form, and `cython.compiled` tells the two forms
apart where C needs a pointer. Both give the same answers and the same errors.

A record is, with every number a zigzag varint but the attributes:

    length | attributes (one byte, unused) | timestamp delta | offset delta
    | key length (-1: none) | key | value length (-1: tombstone) | value
    | count of headers, each: key length | key | value length (-1: none) | value

Rules:
- Bytes are hostile. Every length is compared with the bytes that are left before it is added to a
  position, so nothing overflows in C and nothing is read past the end.
- A number that does not end in time leaves the cursor past its bound, and a read from there fails
  again: a chain of reads needs one check, where the first of them is used.
- What is written always has room: the caller counted the rows, and the bytes of a column cannot
  exceed those of the sections they come from. Only headers cannot be counted before, and grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.records.errors import CorruptBatch
from tidelog.records.types import Record

try:
    import cython
except ImportError:  # installed without the compiler: plain Python needs only the names
    from tidelog.records._plain import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidelog.records.batch import Batch
    from tidelog.records.columns import BinaryColumn, Columns, ListColumn, Source

_LOG_APPEND_BIT = cython.declare(cython.int, 1 << 3)
_MAX_INT64 = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_MIN_RECORD_SIZE = cython.declare(cython.Py_ssize_t, 7)  # seven fields of a byte or more


@cython.final
@cython.cclass
class Cursor:
    """A walk over the records of one unpacked section.

    `next_record`, `next_header` as often as `headers` says, `close_record`, and so on; `close`
    after the last. The fields describe what was read last. A size of -1 means null.
    """

    batch: Batch
    section: memoryview
    view = cython.declare("const unsigned char[::1]")  # keeps `data` alive
    data = cython.declare("const unsigned char *")

    position: cython.Py_ssize_t  # <= stop + 1
    stop: cython.Py_ssize_t  # where this record ends; <= end
    end: cython.Py_ssize_t  # where the section ends

    last_delta: cython.longlong  # the largest offset delta of the batch
    base_timestamp: cython.longlong
    earliest: cython.longlong  # the timestamp deltas that stay within 64 bits
    latest: cython.longlong
    append_timestamp: cython.longlong
    appended: cython.bint  # the broker gave all records one time

    offset_delta: cython.longlong  # grows with each record
    timestamp: cython.longlong
    key_start: cython.Py_ssize_t
    key_size: cython.Py_ssize_t
    value_start: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    headers: cython.Py_ssize_t

    header_key_start: cython.Py_ssize_t
    header_key_size: cython.Py_ssize_t
    header_value_start: cython.Py_ssize_t
    header_value_size: cython.Py_ssize_t

    def __init__(self, batch: Batch, section: memoryview) -> None:
        self.batch = batch
        self.section = section
        self.view = section
        if cython.compiled:
            self.data = cython.address(self.view[0])
        else:
            self.data = section
        self.position = 0
        self.end = self.stop = len(section)
        self.last_delta = batch.last_offset_delta
        self.base_timestamp = batch.base_timestamp
        self.earliest = -_MAX_INT64 - 1 - min(self.base_timestamp, 0)
        self.latest = _MAX_INT64 - max(self.base_timestamp, 0)
        self.append_timestamp = batch.max_timestamp
        attributes: cython.int = batch.attributes
        self.appended = attributes & _LOG_APPEND_BIT != 0
        self.offset_delta = -1
        count: cython.Py_ssize_t = batch.count
        if count > self.end // _MIN_RECORD_SIZE:
            self.fail("{number} records do not fit in {left} bytes", 0, count)

    @cython.cfunc
    @cython.exceptval(-1)
    def fail(self, reason: str, position: cython.Py_ssize_t, number: cython.longlong) -> cython.int:
        """Raise what is wrong, at which position of the unpacked records of which batch."""
        if self.position > self.stop:
            position, reason = self.stop, "a number that does not end where its record does"
        left = self.stop - self.position
        reason = reason.format(
            number=number, left=left, last=self.offset_delta, most=self.last_delta
        )
        raise CorruptBatch(position, f"{reason}, in the unpacked records of {self.batch}")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def number(self) -> cython.longlong:
        """Read a varint of at most 64 bits that ends before `stop`, or go past `stop`."""
        position: cython.Py_ssize_t = self.position
        byte: cython.uint
        half: cython.longlong
        if position < self.stop:
            byte = self.data[position]
            if byte < 0x80:
                self.position = position + 1
                half = byte >> 1
                return ~half if byte & 1 else half
        return self.long_number()

    @cython.cfunc
    @cython.exceptval(check=False)
    def long_number(self) -> cython.longlong:
        """Read a varint of any length."""
        position: cython.Py_ssize_t = self.position
        number: cython.ulonglong = 0
        half: cython.longlong
        byte: cython.ulonglong
        shift: cython.uint = 0
        while position < self.stop:
            byte = self.data[position]
            position += 1
            if byte < 0x80:
                if shift == 63 and byte > 1:
                    break
                number |= byte << shift
                half = number >> 1
                self.position = position
                return ~half if number & 1 else half
            if shift == 63:
                break
            number |= (byte & 0x7F) << shift
            shift += 7
        self.position = self.stop + 1
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2)
    def run(self) -> cython.Py_ssize_t:
        """Read a length and skip so many bytes of this record; return the length, -1 for null."""
        size: cython.longlong = self.number()
        if size > self.stop - self.position or size < -1:
            self.fail("a length of {number} where {left} bytes are left", self.position, size)
        if size > 0:
            self.position += size
        return size

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def next_record(self) -> cython.int:
        """Read a record up to its headers."""
        start: cython.Py_ssize_t = self.position
        delta: cython.longlong
        size: cython.longlong
        self.stop = self.end
        size = self.number()
        if size > self.stop - self.position or size < 0:
            self.fail("a record of {number} bytes where {left} are left", start, size)
        self.stop = self.position + size
        self.position += 1  # attributes
        delta = self.number()
        size = self.number()
        if self.position > self.stop or size <= self.offset_delta or size > self.last_delta:
            self.fail("offset delta {number} after {last}, where {most} is the last", start, size)
        self.offset_delta = size
        if self.appended:
            self.timestamp = self.append_timestamp
        elif delta < self.earliest or delta > self.latest:
            self.fail("timestamp delta {number} overflows", start, delta)
        else:
            self.timestamp = self.base_timestamp + delta
        self.key_size = self.run()
        self.key_start = self.position - self.key_size
        self.value_size = self.run()
        self.value_start = self.position - self.value_size
        size = self.number()
        if size > (self.stop - self.position) >> 1 or size < 0:  # a header takes two bytes
            self.fail("{number} headers where {left} bytes are left", self.position, size)
        self.headers = size
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def next_header(self) -> cython.int:
        """Read one header of this record."""
        index: cython.Py_ssize_t
        self.header_key_size = self.run()
        self.header_key_start = self.position - self.header_key_size
        if self.header_key_size < 0:
            self.fail("a header without a key", self.position, -1)
        for index in range(self.header_key_start, self.position):
            if self.data[index] >= 0x80:
                self.header_key()  # raises if that is no UTF-8
                break
        self.header_value_size = self.run()
        self.header_value_start = self.position - self.header_value_size
        return 0

    def header_key(self) -> str:
        """Return the key of the header that was read last."""
        start = self.header_key_start
        key = ""
        try:
            key = str(self.section[start : start + self.header_key_size], "utf-8")
        except UnicodeDecodeError:
            self.fail("a header key that is no UTF-8", start, 0)
        return key

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def close_record(self) -> cython.int:
        """Check that the record ended where it said."""
        if self.position != self.stop:
            self.fail("{left} bytes too many in a record", self.position, 0)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def close(self) -> cython.int:
        """Check that the section ended with its last record."""
        if self.position != self.end:
            self.stop = self.end
            self.fail("{left} bytes after the last record", self.position, 0)
        return 0


def read(batch: Batch, section: memoryview) -> Iterator[Record]:
    """Yield the records of one batch as objects."""
    cursor: Cursor = Cursor(batch, section)
    for _ in range(batch.count):
        cursor.next_record()
        key = value = None
        if cursor.key_size >= 0:
            key = bytes(section[cursor.key_start : cursor.key_start + cursor.key_size])
        if cursor.value_size >= 0:
            value = bytes(section[cursor.value_start : cursor.value_start + cursor.value_size])
        headers = []
        for _ in range(cursor.headers):
            cursor.next_header()
            content = None
            if cursor.header_value_size >= 0:
                start = cursor.header_value_start
                content = bytes(section[start : start + cursor.header_value_size])
            headers.append((cursor.header_key(), content))
        cursor.close_record()
        yield Record(cursor.offset_delta, cursor.timestamp, key, value, tuple(headers))
    cursor.close()


def survey(batch: Batch, section: memoryview) -> tuple[int, int, int]:
    """Check all records of one batch; return the least time, the largest, and how many lack a key.

    The batch has at least one record.
    """
    cursor: Cursor = Cursor(batch, section)
    left: cython.Py_ssize_t = batch.count
    headers: cython.Py_ssize_t
    earliest: cython.longlong = _MAX_INT64
    latest: cython.longlong = -_MAX_INT64 - 1
    without_key: cython.Py_ssize_t = 0
    while left:
        left -= 1
        cursor.next_record()
        earliest = min(earliest, cursor.timestamp)
        latest = max(latest, cursor.timestamp)
        if cursor.key_size < 0:
            without_key += 1
        headers = cursor.headers
        while headers:
            headers -= 1
            cursor.next_header()
        cursor.close_record()
    cursor.close()
    return earliest, latest, without_key


@cython.final
@cython.cclass
class _Writer:
    """Appends entries to a column that has room for them."""

    column: BinaryColumn
    offsets = cython.declare("int[::1]")
    validity = cython.declare("unsigned char[::1]")
    data = cython.declare("unsigned char[::1]")
    count: cython.Py_ssize_t
    used: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self, column: BinaryColumn) -> None:
        self.column = column
        self.bind()
        self.count = self.used = self.nulls = 0

    def bind(self) -> None:
        """Take the buffers of the column; again after it grew."""
        self.offsets = self.column.offsets
        self.validity = self.column.validity
        self.data = self.column.data

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.locals(source="const unsigned char *")
    def push(self, source: Any, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """Append the bytes of `source` from `start`, or a null if `size` is negative."""
        index: cython.Py_ssize_t = self.count
        if size > 0:
            if cython.compiled:
                memcpy(cython.address(self.data[self.used]), source + start, size)
            else:
                self.data[self.used : self.used + size] = source[start : start + size]
            self.used += size
        elif size < 0:
            self.validity[index >> 3] &= ~(1 << (index & 7))
            self.nulls += 1
        self.count = index + 1
        self.offsets[index + 1] = self.used


@cython.locals(offsets="long long[::1]", timestamps="long long[::1]", header_offsets="int[::1]")
def decode(batches: Sequence[Batch], sections: Sequence[memoryview], columns: Columns) -> None:
    """Write the records of all batches into columns that were made for them.

    A column that was not asked for is not copied, but its bytes are checked all the same.
    """
    want_keys: cython.bint = columns.keys is not None
    want_values: cython.bint = columns.values is not None
    want_headers: cython.bint = columns.header_offsets is not None
    header_keys: _Writer = _Writer(columns.header_keys)
    header_values: _Writer = _Writer(columns.header_values)
    keys: _Writer = header_keys if columns.keys is None else _Writer(columns.keys)
    values: _Writer = header_values if columns.values is None else _Writer(columns.values)
    header_offsets: Any = columns.header_offsets
    offsets = columns.offsets
    timestamps = columns.timestamps
    cursor: Cursor
    room: cython.Py_ssize_t = columns.header_room
    row: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    left: cython.Py_ssize_t
    base_offset: cython.longlong
    for batch, section in zip(batches, sections, strict=True):
        cursor = Cursor(batch, section)
        base_offset = batch.base_offset
        end = row + batch.count
        while row < end:
            cursor.next_record()
            offsets[row] = base_offset + cursor.offset_delta
            timestamps[row] = cursor.timestamp
            if want_keys:
                keys.push(cursor.data, cursor.key_start, cursor.key_size)
            if want_values:
                values.push(cursor.data, cursor.value_start, cursor.value_size)
            left = cursor.headers
            if left and want_headers and header_keys.count + left > room:
                columns.grow_headers(header_keys.count + left)
                room = columns.header_room
                header_keys.bind()
                header_values.bind()
            while left:
                left -= 1
                cursor.next_header()
                if want_headers:
                    header_keys.push(cursor.data, cursor.header_key_start, cursor.header_key_size)
                    header_values.push(
                        cursor.data, cursor.header_value_start, cursor.header_value_size
                    )
            row += 1
            if want_headers:
                header_offsets[row] = header_keys.count
            cursor.close_record()
        cursor.close()
    for writer in (keys, values, header_keys, header_values):
        writer.column.nulls = writer.nulls
    columns.headers = header_keys.count
    columns.fit()


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


@cython.locals(timestamps="const long long[::1]")
def encode(
    source: Source, limit: cython.Py_ssize_t, gap: cython.Py_ssize_t, buffer: memoryview
) -> list[tuple[int, int, int, int, int]]:
    """Write all rows into `buffer`: sections of at most `limit` bytes, after `gap` blank ones each.

    A record larger than that has a section of its own. Return for each section the row after its
    last, where it starts and stops in `buffer`, its first timestamp and its largest.
    """
    keys: _Reader = _Reader(source.keys)
    values: _Reader = _Reader(source.values)
    headers: _Reader = _Reader(source.headers)
    header_keys: _Reader = _Reader(source.header_keys)
    header_values: _Reader = _Reader(source.header_values)
    timestamps = source.timestamps
    output: _Output = _Output(buffer)
    room: cython.Py_ssize_t = len(buffer)
    rows: cython.Py_ssize_t = len(source.timestamps)
    row: cython.Py_ssize_t = 0
    first_row: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t = gap
    first: cython.longlong = 0
    largest: cython.longlong = 0
    earliest: cython.longlong = 0  # the timestamps whose distance to the first fits in 64 bits
    latest: cython.longlong = 0
    timestamp: cython.longlong
    key_size: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    count: cython.Py_ssize_t
    index: cython.Py_ssize_t
    size: cython.Py_ssize_t
    fits: cython.bint
    sections: list[tuple[int, int, int, int, int]] = []
    output.position = gap
    while row < rows:
        timestamp = timestamps[row]
        if row == first_row:
            first = largest = timestamp
            earliest = -_MAX_INT64 - 1 + max(timestamp, 0)
            latest = _MAX_INT64 + min(timestamp, 0)
        key_size = keys.find(row)
        value_size = values.find(row)
        count = max(headers.find(row), 0)
        size = _number_size(row - first_row) + _run_size(key_size) + _run_size(value_size)
        size += _number_size(count)
        for index in range(headers.at, headers.at + count):
            if header_keys.find(index) < 0:
                raise ValueError(f"a header of row {row} has no key; every header needs one")
            size += _run_size(header_keys.find(index)) + _run_size(header_values.find(index))
        fits = earliest <= timestamp <= latest
        if fits:
            size += 1 + _number_size(timestamp - first)
            fits = row == first_row or size + _number_size(size) <= limit - output.position + start
        if not fits:
            sections.append((row, start, output.position, first, largest))
            first_row = row
            output.position += gap
            start = output.position
            continue
        if size + _number_size(size) > room - output.position:
            raise IndexError(f"row {row} takes {size} bytes, more than its columns have")
        output.number(size)
        output.number(0)  # attributes
        output.number(timestamp - first)
        output.number(row - first_row)
        output.run(keys, key_size)
        output.run(values, value_size)
        output.number(count)
        for index in range(headers.at, headers.at + count):
            output.run(header_keys, header_keys.find(index))
            output.run(header_values, header_values.find(index))
        largest = max(largest, timestamp)
        row += 1
    if rows:
        sections.append((row, start, output.position, first, largest))
    return sections
