"""What a replica does while it leads: accept writes, bring every follower up to date, and decide
what is committed and what is visible.

The commit rule (seed 1): an offset is committed when a majority of voters has it on disk, counted
by min(flushed, match), and it belongs to this leader's own term (Raft 5.4.2). It never passes what
this leader itself has on disk, so that committed always means readable here.

The visibility rule: a relaxed write is shown when a majority has it in memory, but nothing is shown
past a quorum write that is not committed: a reader must not see what its writer may yet be told has
failed. All that earlier leaders left counts as quorum writes, because nobody knows better.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft import quorum
from tidelog.raft.configuration import Configuration
from tidelog.raft.log import last_not_above, term_at
from tidelog.raft.membership import Membership
from tidelog.raft.progress import Progress, State
from tidelog.raft.proposals import Proposal
from tidelog.raft.types import Level, Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Batch, BatchType, Offset, Term, internal_batch

if TYPE_CHECKING:
    from tidelog.raft.core import Core


# What a follower without room is sent with each heartbeat, to see whether it has some again: enough
# for what comes before a batch of the cluster's own, which it may take, and not so much that a
# hundred such followers keep the network busy.
REFUSED_CHUNK: Final = 64 * 1024


@dataclass(slots=True)
class _Transfer:
    token: int
    target: Vnode
    handed_over: bool = False  # timeout-now was sent: this leader only waits to be deposed


@dataclass(frozen=True, slots=True)
class _Barrier:
    token: int
    offset: Offset  # committed when it was asked for
    needs: dict[Vnode, int]  # the first request to each follower that proves leadership


class Leader:
    def __init__(self, core: "Core") -> None:
        self.core = core
        self.term_start = Offset(core.dirty + 1)
        self.progress: dict[Vnode, Progress] = {}
        # Sequences up to here were used by streams to members that left: one that comes back still
        # remembers its old stream, and must not take the new one for older.
        self._retired_seq = 0
        # Proposals whose batches the driver is appending; it reports before the next step.
        self._appending: list[Proposal] = []
        self._fresh: tuple[Batch, ...] = ()  # the batches of those
        # Quorum-level writes of this term that are not committed: (base, last), in log order.
        self._quorum_writes: deque[tuple[Offset, Offset]] = deque()
        self._last_quorum = NO_OFFSET  # end of the newest of them, committed or not
        self._barriers: deque[_Barrier] = deque()
        self._transfer: _Transfer | None = None
        self._membership = Membership(self)
        self._durable = self._durable_of  # bound once: these run for every reply
        self._replicated = self._replicated_of

    def begin(self) -> None:
        """Write the configuration anew: the first batch of the term, which confirms the leader."""
        self.follow_configuration()
        self.append_configuration(self.core.configuration)

    def resign(self) -> None:
        """Somebody else leads, or nobody. Accepted writes stay: their fate is not known yet."""
        core = self.core
        for proposal in self._appending:
            core.refuse(proposal.token, ev.Refusal.UNKNOWN)
        for barrier in self._barriers:
            core.refuse(barrier.token, ev.Refusal.NOT_LEADER)
        if self._transfer is not None:
            if self._transfer.handed_over:
                core.done(self._transfer.token, core.committed)
            else:
                core.refuse(self._transfer.token, ev.Refusal.NOT_LEADER)
        self._membership.abandon()
        core.shipping.abandon_shipment()

    def follow_configuration(self) -> None:
        """Keep a progress for every other member."""
        members = [node for node in self.core.configuration.members if node != self.core.vnode]
        end = Offset(self.core.appended + 1)
        gone = (its.sent_seq + 1 for node, its in self.progress.items() if node not in members)
        self._retired_seq = max(self._retired_seq, *gone, 0)
        self.progress = {
            node: self.progress.get(node) or Progress(end, self._retired_seq) for node in members
        }

    # --- Writes ---------------------------------------------------------------------------------

    def on_propose(self, event: ev.Propose) -> None:
        core = self.core
        size = _size(event.batches)
        why: ev.Refusal | None = None
        if event.expected_term is not None and event.expected_term != core.term:
            why = ev.Refusal.WRONG_TERM
        elif self._transfer is not None:
            why = ev.Refusal.TRANSFERRING
        elif core.proposals.bytes + size > core.options.max_uncommitted_bytes and core.proposals:
            why = ev.Refusal.BUSY
        elif not event.batches:
            why = ev.Refusal.INVALID
        if why is not None:
            core.refuse(event.token, why)
            if event.token == ev.INTERNAL:
                core.shipping.on_failed(ev.SnapshotFailed(why.value))
            return
        self._append(event.token, event.batches, event.level, size)

    def append_configuration(self, configuration: Configuration) -> None:
        batch = internal_batch(BatchType.CONFIGURATION, configuration.encode())
        self._append(ev.INTERNAL, (batch,), Level.QUORUM, batch.size)

    def _append(self, token: int, batches: tuple[Batch, ...], level: Level, size: int) -> None:
        core = self.core
        base = offset = Offset(core.dirty + 1)
        stamped: list[Batch] = []
        for batch in batches:
            stamped.append(batch.stamp(offset, core.term))
            offset = Offset(stamped[-1].last_offset + 1)
        self._appending.append(Proposal(token, base, Offset(offset - 1), core.term, level, size))
        self._fresh = tuple(stamped)
        core.append(self._fresh)

    def on_appended(self) -> None:
        core = self.core
        appending, self._appending = self._appending, []
        wants_flush = False
        for proposal in appending:
            if proposal.token != ev.INTERNAL:
                core.emit(ev.Accepted(proposal.token, proposal.base, proposal.last, proposal.term))
            if proposal.level is Level.QUORUM:
                wants_flush = True
                self._quorum_writes.append((proposal.base, proposal.last))
                self._last_quorum = proposal.last
            if proposal.level <= Level.LEADER:
                core.done(proposal.token, proposal.base)
            elif proposal.token != ev.INTERNAL:
                core.proposals.add(proposal)
        for node, progress in self.progress.items():
            self.replicate(node, progress)
        self._fresh = ()
        if wants_flush:
            core.flush()
        else:
            core.note_unflushed(sum(proposal.size for proposal in appending))
        self.maybe_commit()

    def on_append_failed(self) -> None:
        """The disk is full, say. The leader stays and refuses, so that readers are still served.

        The first batch of its term is tried again with heartbeats. A leader that has nobody to send
        them to stands again instead.
        """
        core = self.core
        changing = any(batch.type is BatchType.CONFIGURATION for batch in self._fresh)
        for proposal in self._appending:
            core.refuse(proposal.token, ev.Refusal.STORAGE)
            if proposal.token == ev.INTERNAL:
                core.shipping.on_failed(ev.SnapshotFailed(ev.Refusal.STORAGE.value))
        self._appending = []
        self._fresh = ()
        self.follow_configuration()
        if core.dirty < self.term_start and not self.progress:
            core.become_follower(core.term, None)
        elif changing and not core.configuration.is_joint:
            self._membership.refused()

    # --- Replication ----------------------------------------------------------------------------

    def replicate(self, node: Vnode, progress: Progress) -> None:
        """Send what this follower lacks, as far as it may be sent now."""
        core = self.core
        options = core.options
        while progress.may_send(options.max_inflight_bytes):
            start = progress.next
            prev = Offset(start - 1)
            prev_term = term_at(core.log, prev)
            if prev_term is None or start < core.log.start:
                progress.become_snapshot()
                core.shipping.offer_install(node)
                return
            batches: tuple[Batch, ...] = ()
            if start <= core.appended and (
                progress.state is State.REPLICATE or start >= self.term_start
            ):
                if self._fresh and self._fresh[0].base_offset == start:
                    batches = self._fresh
                else:
                    size = REFUSED_CHUNK if progress.refused else options.recovery_chunk
                    batches = tuple(core.log.read(start, size, upto=core.appended, fill_gaps=True))
            elif progress.state is State.REPLICATE:
                return  # it has everything
            self._send_append(node, progress, (prev, prev_term), batches)
            progress.sent(batches[-1].last_offset if batches else prev, _size(batches))

    def _send_append(
        self,
        node: Vnode,
        progress: Progress,
        prev: tuple[Offset, Term],
        batches: tuple[Batch, ...],
    ) -> None:
        core = self.core
        flush = False
        if batches:
            last = batches[-1].last_offset
            # Recovery runs without flushes; only its tail asks for one, and only if a quorum
            # write waits for it (seed 1).
            flush = last == core.appended and self._last_quorum > max(
                progress.durable, progress.flush_asked
            )
            if flush:
                progress.flush_asked = last
        # A follower takes marks over only as far as what they came with reaches, so that is how far
        # it was told them: a heartbeat that overtakes data says less than the next one.
        reach = batches[-1].last_offset if batches else prev[0]
        progress.told = (
            min(core.committed, reach),
            min(core.visible, reach),
            core.hard.compacted,
        )
        core.send(
            msg.AppendRequest(
                core.group,
                core.vnode,
                node,
                core.term,
                progress.next_seq(),
                *prev,
                batches,
                core.committed,
                core.visible,
                core.hard.compacted,
                flush,
            )
        )

    def on_beat_due(self, event: ev.BeatDue) -> None:
        """A full heartbeat: tell the marks, ask for the follower's, notice what got lost."""
        core = self.core
        progress = self.progress.get(event.peer)
        if progress is None:
            return
        if core.appended < self.term_start and not self._appending:
            self.append_configuration(core.configuration)  # the disk refused it before
        if progress.is_stuck():
            progress.become_probe(Offset(progress.match + 1))
        core.shipping.on_beat(event.peer, progress)
        if progress.state is State.PROBE:
            progress.become_probe(progress.next)  # the last probe, and what it asked, may be lost
            self.replicate(event.peer, progress)
        else:
            self._beat(event.peer, progress)

    def _beat(self, node: Vnode, progress: Progress) -> None:
        # At `match`, not at `next`: heartbeats overtake data, and must not be refused for it.
        term = term_at(self.core.log, progress.match)
        place = (NO_OFFSET, NO_TERM) if term is None else (progress.match, term)
        self._send_append(node, progress, place, ())

    def quiet(self, peer: Vnode) -> bool:
        core = self.core
        progress = self.progress.get(peer)
        return (
            progress is not None
            and progress.state is State.REPLICATE
            and not progress.inflight
            and progress.success_seq == progress.sent_seq
            and progress.match == progress.dirty == core.dirty
            and progress.flushed == core.flushed
            and progress.told == (core.committed, core.visible, core.hard.compacted)
            and progress.stored >= core.hard.compacted
            and core.shipping.is_quiet()
            and core.appended >= self.term_start
        )

    def on_append_reply(self, reply: msg.AppendReply) -> None:
        core = self.core
        progress = self.progress.get(reply.source)
        if progress is None or not progress.is_news(reply.seq, reply.match):
            return
        progress.saw(reply.dirty, reply.flushed)
        progress.stored = reply.snapshot  # less than before, if its file was found damaged
        if reply.status is msg.Status.SUCCESS:
            if progress.state is State.SNAPSHOT and progress.match + 1 >= core.log.start:
                progress.become_probe(Offset(progress.match + 1))
            progress.matched(min(reply.match, core.appended))
            self._after_progress(reply.source, progress)
        elif reply.status is msg.Status.MISMATCH:
            agreed, _ = last_not_above(
                core.log, min(reply.hint_offset, core.appended), reply.hint_term
            )
            if progress.state is not State.SNAPSHOT:
                progress.become_probe(Offset(agreed + 1))
        else:
            if reply.status is msg.Status.DAMAGED:
                core.emit(ev.DoubtCache())
            progress.refused = reply.status is msg.Status.UNAVAILABLE
            progress.become_probe(Offset(progress.match + 1))
            progress.waiting = True  # until the next heartbeat
        self.replicate(reply.source, progress)

    def installed(self, node: Vnode, offset: Offset) -> None:
        """A follower's log now reaches this offset, which a snapshot of ours covers."""
        progress = self.progress.get(node)
        if progress is not None and progress.state is State.SNAPSHOT:
            progress.match = max(progress.match, min(offset, self.core.committed))
            progress.become_probe(Offset(progress.match + 1))
            self.replicate(node, progress)

    def on_stored(self) -> None:
        """A follower has another snapshot: a change of the configuration may have waited for it."""
        if self._is_leading():
            self._membership.advance()

    def _after_progress(self, node: Vnode, progress: Progress) -> None:
        self.maybe_commit()
        if self._is_leading():
            self._answer_barriers()
        if self._is_leading():
            self._maybe_hand_over(node, progress)
        if self._is_leading():
            self._membership.advance()

    def _is_leading(self) -> bool:
        return self.core.leading is self

    # --- Commit ---------------------------------------------------------------------------------

    def _durable_of(self, node: Vnode) -> Offset:
        if node == self.core.vnode:
            return self.core.flushed
        progress = self.progress.get(node)
        return progress.durable if progress is not None else NO_OFFSET

    def _replicated_of(self, node: Vnode) -> Offset:
        if node == self.core.vnode:
            return self.core.appended
        progress = self.progress.get(node)
        return progress.replicated if progress is not None else NO_OFFSET

    def committable(self) -> Offset:
        """As far as a majority, and this leader, have the log on disk."""
        halves = self.core.configuration.halves
        return min(quorum.reached(halves, self._durable), self.core.flushed)

    def showable(self) -> Offset:
        """As far as a majority has the log in memory and no quorum write is in doubt."""
        replicated = quorum.reached(self.core.configuration.halves, self._replicated)
        return min(replicated, self._shown_at_most())

    def _shown_at_most(self) -> Offset:
        if self._quorum_writes:
            return Offset(self._quorum_writes[0][0] - 1)
        return self.core.appended

    def maybe_commit(self) -> None:
        """Move the marks as far as they go. Every reply asks, so what cannot move costs nothing."""
        core = self.core
        committed, visible = core.committed, core.visible
        if core.flushed > committed:  # commit never passes what is on disk here
            offset = self.committable()
            if offset > committed and offset >= self.term_start:
                core.mark_committed(offset)
                while self._quorum_writes and self._quorum_writes[0][1] <= offset:
                    self._quorum_writes.popleft()
                if core.proposals.has_older(core.term):
                    self._resolve_older_terms()  # they would stand in the way of the younger ones
        if core.confirmed and self._shown_at_most() > core.visible:
            core.show_to(self.showable())
        if core.committed == committed and core.visible == visible:
            return
        for done in core.proposals.resolve_as_leader(core.term, core.committed, core.visible):
            core.emit(done)
        if core.committed > committed:
            # Writers hear of their commit first: the fold reads the log and runs every machine.
            core.shipping.settle()
            self._membership.advance()

    def _resolve_older_terms(self) -> None:
        """Writes that this replica accepted when it led before."""
        core = self.core
        for outcome in core.proposals.resolve_by_commit(
            core.committed, core.log.start, core.log.term_of
        ):
            core.emit(outcome)

    # --- Barriers, transfer, membership ---------------------------------------------------------

    def on_barrier(self, event: ev.Barrier) -> None:
        core = self.core
        if not core.confirmed:
            core.refuse(event.token, ev.Refusal.NOT_READY)
            return
        if len(self._barriers) >= core.options.max_barriers:
            core.refuse(event.token, ev.Refusal.BUSY)
            return
        needs = {node: progress.sent_seq + 1 for node, progress in self.progress.items()}
        self._barriers.append(_Barrier(event.token, core.committed, needs))
        for node, progress in self.progress.items():
            self._beat(node, progress)
        self._answer_barriers()

    def _answer_barriers(self) -> None:
        core = self.core
        while self._barriers:
            barrier = self._barriers[0]

            def confirms(node: Vnode, needs: dict[Vnode, int] = barrier.needs) -> bool:
                progress = self.progress.get(node)
                return node == core.vnode or (
                    progress is not None and progress.success_seq >= needs.get(node, 1)
                )

            if not quorum.agreed(core.configuration.halves, confirms):
                return
            self._barriers.popleft()
            core.done(barrier.token, barrier.offset)

    def on_transfer(self, event: ev.Transfer) -> None:
        core = self.core
        progress = self.progress.get(event.target)
        if self._transfer is not None:
            core.refuse(event.token, ev.Refusal.TRANSFERRING)
        elif core.configuration.is_joint:
            core.refuse(event.token, ev.Refusal.CHANGING)
        elif progress is None or not core.configuration.is_voter(event.target):
            core.refuse(event.token, ev.Refusal.INVALID)
        else:
            self._transfer = _Transfer(event.token, event.target)
            self.replicate(event.target, progress)
            self._maybe_hand_over(event.target, progress)

    def _maybe_hand_over(self, node: Vnode, progress: Progress) -> None:
        transfer = self._transfer
        if transfer is None or transfer.handed_over or transfer.target != node:
            return
        if progress.state is State.REPLICATE and progress.match == self.core.dirty:
            transfer.handed_over = True
            self.send_timeout_now(node)

    def hand_over_blindly(self) -> None:
        """Let the follower that has most of the log stand at once: this leader is about to end.

        It is only told to stand; whether it wins is up to the voters that are left.
        """
        voters = [
            ((each.match, each.success_seq - each.sent_seq), node)
            for node, each in self.progress.items()
            if self.core.configuration.is_voter(node)
        ]
        if voters:
            self.send_timeout_now(max(voters)[1])

    def send_timeout_now(self, node: Vnode) -> None:
        core = self.core
        core.send(msg.TimeoutNow(core.group, core.vnode, node, core.term))

    def on_transfer_expired(self, _: ev.TransferExpired) -> None:
        if self._transfer is None:
            return
        if self._transfer.handed_over:
            # The target may lead by now: writes stay refused until this leader has stepped down.
            self.core.become_follower(self.core.term, None)
        else:
            self.core.refuse(self._transfer.token, ev.Refusal.NOT_READY)
            self._transfer = None

    @property
    def transferring(self) -> bool:
        return self._transfer is not None

    @property
    def changing_to(self) -> tuple[Vnode, ...] | None:
        """The voters that the change under way leads to; None if there is none."""
        return self._membership.target

    def on_change(self, event: ev.ChangeConfiguration) -> None:
        self._membership.change(event)

    def on_cancel(self, event: ev.CancelChange) -> None:
        self._membership.cancel(event)


def _size(batches: tuple[Batch, ...]) -> int:
    return sum(batch.size for batch in batches)
