"""What goes into the core besides messages, and what comes out.

Durability is in the types: `Appended` says that bytes are in the log, `Flushed` that they are on
disk, `Persisted` that term and vote are. The driver executes the outputs of a step in order and
before the next step, and answers each `Append`, `Flush`, `Persist`, `Restore`, `StoreChunk` and
`TakeSnapshot` with the event of that name, at once or later.
"""

from dataclasses import dataclass
from enum import Enum

from tidelog.raft.messages import Message, SnapshotChunk, SnapshotMeta, SnapshotRequest
from tidelog.raft.types import HardState, Level, Role, Vnode
from tidelog.records import Batch, Offset, Term

# Token of what the core and its driver propose for themselves: nobody is told how it went.
INTERNAL = -1

# --- Events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ElectionTimeout:
    """No leader was heard for a randomised timeout."""


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """No majority answered this leader for an election timeout."""


@dataclass(frozen=True, slots=True)
class BeatDue:
    """A heartbeat to this peer is due that has to say more than "still here"."""

    peer: Vnode


@dataclass(frozen=True, slots=True)
class FlushDue:
    """Dirty data has waited for the longest time allowed."""


@dataclass(frozen=True, slots=True)
class Propose:
    token: int
    batches: tuple[Batch, ...]
    level: Level
    expected_term: Term | None = None  # refuse if the leader's term is another


@dataclass(frozen=True, slots=True)
class Appended:
    dirty: Offset


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The disk took nothing of the last `Append`; the log is as it was."""

    reason: str


@dataclass(frozen=True, slots=True)
class Flushed:
    upto: Offset


@dataclass(frozen=True, slots=True)
class StorageLost:
    """An fsync failed: nothing that this replica wrote lately can be trusted until it restarts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Persisted:
    state: HardState


@dataclass(frozen=True, slots=True)
class Applied:
    offset: Offset


@dataclass(frozen=True, slots=True)
class SnapshotSaved:
    """A whole snapshot is on this replica's disk, taken here or received."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """`TakeSnapshot` or `ShipInLog` could not be carried out."""

    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotApplied:
    """The machines met a snapshot batch of the log, and the snapshot in it is on disk."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """The partial snapshot file now holds this many bytes."""

    offset: Offset
    position: int


@dataclass(frozen=True, slots=True)
class ChunkRefused:
    """The partial snapshot is of no use: damaged, or the disk refused. Start over."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Restored:
    """The machines stand at this snapshot; `applied` is its offset."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class Compact:
    """Snapshot the machines now, ship the snapshot, then let every replica compact up to it."""

    token: int


@dataclass(frozen=True, slots=True)
class ChangeConfiguration:
    token: int
    voters: tuple[Vnode, ...]


@dataclass(frozen=True, slots=True)
class CancelChange:
    token: int


@dataclass(frozen=True, slots=True)
class Transfer:
    token: int
    target: Vnode


@dataclass(frozen=True, slots=True)
class TransferExpired:
    """The target did not take over in time."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Send:
    message: Message


@dataclass(frozen=True, slots=True)
class Append:
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    first_removed: Offset


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush what is dirty now; answer `Flushed`. Asked again meanwhile: once more afterwards."""


@dataclass(frozen=True, slots=True)
class Persist:
    state: HardState


@dataclass(frozen=True, slots=True)
class HeardLeader:
    """Restart the election timer."""


@dataclass(frozen=True, slots=True)
class RoleChanged:
    role: Role
    term: Term
    leader: Vnode | None


@dataclass(frozen=True, slots=True)
class ApplyUpTo:
    """The machines may be fed up to this offset; report `Applied`."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Snapshot the machines at `applied` and save it; report `SnapshotSaved`."""


@dataclass(frozen=True, slots=True)
class ShipInLog:
    """Propose a snapshot batch that holds this saved snapshot, under `INTERNAL`."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class StoreChunk:
    snapshot: SnapshotMeta
    chunk: SnapshotChunk


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Read that chunk from the snapshot file and send it to the one who asked."""

    request: SnapshotRequest


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Empty the log; it begins after this snapshot."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class Restore:
    """Put the machines back (or forward) to this saved snapshot; report `Restored`."""

    snapshot: SnapshotMeta


@dataclass(frozen=True, slots=True)
class Collectible:
    """Compaction and retention may now touch offsets up to this one."""

    upto: Offset


class Refusal(Enum):
    """Why something was not done. Only TRUNCATED and UNKNOWN follow an accepted proposal."""

    NOT_LEADER = "not leader"
    WRONG_TERM = "another term"
    TRANSFERRING = "leadership is being handed over"
    BUSY = "too much in flight"
    OUT_OF_ORDER = "the producer's sequence has a gap"
    FENCED = "the producer's epoch is over"
    STORAGE = "the disk refused"
    CHANGING = "a configuration change is under way"
    NOT_CHANGING = "no configuration change is under way"
    NOT_READY = "not ready yet"
    INVALID = "makes no sense here"
    TRUNCATED = "replaced by another leader's write"
    UNKNOWN = "outcome unknown"


@dataclass(frozen=True, slots=True)
class Accepted:
    """First stage of a proposal: appended to the leader's log, will not be reordered."""

    token: int
    base: Offset
    last: Offset
    term: Term


@dataclass(frozen=True, slots=True)
class Done:
    """The level asked for is reached; for a barrier, `offset` is what may be read."""

    token: int
    offset: Offset


@dataclass(frozen=True, slots=True)
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
    | Accepted
    | Done
    | Refused
)
