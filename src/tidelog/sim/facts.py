"""What the judge saw during one event, as plain data: what an invariant is given to judge.

A `Case` holds one event of one group: the replicas it touched, before and after; every step that a
core took; what was sent, appended, cut, flushed, saved, answered. An `Exam` is a deeper look at one
replica (its whole log and the state of its machines), taken now and then because it costs more.
Nothing here refers to a live object, so a test writes down the case that it wants judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.raft.configuration import Configuration
from tidelog.raft.events import Accepted, Done, Event, Output, Refused
from tidelog.raft.messages import Message, SnapshotMeta
from tidelog.raft.types import HardState, Role, Vnode
from tidelog.records import NO_OFFSET, Batch, Offset, Term
from tidelog.sim.truth import Asked, Entry, GroupTruth, Leadership, Lineage, Linked
from tidelog.storage import Vote


class Disks(Protocol):
    """What would be left of each replica if power went now and nothing unsynced survived."""

    def holds(self, vnode: Vnode, entry: Entry) -> bool:
        """Whether the disk of that vnode has the entry, in its log or in a snapshot."""

    def vote(self, vnode: Vnode) -> Vote | None:
        """The term and vote on that vnode's disk."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A replica between two events."""

    vnode: Vnode
    role: Role
    term: Term
    start: Offset
    dirty: Offset
    flushed: Offset
    committed: Offset
    visible: Offset
    applied: Offset
    collectible: Offset
    compacted: Offset  # of the hard state: the log may lack records up to here
    readable: Offset
    prefix_term: Term
    confirmed: bool
    tainted: bool  # the machines cannot be trusted until a snapshot is restored
    waits: bool  # the machines wait for a snapshot, and nothing is asked of them until then
    snapshot: SnapshotMeta | None
    configuration: Configuration
    configuration_offset: Offset
    matches: Mapping[Vnode, Offset] = field(default_factory=dict)  # of a leader's followers


@dataclass(frozen=True, slots=True)
class Marks:
    """What a leader believes of one follower."""

    match: Offset
    dirty: Offset
    flushed: Offset
    received_seq: int


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The few numbers of a core that are compared before and after one step."""

    role: Role
    term: Term
    committed: Offset
    applied: Offset
    configuration_offset: Offset
    marks: Marks | None = None  # of whoever sent the message that is stepped
    handing_over: bool = False  # it sent timeout-now in this term


@dataclass(frozen=True, slots=True)
class Step:
    vnode: Vnode
    event: Event
    outputs: Sequence[Output]
    was: Glimpse
    now: Glimpse


@dataclass(frozen=True, slots=True)
class Truncation:
    vnode: Vnode
    first_removed: Offset
    removed: Sequence[Entry]
    committed: Offset  # as that replica knew it
    cause: Event | None  # what the core was stepping


@dataclass(frozen=True, slots=True)
class Opening:
    """A replica opened what its disk had kept."""

    vnode: Vnode
    flushed: Offset  # how far it had flushed before it went down
    kept: Entry | None  # the entry at that offset, before it went down
    lost: Sequence[Entry]  # what its log held when it went down and holds no more
    dirty: Offset  # where its log ends now
    tip: Entry | None  # what the history has at that end; None: unknown, or an empty log
    hard: HardState = field(default_factory=HardState)  # the term and vote that it goes by now
    applied: Offset = NO_OFFSET  # where a checkpoint put its machines; NO_OFFSET if none did
    state: bytes | None = None  # of the machines there


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot became visible on a disk."""

    vnode: Vnode
    snapshot: SnapshotMeta
    state: bytes | None  # as read back; None if it could not be


@dataclass(frozen=True, slots=True)
class Fed:
    """The machines of a replica took batches."""

    vnode: Vnode
    applied: Offset  # before
    committed: Offset
    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Committed:
    """A replica moved its commit index to where no replica's had been."""

    vnode: Vnode
    configuration: Configuration  # in force there
    entries: Sequence[Entry]  # what is new to the ledger; at least one


@dataclass(frozen=True, slots=True)
class Elected:
    """A replica became leader."""

    vnode: Vnode
    term: Term
    first: Leadership  # of that term in the history: its own, unless somebody else led before


@dataclass(frozen=True, slots=True)
class Sent:
    vnode: Vnode
    message: Message
    persisted: Term  # highest term that the sender had on disk when the message left
    vote: Vote | None = None  # and its vote there, where the message is one


@dataclass(frozen=True, slots=True)
class Told:
    """An outcome that a replica reported."""

    vnode: Vnode
    asked: Asked
    outcome: Accepted | Done | Refused
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Served:
    """A reader was given batches."""

    vnode: Vnode
    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Loss:
    """A node holds one of its replicas for lost."""

    vnode: Vnode
    harm: str  # what was done to its files
    why: str  # what it found
    needed: bool  # whether a replica needs what was harmed


@dataclass(frozen=True, slots=True)
class Segment:
    base: Offset
    last: Offset
    term: Term


@dataclass(frozen=True, slots=True)
class Translated:
    """One data offset, there and back again."""

    log: Offset
    client: Offset
    back: Offset


@dataclass(frozen=True, slots=True)
class Exam:
    vnode: Vnode
    sight: Sight
    opened: bool  # the replica was opened by this very event
    pairs: Sequence[tuple[Entry, Batch | None]]  # the log's part of the lineage; None: compacted
    strangers: Sequence[Batch]  # stored batches that belong to no entry of the lineage
    segments: Sequence[Segment]
    state: bytes | None  # of the machines at `applied`; None where they do not claim to be exact
    translated: Sequence[Translated]
    term_ends: Mapping[Term, tuple[Term, Offset]]  # what the log answers for each committed term
    now_ms: int  # the latest time that any clock can have shown
    delete_retention_ms: int


@dataclass(slots=True)
class Case:
    """One event of one group, with everything that is known when it is over."""

    truth: GroupTruth
    disks: Disks
    fold: Callable[[Offset], bytes]  # state of the machines after the ledger up to an offset
    sights: dict[Vnode, tuple[Sight | None, Sight]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    linked: list[Linked] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    flushes: list[tuple[Vnode, Entry | None, Offset]] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    fed: list[Fed] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    elected: list[Elected] = field(default_factory=list)
    exams: list[Exam] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    # What a log on a harmed disk has under a right checksum, and what was written there.
    resealed: list[tuple[Vnode, Entry, Batch]] = field(default_factory=list)
    complaints: Sequence[str] = ()  # of the clients, once they have compared notes


def pair(
    lineage: Lineage, start: Offset, stored: Sequence[Batch]
) -> tuple[list[tuple[Entry, Batch | None]], list[Batch]]:
    """Lay a stored log beside the lineage it should hold: pairs, and batches that fit nowhere."""
    found = {(batch.last_offset, batch.term): batch for batch in stored}
    pairs = [
        (entry, found.pop((entry.last, entry.term), None))
        for entry in lineage.between(start - 1, lineage.dirty)
    ]
    return pairs, list(found.values())
