"""What a cluster is made of: members, topics, partitions, as every node knows them.

All of it is frozen: `ClusterState` replaces, never changes, so a reader may keep what it got.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.raft.types import GroupId, NodeId, Vnode

CONTROLLER_GROUP: Final = GroupId(0)

# Bounds on what one cluster holds. They keep a command, a snapshot and a metadata answer to sizes
# that a node can hold in memory several times over.
MAX_NODE_ID: Final = 2**31 - 1  # Kafka's node ids have 32 bits, and so have ours in Raft
MAX_MEMBERS: Final = 1000
MAX_PARTITIONS: Final = 10_000  # of one topic
MAX_TOTAL_PARTITIONS: Final = 200_000
MAX_OPTIONS: Final = 200  # settings of one topic or of the cluster
MAX_HOST: Final = 255

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


class MemberStatus(Enum):
    ACTIVE = "active"
    DRAINING = "draining"  # keeps its replicas, leads nothing: about to be restarted
    LEAVING = "leaving"  # its replicas move elsewhere, then it is no member any more


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Member:
    id: NodeId
    revision: int  # of its place in group 0: 0 for the nodes that founded the cluster
    rack: str | None
    rpc: Address
    kafka: Address
    status: MemberStatus
    version: int  # the newest feature version that its release knows

    @property
    def vnode(self) -> Vnode:
        """This node as a member of group 0."""
        return Vnode(self.id, self.revision)

    def __str__(self) -> str:
        where = f"{self.rpc} kafka={self.kafka} rack={self.rack or '-'}"
        return f"{self.vnode} {self.status.value} {where} version={self.version}"


@dataclass(frozen=True, slots=True)
class PartitionState:
    index: int
    group: GroupId
    # Where the replicas are, the preferred leader first. While a reassignment is under way these
    # are the replicas it began with.
    replicas: tuple[Vnode, ...]
    # Where a reassignment wants them; None while there is none.
    target: tuple[Vnode, ...] | None

    @property
    def hosts(self) -> tuple[Vnode, ...]:
        """Everybody who must have a replica now: before, during and after a reassignment."""
        return tuple(dict.fromkeys((*self.replicas, *(self.target or ()))))

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(replica.id for replica in self.replicas)

    def replica_on(self, node: NodeId) -> Vnode | None:
        return next((replica for replica in self.hosts if replica.id == node), None)

    def __str__(self) -> str:
        text = f"g{self.group} (" + " ".join(map(str, self.replicas)) + ")"
        return text if self.target is None else f"{text}->(" + " ".join(map(str, self.target)) + ")"


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    id: UUID
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str]  # what was set for this topic; defaults are elsewhere
    internal: bool

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)


def check_topic_name(name: str) -> None:
    """Raise unless this is a name that Kafka allows for a topic."""
    if _TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
        raise ClusterError(
            Problem.INVALID_NAME,
            f"{name[:260]!r} is no name for a topic: use 1 to 249 letters, digits, '.', '_' and"
            " '-', and not '.' or '..' alone",
        )


def check_address(address: Address) -> None:
    if not 0 < len(address.host) <= MAX_HOST or not 0 < address.port < 2**16:
        raise ClusterError(
            Problem.INVALID_CONFIG,
            f"{address.host[:80]!r} and port {address.port} are no address that others can reach",
        )
