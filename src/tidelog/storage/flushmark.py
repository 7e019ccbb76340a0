"""The flush mark of a log: how far it was flushed, so that damage there is not taken for a tear.

The recovery point says the same, durably, but moves only every `recovery_bytes`, because each move
costs syncs. Between the point and the last flush, bytes that rotted away would look like an append
that a crash tore. The mark closes that gap for one small write per flush:

- It is appended *after* the sync of a flush returned, so it is true whenever it is there.
- It is not synced itself. When a process dies it is exact; a loss of power may take back the last
  marks, up to what the operating system had not written yet, and then the recovery point remains.
- Before a suffix truncation takes away what it covers it is emptied, durably.

`log.flushed` is a row of entries, the last sound one counts: 8 bytes offset, 4 bytes CRC32C of it.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Offset
from tidelog.storage.disk import Disk

MARK_NAME: Final = "log.flushed"
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_ENTRY: Final = _OFFSET.size + _CRC.size
# The file begins anew past this size: one page, so that it is cheap to write and to read.
_MAX_SIZE: Final = 4096


class FlushMark:
    """The mark of one log. The file is not held open: a node has thousands of logs."""

    offset: Offset  # highest mark that may be in the file; NO_OFFSET if there is none

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{MARK_NAME}"
        self.offset = NO_OFFSET
        # Where the next entry goes. 0 after a start or a failure: then the file begins anew.
        self._size = 0

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
            if _CRC.unpack_from(data, at + _OFFSET.size)[0] != crc32c(offset):
                break
            self.offset = max(self.offset, Offset(_OFFSET.unpack(offset)[0]))

    def create(self) -> None:
        """Give the file its name; durable with the next sync of the directory."""
        self._disk.open(self._path, create=True).close()

    def put(self, offset: Offset) -> None:
        """Note that everything up to an offset is on the disk."""
        if offset <= self.offset:
            return
        entry = _OFFSET.pack(offset)
        size, self._size = self._size, 0
        self.offset = offset  # also if this fails: the entry may be there all the same
        with contextlib.closing(self._disk.open(self._path, create=True)) as file:
            if not 0 < size <= _MAX_SIZE - _ENTRY:
                file.truncate(0)
                size = 0
            file.append([entry, _CRC.pack(crc32c(entry))])
        self._size = size + _ENTRY

    def lower(self, offset: Offset) -> None:
        """Forget marks above an offset; durable when this returns."""
        if self.offset <= offset:
            return
        self._size = 0
        with contextlib.closing(self._disk.open(self._path, create=True)) as file:
            file.truncate(0)
            file.sync()
        self.offset = NO_OFFSET
