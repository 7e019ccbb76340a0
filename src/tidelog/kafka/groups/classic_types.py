"""What goes in and out of a classic group, and what it remembers of a member."""

from dataclasses import dataclass, field
from enum import Enum

from kio.schema.errors import ErrorCode

from tidelog.kafka.groups.outbox import Ticket
from tidelog.kafka.groups.timers import Timer

Protocols = tuple[tuple[str, bytes], ...]  # name and metadata, the member's favourite first


class State(Enum):
    """The value is the name that clients are told.

    Empty ---------- join --------> PreparingRebalance <--- join, leave, silence ---+
      ^                                |           |                                |
      +---- nobody joined in time -----+           | all joined, or time is up      |
                                                   v                                |
                 Dead              CompletingRebalance ---- leader's sync ---> Stable
         (deleted or expired)
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Join:
    member_id: str  # "" for a member that has none yet
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocol_type: str
    protocols: Protocols
    # From version 4 on a member without an id is told one and joins again, so that a client that
    # gives up on its first request leaves no ghost in the group (KIP-394).
    wants_id_first: bool = False
    # From version 9 on a leader can be told to leave the assignment as it is (KIP-814).
    knows_skip: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader only


@dataclass(frozen=True, slots=True)
class Sync:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClassicMemberView:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicView:
    """A classic group as tools see it."""

    state: str
    protocol_type: str
    protocol: str
    members: tuple[ClassicMemberView, ...]


@dataclass(slots=True, eq=False)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocols: Protocols
    # Runs while the member is expected to speak: not while its join or sync waits for the others,
    # except for its very first join.
    session: Timer = field(repr=False)
    assignment: bytes = b""
    joining: Ticket | None = None  # its join that waits for the end of the rebalance
    syncing: Ticket | None = None  # its sync that waits for the leader's
    is_new: bool = True  # it has not been part of a generation

    def metadata(self, protocol: str | None) -> bytes:
        for name, content in self.protocols:
            if name == protocol:
                return content
        return b""
