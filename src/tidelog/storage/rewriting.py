"""The new file of a closed segment: written beside the old one, synced, then put in its place.

Compaction rewrites a segment so, a merge several at once. A crash at any moment leaves the old file
or the new one, both right; whatever still has its staging name is removed at the next open.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tidelog.records import Batch, BatchType, Offset
from tidelog.storage.disk import Disk, File
from tidelog.storage.index import SparseIndex, write_index
from tidelog.storage.sealed import STAGING
from tidelog.storage.segment import Segment

# Bytes of rewritten batches gathered before they are written.
_WRITE_CHUNK: Final = 1 << 20


class Rewriter:
    """Writes the new file of a segment, from the first batch on that is not as it was."""

    index: SparseIndex  # of what stays
    size: int  # bytes of it
    head: BatchType | None  # type of the first batch that stays; None: there is none yet

    def __init__(self, disk: Disk, segment: Segment, interval: int) -> None:
        self._disk = disk
        self._segment = segment
        self._file: File | None = None
        self._chunk: list[memoryview] = []
        self._gathered = 0
        self._committed = False
        self.index = SparseIndex(interval)
        self.size = 0
        self.head = None

    @property
    def changed(self) -> bool:
        """Whether a batch is not as it was."""
        return self._file is not None

    def put(self, batch: Batch, kept: Batch | None) -> None:
        """Take what stays of the next batch."""
        if kept is not batch and self._file is None:
            self.begin()
        if kept is None:
            return
        if self.head is None:
            self.head = kept.type
        self.index.note(kept, self.size)
        self.size += kept.size
        if self._file is not None:
            self._chunk.append(kept.data)
            self._gathered += kept.size
            if self._gathered >= _WRITE_CHUNK:
                self._write()

    def begin(self) -> None:
        """Create the file with the bytes that all stayed so far."""
        self._file = self._disk.open(self._segment.path + STAGING, create=True)
        self._file.truncate(0)
        with contextlib.closing(self._disk.open(self._segment.path)) as old:
            for position in range(0, self.size, _WRITE_CHUNK):
                self._file.append([old.read(position, min(_WRITE_CHUNK, self.size - position))])

    def _write(self) -> None:
        assert self._file is not None
        self._file.append(self._chunk)
        self._chunk = []
        self._gathered = 0

    def commit(self, last: Offset) -> None:
        """Make the new file durable under its staging name; it covers everything up to `last`."""
        assert self._file is not None
        self._write()
        self._file.sync()
        segment = self._segment
        content = self.index.encode(self.size, segment.base, last)
        write_index(self._disk, segment.index_path + STAGING, content)
        self._committed = True

    def close(self) -> None:
        """Close the file; remove it if it was not committed."""
        if self._file is not None:
            self._file.close()
            if not self._committed:
                discard(self._disk, self._segment)


def discard(disk: Disk, segment: Segment) -> None:
    """Remove the staging files of a segment; what stays is removed at the next open."""
    for path in (segment.path, segment.index_path):
        with contextlib.suppress(OSError):
            disk.remove(path + STAGING)


def swap(disk: Disk, segment: Segment, size: int, max_time: int) -> None:
    """Let the new file of a segment take its place; an error leaves the old one there."""
    with contextlib.suppress(OSError):  # an index that does not fit is built again
        disk.remove(segment.index_path)
    disk.rename(segment.path + STAGING, segment.path)
    segment.size = size
    segment.max_time = max_time
    segment.generation += 1
    with contextlib.suppress(OSError):
        disk.rename(segment.index_path + STAGING, segment.index_path)
