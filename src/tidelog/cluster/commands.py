"""What can be done to a cluster: one dataclass a command, and the bytes it travels as.

A command is one batch of group 0. It says all that is needed to carry it out, so that every replica
does the same: who proposes it has already chosen ids and places, and `ClusterState` only checks
that they still make sense when the command's turn comes.

The token names one intent. A command that is proposed twice under one token is carried out once.

    {"version": 1, "kind": "DeleteTopic", "needs": 1, "command": {...}}

`needs` is the release that can decode it: an older one that meets it stops, and says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from tidelog.cluster import strictjson
from tidelog.cluster.model import Address, MemberStatus
from tidelog.cluster.release import RELEASE
from tidelog.cluster.strictjson import NotThis
from tidelog.raft.types import GroupId, NodeId, Vnode

VERSION: Final = 1
# A topic of 10,000 partitions with seven replicas each is under half of this.
MAX_COMMAND_BYTES: Final = 4 * 1024 * 1024
FIRST_RELEASE: Final = 1  # of a command that does not say which it needs
_ENVELOPE: Final = frozenset({"version", "kind", "needs", "command"})
MAX_LOST: Final = 10_000  # replicas that one command replaces: some 40 bytes each


class CorruptCommand(ValueError):
    """These bytes are no command that this release knows; the message says why."""

    def __init__(self, message: str, needs: int | None = None) -> None:
        super().__init__(message)
        self.needs = needs  # the release that knows it, if the bytes tell


def new_token() -> UUID:
    return uuid4()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCluster:
    """The first command of all. Later ones under another token change nothing."""

    token: UUID
    cluster_id: str
    seeds: tuple[NodeId, ...]  # the nodes that group 0 began with: their revision is 0
    births: tuple[str, ...] = ()  # of their directories, one for each


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    token: UUID
    name: str
    id: UUID
    replicas: tuple[tuple[NodeId, ...], ...]  # a tuple a partition, preferred leader first
    config: Mapping[str, str]
    internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    token: UUID
    name: str
    id: UUID  # so that a topic that was created anew in between survives


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    token: UUID
    name: str
    id: UUID
    first: int  # index of the first new partition: as many as the proposer saw
    replicas: tuple[tuple[NodeId, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTopicConfig:
    token: UUID
    name: str
    changes: Mapping[str, str | None]  # None takes a setting back


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusterConfig:
    token: UUID
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMember:
    """Its result is the revision that the member has got."""

    token: UUID
    id: NodeId
    rack: str | None
    rpc: Address
    kafka: Address
    version: int
    birth: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMember:
    token: UUID
    id: NodeId
    rack: str | None
    rpc: Address
    kafka: Address
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceMember:
    """A member lost its memory, or its replica of group 0: its place there gets a new revision.

    Its result is that revision.
    """

    token: UUID
    id: NodeId
    revision: int  # the one that is lost
    birth: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMemberStatus:
    token: UUID
    id: NodeId
    status: MemberStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMember:
    token: UUID
    id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassign:
    token: UUID
    name: str
    index: int
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReassign:
    """Turn a reassignment round: it now leads back to where it came from."""

    token: UUID
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReassign:
    """The group's committed configuration is the target."""

    token: UUID
    group: GroupId
    target: tuple[Vnode, ...]


@dataclass(frozen=True, slots=True)
class LostReplica:
    group: GroupId
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceReplicas:
    """A node cannot vouch for what these replicas promised: each is rebuilt as another one.

    Its result is the revision of the new replicas.
    """

    token: UUID
    node: NodeId
    lost: tuple[LostReplica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverCluster:
    """The majority of the controller is gone, and one node goes on with what it has.

    It is the only voter of group 0 from then on, in a cluster of another id. Its result is the
    revision of that voter and of whatever takes a lost replica's place.
    """

    token: UUID
    node: NodeId
    cluster_id: str
    lost: tuple[NodeId, ...]  # members whose directories are gone for good
    empty: bool  # partitions without any replica left begin anew
    at_ms: int
    end: int  # last offset of group 0 that is kept


@dataclass(frozen=True, slots=True)
class Survivor:
    group: GroupId
    node: NodeId
    revision: int  # NOTHING_LEFT: the partition begins anew there


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverPartitions:
    """The majority of these partitions is gone: each goes on with the one replica that is named.

    Its result is the revision of the replicas that take part from then on.
    """

    token: UUID
    node: NodeId  # that was asked for it
    survivors: tuple[Survivor, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Its result is the first of `count` producer ids that nobody else gets."""

    token: UUID
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnableFeature:
    token: UUID
    name: str
    level: int
    needs: int  # the version that every member must have for it


Command = (
    CreateCluster
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | SetTopicConfig
    | SetClusterConfig
    | AddMember
    | UpdateMember
    | ReplaceMember
    | SetMemberStatus
    | RemoveMember
    | Reassign
    | CancelReassign
    | FinishReassign
    | ReplaceReplicas
    | RecoverCluster
    | RecoverPartitions
    | AllocateProducerIds
    | EnableFeature
)

# The release that each kind came with, as it is now: one that gets another field or another meaning
# gets a new number, since older releases cannot carry it out.
_SINCE: Final[dict[type[Command], int]] = {
    CreateCluster: 1,
    CreateTopic: 1,
    DeleteTopic: 1,
    AddPartitions: 1,
    SetTopicConfig: 1,
    SetClusterConfig: 1,
    AddMember: 1,
    UpdateMember: 1,
    ReplaceMember: 1,
    SetMemberStatus: 1,
    RemoveMember: 1,
    Reassign: 1,
    CancelReassign: 1,
    FinishReassign: 1,
    ReplaceReplicas: 1,
    RecoverCluster: 1,
    RecoverPartitions: 1,
    AllocateProducerIds: 1,
    EnableFeature: 1,
}
_KINDS: Final[dict[str, type[Command]]] = {kind.__name__: kind for kind in _SINCE}


def needs(command: Command) -> int:
    """Return the first release that can decode and carry out a command."""
    return _SINCE[type(command)]


def encode(command: Command) -> bytes:
    envelope = {
        "version": VERSION,
        "kind": type(command).__name__,
        "needs": needs(command),
        "command": strictjson.to_plain(command),
    }
    return strictjson.dump(envelope)


def decode(data: bytes) -> Command:
    """Read a command; raises `CorruptCommand` and nothing else, whatever the bytes are."""
    if len(data) > MAX_COMMAND_BYTES:
        raise CorruptCommand(f"{len(data)} bytes are more than a command may have")
    needed: int | None = None
    try:
        envelope = strictjson.parse(data)
        if type(envelope) is not dict:
            raise NotThis("it is not a map")
        # First of all: whatever else a later release changes, it leaves this where it is.
        needed = _release(envelope.get("needs", FIRST_RELEASE))
        return _command_in(envelope, needed)
    except NotThis as error:
        raise CorruptCommand(f"a command cannot be read: {error}", needed) from error


def _release(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _command_in(envelope: dict[str, object], needed: int | None) -> Command:
    version, name = envelope.get("version"), envelope.get("kind")
    if type(version) is not int or version != VERSION:
        raise NotThis(f"this release reads version {VERSION} of commands, and it has another one")
    kind = _KINDS.get(name) if type(name) is str else None
    if kind is None:
        raise NotThis(f"{ascii(name)[:60]} is no command that this release knows")
    if envelope.keys() | {"needs"} != _ENVELOPE:
        raise NotThis(f"it has other fields than {', '.join(sorted(_ENVELOPE))}")
    if needed is None or needed > RELEASE:
        raise NotThis(f"this is release {RELEASE}, and {name} is of another one")
    return strictjson.from_plain(kind, envelope["command"])
