# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: nonecheck=False, cdivision=True
"""The loop over the batches of a buffer: which of them can be decoded as they lie.

Rules:
- This only ever decides that a batch is plain: data of clients, not compressed, all of it there,
  every field in range. Anything else is parsed by `Batch.parse`, which alone knows what a batch may
  be and says what is wrong with one that is none.
- What was read of a header is kept and not read again, so bytes that change meanwhile change
  records but not where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.records.batch import Batch

try:
    import cython
except ImportError:  # installed without the compiler: plain Python needs only the names
    from tidelog.records._plain import cython

if TYPE_CHECKING:
    from tidelog.records.columns import Spans

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_LENGTH_OVERHEAD = cython.declare(cython.Py_ssize_t, 12)
_MAGIC = cython.declare(cython.int, 2)
_LOG_APPEND_BIT = cython.declare(cython.int, 1 << 3)
# Whose times the records have, part of a transaction, a delete horizon: none of these changes how
# records are read.
_PLAIN_BITS = cython.declare(cython.int, 1 << 3 | 1 << 4 | 1 << 6)
_MAX_INT64 = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_MIN_RECORD_SIZE = cython.declare(cython.Py_ssize_t, 7)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.locals(data="const unsigned char[::1]")
def _field(data: Any, at: cython.Py_ssize_t, size: cython.int) -> cython.longlong:
    """Read a signed number of `size` bytes, the most significant first."""
    number: cython.longlong = data[at]
    index: cython.int
    if number >= 0x80:
        number -= 0x100
    for index in range(1, size):
        number = number * 0x100 + data[at + index]
    return number


@cython.locals(data="const unsigned char[::1]", fields="long long[::1]")
def scan(
    spans: Spans,
    limit: cython.Py_ssize_t,
    special: Callable[[Batch, int], memoryview | None],
) -> None:
    """Find the batches that fill the buffer of `spans`, without a look at their records.

    A batch that is not plain, or has more than `limit` bytes of records, goes to `special`, with
    its position; what is returned are its unpacked records, if they are wanted.
    """
    buffer = spans.buffer
    data = buffer
    fields = spans.fields
    end: cython.Py_ssize_t = len(buffer)
    position: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    width: cython.Py_ssize_t = spans.WIDTH
    room: cython.Py_ssize_t = len(spans.fields)
    size: cython.longlong
    base: cython.longlong
    delta: cython.longlong
    count: cython.longlong
    attributes: cython.longlong
    rows: cython.longlong = 0
    total: cython.longlong = 0
    plain: cython.bint
    while position < end:
        plain = False
        if end - position > _HEADER_SIZE:
            base = _field(data, position, 8)
            size = _field(data, position + 8, 4) + _LENGTH_OVERHEAD
            attributes = _field(data, position + 21, 2)
            delta = _field(data, position + 23, 4)
            count = _field(data, position + 57, 4)
            plain = (
                data[position + 16] == _MAGIC
                and attributes & ~_PLAIN_BITS == 0
                and _HEADER_SIZE < size <= end - position
                and size - _HEADER_SIZE <= limit
                and 0 < count <= (size - _HEADER_SIZE) // _MIN_RECORD_SIZE
                and count <= delta + 1
                and 0 <= base <= _MAX_INT64 - delta
                and _field(data, position + 12, 4) >= -1
            )
        if not plain:
            batch = Batch.parse(buffer, position)
            section = special(batch, position)
            if section is not None:
                spans.batches = at // width
                spans.add(batch, section)
                at += width
                fields = spans.fields
                room = len(spans.fields)
            position += batch.size
            continue
        if at + width > room:
            spans.grow()
            fields = spans.fields
            room = len(spans.fields)
        fields[at] = -1
        fields[at + 1] = position + _HEADER_SIZE
        fields[at + 2] = position + size
        fields[at + 3] = count
        fields[at + 4] = base
        fields[at + 5] = delta
        fields[at + 6] = _field(data, position + 27, 8)
        fields[at + 7] = _field(data, position + 35, 8)
        fields[at + 8] = attributes & _LOG_APPEND_BIT
        fields[at + 9] = _field(data, position + 17, 4) & 0xFFFF_FFFF
        at += width
        rows += count
        total += size - _HEADER_SIZE
        position += size
    spans.batches = at // width
    spans.rows += rows
    spans.size += total
