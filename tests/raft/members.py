"""A small group of cores by hand: no clock, no thread, no file; tests decide what happens when.

Every member is a real `Core` on a `MemoryLog`, the naive twin of `storage.Log`. Appends happen at
once; flushes and votes happen at once too, unless a test sets `slow_disk` or `slow_vote` and then
lets them complete. Messages lie in `Group.wire` until they are delivered, dropped or repeated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from crc32c import crc32c

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Core, Options
from tidelog.raft.types import GroupId, HardState, Level, NodeId, Role, ShippingMode, Vnode
from tidelog.records import (
    NO_OFFSET,
    NO_TERM,
    Batch,
    BatchType,
    Offset,
    Record,
    Term,
    build_batch,
    ghost,
    internal_batch,
    internal_payload,
)

GROUP = GroupId(1)
KIB = 1024
M = TypeVar("M", bound=msg.Message)


def vnode(number: int, revision: int = 0) -> Vnode:
    return Vnode(NodeId(number), revision)


def data(size: int = 10, records: int = 1) -> Batch:
    """A client's batch with so many records, each with a value of so many bytes."""
    return build_batch([Record(delta, 0, b"k", bytes(size)) for delta in range(records)])


class MemoryLog:
    """A log as a list of batches, where every question is answered by looking at all of them."""

    def __init__(self) -> None:
        self.start = Offset(0)
        self.prefix_term = NO_TERM
        self.flushed = NO_OFFSET
        self.batches: list[Batch] = []
        self.truncations = 0

    @property
    def dirty(self) -> Offset:
        return self.batches[-1].last_offset if self.batches else Offset(self.start - 1)

    @property
    def last_term(self) -> Term:
        return self.batches[-1].term if self.batches else self.prefix_term

    def term_of(self, offset: Offset) -> Term | None:
        if offset == self.start - 1 and self.prefix_term != NO_TERM:
            return self.prefix_term
        if offset < self.start:
            return None
        # A gap has the term of what follows it.
        return next((each.term for each in self.batches if each.last_offset >= offset), None)

    def first_of_term_at(self, offset: Offset) -> Offset:
        if offset < self.start:
            return offset
        term = self.term_of(offset)
        offsets = map(Offset, range(self.start, offset + 1))
        return min(each for each in offsets if self.term_of(each) == term)

    def read(
        self,
        start: Offset,
        max_bytes: int,
        *,
        upto: Offset | None = None,
        fill_gaps: bool = False,
    ) -> list[Batch]:
        assert start >= self.start, f"{start} is below the start of the log, {self.start}"
        found: list[Batch] = []
        expected = start
        for batch in self.batches:
            if batch.last_offset < start or (upto is not None and batch.last_offset > upto):
                continue
            if found and sum(each.size for each in found) + batch.size > max_bytes:
                break
            if fill_gaps and batch.base_offset > expected:
                found.append(ghost(expected, Offset(batch.base_offset - 1), batch.term))
            found.append(batch)
            expected = Offset(batch.last_offset + 1)
        return found

    def last_configuration(self, upto: Offset) -> Batch | None:
        found = None
        for batch in self.batches:
            if batch.type is BatchType.CONFIGURATION and batch.base_offset <= upto:
                found = batch
        return found

    # --- What a driver does to it ---------------------------------------------------------------

    def append(self, batches: tuple[Batch, ...]) -> Offset:
        expected = self.dirty + 1
        for batch in batches:
            assert batch.base_offset == expected, f"{batch} does not follow {expected - 1}"
            assert batch.term >= self.last_term, f"{batch} after term {self.last_term}"
            expected = batch.last_offset + 1
        assert not batches[-1].is_ghost, "a ghost is never last"
        self.batches += [batch for batch in batches if not batch.is_ghost]
        return self.dirty

    def truncate(self, first_removed: Offset) -> None:
        kept = [batch for batch in self.batches if batch.last_offset < first_removed]
        assert all(batch.base_offset >= first_removed for batch in self.batches[len(kept) :])
        self.batches = kept
        self.flushed = min(self.flushed, self.dirty)
        self.truncations += 1

    def reset(self, start: Offset, prefix_term: Term) -> None:
        self.__init__()  # type: ignore[misc]
        self.start, self.prefix_term, self.flushed = start, prefix_term, Offset(start - 1)

    def remove(self, *bases: int) -> None:
        """Compact away the batches that begin at these offsets."""
        assert self.dirty not in bases
        self.batches = [batch for batch in self.batches if batch.base_offset not in bases]

    def drop_prefix(self, first_kept: int) -> None:
        term = self.term_of(Offset(first_kept - 1))
        assert term is not None
        self.batches = [batch for batch in self.batches if batch.base_offset >= first_kept]
        self.start, self.prefix_term = Offset(first_kept), term

    def lose_dirty(self) -> None:
        self.batches = [batch for batch in self.batches if batch.last_offset <= self.flushed]


@dataclass
class Machine:
    """A fold that compaction would falsify: it counts the records of all data batches."""

    applied: Offset = NO_OFFSET
    records: int = 0

    def apply(self, batch: Batch) -> None:
        assert batch.base_offset > self.applied
        assert not batch.is_ghost
        self.records += batch.count if batch.type is BatchType.DATA else 0
        self.applied = batch.last_offset


@dataclass
class _Flush:
    upto: Offset
    truncations: int


class Member:
    """One replica: a core, and a driver that does what it says."""

    def __init__(
        self, group: "Group", node: Vnode, initial: Configuration | None, options: Options
    ) -> None:
        self.group = group
        self.vnode = node
        self.options = options
        self.log = MemoryLog()
        self.hard = HardState()  # on disk
        self.snapshots: dict[Offset, tuple[msg.SnapshotMeta, bytes]] = {}  # on disk
        self.initial = initial
        # Switches for tests.
        self.slow_disk = False
        self.slow_vote = False
        self.slow_snapshot = False
        self.refuses_snapshots = False  # those that come with the log
        self.full_disk = False
        self.hears_leader = False
        # What happened.
        self.outcomes: list[ev.Accepted | ev.Done | ev.Refused] = []
        self.outputs: list[ev.Output] = []  # of all steps
        self.open()

    def open(self) -> None:
        """Start from what is on disk."""
        self.machine = Machine()
        self.hears_leader = False
        self._events: list[ev.Event] = []
        self._stepping = False
        self._flush: _Flush | None = None
        self._flush_again = False
        self._votes: list[HardState] = []
        self._later: list[Callable[[], None]] = []
        self._partial = b""
        self._goal = NO_OFFSET
        self.log.flushed = self.log.dirty
        self.core = Core(
            GROUP,
            self.vnode,
            self.log,
            hard=self.hard,
            initial=self.initial,
            snapshot=self.snapshots[max(self.snapshots)][0] if self.snapshots else None,
            options=self.options,
            leader_alive=lambda: self.hears_leader,
        )
        self._run(self.core.start())

    def restart(self) -> None:
        """Crash, lose everything that is not flushed, and start again."""
        self.log.lose_dirty()
        self.open()

    def step(self, event: ev.Event) -> None:
        self._events.append(event)
        if not self._stepping:
            self._run([])

    def _run(self, outputs: list[ev.Output]) -> None:
        self._stepping = True
        while True:
            self.outputs += outputs
            for output in outputs:
                self._execute(output)
            if not self._events:
                break
            outputs = self.core.step(self._events.pop(0))
        self._stepping = False
        self.core.check_invariants()
        assert self.core.appended == self.log.dirty

    def _execute(self, output: ev.Output) -> None:
        match output:
            case ev.Send(message):
                self.group.wire.append(message)
            case ev.Append(batches):
                if self.full_disk:
                    self._events.insert(0, ev.AppendFailed("no space left"))
                else:
                    self._events.insert(0, ev.Appended(self.log.append(batches)))
            case ev.Truncate(first_removed):
                self.log.truncate(first_removed)
            case ev.Flush():
                self._begin_flush()
            case ev.Persist(state):
                self._votes.append(state)
                if not self.slow_vote:
                    self.finish_votes()
            case ev.HeardLeader():
                self.hears_leader = True
            case ev.ApplyUpTo(offset):
                self._goal = offset
                self._apply()
            case ev.Accepted() | ev.Done() | ev.Refused():
                self.outcomes.append(output)
            case ev.ResetLog(snapshot):
                self.log.reset(Offset(snapshot.offset + 1), snapshot.term)
            case _:
                self._execute_for_snapshots(output)

    # --- Disk -----------------------------------------------------------------------------------

    def _begin_flush(self) -> None:
        if self._flush is not None:
            self._flush_again = True
        elif self.log.flushed < self.log.dirty:
            self._flush = _Flush(self.log.dirty, self.log.truncations)
            if not self.slow_disk:
                self.finish_flush()

    @property
    def is_flushing(self) -> bool:
        return self._flush is not None

    def finish_flush(self) -> None:
        """The flush under way completes, and the one that was asked for meanwhile begins."""
        flush, self._flush = self._flush, None
        assert flush is not None, "no flush is under way"
        if flush.truncations == self.log.truncations:
            self.log.flushed = max(self.log.flushed, flush.upto)
        if self._flush_again:
            self._flush_again = False
            self._begin_flush()
        self.step(ev.Flushed(self.log.flushed))

    def finish_votes(self) -> None:
        """What was to be persisted is on disk."""
        while self._votes:
            self.hard = self._votes.pop(0)
            self.step(ev.Persisted(self.hard))

    # --- Machines and snapshots -----------------------------------------------------------------

    def _apply(self) -> None:
        machine = self.machine
        while machine.applied < self._goal:
            batch = next(iter(self.log.read(Offset(machine.applied + 1), 1, upto=self._goal)), None)
            if batch is None:
                machine.applied = self._goal
                break
            machine.apply(batch)
            if batch.type is BatchType.SNAPSHOT:
                meta, state = _unpack(internal_payload(batch))
                self._events.append(ev.Applied(machine.applied))
                if self.refuses_snapshots:
                    self._events.append(ev.SnapshotFailed("no space left"))
                    continue
                self.snapshots[meta.offset] = (meta, state)
                self._events.append(ev.SnapshotApplied(meta))
        self._events.append(ev.Applied(machine.applied))

    def _execute_for_snapshots(self, output: ev.Output) -> None:
        match output:
            case ev.TakeSnapshot():
                state = f"{self.machine.records:08d}".encode()
                offset = self.machine.applied
                term = self.log.term_of(offset)
                assert term is not None
                meta = msg.SnapshotMeta(
                    offset, term, self.core.configuration_at(offset), len(state), crc32c(state)
                )
                self._save(meta, state)
            case ev.ShipInLog(snapshot):
                payload = _pack(*self.snapshots[snapshot.offset])
                batch = internal_batch(BatchType.SNAPSHOT, payload)
                self._events.append(ev.Propose(ev.INTERNAL, (batch,), Level.QUORUM))
            case ev.StoreChunk(snapshot, chunk):
                self._partial = self._partial[: chunk.position] + chunk.data
                self._events.append(ev.ChunkStored(snapshot.offset, len(self._partial)))
                if len(self._partial) == snapshot.size:
                    self._save(snapshot, self._partial)
            case ev.SendChunk(request):
                state = self.snapshots[request.offset][1]
                size = self.options.snapshot_chunk
                chunk_data = state[request.position : request.position + size]
                self.group.wire.append(
                    msg.SnapshotChunk(
                        GROUP,
                        self.vnode,
                        request.source,
                        self.core.term,
                        request.offset,
                        request.position,
                        chunk_data,
                        crc32c(chunk_data),
                    )
                )
            case ev.Restore(snapshot):
                self._in_background(lambda: self._restore(snapshot))

    def _save(self, meta: msg.SnapshotMeta, state: bytes) -> None:
        def save() -> None:
            self.snapshots[meta.offset] = (meta, state)
            self.step(ev.SnapshotSaved(meta))

        self._in_background(save)

    def _restore(self, snapshot: msg.SnapshotMeta) -> None:
        self.machine = Machine(snapshot.offset, int(self.snapshots[snapshot.offset][1]))
        self._goal = NO_OFFSET
        self.step(ev.Restored(snapshot))

    def _in_background(self, job: Callable[[], None]) -> None:
        if self.slow_snapshot:
            self._later.append(job)
        else:
            job()

    def finish_snapshots(self) -> None:
        while self._later:
            self._later.pop(0)()

    # --- What tests do and look at --------------------------------------------------------------

    def propose(self, token: int, level: Level = Level.QUORUM, batch: Batch | None = None) -> None:
        self.step(ev.Propose(token, (batch or data(),), level))

    def outcome(self, token: int) -> ev.Accepted | ev.Done | ev.Refused | None:
        """The newest thing that was said about a token."""
        return next((each for each in reversed(self.outcomes) if each.token == token), None)

    def is_done(self, token: int) -> bool:
        return isinstance(self.outcome(token), ev.Done)

    def refusal(self, token: int) -> ev.Refusal | None:
        outcome = self.outcome(token)
        return outcome.why if isinstance(outcome, ev.Refused) else None

    def entries(self) -> list[tuple[int, int, int]]:
        return [(each.base_offset, each.last_offset, each.term) for each in self.log.batches]

    def said(self, kind: type[M]) -> list[M]:
        """The messages of a kind that this member's core let go."""
        return [
            each.message
            for each in self.outputs
            if isinstance(each, ev.Send) and isinstance(each.message, kind)
        ]

    def __str__(self) -> str:
        return str(self.core)


@dataclass
class Group:
    """The members and what is on its way between them."""

    members: dict[int, Member] = field(default_factory=dict)
    wire: list[msg.Message] = field(default_factory=list)
    cut_off: set[int] = field(default_factory=set)  # members that nothing reaches or leaves

    @classmethod
    def of(
        cls,
        count: int,
        *,
        options: Options | None = None,
        configuration: Configuration | None = None,
    ) -> "Group":
        """Members n1 to n<count>, all voters unless a configuration says otherwise."""
        group = cls()
        nodes = tuple(vnode(number) for number in range(1, count + 1))
        initial = configuration or Configuration(nodes)
        for node in nodes:
            known = initial if node in initial.members else None
            group.members[node.id] = Member(group, node, known, options or Options())
        return group

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    # --- Messages -------------------------------------------------------------------------------

    def deliver(self, *, kinds: tuple[type[msg.Message], ...] = (msg.Message,)) -> None:
        """Deliver what is on the wire, and what that brings about, until nothing moves.

        Messages of other kinds stay where they are.
        """
        for _ in range(10_000):
            index = next((i for i, m in enumerate(self.wire) if isinstance(m, kinds)), None)
            if index is None:
                return
            self.hand_over(self.wire.pop(index))
        raise AssertionError("the group does not come to rest")

    def deliver_until(self, reached: Callable[[], bool]) -> None:
        """Deliver one message after another until something is so."""
        for _ in range(10_000):
            if reached():
                return
            assert self.wire, "it never comes to that"
            self.hand_over(self.wire.pop(0))
        raise AssertionError("the group does not come to rest")

    def hand_over(self, message: msg.Message) -> None:
        target = self.members.get(message.target.id)
        if target is not None and not {message.source.id, message.target.id} & self.cut_off:
            target.step(message)

    def take(self, kind: type[M], target: int | None = None) -> list[M]:
        """Take messages of a kind off the wire."""
        taken = [
            each
            for each in self.wire
            if isinstance(each, kind) and target in (None, each.target.id)
        ]
        self.wire = [each for each in self.wire if not any(each is one for one in taken)]
        return taken

    def drop(self) -> None:
        self.wire.clear()

    # --- Time -----------------------------------------------------------------------------------

    def beat(self, leader: int) -> None:
        """One round of full heartbeats, answered."""
        for peer in list(self[leader].core.progress):
            self[leader].step(ev.BeatDue(peer))
        self.deliver()

    def time_out(self, number: int) -> None:
        """Let election timeouts pass on a member until it stands; nobody hears a leader.

        A leader that is not cut off loses its quorum, as it does when nobody hears it.
        """
        for member in self:
            member.hears_leader = False
            if member.vnode.id not in {number} | self.cut_off:
                member.step(ev.QuorumLost())
        for _ in range(10):
            self[number].step(ev.ElectionTimeout())
            if self[number].core.role is not Role.FOLLOWER:
                return
        raise AssertionError(f"n{number} does not stand")

    def elect(self, number: int) -> Member:
        """Make a member the leader, confirmed and known to all it reaches."""
        self.time_out(number)
        self.deliver()
        leader = self[number]
        assert leader.core.role is Role.LEADER, leader
        self.beat(number)
        assert leader.core.confirmed, leader
        return leader

    def leader(self) -> Member:
        return max(
            (member for member in self if member.core.role is Role.LEADER),
            key=lambda member: member.core.term,
        )


def _pack(meta: msg.SnapshotMeta, state: bytes) -> bytes:
    head = f"{meta.offset} {meta.term} {meta.configuration.encode().hex()} "
    return head.encode() + state


def _unpack(payload: bytes) -> tuple[msg.SnapshotMeta, bytes]:
    offset, term, configuration, state = payload.split(b" ")
    meta = msg.SnapshotMeta(
        Offset(int(offset)),
        Term(int(term)),
        Configuration.decode(bytes.fromhex(configuration.decode())),
        len(state),
        crc32c(state),
    )
    return meta, state


LOG_MODE = Options(shipping=ShippingMode.LOG)
SIDE_MODE = Options(shipping=ShippingMode.SIDE, snapshot_chunk=3)
