"""One seed, from the draw of its knobs to the verdict.

A run has four phases. Warm-up: no faults; every group must elect a leader. Chaos: faults and
clients at random, for a bounded time. Heal: faults end, everybody is up; the clients settle what
they have open, and a last write to each group must be committed. Quiet: nobody wants anything any
more, and all replicas must come to rest with equal marks. Each phase but chaos has a deadline,
counted in election timeouts: a world that does not get there in time is not alive, and fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.raft.configuration import Configuration
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.sim.invariants import Judge
from tidelog.sim.knobs import draw
from tidelog.sim.nemesis import Nemesis
from tidelog.sim.node import SimNode
from tidelog.sim.plan import Plan
from tidelog.sim.plants import PLANTS
from tidelog.sim.scheduler import Overload, stream
from tidelog.sim.trace import Sink, Trace
from tidelog.sim.workload import Clients
from tidelog.sim.world import Failure, Phase, World

# What the product logs of harm is in the trace already.
logging.getLogger("tidelog.cluster").addHandler(logging.NullHandler())

# Deadlines, in election timeouts. An election takes one to three; a slow disk, a recovery in tiny
# chunks and a configuration change by an operator who looks ten times a second take the rest.
WARMUP_TIMEOUTS: Final = 40
HEAL_TIMEOUTS: Final = 120
QUIET_TIMEOUTS: Final = 60
# A run that goes beyond this many events spins: a usual one has a few thousand.
MAX_EVENTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one seed."""

    seed: int
    ok: bool
    failure: str | None  # what was expected and what was found; None if and only if ok
    events: int
    summary: str  # what the run was like, in one line; ends with the digest of its trace
    digest: str  # SHA-256 of the whole trace: equal for two runs of a seed
    happenings: int = 0  # faults and chores that were drawn
    happened: Mapping[str, int] = field(default_factory=dict)  # those that found something to do
    judged: Mapping[str, int] = field(default_factory=dict)  # by each invariant, by its label


def run_seed(seed: int, *, plant: str | None = None, trace: Sink | None = None) -> Report:
    """Run the world of one seed, with a planted bug if one is named, and judge it."""
    return run_plan(Plan(seed, plant), trace=trace)


def run_plan(plan: Plan, *, trace: Sink | None = None) -> Report:
    """Run the world of a plan, and judge it."""
    planted = PLANTS[plan.plant] if plan.plant is not None else None
    knobs = planted.knobs if planted is not None else {}
    with planted.install() if planted is not None else nullcontext():
        return Run(plan.seed, {**knobs, **plan.overrides()}, trace).run()


class Run:
    """The world of one seed on its way through the phases."""

    def __init__(self, seed: int, overrides: Mapping[str, Any], sink: Sink | None) -> None:
        self.seed = seed
        self.knobs = draw(stream(seed, "knobs")).override(overrides)
        self.trace = Trace(sink)
        self.workload = Clients()
        self._judge = Judge()
        self.world = World(seed, self.knobs, self._judge, self.workload, self.trace)
        self.nemesis = Nemesis(self.world)
        self._build()

    def _build(self) -> None:
        world = self.world
        voters = tuple(Vnode(NodeId(number), 0) for number in range(1, self.knobs.voters + 1))
        initial = Configuration(voters)
        for number in range(1, self.knobs.nodes + 1):
            node = NodeId(number)
            world.nodes[node] = SimNode(world, node, initial if number <= len(voters) else None)
        world.network.deliver = lambda source, target, payload: world.nodes[target].deliver(
            source, payload
        )

    def run(self) -> Report:
        """Go through the phases; whatever fails, report it with the seed."""
        failure: str | None = None
        try:
            self._phases()
        except (Failure, Overload) as error:
            failure = str(error)
            self.trace.line(self.world.now, f"FAILED {failure}")
        return Report(
            self.seed,
            failure is None,
            failure,
            self.world.scheduler.executed,
            self._summary(),
            self.trace.digest,
            self.nemesis.happenings,
            dict(self.nemesis.started),
            dict(self._judge.bench.exercised()),
        )

    def _phases(self) -> None:
        world = self.world
        election = self.knobs.election
        self.warm_up()
        self._enter(Phase.CHAOS)
        self.nemesis.start()
        self.workload.start(world)
        self._for(self.knobs.chaos, self.knobs.chaos_events)
        self._enter(Phase.HEAL)
        self.nemesis.stop()
        self.workload.stop()
        self._until(self._settled, HEAL_TIMEOUTS * election)
        self._enter(Phase.QUIET)
        self.workload.leave()
        self._until(self._at_rest, QUIET_TIMEOUTS * election)
        world.judge.at_end(world)

    def warm_up(self) -> None:
        """Start every node, and wait for the first leader of each group."""
        self._enter(Phase.WARMUP)
        # The network keeps to its election timeouts until the nemesis begins.
        self.world.network.heal()
        self.world.judge.on_start(self.world)
        for node in self.world.nodes.values():
            node.start()
        self._until(self._all_confirmed, WARMUP_TIMEOUTS * self.knobs.election)

    def _enter(self, phase: Phase) -> None:
        self.world.phase = phase
        self.trace.line(self.world.now, f"======== {phase.value}")

    # --- The loop ---------------------------------------------------------------------------------

    def _step(self) -> None:
        world = self.world
        timer = world.scheduler.step()
        if timer is None:
            raise Failure("nothing is left to happen, not even a timer")
        if timer.name:
            world.judge.after_event(world, timer.name)
        if world.scheduler.executed > MAX_EVENTS:
            raise Failure(f"the world spins: {MAX_EVENTS} events, the last one is {timer.name}")

    def _for(self, duration: int, events: int) -> None:
        """Let the world go on for so many microseconds, or events if that is shorter."""
        scheduler = self.world.scheduler
        end, last = scheduler.now + duration, scheduler.executed + events
        while (time := scheduler.next_time()) is not None and time <= end:
            if scheduler.executed >= last:
                return
            self._step()

    def _until(self, reached: Callable[[], str | None], limit: int) -> None:
        """Let the world go on until `reached` has no objection any more."""
        deadline = self.world.now + limit
        while (objection := reached()) is not None:
            if self.world.now > deadline:
                raise Failure(
                    f"not alive: {self.world.phase.value} took more than {limit // 1000} ms of a "
                    f"world without faults: {objection}"
                )
            self._step()

    # --- When a phase is over ---------------------------------------------------------------------

    def _all_confirmed(self) -> str | None:
        for group in self.world.groups:
            node = self.world.leader(group)
            if node is None or not node.replicas[group].core.confirmed:
                return f"group {group} has no confirmed leader"
        return None

    def _settled(self) -> str | None:
        if not self.workload.settled():
            return "a client still waits for an answer, or for something to read"
        return self._all_confirmed()

    def _at_rest(self) -> str | None:
        for group in self.world.groups:
            if (objection := self._group_at_rest(group)) is not None:
                return f"group {group}: {objection}"
        return None

    def _group_at_rest(self, group: GroupId) -> str | None:
        node = self.world.leader(group)
        if node is None:
            return "there is no leader"
        leader = node.replicas[group].core
        configuration = leader.configuration
        if not leader.ready:
            return f"the leader is not ready: {leader}"
        if leader.proposals.bytes:
            return f"{leader.proposals.bytes} bytes of writes wait for their level"
        if configuration.is_joint or configuration.learners:
            return f"the change of the configuration does not end: {configuration}"
        for member in configuration.members:
            peer = self.world.nodes[member.id]
            if peer.vnode_of(group) != member:
                return f"{member} was lost and is not replaced"
            replica = peer.replicas.get(group)
            if replica is None:
                return f"{member} is down"
            if group in peer.harm and peer.harm[group].in_log:
                return f"{member} has not been read again since {peer.harm[group].what}"
            core = replica.core
            marks = (core.dirty, core.flushed, core.committed, core.visible, core.applied)
            if any(mark != leader.dirty for mark in marks):
                return f"{core} differs from {leader}"
            if core.tainted or core.restore_pending:
                return f"{core} still waits for a snapshot"
            if core is not leader and not leader.quiet(member):
                return f"the leader still has something to tell {member}"
        return None

    def _summary(self) -> str:
        world, knobs = self.world, self.knobs
        faults = " ".join(f"{name}={count}" for name, count in sorted(self.nemesis.started.items()))
        crashes = sum(node.crashes for node in world.nodes.values())
        return (
            f"{knobs.voters}+{knobs.spares} nodes, {knobs.groups} groups, "
            f"{world.scheduler.executed} events, {world.now / 1_000_000:.1f} s, "
            f"{world.network.sent} messages, {crashes} crashes, faults: {faults or 'none'}, "
            f"digest {self.trace.digest[:16]}"
        )
