"""Who goes on with a partition whose majority is gone, decided the same way on every replica.

A partition keeps its nodes and gets new replicas on all of them, under one new revision:

    the heir      takes over the files of the replica that is left, and is the only voter
    the others    begin empty, learn from the heir, and take their seats by the reassignment that
                  is under way from then on, as replicas that were lost do

So none of the old replicas is a voter any longer. Whatever a node that was given up brings back, no
quorum counts it, and what it holds beyond the heir's log is not part of the partition.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from tidelog.cluster.model import NOTHING_LEFT, Heir, PartitionState
from tidelog.raft.types import NodeId, Vnode


class Succession(NamedTuple):
    """A partition after some of its nodes were given up."""

    partition: PartitionState
    heir: Heir | None  # None: the replicas that are left are a majority, or none is left


def has_majority(partition: PartitionState, able: Collection[Vnode]) -> bool:
    """Whether these replicas can decide for a partition, before and after a change under way.

    Which of the two Raft is at cannot be told from the state. The new replicas of lost ones are no
    voters before the rest has let them in, so they do not count.
    """
    sides = [partition.replicas]
    if partition.moves:
        sides.append(tuple(v for v in partition.target or () if v not in partition.rebuilding))
    return all(2 * sum(each in able for each in side) > len(side) for side in sides)


def left_over(partition: PartitionState, lost: Collection[NodeId]) -> tuple[Vnode, ...]:
    """The replicas that are open on nodes that were not given up."""
    return tuple(replica for replica in partition.hosts if replica.id not in lost)


def succeed(
    partition: PartitionState, lost: Collection[NodeId], revision: int, empty_on: NodeId | None
) -> Succession:
    """Return what becomes of a partition when the nodes in `lost` are given up.

    With `empty_on`, a partition without any replica left begins anew on that node.
    """
    nodes = {replica.id for replica in partition.known}
    if not nodes & set(lost):
        return Succession(partition, None)
    left = left_over(partition, lost)
    if has_majority(partition, left):
        return Succession(_replaced(partition, lost, revision), None)
    if len(left) == 1:
        return inherit(partition, left[0].id, left[0].revision, revision)
    if not left and empty_on is not None:
        return inherit(partition, empty_on, NOTHING_LEFT, revision)
    # Several are left and are no majority: they are compared first, when they run. Or none is.
    return Succession(_replaced(partition, lost, revision), None)


def inherit(partition: PartitionState, node: NodeId, was: int, revision: int) -> Succession:
    """Let one node go on alone, with the replica `was` or with nothing."""
    heir = Vnode(node, revision)
    goal = partition.target or partition.replicas
    nodes = [replica.id for replica in goal]
    if node not in nodes:  # it has what a move was to take away, or nothing in place of the first
        nodes[0] = node
    target = tuple(Vnode(each, revision) for each in nodes)
    before = {replica.id: replica for replica in goal}
    replicas = tuple(heir if each == node else before[each] for each in nodes)
    done = replace(
        partition,
        replicas=replicas,
        target=None if replicas == target else target,
        founders=(),
    )
    return Succession(done, Heir(partition.group, heir, was))


def _replaced(partition: PartitionState, lost: Collection[NodeId], revision: int) -> PartitionState:
    """Give every replica that is lost a successor on the same node."""
    goal = partition.target or partition.replicas
    target = tuple(Vnode(each.id, revision) if each.id in lost else each for each in goal)
    return replace(partition, target=target, founders=partition.founding)
