"""Words of the consensus core: who takes part, in what role, and how safe a write wants to be."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, NewType

from tidelog.records import NO_OFFSET, NO_TERM, Offset, Term

NodeId = NewType("NodeId", int)
GroupId = NewType("GroupId", int)


class Vnode(NamedTuple):
    """A node as a member of a group.

    The revision tells a node that was removed and added again from its former self: the two have
    different disks, so a promise made by one binds nothing on the other.
    """

    id: NodeId
    revision: int

    def __str__(self) -> str:
        return f"n{self.id}" if self.revision == 0 else f"n{self.id}r{self.revision}"


class Level(IntEnum):
    """When a write is acknowledged."""

    NONE = 0  # appended to the leader's log; the caller does not listen
    LEADER = 1  # appended to the leader's log
    MEMORY = 2  # appended on a majority, perhaps only in memory (write caching)
    QUORUM = 3  # flushed on a majority


class Role(Enum):
    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ShippingMode(Enum):
    """How a machine snapshot reaches the replicas before the log is compacted (seed 3)."""

    LOG = "log"  # approach 1: as a batch of the log itself
    SIDE = "side"  # approach 2: as a file, on a majority before anything is compacted


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before any message that depends on it leaves."""

    term: Term = NO_TERM
    voted_for: Vnode | None = None
    # The log may lack records at or below this offset: this replica compacted them, or received
    # them from a leader that had. Persisted because batches do not tell: compaction also removes
    # records from the inside of a batch that survives.
    compacted: Offset = NO_OFFSET

    def __str__(self) -> str:
        return f"term={self.term} vote={self.voted_for or '-'} compacted={self.compacted}"
