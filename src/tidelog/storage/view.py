"""The half of a log that changes nothing: offsets, terms, reads, and how a log looks.

Nothing here appends, flushes or cuts; `log.py` does, and keeps the fields below true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import update_wrapper
from itertools import takewhile
from typing import Concatenate, ParamSpec, TypeVar

from tidelog.records import NO_TERM, NO_TIMESTAMP, Batch, Offset, Term
from tidelog.storage import reader
from tidelog.storage.cache import CachedRun
from tidelog.storage.config import LogConfig
from tidelog.storage.describe import LogDescription, SegmentDescription, draw, gaps_of
from tidelog.storage.disk import Disk
from tidelog.storage.errors import DamagedLog, LocalError
from tidelog.storage.reader import Reader
from tidelog.storage.recovery import Recovered
from tidelog.storage.retention import Retainable, retention_bound
from tidelog.storage.segment import UNKNOWN, Segment
from tidelog.storage.state import WHOLE, RecoveryPoint, StateFile
from tidelog.storage.tail import Tail
from tidelog.storage.verifying import VerifyJob

_P = ParamSpec("_P")
_T = TypeVar("_T")
_L = TypeVar("_L", bound="ReadableLog")


def telling(
    method: Callable[Concatenate[_L, _P], _T],
) -> Callable[Concatenate[_L, _P], _T]:
    """Let the owner of the log know of damage that this method finds, before its caller does.

    Many ask a log, and none of them but its owner can tell what damage means for the replica.
    """

    def told(self: _L, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(self, *args, **kwargs)
        except DamagedLog as damage:
            self.on_damage(damage)
            raise

    update_wrapper(told, method)
    return told


class ReadableLog:
    """What can be asked of a log."""

    start: Offset  # first offset of the log; <= dirty + 1
    dirty: Offset  # last offset appended, start - 1 if there is none
    flushed: Offset  # last offset that a crash cannot take; start - 1 <= flushed <= dirty

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        state: StateFile,
        found: Recovered,
        tail: Tail,
        run: CachedRun | None,
    ) -> None:
        self.config = config
        self._directory = directory
        self._state = state
        self._tail = tail
        self._chain = found.chain
        self._run = run  # this log's part of the cache
        self._reader = Reader(found.chain, run, tail.open, tail.head, config.index_interval)
        self._point = found.point  # a place at or below `flushed`: where a restart could begin
        self.start = state.state.start
        self.dirty = self.flushed = found.dirty
        # Called with what was found damaged, each time it is met.
        self.on_damage: Callable[[DamagedLog], None] = _ignore_damage

    @property
    def truncations(self) -> int:
        """Suffix truncations since the log was opened."""
        return self._state.truncations

    @property
    def prefix_term(self) -> Term:
        """Term of the offset before `start`; NO_TERM if unknown."""
        return self._state.state.prefix_term

    @property
    def last_term(self) -> Term:
        """Term of the last offset; of an empty log, that of the offset before it."""
        last = self._chain.last
        return self.prefix_term if last is None else last.term

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self._chain)

    # --- Read ------------------------------------------------------------------------------------

    @telling
    def read(
        self,
        start: Offset,
        max_bytes: int,
        *,
        upto: Offset | None = None,
        fill_gaps: bool = False,
    ) -> list[Batch]:
        """Return batches from the one that holds or follows `start`, no batch past `upto`.

        At least one batch if there is one, even if it is larger than `max_bytes`. With `fill_gaps`
        ghosts make the result contiguous from `start`; they count as bytes, and never come last.
        """
        if start < self.start:
            raise LocalError(f"offset {start} is below {self.start}, the start of the log")
        end = self.dirty if upto is None else min(upto, self.dirty)
        batches = self._reader.read(start, max_bytes, end)
        return reader.fill_gaps(start, batches, max_bytes) if fill_gaps else batches

    def term_of(self, offset: Offset) -> Term | None:
        """Return the term of an offset the log covers, or of the one before if that is known."""
        if self.start <= offset <= self.dirty:
            return self._chain[self._chain.locate(offset)].term
        if offset == self.start - 1 and self.prefix_term != NO_TERM:
            return self.prefix_term
        return None

    def term_end(self, term: Term) -> tuple[Term, Offset]:
        """Return the largest term <= `term` and where the next one begins: Kafka's floor rule.

        A term below all that the log knows answers itself, with the start of the log, or the offset
        before it if that is known to be of a later term: whoever read on from there in the old term
        read what was truncated since.
        """
        segment = self._chain.floor(term)
        if segment is not None:
            return segment.term, Offset(segment.last + 1)
        if NO_TERM < self.prefix_term <= term or self.last_term == NO_TERM:
            return self.prefix_term, self.start
        return term, Offset(self.start - (self.prefix_term > term))

    def first_of_term_at(self, offset: Offset) -> Offset:
        """Return the first offset in the log that has the term of `offset`."""
        term = self.term_of(offset)
        if term is None:
            raise LocalError(f"offset {offset} is outside [{self.start}, {self.dirty}]")
        if offset < self.start:
            return offset
        return max(self._chain.first_of_term(term).base, self.start)

    @telling
    def offset_at_time(
        self, timestamp: int, start: Offset | None = None
    ) -> tuple[Offset, int] | None:
        """Return offset and time of the first record of that time or later, from `start` on."""
        return self._reader.at_time(timestamp, self.start if start is None else start)

    @telling
    def max_time(self) -> int:
        """Return the highest time of a record, NO_TIMESTAMP if there is none."""
        segments = (self._retainable(segment) for segment in self._chain)
        return max((segment.max_time for segment in segments), default=NO_TIMESTAMP)

    @telling
    def last_configuration(self, upto: Offset) -> Batch | None:
        """Return the newest configuration that begins at or below `upto`."""
        return self._reader.last_configuration(min(upto, self.dirty), self.start)

    # --- Retention -------------------------------------------------------------------------------

    @telling
    def retention_bound(
        self,
        now: int,
        *,
        retention_bytes: int | None = None,
        retention_ms: int | None = None,
    ) -> Offset:
        """Return the first offset to keep by size and age; limits not given are the config's.

        Looks into every segment once, then remembers.
        """
        return retention_bound(
            self.start,
            [self._retainable(segment) for segment in self._chain],
            now=now,
            retention_bytes=retention_bytes or self.config.retention_bytes,
            retention_ms=retention_ms or self.config.retention_ms,
        )

    def _retainable(self, segment: Segment) -> Retainable:
        if segment.max_time is None or segment.size == UNKNOWN:
            opened = self._tail.open(segment)
            index = opened.need_index(segment, self.config.index_interval)
            return Retainable(segment.last, segment.size, index.max_time)
        return Retainable(segment.last, segment.size, segment.max_time)

    def _old_enough(self, segments: list[Segment], now: int) -> list[Segment]:
        """Return the segments before the first that is too young to be compacted."""
        lag = self.config.min_compaction_lag_ms
        if lag is None:
            return segments
        return [*takewhile(lambda each: self._retainable(each).max_time <= now - lag, segments)]

    @telling
    def size(self) -> int:
        """Return the bytes of all segments. Looks into every segment once, then remembers."""
        return sum(self._retainable(segment).size for segment in self._chain)

    # --- Verification ----------------------------------------------------------------------------

    def verifiable(self) -> list[Offset]:
        """Return the bases of the segments that a job can verify, oldest first."""
        bases = [segment.base for segment in self._chain]
        return bases if self._place_of_verified() is not None else bases[:-1]

    def _place_of_verified(self) -> RecoveryPoint | None:
        """Return how far the last segment may be verified; None if nothing of it is flushed."""
        last = self._chain.last
        if last is None or (self._tail.active is not None and self._point.segment != last.base):
            return None
        return self._point

    @property
    def verifiable_end(self) -> Offset:
        """The last offset that jobs can verify now; it follows what is flushed."""
        last = self._chain.last
        if last is None:
            return Offset(self.start - 1)
        place = self._place_of_verified()
        if place is None:
            return Offset(last.base - 1)
        return place.offset if self._tail.active is not None else last.last

    def verify_job(self, disk: Disk, base: Offset) -> VerifyJob | None:
        """Prepare to verify the segment that begins at an offset; None if there is none now."""
        number = self._chain.locate(base)
        if number < 0 or self._chain[number].base != base:
            return None
        segment = self._chain[number]
        place = Segment(self._directory, segment.base, segment.term)
        place.last = segment.last
        if self._tail.active is not None and segment is self._chain.last:
            point = self._place_of_verified()
            if point is None or point.position == WHOLE:
                return None
            place.last, place.size = point.offset, point.position
        return VerifyJob(disk, segment, place, segment.generation, self.truncations)

    def confirm(self, job: VerifyJob) -> DamagedLog | None:
        """Return the damage that a job found, unless the file changed in the meantime."""
        return job.damage if self.is_as_read(job) else None

    def is_as_read(self, job: VerifyJob) -> bool:
        """Whether the file that a job has read was not cut, replaced or removed meanwhile."""
        same = job.segment in self._chain and job.segment.generation == job.generation
        return same and job.truncations == self.truncations

    def names(self) -> dict[str, Offset]:
        """Return the file names of all segments, with their bases."""
        return {segment.path.rpartition("/")[2]: segment.base for segment in self._chain}

    @property
    def directory(self) -> str:
        """Where the segments are."""
        return self._directory

    def missing(self, names: Collection[str], before: Mapping[str, Offset]) -> DamagedLog | None:
        """Return which segment is not among the `names` of a listing.

        `before` is what `names` said before the directory was listed.
        """
        now = self.names()
        for name, base in before.items():
            if name not in names and name in now:  # and not removed, or replaced, in the meantime
                return DamagedLog(f"{self._directory}/{name}", 0, base, "the file is missing")
        return None

    # --- For tools and tests ---------------------------------------------------------------------

    @telling
    def describe(self, newest: int | None = None, upto: Offset | None = None) -> LogDescription:
        """Return the log as its files are, or its `newest` segments of that number.

        Every header is read, for the gaps, but for segments beyond `upto`: the caller knows that
        they have none.
        """
        chosen = list(self._chain)
        segments = tuple(
            SegmentDescription(
                base=segment.base,
                last=segment.last,
                term=segment.term,
                gaps=gaps_of(segment.base, self._reader.walk(segment))
                if upto is None or segment.base <= upto
                else (),
                bytes=self._retainable(segment).size,
            )
            for segment in (chosen if newest is None else chosen[-newest:])
        )
        return LogDescription(self.start, self.dirty, self.flushed, self.prefix_term, segments)

    def draw(self) -> str:
        """Draw batches, gaps and terms in one line."""
        batches = (batch for segment in self._chain for batch in self._reader.walk(segment))
        return draw((batch for batch in batches if batch.last_offset >= self.start), self.start)

    @telling
    def verify(self) -> None:
        """Read everything, checksums included; raise `DamagedLog` at the first fault."""
        self._reader.verify()

    def check_invariants(self) -> None:
        """Raise `LocalError` unless offsets, segments and the recovery point fit together."""
        chain = self._chain
        chain.check_invariants()
        last = chain.last
        end = Offset(self.start - 1) if last is None else last.last
        saved = self._state.state
        claims = (
            (end == self.dirty, f"the last segment ends at {end}"),
            (self.start - 1 <= self.flushed <= self.dirty, "flushed is out of range"),
            (saved.start == self.start, f"the disk says that the log starts at {saved.start}"),
            # A flush that ran and was not credited yet may have raised it past `flushed`.
            (saved.point.offset <= self.dirty, f"the recovery point is {saved.point.offset}"),
            (self._point.offset <= self.flushed, f"the flushed place is {self._point.offset}"),
            (not chain or chain[0].base <= self.start, "the first segment begins too late"),
            (not chain or chain[0].last >= self.start, "the first segment is not needed"),
        )
        for holds, fault in claims:
            if not holds:
                raise LocalError(f"{fault}: {self}")

    def __str__(self) -> str:
        return (
            f"{self._directory} start={self.start} flushed={self.flushed} dirty={self.dirty} "
            f"term={self.last_term} segments={self.segments}"
        )


def _ignore_damage(_: DamagedLog) -> None: ...
