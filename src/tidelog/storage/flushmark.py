"""The flush mark of a log: how far it was flushed, so that damage there is not taken for a tear.

The recovery point says the same, durably, but moves only every `recovery_bytes`, because each move
costs syncs. Between the point and the last flush, bytes that rotted away would look like an append
that a crash tore. The mark closes that gap for one small write per flush:

- It is appended *after* the sync of a flush returned, so it is true whenever it is there.
- It is not synced itself. When a process dies it is exact; a loss of power may take back the last
  marks, up to what the operating system had not written yet, and then the recovery point remains.
- Before a suffix truncation takes away what it covers it is lowered to what stays, durably.

`log.flushed` is a ring of entries, of which the highest sound one counts: 8 bytes offset, 4 bytes
CRC32C of it. It is written in place, so that a loss of power takes back no mark that the disk has.

A process has thousands of logs, and few of them are written to at a time. The files of those few
are held open (`OpenMarks`), because opening one takes longer than writing to it.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Offset
from tidelog.storage.disk import Disk, File
from tidelog.storage.handles import HandlePool

MARK_NAME: Final = "log.flushed"
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_ENTRY: Final = _OFFSET.size + _CRC.size
# The ring ends before this size: one page, so that it is cheap to write and to read.
_MAX_SIZE: Final = 4096
# Mark files held open: an eighth of the 1,024 descriptors a process has by default.
MAX_OPEN: Final = 128


class OpenMarks:
    """The files that were written last, by mark. Whoever uses one takes it out meanwhile.

    Logs are flushed in one thread, cut and closed in another.
    """

    def __init__(self, limit: int = MAX_OPEN) -> None:
        self._pool: HandlePool[File] = HandlePool(limit)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pool)

    def limit(self, limit: int) -> None:
        """Hold no more files than this from now on."""
        with self._lock:
            self._pool.limit(limit)

    def take(self, key: str) -> File | None:
        with self._lock:
            return self._pool.take(key)

    def give(self, key: str, file: File) -> None:
        """Keep a file until it is taken, or others were used more lately."""
        with self._lock:
            self._pool.put(key, file)


OPEN_MARKS: Final = OpenMarks()  # of this process, as its descriptors are
_numbers = itertools.count()  # so that no two marks of a process have the same key


class FlushMark:
    """The mark of one log."""

    offset: Offset  # highest mark that may be in the file; NO_OFFSET if there is none

    def __init__(self, disk: Disk, directory: str, files: OpenMarks = OPEN_MARKS) -> None:
        self._disk = disk
        self._path = f"{directory}/{MARK_NAME}"
        self._files = files
        self._key = str(next(_numbers))
        self._closed = False
        self.offset = NO_OFFSET
        # Where the next entry goes, and how long the file is; not known after a start or a failure.
        self._place = 0
        self._size: int | None = None

    def load(self) -> None:
        """Read what the last process left."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        with contextlib.closing(file):
            data = file.read(0, _MAX_SIZE + _ENTRY)
        for at in range(0, len(data) - _ENTRY + 1, _ENTRY):
            offset = data[at : at + _OFFSET.size]
            if _CRC.unpack_from(data, at + _OFFSET.size)[0] == crc32c(offset):
                self.offset = max(self.offset, Offset(_OFFSET.unpack(offset)[0]))

    def create(self) -> None:
        """Give the file its name; durable with the next sync of the directory."""
        self._disk.open(self._path, create=True).close()

    def put(self, offset: Offset) -> None:
        """Note that everything up to an offset is on the disk."""
        if offset <= self.offset:
            return
        place, size = self._place, self._size
        self._place, self._size = 0, None
        self.offset = offset  # also if this fails: the entry may be there all the same
        file = self._take()
        try:
            if size is None:
                size = file.size()
            if place + _ENTRY > _MAX_SIZE:
                place = 0
            if place + _ENTRY > size:
                file.truncate(place)  # what is left of an entry
                file.append((_entry(offset),))
                size = place + _ENTRY
            else:
                file.write(place, _entry(offset))
        except BaseException:
            file.close()
            raise
        self._give(file)
        self._place, self._size = place + _ENTRY, size

    def lower(self, offset: Offset) -> None:
        """Forget marks above an offset, below which all is on the disk; durable on return."""
        if self.offset <= offset:
            return
        self._place, self._size = 0, None
        file = self._take()
        try:
            file.truncate(0)
            if offset > NO_OFFSET:
                file.append((_entry(offset),))
            file.sync()
        except BaseException:
            file.close()
            raise
        self._give(file)
        self.offset = offset

    def close(self) -> None:
        """Let go of the file; a flush that ends later may still write to it."""
        self._closed = True
        file = self._files.take(self._key)
        if file is not None:
            file.close()

    def _take(self) -> File:
        return self._files.take(self._key) or self._disk.open(self._path, create=True)

    def _give(self, file: File) -> None:
        """Put a file back that was used without a fault."""
        if self._closed:
            file.close()
        else:
            self._files.give(self._key, file)


def _entry(offset: Offset) -> bytes:
    data = _OFFSET.pack(offset)
    return data + _CRC.pack(crc32c(data))
