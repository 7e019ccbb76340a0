"""A disk that does everything `storage.Disk` allows a disk to do, at the worst moment.

Theory of operation:
- A file has two contents: what a reader sees (the page cache) and what is durable, with the list of
  writes and cuts that lie between the two. A sync empties that list into the durable content.
- A loss of power keeps a prefix of the list, the last write torn at any byte with zeros, garbage or
  nothing after the tear; it may also blank a part of what survived, as when pages are written out
  of order. Synced bytes never change. A process that is merely killed loses nothing, and makes
  nothing durable either.
- Names work the same way: each directory has a list of changes since it was last synced, of which a
  loss of power keeps a prefix or any subset.
- A sync that fails keeps some of what it should have written, and may mark the rest as lost: still
  in the page cache, and no later sync will write it. Only a loss of power shows the truth then.
- `lose_power_in(n)` fails the n-th operation from now, in the middle of whatever the product does.

`durable_copy` is the truth for the judge: the disk as it would be if power went now and everything
unsynced were lost.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.records import Buffer

Names: TypeAlias = list[str]  # `list` is the name of a method below

# A torn page is not longer than this many bytes: small, so that several fit into one batch.
PAGE: Final = 64


class PowerLost(Exception):
    """The machine went dark in the middle of an operation; not an error the product can handle."""


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes
    lost: bool = False  # a failed sync dropped it: no later sync will write it


@dataclass(slots=True)
class _Cut:
    size: int


@dataclass(slots=True)
class _Inode:
    data: bytearray = field(default_factory=bytearray)  # what a reader sees
    durable: bytearray = field(default_factory=bytearray)  # what survives any crash
    pending: list[_Write | _Cut] = field(default_factory=list)  # leads from durable to data


@dataclass(slots=True)
class _Rename:
    source: str
    target: str
    inode: _Inode


@dataclass(slots=True)
class _Create:
    target: str
    inode: _Inode


@dataclass(slots=True)
class _Remove:
    source: str


@dataclass(slots=True)
class _Directory:
    names: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    pending: list[_Rename | _Create | _Remove] = field(default_factory=list)


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._boot = disk.boots

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write at the end; a full disk takes what fits and refuses the rest."""
        data = b"".join(buffers)
        self._touch()
        room = self._disk.take_room(len(data))
        inode = self._inode
        if room:
            inode.pending.append(_Write(len(inode.data), data[:room]))
            inode.data += data[:room]
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on the simulated disk")
        return len(data)

    def write(self, position: int, data: Buffer) -> None:
        """Write over what is there."""
        self._touch()
        inode = self._inode
        assert position + len(data) <= len(inode.data), "a write in place does not grow a file"
        inode.pending.append(_Write(position, bytes(data)))
        inode.data[position : position + len(data)] = data

    def read(self, position: int, size: int) -> bytes:
        """Read from the page cache."""
        self._disk.check_power()
        return bytes(self._inode.data[position : position + size])

    def sync(self) -> None:
        """Make everything written so far durable, or fail and leave some of it lost."""
        self._touch()
        inode = self._inode
        if self._disk.sync_fails():
            self._disk.drop_some(inode)
            raise OSError(errno.EIO, "The simulated disk failed to sync")
        _settle(inode.durable, inode.pending)
        inode.pending.clear()

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        self._touch()
        inode = self._inode
        inode.pending.append(_Cut(size))
        _resize(inode.data, size)

    def size(self) -> int:
        """Bytes in the file now."""
        self._disk.check_power()
        return len(self._inode.data)

    def close(self) -> None:
        """Nothing to give back."""

    def _touch(self) -> None:
        if self._boot != self._disk.boots:
            raise AssertionError("a process that is dead writes to its disk")
        self._disk.tick()


class SimDisk:
    """A `storage.Disk` in memory, with faults by switch."""

    def __init__(self, rng: random.Random, rot: float = 0.0) -> None:
        self.rot = rot  # share of torn files of which a surviving, unsynced part reads as zeros
        self.failing_syncs = 0.0  # share of syncs that fail
        self.room: int | None = None  # bytes until the disk is full; None: it never is
        self.boots = 0  # raised by each crash: handles of an earlier boot are dead
        self.operations = 0  # that changed something, or tried to
        # A sync failed since power was last lost: the page cache shows what is not on disk.
        self.distrusted = False
        self._rng = rng
        self._power: int | None = None  # operations until power is lost; None: it stays
        self._dark = False  # power is lost: nothing works until `crash`
        self._directories: dict[str, _Directory] = {"": _Directory()}

    # --- storage.Disk ----------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> SimFile:
        """Open a file; creating one is a change of a name."""
        self.check_power()
        directory, name = self._place(path)
        inode = directory.names.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file on the simulated disk", path)
            self.tick()
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on the simulated disk", path)
            inode = _Inode()
            directory.names[name] = inode
            directory.pending.append(_Create(name, inode))
        return SimFile(self, inode)

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        self.check_power()
        if path in self._directories:
            return True
        parent, _, name = path.rpartition("/")
        return parent in self._directories and name in self._directories[parent].names

    def list(self, directory: str) -> Names:
        """Names in a directory, sorted."""
        self.check_power()
        inside = f"{directory}/" if directory else ""
        children = {
            path[len(inside) :].partition("/")[0]
            for path in self._directories
            if path.startswith(inside) and path != directory
        }
        return sorted(children | self._directory(directory).names.keys())

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably."""
        self.check_power()
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            if above not in self._directories:
                self.tick()
                self._directories[above] = _Directory()

    def rename(self, source: str, target: str) -> None:
        """Rename within a directory, replacing the target."""
        self.tick()
        directory, old = self._place(source)
        other, new = self._place(target)
        if other is not directory:
            raise OSError(errno.EXDEV, "The simulated disk renames within a directory", source)
        inode = self._inode(directory, old, source)
        del directory.names[old]
        directory.names[new] = inode
        directory.pending.append(_Rename(old, new, inode))

    def remove(self, path: str) -> None:
        """Remove a name; open files keep the content."""
        self.tick()
        directory, name = self._place(path)
        self._inode(directory, name, path)
        del directory.names[name]
        directory.pending.append(_Remove(name))

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable, or fail and leave them as they were."""
        self.tick()
        directory = self._directory(path)
        if self.sync_fails():
            raise OSError(errno.EIO, "The simulated disk failed to sync", path)
        directory.durable = dict(directory.names)
        directory.pending.clear()

    # --- Faults ----------------------------------------------------------------------------------

    def lose_power_in(self, operations: int) -> None:
        """Go dark at the given operation from now: 1 is the next."""
        self._power = operations

    def restore_power(self) -> None:
        """Take `lose_power_in` back, even if it has happened; what was written stays as it is."""
        self._power = None
        self._dark = False

    def heal(self) -> None:
        """End every fault that is a switch."""
        self.failing_syncs = 0.0
        self.room = None
        self.restore_power()

    def crash(self, *, power: bool) -> None:
        """End the process that used this disk; with `power`, lose what chance does not save."""
        self.boots += 1
        self._power = None
        self._dark = False
        if not power and not self.distrusted:
            return
        self.distrusted = False
        # Sometimes everything is lost or everything is saved; in between, each file for itself.
        share = self._rng.choice((0.0, 1.0, None, None, None))
        for path in sorted(self._directories):
            directory = self._directories[path]
            self._survive(directory, share)
            for name in sorted(directory.names):
                self._tear(directory.names[name], share)

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.boots += 1
        self._power = None
        self._dark = False
        self.distrusted = False
        self._directories = {"": _Directory()}

    def durable_copy(self) -> SimDisk:
        """Return this disk as it would be if power went now and nothing unsynced survived."""
        copy = SimDisk(random.Random(0))
        copy._directories = {}
        for path, directory in self._directories.items():
            inodes = {
                name: _Inode(bytearray(inode.durable), bytearray(inode.durable))
                for name, inode in directory.durable.items()
            }
            copy._directories[path] = _Directory(inodes, dict(inodes))
        return copy

    def durable_bytes(self, path: str) -> bytes | None:
        """Return what of a file would survive any crash now; None if not even its name would."""
        directory, name = self._place(path)
        inode = directory.durable.get(name)
        return None if inode is None else bytes(inode.durable)

    # --- Harm: what no crash does, and what must be reported --------------------------------------

    def files(self, directory: str) -> Names:
        """Return the paths of all files in a directory and below it, sorted."""
        inside = f"{directory}/"
        return sorted(
            f"{path}/{name}"
            for path, there in self._directories.items()
            if path == directory or path.startswith(inside)
            for name in there.names
        )

    def damage(self, path: str, position: int, bit: int = 4) -> None:
        """Flip a bit of a file, synced or not."""
        directory, name = self._place(path)
        inode = self._inode(directory, name, path)
        for content in (inode.data, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def write_back(self, path: str) -> None:
        """Write out a file and the names beside it, as a kernel does after a while."""
        directory, name = self._place(path)
        self._write_out_names(directory)
        inode = self._inode(directory, name, path)
        _settle(inode.durable, inode.pending)
        inode.pending.clear()

    def lose(self, path: str) -> None:
        """Take a file away for good; who has it open does not notice."""
        directory, name = self._place(path)
        self._inode(directory, name, path)
        self._write_out_names(directory)
        del directory.names[name], directory.durable[name]

    def lose_directory(self, path: str) -> None:
        """Take a directory away, with all that is in it and below."""
        inside = f"{path}/"
        self._directories = {
            each: there
            for each, there in self._directories.items()
            if each != path and not each.startswith(inside)
        }

    def swap(self, one: str, other: str) -> None:
        """Let two files have each other's name."""
        (here, first), (there, second) = self._place(one), self._place(other)
        inodes = self._inode(here, first, one), self._inode(there, second, other)
        for directory, name, inode in ((there, second, inodes[0]), (here, first, inodes[1])):
            self._write_out_names(directory)
            directory.names[name] = directory.durable[name] = inode

    def put_back(self, path: str, content: bytes) -> None:
        """Put an older content in the place of a file."""
        directory, name = self._place(path)
        self._write_out_names(directory)
        inode = _Inode(bytearray(content), bytearray(content))
        directory.names[name] = directory.durable[name] = inode

    def _write_out_names(self, directory: _Directory) -> None:
        directory.durable = dict(directory.names)
        directory.pending.clear()

    # --- What the files of this disk ask ----------------------------------------------------------

    def tick(self) -> None:
        """Count an operation that changes something, and go dark if its time has come."""
        self.check_power()
        self.operations += 1
        if self._power is not None:
            self._power -= 1
            if self._power <= 0:
                self._dark = True
                raise PowerLost("the simulated machine lost power")

    def check_power(self) -> None:
        """Refuse everything once power is lost."""
        if self._dark:
            raise PowerLost("the simulated machine has no power")

    def take_room(self, size: int) -> int:
        """Return how many of these bytes still fit, and take that room."""
        if self.room is None:
            return size
        fits = min(size, self.room)
        self.room -= fits
        return fits

    def sync_fails(self) -> bool:
        """Decide whether a sync fails now."""
        return self.failing_syncs > 0 and self._rng.random() < self.failing_syncs

    def drop_some(self, inode: _Inode) -> None:
        """Write a part of what was to be synced; perhaps never write the rest."""
        self.distrusted = True
        kept = self._rng.randint(0, len(inode.pending))
        _settle(inode.durable, inode.pending[:kept])
        del inode.pending[:kept]
        if self._rng.random() < 0.5:
            for change in inode.pending:
                if isinstance(change, _Write):
                    change.lost = True

    # --- A loss of power -------------------------------------------------------------------------

    def _survive(self, directory: _Directory, share: float | None) -> None:
        """Keep a prefix or a subset of the changes of names."""
        changes = directory.pending
        if share is not None:
            kept = changes if share else []
        elif self._rng.random() < 0.5:
            kept = changes[: self._rng.randint(0, len(changes))]
        else:
            kept = [change for change in changes if self._rng.random() < 0.5]
        for change in kept:
            if not isinstance(change, _Create):
                directory.durable.pop(change.source, None)
            if not isinstance(change, _Remove):
                directory.durable[change.target] = change.inode
        directory.names = dict(directory.durable)
        directory.pending.clear()

    def _tear(self, inode: _Inode, share: float | None) -> None:
        """Keep a prefix of the writes, the last one torn, perhaps with a hole in what was kept."""
        changes = inode.pending
        if changes:
            rng = self._rng
            kept = rng.randint(0, len(changes)) if share is None else round(share * len(changes))
            survivors = changes[:kept]
            if kept < len(changes) and share is None:
                torn = changes[kept]
                if isinstance(torn, _Write) and not torn.lost:
                    survivors.append(_Write(torn.position, self._torn(torn.data)))
            _settle(inode.durable, survivors)
            if share is None and rng.random() < self.rot:
                self._blank(inode.durable, survivors)
            inode.pending = []
        inode.data = bytearray(inode.durable)

    def _torn(self, data: bytes) -> bytes:
        rng = self._rng
        cut = rng.randint(0, len(data))
        rest = rng.choice((0, rng.randint(0, len(data) - cut), len(data) - cut))
        return data[:cut] + (bytes(rest) if rng.random() < 0.5 else rng.randbytes(rest))

    def _blank(self, content: bytearray, survivors: Sequence[_Write | _Cut]) -> None:
        """Turn a page of the last write into zeros; only what no later cut removed."""
        last = survivors[-1] if survivors else None
        if isinstance(last, _Write) and last.data and not last.lost:
            start = last.position + self._rng.randrange(len(last.data))
            end = min(start + PAGE, last.position + len(last.data), len(content))
            content[start:end] = bytes(max(0, end - start))

    # --- Paths -----------------------------------------------------------------------------------

    def _directory(self, path: str) -> _Directory:
        directory = self._directories.get(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "No such directory on the simulated disk", path)
        return directory

    def _place(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _inode(self, directory: _Directory, name: str, path: str) -> _Inode:
        inode = directory.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file on the simulated disk", path)
        return inode


def _settle(content: bytearray, changes: Sequence[_Write | _Cut]) -> None:
    """Apply changes to a content, in order; lost writes leave a hole or nothing."""
    for change in changes:
        if isinstance(change, _Cut):
            _resize(content, change.size)
        elif not change.lost:
            if len(content) < change.position:
                _resize(content, change.position)
            content[change.position : change.position + len(change.data)] = change.data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
