"""The file system as this room uses it: two small protocols, and the real one.

Everything here runs on a `Disk` that is an argument, so that the simulator can lose, tear and
refuse writes. What a crash may do is part of the protocol:

- Bytes appended or written over and truncations made since the last `File.sync` may be lost: what
  survives is the state after a prefix of those calls, the last of them torn anywhere. (On a real
  disk a write in place reaches whole sectors or not, in any order: whoever writes in place more
  than one sector at once must expect that.)
- Names (creation, rename, removal) changed since the last `sync_directory` may or may not have
  changed, each on its own. `make_directory` is durable when it returns.
- A file renamed over or removed stays readable through the `File`s that are open on it.

Paths are relative to the disk's root and use "/". `OSError` is the only error that leaves here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from tidelog.records import Buffer

# `list` is the name of a method below, and would hide the type.
Names: TypeAlias = list[str]

# Buffers one system call may take; Linux says 1024.
MAX_BUFFERS: Final = 1024


class File(Protocol):
    """An open file: appended at its end, read anywhere."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all bytes at the end and return their number, or raise with any part written."""

    def write(self, position: int, data: Buffer) -> None:
        """Write over bytes that are there; the file does not grow."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`; fewer only where the file ends."""

    def sync(self) -> None:
        """Return once every byte written so far would survive a crash. Any thread may call."""

    def truncate(self, size: int) -> None:
        """Cut the file; durable with the next `sync`."""

    def size(self) -> int:
        """Bytes in the file now."""

    def close(self) -> None:
        """Give the handle back; nothing is synced."""


class Disk(Protocol):
    """A tree of files below one root."""

    def open(self, path: str, create: bool = False) -> File:
        """Open a file for reading and appending; without `create` it must exist."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of that name."""

    def list(self, directory: str) -> Names:
        """Names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; no error if it exists."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had it; durable with `sync_directory`."""

    def remove(self, path: str) -> None:
        """Remove a file's name; durable with `sync_directory`."""

    def sync_directory(self, path: str) -> None:
        """Return once every change of a name in this directory would survive a crash."""


class RealFile:
    """A file of the operating system. One writer; readers and `sync` may be on other threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Where the next append goes; the writer is the only one that moves the end.
        self._end = os.fstat(descriptor).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all bytes at the end, in one call unless the kernel takes fewer."""
        total = sum(map(len, buffers))
        if len(buffers) <= MAX_BUFFERS:
            written = os.pwritev(self._descriptor, buffers, self._end)
            self._end += written
            if written == total:
                return total
            self._append_rest(buffers, written)
            return total
        for first in range(0, len(buffers), MAX_BUFFERS):
            self.append(buffers[first : first + MAX_BUFFERS])
        return total

    def _append_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Go on after a short write; the next one says why, if the disk is full."""
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            written = os.pwrite(self._descriptor, rest, self._end)
            self._end += written
            rest = rest[written:]

    def write(self, position: int, data: Buffer) -> None:
        """Write all bytes there, in one call unless the kernel takes fewer."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            position += written
            rest = rest[written:]

    def read(self, position: int, size: int) -> bytes:
        """Read in one call, unless the kernel returns less than there is."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size:
            return data
        parts = [data]
        while data and (missing := size - sum(map(len, parts))):
            data = os.pread(self._descriptor, missing, position + size - missing)
            parts.append(data)
        return b"".join(parts)

    def sync(self) -> None:
        """Make bytes and size durable; times of access need not be."""
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file, and append there from now on."""
        os.ftruncate(self._descriptor, size)
        self._end = size

    def size(self) -> int:
        """Ask the kernel: another handle may have written."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class RealDisk:
    """A directory of the operating system."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)
        os.makedirs(self._root, exist_ok=True)

    def open(self, path: str, create: bool = False) -> RealFile:
        """Open for reading and writing; never truncate."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(self._at(path), flags, 0o644))

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        return os.path.exists(self._at(path))

    def list(self, directory: str) -> Names:
        """Names, sorted."""
        return sorted(os.listdir(self._at(directory)))

    def make_directory(self, path: str) -> None:
        """Make what is missing, top down, syncing the parent of each new directory."""
        made = ""
        for part in path.split("/"):
            parent, made = made, f"{made}/{part}" if made else part
            if not os.path.isdir(self._at(made)):
                os.mkdir(self._at(made), 0o755)
                self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        """Rename, atomically replacing the target."""
        os.replace(self._at(source), self._at(target))

    def remove(self, path: str) -> None:
        """Unlink."""
        os.unlink(self._at(path))

    def sync_directory(self, path: str) -> None:
        """Sync the directory itself, which is where the names are."""
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"
