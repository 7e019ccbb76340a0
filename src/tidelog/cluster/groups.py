"""All replicas of a node on one event loop: messages in and out, timers, heartbeats, outcomes.

Handlers only step replicas. What steps leave behind is published to the heartbeat table: a changed
role, term or configuration once an iteration of the loop, for all groups that were touched in it; a
follower that is quiet or no longer so before the next heartbeat, which is all it matters to. One
timer drives the heartbeats and elections of all groups; one drives flushes that nobody asked for.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidelog.cluster.executor import VOTE, Executor
from tidelog.cluster.host import Job, Outcome
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.pace import ElectionPace
from tidelog.cluster.replica import Replica
from tidelog.cluster.tailreads import TailReads
from tidelog.machines import Machine
from tidelog.raft import events as ev
from tidelog.raft.admission import Objection
from tidelog.raft.beats import Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.groupset import CorruptBeat
from tidelog.raft.messages import AppendReply, Ballot, Message, VoteRequest
from tidelog.raft.types import GroupId, NodeId, Role, Vnode
from tidelog.storage import (
    BatchCache,
    DamagedLog,
    Disk,
    FileBudget,
    LogConfig,
    OpenEnds,
    SegmentPool,
    wall_ms,
)

log = logging.getLogger(__name__)

# Outcomes that nobody gets to hear of any more are dropped after the caller's own deadline; how
# often that is looked after.
SWEEP_S: Final = 0.5
# When to stand again after the leader's node was found to be gone.
SUSPECT_AGAIN_S: Final = (0.08, 0.1, 0.2, 0.4)
# A leader that lost its majority may be cut off for long. Its writers wait no longer than this for
# somebody who knows what became of their writes: they had better ask the next leader.
ORPHANED_S: Final = 1.0


class Wire(Protocol):
    """The part of `rpc.Network` that replicas need."""

    def send(self, node_id: NodeId, message: Message) -> None: ...

    def send_beat(self, node_id: NodeId, body: bytes) -> None: ...


class Hosted:
    """One replica and what its host keeps for it."""

    def __init__(self, groups: "Groups", group: GroupId, flush_ms: int) -> None:
        self.group = group
        self.flush_ms = flush_ms
        self.replica: Replica
        self.on_role: Callable[[ev.RoleChanged], None] = lambda _: None
        # Something moved (offsets, roles): watchers look again. Called once an iteration.
        self.on_touched: Callable[[], None] = lambda: None
        # Role, term and configuration as the heartbeat table knows them.
        self.published: tuple[object, ...] = ()
        self._groups = groups
        self._flush_timer: asyncio.TimerHandle | None = None
        # One for each job that is queued or runs. Any thread takes out, and that is atomic.
        self._jobs: deque[None] = deque()

    @property
    def idle(self) -> bool:
        """Whether no job of this replica may touch its files any more."""
        return not self._jobs

    def step(self, event: ev.Event) -> None:
        self._groups.touch(self)
        self.replica.step(event)

    # --- cluster.replica.Host -------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self._groups.wire.send(message.target.id, message)

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        groups = self._groups
        timed = groups.pace.timed(job, groups.now) if lane == VOTE else job

        def finish(error: OSError | None) -> None:
            if lane == VOTE:
                groups.pace.end()
            if groups.get(self.group) is self:
                groups.touch(self)
                done(error)

        self._jobs.append(None)
        groups.executor.submit(lane, lambda: self._work(timed), finish)

    def _work(self, job: Job) -> Callable[[], None] | None:
        """Do a job in a thread, and count it as ended with the last of what it leaves to do."""
        rest: Callable[[], None] | None = None
        try:
            rest = job()
        finally:
            if rest is None:
                self._jobs.pop()
        return None if rest is None else lambda: self._finish(rest)

    def _finish(self, rest: Callable[[], None]) -> None:
        try:
            rest()
        finally:
            self._jobs.pop()

    def resolved(self, outcome: Outcome) -> None:
        self._groups.resolved(outcome)

    def role_changed(self, change: ev.RoleChanged) -> None:
        self.on_role(change)

    def heard_leader(self) -> None:
        core = self.replica.core
        self._groups.beats.heard(self.group, core.leader, core.term, self._groups.now())

    def leader_alive(self) -> bool:
        return self._groups.beats.leader_alive(self.group, self._groups.now())

    def arm_flush(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._groups.loop.call_later(self.flush_ms / 1000, self._flush)

    def now(self) -> int:
        return self._groups.now()

    def _flush(self) -> None:
        self._flush_timer = None
        self.step(ev.FlushDue())

    def heir(self, is_alive: Callable[[NodeId], bool]) -> Vnode | None:
        """The voter that has most of the log, if this replica leads and is to hand over."""
        core = self.replica.core
        able = [
            (progress.match, voter)
            for voter, progress in core.progress.items()
            if core.configuration.is_voter(voter) and is_alive(voter.id)
        ]
        return max(able)[1] if able else None

    def close(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self.replica.close()


class Groups:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: Wire,
        executor: Executor,
        beats: Beats,
        disk: Disk,
        cache: BatchCache,
        files: FileBudget,
    ) -> None:
        self.loop = loop
        self.wire = wire
        self.executor = executor
        self.beats = beats
        self.pace = ElectionPace(beats.options.election_timeout_ms)
        self.cache = cache
        self.disk = disk
        self.pool = SegmentPool(files.segments)  # of the closed segments of all logs
        self.ends = OpenEnds(files.ends)  # and of the open ones
        self.tails = TailReads()
        self.on_dropped: Callable[[Objection], None] = lambda _: None  # a message, by a replica
        self.snapshots_set_aside = 0  # files that were found damaged
        self._hosted: dict[GroupId, Hosted] = {}
        self._touched: dict[GroupId, Hosted] = {}
        self._moved: dict[GroupId, Hosted] = {}  # touched since the last heartbeat
        self._publishing = False
        self._tokens = itertools.count(1)
        # By token: until when, who wants to know, and whose writer that is.
        self._waiting: dict[int, tuple[float, Callable[[Outcome], None], Hosted | None]] = {}
        self._beat_timer: asyncio.TimerHandle | None = None
        self._beat_due = 0  # when that timer ends
        self._sweep_timer = loop.call_later(SWEEP_S, self._sweep)

    def now(self) -> int:
        """Milliseconds on a clock that never goes back."""
        return time.monotonic_ns() // 1_000_000

    def get(self, group: GroupId) -> Hosted | None:
        return self._hosted.get(group)

    def __iter__(self) -> "itertools.chain[Hosted]":
        return itertools.chain(tuple(self._hosted.values()))

    def load(
        self,
        group: GroupId,
        directory: str,
        *,
        vnode: Vnode,
        initial: Configuration | None,
        options: Options,
        log_config: LogConfig,
        flush_ms: int,
        machines: Callable[[], Sequence[Machine]],
        known: bool,
        legacy: Legacy | None = None,
    ) -> Hosted:
        """Open a replica, without letting it take part: any thread may do that.

        `known` tells whether it may have taken part before: see `Replica.open`.
        """
        hosted = Hosted(self, group, flush_ms)
        hosted.replica = Replica.open(
            hosted,
            self.disk,
            directory,
            group=group,
            vnode=vnode,
            initial=initial,
            options=options,
            log_config=log_config,
            machines=machines,
            cache=self.cache,
            clock=wall_ms,
            known=known,
            legacy=legacy,
        )
        hosted.replica.on_dropped = self.on_dropped
        for damage in hosted.replica.snapshots.set_aside:
            self.was_set_aside(damage)
        return hosted

    def was_set_aside(self, damage: DamagedLog) -> None:
        """Report a snapshot that its replica does without from now on."""
        self.snapshots_set_aside += 1
        log.error(
            "%s is damaged and set aside: %s. The replica does without it",
            damage.path,
            damage.reason,
        )

    def admit(self, hosted: Hosted) -> None:
        """Let a replica take part that was loaded."""
        replica = hosted.replica
        self.beats.add(hosted.group, replica.core.vnode, self.now())
        replica.log.share_files(self.pool, self.ends)
        self._hosted[hosted.group] = hosted
        self.touch(hosted)
        replica.start()
        self._schedule_beat()

    def close(self, group: GroupId) -> None:
        hosted = self._hosted.pop(group)
        self._touched.pop(group, None)
        self._moved.pop(group, None)
        self.beats.remove(group)
        hosted.close()

    def close_all(self) -> None:
        for timer in (self._beat_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for group in tuple(self._hosted):
            self.close(group)

    # --- Outcomes -------------------------------------------------------------------------------

    def expect(
        self, timeout: float, done: Callable[[Outcome], None], writer: "Hosted | None" = None
    ) -> int:
        """Return a token; `done` hears every outcome under it, and UNKNOWN after the timeout.

        Whoever writes to a replica names it, and is told UNKNOWN soon if that loses its majority.
        """
        token = next(self._tokens)
        self._waiting[token] = (self.loop.time() + timeout, done, writer)
        return token

    def _orphan_writers(self, hosted: Hosted) -> None:
        latest = self.loop.time() + ORPHANED_S
        for token, (deadline, done, writer) in self._waiting.items():
            if writer is hosted and deadline > latest:
                self._waiting[token] = (latest, done, writer)  # keeps its place: no key is new

    def resolved(self, outcome: Outcome) -> None:
        waiting = self._waiting.get(outcome.token)
        if waiting is None:
            return
        if not isinstance(outcome, ev.Accepted):
            del self._waiting[outcome.token]
        waiting[1](outcome)

    def _sweep(self) -> None:
        now = self.loop.time()
        for token in [token for token, each in self._waiting.items() if each[0] < now]:
            _, done, _ = self._waiting.pop(token)
            done(ev.Refused(token, ev.Refusal.UNKNOWN))
        self._sweep_timer = self.loop.call_later(SWEEP_S, self._sweep)

    async def ask(
        self, hosted: Hosted, event: Callable[[int], ev.Event], timeout: float
    ) -> Outcome:
        """Step with an event that carries a token, and return how it ended."""
        ended: asyncio.Future[Outcome] = self.loop.create_future()

        def resolve(outcome: Outcome) -> None:
            if not isinstance(outcome, ev.Accepted) and not ended.done():
                ended.set_result(outcome)

        hosted.step(event(self.expect(timeout, resolve)))
        return await ended

    async def transfer(self, hosted: Hosted, target: Vnode, timeout: float) -> Outcome:
        """Hand leadership of a group over; given up after the timeout."""
        expiry = self.loop.call_later(timeout, self._expire_transfer, hosted)
        try:
            return await self.ask(hosted, lambda token: ev.Transfer(token, target), timeout + 1)
        finally:
            expiry.cancel()

    def _expire_transfer(self, hosted: Hosted) -> None:
        if self.get(hosted.group) is hosted:
            hosted.step(ev.TransferExpired())

    def stand(self, hosted: Hosted, again: tuple[float, ...]) -> None:
        """Let a replica stand without waiting for a timeout, and again after these pauses.

        Pre-votes disturb nobody: where there is a leader, they are refused.
        """
        core = hosted.replica.core
        if self.get(hosted.group) is not hosted or hosted.leader_alive():
            return
        # A candidate's own vote may be on its way to the disk. Without room, the timer that a
        # suspicion has set waits for its turn.
        if core.role is not Role.CANDIDATE and self.pace.room:
            hosted.step(ev.ElectionTimeout())
        if again:
            self.loop.call_later(again[0], self.stand, hosted, again[1:])

    # --- Messages -------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        hosted = self._hosted.get(message.group)
        if hosted is None or (_asks_for_a_vote_to_come(message) and not self.pace.room):
            return
        core = hosted.replica.core
        if (
            isinstance(message, AppendReply)
            and message.target == core.vnode
            and message.term == core.term
        ):
            self.beats.replied(message.group, message.source, self.now())
        hosted.step(message)

    def receive_beat(self, sender: NodeId, body: bytes) -> bytes:
        """Take a light heartbeat and return the answer; raises `CorruptBeat`."""
        return self.beats.heard_light(sender, body, self.now())

    def receive_beat_reply(self, sender: NodeId, body: bytes) -> None:
        try:
            self.beats.light_reply(sender, body, self.now())
        except CorruptBeat as error:
            log.warning("malformed heartbeat reply from node %s: %s", sender, error)

    def suspect(self, node: NodeId) -> None:
        """A node seems to be gone: do not wait long for the leaders it had.

        The replica that stands first may be behind another, which then stands in its turn.
        """
        self.beats.suspect(node, self.now())
        self._schedule_beat()
        for hosted in self:
            leader = hosted.replica.core.leader
            if leader is not None and leader.id == node:
                self.loop.call_later(SUSPECT_AGAIN_S[0], self.stand, hosted, SUSPECT_AGAIN_S[1:])

    # --- Timers ---------------------------------------------------------------------------------

    def touch(self, hosted: Hosted) -> None:
        """Something of this group may have changed: look at it at the end of this iteration."""
        self._touched[hosted.group] = hosted
        if not self._publishing:
            self._publishing = True
            self.loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = False
        touched, self._touched = self._touched, {}
        for group, hosted in touched.items():
            core = hosted.replica.core
            if hosted.published != (core.role, core.term, core.configuration):
                self._publish_one(hosted)
            else:
                self._moved[group] = hosted
            hosted.on_touched()
        self._schedule_beat()

    def _publish_one(self, hosted: Hosted) -> None:
        core = hosted.replica.core
        hosted.published = (core.role, core.term, core.configuration)
        self.beats.publish(
            hosted.group, core.role, core.term, core.configuration, core.quiet, self.now()
        )

    def _schedule_beat(self) -> None:
        """Call `_beat` in time. It may be called early, which costs less than setting timers."""
        now = self.now()
        due = self.beats.next_due(now)
        if self._beat_timer is not None:
            if self._beat_due <= due:
                return
            self._beat_timer.cancel()
        self._beat_due = due
        self._beat_timer = self.loop.call_later(max(0, due - now) / 1000, self._beat)

    def _beat(self) -> None:
        self._beat_timer = None
        now = self.now()
        self.beats.overslept(now - self._beat_due, now)
        moved, self._moved = self._moved, {}
        for hosted in moved.values():
            self._publish_one(hosted)
        due = self.beats.tick(self.now(), self.pace.room)
        for group in due.elections:
            self._hosted[group].step(ev.ElectionTimeout())
        for group in due.quorum_lost:
            self._hosted[group].step(ev.QuorumLost())
            self._orphan_writers(self._hosted[group])
        for group, peer in due.full:
            self._hosted[group].step(ev.BeatDue(peer))
        for node, body in due.light.items():
            self.wire.send_beat(node, body)
        self._schedule_beat()


def _asks_for_a_vote_to_come(message: Message) -> bool:
    return isinstance(message, VoteRequest) and message.ballot is Ballot.PREVOTE
