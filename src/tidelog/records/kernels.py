# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: nonecheck=False, cdivision=True
"""The loops over single records on the way in: from bytes to records and columns, in one pass.

This file is ordinary Python, and Cython's pure mode compiles it as it stands: annotations such as
`cython.Py_ssize_t` give the C types of the compiled form, and `cython.compiled` tells the two forms
apart where C needs a pointer. Both give the same answers and the same errors. The same is true of
`scanning.py`, which finds the batches in a buffer, and `framing.py`, which is the way out.

A record is, with every number a zigzag varint but the attributes:

    length | attributes (one byte, unused) | timestamp delta | offset delta
    | key length (-1: none) | key | value length (-1: tombstone) | value
    | count of headers, each: key length | key | value length (-1: none) | value

Rules:
- Bytes are hostile. Every length is compared with the bytes that are left before it is added to a
  position, so nothing overflows in C and nothing is read past the end.
- A number that does not end in time leaves the cursor past its bound, and a read from there fails
  again: a chain of reads needs one check, where the first of them is used.
- A record of short numbers and no headers, as most are, is read in a short way that is never sure
  of a fault. What it declines is read in the long way, which alone says what is wrong.
- What is written always has room: the caller counted the rows, and the bytes of a column cannot
  exceed those of the sections they come from. Only headers cannot be counted before, and grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from tidelog.records.batch import Batch, wrong_crc
from tidelog.records.errors import CorruptBatch
from tidelog.records.types import Record

try:
    import cython
except ImportError:  # installed without the compiler: plain Python needs only the names
    from tidelog.records._plain import cython

if cython.compiled:
    from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidelog.records.columns import BinaryColumn, Columns, Spans

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_CRC_START = cython.declare(cython.Py_ssize_t, 21)
_LOG_APPEND_BIT = cython.declare(cython.int, 1 << 3)
_MAX_INT64 = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_MIN_RECORD_SIZE = cython.declare(cython.Py_ssize_t, 7)  # seven fields of a byte or more
_TURN = cython.declare(cython.Py_ssize_t, 0xFFFF)  # records that are walked without a pause
_SHORT_FIELDS = cython.declare(cython.Py_ssize_t, 9)  # attributes and four numbers of two bytes
_SHORT_TAIL = cython.declare(cython.Py_ssize_t, 2)  # a value's size and the count of no headers
_NOTHING = memoryview(b"")
_READ_ONLY = cython.declare(cython.int, 0x100)  # PyBUF_READ


@cython.final
@cython.cclass
class Cursor:
    """A walk over the records of one unpacked section after the other.

    `open` or `open_plain`, then `next_record`, `next_header` as often as `headers` says,
    `close_record`, and so on; `close` after the last. The fields describe what was read last. A
    size of -1 means null, and positions count from where the records of the batch begin.
    """

    batch: Batch | None  # None: a plain one, whose records are in `section` as they are
    section: memoryview  # what `view` views
    start: cython.Py_ssize_t  # where the records begin in it
    view = cython.declare("const unsigned char[::1]")  # keeps `data` alive
    data = cython.declare("const unsigned char *")

    position: cython.Py_ssize_t  # <= stop + 1
    stop: cython.Py_ssize_t  # where this record ends; <= end
    end: cython.Py_ssize_t  # where the section ends

    count: cython.Py_ssize_t  # of records in the batch
    base_offset: cython.longlong
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

    def __init__(self) -> None:
        self.section = _NOTHING

    @cython.cfunc
    @cython.exceptval(-1)
    def open(self, batch: Batch, section: memoryview) -> cython.int:
        """Go to the first record of a batch that was unpacked."""
        attributes: cython.int = batch.attributes
        self.batch = batch
        self.count = batch.count
        self.base_offset = batch.base_offset
        self.last_delta = batch.last_offset_delta
        self.base_timestamp = batch.base_timestamp
        self.append_timestamp = batch.max_timestamp
        self.appended = attributes & _LOG_APPEND_BIT != 0
        return self.begin(section, 0, len(section))

    @cython.cfunc
    @cython.exceptval(-1)
    @cython.locals(fields="const long long[::1]")
    def open_plain(self, buffer: memoryview, fields: Any, at: cython.Py_ssize_t) -> cython.int:
        """Go to the first record of a plain batch, whose fields are there from `at`.

        The CRC is checked here and not before, since the bytes are in the nearest cache then.
        """
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t = fields[at + 2]
        actual: cython.longlong
        self.batch = None
        self.count = fields[at + 3]
        self.base_offset = fields[at + 4]
        self.last_delta = fields[at + 5]
        self.base_timestamp = fields[at + 6]
        self.append_timestamp = fields[at + 7]
        self.appended = fields[at + 8] != 0
        self.begin(buffer, fields[at + 1], stop)
        start = self.start - _HEADER_SIZE + _CRC_START
        if cython.compiled:  # in half the time that a slice of a memoryview takes
            covered = cython.cast("char *", cython.address(self.view[start]))
            actual = crc32c(PyMemoryView_FromMemory(covered, stop - start, _READ_ONLY))
        else:
            actual = crc32c(buffer[start:stop])
        if actual != fields[at + 9]:
            raise wrong_crc(self.start - _HEADER_SIZE, fields[at + 9], actual)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def begin(
        self, section: memoryview, start: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.int:
        """Take the bytes from `start` to `stop`; batches in one buffer take it only once."""
        if self.section is not section:
            self.section = section
            self.view = section
        if cython.compiled:
            self.data = cython.address(self.view[0]) + start
        else:
            self.data = section[start:stop]
        self.start = start
        self.position = 0
        self.end = self.stop = stop - start
        self.earliest = -_MAX_INT64 - 1 - min(self.base_timestamp, 0)
        self.latest = _MAX_INT64 - max(self.base_timestamp, 0)
        self.offset_delta = -1
        if self.count > self.end // _MIN_RECORD_SIZE:
            self.fail("{number} records do not fit in {left} bytes", 0, self.count)
        return 0

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
        batch = self.batch
        if batch is None:
            batch = Batch.parse(self.section, self.start - _HEADER_SIZE)
        raise CorruptBatch(position, f"{reason}, in the unpacked records of {batch}")

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
        if not self.short_record():
            self.long_record()
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    @cython.locals(data="const unsigned char *")
    def short_record(self) -> cython.bint:
        """Read a record whose numbers have two bytes at most and that has no headers, or decline.

        A processor guesses branches and so runs ahead of what it reads, which it cannot with sizes
        that it has to compute first; that is why each number is spelled out. Local variables spare
        it fields, which a C compiler reads again after every byte that is written somewhere.
        """
        data: Any = self.data
        position: cython.Py_ssize_t = self.position
        stop: cython.Py_ssize_t
        size: cython.uint
        time: cython.uint
        place: cython.uint
        key: cython.uint
        value: cython.uint
        delta: cython.longlong
        if self.end - position < _SHORT_FIELDS:
            return False
        size = data[position]
        position += 1
        if size >= 0x80:
            size += data[position] * 0x80 - 0x80
            position += 1
        stop = position + (size >> 1)
        position += 1  # attributes
        time = data[position]
        position += 1
        if time >= 0x80:
            time += data[position] * 0x80 - 0x80
            position += 1
        place = data[position]
        position += 1
        if place >= 0x80:
            place += data[position] * 0x80 - 0x80
            position += 1
        key = data[position]
        position += 1
        if key >= 0x80:
            key += data[position] * 0x80 - 0x80
            position += 1
        # Longer than two bytes, or less than nothing where only a key may be, by being null.
        if (size | time | place | key) >= 0x4000 or (size | place) & 1 or (key & 1 and key > 1):
            return False
        self.key_start = position
        self.key_size = -1
        if not key & 1:
            self.key_size = key >> 1
            position += key >> 1
        if stop > self.end or stop - position < _SHORT_TAIL:
            return False
        value = data[position]
        position += 1
        if value >= 0x80:
            value += data[position] * 0x80 - 0x80
            position += 1
        self.value_start = position
        self.value_size = -1
        if not value & 1:
            self.value_size = value >> 1
            position += value >> 1
        if value >= 0x4000 or (value & 1 and value > 1) or position != stop - 1 or data[position]:
            return False
        if place >> 1 <= self.offset_delta or place >> 1 > self.last_delta:
            return False
        delta = time >> 1
        if time & 1:
            delta = ~delta
        if self.appended:
            self.timestamp = self.append_timestamp
        elif delta < self.earliest or delta > self.latest:
            return False
        else:
            self.timestamp = self.base_timestamp + delta
        self.offset_delta = place >> 1
        self.headers = 0
        self.stop = self.position = stop
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def long_record(self) -> cython.int:
        """Read any record up to its headers, and say what is wrong with one that is none."""
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
            key = str(self.data[start : start + self.header_key_size], "utf-8")
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
    cursor: Cursor = Cursor()
    cursor.open(batch, section)
    for _ in range(batch.count):
        cursor.next_record()
        key = value = None
        if cursor.key_size >= 0:
            key = bytes(cursor.data[cursor.key_start : cursor.key_start + cursor.key_size])
        if cursor.value_size >= 0:
            value = bytes(cursor.data[cursor.value_start : cursor.value_start + cursor.value_size])
        headers = []
        for _ in range(cursor.headers):
            cursor.next_header()
            content = None
            if cursor.header_value_size >= 0:
                start = cursor.header_value_start
                content = bytes(cursor.data[start : start + cursor.header_value_size])
            headers.append((cursor.header_key(), content))
        cursor.close_record()
        yield Record(cursor.offset_delta, cursor.timestamp, key, value, tuple(headers))
    cursor.close()


def survey(batch: Batch, section: memoryview) -> tuple[int, int, int]:
    """Check all records of one batch; return the least time, the largest, and how many lack a key.

    The batch has at least one record.
    """
    cursor: Cursor = Cursor()
    left: cython.Py_ssize_t = batch.count
    headers: cython.Py_ssize_t
    earliest: cython.longlong = _MAX_INT64
    latest: cython.longlong = -_MAX_INT64 - 1
    without_key: cython.Py_ssize_t = 0
    cursor.open(batch, section)
    while left:
        left -= 1
        if not left & _TURN:
            with cython.nogil:
                pass  # other threads, one of which is the event loop's, get their turn
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
    """Writes entries into a column that has room for them."""

    column: BinaryColumn
    offsets = cython.declare("int[::1]")
    validity = cython.declare("unsigned char[::1]")
    data = cython.declare("unsigned char[::1]")
    room: cython.Py_ssize_t
    used: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self, column: BinaryColumn) -> None:
        self.column = column
        self.bind()
        self.used = self.nulls = 0

    def bind(self) -> None:
        """Take the buffers of the column; again after it grew."""
        self.offsets = self.column.offsets
        self.validity = self.column.validity
        self.data = self.column.data
        self.room = len(self.column.data)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def push(
        self,
        index: cython.Py_ssize_t,
        cursor: Cursor,
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.void:
        """Write the next entry: the bytes that a cursor found, or a null if `size` is negative."""
        used: cython.Py_ssize_t = self.used
        if size > 0:
            if not cython.compiled:
                self.data[used : used + size] = cursor.data[start : start + size]
            elif size <= 16 and used <= self.room - 16 and start <= cursor.end - 16:
                # A constant size is two instructions, and most keys are short. What is copied too
                # much is overwritten by the next entry, or cut off.
                memcpy(cython.address(self.data[used]), cursor.data + start, 16)
            else:
                memcpy(cython.address(self.data[used]), cursor.data + start, size)
            used += size
            self.used = used
        elif size < 0:
            self.validity[index >> 3] &= ~(1 << (index & 7))
            self.nulls += 1
        self.offsets[index + 1] = used


@cython.locals(
    fields="const long long[::1]",
    offsets="long long[::1]",
    timestamps="long long[::1]",
    header_offsets="int[::1]",
    keys=_Writer,
    values=_Writer,
    header_keys=_Writer,
    header_values=_Writer,
)
def decode(spans: Spans, columns: Columns) -> None:
    """Write the records of all batches into columns that were made for them.

    A column that was not asked for is not copied, but its bytes are checked all the same.
    """
    want_keys: cython.bint = columns.keys is not None
    want_values: cython.bint = columns.values is not None
    want_headers: cython.bint = columns.header_offsets is not None
    keys: Any = None if columns.keys is None else _Writer(columns.keys)
    values: Any = None if columns.values is None else _Writer(columns.values)
    header_keys: Any = None  # until there is one
    header_values: Any = None
    header_offsets: Any = columns.header_offsets
    offsets = columns.offsets
    timestamps = columns.timestamps
    buffer = spans.buffer
    fields = spans.fields
    batches: cython.Py_ssize_t = spans.batches
    width: cython.Py_ssize_t = spans.WIDTH
    index: cython.Py_ssize_t
    special: cython.Py_ssize_t
    cursor: Cursor = Cursor()
    room: cython.Py_ssize_t = columns.header_room
    row: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    left: cython.Py_ssize_t
    entry: cython.Py_ssize_t = 0
    for index in range(batches):
        special = fields[index * width]
        if special < 0:
            cursor.open_plain(buffer, fields, index * width)
        else:
            batch, section = spans.special[special]
            cursor.open(batch, section)
        end = row + cursor.count
        while row < end:
            cursor.next_record()
            offsets[row] = cursor.base_offset + cursor.offset_delta
            timestamps[row] = cursor.timestamp
            if want_keys:
                keys.push(row, cursor, cursor.key_start, cursor.key_size)
            if want_values:
                values.push(row, cursor, cursor.value_start, cursor.value_size)
            left = cursor.headers
            if left and want_headers and entry + left > room:
                columns.grow_headers(entry + left)
                room = columns.header_room
                if header_keys is None:
                    header_keys = _Writer(columns.header_keys)
                    header_values = _Writer(columns.header_values)
                header_keys.bind()
                header_values.bind()
            while left:
                left -= 1
                cursor.next_header()
                if want_headers:
                    header_keys.push(entry, cursor, cursor.header_key_start, cursor.header_key_size)
                    header_values.push(
                        entry, cursor, cursor.header_value_start, cursor.header_value_size
                    )
                    entry += 1
            row += 1
            if want_headers:
                header_offsets[row] = entry
            cursor.close_record()
        cursor.close()
    for writer in (keys, values, header_keys, header_values):
        if writer is not None:
            writer.column.nulls = writer.nulls
    columns.headers = entry
    columns.fit()
