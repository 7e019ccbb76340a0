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

While chunks arrive the file has another name, which no other writer has; it gets its own after size
and checksum were found right and the bytes were synced. Partial files that a crash left are removed
when the directory is opened. A file whose header is damaged is set aside then, under another name:
it says nothing about the other files, and its owner decides whether it can do without.

Two threads come here: the loop, which asks, collects chunks and removes, and a worker, which
commits and loads. A writer is used by one of them at a time, but may be given up by the other:
whoever takes the file out of the writer decides what becomes of it, and the other finds nothing to
do.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from tidelog.records import NO_OFFSET, Buffer, Offset, Term
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog, LocalError, StorageError, is_unreadable

_MAGIC: Final = b"TLP1"
_HEADER: Final = struct.Struct(">4sIqqqII")
_SEALED_FROM: Final = 8  # magic and checksum are not covered by the checksum
_NAME: Final = re.compile(r"(\d+)-(\d+)-v1\.snapshot")
PARTIAL: Final = ".partial"
SET_ASIDE: Final = ".damaged"
_CHECK_CHUNK: Final = 1 << 20  # bytes read at once to check a content


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What identifies a snapshot and proves it whole."""

    offset: Offset  # last offset whose effect it contains
    term: Term  # of that offset
    size: int  # bytes of content
    crc: int  # CRC32C of the content
    metadata: bytes  # the owner's own: configuration, deltas


class SnapshotFiles:
    """The snapshots in one directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()  # never held while the disk works
        # By name; few, as old ones are removed. Replaced, not changed: others may be reading it.
        self._infos: dict[str, SnapshotInfo] = {}
        self._writers: dict[str, SnapshotWriter] = {}  # by name; those not committed or aborted
        self._begun = 0  # writers so far, for names of partial files
        self.set_aside: list[DamagedLog] = []  # what was found wrong with files while opening
        self._damaged: list[str] = []  # names of files that were set aside, now or before
        disk.make_directory(directory)
        for name in disk.list(directory):
            if name.endswith(PARTIAL):
                disk.remove(self._path(name))
            elif _NAME.fullmatch(name):
                self._find(name)
            elif name.endswith(SET_ASIDE):
                self._damaged.append(name)
        if self._infos or self.set_aside:
            # A process that was killed may have left names that are not durable yet.
            disk.sync_directory(directory)

    def _find(self, name: str) -> None:
        """Take note of a file; a damaged one is no reason to do without the others."""
        try:
            self._infos[name] = self._read_header(name)
        except DamagedLog as damage:
            self._disk.rename(self._path(name), self._path(name) + SET_ASIDE)
            self.set_aside.append(damage)
            self._damaged.append(name + SET_ASIDE)

    def latest(self, upto: Offset | None = None) -> SnapshotInfo | None:
        """Return the snapshot with the highest offset, or the highest at or below `upto`."""
        found = [info for info in self._infos.values() if upto is None or info.offset <= upto]
        return max(found, key=lambda info: (info.offset, info.term), default=None)

    def find(self, offset: Offset) -> SnapshotInfo | None:
        """Return the snapshot at exactly this offset, of the newest term if there are several."""
        found = [info for info in self._infos.values() if info.offset == offset]
        return max(found, key=lambda info: info.term, default=None)

    def create(self, info: SnapshotInfo) -> SnapshotWriter:
        """Begin a snapshot; one that is being written under the same name is aborted."""
        name = _name(info)
        with self._lock:
            before = self._writers.get(name)
            self._begun += 1
            partial = f"{name}.{self._begun}{PARTIAL}"
        if before is not None:
            before.abort()
        writer = SnapshotWriter(self, info, self._path(partial))
        with self._lock:
            self._writers[name] = writer
        return writer

    def write(self, info: SnapshotInfo, content: Buffer) -> None:
        """Write a snapshot whole; durable and visible when this returns."""
        writer = self.create(info)
        try:
            writer.write(content)
            writer.commit()
        except OSError:
            writer.abort()
            raise

    def check(self, info: SnapshotInfo) -> None:
        """Read the whole content; raise `DamagedLog` unless it is what was written. Any thread."""
        crc = 0
        with contextlib.closing(self._open(info)) as file:
            for position in range(0, info.size, _CHECK_CHUNK):
                size = min(_CHECK_CHUNK, info.size - position)
                crc = crc32c(self._read_exactly(file, info, position, size), crc)
        if crc != info.crc:
            raise self._wrong_content(info)

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
            raise self._wrong_content(info)
        return content

    def _wrong_content(self, info: SnapshotInfo) -> DamagedLog:
        path = self._path(_name(info))
        return DamagedLog(path, 0, info.offset, "the checksum does not fit the content")

    def remove_before(self, offset: Offset, *, but: SnapshotInfo | None = None) -> None:
        """Remove the snapshots below an offset, with one exception perhaps.

        Files that were set aside go with the others: something whole has taken their place.
        """
        for name, info in self._infos.items():
            if info.offset < offset and info != but:
                self._show(name, None)  # first, so that a reader knows why it finds no file
                self._disk.remove(self._path(name))
        while self._damaged:
            self._disk.remove(self._path(self._damaged.pop()))

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    def put_aside(self, info: SnapshotInfo) -> None:
        """Take a damaged file out of the way, if it is there; durable on return. Any thread."""
        path = self._path(_name(info))
        self._show(_name(info), None)
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(path, path + SET_ASIDE)
            self._damaged.append(_name(info) + SET_ASIDE)
        self._disk.sync_directory(self._directory)

    def names(self) -> frozenset[str]:
        """Return the names of the files that hold the snapshots."""
        return frozenset(self._infos)

    def missing(self, names: Collection[str], before: Collection[str]) -> DamagedLog | None:
        """Return which snapshot is not among the `names` of a listing.

        `before` is what `names` said before the directory was listed.
        """
        for name in before:
            info = self._infos.get(name)
            if info is not None and name not in names:
                return DamagedLog(self._path(name), 0, info.offset, "the file is missing")
        return None

    def _show(self, name: str, info: SnapshotInfo | None) -> None:
        """Let readers see another snapshot of this name, or none."""
        with self._lock:
            infos = {each: its for each, its in self._infos.items() if each != name}
            self._infos = infos if info is None else {**infos, name: info}

    def _take_file(self, writer: SnapshotWriter) -> File | None:
        """Take the file out of a writer, once."""
        with self._lock:
            file, writer.file = writer.file, None
            name = _name(writer.info)
            if self._writers.get(name) is writer:
                del self._writers[name]
        return file

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _open(self, info: SnapshotInfo) -> File:
        name = _name(info)
        self._check_listed(name, info)
        try:
            return self._disk.open(self._path(name))
        except FileNotFoundError as error:
            self._check_listed(name, info)  # it may have been removed just now
            raise DamagedLog(self._path(name), 0, info.offset, "the file is missing") from error

    def _check_listed(self, name: str, info: SnapshotInfo) -> None:
        if self._infos.get(name) != info:
            raise StorageError(f"there is no snapshot {name} here; it was removed or replaced")

    def _read_exactly(self, file: File, info: SnapshotInfo, position: int, size: int) -> bytes:
        path = self._path(_name(info))
        try:
            content = file.read(_HEADER.size + len(info.metadata) + position, size)
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise DamagedLog(path, position, info.offset, f"it cannot be read: {error}") from error
        if len(content) < size:
            raise DamagedLog(path, position + len(content), info.offset, "the file ends early")
        return content

    def _read_header(self, name: str) -> SnapshotInfo:
        path = self._path(name)
        with contextlib.closing(self._disk.open(path)) as file:
            try:
                header = file.read(0, _HEADER.size)
                if len(header) < _HEADER.size:
                    raise DamagedLog(path, len(header), NO_OFFSET, "the file ends in its header")
                magic, seal, offset, term, size, crc, length = _HEADER.unpack(header)
                metadata = file.read(_HEADER.size, length) if magic == _MAGIC else b""
            except OSError as error:
                if not is_unreadable(error) or isinstance(error, DamagedLog):
                    raise
                raise DamagedLog(path, 0, NO_OFFSET, f"it cannot be read: {error}") from error
            if magic != _MAGIC or crc32c(header[_SEALED_FROM:] + metadata) != seal:
                raise DamagedLog(path, 0, NO_OFFSET, "the header's checksum does not fit")
            if file.size() != _HEADER.size + length + size:
                raise DamagedLog(path, file.size(), Offset(offset), "the file has the wrong size")
        info = SnapshotInfo(Offset(offset), Term(term), size, crc, metadata)
        if _name(info) != name:
            raise DamagedLog(path, 0, info.offset, f"its header is that of {_name(info)}")
        return info


class SnapshotWriter:
    """A snapshot on its way in. Any failure gives it up for good."""

    info: SnapshotInfo
    position: int  # bytes of content taken so far: where the next chunk begins
    file: File | None  # None once it was committed or given up

    def __init__(self, files: SnapshotFiles, info: SnapshotInfo, partial: str) -> None:
        self._files = files
        self._disk = files._disk
        self._partial = partial
        self._crc = 0
        self.info = info
        self.position = 0
        self.file = self._disk.open(partial, create=True)
        rest = _HEADER.pack(
            _MAGIC, 0, info.offset, info.term, info.size, info.crc, len(info.metadata)
        )[_SEALED_FROM:]
        seal = crc32c(rest + info.metadata)
        self._append(_MAGIC, seal.to_bytes(4, "big"), rest, info.metadata)

    def write(self, chunk: Buffer) -> None:
        """Take the next piece of the content."""
        if self.position + len(chunk) > self.info.size:
            raise LocalError(
                f"{self.position + len(chunk)} bytes for a snapshot of {self.info.size}"
            )
        self._append(chunk)
        self._crc = crc32c(chunk, self._crc)
        self.position += len(chunk)

    def _append(self, *buffers: Buffer) -> None:
        file = self.file
        if file is None:
            raise self._given_up()
        try:
            file.append(buffers)
        except OSError:
            # A part may have been written: what follows would stand in the wrong place.
            self.abort()
            raise

    def commit(self) -> None:
        """Make the snapshot visible, if it is what it was announced to be; durable on return."""
        file = self._files._take_file(self)
        if file is None:
            raise self._given_up()
        try:
            with contextlib.closing(file):
                self._check_content()
                file.sync()
            self._rename()
        except OSError:
            self._remove_partial()
            raise

    def _check_content(self) -> None:
        info = self.info
        if (self.position, self._crc) != (info.size, info.crc):
            raise StorageError(
                f"the snapshot at offset {info.offset} arrived with {self.position} bytes, "
                f"checksum {self._crc:#010x}; {info.size} bytes, checksum {info.crc:#010x} were "
                "announced. Fetch it again."
            )

    def _rename(self) -> None:
        """Give the file its name. Nobody sees it under that name before it would stay there."""
        name = _name(self.info)
        if self._files._infos.get(name) != self.info:
            self._files._show(name, None)  # its file is about to be another one
        self._disk.rename(self._partial, self._files._path(name))
        self._disk.sync_directory(self._files._directory)
        self._files._show(name, self.info)

    def abort(self) -> None:
        """Give up; nothing of it stays. No effect on a writer that is being committed."""
        file = self._files._take_file(self)
        if file is not None:
            file.close()
            self._remove_partial()

    def _remove_partial(self) -> None:
        with contextlib.suppress(OSError):  # renamed already, or removed at the next start
            self._disk.remove(self._partial)

    def _given_up(self) -> StorageError:
        return StorageError(
            f"the snapshot at offset {self.info.offset} was given up for another try"
        )


def _name(info: SnapshotInfo) -> str:
    return f"{info.offset}-{info.term}-v1.snapshot"
