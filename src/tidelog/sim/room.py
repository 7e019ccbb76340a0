"""What a simulated node does when its disk takes nothing of an append: as `cluster.space` has it.

The world has no thresholds, since its disks fill up at once. So a replica that was refused counts
its disk as full until the nemesis makes room: it leads nothing that another voter could, takes no
writes, and as a follower refuses those of clients. What it knows of others may be out of date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.raft.events import Transfer
from tidelog.raft.types import GroupId, Vnode
from tidelog.sim.scheduler import MS

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode

# How long a node takes to look, and to look again.
LOOK: Final = (1 * MS, 20 * MS)
LOOK_AGAIN: Final = (10 * MS, 100 * MS)
# How often a leader believes a voter to have room that has none.
MISTAKEN: Final = 0.2


def watch(node: SimNode, group: GroupId, replica: Replica) -> None:
    """Look after the room of a replica that was just opened."""
    looking = False

    def refused(_: OSError) -> None:
        nonlocal looking
        if not looking:
            looking = True
            node.after(node.world.draw(node.rng, LOOK), f"g{group} has no room", look)

    def look() -> None:
        nonlocal looking
        if node.replicas.get(group) is not replica:
            return
        looking = not _settle(node, group, replica)
        if looking:
            delay = node.world.draw(node.rng, LOOK_AGAIN)
            node.after(delay, f"g{group} looks for room", look)

    replica.on_refused = refused


def _settle(node: SimNode, group: GroupId, replica: Replica) -> bool:
    """Tell a replica what to do; say whether there is room again."""
    roomy = node.disk.room is None
    core = replica.core
    heirs = [] if roomy else _heirs(node, replica)
    core.receiver.sparing = not roomy
    replica.takes_writes = roomy
    core.voter.reluctant = bool(heirs)
    if heirs and core.leading is not None and not core.leading.transferring:
        heir = max(heirs, key=lambda voter: (core.progress[voter].match, voter))
        node.step(group, Transfer(node.world.next_token(), heir))
        if group in node.hosts:
            node.hosts[group].expire_transfer()
    return roomy


def _heirs(node: SimNode, replica: Replica) -> list[Vnode]:
    """Return the voters that should lead instead, as far as this node knows."""
    core = replica.core
    others = [voter for voter in core.configuration.voters if voter != core.vnode]
    if core.leading is not None:
        others = [voter for voter in others if voter in core.progress]
    return [
        voter
        for voter in others
        if (found := node.world.nodes.get(voter.id)) is not None
        and found.alive
        and (found.disk.room is None or node.rng.random() < MISTAKEN)
    ]
