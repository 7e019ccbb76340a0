"""The cluster as clients see it: brokers, leaders, replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.cluster.model import Address, PartitionState, TopicState
from tidelog.kafka.dispatch import Context
from tidelog.raft.types import NodeId

NO_NODE: Final = -1
# What every client may do with a topic and with the cluster, as Kafka's bit sets of operations:
# there is no access control, and a Kafka without it answers the same.
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
# Kafka's "you did not ask".
UNKNOWN_OPERATIONS: Final = -(2**31)


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionView:
    index: int
    error: ErrorCode
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


def brokers(context: Context, *, recent: bool = False) -> Iterator[Broker]:
    """Return the nodes that clients can reach: this one, and those that are known to be up.

    `recent`: also those that are gone since a moment. A client that is about to ask such a node
    finds out by trying. If it were told of the node no more, Java's admin client would wait for the
    node to come back until its call times out.
    """
    members = context.node.state.members
    up = reachable(context, sorted(members))
    for id_ in sorted(members):
        if id_ not in up and not (recent and context.node.was_alive(id_)):
            continue
        where = address(context, id_)
        yield Broker(id_, where.host, where.port, members[id_].rack)


def reachable(context: Context, nodes: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Return those of these nodes that clients can reach.

    A node that hears of less than half of the others is cut off itself. What it says of them then
    is what it knew before: its clients shall go there, and epochs tell them what is out of date.
    """
    up = tuple(each for each in nodes if _is_up(context, each))
    return tuple(nodes) if len(up) < len(nodes) and is_cut_off(context) else up


def is_cut_off(context: Context) -> bool:
    """Tell whether this node hears of less than half of the cluster."""
    members = context.node.state.members
    return 2 * sum(_is_up(context, each) for each in members) < len(members)


def _is_up(context: Context, node_id: NodeId) -> bool:
    return node_id == context.node.id or context.node.is_alive(node_id)


def address(context: Context, node_id: int) -> Address:
    """Return where clients reach this member; a node knows best where it can be reached itself."""
    if node_id == context.node.id:
        return context.advertised
    return next(
        member.kafka for member in context.node.state.members.values() if member.id == node_id
    )


def controller_id(context: Context) -> int:
    """Return the node to send changes to. Any will do, since they pass them on.

    It is one of `brokers`: a client waits for one that it was not told of until it asks again,
    which is minutes. A controller that has just joined may not be known as a member here yet.
    """
    leader = context.node.controller_id()
    members = context.node.state.members
    if leader is not None and leader in members and context.node.is_alive(leader):
        return leader
    return NO_NODE if is_cut_off(context) else context.node.id


def view(context: Context, topic: TopicState, partition: PartitionState) -> PartitionView:
    node = context.node
    leader, epoch = node.leader_of(topic.name, partition.index)
    replicas = tuple(replica.id for replica in partition.hosts)
    up = reachable(context, replicas)
    known = leader is not None and leader in node.state.members and leader in up
    return PartitionView(
        index=partition.index,
        error=ErrorCode.none if known else ErrorCode.leader_not_available,
        leader=leader if known and leader is not None else NO_NODE,
        epoch=epoch,
        replicas=replicas,
        in_sync=_in_sync(context, partition, up) if known else up,
        offline=tuple(each for each in replicas if each not in up),
    )


def _in_sync(
    context: Context, partition: PartitionState, up: tuple[NodeId, ...]
) -> tuple[NodeId, ...]:
    """Of the replicas that are up, those that have all that readers may see, as the leader says.

    It says so twice a second of those that catch up, and every few seconds of those that fall back.
    """
    claimed = context.node.leaders.leadership(partition.group)
    if claimed is None:
        return up
    return tuple(each for each in up if each in claimed.in_sync)
