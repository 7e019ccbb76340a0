"""A disk in memory that can show every state a crash may leave, without being crashed itself.

A file is its synced content and the calls made since; a directory is its synced names and the
changes made since. `outcomes` yields disks as they might be found after a power failure at this
moment: of each file any prefix of the calls, the last append torn; of the names any subset of the
changes. With few pending changes that is all of them, with many a sample.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.records import Buffer

Names: TypeAlias = list[str]
# Bytes appended, the size that the file was cut to, or bytes written over others and where.
Call: TypeAlias = bytes | int | tuple[int, bytes]


@dataclass(eq=False, slots=True)
class Inode:
    """One file's content."""

    synced: bytes = b""
    calls: list[Call] = field(default_factory=list)
    lost: bool = False  # a sync failed: a later one does not write these calls any more

    def content(self, count: int | None = None) -> bytes:
        """Return the content after the first `count` calls since the last sync."""
        content = bytearray(self.synced)
        for call in self.calls[:count]:
            if isinstance(call, bytes):
                content += call
            elif isinstance(call, int):
                del content[call:]
            else:
                content[call[0] : call[0] + len(call[1])] = call[1]
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of names; a crash keeps or loses it as a whole."""

    name: str
    inode: Inode | None  # what has the name from now on
    source: str | None = None  # the name that a rename took it from


class FaultFile:
    """An open file."""

    def __init__(self, disk: FaultDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._open = True
        disk.open_files += 1
        disk.most_open = max(disk.most_open, disk.open_files)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        self._disk.before_change()
        data = b"".join(buffers)
        room = self._disk.room
        if room is not None and room < len(data):
            self._inode.calls.append(data[:room])
            self._disk.room = 0
            raise OSError(errno.ENOSPC, "full")
        if room is not None:
            self._disk.room = room - len(data)
        self._inode.calls.append(data)
        return len(data)

    def write(self, position: int, data: Buffer) -> None:
        self._check()
        self._disk.before_change()
        assert position + len(data) <= len(self._inode.content()), "it does not grow the file"
        self._inode.calls.append((position, bytes(data)))

    def read(self, position: int, size: int) -> bytes:
        self._check()
        self._disk.reads += 1
        if self._path in self._disk.unreadable:
            raise OSError(errno.EIO, "a sector cannot be read")
        return self._inode.content()[position : position + size]

    def sync(self) -> None:
        self._check()
        self._disk.before_change()
        inode = self._inode
        if self._disk.sync_fails():
            inode.lost = True
            raise OSError(errno.EIO, "the sync failed")
        if not inode.lost:
            inode.synced = inode.content()
            inode.calls.clear()

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.before_change()
        if self._path.endswith(self._disk.refuse_truncate):
            raise OSError(errno.EIO, "the cut failed")
        if size == 0:
            # Whatever is written from here on is new to the disk, failed sync or not.
            self._inode.calls = [0]
            self._inode.lost = False
        elif size != len(self._inode.content()):
            self._inode.calls.append(size)

    def size(self) -> int:
        self._check()
        return len(self._inode.content())

    def close(self) -> None:
        self._check()
        self._open = False
        self._disk.open_files -= 1

    def _check(self) -> None:
        assert self._open, "the file is closed"


class FaultDisk:
    """A `storage.Disk` with one level of directories."""

    def __init__(self) -> None:
        self.room: int | None = None  # bytes until the disk is full
        self.failing_syncs = 0  # how many syncs to come will fail
        self.refuse_truncate: str | tuple[str, ...] = ()  # ends of names of files not to be cut
        self.unreadable: set[str] = set()  # files whose sectors cannot be read
        self.reads = 0
        self.open_files = 0
        self.most_open = 0
        # Called before each change: where a test looks at what a crash would leave.
        self.watch: Callable[[], None] | None = None
        self._directories: set[str] = {""}
        self._names: dict[str, Inode] = {}
        self._synced: dict[str, Inode] = {}
        self._changes: list[Change] = []

    # --- storage.Disk ----------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> FaultFile:
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.before_change()
            if self.room == 0:
                raise OSError(errno.ENOSPC, "full")
            self._change(Change(path, Inode()))
        return FaultFile(self, self._names[path], path)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def list(self, directory: str) -> Names:
        prefix = f"{directory}/" if directory else ""
        return sorted(
            path.removeprefix(prefix)
            for path in self._names
            if path.startswith(prefix) and "/" not in path.removeprefix(prefix)
        )

    def make_directory(self, path: str) -> None:
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        self.before_change()
        self._change(Change(target, self._names[source], source))

    def remove(self, path: str) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.before_change()
        self._change(Change(path, None))

    def sync_directory(self, path: str) -> None:
        self.before_change()
        if self.sync_fails():
            raise OSError(errno.EIO, "the sync of a directory failed")
        self._synced = dict(self._names)
        self._changes.clear()

    # --- For the tests ---------------------------------------------------------------------------

    def before_change(self) -> None:
        if self.watch is not None:
            self.watch()

    def sync_fails(self) -> bool:
        if self.failing_syncs:
            self.failing_syncs -= 1
            return True
        return False

    def content(self, path: str) -> bytes:
        """Return a file's content as a reader sees it."""
        return self._names[path].content()

    def overwrite(self, path: str, content: bytes) -> None:
        """Change a file as no crash does: damage."""
        self._names[path] = self._synced[path] = Inode(content)

    def delete(self, path: str) -> None:
        """Remove a file as no crash does."""
        del self._names[path]
        self._synced.pop(path, None)

    def killed(self) -> FaultDisk:
        """Return the disk as the next process finds it when only the process died."""
        self.open_files = 0
        self.watch = None
        return self

    def outcomes(self, rng: random.Random, limit: int) -> Iterator[FaultDisk]:
        """Yield disks that a power failure might leave now: all of them, or `limit` at random."""
        inodes = list({id(each): each for each in self._all_inodes()}.values())
        counts = [len(inode.calls) + 1 for inode in inodes]
        total = 2 ** len(self._changes)
        for count in counts:
            total *= count
        if total <= limit:
            subsets = itertools.product((False, True), repeat=len(self._changes))
            prefixes = list(itertools.product(*(range(count) for count in counts)))
            for subset, prefix in itertools.product(list(subsets), prefixes):
                yield self._after(subset, dict(zip(map(id, inodes), prefix, strict=True)), None)
            return
        for _ in range(limit):
            odds = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            subset = tuple(rng.random() < odds for _ in self._changes)
            prefix = tuple(
                count - 1 if rng.random() < odds else rng.randrange(count) for count in counts
            )
            yield self._after(subset, dict(zip(map(id, inodes), prefix, strict=True)), rng)

    # --- Inside ----------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        self._changes.append(change)
        _apply(self._names, change)

    def _all_inodes(self) -> Iterator[Inode]:
        yield from self._synced.values()
        for change in self._changes:
            if change.inode is not None:
                yield change.inode

    def _after(
        self, subset: tuple[bool, ...], prefix: dict[int, int], rng: random.Random | None
    ) -> FaultDisk:
        names = dict(self._synced)
        for change, kept in zip(self._changes, subset, strict=True):
            if kept:
                _apply(names, change)
        disk = FaultDisk()
        disk._directories = set(self._directories)
        for path, inode in names.items():
            content = inode.content(prefix[id(inode)])
            left = inode.calls[prefix[id(inode)] :]
            if rng is not None and left and isinstance(left[0], bytes):
                content += _torn(left[0], rng)
            elif rng is not None and left and isinstance(left[0], tuple):
                at, data = left[0]
                torn = _torn(data, rng)
                content = content[:at] + torn + content[at + len(torn) :]
            disk._names[path] = disk._synced[path] = Inode(content)
        return disk


def _apply(names: dict[str, Inode], change: Change) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.inode is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.inode


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Return what may be left of an append that was under way."""
    cut = rng.randint(0, len(data))
    match rng.randrange(4):
        case 0:
            return data[:cut]
        case 1:
            return data[:cut] + bytes(len(data) - cut)
        case 2:
            return data[:cut] + rng.randbytes(len(data) - cut)
        case _:
            return b""
