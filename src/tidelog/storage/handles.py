"""Open files that are counted, and a pool that bounds how many there are.

Two threads may hold one file: the loop that appends and reads, and the thread that syncs. A
`Handle` closes its file when the last of them lets go, so that nobody syncs a descriptor that was
closed and given to another file.

A log with ten thousand segments holds open the one it appends to and the few closed ones that were
read last. The logs of one node share a pool, so that the bound is the node's. A node may also have
more logs than it may open files: `OpenEnds` closes the files of those that were not written lately.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from tidelog.storage.disk import File
from tidelog.storage.errors import LocalError

DEFAULT_POOL: Final = 256  # a quarter of the 1,024 descriptors a process has by default
LOOKS: Final = 16  # ends that are looked at for one whose file is synced


class Handle:
    """A file shared by count. Made with one holder: whoever opened it."""

    __slots__ = ("_holders", "_lock", "file")

    file: File

    def __init__(self, file: File) -> None:
        self.file = file
        self._holders = 1
        self._lock = threading.Lock()

    def retain(self) -> Handle:
        """Hold the file once more; each `retain` needs one `release`."""
        with self._lock:
            if not self._holders:
                raise LocalError("the file is closed")
            self._holders += 1
        return self

    def release(self) -> None:
        """Let go; the last holder closes the file."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self.file.close()


class Parkable(Protocol):
    """A log's end: its file can be closed, and is opened again when it is needed."""

    @property
    def synced(self) -> bool:
        """Whether all that was written to the file is on the disk."""

    def park(self) -> None:
        """Close the file for now."""


class OpenEnds:
    """The ends of logs that are open for appending, the one opened first is the first to close."""

    def __init__(self, limit: int | None = None) -> None:
        """Without a limit every log keeps its end open."""
        self._limit = limit
        self._open: OrderedDict[Parkable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, end: Parkable) -> None:
        """Count an end, and park another if there are too many."""
        self._open[end] = None
        self._open.move_to_end(end)
        while self._limit is not None and len(self._open) > self._limit:
            victim = self._victim()
            del self._open[victim]
            victim.park()

    def closed(self, end: Parkable) -> None:
        """Forget an end whose file is closed, or is a closed segment now."""
        self._open.pop(end, None)

    def _victim(self) -> Parkable:
        """One that is synced, if there is one among the oldest.

        A file that is closed before its sync reports an error of the disk to the sync that opens
        it again, unless the kernel has dropped it from memory, so that is the second choice.
        """
        oldest = list(islice(self._open, min(LOOKS, len(self._open) - 1) or 1))
        return next((each for each in oldest if each.synced), oldest[0])


class Closable(Protocol):
    """What the pool keeps: something that holds a file until it is closed."""

    def close(self) -> None:
        """Give the file back."""


T = TypeVar("T", bound=Closable)


class HandlePool(Generic[T]):
    """The things used last, by key; the one not used for longest is closed to make room."""

    opened: int  # how many were ever put here; the difference of two readings counts misses

    def __init__(self, limit: int = DEFAULT_POOL) -> None:
        self._limit = limit
        self._items: OrderedDict[str, T] = OrderedDict()
        self.opened = 0

    def __len__(self) -> int:
        return len(self._items)

    def limit(self, limit: int) -> None:
        """Keep no more than this from now on."""
        self._limit = limit
        self._shrink()

    def _shrink(self) -> None:
        while len(self._items) > self._limit:
            _, oldest = self._items.popitem(last=False)
            oldest.close()

    def get(self, key: str) -> T | None:
        """Return what is kept under the key and count it as used."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: str, item: T) -> None:
        """Keep one more; the pool closes it when it has to."""
        self.drop(key)
        self._items[key] = item
        self.opened += 1
        self._shrink()

    def take(self, key: str) -> T | None:
        """Take out what is kept under the key; closing it is up to the caller."""
        return self._items.pop(key, None)

    def drop(self, key: str) -> None:
        """Close what is kept under the key, if anything."""
        item = self._items.pop(key, None)
        if item is not None:
            item.close()

    def clear(self) -> None:
        """Close everything."""
        while self._items:
            self._items.popitem()[1].close()
