"""The judge: hears what happens in the world, keeps the history, and lets the invariants speak.

Theory of operation:
- Hooks fire in the middle of what the product does. They only write down: into the history (the
  `GroupTruth` of the group) and into the case of the event that is under way.
- When the event is over, the judge takes a sight of each replica that was touched, sometimes
  examines one more closely, and asks every invariant about the case. Then a new case begins.
- What a core decides (a commit, an election) is noted as it is decided, because the node may lose
  power before the event is over, and what it said before still counts.
"""
# ruff: noqa: ARG002  a hook offers more than this judge needs

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.configuration import Configuration
from tidelog.raft.types import GroupId, Role, Vnode
from tidelog.records import NO_OFFSET, Batch, Offset
from tidelog.sim import look
from tidelog.sim.durable import DurableDisks
from tidelog.sim.facts import (
    Case,
    Committed,
    Elected,
    Fed,
    Glimpse,
    Loss,
    Opening,
    Saved,
    Sent,
    Served,
    Sight,
    Step,
    Told,
    Truncation,
)
from tidelog.sim.invariants.table import Bench, When
from tidelog.sim.reference import Reference
from tidelog.sim.truth import Asked, GroupTruth
from tidelog.sim.workload import Clients
from tidelog.sim.world import Failure
from tidelog.sim.writer import Echo, Writer
from tidelog.storage import DamagedLog

if TYPE_CHECKING:
    from tidelog.sim.node import Harm, SimNode
    from tidelog.sim.world import Client, Outcome, World

# A replica is examined each so many events of its group, besides when something calls for it. An
# exam reads a whole log, so this keeps all exams together below the cost of the run itself.
EXAM_INTERVAL: Final = 150


class Judge:
    """The judge of one world, as `world.Judge`."""

    def __init__(self) -> None:
        self.bench = Bench()
        self._courts: dict[GroupId, Court] = {}

    def on_start(self, world: World) -> None:
        self._courts = {group: Court(world, group, self.bench) for group in world.groups}

    def on_open(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].opened(node)

    def before_step(self, node: SimNode, group: GroupId, event: ev.Event) -> None:
        self._courts[group].before_step(node, event)

    def on_step(
        self, node: SimNode, group: GroupId, event: ev.Event, outputs: Sequence[ev.Output]
    ) -> None:
        self._courts[group].after_step(node, event, outputs)

    def on_send(self, node: SimNode, message: msg.Message) -> None:
        self._courts[message.group].sent(node, message)

    def on_append(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        court = self._courts[group]
        court.touch(node)
        court.case.linked += court.truth.append(node.vnode_of(group), batches)

    def on_truncate(self, node: SimNode, group: GroupId, first_removed: Offset) -> None:
        self._courts[group].truncated(node, first_removed)

    def on_prefix(self, node: SimNode, group: GroupId, first_kept: Offset) -> None:
        self._courts[group].call_for_exam(node)

    def before_reset(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].truth.give_up(node.vnode_of(group))

    def on_reset(self, node: SimNode, group: GroupId, start: Offset) -> None:
        court = self._courts[group]
        court.truth.reset(node.vnode_of(group), start)
        court.call_for_exam(node)

    def on_flush_started(self, node: SimNode, group: GroupId, job: object) -> None:
        """What a flush claims is compared with the disk, not with the job."""

    def on_flush_finished(self, node: SimNode, group: GroupId, job: object) -> None:
        self._courts[group].touch(node)

    def on_compacted(self, node: SimNode, group: GroupId, result: object) -> None:
        self._courts[group].call_for_exam(node)

    def on_apply(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        self._courts[group].fed(node, batches)

    def on_restore(self, node: SimNode, group: GroupId, offset: Offset) -> None:
        court = self._courts[group]
        court.truth.replica(node.vnode_of(group)).applied = offset
        court.call_for_exam(node)

    def on_crash(self, node: SimNode, *, power: bool) -> None:
        for court in self._courts.values():
            court.crashed(node)

    def on_retire(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].crashed(node)

    def on_harm(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].disks.harmed(node.vnode_of(group))

    def on_lost(self, node: SimNode, group: GroupId, harm: Harm, why: str) -> None:
        self._courts[group].lost(node, harm, why)

    def on_mended(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].disks.mended(node.vnode_of(group))

    def on_broken_step(self, node: SimNode, group: GroupId) -> None:
        self._courts[group].step_broke(node)

    def on_serve(self, node: SimNode, group: GroupId, batches: Sequence[Batch]) -> None:
        self._courts[group].served(node, batches)

    def on_wipe(self, node: SimNode) -> None:
        for court in self._courts.values():
            court.wiped(node)

    def on_request(self, node: SimNode, group: GroupId, client: Client, token: int) -> None:
        self._courts[group].asked(node, client, token)

    def on_outcome(self, node: SimNode, group: GroupId, client: Client, outcome: Outcome) -> None:
        self._courts[group].told(node, outcome)

    def after_event(self, world: World, event: str) -> None:
        for court in self._courts.values():
            court.sit()

    def at_end(self, world: World) -> None:
        for court in self._courts.values():
            court.close()


class Court:
    """The judge's bench for one group."""

    def __init__(self, world: World, group: GroupId, bench: Bench) -> None:
        self.world = world
        self._bench = bench
        self.group = group
        self.truth = GroupTruth(look.initial_configuration(world))
        self.disks = DurableDisks(world, group, self.truth)
        self.reference = Reference(self.truth.ledger, world.machines)
        self.case = self._new_case()
        self._touched: dict[Vnode, SimNode] = {}
        self._to_examine: dict[Vnode, bool] = {}  # and whether it was just opened
        self._sights: dict[Vnode, Sight] = {}  # of the replicas that are up, as last seen
        # What each core is stepping, or stepped last in this event, and how it was before.
        self._stepping: dict[Vnode, tuple[ev.Event, Glimpse, Configuration]] = {}
        # Cores that met damage in the middle of a step: the next one is the rest of it.
        self._broken: set[Vnode] = set()
        self._events = 0
        self._clocks = look.Clocks()

    def _new_case(self) -> Case:
        return Case(self.truth, self.disks, self.reference.state_at)

    def touch(self, node: SimNode) -> None:
        self._touched[node.vnode_of(self.group)] = node

    def call_for_exam(self, node: SimNode) -> None:
        self.touch(node)
        self._to_examine.setdefault(node.vnode_of(self.group), False)

    # --- Hearing --------------------------------------------------------------------------------

    def opened(self, node: SimNode) -> None:
        vnode = node.vnode_of(self.group)
        log = node.replicas[self.group].log
        replica = self.truth.replica(vnode)
        kept = replica.lineage.at(replica.flushed)
        flushed = replica.flushed
        lost = self.truth.recover(vnode, log.dirty, log.last_term)
        tip = self.truth.entries.get((log.dirty, log.last_term))
        hard = node.replicas[self.group].core.hard
        machines = node.replicas[self.group].machines
        state = machines.snapshot() if machines.applied > NO_OFFSET else None
        self.case.openings.append(
            Opening(vnode, flushed, kept, lost, log.dirty, tip, hard, machines.applied, state)
        )
        vote = self.disks.vote(vnode)
        if vote is not None:
            replica.persisted_term = max(replica.persisted_term, vote.term)
        replica.handing_over = None
        replica.applied = machines.applied
        self.touch(node)
        self._to_examine[vnode] = True

    def crashed(self, node: SimNode) -> None:
        vnode = node.vnode_of(self.group)
        for table in (self._touched, self._to_examine, self._sights, self._stepping):
            table.pop(vnode, None)
        self._broken.discard(vnode)

    def wiped(self, node: SimNode) -> None:
        vnode = node.vnode_of(self.group)
        self.disks.wiped(vnode)
        self.truth.forget(vnode)

    def lost(self, node: SimNode, harm: Harm, why: str) -> None:
        vnode = node.vnode_of(self.group)
        self.truth.forget(vnode)
        needed = not harm.spare or self.disks.begins_late(vnode)
        self.case.losses.append(Loss(vnode, harm.what, why, needed))

    def served(self, node: SimNode, batches: Sequence[Batch]) -> None:
        self.case.served.append(Served(node.vnode_of(self.group), tuple(batches)))
        self.touch(node)

    def step_broke(self, node: SimNode) -> None:
        self._broken.add(node.vnode_of(self.group))

    def before_step(self, node: SimNode, event: ev.Event) -> None:
        if node.vnode_of(self.group) in self._broken:
            return
        configuration = node.replicas[self.group].core.configuration
        self._stepping[node.vnode_of(self.group)] = event, self._glimpse(node, event), configuration

    def _glimpse(self, node: SimNode, event: ev.Event) -> Glimpse:
        core = node.replicas[self.group].core
        handing_over = self.truth.replica(node.vnode_of(self.group)).handing_over == core.term
        return look.glimpse(core, event, handing_over=handing_over)

    def after_step(self, node: SimNode, event: ev.Event, outputs: Sequence[ev.Output]) -> None:
        vnode = node.vnode_of(self.group)
        self.touch(node)
        core = node.replicas[self.group].core
        if vnode in self._broken:
            self._broken.discard(vnode)
            event = self._stepping[vnode][0]
        _, was, configuration = self._stepping[vnode]
        now = self._glimpse(node, event)
        self.case.steps.append(Step(vnode, event, outputs, was, now))
        replica = self.truth.replica(vnode)
        if now.role is Role.CANDIDATE:
            self.truth.stood.add(now.term)
        if now.role is Role.LEADER:
            if was.role is not Role.LEADER or was.term != now.term:
                first = self.truth.elected(vnode, now.term, core.configuration)
                self.case.elected.append(Elected(vnode, now.term, first))
        else:
            replica.handing_over = None
        for output in outputs:
            if isinstance(output, ev.Append) and not isinstance(event, msg.AppendRequest):
                self.truth.lead(vnode, output.batches)
        if now.committed > was.committed:
            new = self.truth.commit(vnode, now.committed)
            if new:  # a commit lets the next configuration begin: the one before counted
                self.case.committed.append(Committed(vnode, configuration, new))
        match event:
            case ev.Persisted(state):
                replica.persisted_term = max(replica.persisted_term, state.term)
            case ev.SnapshotSaved(snapshot) | ev.SnapshotApplied(snapshot):
                self._saved(node, snapshot)

    def _saved(self, node: SimNode, snapshot: msg.SnapshotMeta) -> None:
        replica = self.truth.replica(node.vnode_of(self.group))
        if snapshot.offset in replica.snapshots:
            return
        state = look.snapshot_state(node.replicas[self.group], snapshot)
        newest = node.replicas[self.group].snapshots.latest()
        if newest is not None and newest.offset > snapshot.offset:
            return  # already superseded and removed
        replica.snapshots[snapshot.offset] = None
        if state is not None or self.group not in node.harm:
            self.case.saved.append(Saved(node.vnode_of(self.group), snapshot, state))

    def sent(self, node: SimNode, message: msg.Message) -> None:
        vnode = node.vnode_of(self.group)
        replica = self.truth.replica(vnode)
        vote = None
        match message:
            case msg.VoteReply(granted=True) if message.ballot is not msg.Ballot.PREVOTE:
                self.truth.voted(vnode, message.term, message.target)
                vote = self.disks.vote(vnode)
            case msg.VoteRequest() if message.ballot is not msg.Ballot.PREVOTE:
                self.truth.voted(vnode, message.term, vnode)
            case msg.TimeoutNow():
                replica.handing_over = message.term
        self.case.sent.append(Sent(vnode, message, replica.persisted_term, vote))

    def truncated(self, node: SimNode, first_removed: Offset) -> None:
        self.touch(node)
        event, was, _ = self._stepping[node.vnode_of(self.group)]
        removed = self.truth.truncate(node.vnode_of(self.group), first_removed)
        self.case.truncations.append(
            Truncation(node.vnode_of(self.group), first_removed, removed, was.committed, event)
        )

    def fed(self, node: SimNode, batches: Sequence[Batch]) -> None:
        replica = self.truth.replica(node.vnode_of(self.group))
        committed = node.replicas[self.group].core.committed
        self.case.fed.append(
            Fed(node.vnode_of(self.group), replica.applied, committed, tuple(batches))
        )
        if batches:
            replica.applied = batches[-1].last_offset
        self.touch(node)

    def asked(self, node: SimNode, client: Client, token: int) -> None:
        if isinstance(client, Writer | Echo) and (write := client.write(token)) is not None:
            vnode = node.vnode_of(self.group)
            self.truth.asked[token] = Asked(
                token, client.name, write.level, write.data, vnode, write.producer
            )

    def told(self, node: SimNode, outcome: Outcome) -> None:
        asked = self.truth.asked.get(outcome.token)
        if asked is None:
            return
        match outcome:
            case ev.Accepted():
                asked.entry = self.truth.entries.get((outcome.last, outcome.term))
                if asked.entry is not None:
                    asked.entry.level = asked.level
            case ev.Done() if asked.entry is None and asked.producer is not None:
                asked.entry = self.truth.produced.get(asked.producer)
        asked.outcomes.append(outcome)
        configuration = node.replicas[self.group].core.configuration
        if node.vnode_of(self.group) in self._stepping:  # the one before counted, as for a commit
            configuration = self._stepping[node.vnode_of(self.group)][2]
        self.case.told.append(Told(node.vnode_of(self.group), asked, outcome, configuration))

    # --- Judging --------------------------------------------------------------------------------

    def sit(self) -> None:
        """The event is over: look at what it touched, and judge it."""
        if not (self._touched or self.case.steps or self.case.sent or self.case.losses):
            return
        self._events += 1
        for vnode, node in self._touched.items():
            self._see(vnode, node)
        if self._events % EXAM_INTERVAL == 0 and self._touched:
            self._to_examine.setdefault(next(iter(self._touched)), False)
        for vnode, opened in self._to_examine.items():
            self._examine(vnode, self._touched[vnode], opened=opened)
        case, self.case = self.case, self._new_case()
        self._touched.clear()
        self._to_examine.clear()
        self._stepping.clear()
        self._bench.judge(case, When.EVENT)

    def _see(self, vnode: Vnode, node: SimNode) -> None:
        core_replica = node.replicas.get(self.group)
        if core_replica is None or core_replica.core.storage_lost:
            return  # what it would say of itself need not be so, and it says nothing
        before = self._sights.get(vnode)
        sight = self._sights[vnode] = look.sight(core_replica)
        self.case.sights[vnode] = before, sight
        replica = self.truth.replica(vnode)
        opened = before is None
        cut = any(truncation.vnode == vnode for truncation in self.case.truncations)
        if opened or cut or (before is not None and sight.flushed != before.flushed):
            replica.flushed = sight.flushed
            entry = replica.lineage.at(sight.flushed)
            self.case.flushes.append((vnode, entry, sight.flushed))
        if opened and sight.snapshot is not None:
            replica.snapshots[sight.snapshot.offset] = None
        if sight.confirmed and sight.role is Role.LEADER:
            seen = replica.lineage.at(sight.visible)
            if seen is not None and not self.truth.ledger.holds(seen):
                self.truth.exposed[sight.term] = seen, sight.configuration

    def _examine(self, vnode: Vnode, node: SimNode, *, opened: bool) -> None:
        replica = node.replicas.get(self.group)
        found = self.case.sights.get(vnode)
        if replica is None or found is None:
            return
        if replica.failed is not None or replica.lost is not None:
            return
        self._clocks.look(self.world)
        if self.group in node.harm and node.harm[self.group].in_log:
            self.case.resealed += [(vnode, *each) for each in self.disks.resealed(vnode)]
            return
        try:
            exam = look.examine(
                replica, found[1], self.truth, self._clocks, self.world, opened=opened
            )
        except DamagedLog as error:
            raise Failure(f"{vnode} cannot read its own log: {error}") from error
        self.case.exams.append(exam)

    def close(self) -> None:
        """The world is at rest: examine everybody, and ask all invariants."""
        for node, _ in self.world.live_replicas(self.group):
            self.touch(node)
            self._to_examine[node.vnode_of(self.group)] = False
        for vnode, node in self._touched.items():
            self._see(vnode, node)
        for vnode in self._to_examine:
            self._examine(vnode, self._touched[vnode], opened=False)
        if isinstance(self.world.workload, Clients):
            self.case.complaints = self.world.workload.complaints(self.group, self.truth)
        self._bench.judge(self.case, When.END)
