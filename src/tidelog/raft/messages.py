"""Messages between the replicas of one group.

Every message names both ends as vnodes, because a node that was wiped and added again is somebody
else, and the sender's term. The core reads and builds these; how they become bytes is `rpc`'s.
"""

from enum import Enum

from tidelog.raft.configuration import Configuration
from tidelog.raft.types import GroupId, Vnode
from tidelog.raft.values import value
from tidelog.records import Batch, Offset, Term


@value
class Message:
    group: GroupId
    source: Vnode
    target: Vnode
    term: Term


class Ballot(Enum):
    PREVOTE = "prevote"  # would you vote for me? Changes nothing anywhere (thesis 9.6)
    VOTE = "vote"
    TRANSFER = "transfer"  # a vote that the old leader asked for: a live leader is no objection


@value
class VoteRequest(Message):
    """For PREVOTE, `term` is the term the candidate would stand in."""

    ballot: Ballot
    last_offset: Offset  # the candidate's dirty offset
    last_term: Term


@value
class VoteReply(Message):
    """A granted PREVOTE echoes the term asked about; everything else carries the voter's own."""

    ballot: Ballot
    granted: bool


@value
class AppendRequest(Message):
    """Batches for a follower; without batches, a full heartbeat."""

    seq: int  # per follower, rising; the reply echoes it, so that old replies are told apart
    prev_offset: Offset  # the follower must hold this offset with this term
    prev_term: Term
    batches: tuple[Batch, ...]  # contiguous from prev_offset + 1, ghosts included, never last
    committed: Offset
    visible: Offset
    compacted: Offset  # the sender's log may lack records at or below this offset (seed 3)
    flush: bool  # answer only when what was appended is on disk (seed 1)


class Status(Enum):
    SUCCESS = "ok"
    MISMATCH = "mismatch"  # prev is not there, or has another term: see the hint
    UNAVAILABLE = "unavailable"  # the disk refused: try again later
    DAMAGED = "damaged"  # a batch does not have its checksum: send it again, from the disk


@value
class AppendReply(Message):
    seq: int
    status: Status
    match: Offset  # last offset known to equal the leader's; meaningful for SUCCESS
    dirty: Offset
    flushed: Offset
    # MISMATCH: the largest offset at or below prev whose term does not exceed prev's, and its term
    hint_offset: Offset
    hint_term: Term
    snapshot: Offset  # the newest snapshot on the follower's disk


@value
class TimeoutNow(Message):
    """Stand for election at once: the leader hands over (thesis 3.10)."""


@value
class SnapshotMeta:
    """A snapshot of a group's machines: the fold of the uncompacted history up to `offset`."""

    offset: Offset
    term: Term  # term of the entry at `offset`
    configuration: Configuration  # in force at `offset`
    size: int
    crc: int

    def __str__(self) -> str:
        return f"snapshot@{self.offset}/t{self.term} {self.size}B"


class Purpose(Enum):
    STORE = "store"  # keep it, so that a majority has it before the leader compacts
    INSTALL = "install"  # the follower's log ended before the leader's begins


@value
class SnapshotOffer(Message):
    snapshot: SnapshotMeta
    purpose: Purpose


@value
class SnapshotStored(Message):
    """The sender has a snapshot at `offset` on its disk; `installed`: and its log reaches it."""

    offset: Offset
    installed: bool


@value
class SnapshotQuery(Message):
    """Who has a snapshot at this offset or later?"""

    at_least: Offset


@value
class SnapshotFound(Message):
    snapshot: SnapshotMeta


@value
class SnapshotRequest(Message):
    """Send me a chunk of that snapshot."""

    offset: Offset
    position: int


@value
class SnapshotChunk(Message):
    offset: Offset
    position: int
    data: bytes  # empty: the sender no longer has that snapshot
    crc: int  # of data
