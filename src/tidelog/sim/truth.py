"""What really happened in one group: the history that no replica knows and the judge compares with.

Theory of operation:
- Every batch that a leader appends in its own term becomes an `Entry`, with the bytes as they were
  then. An entry knows the entry before it in its leader's log, so all entries of a group form a
  tree, and a log is a path in it. Two logs that hold one entry hold the same path to it: this is
  log matching, and here it is true by construction. A replica that appends something which does
  not continue its own path has broken it.
- A `Lineage` is such a path: one for each replica, and one for what was ever committed, the ledger.
  Gaps leave no hole in a lineage: an entry that compaction removed was still part of the log.
- An entry is counted from the root (`depth`), so whether a lineage holds it is one comparison.

Everything here is plain data. The judge fills it from the hooks of the world; the invariants read
it; neither asks a replica what is true.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tidelog.raft.configuration import EMPTY, Configuration
from tidelog.raft.types import Level, Vnode
from tidelog.records import (
    NO_OFFSET,
    NO_TERM,
    Batch,
    BatchType,
    Offset,
    Record,
    Term,
    internal_payload,
    read_records,
)


@dataclass(slots=True, eq=False)
class Entry:
    """One batch as its leader first appended it."""

    base: Offset
    last: Offset
    term: Term
    data: bytes  # stamped, never compacted
    type: BatchType
    parent: Entry | None  # the entry before it; None for the first of the group
    depth: int  # how many entries come before it
    # Of the client's proposal; None for what replicas write for themselves.
    level: Level | None = None
    # Term of the leader that committed it, which may be later than its own; None: nobody has.
    decided: Term | None = None
    # Who ever had it in the log, and who of those lost it again in a crash.
    held_by: dict[Vnode, None] = field(default_factory=dict)
    lost_by: dict[Vnode, None] = field(default_factory=dict)
    _records: tuple[Record, ...] | None = None
    _parsed: Batch | None = None
    _configuration: Configuration | None = None

    @property
    def batch(self) -> Batch:
        """The batch, to be read only: it shares the entry's bytes, and they never change."""
        if self._parsed is None:
            self._parsed = Batch.parse(self.data)
        return self._parsed

    @property
    def is_data(self) -> bool:
        return self.type is BatchType.DATA

    @property
    def records(self) -> tuple[Record, ...]:
        if self._records is None:
            self._records = tuple(read_records(self.batch))
        return self._records

    @property
    def sequence(self) -> tuple[int, int, int] | None:
        """Producer id, epoch and base sequence, of a batch of an idempotent producer."""
        batch = self.batch
        if not self.is_data or batch.producer_id < 0:
            return None
        return batch.producer_id, batch.producer_epoch, batch.base_sequence

    @property
    def configuration(self) -> Configuration:
        """The members that a configuration batch names."""
        if self._configuration is None:
            self._configuration = Configuration.decode(internal_payload(self.batch))
        return self._configuration

    def ancestor(self, depth: int) -> Entry:
        """The entry of this path with that many entries before it."""
        entry = self
        while entry.depth > depth:
            assert entry.parent is not None
            entry = entry.parent
        return entry

    def __str__(self) -> str:
        return f"{self.type.name.lower()} [{self.base}, {self.last}] of term {self.term}"


class Lineage:
    """A path of entries from the first of the group on: what a log is made of, gaps included."""

    __slots__ = ("_bases", "configurations", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []  # entries[n].depth == n
        self.configurations: list[Entry] = []  # those of them that are configurations
        self._bases: list[int] = []

    @property
    def dirty(self) -> Offset:
        return self.entries[-1].last if self.entries else NO_OFFSET

    @property
    def tip(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    def holds(self, entry: Entry) -> bool:
        return entry.depth < len(self.entries) and self.entries[entry.depth] is entry

    def at(self, offset: int) -> Entry | None:
        """The entry that covers this offset."""
        if not 0 <= offset <= self.dirty:
            return None
        return self.entries[bisect_right(self._bases, offset) - 1]

    def between(self, above: int, upto: int) -> Iterator[Entry]:
        """The entries that end above the one offset and begin at or below the other."""
        first = self.at(above + 1)
        if first is not None:
            for index in range(first.depth, len(self.entries)):
                entry = self.entries[index]
                if entry.base > upto:
                    return
                yield entry

    def push(self, entry: Entry) -> None:
        assert entry.depth == len(self.entries), (entry, len(self.entries))
        self.entries.append(entry)
        self._bases.append(entry.base)
        if entry.type is BatchType.CONFIGURATION:
            self.configurations.append(entry)

    def cut(self, first_removed: int) -> list[Entry]:
        """Drop the entries that end at or above this offset, and return them."""
        count = bisect_right(self._bases, first_removed - 1)
        if count and self.entries[count - 1].last >= first_removed:
            count -= 1
        removed = self.entries[count:]
        self._keep(count)
        return removed

    def become(self, tip: Entry | None) -> None:
        """Turn into the path to `tip`."""
        path = []
        while tip is not None and not self.holds(tip):
            path.append(tip)
            tip = tip.parent
        self._keep(tip.depth + 1 if tip is not None else 0)
        for entry in reversed(path):
            self.push(entry)

    def _keep(self, count: int) -> None:
        del self.entries[count:]
        del self._bases[count:]
        while self.configurations and self.configurations[-1].depth >= count:
            self.configurations.pop()


class Link(Enum):
    """How a batch that a replica appended relates to the history."""

    GOOD = "good"  # it continues the replica's path along the tree
    FORK = "fork"  # it is known, but follows something else than what the replica holds
    STRANGER = "stranger"  # no leader ever wrote it


@dataclass(frozen=True, slots=True)
class Linked:
    """One stored batch of an append, and where it stands in the history."""

    vnode: Vnode
    batch: Batch
    link: Link
    entry: Entry
    covered: tuple[Entry, ...]  # what the ghosts before it stand for


@dataclass(slots=True)
class ReplicaTruth:
    """One vnode as the history knows it."""

    vnode: Vnode
    lineage: Lineage = field(default_factory=Lineage)
    # Highest offset of its lineage that it ever counted as flushed and has not truncated since.
    flushed: Offset = NO_OFFSET
    # Last offset fed to its machines since they were opened, restored or reset.
    applied: Offset = NO_OFFSET
    # Offsets of the whole snapshots that were ever visible on its disk.
    snapshots: dict[Offset, None] = field(default_factory=dict)
    persisted_term: Term = NO_TERM  # highest ever found on its disk
    # It sent TimeoutNow in this term and has not stepped down since.
    handing_over: Term | None = None


@dataclass(frozen=True, slots=True)
class Leadership:
    """An election that was won."""

    term: Term
    vnode: Vnode
    tip: Entry | None  # the end of the winner's log then
    configuration: Configuration  # by which it counted its votes


@dataclass(slots=True)
class Asked:
    """A client's proposal, from the request to its outcome."""

    token: int
    client: str
    level: Level
    data: bytes  # as the client sent it
    node: Vnode
    producer: tuple[int, int, int] | None  # producer id, epoch, base sequence
    entry: Entry | None = None  # once accepted
    outcomes: list[object] = field(default_factory=list)  # Accepted, Done, Refused

    def __str__(self) -> str:
        return f"request {self.token} of {self.client}"


class GroupTruth:
    """The history of one group."""

    def __init__(self, initial: Configuration = EMPTY) -> None:
        self.initial = initial
        self.replicas: dict[Vnode, ReplicaTruth] = {}
        self.entries: dict[tuple[Offset, Term], Entry] = {}  # by last offset and term
        self.ledger = Lineage()
        self.leaders: dict[Term, Leadership] = {}
        self.votes: dict[tuple[Vnode, Term], Vnode] = {}  # who voted, when, for whom
        self.stood: set[Term] = set()  # the terms in which a replica was a candidate
        self.asked: dict[int, Asked] = {}  # by token
        # Where each batch of an idempotent producer was first committed.
        self.produced: dict[tuple[int, int, int], Entry] = {}
        # The numbers that may follow in the ledger: producer id, epoch, next sequence.
        self.following: dict[tuple[int, int, int], Entry] = {}
        # Newest entry that a confirmed leader showed to readers, by its term.
        self.exposed: dict[Term, tuple[Entry, Configuration]] = {}
        # Highest offset up to which compaction was ever found to be covered by a majority.
        self.safe_to_compact = NO_OFFSET

    def replica(self, vnode: Vnode) -> ReplicaTruth:
        found = self.replicas.get(vnode)
        if found is None:
            found = self.replicas[vnode] = ReplicaTruth(vnode)
        return found

    # --- Logs ------------------------------------------------------------------------------------

    def lead(self, vnode: Vnode, batches: Sequence[Batch]) -> list[Entry]:
        """A leader is about to append these in its own term: from now on they may exist.

        It may fail, or lose power half way and find them on its disk later. Only an entry that
        nobody holds may be written again with other content.
        """
        parent = self.replica(vnode).lineage.tip
        led = []
        for batch in batches:
            known = self.entries.get((batch.last_offset, batch.term))
            if known is None or not known.held_by:
                known = self._enter(batch, parent)
            parent = known
            led.append(known)
        return led

    def append(self, vnode: Vnode, batches: Sequence[Batch]) -> list[Linked]:
        """The log of a replica took these, ghosts included."""
        lineage = self.replica(vnode).lineage
        linked = []
        for batch in batches:
            if batch.is_ghost:
                continue  # the batch that follows says what the gap was
            entry = self.entries.get((batch.last_offset, batch.term))
            covered: tuple[Entry, ...] | None = ()
            if entry is None:
                link = Link.STRANGER
                entry = self._enter(batch, lineage.tip)
            else:
                covered = _connection(lineage, entry)
                link = Link.FORK if covered is None else Link.GOOD
            lineage.become(entry)
            for passed in (*(covered or ()), entry):
                passed.held_by[vnode] = None
                passed.lost_by.pop(vnode, None)
            linked.append(Linked(vnode, batch, link, entry, covered or ()))
        return linked

    def _enter(self, batch: Batch, parent: Entry | None) -> Entry:
        entry = Entry(
            batch.base_offset,
            batch.last_offset,
            batch.term,
            bytes(batch.data),
            batch.type,
            parent,
            0 if parent is None else parent.depth + 1,
        )
        self.entries[batch.last_offset, batch.term] = entry
        return entry

    def truncate(self, vnode: Vnode, first_removed: Offset) -> list[Entry]:
        """A replica cut its log; return what it lost."""
        replica = self.replica(vnode)
        replica.flushed = min(replica.flushed, Offset(first_removed - 1))
        return replica.lineage.cut(first_removed)

    def give_up(self, vnode: Vnode) -> None:
        """A replica is about to empty its log for a snapshot: a crash may leave any part of it.

        Nothing of it is owed any more. Others committed the snapshot's end without this replica,
        so they hold all that it ever helped to commit.
        """
        self.replica(vnode).flushed = NO_OFFSET

    def reset(self, vnode: Vnode, start: Offset) -> None:
        """A replica's log begins anew after a snapshot: what is before it is the ledger."""
        replica = self.replica(vnode)
        replica.lineage.become(self.ledger.at(start - 1))
        replica.flushed = Offset(start - 1)
        for entry in replica.lineage.entries:
            entry.held_by[vnode] = None
            entry.lost_by.pop(vnode, None)

    def recover(self, vnode: Vnode, dirty: Offset, last_term: Term) -> list[Entry]:
        """A replica opened its log and found this end; return what it lost since it was last up.

        A log may also come back with an end that was truncated and never flushed away.
        """
        replica = self.replica(vnode)
        tip = self.entries.get((dirty, last_term))
        before = list(replica.lineage.entries)
        if tip is not None:
            replica.lineage.become(tip)
        else:
            replica.lineage.cut(dirty + 1)
        lost = [entry for entry in before if not replica.lineage.holds(entry)]
        for entry in lost:
            entry.lost_by[vnode] = None
        for entry in replica.lineage.entries[len(before) - len(lost) :]:
            entry.held_by[vnode] = None
            entry.lost_by.pop(vnode, None)
        return lost

    def forget(self, vnode: Vnode) -> None:
        """The disk of a vnode is gone, and with it the vnode."""
        for entry in self.replica(vnode).lineage.entries:
            entry.lost_by[vnode] = None

    # --- What was decided ------------------------------------------------------------------------

    def commit(self, vnode: Vnode, committed: Offset) -> list[Entry]:
        """A replica holds everything up to here for committed; return what is new to the ledger."""
        lineage = self.replica(vnode).lineage
        if committed <= self.ledger.dirty:
            return []
        tip = self.ledger.tip
        if tip is not None and not lineage.holds(tip):
            return []  # two histories: invariant 10 objects
        new = list(lineage.between(self.ledger.dirty, committed))
        for entry in new:
            self.ledger.push(entry)
            entry.decided = new[-1].term  # a leader commits up to an entry of its own term
            if (sequence := entry.sequence) is not None:
                self.produced.setdefault(sequence, entry)
                producer, epoch, first = sequence
                following = producer, epoch, first + len(entry.records)
                self.following.setdefault(following, entry)
        return new

    def elected(self, vnode: Vnode, term: Term, configuration: Configuration) -> Leadership:
        """A replica became leader; return who leads that term in the history: the first who did."""
        won = Leadership(term, vnode, self.replica(vnode).lineage.tip, configuration)
        return self.leaders.setdefault(term, won)

    def voted(self, voter: Vnode, term: Term, candidate: Vnode) -> Vnode:
        """A vote left; return whom the voter chose first in that term."""
        return self.votes.setdefault((voter, term), candidate)

    def configuration_before(self, entry: Entry) -> Configuration:
        """The configuration in force when this entry was appended."""
        step = entry.parent
        while step is not None and step.type is not BatchType.CONFIGURATION:
            step = step.parent
        return self.initial if step is None else step.configuration


def has_majority(configuration: Configuration, says_yes: Callable[[Vnode], bool]) -> bool:
    """Whether a majority of each half says yes, counted the plain way."""
    halves = [half for half in configuration.halves if half]
    return bool(halves) and all(
        2 * sum(1 for voter in half if says_yes(voter)) > len(half) for half in halves
    )


def _connection(lineage: Lineage, entry: Entry) -> tuple[Entry, ...] | None:
    """The entries between the end of a lineage and `entry`; None if there is no such way."""
    passed = []
    step = entry.parent
    while step is not None and step.depth >= len(lineage.entries):
        passed.append(step)
        step = step.parent
    if step is not lineage.tip:
        return None
    return tuple(reversed(passed))
