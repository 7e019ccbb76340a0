"""The operator of a world: chores while faults happen, and the repair of what they left.

A chore is a method of `Operator`; `nemesis.Nemesis` decides when. The operator changes
configurations, moves leaders, and asks for snapshots, compaction, retention and verification.
Members that are gone are replaced: while faults go on or once they have ended. Then, too, replicas
that were harmed and do not know it are opened and read again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.raft.configuration import Configuration
from tidelog.raft.events import CancelChange, ChangeConfiguration, Compact, Transfer
from tidelog.raft.types import GroupId, Vnode
from tidelog.records import Offset
from tidelog.sim.hand import Hand, NothingToDo
from tidelog.sim.scheduler import MS
from tidelog.sim.verify import verify

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import World

MAX_VOTERS: Final = 5
# How often the operator looks for members that have to be replaced, once the world is healed.
REPAIR_INTERVAL: Final = 100 * MS


class Operator(Hand):
    """Who runs the nodes of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.known: dict[str, Callable[[], None]] = {
            "reconfigure": self._reconfigure,
            "cancel": self._cancel,
            "transfer": self._transfer,
            "snapshot": self._snapshot,
            "compact": self._compact,
            "retention": self._retention,
            "roll": self._roll,
            "verify": self._verify,
        }

    def _reconfigure(self) -> None:
        node, group, replica = self.leader()
        voters_now = replica.core.configuration.voters
        current = [voter for voter in voters_now if self.exists(group, voter)]
        everybody = [each.vnode_of(group) for each in self.world.nodes.values()]
        others = [other for other in everybody if other not in current]
        match self.rng.choice(("add", "remove", "replace", "shuffle")):
            case "add":
                voters = current + self.rng.sample(others, min(1, len(others)))
            case "remove":
                voters = self.rng.sample(current, max(0, len(current) - 1))
            case "replace":
                kept = self.rng.sample(current, max(0, len(current) - 1))
                voters = kept + self.rng.sample(others, min(1, len(others)))
            case _:
                size = self.rng.randint(1, min(MAX_VOTERS, len(everybody)))
                voters = self.rng.sample(current + others, size)
        if not self.keeps_all(group, voters[:MAX_VOTERS]):
            raise NothingToDo  # the world could not survive what was harmed and is not known yet
        self.change(node, group, tuple(voters[:MAX_VOTERS]))

    def change(self, node: SimNode, group: GroupId, voters: tuple[Vnode, ...]) -> None:
        """Ask a leader for these voters."""
        node.step(group, ChangeConfiguration(self.world.next_token(), voters))

    def _cancel(self) -> None:
        node, group, _ = self.leader()
        node.step(group, CancelChange(self.world.next_token()))

    def _transfer(self) -> None:
        node, group, replica = self.leader()
        targets = [
            voter for voter in replica.core.configuration.members if voter != replica.core.vnode
        ]
        if not targets:
            raise NothingToDo
        node.step(group, Transfer(self.world.next_token(), self.rng.choice(targets)))
        if group in node.hosts:
            node.hosts[group].expire_transfer()

    def _snapshot(self) -> None:
        node, group, _ = self.leader()
        node.step(group, Compact(self.world.next_token()))

    def _compact(self) -> None:
        node, replica = self.replica()
        node.guard(replica.compact_now)

    def _retention(self) -> None:
        node, replica = self.replica()
        kept = Offset(replica.core.collectible + 1)
        if self.rng.random() < 0.4:  # what a user asks for, allowed or not
            kept = Offset(self.rng.randint(0, replica.log.dirty + 1))
        node.guard(lambda: _ignore(replica.truncate_prefix(kept)))

    def _roll(self) -> None:
        node, replica = self.replica()
        node.guard(lambda: _roll(replica))

    def _verify(self) -> None:
        node, replica = self.replica()
        node.guard(lambda: verify(node, replica.core.group))

    # --- Repair -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Tend the groups from now on, in worlds where leaders do that by themselves."""
        if self.world.knobs.tended:
            self.repair()

    def heal(self) -> None:
        """No more harm is done: let nodes open again what was harmed, and find what is left."""
        for node in self.world.nodes.values():
            if any(not harm.reopened for harm in node.harm.values()):
                node.crash(power=False, downtime=0)
        if not self.world.knobs.tended:
            self.repair()
        self._verify_harmed()

    def _verify_harmed(self) -> None:
        for node in self.world.nodes.values():
            for group in tuple(node.harm):
                node.guard(partial(verify, node, group))
        self.world.at(REPAIR_INTERVAL, "", self._verify_harmed)

    def repair(self) -> None:
        """Replace members that no longer exist, and look again: a change may be under way."""
        for group in self.world.groups:
            node = self.world.leader(group)
            if node is not None:
                self._repair(node, group, node.replicas[group].core.configuration)
        self.world.at(REPAIR_INTERVAL, "", self.repair)

    def _repair(self, node: SimNode, group: GroupId, configuration: Configuration) -> None:
        if configuration.is_joint:
            return  # a leader leaves a joint configuration by itself
        gone = [each for each in configuration.members if not self.exists(group, each)]
        if not set(gone).isdisjoint(configuration.learners):
            # A learner that is gone never catches up: the change that it is part of is cancelled.
            node.step(group, CancelChange(self.world.next_token()))
        if configuration.learners or gone:
            # Refused while a change is under way, and asked again later.
            voters = (self.world.nodes[voter.id].vnode_of(group) for voter in configuration.voters)
            self.change(node, group, tuple(dict.fromkeys(voters)))


def _roll(replica: Replica) -> None:
    """Close a segment behind the back of the replica, which finds out by itself if that fails.

    Then let it find twice that nothing moved, as a node does with quiet ones.
    """
    with suppress(OSError):
        replica.log.roll()
        for _ in range(2):
            replica.rest()


def _ignore(result: object) -> None:
    """Take a result that nobody wants, so that a lambda returns None."""
