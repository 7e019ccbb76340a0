"""One partition of a topic as fronts see it: client offsets, bytes, and who leads.

Everything below counts log offsets, in which internal batches have places of their own; fronts and
their clients count data only. The border between the two is here and nowhere else.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from tidelog.cluster.configs import TopicConfig
from tidelog.cluster.groups import Groups, Hosted
from tidelog.cluster.host import Outcome
from tidelog.cluster.tailreads import Chunk, Place
from tidelog.machines import LogStart, Machine, Producers, Standing, UnknownOffset, start_batch
from tidelog.raft import events as ev
from tidelog.raft.epochs import NO_EPOCH
from tidelog.raft.types import GroupId, Level, NodeId
from tidelog.records import (
    NO_TERM,
    NO_TIMESTAMP,
    Batch,
    BatchType,
    Offset,
    Term,
    empty_like,
)

# A compaction begins with a snapshot and a new segment, so it is not done after every write.
COMPACT_EVERY_MS: Final = 60_000
# How long DeleteRecords may take to be known to a majority.
DELETE_TIMEOUT_S: Final = 10.0
_BASE_OFFSET: Final = Struct(">q")


@dataclass(frozen=True, slots=True)
class Produced:
    offset: int  # of the first record; -1 for a duplicate whose place is no longer known


@dataclass(frozen=True, slots=True)
class ProduceFailed:
    why: ev.Refusal


class _Awaited(NamedTuple):
    """A write that is in the log already, and whose writer waits for it to be safe enough."""

    base: Offset
    last: Offset
    term: Term
    level: Level
    copies: int  # voters that must have it, if that is more than the level asks for


class OffsetOutOfRange(LookupError):
    """The log does not hold this offset, or may not show it."""


def machines_of_a_topic() -> list[Machine]:
    return [Producers(), LogStart()]


class Partition:
    def __init__(
        self, groups: Groups, hosted: Hosted, topic: str, index: int, config: TopicConfig
    ) -> None:
        self.topic = topic
        self.index = index
        self.group: GroupId = hosted.group
        self.hosted = hosted
        self.replica = hosted.replica
        self.core = hosted.replica.core
        self._groups = groups
        self._translation = hosted.replica.machines.translation
        self._start = next(
            each for each in hosted.replica.machines.machines if isinstance(each, LogStart)
        )
        self._producers = next(
            each for each in hosted.replica.machines.machines if isinstance(each, Producers)
        )
        self.closed = False  # this node has no replica any more: nothing moves after this
        # By token. As many as requests are in flight, which the listener bounds.
        self._awaited: dict[int, _Awaited] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._seen: tuple[object, ...] = ()
        # What `bounds` said last, and of what.
        self._bounds = (0, 0, 0)
        self._bounds_of: tuple[int, ...] = ()
        self._snapshotting = False
        self._snapshot_at = 0  # when the last one began, in milliseconds
        self.closed = False  # this node has the replica no more
        self.config = config
        self.configure(config)
        hosted.on_touched = self._touched

    def configure(self, config: TopicConfig) -> None:
        """Take over settings that were changed."""
        self.config = config
        self.hosted.flush_ms = config.flush_ms
        self.replica.log.configure(config.log_config())
        self.replica.cleans = config.compacts

    # --- Who leads, how far ---------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """A confirmed leader whose machines know everything: it may take and show writes."""
        return self.core.ready and self.replica.lost is None

    @property
    def leader(self) -> NodeId | None:
        return None if self.core.leader is None else self.core.leader.id

    @property
    def epoch(self) -> int:
        """The term of the last leader known to be confirmed; -1 if there is none."""
        epoch = self.core.epoch
        return NO_EPOCH if epoch == NO_TERM else epoch

    @property
    def failed(self) -> str | None:
        """Why this replica refuses everything."""
        return self.replica.lost or self.replica.failed

    @property
    def log_start(self) -> int:
        return self._translation.to_client(self._first())

    @property
    def high_watermark(self) -> int:
        """The first offset that readers may not see."""
        return self._client(Offset(self.core.readable + 1))

    @property
    def end(self) -> int:
        return self._client(Offset(self.core.appended + 1))

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Start, high watermark and end. Every fetch asks, mostly of a log that did not move."""
        core = self.core
        now = (core.readable, core.appended, self._first(), self._translation.changes)
        if now != self._bounds_of:
            self._bounds = (self.log_start, self.high_watermark, self.end)
            self._bounds_of = now
        return self._bounds

    @property
    def size(self) -> int:
        """Bytes of the log on disk; 0 if its files cannot be asked."""
        with contextlib.suppress(OSError):
            return self.replica.log.size()
        return 0

    def in_sync(self) -> tuple[NodeId, ...]:
        """On a leader, the voters that have all that readers may see."""
        core = self.core
        in_sync = [core.vnode.id]
        for node in core.configuration.voters:
            progress = core.progress.get(node)
            if progress is not None and progress.replicated >= core.visible:
                in_sync.append(node.id)
        return tuple(sorted(in_sync))

    def holders(self, offset: int) -> tuple[NodeId, ...]:
        """On a leader, the other replicas that have all there is below this offset."""
        try:
            last = self._translation.to_log(Offset(offset)) - 1
        except UnknownOffset:
            return ()
        progress = self.core.progress.items()
        return tuple(node.id for node, each in progress if each.replicated >= last)

    def _first(self) -> Offset:
        return max(self.replica.log.start, self._start.offset)

    def _client(self, offset: Offset) -> int:
        return self._translation.to_client(max(offset, self._first()))

    # --- Write ----------------------------------------------------------------------------------

    def produce(
        self,
        batch: Batch,
        level: Level,
        timeout: float,
        done: Callable[[Produced | ProduceFailed], None],
    ) -> None:
        """Write one batch; `done` is called once, perhaps before this returns.

        What an idempotent producer sends again is not written again: it is answered as the original
        was, or will be.
        """

        def resolve(outcome: Outcome) -> None:
            if isinstance(outcome, ev.Done):
                if level >= Level.MEMORY and self.config.min_insync_replicas > 1:
                    last = Offset(outcome.offset + batch.last_offset_delta)
                    copies = self.config.min_insync_replicas
                    if self._copies(last, level) < copies:
                        self._await(outcome.offset, last, level, copies, timeout, done)
                        return
                done(Produced(self._place(outcome.offset)))
            elif isinstance(outcome, ev.Refused):
                if outcome.why is ev.Refusal.BUSY and batch.producer_id >= 0:
                    verdict = self._producers.check(batch)
                    if verdict.standing is Standing.DUPLICATE:
                        self._await(verdict.base, verdict.last, level, 1, timeout, done)
                        return
                done(ProduceFailed(outcome.why))

        self._groups.touch(self.hosted)
        self.replica.produce(self._groups.expect(timeout, resolve, self.hosted), batch, level)

    def _await(
        self,
        base: Offset,
        last: Offset,
        level: Level,
        copies: int,
        timeout: float,
        done: Callable[[Produced | ProduceFailed], None],
    ) -> None:
        """Answer when a batch of the log is as safe as its writer wants it."""

        def resolve(outcome: Outcome) -> None:
            self._awaited.pop(token, None)
            if isinstance(outcome, ev.Done):
                done(Produced(self._place(base)))
            elif isinstance(outcome, ev.Refused):
                done(ProduceFailed(outcome.why))

        token = self._groups.expect(timeout, resolve, self.hosted)
        awaited = _Awaited(base, last, Term(self._term_of(last)), level, copies)
        self._awaited[token] = awaited
        self._settle(token, awaited)

    def _settle(self, token: int, awaited: _Awaited) -> None:
        core = self.core
        if self.closed:
            self._groups.resolved(ev.Refused(token, ev.Refusal.NOT_LEADER))
            return
        reached = {Level.QUORUM: core.committed, Level.MEMORY: core.visible}.get(
            awaited.level, core.appended
        )
        if reached < awaited.last:
            return
        if awaited.last >= self.replica.log.start and self._term_of(awaited.last) != awaited.term:
            self._groups.resolved(ev.Refused(token, ev.Refusal.TRUNCATED))
        elif self._copies(awaited.last, awaited.level) >= awaited.copies:
            self._groups.resolved(ev.Done(token, awaited.base))

    def _copies(self, last: Offset, level: Level) -> int:
        """How many voters have everything up to this offset, this one included."""
        core = self.core
        count = 1
        for node in core.configuration.voters:
            progress = core.progress.get(node)
            if progress is not None:
                has = progress.durable if level is Level.QUORUM else progress.replicated
                count += has >= last
        return count

    def _place(self, offset: Offset) -> int:
        try:
            return self._translation.to_client(offset)
        except UnknownOffset:
            return -1

    # --- Read -----------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto: int | None = None) -> Chunk:
        """Whole batches from the one that holds `offset`, at least one if there is one to show.

        `upto`: no offset at or beyond this; by default the high watermark.
        """
        start, mark, end = self.bounds
        limit = mark if upto is None else min(upto, end)
        if not start <= offset <= max(limit, start):
            raise OffsetOutOfRange(
                f"offset {offset} is outside of [{start}, {limit}] of {self.topic}/{self.index}"
            )
        if offset >= limit:
            return Chunk([], 0, offset)
        place = Place(
            self.group, offset, limit, self.replica.log.truncations, self._translation.changes
        )
        chunk = self._groups.tails.get(place)
        if chunk is None or chunk.bytes > max_bytes:
            chunk = self._read(offset, limit, max_bytes)
            if chunk.next_offset >= limit:
                self._groups.tails.put(place, chunk)
        return chunk

    def _read(self, offset: int, limit: int, max_bytes: int) -> Chunk:
        parts: list[bytes | memoryview] = []
        size = 0
        next_offset = offset
        translation = self._translation
        last = Offset(translation.to_log(Offset(limit - 1)))
        position = max(translation.to_log(Offset(offset)), self.replica.log.start)
        while position <= last and size < max_bytes:
            batches = self.replica.log.read(position, max_bytes - size, upto=last)
            if not batches:
                next_offset = limit  # a gap up to the limit
                break
            # It never falls, so where both ends have the same all that lies between has it too.
            delta = translation.delta(batches[-1].last_offset)
            varies = delta != translation.delta(batches[0].last_offset)
            for batch in batches:
                position = Offset(batch.last_offset + 1)
                if batch.type is not BatchType.DATA:
                    continue
                if size and size + batch.size > max_bytes:
                    return Chunk(parts, size, next_offset)
                if varies:
                    # One for the whole batch. Its first offset may lie before the log's start.
                    delta = translation.delta(batch.last_offset)
                if not batch.count and batch.is_compressed:
                    # Compaction by an older release left it. A client would try to unpack it, and
                    # without it a client would never come past a log that ends here.
                    batch = empty_like(batch)
                if delta:
                    parts.append(_BASE_OFFSET.pack(batch.base_offset - delta))
                    parts.append(batch.data[8:])
                else:
                    parts.append(batch.data)
                size += batch.size
                next_offset = batch.last_offset - delta + 1
        return Chunk(parts, size, next_offset)

    def offset_at_time(self, timestamp: int) -> tuple[int, int, int] | None:
        """Offset, time and epoch of the first record that readers may see of that time or later."""
        found = self.replica.log.offset_at_time(timestamp, self._first())
        if found is None or found[0] > self.core.readable:
            return None
        offset, time = found
        client = self._client(offset)
        if client >= self.high_watermark:
            return None  # only a batch of ours is late enough
        return client, time, self._term_of(offset)

    def latest_time(self) -> tuple[int, int, int] | None:
        """Offset, time and epoch of the record with the highest time, if readers may see it."""
        time = self.replica.log.max_time()
        return None if time == NO_TIMESTAMP else self.offset_at_time(time)

    def term_of(self, offset: int) -> int:
        """The epoch in which this offset was written; -1 if it is not known."""
        try:
            return self._term_of(self._translation.to_log(Offset(offset)))
        except UnknownOffset:
            return -1

    def _term_of(self, offset: Offset) -> int:
        term = self.replica.log.term_of(offset)
        return -1 if term is None else term

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """The largest epoch not above this one, and the offset at which the next one begins.

        None for an epoch that this log knows nothing of yet; an epoch below all that it knows
        answers itself, with the start of the log.
        """
        log = self.replica.log
        if not 0 <= epoch <= log.last_term:
            return None
        if epoch == log.last_term:
            return epoch, self.end
        term, end = log.term_end(Term(epoch))
        return term, self._client(end)

    # --- The beginning --------------------------------------------------------------------------

    def delete_before(self, offset: int, done: Callable[[int | ProduceFailed], None]) -> None:
        """Make the log begin at `offset`, for good; `done` hears the new start."""
        if not self.core.ready:
            done(ProduceFailed(ev.Refusal.NOT_LEADER))
            return
        if offset <= self.log_start:
            done(self.log_start)
            return

        first = self._translation.to_log(Offset(offset))

        def resolve(outcome: Outcome) -> None:
            if isinstance(outcome, ev.Done):
                self._when_begins_at(first, lambda: done(max(offset, self.log_start)))
            elif isinstance(outcome, ev.Refused):
                done(ProduceFailed(outcome.why))

        token = self._groups.expect(DELETE_TIMEOUT_S, resolve)
        self.hosted.step(ev.Propose(token, (start_batch(first),), Level.QUORUM))

    def _when_begins_at(self, first: Offset, then: Callable[[], None]) -> None:
        """Call back once the fold knows of a deletion: the commit is acknowledged before that."""
        stop: Callable[[], None] = _nothing

        def look() -> None:
            if self._first() >= first or self.closed:
                stop()
                then()

        stop = self.watch(look)
        look()

    def housekeep(self, now: int) -> None:
        """Remove what retention and deletions let go, and compact; called every so often."""
        log, core = self.replica.log, self.core
        if self.failed is not None:
            return
        bound = self._first()
        if self.config.deletes:
            try:
                bound = max(bound, log.retention_bound(now))
            except OSError:  # damage, which the replica was told of, or nothing that lasts
                return
        bound = min(bound, Offset(core.committed + 1))
        if bound > log.start:
            self.replica.truncate_prefix(min(bound, Offset(core.collectible + 1)))
        every = min(COMPACT_EVERY_MS, self.config.max_compaction_lag_ms)
        stale = core.applied > core.collectible and now - self._snapshot_at >= every
        behind = bound > log.start or (self.config.compacts and stale)
        if behind and core.ready and not self._snapshotting:
            self._snapshotting = True
            self._snapshot_at = now
            token = self._groups.expect(60, self._snapshotted)
            self.hosted.step(ev.Compact(token))
        self.replica.compact_now()  # what an earlier round left, or could not do

    def _snapshotted(self, outcome: Outcome) -> None:
        if not isinstance(outcome, ev.Accepted):
            self._snapshotting = False

    # --- Watching -------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever offsets or leadership moved; the answer takes it back."""
        key = object()
        self._watchers[key] = callback
        return lambda: _forget(self._watchers, key)

    def wake(self) -> None:
        """Let everybody look who waits for something to move."""
        for token, awaited in tuple(self._awaited.items()):
            self._settle(token, awaited)
        for callback in tuple(self._watchers.values()):
            callback()

    def _touched(self) -> None:
        for token, awaited in tuple(self._awaited.items()):
            self._settle(token, awaited)
        core = self.core
        seen = (core.readable, core.appended, core.role, core.term, core.ready, self._first())
        if seen != self._seen:
            self._seen = seen
            self.wake()


def _forget(watchers: dict[object, Callable[[], None]], key: object) -> None:
    watchers.pop(key, None)


def _nothing() -> None: ...
