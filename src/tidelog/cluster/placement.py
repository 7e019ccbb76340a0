"""Where replicas go and who should lead: pure functions, the same answer for the same question.

Rules, the first that decides wins:
1. A node holds at most one replica of a partition.
2. The replicas of a partition are spread evenly over racks; a node without a rack is its own rack.
3. Nodes hold equally many replicas, and are equally often the preferred leader: the first replica.
4. The lower id.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.cluster.model import Member, PartitionState
from tidelog.raft.types import GroupId, NodeId


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas should be elsewhere."""

    group: GroupId
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """A group that somebody else should lead."""

    group: GroupId
    source: NodeId
    target: NodeId


def place(
    members: Iterable[Member],
    replica_counts: Mapping[NodeId, int],
    leader_counts: Mapping[NodeId, int],
    partitions: int,
    replication_factor: int,
) -> tuple[tuple[NodeId, ...], ...]:
    """Choose nodes for new partitions among these members, which already hold so many."""
    candidates = sorted(members, key=lambda member: member.id)
    if not 1 <= replication_factor <= len(candidates):
        raise ValueError(f"{replication_factor} replicas on {len(candidates)} nodes")
    racks = _racks(candidates)
    nodes = [member.id for member in candidates]
    replicas = Counter(replica_counts)
    leaders = Counter(leader_counts)
    return tuple(
        _place_one(nodes, racks, replicas, leaders, replication_factor) for _ in range(partitions)
    )


def _place_one(
    nodes: Sequence[NodeId],
    racks: Mapping[NodeId, object],
    replicas: Counter[NodeId],
    leaders: Counter[NodeId],
    replication_factor: int,
) -> tuple[NodeId, ...]:
    chosen: list[NodeId] = []
    for _ in range(replication_factor):
        chosen.append(_best(nodes, chosen, racks, replicas))
    # The order of the rest is the order of election priority, so it is spread by the same rule.
    chosen.sort(key=lambda node: (leaders[node], replicas[node], node))
    replicas.update(chosen)
    leaders[chosen[0]] += 1
    return tuple(chosen)


def _best(
    nodes: Iterable[NodeId],
    taken: Collection[NodeId],
    racks: Mapping[NodeId, object],
    load: Mapping[NodeId, int],
) -> NodeId:
    """The best node for one more replica beside those on the nodes taken."""
    used = Counter(racks.get(node, node) for node in taken)
    return min(
        (node for node in nodes if node not in taken),
        key=lambda node: (used[racks[node]], load.get(node, 0), node),
    )


def _racks(members: Iterable[Member]) -> dict[NodeId, object]:
    return {member.id: member.id if member.rack is None else member.rack for member in members}


def plan_reassign(
    members: Iterable[Member],
    partitions: Iterable[PartitionState],
    replica_counts: Mapping[NodeId, int],
    leaving: Collection[NodeId],
    limit: int,
) -> list[Move]:
    """Choose new places for the replicas on nodes that are leaving, for at most `limit` partitions.

    `members` are those that may hold them. A partition for which there are not enough of them, or
    that is being moved already, is left out.
    """
    candidates = sorted(members, key=lambda member: member.id)
    racks = _racks(candidates)
    load = Counter(replica_counts)
    moves: list[Move] = []
    for partition in partitions:
        if len(moves) == limit:
            break
        if not partition.moves and not set(partition.nodes).isdisjoint(leaving):
            replicas = _replace(partition.nodes, leaving, racks, load)
            if replicas is not None:
                moves.append(Move(partition.group, replicas))
    return moves


def _replace(
    nodes: Sequence[NodeId],
    leaving: Collection[NodeId],
    racks: Mapping[NodeId, object],
    load: Counter[NodeId],
) -> tuple[NodeId, ...] | None:
    """Put another node in the place of each one that leaves; None if there are too few."""
    free = {node for node in racks if node not in nodes and node not in leaving}
    if len(free) < sum(node in leaving for node in nodes):
        return None
    result = list(nodes)
    for position, node in enumerate(nodes):
        if node not in leaving:
            continue
        staying = [each for each in result if each not in leaving]
        result[position] = _best(free, staying, racks, load)
        free.discard(result[position])
        load[result[position]] += 1
        load[node] -= 1
    return tuple(result)


def balance_leaders(
    leaders: Mapping[GroupId, NodeId],
    replicas: Mapping[GroupId, Sequence[NodeId]],
    eligible: Collection[NodeId],
    limit: int,
) -> list[LeaderMove]:
    """Choose at most `limit` groups that should be led by another of their replicas.

    Groups whose leader may not lead come first. They go to their preferred replica, or else to the
    one that leads least. A group that is led well only moves to its preferred replica.
    """
    counts = Counter(leaders.values())
    urgent: list[LeaderMove] = []
    others: list[LeaderMove] = []
    for group in sorted(leaders.keys() & replicas.keys()):
        leader = leaders[group]
        able = [node for node in replicas[group] if node in eligible]
        if not able or leader == able[0]:
            continue
        if leader not in eligible:
            preferred = able[0] == replicas[group][0]
            target = able[0] if preferred else min(able, key=lambda node: (counts[node], node))
            urgent.append(LeaderMove(group, leader, target))
        elif able[0] == replicas[group][0]:
            target = able[0]
            others.append(LeaderMove(group, leader, target))
        else:
            continue
        counts[leader] -= 1
        counts[target] += 1
    return (urgent + others)[:limit]
