"""The segments of a log and the end that is written to: what happens to files, and in which order.

The `Log` decides; this is how files and chain follow. Every step that may fail leaves the chain
as it was until the files have changed. The orders that a crash depends on (see `recovery.py`):

- A file that was cut is synced before a segment is created after it, and before its own name is
  removed by a prefix truncation.
- Names that a suffix truncation removes are gone durably before the file before them is cut.
- A file whose index is stored loses the index before it is cut.
- What a merge has left over is removed by the `Log`, once the merged file's name is durable; it is
  durably gone before anything is cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidelog.records import Batch, BatchType, Offset
from tidelog.storage.appending import Run
from tidelog.storage.chain import Chain
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog
from tidelog.storage.handles import Handle, OpenEnds
from tidelog.storage.index import SparseIndex, write_index
from tidelog.storage.reader import Cut
from tidelog.storage.recovery import remove_segment
from tidelog.storage.rewriting import swap
from tidelog.storage.segment import (
    UNKNOWN,
    OpenSegment,
    Segment,
    SegmentPool,
    open_segment,
    read_head,
    sound,
)


class Tail:
    """The chain of segments of one log, the last of them perhaps open for appending."""

    active: OpenSegment | None  # of the last segment; None if the next append begins one
    shrunk: bool  # whether the active file was cut since it was last synced
    synced: bool  # whether all that was written to the active file is on the disk

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        chain: Chain,
        active: OpenSegment | None,
        pool: SegmentPool,
    ) -> None:
        self.chain = chain
        self.active = active
        self.shrunk = False
        self.synced = True
        self._disk = disk
        self._directory = directory
        self._config = config
        self._pool = pool
        self._ends = OpenEnds()
        # Runs of the append at hand that were begun: what `undo` has to take back.
        self._begun: list[Run] = []
        # The file of the last of them, if it is a new one. An append may bring any number of
        # segments (one a term, say), so the others are closed as soon as they are written.
        self._newest: File | None = None

    def configure(self, config: LogConfig) -> None:
        """Roll by other limits from now on."""
        self._config = config

    def share(self, pool: SegmentPool, ends: OpenEnds) -> None:
        """Hold files open within the bounds of a node from now on."""
        self._pool.clear()
        self._pool = pool
        self._ends = ends
        if self.active is not None and self.active.handle is not None:
            ends.opened(self)

    def park(self) -> None:
        """Close the active file until it is needed."""
        if self.active is not None:
            self.active.close()

    def _awake(self) -> OpenSegment:
        """Return the active segment, its file open."""
        active, last = self.active, self.chain.last
        assert active is not None
        assert last is not None
        if active.handle is None:
            try:
                active.handle = Handle(self._disk.open(last.path))
            except FileNotFoundError:
                raise DamagedLog(last.path, 0, last.base, "the file is missing") from None
            self._ends.opened(self)
        return active

    def open(self, segment: Segment) -> OpenSegment:
        """Return a segment's file and index, from the pool if it is a closed one."""
        if self.active is not None and segment is self.chain.last:
            return self._awake()
        opened = self._pool.get(segment.path)
        if opened is None:
            opened = open_segment(self._disk, segment, self._config.index_interval)
            self._pool.put(segment.path, opened)
        return opened

    def head(self, segment: Segment) -> Batch:
        """Return the first batch of a segment; only that is read."""
        return read_head(self._disk, segment)

    def look_at(self, segment: Segment) -> bool:
        """Learn size and head of a closed segment; say whether the disk had to be asked."""
        known = segment.size != UNKNOWN and segment.head is not None
        if segment.size == UNKNOWN:
            with contextlib.closing(self._disk.open(segment.path)) as file:
                segment.size = file.size()
        if segment.head is None:
            segment.head = self.head(segment).type
        return not known

    def replace(self, segment: Segment, size: int, max_time: int) -> None:
        """Let the new file of a closed segment take its place."""
        swap(self._disk, segment, size, max_time)
        self._pool.drop(segment.path)

    def join(
        self, segments: Sequence[Segment], size: int, max_time: int, head: BatchType | None
    ) -> list[Segment]:
        """Let one new file take the place of closed neighbours; return those left over."""
        first = segments[0]
        self.replace(first, size, max_time)
        first.head = head
        leftovers = self.chain.join(self.chain.locate(first.base), len(segments) - 1)
        self._forget(leftovers)
        return leftovers

    def room(self, now: int) -> int:
        """Return how many bytes the active segment may still take; 0 if it is to be closed."""
        last = self.chain.last
        if self.active is None or last is None or now - last.created >= self._config.segment_ms:
            return 0
        return max(self._config.segment_bytes - last.size, 0)

    # --- Append ----------------------------------------------------------------------------------

    def write(self, runs: Sequence[Run], now: int) -> None:
        """Write runs to their files, then make them part of the chain.

        Before a run that begins a segment the caller calls `sync_shrunk`.
        """
        self._begun = []
        self.synced = False
        for run in runs:
            self._begun.append(run)
            file = self._create(run) if run.fresh else self._active_file()
            file.append([batch.data for batch in run.batches])
        for run in runs:
            if not run.fresh:
                self.note(run.batches)
            else:
                self.roll()
                self._begin(run, now, self._newest if run is runs[-1] else None)
        self._newest = None

    def undo(self) -> None:
        """Take back, durably, what a failed `write` wrote."""
        self._close_newest()
        for run in self._begun:
            if run.fresh:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(self._fresh(run).path)
            elif self.chain.last is not None:
                self._active_file().truncate(self.chain.last.size)
                self._active_file().sync()
        self._begun = []
        self._disk.sync_directory(self._directory)

    def _active_file(self) -> File:
        return self._awake().file

    def hold(self, held: Batch) -> None:
        """Put a placeholder at the end of the active segment."""
        self.synced = False
        self._active_file().append([held.data])
        self.note([held])

    def _create(self, run: Run) -> File:
        self._close_newest()
        self._newest = self._disk.open(self._fresh(run).path, create=True)
        return self._newest

    def _close_newest(self) -> None:
        if self._newest is not None:
            self._newest.close()
            self._newest = None

    def _fresh(self, run: Run) -> Segment:
        return Segment(self._directory, run.base, run.term)

    def _begin(self, run: Run, now: int, file: File | None) -> None:
        """Put a new segment into the chain: the active one, or a closed one if it has no file."""
        segment = self._fresh(run)
        segment.size = 0
        segment.created = now
        segment.named = False
        segment.head = run.batches[0].type
        self.chain.add(segment)
        index = SparseIndex(self._config.index_interval)
        _count(run.batches, segment, index)
        if file is not None:
            self.active = OpenSegment(Handle(file), index)
            self._ends.opened(self)
        else:
            segment.max_time = index.max_time
            self._store_index(segment, index)

    def note(self, batches: Sequence[Batch]) -> None:
        """Count batches that were written to the active file."""
        assert self.chain.last is not None
        assert self.active is not None
        _count(batches, self.chain.last, self.active.index)

    def roll(self) -> None:
        """Close the active segment, storing its index."""
        if self.active is not None and self.chain.last is not None:
            self.store_index()
            index = self.active.index
            self.chain.last.max_time = None if index is None else index.max_time
            if self.active.handle is not None:
                self._pool.put(self.chain.last.path, self.active)
            self._leave_end()

    def _leave_end(self) -> None:
        self.active = None
        self._ends.closed(self)

    def encode_index(self) -> bytes | None:
        """Return the index of the active segment as it is now, if it is known."""
        segment = self.chain.last
        if self.active is None or self.active.index is None or segment is None:
            return None
        return self.active.index.encode(segment.size, segment.base, segment.last)

    def store_index(self) -> None:
        """Write the index of the active segment beside it."""
        if self.chain.last is not None:
            self.keep_index(self.chain.last.base, self.encode_index())

    def keep_index(self, base: Offset, content: bytes | None) -> None:
        """Write an index that was encoded before beside its segment, while that is the active one.

        The segment may have grown since. A restart that finds the index whole goes on from there,
        instead of walking the segment from its beginning.
        """
        segment = self.chain.last
        if content is None or self.active is None or segment is None or segment.base != base:
            return
        self._write_index(segment, content)

    def _store_index(self, segment: Segment, index: SparseIndex) -> None:
        self._write_index(segment, index.encode(segment.size, segment.base, segment.last))

    def _write_index(self, segment: Segment, content: bytes) -> None:
        with contextlib.suppress(OSError):  # it can be built again
            write_index(self._disk, segment.index_path, content)

    def sync_shrunk(self) -> None:
        """Sync the active file if it was cut."""
        if self.shrunk and self.active is not None:
            self._active_file().sync()
        self.shrunk = False

    # --- Truncation ------------------------------------------------------------------------------

    def remove_from(self, number: int) -> None:
        """Remove segment `number` and all newer ones, durably."""
        removed = [self.chain[each] for each in range(number, len(self.chain))]
        for segment in reversed(removed):
            remove_segment(self._disk, segment)
        self._disk.sync_directory(self._directory)
        self._release_active_of(removed)
        self._forget(self.chain.remove_from(number))

    def remove_before(self, number: int) -> None:
        """Remove all segments older than `number`. What cannot be removed goes at the next open."""
        removed = [self.chain[each] for each in range(number)]
        for segment in removed:
            with contextlib.suppress(OSError):
                remove_segment(self._disk, segment)
        self._release_active_of(removed)
        self._forget(self.chain.remove_before(number))

    def cut(self, number: int, cut: Cut, now: int) -> None:
        """Remove the segments after `number` and the end of that one, which becomes active."""
        segment = self.chain[number]
        indexed = self._disk.exists(segment.index_path)
        if indexed:
            self._disk.remove(segment.index_path)
        if indexed or number + 1 < len(self.chain):
            self.remove_from(number + 1)
        opened = self.open(segment)
        index = opened.need_index(segment, self._config.index_interval)
        opened.file.truncate(cut.position)
        self.shrunk = True
        if self.active is None:
            self._pool.take(segment.path)
            self.active = opened
            self._ends.opened(self)
        opened.forget_hints()
        for position, batch in sound(opened.file, index.cut(cut.position), cut.position, segment):
            index.note(batch, position)
        segment.size = cut.position
        segment.last = cut.last
        segment.created = now
        segment.max_time = None
        segment.generation += 1
        if not cut.position:
            segment.head = None

    def _release_active_of(self, removed: list[Segment]) -> None:
        if self.active is not None and self.chain.last in removed:
            self.active.close()
            self._leave_end()
            self.shrunk = False

    def _forget(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._pool.drop(segment.path)

    def close(self) -> None:
        """Let go of all files."""
        if self.active is not None:
            self.active.close()
            self._leave_end()
        self._forget(list(self.chain))


def _count(batches: Sequence[Batch], segment: Segment, index: SparseIndex | None) -> None:
    """Let a segment grow by batches that were written to its file."""
    for batch in batches:
        if index is not None:
            index.note(batch, segment.size)
        segment.size += batch.size
    segment.last = batches[-1].last_offset
