"""What a cluster is made of: members, topics, partitions, as every node knows them.

All of it is frozen: `ClusterState` replaces, never changes, so a reader may keep what it got.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
MAX_RECOVERIES: Final = 20  # that are remembered, the newest

# Numbers that are passed over when the end of the controller's log may be lost: some may have been
# given out there.
REVISION_MARGIN: Final = 10_000
GROUP_MARGIN: Final = 100_000
PRODUCER_ID_MARGIN: Final = 100_000_000
NOTHING_LEFT: Final = -1  # instead of the revision of a replica

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
    # Of its data directory: one that comes back with another is a new node. Empty: given up.
    birth: str = ""

    @property
    def vnode(self) -> Vnode:
        """This node as a member of group 0."""
        return Vnode(self.id, self.revision)

    @property
    def awaited(self) -> bool:
        """Whether its directory was given up, and no other has taken the place yet.

        A group that began with such a member would wait for somebody who never comes.
        """
        return not self.birth

    def __str__(self) -> str:
        where = f"{self.rpc} kafka={self.kafka} rack={self.rack or '-'}"
        return f"{self.vnode} {self.status.value} {where} version={self.version}"


@dataclass(frozen=True, slots=True)
class Founder:
    id: NodeId
    birth: str


@dataclass(frozen=True, slots=True)
class PartitionState:
    index: int
    group: GroupId
    # Where the replicas are, the preferred leader first. While a reassignment is under way these
    # are the replicas it began with.
    replicas: tuple[Vnode, ...]
    # Where a reassignment wants them; None while there is none. A replica that was lost is replaced
    # by a reassignment to the same nodes, with another revision for that one.
    target: tuple[Vnode, ...] | None
    # The voters that the Raft group begins with; None: `replicas`, which have not changed since it
    # was created. Empty once a change is committed: from then on its log tells who they are, and
    # a replica with an empty log takes part only when a leader says so.
    founders: tuple[Vnode, ...] | None = None

    @property
    def founding(self) -> tuple[Vnode, ...]:
        return self.replicas if self.founders is None else self.founders

    @property
    def hosts(self) -> tuple[Vnode, ...]:
        """The replicas that must be open now: before, during and after a reassignment.

        A node has one of them at most. Where it was lost and is rebuilt, that is the new one.
        """
        goal = {replica.id: replica for replica in self.target or ()}
        before = (goal.pop(replica.id, replica) for replica in self.replicas)
        return (*before, *goal.values())

    @property
    def known(self) -> tuple[Vnode, ...]:
        """All replicas that the Raft group may still count, those that were lost included."""
        return tuple(dict.fromkeys((*self.replicas, *(self.target or ()))))

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(replica.id for replica in self.replicas)

    @property
    def rebuilding(self) -> tuple[Vnode, ...]:
        """New replicas that take the place of lost ones on the same nodes."""
        lost = {replica.id for replica in self.replicas if replica not in (self.target or ())}
        return tuple(
            replica
            for replica in self.target or ()
            if replica.id in lost and replica not in self.replicas
        )

    @property
    def moves(self) -> bool:
        """Whether a reassignment to other nodes, or to another order of them, is under way."""
        return self.target is not None and (
            not self.rebuilding or [each.id for each in self.target] != list(self.nodes)
        )

    def replica_on(self, node: NodeId) -> Vnode | None:
        return next((replica for replica in self.hosts if replica.id == node), None)

    def __str__(self) -> str:
        text = f"g{self.group} (" + " ".join(map(str, self.replicas)) + ")"
        return text if self.target is None else f"{text}->(" + " ".join(map(str, self.target)) + ")"


@dataclass(frozen=True, slots=True)
class Heir:
    """The replica that a partition goes on with alone, because its majority is gone."""

    group: GroupId
    vnode: Vnode  # the only voter that is left; nobody who was one before is believed
    # Of the replica on the same node whose files it takes over; NOTHING_LEFT: it begins empty.
    was: int

    @property
    def former(self) -> Vnode | None:
        return None if self.was == NOTHING_LEFT else Vnode(self.vnode.id, self.was)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One decision of an operator to go on with what was left."""

    at_ms: int
    node: NodeId  # where it was decided
    # Of the cluster; the same before and after if only partitions were recovered.
    before: str
    after: str
    lost: tuple[NodeId, ...]  # members that were given up
    alone: int  # partitions that went on with one replica
    empty: int  # partitions that began anew without a record
    end: int  # last offset of the controller's log that was kept; -1 if that was not touched
    # Numbers of groups that the controller may have given out in what is lost: from here on, as
    # many as GROUP_MARGIN. -1 if the controller was not touched.
    unseen: int

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        who = ", ".join(map(str, self.lost))
        without = f" without node{'s' * (len(self.lost) > 1)} {who}" if self.lost else ""
        what = f"{self.alone} partitions went on with one replica"
        if self.empty:
            what += f", {self.empty} began anew without records"
        if self.end >= 0:
            what += f"; the controller's log was kept up to offset {self.end}"
        return (
            f"this cluster was recovered on {when} by an operator, on node {self.node}{without}:"
            f" {what}. What only the replicas that were given up had is lost"
        )


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
