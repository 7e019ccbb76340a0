"""The consensus core of one replica: events in, outputs out; no clock, no task, no file.

Rules:
1. `step` is the only way in. It runs to the end, calls nobody, and returns what the driver must do,
   in order. The driver does it before the next step (see `events`).
2. The log is read through a `LogView` and changes only by the outputs `Append`, `Truncate` and
   `ResetLog`.
3. A message that leaves while term, vote or `compacted` are not yet on disk is held back until they
   are: whatever it promises, a crash cannot take back.
4. Offsets are kept apart by how safe they are: dirty >= appended >= flushed >= committed, and
   visible between committed and dirty (DESIGN: words).

The parts: `Voter` stands and votes, `Receiver` takes appends from a leader, `Leader` exists while
this replica leads, `Shipping` takes care of machine snapshots on every role. They share the state
that lives here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidelog.raft import admission
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import EMPTY, Configuration
from tidelog.raft.follower import Receiver
from tidelog.raft.leader import Leader
from tidelog.raft.log import LogView, term_at
from tidelog.raft.progress import Progress
from tidelog.raft.proposals import Proposals
from tidelog.raft.snapshots import Shipping
from tidelog.raft.types import GroupId, HardState, Role, ShippingMode, Vnode
from tidelog.raft.voter import Voter
from tidelog.records import (
    NO_OFFSET,
    NO_TERM,
    Batch,
    BatchType,
    Offset,
    Term,
    internal_payload,
)

KIB = 1024
MIB = 1024 * KIB

# Messages that wait for term and vote to be on disk. A disk that is stuck holds up a few rounds of
# heartbeats to every peer; what exceeds that is dropped, as a network might drop it.
MAX_HELD = 256


@dataclass(frozen=True, slots=True)
class Options:
    """Bounds and habits of a group; all replicas of a group should have the same."""

    # A follower that is behind is sent this much a request: large enough that a round trip is
    # small beside it, small enough that a heartbeat does not wait long behind it.
    recovery_chunk: int = 512 * KIB
    # Batches on the way to one follower. At 1 GB/s and 5 ms a round trip 5 MB are under way.
    max_inflight_bytes: int = 16 * MIB
    # Writes that wait for their level; beyond it new ones are refused as busy.
    max_uncommitted_bytes: int = 64 * MIB
    # Dirty bytes that start a flush nobody waits for.
    flush_bytes: int = 1 * MIB
    # A snapshot travels beside the log in pieces of this size.
    snapshot_chunk: int = 256 * KIB
    # A snapshot that travels through the log is one batch, and every replica reads it whole.
    max_log_snapshot: int = 16 * MIB
    # Reads that wait for a majority to confirm the leader.
    max_barriers: int = 1024
    shipping: ShippingMode = ShippingMode.SIDE


class Core:
    def __init__(
        self,
        group: GroupId,
        vnode: Vnode,
        log: LogView,
        *,
        hard: HardState,
        initial: Configuration | None,
        snapshot: msg.SnapshotMeta | None,
        options: Options,
        leader_alive: Callable[[], bool],
        applied: Offset = NO_OFFSET,
    ) -> None:
        """`initial` is the configuration of a group whose log holds none yet.

        `applied` is where the machines stand already: exactly there, in an earlier life of this
        replica, and what they had folded in was committed.

        `leader_alive` tells whether the leader was heard within the base election timeout.
        """
        self.group = group
        self.vnode = vnode
        self.log = log
        self.options = options
        self.leader_alive = leader_alive

        # A beginning of the log that no snapshot covers here is missing like what was compacted.
        covered = NO_OFFSET if snapshot is None else snapshot.offset
        unseen = NO_OFFSET if log.start <= covered + 1 else Offset(log.start - 1)
        compacted = max(hard.compacted, unseen)
        term = max(hard.term, log.last_term)
        voted_for = hard.voted_for if term == hard.term else None
        self.hard = HardState(term, voted_for, compacted)
        self.persisted = hard  # what is known to be on disk
        self._persists_issued = 0
        self._persists_done = 0
        self._held: deque[tuple[int, msg.Message]] = deque()  # (persists needed, message)

        self.role = Role.FOLLOWER
        self.leader: Vnode | None = None
        self.storage_lost = False
        self.leading: Leader | None = None  # while leader

        # What the log holds after start was read back from disk and is therefore flushed.
        self.dirty = log.dirty  # last offset handed to the driver
        self.appended = log.dirty  # last offset the driver reported in the log
        self.flushed = log.flushed
        self.unflushed_bytes = 0
        self.committed = Offset(log.start - 1)
        if snapshot is not None and log.term_of(snapshot.offset) == snapshot.term:
            # A snapshot covers committed entries only, and this log has its last one.
            self.committed = max(self.committed, snapshot.offset)
        self.committed = max(self.committed, applied)
        self.visible = self.committed
        self.applied = applied

        self._initial = initial or EMPTY
        self._configurations: list[tuple[Offset, Configuration]] = []  # newest last, never empty
        self.proposals = Proposals()
        self.voter = Voter(self)
        self.receiver = Receiver(self)
        self.shipping = Shipping(self, snapshot)
        self._load_configuration()
        self._out: list[ev.Output] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            msg.VoteRequest: self.voter.on_vote_request,
            msg.VoteReply: self.voter.on_vote_reply,
            msg.AppendRequest: self._on_append_request,
            msg.AppendReply: self._to_leader(Leader.on_append_reply),
            msg.TimeoutNow: self.voter.on_timeout_now,
            msg.SnapshotOffer: self.shipping.on_offer,
            msg.SnapshotStored: self.shipping.on_stored,
            msg.SnapshotQuery: self.shipping.on_query,
            msg.SnapshotFound: self.shipping.on_found,
            msg.SnapshotRequest: self.shipping.on_request,
            msg.SnapshotChunk: self.shipping.on_chunk,
            ev.ElectionTimeout: self.voter.on_election_timeout,
            ev.QuorumLost: self._on_quorum_lost,
            ev.BeatDue: self._to_leader(Leader.on_beat_due),
            ev.FlushDue: self._on_flush_due,
            ev.Propose: self._on_propose,
            ev.Appended: self._on_appended,
            ev.AppendFailed: self._on_append_failed,
            ev.Flushed: self._on_flushed,
            ev.StorageLost: self._on_storage_lost,
            ev.CannotLead: self._on_cannot_lead,
            ev.Persisted: self._on_persisted,
            ev.Applied: self._on_applied,
            ev.SnapshotSaved: self.shipping.on_saved,
            ev.SnapshotFailed: self.shipping.on_failed,
            ev.SnapshotApplied: self.shipping.on_applied,
            ev.ChunkStored: self.shipping.on_chunk_stored,
            ev.ChunkRefused: self.shipping.on_chunk_refused,
            ev.Restored: self.shipping.on_restored,
            ev.Compact: self.shipping.on_compact,
            ev.ChangeConfiguration: self._asked(Leader.on_change),
            ev.CancelChange: self._asked(Leader.on_cancel),
            ev.Transfer: self._asked(Leader.on_transfer),
            ev.TransferExpired: self._to_leader(Leader.on_transfer_expired),
            ev.Barrier: self._asked(Leader.on_barrier),
        }

    # --- The way in -----------------------------------------------------------------------------

    def start(self) -> list[ev.Output]:
        """What to do once, before the first step."""
        if self.hard != self.persisted:
            self.persist(self.hard)
        self.shipping.settle()
        return self._drain()

    def step(self, event: ev.Event) -> list[ev.Output]:
        if self.storage_lost:
            if isinstance(event, ev.Request):
                self.refuse(event.token, ev.Refusal.STORAGE)
        elif not isinstance(event, msg.Message) or self._admit(event):
            self._handlers[type(event)](event)
        return self._drain()

    def _drain(self) -> list[ev.Output]:
        out, self._out = self._out, []
        return out

    def _to_leader(self, handler: Callable[[Leader, Any], None]) -> Callable[[Any], None]:
        """A handler of what concerns leaders only; others let it pass."""

        def handle(event: Any) -> None:
            if self.leading is not None:
                handler(self.leading, event)

        return handle

    def _asked(self, handler: Callable[[Leader, Any], None]) -> Callable[[Any], None]:
        """A handler of what somebody asked of a leader and wants an answer to."""

        def handle(event: Any) -> None:
            if self.leading is None:
                self.refuse(event.token, ev.Refusal.NOT_LEADER)
            else:
                handler(self.leading, event)

        return handle

    def _admit(self, message: msg.Message) -> bool:
        """Terms: adopt a newer one, answer an older one, and pass on what is left (thesis 3.3)."""
        if message.target != self.vnode or message.group != self.group:
            return False  # meant for a former self of this node: nothing it promised binds us
        if message.term < self.term:
            self._answer_the_past(message)
            return False
        objection = admission.objection(self, message)
        if objection is not None:
            self.emit(ev.Dropped(objection))
            return False
        if message.term == self.term:
            return True
        match message:
            case msg.VoteRequest(ballot=msg.Ballot.PREVOTE):
                return True  # a question, not a term
            case msg.VoteReply(ballot=msg.Ballot.PREVOTE, granted=True):
                return True  # echoes the term that this replica asked about
            case msg.VoteRequest(ballot=msg.Ballot.VOTE) if self.voter.has_leader():
                # Check-quorum's other half (thesis 4.2.3): somebody who was cut off must not
                # depose a leader that the rest still hears.
                self.voter.answer(message, granted=False)
                return False
            case _:
                self.become_follower(message.term, None)
                return True

    def _answer_the_past(self, message: msg.Message) -> None:
        if isinstance(message, msg.AppendRequest):
            self.receiver.refuse(message, msg.Status.MISMATCH)  # our term deposes it
        elif isinstance(message, msg.VoteRequest):
            self.voter.answer(message, granted=False)

    # --- The way out ----------------------------------------------------------------------------

    def emit(self, output: ev.Output) -> None:
        self._out.append(output)

    def send(self, message: msg.Message) -> None:
        if self._persists_issued == self._persists_done:
            self._out.append(ev.Send(message))
        elif len(self._held) < MAX_HELD:
            self._held.append((self._persists_issued, message))

    def refuse(self, token: int, why: ev.Refusal) -> None:
        if token != ev.INTERNAL:
            self.emit(ev.Refused(token, why))

    def done(self, token: int, offset: Offset) -> None:
        if token != ev.INTERNAL:
            self.emit(ev.Done(token, offset))

    def persist(self, state: HardState) -> None:
        self.hard = state
        self._persists_issued += 1
        self.emit(ev.Persist(state))

    def _on_persisted(self, event: ev.Persisted) -> None:
        self._persists_done += 1
        self.persisted = event.state
        while self._held and self._held[0][0] <= self._persists_done:
            self.emit(ev.Send(self._held.popleft()[1]))
        if self.role is Role.CANDIDATE and event.state.term == self.term:
            self.voter.count(self.vnode, granted=True)
        self.shipping.on_persisted()

    def raise_compacted(self, upto: Offset) -> None:
        if upto > self.hard.compacted:
            self.persist(replace(self.hard, compacted=upto))

    # --- Shared state ---------------------------------------------------------------------------

    @property
    def term(self) -> Term:
        return self.hard.term

    @property
    def snapshot(self) -> msg.SnapshotMeta | None:
        return self.shipping.snapshot

    @property
    def tainted(self) -> bool:
        return self.shipping.taint is not None

    @property
    def restore_pending(self) -> bool:
        return self.shipping.restore_pending

    @property
    def collectible(self) -> Offset:
        return self.shipping.collectible

    @property
    def readable(self) -> Offset:
        """How far this replica may serve reads (seed 3)."""
        return self.shipping.readable()

    @property
    def read_lag(self) -> int:
        """Offsets that this replica has seen as visible and may not serve yet (seed 3)."""
        return self.visible - self.readable

    @property
    def progress(self) -> dict[Vnode, Progress]:
        return self.leading.progress if self.leading is not None else {}

    @property
    def term_start(self) -> Offset:
        """First offset of the leader's own term; NO_OFFSET on others."""
        return self.leading.term_start if self.leading is not None else NO_OFFSET

    @property
    def confirmed(self) -> bool:
        """A leader whose first batch is committed: only now is its term an epoch (seed 5)."""
        return self.leading is not None and self.committed >= self.leading.term_start

    @property
    def epoch(self) -> Term:
        """The term of the last leader known to be confirmed, whoever that is (seed 5).

        A leader is confirmed by its first batch being committed, so on a replica that does not lead
        it is the term of what is committed there.
        """
        return self.term if self.confirmed else term_at(self.log, self.committed) or NO_TERM

    @property
    def ready(self) -> bool:
        """A leader whose machines know everything that earlier leaders committed."""
        return (
            self.leading is not None
            and self.confirmed
            and self.shipping.machines_are_exact()
            and self.applied >= self.leading.term_start
        )

    def quiet(self, peer: Vnode) -> bool:
        """Whether a lightweight heartbeat tells this peer all there is to tell."""
        return self.leading is not None and self.leading.quiet(peer)

    # --- Configuration --------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        return self._configurations[-1][1]

    @property
    def configuration_offset(self) -> Offset:
        return self._configurations[-1][0]

    def configuration_at(self, offset: Offset) -> Configuration:
        """The configuration in force at an offset of the log."""
        return self._configuration_upto(offset)[1]

    def configuration_before(self, place: Offset) -> tuple[Offset, Configuration]:
        """The configuration that the one at `place` replaced, and where the log has it."""
        return self._configuration_upto(Offset(place - 1))

    def _configuration_upto(self, offset: Offset) -> tuple[Offset, Configuration]:
        for base, configuration in reversed(self._configurations):
            if base <= offset:
                return base, configuration
        return self._stored_configuration(offset)

    def _stored_configuration(self, upto: Offset) -> tuple[Offset, Configuration]:
        batch = self.log.last_configuration(upto)
        if batch is not None:
            return batch.base_offset, Configuration.decode(internal_payload(batch))
        if self.snapshot is not None and self.snapshot.offset <= upto:
            return self.snapshot.offset, self.snapshot.configuration
        return NO_OFFSET, self._initial

    def _load_configuration(self) -> None:
        self._configurations = [self._stored_configuration(self.appended)]

    def _note_configurations(self, batches: tuple[Batch, ...]) -> None:
        for batch in batches:
            if batch.type is BatchType.CONFIGURATION:
                configuration = Configuration.decode(internal_payload(batch))
                self._configurations.append((batch.base_offset, configuration))
                if self.leading is not None:
                    self.leading.follow_configuration()

    def forget_old_configurations(self) -> None:
        """Everything below the newest committed configuration can no longer come back."""
        while len(self._configurations) > 1 and self._configurations[1][0] <= self.committed:
            del self._configurations[0]

    # --- The log --------------------------------------------------------------------------------

    def append(self, batches: tuple[Batch, ...]) -> None:
        self.dirty = batches[-1].last_offset
        self._note_configurations(batches)
        self.emit(ev.Append(batches))

    def truncate(self, first_removed: Offset) -> None:
        """Drop a divergent end of the log; what is committed never diverges."""
        assert first_removed > self.committed, (first_removed, self.committed)
        self.emit(ev.Truncate(first_removed))
        self._cut(Offset(first_removed - 1))

    def _cut(self, last: Offset) -> None:
        self.dirty = self.appended = last
        self.flushed = min(self.flushed, last)
        self.visible = min(self.visible, last)  # relaxed writes are lost here
        self.receiver.cut(last)
        while len(self._configurations) > 1 and self._configurations[-1][0] > last:
            self._configurations.pop()
        if self._configurations[-1][0] > last:
            self._configurations = [self._stored_configuration(last)]

    def reset_log(self, snapshot: msg.SnapshotMeta) -> None:
        """Begin anew after a snapshot that this log does not lead to (thesis 5.1)."""
        assert snapshot.offset > self.committed, (snapshot, self.committed)
        self.emit(ev.ResetLog(snapshot))
        for refused in self.proposals.drop_all():
            self.emit(refused)
        self.receiver.cut(NO_OFFSET)
        self.dirty = self.appended = self.flushed = snapshot.offset
        self.unflushed_bytes = 0
        self._configurations = [(snapshot.offset, snapshot.configuration)]
        self.commit_to(snapshot.offset)

    def _on_appended(self, event: ev.Appended) -> None:
        self.appended = event.dirty
        if self.leading is not None:
            self.leading.on_appended()
        else:
            self.receiver.on_appended()

    def note_unflushed(self, size: int) -> None:
        """Data was appended that nobody asked to be flushed."""
        self.unflushed_bytes += size
        if self.unflushed_bytes >= self.options.flush_bytes:
            self.flush()

    def flush(self) -> None:
        self.unflushed_bytes = 0
        self.emit(ev.Flush())

    def _on_append_failed(self, _: ev.AppendFailed) -> None:
        self.dirty = self.appended
        while len(self._configurations) > 1 and self._configurations[-1][0] > self.dirty:
            self._configurations.pop()
        if self.leading is not None:
            self.leading.on_append_failed()
        else:
            self.receiver.on_append_failed()

    def _on_flush_due(self, _: ev.FlushDue) -> None:
        if self.appended > self.flushed:
            self.flush()

    def _on_flushed(self, event: ev.Flushed) -> None:
        if event.upto <= self.flushed:
            return
        self.flushed = event.upto
        if self.leading is not None:
            self.leading.maybe_commit()
        else:
            self.receiver.on_flushed()

    def _on_storage_lost(self, _: ev.StorageLost) -> None:
        if self.leading is not None:
            self.leading.hand_over_blindly()
        for refused in self.proposals.drop_all():
            self.emit(refused)
        self.become_follower(self.term, None)
        self.storage_lost = True

    # --- Commit and apply -----------------------------------------------------------------------

    def mark_committed(self, offset: Offset) -> None:
        """Move the commit index. The caller settles afterwards, once it has answered writers."""
        assert self.committed <= offset <= self.flushed, (self.committed, offset, self.flushed)
        self.committed = offset
        self.visible = max(self.visible, offset)
        self.forget_old_configurations()

    def commit_to(self, offset: Offset) -> None:
        if offset <= self.committed:
            return
        self.mark_committed(offset)
        if self.leading is None:
            for outcome in self.proposals.resolve_by_commit(
                offset, self.log.start, self.log.term_of
            ):
                self.emit(outcome)
        self.shipping.settle()

    def show_to(self, offset: Offset) -> None:
        self.visible = max(self.visible, offset)

    def _on_applied(self, event: ev.Applied) -> None:
        self.applied = event.offset

    # --- Roles ----------------------------------------------------------------------------------

    def take_role(self, role: Role) -> None:
        self.role = role
        self.emit(ev.RoleChanged(role, self.term, self.leader))

    def become_follower(self, term: Term, leader: Vnode | None) -> None:
        if term > self.term:
            self.receiver.forget()
            self.persist(HardState(term, None, self.hard.compacted))
        resigned, self.leading = self.leading, None
        changed = self.role is not Role.FOLLOWER or leader != self.leader
        self.leader = leader
        self.voter.end_campaign(leader)
        if changed:
            self.take_role(Role.FOLLOWER)
        if resigned is not None:
            resigned.resign()

    def become_leader(self) -> None:
        self.leader = self.vnode
        self.voter.end_campaign(self.vnode)
        self.leading = Leader(self)
        self.take_role(Role.LEADER)
        self.leading.begin()
        self.shipping.settle()

    def _on_quorum_lost(self, _: ev.QuorumLost) -> None:
        if self.role is Role.LEADER:
            self.become_follower(self.term, None)

    def _on_cannot_lead(self, _: ev.CannotLead) -> None:
        self.voter.barred = True
        if self.leading is not None:
            self.leading.hand_over_blindly()
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, None)

    def _on_append_request(self, message: msg.AppendRequest) -> None:
        assert self.role is not Role.LEADER, "two leaders in one term"
        if self.role is not Role.FOLLOWER or self.leader != message.source:
            self.become_follower(self.term, message.source)
        self.emit(ev.HeardLeader())
        self.receiver.on_append(message)

    def _on_propose(self, event: ev.Propose) -> None:
        if self.leading is None:
            self.refuse(event.token, ev.Refusal.NOT_LEADER)
        else:
            self.leading.on_propose(event)

    # --- Looking at it --------------------------------------------------------------------------

    def check_invariants(self) -> None:
        assert self.log.start <= self.committed + 1, self
        assert self.committed <= self.flushed <= self.appended <= self.dirty, self
        assert self.committed <= self.visible <= self.dirty, self
        assert self.applied <= self.committed, self
        assert (self.role is Role.LEADER) == (self.leading is not None), self
        assert self.hard.term >= self.persisted.term, self
        for progress in self.progress.values():
            progress.check_invariants()

    def __str__(self) -> str:
        return (
            f"{self.vnode} {self.role.value} term={self.term}"
            f" dirty={self.dirty} flushed={self.flushed}"
            f" committed={self.committed} visible={self.visible} applied={self.applied}"
        )
