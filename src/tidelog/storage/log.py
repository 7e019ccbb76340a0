"""One log on a disk: append, flush, read, truncate, compact, merge.

Theory of operation:
- `append` writes to the page cache on the caller's thread and moves *dirty*. It is all or
  nothing: what cannot be written whole is undone, and the undoing is synced, so that an offset
  and term never had two contents; if that fails too, the log is poisoned.
- A flush moves *flushed*: `prepare_flush` fixes on the loop what is to be synced, `FlushJob.run`
  syncs it on any thread, `finish_flush` credits it on the loop, unless a suffix truncation came
  between.
- A poisoned log refuses to append and to flush until it is opened again: after a sync has failed,
  the page cache may show bytes that no later sync will write.
- How a crash is survived is told in `recovery.py`; the order of steps it depends on is in `tail.py`
  and in the truncations below.

Everything here runs on one thread, except `run` of the jobs, which touch files and the state file
but no field of the log.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidelog.records import NO_OFFSET, Batch, Offset, Term, placeholder
from tidelog.storage.appending import plan_append
from tidelog.storage.cache import BatchCache
from tidelog.storage.cleaning import AbortedTransaction
from tidelog.storage.compaction import CompactionJob, CompactionResult, is_due
from tidelog.storage.config import BATCH_COST, DEFAULT_CONFIG, LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog, LocalError, StorageError
from tidelog.storage.flush import FlushJob
from tidelog.storage.handles import Handle, OpenEnds
from tidelog.storage.merging import MergeJob, SweepJob, find_group
from tidelog.storage.reader import Cut
from tidelog.storage.recovery import FILE_COST, Recovered, leave_marker, recover, remove_segment
from tidelog.storage.segment import Segment, SegmentPool
from tidelog.storage.state import WHOLE, LogState, RecoveryPoint, StateFile
from tidelog.storage.tail import Tail
from tidelog.storage.view import ReadableLog, telling

# Segments that one call may look into on the loop to know their sizes and heads. Some 20 us each;
# after a start the next calls look at the rest.
MAX_LOOKS: Final = 256


def wall_ms() -> int:
    """Return the time as records carry it: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Log(ReadableLog):
    """The log of one replica of one partition. Made by `Log.open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        state: StateFile,
        found: Recovered,
        cache: BatchCache | None,
        pool: SegmentPool,
        clock: Callable[[], int],
    ) -> None:
        tail = Tail(disk, directory, config, found.chain, found.active, pool)
        run = None if cache is None else cache.new_run()
        super().__init__(directory, config, state, found, tail, run)
        self._disk = disk
        self._clock = clock
        self._cleaned = state.state.cleaned  # compaction has seen every key up to here
        self._due: int | None = 0  # when a horizon may have passed; 0: not known, so look
        # Bytes appended since the recovery point was saved, with FILE_COST a file and BATCH_COST a
        # batch.
        self._unsaved = found.cost
        # Whether compaction gave or took names since the directory was last synced.
        self._renamed = False
        # What a merge has made superfluous, while its files may not be removed yet.
        self._leftovers: list[Segment] = []
        self._error: OSError | None = None  # why the log is poisoned
        self._closed = False
        if self._chain.last is not None:
            self._chain.last.created = clock()

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig = DEFAULT_CONFIG,
        *,
        cache: BatchCache | None = None,
        pool: SegmentPool | None = None,
        clock: Callable[[], int] = wall_ms,
    ) -> Log:
        """Open the log in a directory, or begin one. `pool` bounds the files open for reading."""
        disk.make_directory(directory)
        state = StateFile(disk, directory)
        found = recover(disk, directory, config, state)
        log = cls(
            disk,
            directory,
            config,
            state,
            found,
            cache,
            SegmentPool(config.open_segments) if pool is None else pool,
            clock,
        )
        if log._unsaved >= config.recovery_bytes:
            with contextlib.suppress(OSError):  # the next start is slower, no more
                state.raise_point(found.point, log.truncations, log._cleaned)
            log._tail.store_index()
            log._unsaved = 0
        state.mark_flushed(found.dirty, log.truncations)
        return log

    def configure(self, config: LogConfig) -> None:
        """Go on with other limits; what is written already stays as it is."""
        if config.index_interval != self.config.index_interval:
            raise LocalError("the interval of the index cannot be changed while a log is open")
        self.config = config
        self._tail.configure(config)

    def share_files(self, pool: SegmentPool, ends: OpenEnds) -> None:
        """Hold files open within bounds that all logs of this thread share.

        A log that is opened in another thread begins with bounds of its own, because these belong
        to one thread.
        """
        self._tail.share(pool, ends)

    @property
    def poisoned(self) -> bool:
        """Whether the log refuses to append and to flush until it is opened again."""
        return self._error is not None

    # --- Append ----------------------------------------------------------------------------------

    def append(self, batches: Sequence[Batch]) -> Offset:
        """Write batches at the end, all or none, and return the new dirty offset."""
        self._check_usable()
        now = self._clock()
        room = self._tail.room(now)
        runs = plan_append(batches, self.dirty, self.last_term, room, self.config.segment_bytes)
        if any(run.fresh for run in runs):
            with self._poisoning("could not sync a file that was cut"):
                self._tail.sync_shrunk()
        try:
            self._tail.write(runs, now)
        except OSError as error:
            self._undo()
            raise StorageError(f"append to {self._directory} failed: {error}", error) from error
        for run in runs:
            self._unsaved += FILE_COST * run.fresh
            for batch in run.batches:
                self._unsaved += batch.size + BATCH_COST
                if self._run is not None:
                    self._run.add(batch)
        self.dirty = runs[-1].batches[-1].last_offset
        return self.dirty

    def _undo(self) -> None:
        try:
            self._tail.undo()
        except OSError as error:
            self.poison(error)

    def forget_cached(self) -> None:
        """Read again from the disk what the cache holds: a copy of it was found to be wrong."""
        if self._run is not None:
            self._run.clear()

    def roll(self) -> None:
        """Close the active segment now; the next append begins another."""
        self._check_usable()
        with self._poisoning("could not sync a file that was cut"):
            self._tail.sync_shrunk()
        self._tail.roll()

    # --- Flush -----------------------------------------------------------------------------------

    def prepare_flush(self) -> FlushJob | None:
        """Fix what a flush has to sync; None when nothing is dirty."""
        self._check_usable()
        last = self._chain.last
        if self.flushed >= self.dirty or last is None:
            return None
        first = self._chain.locate(Offset(self.flushed + 1))
        segments = [self._chain[number] for number in range(first, len(self._chain))]
        handles: list[Handle | None] = [None] * len(segments)
        if self._tail.active is not None and self._tail.active.handle is not None:
            handles[-1] = self._tail.active.handle.retain()
        checkpoint = self._unsaved >= self.config.recovery_bytes
        return FlushJob(
            upto=self.dirty,
            truncations=self.truncations,
            point=self._place_of_end(last),
            cleaned=self._cleaned,
            checkpoint=checkpoint,
            index=self._tail.encode_index() if checkpoint else None,
            directory=None if all(each.named for each in segments) else self._directory,
            segments=segments,
            handles=handles,
            disk=self._disk,
            state=self._state,
        )

    def finish_flush(self, job: FlushJob) -> Offset:
        """Credit a job that has run; nothing, if a truncation came between. Return flushed."""
        job.release()
        if self._error is not None or job.truncations != self.truncations:
            return self.flushed
        if not job.done:
            raise LocalError("the flush has not run, or failed")
        for segment in job.segments:
            segment.named = True
        if job.upto > self.flushed:
            self.flushed = job.upto
            self._point = job.point
        self._tail.shrunk = False
        self._tail.synced = job.upto >= self.dirty
        if job.checkpoint:
            self._unsaved = 0
            self._tail.keep_index(job.point.segment, job.index)
        return self.flushed

    def prepare_point(self) -> Callable[[], None] | None:
        """Return a job that saves the recovery point at the end of a log that is all flushed.

        It runs on any thread. A point that cannot be saved makes the next start slower, no more.
        """
        last = self._chain.last
        if self._closed or self._error is not None or last is None:
            return None
        if self.flushed < self.dirty or not self._unsaved:
            return None
        point, truncations, cleaned = self._place_of_end(last), self.truncations, self._cleaned
        self._tail.store_index()
        self._unsaved = 0
        return lambda: _ignore(self._state.raise_point(point, truncations, cleaned))

    def poison(self, error: OSError) -> None:
        """Refuse appends and flushes from now on: a sync failed."""
        if self._error is None:
            self._error = error
            leave_marker(self._disk, self._directory)

    def _place_of_end(self, last: Segment) -> RecoveryPoint:
        position = WHOLE if self._tail.active is None else last.size
        return RecoveryPoint(last.last, last.base, position)

    # --- Truncation ------------------------------------------------------------------------------

    @telling
    def truncate_suffix(self, first_removed: Offset) -> None:
        """Remove everything from an offset on; it must not be inside a batch.

        The recovery point is lowered first, then whole segments go, then the last one is cut: that
        is the order recovery depends on. The cut of a file is durable with the next flush, or
        before the next segment is created. A cut inside a gap leaves a placeholder at its end, so
        that dirty is again the last offset of a batch.
        """
        self._check_usable()
        if first_removed < self.start:
            raise LocalError(f"a cut at {first_removed}, and the log starts at {self.start}")
        if first_removed > self.dirty:
            return
        number = self._chain.locate(first_removed)
        segment = self._chain[number]
        with self._reporting(f"could not be cut at offset {first_removed}"):
            self._sync_names()
        # Also if the log starts inside the segment: what is left of it is below the start.
        whole = first_removed in (segment.base, self.start)
        cut = Cut(0, Offset(first_removed - 1))
        if not whole:
            cut = self._reader.find_cut(segment, first_removed)
        place = RecoveryPoint(cut.last, segment.base, cut.position)
        if not cut.position:
            place = self._place_before(number)
        with self._reporting(f"could not be cut at offset {first_removed}"):
            self._state.lower_point(place)
        with self._poisoning(f"could not be cut at offset {first_removed}"):
            if whole:
                self._tail.remove_from(number)
            else:
                self._tail.cut(number, cut, self._clock())
                if cut.last < first_removed - 1:
                    self._tail.hold(placeholder(Offset(first_removed - 1), segment.term))
        self._fall_to(Offset(first_removed - 1), place)

    def _place_before(self, number: int) -> RecoveryPoint:
        """Return the end of the segment before `number`, which is a closed one."""
        if number:
            before = self._chain[number - 1]
            return RecoveryPoint(before.last, before.base, WHOLE)
        return RecoveryPoint(Offset(self.start - 1), NO_OFFSET, 0)

    def _fall_to(self, dirty: Offset, place: RecoveryPoint) -> None:
        """Let the ends of the log fall; everything up to `place` is as it was."""
        self.dirty = dirty
        if self._point.offset > place.offset:
            self._point = place
        self.flushed = max(min(self.flushed, place.offset), Offset(self.start - 1))
        self._cleaned = min(self._cleaned, place.offset)
        if self._run is not None:
            self._run.cut(Offset(dirty + 1))

    def truncate_prefix(self, first_kept: Offset, prefix_term: Term) -> None:
        """Let the log start at an offset; segments that end below it are removed."""
        self._check_usable()
        if first_kept <= self.start:
            return
        if first_kept > self.dirty + 1:
            raise LocalError(f"{first_kept} is past the end of the log at {self.dirty}; reset it")
        term = self.term_of(Offset(first_kept - 1))
        if term != prefix_term:
            raise LocalError(f"offset {first_kept - 1} has term {term}, not {prefix_term}")
        number = len(self._chain)
        if first_kept <= self.dirty:
            number = self._chain.locate(first_kept)
        with self._poisoning("could not sync a file that was cut"):
            self._tail.sync_shrunk()
        with self._reporting(f"could not be made to start at offset {first_kept}"):
            self._state.move_start(first_kept, prefix_term)
        self._tail.remove_before(number)
        self.start = first_kept
        self.flushed = max(self.flushed, Offset(first_kept - 1))
        if self._run is not None:
            self._run.drop_below(first_kept)

    def reset(self, start: Offset, prefix_term: Term) -> None:
        """Empty the log and let it start anywhere, after a snapshot that ends just before it.

        What the snapshot does not cover goes first and durably, so that it cannot come back as if
        it followed the snapshot; what it covers goes once the new start is recorded.
        """
        self._check_usable()
        with self._poisoning(f"could not be reset to offset {start}"):
            self._sync_names()
            self._tail.sync_shrunk()
            if self.dirty >= start:
                number = max(self._chain.locate(start), 0)
                self._state.lower_point(self._place_before(number))
                self._tail.remove_from(number)
            else:
                self._state.lower_point(self._state.state.point)
            place = RecoveryPoint(Offset(start - 1), NO_OFFSET, 0)
            self._state.begin(LogState(start, prefix_term, place, Offset(start - 1)))
        self._tail.remove_before(len(self._chain))
        self.start = start
        self.dirty = self.flushed = Offset(start - 1)
        self._point = place
        self._cleaned = Offset(start - 1)
        if self._run is not None:
            self._run.clear()

    def _sync_names(self) -> None:
        """Make names durable that compaction gave: positions count in the files a crash shows.

        What a merge has left over goes first, and durably: it would come back as if it followed
        what is cut, or in the place of a segment that gets its name.
        """
        if self._leftovers:
            self._disk.sync_directory(self._directory)
            self._remove_leftovers()
        if self._renamed:
            self._disk.sync_directory(self._directory)
            self._renamed = False

    def _remove_leftovers(self) -> None:
        """Remove the files; the name of what replaces them is durable."""
        self._renamed = True
        for segment in self._leftovers:
            remove_segment(self._disk, segment)
        self._leftovers = []

    # --- Compaction ------------------------------------------------------------------------------

    def prepare_compaction(
        self, upto: Offset, *, now: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> CompactionJob | None:
        """Fix a round of compaction over closed segments that end at or below `upto`.

        None when a round would change nothing, or all is too young. Data of transactions in
        `aborted` is removed. One round at a time: the next is prepared after this one was finished
        or given up.
        """
        self._check_usable()
        segments = self._old_enough(self._closed_upto(min(upto, self._point.offset)), now)
        if not aborted and not is_due(segments, self._cleaned, self._due, now):
            return None
        if not segments:
            return None
        return CompactionJob(
            disk=self._disk,
            directory=self._directory,
            config=self.config,
            state=self._state,
            segments=segments,
            generations=[segment.generation for segment in segments],
            point=self._closed_point(),
            truncations=self.truncations,
            cleaned=self._cleaned,
            now=now,
            aborted=tuple(aborted),
        )

    def _closed_upto(self, bound: Offset) -> list[Segment]:
        """Return the closed segments that end at or below an offset."""
        closed = len(self._chain) - (self._tail.active is not None)
        segments = (self._chain[number] for number in range(closed))
        return [segment for segment in segments if segment.last <= bound]

    def _closed_point(self) -> RecoveryPoint:
        """Return the recovery point; at the end of a closed segment, whatever its size will be."""
        point = self._point
        segment = self._chain[self._chain.locate(point.offset)]
        open_ended = self._tail.active is not None and segment is self._chain.last
        if segment.last == point.offset and not open_ended:
            return RecoveryPoint(point.offset, segment.base, WHOLE)
        return point

    def finish_compaction(self, job: CompactionJob) -> CompactionResult:
        """Swap in what a round has rewritten, oldest first; nothing if the suffix was truncated."""
        swapped: list[tuple[int, int]] = []
        try:
            if job.done and job.truncations == self.truncations and not self._closed:
                with self._reporting("could not swap in a compacted segment"):
                    swapped = self._swap(job)
                self._cleaned = max(self._cleaned, job.covered)
                self._due = job.due
        finally:
            job.discard()
        return CompactionResult(
            segments=len(swapped),
            bytes_before=sum(before for before, _ in swapped),
            bytes_after=sum(after for _, after in swapped),
            cleaned=self._cleaned,
            due=self._due,
        )

    def _swap(self, job: CompactionJob) -> list[tuple[int, int]]:
        """Rename new files over old ones; return the sizes of each, before and after."""
        if self._run is not None:
            self._run.drop_below(Offset(job.segments[-1].last + 1))
        sizes = []
        for each in job.rewritten:
            segment = each.segment
            if segment in self._chain and segment.generation == each.generation:
                self._renamed = True
                self._tail.replace(segment, each.size, each.max_time)
                sizes.append((each.size_before, each.size))
        return sizes

    # --- Merging ---------------------------------------------------------------------------------

    @telling
    def prepare_merge(self, upto: Offset) -> MergeJob | None:
        """Fix a merge of closed neighbours that end at or below `upto`; None if none is worth it.

        It counts as a round of compaction: one at a time.
        """
        self._check_usable()
        saved = self._state.certain_point
        if self._leftovers or saved is None:
            return None
        place = min(saved.segment, self._point.segment)
        bound = min(upto, self._cleaned, Offset(place - 1))
        known: deque[Segment] = deque()
        looks = MAX_LOOKS
        with self._reporting("could not be looked into"):
            for segment in reversed(self._closed_upto(bound)):
                if not looks:
                    break
                looks -= self._tail.look_at(segment)
                known.appendleft(segment)
        group = find_group(known, self.config)
        if not group:
            return None
        return MergeJob(
            disk=self._disk,
            directory=self._directory,
            config=self.config,
            state=self._state,
            segments=group,
            generations=[segment.generation for segment in group],
            truncations=self.truncations,
        )

    def finish_merge(self, job: MergeJob) -> int:
        """Put the merged file in its place, unless the segments are not what they were.

        Return how many segments there are less. Their files go with the next sweep.
        """
        try:
            if not job.done or self._closed or self._error is not None or not self._fits(job):
                return 0
            if self._run is not None:
                self._run.drop_below(Offset(job.segments[-1].last + 1))
            self._renamed = True
            with self._reporting("could not put a merged segment in its place"):
                self._leftovers = self._tail.join(job.segments, job.size, job.max_time, job.head)
            return len(self._leftovers)
        finally:
            job.discard()

    def _fits(self, job: MergeJob) -> bool:
        """Whether the group that a job has merged is still there, and as it was."""
        return job.truncations == self.truncations and all(
            segment in self._chain and segment.generation == generation
            for segment, generation in zip(job.segments, job.generations, strict=True)
        )

    def prepare_sweep(self) -> SweepJob | None:
        """Return a job after which the files that a merge has left over may go; None: none did."""
        if self._closed or self._error is not None or not self._leftovers:
            return None
        return SweepJob(self._disk, self._directory, self._leftovers)

    def finish_sweep(self, job: SweepJob) -> bool:
        """Remove what the merge left over; say whether all of it is gone."""
        if job.done and job.leftovers is self._leftovers and not self._closed:
            with contextlib.suppress(OSError):  # another sweep tries again
                self._remove_leftovers()
        return not self._leftovers

    # --- End -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, remember where the log ends, and let go of all files."""
        if self._closed:
            return
        try:
            if self._error is None:
                with self._poisoning("could not be flushed"):
                    self._flush_now()
        finally:
            self._closed = True
            self._tail.close()
            self._state.close()
            if self._run is not None:
                self._run.clear()

    def _flush_now(self) -> None:
        job = self.prepare_flush()
        if job is not None:
            job.run()
            self.finish_flush(job)
        self._tail.sync_shrunk()
        self._tail.store_index()
        if self._chain.last is not None:
            place = self._place_of_end(self._chain.last)
            with contextlib.suppress(OSError):  # a full disk: the next start is slower, no more
                self._state.raise_point(place, self.truncations, self._cleaned)

    def _check_usable(self) -> None:
        if self._closed:
            raise LocalError(f"the log in {self._directory} is closed")
        if self._error is not None:
            raise StorageError(
                f"the log in {self._directory} takes nothing since a sync failed: {self._error}. "
                "Open it again.",
                self._error,
            )

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Name the log in an error that left it as it was."""
        try:
            yield
        except DamagedLog:
            raise
        except OSError as error:
            raise StorageError(f"the log in {self._directory} {what}: {error}", error) from error

    @contextlib.contextmanager
    def _poisoning(self, what: str) -> Iterator[None]:
        """Poison the log on an error after which its files are not what it thinks."""
        try:
            with self._reporting(what):
                yield
        except OSError as error:
            self.poison(error)
            raise


def _ignore(_: object) -> None: ...
