"""Named faults: what goes wrong in a world, never beyond what is fair.

A fault is a method of `Faults` that does its harm and returns how to undo it, or None if it leaves
nothing to undo; `nemesis.Nemesis` decides when. What is not fair: to wipe or harm so many disks
that a majority of some configuration that is in force anywhere, or soon may be, has lost its data.
That is the one thing no protocol survives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.raft.events import ChangeConfiguration
from tidelog.raft.types import GroupId, NodeId, ShippingMode, Vnode
from tidelog.sim.forger import forge
from tidelog.sim.hand import Hand, NothingToDo
from tidelog.sim.harms import Harms
from tidelog.sim.network import NetworkKnobs
from tidelog.sim.scheduler import MS

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode
    from tidelog.sim.world import World

Undo = Callable[[], None]
Links = list[tuple[NodeId, NodeId]]

DOWNTIME: Final = (2 * MS, 300 * MS)
DURATION: Final = (10 * MS, 500 * MS)
# A crash in the middle of something: after at most so many disk operations.
MAX_STEPS_TO_CRASH: Final = 15


class Faults(Hand):
    """Everything that goes wrong in one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._storms: list[NetworkKnobs] = []  # the newest rules
        self.known: dict[str, Callable[[], Undo | None]] = {
            "crash": self._crash,
            "crash-mid-step": self._crash_mid_step,
            "crash-all": self._crash_all,
            "wipe": self._wipe,
            "slow-disk": self._slow_disk,
            "full-disk": self._full_disk,
            "full-disks": self._full_disks,
            "failing-fsync": self._failing_fsync,
            "partition": self._partition,
            "one-way-partition": self._one_way_partition,
            "isolate-leader": self._isolate_leader,
            "burst": self._burst,
            "clog": self._clog,
            "storm": self._storm,
            "pause": self._pause,
            "clock": self._clock,
            "switch-shipping": self._switch_shipping,
            "stranger": self._stranger,
            **Harms(self).known,
        }

    # --- Processes and disks ----------------------------------------------------------------------

    def _crash(self) -> None:
        node = self.node()
        power = self.rng.random() >= self.world.knobs.process_crash
        node.crash(power=power, downtime=self.world.draw(self.rng, DOWNTIME))

    def _crash_mid_step(self) -> Undo:
        node = self.node()
        steps = self.rng.randint(1, MAX_STEPS_TO_CRASH)
        self.say(f"n{node.id} will lose power in {steps} operations")
        node.disk.lose_power_in(steps)
        return node.disk.restore_power

    def _crash_all(self) -> None:
        power = self.rng.random() >= self.world.knobs.process_crash
        for node in self.world.nodes.values():
            node.crash(power=power, downtime=self.world.draw(self.rng, DOWNTIME))

    def _wipe(self) -> None:
        safe = [node for node in self.world.nodes.values() if self.may_wipe(node)]
        if not safe:
            raise NothingToDo
        node = self.rng.choice(safe)
        downtime = self.world.draw(self.rng, DOWNTIME)
        node.crash(power=True, downtime=None)
        node.wipe()
        self.world.at(downtime, f"n{node.id} start", node.start)

    def may_wipe(self, victim: SimNode) -> bool:
        """Whether all its groups survive the loss of a disk."""
        return all(self.may_harm(victim, group) for group in self.world.groups)

    def may_harm(self, victim: SimNode, group: GroupId) -> bool:
        """Whether a majority of every configuration, now or soon in force, keeps all it ever had.

        Those count that some replica goes by, or would after a restart.
        """
        return all(
            self.keeps_all(group, half, but=victim.id)
            for node in self.world.nodes.values()
            for configuration in node.configurations(group)
            for half in configuration.halves
            if half
        )

    def _slow_disk(self) -> Undo:
        node = self.node()
        node.slow = self.rng.choice((5, 20, 100))
        self.say(f"the disk of n{node.id} is {node.slow} times slower")

        def undo() -> None:
            node.slow = 1

        return undo

    def _full_disk(self) -> Undo:
        return self._fill([self.node()])

    def _full_disks(self) -> Undo:
        """Fill two disks at once: where they are a majority, nothing can be written meanwhile."""
        nodes = list(self.world.nodes.values())
        return self._fill(self.rng.sample(nodes, min(2, len(nodes))))

    def _fill(self, nodes: list[SimNode]) -> Undo:
        for node in nodes:
            room = node.disk.room = self.rng.choice((0, 10, 300, 3_000))
            self.say(f"the disk of n{node.id} has room for {room} bytes")

        def undo() -> None:
            for node in nodes:
                node.disk.room = None

        return undo

    def _failing_fsync(self) -> Undo:
        node = self.node()
        node.disk.failing_syncs = self.rng.choice((0.1, 0.5, 1.0))
        self.say(f"n{node.id} fails {node.disk.failing_syncs:.0%} of its syncs")

        def undo() -> None:
            node.disk.failing_syncs = 0.0

        return undo

    def _pause(self) -> Undo:
        node = self.node()
        node.pause()
        return node.resume

    def _clock(self) -> Undo:
        node = self.node()
        rate = self.rng.choice((0.5, 0.8, 0.95, 1.05, 1.25, 2.0))
        jump = self.rng.choice((-3_600_000, -500, 0, 500, 3_600_000))
        self.say(f"the clock of n{node.id} jumps by {jump} ms and runs at {rate}")
        node.set_clock(rate, jump)
        return lambda: node.set_clock(1.0, -jump)

    def _switch_shipping(self) -> None:
        """Turn the feature on: each node follows when it next starts, in any order."""
        self.say("snapshots travel beside the log from the next start of each node on")
        for node in self.world.nodes.values():
            node.shipping = ShippingMode.SIDE
            delay = self.world.draw(self.rng, DURATION)
            self.world.at(delay, f"n{node.id} upgrade", partial(self._upgrade, node))

    def _upgrade(self, node: SimNode) -> None:
        node.crash(power=False, downtime=self.world.draw(self.rng, DOWNTIME))

    # --- Network ----------------------------------------------------------------------------------

    def _cut(self, links: Links) -> Undo:
        self.say("cuts " + " ".join(f"n{source}->n{target}" for source, target in links))
        self.world.network.cut(links)
        return lambda: self.world.network.mend(links)

    def _all_links(self) -> Links:
        nodes = self.world.nodes
        return [(source, target) for source in nodes for target in nodes if source != target]

    def _partition(self) -> Undo:
        side = {node for node in self.world.nodes if self.rng.random() < 0.5}
        links = [link for link in self._all_links() if (link[0] in side) != (link[1] in side)]
        return self._cut(links)

    def _one_way_partition(self) -> Undo:
        share = self.rng.choice((0.1, 0.3, 0.6))
        return self._cut([link for link in self._all_links() if self.rng.random() < share])

    def _isolate_leader(self) -> Undo:
        return self._isolate(self.leader()[0].id)

    def _isolate(self, node: NodeId) -> Undo:
        out, back = self.rng.choice(((True, True), (True, False), (False, True)))
        return self._cut(
            [
                (source, target)
                for source, target in self._all_links()
                if (out and source == node) or (back and target == node)
            ]
        )

    def _burst(self) -> Undo:
        """Cut a leader off, kill another node and remove a third, within one election timeout."""
        node, group, _ = self.leader()
        others = [other for other in self.world.nodes.values() if other is not node]
        self.rng.shuffle(others)
        undo = self._isolate(node.id)
        power = self.rng.random() >= self.world.knobs.process_crash
        downtime = self.world.draw(self.rng, DOWNTIME)
        if others:
            victim, removed = others[0], others[-1]
            self._soon(f"n{victim.id} dies", partial(victim.crash, power=power, downtime=downtime))
            self._soon(f"n{removed.id} leaves g{group}", partial(self._remove, group, removed))
        return undo

    def _soon(self, name: str, callback: Callable[[], None]) -> None:
        """Do something within one election timeout."""
        self.world.at(self.rng.randrange(self.world.knobs.election), name, callback)

    def _remove(self, group: GroupId, gone: SimNode) -> None:
        leader = self.world.leader(group)
        if leader is None or leader.paused:
            return
        voters = leader.replicas[group].core.configuration.voters
        left = tuple(each for each in voters if each.id != gone.id and self.exists(group, each))
        if left and self.keeps_all(group, left):
            leader.step(group, ChangeConfiguration(self.world.next_token(), left))

    def _clog(self) -> Undo:
        share = self.rng.choice((0.1, 0.3, 0.6))
        links = [link for link in self._all_links() if self.rng.random() < share]
        self.say("clogs " + " ".join(f"n{source}->n{target}" for source, target in links))
        self.world.network.clog(links)
        return lambda: self.world.network.unclog(links)

    def _storm(self) -> Undo:
        knobs = replace(
            self.world.knobs.network,
            loss=self.rng.choice((0.0, 0.1, 0.3)),
            duplication=self.rng.choice((0.0, 0.1, 0.5)),
            straggler=self.rng.choice((0.0, 0.1, 0.5)),
            pipes=self.rng.random() < 0.3,
        )
        self.say(f"storm: {knobs}")
        self._storms.append(knobs)
        self.world.network.knobs = knobs

        def undo() -> None:
            self._storms.remove(knobs)
            self.calm_storms()

        return undo

    def _stranger(self) -> None:
        """Let a node that is in no configuration say what only members may."""
        node, replica = self.replica()
        stranger = Vnode(NodeId(self.world.knobs.nodes + 1), 0)
        for message in forge(self.rng, replica.core, stranger):
            name = f"n{node.id} gets {type(message).__name__} from {stranger}"
            self.world.network.send(stranger.id, node.id, name, message)

    def calm_storms(self) -> None:
        """Let the network have the habits of the newest storm, or of this run."""
        network = self.world.network
        network.knobs = self._storms[-1] if self._storms else self.world.knobs.network
