"""One round of compaction: closed segments rewritten beside the old ones, then swapped in.

A round works on closed segments that were flushed and end at or below the bound it is given:

1. survey them: transactions, producers, snapshots;
2. map the keys of what no earlier round has seen, oldest first, until the map is full; what lies
   beyond is left for the next round;
3. rewrite every segment that loses something to `<name>.staging`, and sync it.

That is `run`, on a worker thread, which touches files only. `Log.finish_compaction` then renames
the new files over the old ones on the loop, oldest first; a read that still holds an old file
goes on reading it. A crash at any moment leaves of each segment the old file or the new one, both
right. The next round begins by syncing the directory, so that what is removed in one round can be
relied on in the next: a tombstone goes only after all that it hides is durably gone.

If the suffix of the log was truncated between prepare and finish, the round is dropped: keys that
it saw may not exist any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.records import Batch, CorruptBatch, Offset
from tidelog.storage.cleaning import AbortedTransaction, Cleaner, KeyMap, Survey, map_keys
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import DamagedLog
from tidelog.storage.index import SparseIndex, write_index
from tidelog.storage.sealed import STAGING
from tidelog.storage.segment import Segment, sound
from tidelog.storage.state import RecoveryPoint, StateFile

# Bytes of rewritten batches gathered before they are written.
_WRITE_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment that has a new file."""

    segment: Segment
    generation: int  # of the segment when the round was prepared
    size_before: int
    size: int
    max_time: int


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a round did."""

    segments: int  # that were replaced
    bytes_before: int  # of these
    bytes_after: int
    cleaned: Offset  # of every key at or below it only the newest record is left
    due: int | None  # when a tombstone or marker that was kept may go; None: nothing waits


@dataclass(slots=True)
class CompactionJob:
    """One round, prepared on the loop."""

    disk: Disk
    directory: str
    config: LogConfig
    state: StateFile
    segments: list[Segment]  # closed, flushed, oldest first
    generations: list[int]  # column of segments
    point: RecoveryPoint  # covers them, so that a restart does not ask for their old sizes
    truncations: int
    cleaned: Offset
    now: int
    aborted: tuple[AbortedTransaction, ...]
    covered: Offset = field(init=False)  # up to where the round saw all keys; >= cleaned
    due: int | None = None
    rewritten: list[Rewritten] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.covered = self.cleaned

    def run(self) -> None:
        """Do the work. On any thread, once; an error means that nothing will be swapped."""
        self.disk.sync_directory(self.directory)
        if not self.state.raise_point(self.point, self.truncations, self.cleaned):
            return
        try:
            self._run()
        except (FileNotFoundError, DamagedLog):
            self.discard()
            # A truncation may have pulled a file from under us: then the round is void.
            if self.state.truncations == self.truncations and self._all_there():
                raise
        except BaseException:
            self.discard()
            raise
        else:
            self.done = True

    def _run(self) -> None:
        budget = self.config.key_map_bytes
        survey = Survey(budget // 8)
        for segment in self.segments:
            with _blaming(segment):
                for batch in self._batches(segment):
                    survey.note(batch)
        keys = KeyMap(budget - budget // 4)
        for segment in self.segments:
            with _blaming(segment):
                batches = self._batches(segment)
                self.covered = map_keys(batches, survey, keys, self.cleaned, segment.last)
            if self.covered < segment.last:
                break
        cleaner = Cleaner(
            survey,
            keys,
            self.cleaned,
            self.covered,
            self.now,
            self.config.delete_retention_ms,
            self.aborted,
            live_bytes=budget // 8,
        )
        for segment, generation in zip(self.segments, self.generations, strict=True):
            if segment.base > self.covered:
                break
            with _blaming(segment):
                self._rewrite(segment, generation, cleaner)
        self.due = cleaner.due

    def _rewrite(self, segment: Segment, generation: int, cleaner: Cleaner) -> None:
        rewriter = _Rewriter(self.disk, segment, self.config.index_interval)
        with contextlib.closing(rewriter):
            before = 0
            for batch in self._batches(segment):
                before += batch.size
                rewriter.put(batch, cleaner.clean(batch, segment.last))
            if rewriter.changed:
                rewriter.commit()
                max_time = rewriter.index.max_time
                self.rewritten.append(
                    Rewritten(segment, generation, before, rewriter.size, max_time)
                )

    def _all_there(self) -> bool:
        return all(self.disk.exists(segment.path) for segment in self.segments)

    def _batches(self, segment: Segment) -> Iterator[Batch]:
        """Yield the batches of a segment; none if a prefix truncation has removed it."""
        try:
            file = self.disk.open(segment.path)
        except FileNotFoundError:
            return
        with contextlib.closing(file):
            for _, batch in sound(file, 0, file.size(), segment):
                yield batch

    def discard(self) -> None:
        """Remove what a round left beside the segments."""
        for each in self.rewritten:
            discard(self.disk, each.segment)
        self.rewritten = []


@contextlib.contextmanager
def _blaming(segment: Segment) -> Iterator[None]:
    """Say which segment holds records that cannot be read."""
    try:
        yield
    except CorruptBatch as error:
        raise DamagedLog(segment.path, error.position, segment.base, error.reason) from error


class _Rewriter:
    """Writes the new file of a segment, from the first batch on that is not as it was."""

    def __init__(self, disk: Disk, segment: Segment, interval: int) -> None:
        self._disk = disk
        self._segment = segment
        self._file: File | None = None
        self._chunk: list[memoryview] = []
        self._gathered = 0
        self._committed = False
        self.index = SparseIndex(interval)
        self.size = 0

    @property
    def changed(self) -> bool:
        """Whether a batch is not as it was."""
        return self._file is not None

    def put(self, batch: Batch, kept: Batch | None) -> None:
        """Take what stays of the next batch."""
        if kept is not batch and self._file is None:
            self._begin()
        if kept is None:
            return
        self.index.note(kept, self.size)
        self.size += kept.size
        if self._file is not None:
            self._chunk.append(kept.data)
            self._gathered += kept.size
            if self._gathered >= _WRITE_CHUNK:
                self._write()

    def _begin(self) -> None:
        """Create the file with the bytes that all stayed so far."""
        self._file = self._disk.open(self._segment.path + STAGING, create=True)
        self._file.truncate(0)
        with contextlib.closing(self._disk.open(self._segment.path)) as old:
            for position in range(0, self.size, _WRITE_CHUNK):
                self._file.append([old.read(position, min(_WRITE_CHUNK, self.size - position))])

    def _write(self) -> None:
        assert self._file is not None
        self._file.append(self._chunk)
        self._chunk = []
        self._gathered = 0

    def commit(self) -> None:
        """Make the new file durable under its staging name."""
        assert self._file is not None
        self._write()
        self._file.sync()
        segment = self._segment
        content = self.index.encode(self.size, segment.base, segment.last)
        write_index(self._disk, segment.index_path + STAGING, content)
        self._committed = True

    def close(self) -> None:
        """Close the file; remove it if it was not committed."""
        if self._file is not None:
            self._file.close()
            if not self._committed:
                discard(self._disk, self._segment)


def discard(disk: Disk, segment: Segment) -> None:
    """Remove the staging files of a segment; what stays is removed at the next open."""
    for path in (segment.path, segment.index_path):
        with contextlib.suppress(OSError):
            disk.remove(path + STAGING)


def swap(disk: Disk, each: Rewritten) -> int:
    """Let the new file of a segment take its place; return the size of the old one."""
    segment = each.segment
    with contextlib.suppress(OSError):  # an index that does not fit is built again
        disk.remove(segment.index_path)
    disk.rename(segment.path + STAGING, segment.path)
    segment.size = each.size
    segment.max_time = each.max_time
    segment.generation += 1
    with contextlib.suppress(OSError):
        disk.rename(segment.index_path + STAGING, segment.index_path)
    return each.size_before


def is_due(segments: Sequence[Segment], cleaned: Offset, due: int | None, now: int) -> bool:
    """Whether a round could remove anything: new keys, or a horizon that has passed."""
    if not segments:
        return False
    return segments[-1].last > cleaned or (due is not None and due <= now)
