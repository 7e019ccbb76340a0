"""The sparse index of a segment: where to start reading for an offset or a time.

One entry for about every `interval` bytes: the base offset of a batch, its position in the file,
and the highest timestamp of all batches *before* it. Each column only grows, so a lookup is a
bisection and then a short walk along the batch headers.

The index is a cache. It is written beside the segment when the segment closes, without a sync, in
the byte order of this machine, with a checksum; whatever is missing, torn, foreign or does not
fit the segment is built again from the segment.

Only batches that clients wrote have a time: client data and table changes. Ours do not count.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_TIMESTAMP, Batch, BatchType, Offset
from tidelog.storage.disk import Disk

_MAGIC: Final = 0x544C_4958_0001  # "TLIX", version 1
_HEADER: Final = struct.Struct("=QqqqqqI")
_CRC: Final = struct.Struct("=I")


def time_of(batch: Batch) -> int:
    """Return the highest timestamp in the batch, NO_TIMESTAMP for batches that are not clients'."""
    if batch.type is BatchType.DATA and not batch.is_control:
        return batch.max_timestamp
    return batch.max_timestamp if batch.type is BatchType.CHANGELOG else NO_TIMESTAMP


class SparseIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("_due", "_offsets", "_positions", "_times", "interval", "max_time")

    interval: int  # bytes between entries
    max_time: int  # highest timestamp of the batches noted, NO_TIMESTAMP if none has one
    # The three columns, of equal length. Offsets and positions rise strictly, times never fall.
    _offsets: array[int]
    _positions: array[int]
    _times: array[int]
    _due: int  # a batch at or past this position gets an entry

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.max_time = NO_TIMESTAMP
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self._due = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, batch: Batch, position: int) -> None:
        """Take notice of the batch stored at `position`; batches come in order."""
        if position >= self._due:
            self._offsets.append(batch.base_offset)
            self._positions.append(position)
            self._times.append(self.max_time)
            self._due = position + self.interval
        self.max_time = max(self.max_time, time_of(batch))

    def position_for(self, offset: Offset) -> tuple[Offset, int]:
        """Return (base, position) of the last indexed batch at or below `offset`; or the first."""
        if not self._offsets:
            return offset, 0
        at = max(bisect_right(self._offsets, offset) - 1, 0)
        return Offset(self._offsets[at]), self._positions[at]

    def position_for_time(self, timestamp: int) -> int:
        """Return a position before which no batch reaches `timestamp`."""
        at = bisect_left(self._times, timestamp) - 1
        return self._positions[at] if at >= 0 else 0

    def cut(self, position: int) -> int:
        """Forget entries at or past `position`; return where to note batches from again."""
        keep = max(bisect_left(self._positions, position) - 1, 0)
        at = self._positions[keep] if keep < len(self._positions) else 0
        self.max_time = self._times[keep] if keep < len(self._times) else NO_TIMESTAMP
        for column in (self._offsets, self._positions, self._times):
            del column[keep:]
        self._due = at
        return at

    def encode(self, size: int, base: Offset, last: Offset) -> bytes:
        """Return the file for a segment of `size` bytes that covers [base, last]."""
        header = _HEADER.pack(
            _MAGIC, size, base, last, self.max_time, self.interval, len(self._offsets)
        )
        columns = (self._offsets, self._positions, self._times)
        body = header + b"".join(column.tobytes() for column in columns)
        return body + _CRC.pack(crc32c(body))

    def last_entry(self) -> tuple[Offset, int] | None:
        """Return (base, position) of the last indexed batch."""
        return (Offset(self._offsets[-1]), self._positions[-1]) if self._offsets else None

    @classmethod
    def decode(cls, data: bytes, size: int, base: Offset, last: Offset) -> SparseIndex | None:
        """Return the index in the file, None if it is not whole or is that of another segment."""
        if len(data) < _HEADER.size + _CRC.size:
            return None
        magic, of_size, of_base, of_last, max_time, interval, count = _HEADER.unpack_from(data)
        end = _HEADER.size + 3 * 8 * count
        if magic != _MAGIC or (of_size, of_base, of_last) != (size, base, last):
            return None
        if len(data) != end + _CRC.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
            return None
        index = cls(interval)
        index.max_time = max_time
        for number, column in enumerate((index._offsets, index._positions, index._times)):
            first = _HEADER.size + 8 * count * number
            column.frombytes(data[first : first + 8 * count])
        index._due = index._positions[-1] + interval if count else 0
        return index


def write_index(disk: Disk, path: str, content: bytes) -> None:
    """Store an index beside its segment. Not synced: a torn one is built again."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.append([content])
    finally:
        file.close()


def read_index(disk: Disk, path: str) -> bytes:
    """Return what is stored, b"" if nothing is or the disk cannot read it."""
    try:
        with contextlib.closing(disk.open(path)) as file:
            return file.read(0, file.size())
    except OSError:
        return b""
