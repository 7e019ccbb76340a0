"""One round of compaction: closed segments rewritten beside the old ones, then swapped in.

A round works on closed segments that were flushed and end at or below the bound it is given:

1. survey them: transactions, producers, snapshots;
2. map the keys of what no earlier round has seen, oldest first, until the map is full; what lies
   beyond is left for the next round;
3. rewrite every segment that loses something to `<name>.staging`, and sync it.

Each of these passes checks the checksum of every batch it reads: a batch that is rewritten gets a
new one, and rotten bytes must not get one that fits.

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

from tidelog.records import Batch, Offset
from tidelog.storage.cleaning import AbortedTransaction, Cleaner, KeyMap, Survey, map_keys
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog
from tidelog.storage.rewriting import Rewriter, discard
from tidelog.storage.segment import Segment, sound
from tidelog.storage.state import RecoveryPoint, StateFile


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
            for batch in self._batches(segment):
                survey.note(batch)
        keys = KeyMap(budget - budget // 4)
        for segment in self.segments:
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
            self._rewrite(segment, generation, cleaner)
        self.due = cleaner.due

    def _rewrite(self, segment: Segment, generation: int, cleaner: Cleaner) -> None:
        rewriter = Rewriter(self.disk, segment, self.config.index_interval)
        with contextlib.closing(rewriter):
            before = 0
            for batch in self._batches(segment):
                before += batch.size
                rewriter.put(batch, cleaner.clean(batch, segment.last))
            if rewriter.changed:
                rewriter.commit(segment.last)
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


def is_due(segments: Sequence[Segment], cleaned: Offset, due: int | None, now: int) -> bool:
    """Whether a round could remove anything: new keys, or a horizon that has passed."""
    if not segments:
        return False
    return segments[-1].last > cleaned or (due is not None and due <= now)
