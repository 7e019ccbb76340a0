"""What can be done to a cluster: one dataclass a command, and the bytes it travels as.

A command is one batch of group 0. It says all that is needed to carry it out, so that every replica
does the same: who proposes it has already chosen ids and places, and `ClusterState` only checks
that they still make sense when the command's turn comes.

The token names one intent. A command that is proposed twice under one token is carried out once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from tidelog.cluster import strictjson
from tidelog.cluster.model import Address, MemberStatus
from tidelog.cluster.strictjson import NotThis
from tidelog.raft.types import GroupId, NodeId, Vnode

VERSION: Final = 1
# A topic of 10,000 partitions with seven replicas each is under half of this.
MAX_COMMAND_BYTES: Final = 4 * 1024 * 1024
MAX_LOST: Final = 10_000  # replicas that one command replaces: some 40 bytes each


class CorruptCommand(ValueError):
    """These bytes are no command that this release knows; the message says why."""


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
    | AllocateProducerIds
    | EnableFeature
)

_KINDS: Final[dict[str, type[Command]]] = {
    kind.__name__: kind
    for kind in (
        CreateCluster,
        CreateTopic,
        DeleteTopic,
        AddPartitions,
        SetTopicConfig,
        SetClusterConfig,
        AddMember,
        UpdateMember,
        ReplaceMember,
        SetMemberStatus,
        RemoveMember,
        Reassign,
        CancelReassign,
        FinishReassign,
        ReplaceReplicas,
        AllocateProducerIds,
        EnableFeature,
    )
}


def encode(command: Command) -> bytes:
    envelope = {
        "version": VERSION,
        "kind": type(command).__name__,
        "command": strictjson.to_plain(command),
    }
    return strictjson.dump(envelope)


def decode(data: bytes) -> Command:
    """Read a command; raises `CorruptCommand` and nothing else, whatever the bytes are."""
    if len(data) > MAX_COMMAND_BYTES:
        raise CorruptCommand(f"{len(data)} bytes are more than a command may have")
    try:
        envelope = strictjson.parse(data)
        if type(envelope) is not dict or envelope.keys() != {"version", "kind", "command"}:
            raise CorruptCommand("a command is a map of version, kind and command")
        version, name = envelope["version"], envelope["kind"]
        if type(version) is not int or version != VERSION:
            raise CorruptCommand(
                f"this release reads version {VERSION} of commands and not what it got: upgrade"
                " this node"
            )
        kind = _KINDS.get(name) if type(name) is str else None
        if kind is None:
            raise CorruptCommand(f"{ascii(name)[:60]} is no command that this release knows")
        return strictjson.from_plain(kind, envelope["command"])
    except NotThis as error:
        raise CorruptCommand(f"a command cannot be read: {error}") from error
