"""Snapshot files of one partition: written in chunks, checked, and visible only when whole.

`<offset>-<term>-v1.snapshot`:

    position  size  field
           0     4  magic
           4     4  CRC32C of the rest of the header and the metadata
           8     8  offset
          16     8  term
          24     8  size of the content
          32     4  CRC32C of the content
          36     4  size of the metadata
          40        metadata, then the content

While chunks arrive the file has another name; it gets its own after size and checksum were found
right and the bytes were synced. Partial files that a crash left are removed when the directory is
opened.
"""

from __future__ import annotations

import contextlib
import re
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Buffer, Offset, Term
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog, LocalError, StorageError

_MAGIC: Final = b"TLP1"
_HEADER: Final = struct.Struct(">4sIqqqII")
_SEALED_FROM: Final = 8  # magic and checksum are not covered by the checksum
_NAME: Final = re.compile(r"(\d+)-(\d+)-v1\.snapshot")
PARTIAL: Final = ".partial"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What identifies a snapshot and proves it whole."""

    offset: Offset  # last offset whose effect it contains
    term: Term  # of that offset
    size: int  # bytes of content
    crc: int  # CRC32C of the content
    metadata: bytes  # the owner's own: configuration, deltas


class SnapshotFiles:
    """The snapshots in one directory. One thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._infos: dict[str, SnapshotInfo] = {}  # by name; few, as old ones are removed
        self._writers: dict[str, SnapshotWriter] = {}  # by name; those not committed or aborted
        disk.make_directory(directory)
        for name in disk.list(directory):
            if name.endswith(PARTIAL):
                disk.remove(self._path(name))
            elif _NAME.fullmatch(name):
                self._infos[name] = self._read_header(name)

    def latest(self) -> SnapshotInfo | None:
        """Return the snapshot with the highest offset."""
        return max(self._infos.values(), key=lambda info: (info.offset, info.term), default=None)

    def find(self, offset: Offset) -> SnapshotInfo | None:
        """Return the snapshot at exactly this offset, of the newest term if there are several."""
        found = [info for info in self._infos.values() if info.offset == offset]
        return max(found, key=lambda info: info.term, default=None)

    def create(self, info: SnapshotInfo) -> SnapshotWriter:
        """Begin a snapshot; one that is being written under the same name is aborted."""
        name = _name(info)
        if name in self._writers:
            self._writers[name].abort()
        self._writers[name] = SnapshotWriter(self, info)
        return self._writers[name]

    def read(self, info: SnapshotInfo, position: int, size: int) -> bytes:
        """Return a piece of the content, unchecked: whoever collects them checks the whole."""
        end = min(position + size, info.size)
        if not 0 <= position <= end:
            raise LocalError(f"position {position} is outside a snapshot of {info.size} bytes")
        with contextlib.closing(self._open(info)) as file:
            return self._read_exactly(file, info, position, end - position)

    def load(self, info: SnapshotInfo) -> bytes:
        """Return the whole content, checked."""
        with contextlib.closing(self._open(info)) as file:
            content = self._read_exactly(file, info, 0, info.size)
        if crc32c(content) != info.crc:
            path = self._path(_name(info))
            raise DamagedLog(path, 0, info.offset, "the checksum does not fit the content")
        return content

    def remove_before(self, offset: Offset) -> None:
        """Remove the snapshots below an offset."""
        for name, info in list(self._infos.items()):
            if info.offset < offset:
                self._disk.remove(self._path(name))
                del self._infos[name]

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _open(self, info: SnapshotInfo) -> File:
        name = _name(info)
        if self._infos.get(name) != info:
            raise StorageError(f"there is no snapshot {name} here; it was removed or replaced")
        return self._disk.open(self._path(name))

    def _read_exactly(self, file: File, info: SnapshotInfo, position: int, size: int) -> bytes:
        content = file.read(_HEADER.size + len(info.metadata) + position, size)
        if len(content) < size:
            path = self._path(_name(info))
            raise DamagedLog(path, position + len(content), info.offset, "the file ends early")
        return content

    def _read_header(self, name: str) -> SnapshotInfo:
        path = self._path(name)
        with contextlib.closing(self._disk.open(path)) as file:
            header = file.read(0, _HEADER.size)
            if len(header) < _HEADER.size:
                raise DamagedLog(path, len(header), NO_OFFSET, "the file ends in its header")
            magic, seal, offset, term, size, crc, length = _HEADER.unpack(header)
            metadata = file.read(_HEADER.size, length) if magic == _MAGIC else b""
            if magic != _MAGIC or crc32c(header[_SEALED_FROM:] + metadata) != seal:
                raise DamagedLog(path, 0, NO_OFFSET, "the header's checksum does not fit")
            if file.size() != _HEADER.size + length + size:
                raise DamagedLog(path, file.size(), Offset(offset), "the file has the wrong size")
        return SnapshotInfo(Offset(offset), Term(term), size, crc, metadata)


class SnapshotWriter:
    """A snapshot on its way in."""

    position: int  # bytes of content taken so far: where the next chunk begins

    def __init__(self, files: SnapshotFiles, info: SnapshotInfo) -> None:
        self._files = files
        self._info = info
        self._partial = files._path(_name(info) + PARTIAL)
        self._crc = 0
        self.position = 0
        self._file: File | None = files._disk.open(self._partial, create=True)
        rest = _HEADER.pack(
            _MAGIC, 0, info.offset, info.term, info.size, info.crc, len(info.metadata)
        )[_SEALED_FROM:]
        seal = crc32c(rest + info.metadata)
        try:
            self._file.truncate(0)
            self._file.append([_MAGIC, seal.to_bytes(4, "big"), rest, info.metadata])
        except OSError:
            self.abort()
            raise

    def write(self, chunk: Buffer) -> None:
        """Take the next piece of the content."""
        if self.position + len(chunk) > self._info.size:
            raise LocalError(
                f"{self.position + len(chunk)} bytes for a snapshot of {self._info.size}"
            )
        self._writing().append([chunk])
        self._crc = crc32c(chunk, self._crc)
        self.position += len(chunk)

    def commit(self) -> None:
        """Make the snapshot visible, if it is what it was announced to be; durable on return."""
        file = self._writing()
        if (self.position, self._crc) != (self._info.size, self._info.crc):
            self.abort()
            raise StorageError(
                f"the snapshot at offset {self._info.offset} arrived with {self.position} bytes, "
                f"checksum {self._crc:#010x}; {self._info.size} bytes, checksum "
                f"{self._info.crc:#010x} were announced. Fetch it again."
            )
        file.sync()
        self._let_go(file)
        name = _name(self._info)
        self._files._disk.rename(self._partial, self._files._path(name))
        self._files._disk.sync_directory(self._files._directory)
        self._files._infos[name] = self._info

    def abort(self) -> None:
        """Give up; nothing of it stays."""
        if self._file is not None:
            self._let_go(self._file)
            with contextlib.suppress(OSError):  # what stays is removed at the next start
                self._files._disk.remove(self._partial)

    def _let_go(self, file: File) -> None:
        self._file = None
        self._files._writers.pop(_name(self._info), None)
        file.close()

    def _writing(self) -> File:
        if self._file is None:
            raise StorageError(
                f"the snapshot at offset {self._info.offset} was given up for another try"
            )
        return self._file


def _name(info: SnapshotInfo) -> str:
    return f"{info.offset}-{info.term}-v1.snapshot"
