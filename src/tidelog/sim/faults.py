"""The nemesis: named faults, started at random, ended after a while, never beyond what is fair.

A fault is a method of `Nemesis` that does its harm and returns how to undo it, or None if it leaves
nothing to undo. Which faults a run knows, how often they start and how many last at the same time
is in the knobs. What is not fair: to wipe so many disks that a majority of some configuration that
is in force anywhere has lost its data. That is the one thing no protocol survives.

The nemesis is also the operator, with chores of its own rhythm: it changes configurations, moves
leaders, asks for snapshots, compaction and retention, and at the end it replaces members whose disk
was wiped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.cluster.replica import Replica
from tidelog.raft.configuration import Configuration
from tidelog.raft.events import CancelChange, ChangeConfiguration, Compact, Transfer
from tidelog.raft.types import GroupId, NodeId, ShippingMode, Vnode
from tidelog.records import Offset
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
MAX_VOTERS: Final = 5
# How often the operator looks for members that have to be replaced, once the world is healed.
REPAIR_INTERVAL: Final = 100 * MS


@dataclass(slots=True, eq=False)
class _Active:
    name: str
    undo: Undo


class Nemesis:
    """Everything that goes wrong in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.random("faults")
        self.started: dict[str, int] = {}  # how often each fault and chore was started
        self._active: list[_Active] = []  # in order of their start; <= knobs.max_faults
        self._storms: list[NetworkKnobs] = []  # the newest rules
        self._running = False
        self._faults: dict[str, Callable[[], Undo | None]] = {
            "crash": self._crash,
            "crash-mid-step": self._crash_mid_step,
            "crash-all": self._crash_all,
            "wipe": self._wipe,
            "slow-disk": self._slow_disk,
            "full-disk": self._full_disk,
            "failing-fsync": self._failing_fsync,
            "partition": self._partition,
            "one-way-partition": self._one_way_partition,
            "isolate-leader": self._isolate_leader,
            "clog": self._clog,
            "storm": self._storm,
            "pause": self._pause,
            "clock": self._clock,
            "switch-shipping": self._switch_shipping,
        }
        self._chores: dict[str, Callable[[], None]] = {
            "reconfigure": self._reconfigure,
            "cancel": self._cancel,
            "transfer": self._transfer,
            "snapshot": self._snapshot,
            "compact": self._compact,
            "retention": self._retention,
            "roll": self._roll,
        }

    def start(self) -> None:
        """Begin: the network takes on the habits of this run, faults and chores start at random."""
        self._running = True
        self._calm_storms()
        self._wait_for_fault()
        self._wait_for_chore()

    def stop(self) -> None:
        """End every fault and start none any more; all nodes come up again."""
        self._running = False
        while self._active:
            self._end(self._active[0])
        self.world.network.heal()
        for node in self.world.nodes.values():
            node.disk.heal()
            node.slow = 1
            node.set_clock(1.0, 0)
            node.resume()
            node.start()
        self.repair()

    def _wait_for_fault(self) -> None:
        self.world.at(self._pause_of(self.world.knobs.fault_interval), "fault", self._strike)

    def _wait_for_chore(self) -> None:
        self.world.at(self._pause_of(self.world.knobs.chore_interval), "chore", self._toil)

    def _pause_of(self, mean: int) -> int:
        return min(round(self.rng.expovariate(1 / mean)), 10 * mean)

    def _strike(self) -> None:
        if not self._running:
            return
        if len(self._active) < self.world.knobs.max_faults:
            name = self._choose(self.world.knobs.faults, list(self._faults))
            undo = self._faults[name]() if name is not None else None
            if name is not None and undo is not None:
                active = _Active(name, undo)
                self._active.append(active)
                duration = self.world.draw(self.rng, DURATION)
                self.world.at(duration, f"end of {name}", lambda: self._end(active))
        self._wait_for_fault()

    def _toil(self) -> None:
        if not self._running:
            return
        name = self._choose(self.world.knobs.chores, list(self._chores))
        if name is not None:
            self._chores[name]()
        self._wait_for_chore()

    def _choose(self, weights: Mapping[str, int], known: list[str]) -> str | None:
        names = [name for name in known if weights.get(name, 0) > 0]
        if not names:
            return None
        name = self.rng.choices(names, [weights[name] for name in names])[0]
        self.started[name] = self.started.get(name, 0) + 1
        return name

    def _end(self, active: _Active) -> None:
        if active in self._active:
            self._active.remove(active)
            self.world.trace.line(self.world.now, f"nemesis end of {active.name}")
            active.undo()

    def _say(self, text: str) -> None:
        self.world.trace.line(self.world.now, f"nemesis {text}")

    # --- Who ------------------------------------------------------------------------------------

    def _node(self) -> SimNode:
        return self.rng.choice(list(self.world.nodes.values()))

    def _group(self) -> GroupId:
        return self.rng.choice(self.world.groups)

    def _replica(self) -> tuple[SimNode, Replica] | None:
        live = self.world.live_replicas(self._group())
        return self.rng.choice(live) if live else None

    def _leader(self) -> tuple[SimNode, GroupId, Replica] | None:
        group = self._group()
        node = self.world.leader(group)
        if node is None or node.paused:
            return None
        return node, group, node.replicas[group]

    # --- Processes and disks ----------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._node()
        power = self.rng.random() >= self.world.knobs.process_crash
        node.crash(power=power, downtime=self.world.draw(self.rng, DOWNTIME))

    def _crash_mid_step(self) -> Undo:
        node = self._node()
        steps = self.rng.randint(1, MAX_STEPS_TO_CRASH)
        self._say(f"n{node.id} will lose power in {steps} operations")
        node.disk.lose_power_in(steps)
        return node.disk.restore_power

    def _crash_all(self) -> None:
        power = self.rng.random() >= self.world.knobs.process_crash
        for node in self.world.nodes.values():
            node.crash(power=power, downtime=self.world.draw(self.rng, DOWNTIME))

    def _wipe(self) -> None:
        safe = [node for node in self.world.nodes.values() if self.may_wipe(node)]
        if safe:
            node = self.rng.choice(safe)
            downtime = self.world.draw(self.rng, DOWNTIME)
            node.crash(power=True, downtime=None)
            node.wipe()
            self.world.at(downtime, f"n{node.id} start", node.start)

    def may_wipe(self, victim: SimNode) -> bool:
        """Whether a majority of every configuration, now or soon in force, was never wiped."""
        intact = {node.vnode for node in self.world.nodes.values() if node is not victim}
        return all(
            sum(voter in intact for voter in half) > len(half) // 2
            for configuration in self._configurations()
            for half in configuration.halves
            if half
        )

    def _configurations(self) -> list[Configuration]:
        """Return every configuration that some replica goes by, or would after a restart."""
        return [
            configuration
            for node in self.world.nodes.values()
            for configuration in node.configurations()
        ]

    def _slow_disk(self) -> Undo:
        node = self._node()
        node.slow = self.rng.choice((5, 20, 100))
        self._say(f"the disk of n{node.id} is {node.slow} times slower")

        def undo() -> None:
            node.slow = 1

        return undo

    def _full_disk(self) -> Undo:
        node = self._node()
        room = node.disk.room = self.rng.choice((0, 10, 300, 3_000))
        self._say(f"the disk of n{node.id} has room for {room} bytes")

        def undo() -> None:
            node.disk.room = None

        return undo

    def _failing_fsync(self) -> Undo:
        node = self._node()
        node.disk.failing_syncs = self.rng.choice((0.1, 0.5, 1.0))
        self._say(f"n{node.id} fails {node.disk.failing_syncs:.0%} of its syncs")

        def undo() -> None:
            node.disk.failing_syncs = 0.0

        return undo

    def _pause(self) -> Undo:
        node = self._node()
        node.pause()
        return node.resume

    def _clock(self) -> Undo:
        node = self._node()
        rate = self.rng.choice((0.5, 0.8, 0.95, 1.05, 1.25, 2.0))
        jump = self.rng.choice((-3_600_000, -500, 0, 500, 3_600_000))
        self._say(f"the clock of n{node.id} jumps by {jump} ms and runs at {rate}")
        node.set_clock(rate, jump)
        return lambda: node.set_clock(1.0, -jump)

    def _switch_shipping(self) -> None:
        """Turn the feature on: each node follows when it next starts, in any order."""
        self._say("snapshots travel beside the log from the next start of each node on")
        for node in self.world.nodes.values():
            node.shipping = ShippingMode.SIDE
            delay = self.world.draw(self.rng, DURATION)
            self.world.at(delay, f"n{node.id} upgrade", partial(self._upgrade, node))

    def _upgrade(self, node: SimNode) -> None:
        node.crash(power=False, downtime=self.world.draw(self.rng, DOWNTIME))

    # --- Network ----------------------------------------------------------------------------------

    def _cut(self, links: Links) -> Undo:
        self._say("cuts " + " ".join(f"n{source}->n{target}" for source, target in links))
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

    def _isolate_leader(self) -> Undo | None:
        found = self._leader()
        if found is None:
            return None
        leader = found[0].id
        out, back = self.rng.choice(((True, True), (True, False), (False, True)))
        return self._cut(
            [
                (source, target)
                for source, target in self._all_links()
                if (out and source == leader) or (back and target == leader)
            ]
        )

    def _clog(self) -> Undo:
        share = self.rng.choice((0.1, 0.3, 0.6))
        links = [link for link in self._all_links() if self.rng.random() < share]
        self._say("clogs " + " ".join(f"n{source}->n{target}" for source, target in links))
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
        self._say(f"storm: {knobs}")
        self._storms.append(knobs)
        self.world.network.knobs = knobs

        def undo() -> None:
            self._storms.remove(knobs)
            self._calm_storms()

        return undo

    def _calm_storms(self) -> None:
        network = self.world.network
        network.knobs = self._storms[-1] if self._storms else self.world.knobs.network

    # --- The operator -----------------------------------------------------------------------------

    def _reconfigure(self) -> None:
        found = self._leader()
        if found is None:
            return
        node, group, replica = found
        current = [voter for voter in replica.core.configuration.voters if self._exists(voter)]
        others = [other.vnode for other in self.world.nodes.values() if other.vnode not in current]
        match self.rng.choice(("add", "remove", "replace", "shuffle")):
            case "add":
                voters = current + self.rng.sample(others, min(1, len(others)))
            case "remove":
                voters = self.rng.sample(current, max(0, len(current) - 1))
            case "replace":
                kept = self.rng.sample(current, max(0, len(current) - 1))
                voters = kept + self.rng.sample(others, min(1, len(others)))
            case _:
                everybody = current + others
                size = self.rng.randint(1, min(MAX_VOTERS, len(everybody)))
                voters = self.rng.sample(everybody, size)
        if voters:
            self._change(node, group, tuple(voters[:MAX_VOTERS]))

    def _change(self, node: SimNode, group: GroupId, voters: tuple[Vnode, ...]) -> None:
        node.step(group, ChangeConfiguration(self.world.next_token(), voters))

    def _exists(self, vnode: Vnode) -> bool:
        return self.world.nodes[vnode.id].vnode == vnode

    def _cancel(self) -> None:
        if (found := self._leader()) is not None:
            node, group, _ = found
            node.step(group, CancelChange(self.world.next_token()))

    def _transfer(self) -> None:
        if (found := self._leader()) is None:
            return
        node, group, replica = found
        targets = [voter for voter in replica.core.configuration.members if voter != node.vnode]
        if targets:
            node.step(group, Transfer(self.world.next_token(), self.rng.choice(targets)))
            if group in node.hosts:
                node.hosts[group].expire_transfer()

    def _snapshot(self) -> None:
        if (found := self._leader()) is not None:
            node, group, _ = found
            node.step(group, Compact(self.world.next_token()))

    def _compact(self) -> None:
        if (found := self._replica()) is not None:
            node, replica = found
            if not node.paused:
                node.guard(replica.compact_now)

    def _retention(self) -> None:
        if (found := self._replica()) is not None:
            node, replica = found
            kept = Offset(replica.core.collectible + 1)
            if self.rng.random() < 0.4:  # what a user asks for, allowed or not
                kept = Offset(self.rng.randint(0, replica.log.dirty + 1))
            if not node.paused:
                node.guard(lambda: _ignore(replica.truncate_prefix(kept)))

    def _roll(self) -> None:
        if (found := self._replica()) is not None:
            node, replica = found
            if not node.paused:
                node.guard(lambda: _roll(replica))

    # --- Repair -----------------------------------------------------------------------------------

    def repair(self) -> None:
        """Replace members that no longer exist, and look again: a change may be under way."""
        if self._running:
            return
        for group in self.world.groups:
            node = self.world.leader(group)
            if node is not None:
                self._repair(node, group, node.replicas[group].core.configuration)
        self.world.at(REPAIR_INTERVAL, "", self.repair)

    def _repair(self, node: SimNode, group: GroupId, configuration: Configuration) -> None:
        if configuration.is_joint:
            return  # a leader leaves a joint configuration by itself
        if not all(map(self._exists, configuration.learners)):
            # A learner that is gone never catches up: the change that it is part of is cancelled.
            node.step(group, CancelChange(self.world.next_token()))
        if configuration.learners or not all(map(self._exists, configuration.voters)):
            # Refused while a change is under way, and asked again later.
            voters = (self.world.nodes[voter.id].vnode for voter in configuration.voters)
            self._change(node, group, tuple(dict.fromkeys(voters)))


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
