"""Whom a fault or a chore happens to: what the hands of the nemesis and of the operator share.

Each happening draws from a generator of its own (`nemesis.Nemesis`), which is put into `rng` before
it begins.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.cluster.replica import Replica
from tidelog.raft.types import GroupId, NodeId, Vnode

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import World


class NothingToDo(Exception):
    """This happening finds nothing in the world that it could happen to."""


class Hand:
    """What acts on a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng: random.Random = world.random("happenings")  # of the happening at hand

    def node(self) -> SimNode:
        """Pick a node."""
        return self.rng.choice(list(self.world.nodes.values()))

    def group(self) -> GroupId:
        """Pick a group."""
        return self.rng.choice(self.world.groups)

    def replica(self) -> tuple[SimNode, Replica]:
        """Pick a replica on a node that is up and not paused."""
        live = self.world.live_replicas(self.group())
        awake = [each for each in live if not each[0].paused]
        if not awake:
            raise NothingToDo
        return self.rng.choice(awake)

    def leader(self) -> tuple[SimNode, GroupId, Replica]:
        """Pick a group and find its leader, unless that is paused."""
        group = self.group()
        node = self.world.leader(group)
        if node is None or node.paused:
            raise NothingToDo
        return node, group, node.replicas[group]

    def exists(self, group: GroupId, vnode: Vnode) -> bool:
        """Whether this replica was not lost since."""
        return self.world.nodes[vnode.id].vnode_of(group) == vnode

    def keeps_all(self, group: GroupId, voters: Iterable[Vnode], but: NodeId | None = None) -> bool:
        """Whether a majority of these voters has all it ever had, even without one node."""
        chosen = tuple(voters)
        intact = [
            voter
            for voter in chosen
            if voter.id != but
            and self.exists(group, voter)
            and group not in self.world.nodes[voter.id].harm
        ]
        return len(intact) > len(chosen) // 2

    def say(self, text: str) -> None:
        """Put a line into the trace."""
        self.world.trace.line(self.world.now, f"nemesis {text}")
