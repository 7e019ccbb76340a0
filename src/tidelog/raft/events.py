"""What goes into the core besides messages, and what comes out.

Durability is in the types: `Appended` says that bytes are in the log, `Flushed` that they are on
disk, `Persisted` that term and vote are. The driver executes the outputs of a step in order and
before the next step, and answers each `Append`, `Flush`, `Persist`, `Restore`, `StoreChunk` and
`TakeSnapshot` with the event of that name, at once or later.
"""

from enum import Enum

from tidelog.raft.admission import Objection
from tidelog.raft.messages import Message, SnapshotChunk, SnapshotMeta, SnapshotRequest
from tidelog.raft.types import HardState, Level, Role, Vnode
from tidelog.raft.values import value
from tidelog.records import Batch, Offset, Term

# Token of what the core and its driver propose for themselves: nobody is told how it went.
INTERNAL = -1

# --- Events -----------------------------------------------------------------------------------


@value
class ElectionTimeout:
    """No leader was heard for a randomised timeout."""


@value
class QuorumLost:
    """No majority answered this leader for an election timeout."""


@value
class BeatDue:
    """A heartbeat to this peer is due that has to say more than "still here"."""

    peer: Vnode


@value
class FlushDue:
    """Dirty data has waited for the longest time allowed."""


@value
class Propose:
    token: int
    batches: tuple[Batch, ...]
    level: Level
    expected_term: Term | None = None  # refuse if the leader's term is another


@value
class Appended:
    dirty: Offset


@value
class AppendFailed:
    """The disk took nothing of the last `Append`; the log is as it was."""

    reason: str


@value
class Flushed:
    upto: Offset


@value
class StorageLost:
    """The disk failed, or holds damage: this replica takes no part until it is opened again."""

    reason: str


@value
class CannotLead:
    """The machines cannot go on here: another replica has to lead, now and from now on."""


@value
class Persisted:
    state: HardState


@value
class Applied:
    offset: Offset


@value
class SnapshotSaved:
    """A whole snapshot is on this replica's disk, taken here or received."""

    snapshot: SnapshotMeta


@value
class SnapshotFailed:
    """`TakeSnapshot` or `ShipInLog` could not be carried out."""

    reason: str


@value
class SnapshotApplied:
    """The machines met a snapshot batch of the log, and the snapshot in it is on disk."""

    snapshot: SnapshotMeta


@value
class ChunkStored:
    """The partial snapshot file now holds this many bytes."""

    offset: Offset
    position: int


@value
class ChunkRefused:
    """The partial snapshot is of no use: damaged, or the disk refused. Start over."""

    offset: Offset


@value
class Restored:
    """The machines stand at this snapshot; `applied` is its offset."""

    snapshot: SnapshotMeta


@value
class Compact:
    """Snapshot the machines now, ship the snapshot, then let every replica compact up to it."""

    token: int


@value
class ChangeConfiguration:
    token: int
    voters: tuple[Vnode, ...]


@value
class CancelChange:
    token: int


@value
class Transfer:
    token: int
    target: Vnode


@value
class TransferExpired:
    """The target did not take over in time."""


@value
class Barrier:
    """Confirm leadership with a majority, so that a read at `committed` is linearizable."""

    token: int


# Events that somebody wants an answer to, under the token they carry.
Request = Propose | Compact | ChangeConfiguration | CancelChange | Transfer | Barrier

Event = (
    Message
    | ElectionTimeout
    | QuorumLost
    | BeatDue
    | FlushDue
    | Propose
    | Appended
    | AppendFailed
    | Flushed
    | StorageLost
    | CannotLead
    | Persisted
    | Applied
    | SnapshotSaved
    | SnapshotFailed
    | SnapshotApplied
    | ChunkStored
    | ChunkRefused
    | Restored
    | Compact
    | ChangeConfiguration
    | CancelChange
    | Transfer
    | TransferExpired
    | Barrier
)

# --- Outputs ----------------------------------------------------------------------------------


@value
class Send:
    message: Message


@value
class Append:
    batches: tuple[Batch, ...]


@value
class Truncate:
    first_removed: Offset


@value
class Flush:
    """Flush what is dirty now; answer `Flushed`. Asked again meanwhile: once more afterwards."""


@value
class Persist:
    state: HardState


@value
class HeardLeader:
    """Restart the election timer."""


@value
class RoleChanged:
    role: Role
    term: Term
    leader: Vnode | None


@value
class ApplyUpTo:
    """The machines may be fed up to this offset; report `Applied`."""

    offset: Offset


@value
class TakeSnapshot:
    """Snapshot the machines at `applied` and save it; report `SnapshotSaved`."""


@value
class ShipInLog:
    """Propose a snapshot batch that holds this saved snapshot, under `INTERNAL`."""

    snapshot: SnapshotMeta


@value
class StoreChunk:
    snapshot: SnapshotMeta
    chunk: SnapshotChunk


@value
class SendChunk:
    """Read that chunk from the snapshot file and send it to the one who asked."""

    request: SnapshotRequest


@value
class ResetLog:
    """Empty the log; it begins after this snapshot."""

    snapshot: SnapshotMeta


@value
class Restore:
    """Put the machines back (or forward) to this saved snapshot; report `Restored`."""

    snapshot: SnapshotMeta


@value
class Collectible:
    """Compaction and retention may now touch offsets up to this one."""

    upto: Offset


@value
class DoubtCache:
    """A follower got a batch that does not have its checksum: read it from the disk next time."""


@value
class Dropped:
    """The message at hand was not heeded: see `admission`."""

    why: Objection


class Refusal(Enum):
    """Why something was not done. Only TRUNCATED and UNKNOWN follow an accepted proposal."""

    NOT_LEADER = "not leader"
    WRONG_TERM = "another term"
    TRANSFERRING = "leadership is being handed over"
    BUSY = "too much in flight"
    EARLY = "an earlier batch of the producer may still be on its way"
    OUT_OF_ORDER = "the producer's sequence has a gap"
    FENCED = "the producer's epoch is over"
    STORAGE = "the disk refused"
    NO_ROOM = "the disks of the replicas are full: delete topics or records, or add space"
    CHANGING = "a configuration change is under way"
    NOT_CHANGING = "no configuration change is under way"
    NOT_READY = "not ready yet"
    INVALID = "makes no sense here"
    TRUNCATED = "replaced by another leader's write"
    UNKNOWN = "outcome unknown"


@value
class Accepted:
    """First stage of a proposal: appended to the leader's log, will not be reordered."""

    token: int
    base: Offset
    last: Offset
    term: Term


@value
class Done:
    """The level asked for is reached; for a barrier, `offset` is what may be read."""

    token: int
    offset: Offset


@value
class Refused:
    token: int
    why: Refusal


Output = (
    Send
    | Append
    | Truncate
    | Flush
    | Persist
    | HeardLeader
    | RoleChanged
    | ApplyUpTo
    | TakeSnapshot
    | ShipInLog
    | StoreChunk
    | SendChunk
    | ResetLog
    | Restore
    | Collectible
    | DoubtCache
    | Dropped
    | Accepted
    | Done
    | Refused
)
