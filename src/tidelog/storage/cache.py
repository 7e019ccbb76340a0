"""Recently appended batches, so that tail readers and replication never touch the disk.

One `BatchCache` is shared by all logs of a node and bounded in bytes; the batch appended longest
ago leaves first, whichever log it belongs to. A batch is kept as the very object that was
appended: no copy in, no copy out. (A batch is a view, and keeps alive the buffer it was read
into; the buffers of a node hold little else than batches, so the bound is true enough.)

Of each log the cache holds an unbroken run of stored batches that ends at the log's dirty offset.
Between two neighbours in the run there is nothing on the disk, so a gap there is a gap of the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

from tidelog.records import Batch, Offset

DEFAULT_CACHE_BYTES: Final = 64 * 1024 * 1024
# Dead entries tolerated before the queue is swept, so that sweeping is cheap on average.
_SWEEP: Final = 1024


class _Entry:
    """One cached batch. Dead once its log let go of it before its turn came."""

    __slots__ = ("alive", "batch", "run")

    def __init__(self, batch: Batch, run: CachedRun) -> None:
        self.batch = batch
        self.run = run
        self.alive = True


class BatchCache:
    """The bound, and the order in which batches leave."""

    limit: int  # bytes
    size: int  # bytes held; <= limit after each call

    def __init__(self, limit: int = DEFAULT_CACHE_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._queue: deque[_Entry] = deque()  # oldest first; dead entries wait to be swept
        self._dead = 0

    def new_run(self) -> CachedRun:
        """Return the place of one log in this cache."""
        return CachedRun(self)

    def _enter(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self.size += entry.batch.size
        while self.size > self.limit:
            oldest = self._queue.popleft()
            if oldest.alive:
                oldest.run._leave(oldest)
                self.size -= oldest.batch.size
            else:
                self._dead -= 1

    def _bury(self, entries: Sequence[_Entry]) -> None:
        """Drop entries out of turn; their places in the queue are swept later."""
        for entry in entries:
            entry.alive = False
            self.size -= entry.batch.size
        self._dead += len(entries)
        if self._dead > _SWEEP + len(self._queue) // 2:
            self._queue = deque(entry for entry in self._queue if entry.alive)
            self._dead = 0


class CachedRun:
    """The newest batches of one log, oldest first."""

    __slots__ = ("_cache", "_entries", "_head", "_lasts")

    _entries: list[_Entry]  # valid from _head on; what is before has left
    _lasts: list[Offset]  # last offsets, column of _entries
    _head: int

    def __init__(self, cache: BatchCache) -> None:
        self._cache = cache
        self._entries = []
        self._lasts = []
        self._head = 0

    def add(self, batch: Batch) -> None:
        """Put the batch that the log just appended at the end of the run."""
        if batch.size > self._cache.limit:
            self.clear()
            return
        entry = _Entry(batch, self)
        self._entries.append(entry)
        self._lasts.append(batch.last_offset)
        self._cache._enter(entry)

    def read(self, start: Offset, max_bytes: int, upto: Offset) -> list[Batch] | None:
        """Return batches from the one that holds or follows `start`; None if the run begins later.

        At least one batch, if one ends at or below `upto`.
        """
        head = self._head
        entries = self._entries
        if head == len(entries) or start < entries[head].batch.base_offset:
            return None
        batches: list[Batch] = []
        for number in range(bisect_left(self._lasts, start, head), len(entries)):
            batch = entries[number].batch
            max_bytes -= batch.size
            if batch.last_offset > upto or (max_bytes < 0 and batches):
                break
            batches.append(batch)
        return batches

    def cut(self, first_removed: Offset) -> None:
        """Forget batches that end at or after an offset: the log's suffix was truncated."""
        keep = bisect_left(self._lasts, first_removed, self._head)
        self._cache._bury(self._entries[keep:])
        del self._entries[keep:]
        del self._lasts[keep:]

    def drop_below(self, offset: Offset) -> None:
        """Forget batches that begin below an offset: truncated, or compacted on the disk."""
        keep = self._head
        while keep < len(self._entries) and self._entries[keep].batch.base_offset < offset:
            keep += 1
        self._cache._bury(self._entries[self._head : keep])
        self._head = keep
        self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        self._cache._bury(self._entries[self._head :])
        self._entries.clear()
        self._lasts.clear()
        self._head = 0

    def _leave(self, entry: _Entry) -> None:
        assert self._entries[self._head] is entry, "batches of a log leave in order"
        self._head += 1
        self._shrink()

    def _shrink(self) -> None:
        """Free the part of the lists that has left, once it is the larger one."""
        if self._head > 64 and self._head * 2 > len(self._entries):
            del self._entries[: self._head]
            del self._lasts[: self._head]
            self._head = 0
