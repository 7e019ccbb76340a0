"""Hundreds of groups on slow disks and a slow processor: every election must come to an end.

The real `Groups` of three nodes, with real replicas, cores and heartbeats, run on virtual time. The
model covers what is slow: each sync takes the disk a while, a lane has as many threads as the
executor gives it, and each message costs the event loops of its sender and its receiver.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from tidelog.cluster.executor import ROUNDS, THREADS, YIELD
from tidelog.cluster.groups import Groups, Hosted
from tidelog.cluster.host import Job
from tidelog.machines import Producers
from tidelog.raft.beats import BeatOptions, Beats
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.messages import Ballot, Message, VoteRequest
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import NO_OFFSET, NO_TERM, Term
from tidelog.sim.disk import SimDisk
from tidelog.sim.scheduler import SECOND, Scheduler, Timer
from tidelog.storage import BatchCache, FileBudget, LogConfig

NODES: Final = (NodeId(1), NodeId(2), NodeId(3))
VOTERS: Final = tuple(Vnode(node, 0) for node in NODES)
PARTITIONS: Final = 550
CONTROLLER: Final = GroupId(0)
WIRE_US: Final = 500

Done = Callable[[OSError | None], None]


class Loop:
    """The part of an event loop that `Groups` uses. Whatever costs time delays what comes next."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ready: deque[Callable[[], None]] = deque()
        self._turn: Timer | None = None
        self._free_at = 0
        self.stopped = False

    def time(self) -> float:
        return self._scheduler.now / SECOND

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(lambda: callback(*arguments))
        self._wake()

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        return self.at(round(delay_s * SECOND), lambda: callback(*arguments))

    def at(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        timer = self._scheduler.at(delay_us, "due", lambda: None)
        timer.callback = lambda: self.call_soon(callback)
        return timer

    def spend(self, cost_us: int) -> None:
        self._free_at = max(self._free_at, self._scheduler.now) + cost_us

    def _wake(self) -> None:
        if self._turn is None:
            wait = max(0, self._free_at - self._scheduler.now)
            self._turn = self._scheduler.at(wait, "turn", self._run)

    def _run(self) -> None:
        self._turn = None
        if self.stopped:
            self._ready.clear()
        elif self._ready:
            self._ready.popleft()()
        if self._ready:
            self._wake()


class SlowLane:
    """A lane of the executor on a disk where each job is a sync."""

    def __init__(self, scheduler: Scheduler, loop: Loop, name: str, sync_us: int) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self._sync_us = sync_us
        self._idle = THREADS[name]
        self._most = ROUNDS.get(name, 1 << 30)
        self._queue: deque[tuple[Job, Done]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, job: Job, done: Done) -> None:
        self._queue.append((job, done))
        self._begin()

    def _begin(self) -> None:
        while self._idle and self._queue:
            self._idle -= 1
            jobs = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
            # File systems join the syncs that wait side by side, so a round costs less than each.
            cost = self._sync_us * (1 + len(jobs)) // 2
            self._scheduler.at(cost, "synced", partial(self._ended, jobs))

    def _ended(self, jobs: list[tuple[Job, Done]]) -> None:
        self._idle += 1
        for job, done in jobs:
            rest = job()
            self._loop.call_soon(done, None)
            if rest is not None:
                rest()
        self._begin()


class Executor:
    """`cluster.executor.Executor` on virtual time."""

    def __init__(self, scheduler: Scheduler, loop: Loop, sync_us: int) -> None:
        self._loop = loop
        self.lanes = {name: SlowLane(scheduler, loop, name, sync_us) for name in THREADS}

    def submit(self, lane: str, job: Job, done: Done) -> None:
        if lane == YIELD:
            job()
            self._loop.call_soon(done, None)
        else:
            self.lanes[lane].submit(job, done)


class TimedGroups(Groups):
    """`Groups` with the clock of the scheduler."""

    scheduler: Scheduler

    def now(self) -> int:
        return self.scheduler.now // 1000


@dataclass
class SlowCluster:
    """Three nodes that were all started at the same moment, with the same groups."""

    sync_us: int
    message_us: int
    partitions: int
    seed: int = 1
    scheduler: Scheduler = field(default_factory=Scheduler)
    loops: dict[NodeId, Loop] = field(default_factory=dict)
    nodes: dict[NodeId, TimedGroups] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        for node in NODES:
            loop = self.loops[node] = Loop(self.scheduler)
            TimedGroups.scheduler = self.scheduler
            groups = self.nodes[node] = TimedGroups(
                loop,  # type: ignore[arg-type]
                Wire(self, node),
                Executor(self.scheduler, loop, self.sync_us),  # type: ignore[arg-type]
                Beats(node, BeatOptions(100, 1000), random.Random(chance.random())),
                SimDisk(random.Random(chance.random())),
                BatchCache(1 << 20),
                FileBudget.of(1 << 16),
            )
            for number in range(self.partitions + 1):
                groups.admit(self._load(groups, node, GroupId(number)))

    def _load(self, groups: Groups, node: NodeId, group: GroupId) -> Hosted:
        return groups.load(
            group,
            f"group-{group}",
            vnode=Vnode(node, 0),
            initial=Configuration(VOTERS),
            options=Options(),
            log_config=LogConfig(),
            flush_ms=100,
            machines=lambda: [Producers()],
            known=False,
        )

    def run(self, seconds: float) -> None:
        end = self.scheduler.now + round(seconds * SECOND)
        while (following := self.scheduler.next_time()) is not None and following <= end:
            self.scheduler.step()
        self.scheduler.now = end

    def stop(self, node: NodeId) -> None:
        """A node dies; the connections of the others to it break."""
        self.loops[node].stopped = True
        for other in self.running():
            self.nodes[other].suspect(node)

    def running(self) -> list[NodeId]:
        return [node for node in NODES if not self.loops[node].stopped]

    def leaderless(self) -> list[GroupId]:
        """The groups without a confirmed leader."""
        led = {
            hosted.group
            for node in self.running()
            for hosted in self.nodes[node]
            if hosted.replica.core.ready
        }
        return [GroupId(number) for number in range(self.partitions + 1) if number not in led]

    def settle(self, most_s: int) -> None:
        """Run until all groups have a leader, but not for longer than so many seconds."""
        end = self.scheduler.now + most_s * SECOND
        while (left := self.leaderless()) and self.scheduler.now < end:
            self.run(1)
        assert not left, (
            f"{len(left)} of {self.partitions + 1} groups have no leader after {most_s} s;"
            f" the controller is in term {self.term(CONTROLLER)}"
        )

    def term(self, group: GroupId) -> int:
        terms = [self.nodes[node].get(group) for node in self.running()]
        return max(hosted.replica.core.term for hosted in terms if hosted is not None)

    def terms(self) -> list[int]:
        return [self.term(GroupId(number)) for number in range(self.partitions + 1)]


class Wire:
    """Carries what one node sends to the others, in order, at a cost for both ends."""

    def __init__(self, cluster: SlowCluster, node: NodeId) -> None:
        self._cluster = cluster
        self._node = node

    def send(self, node_id: NodeId, message: Message) -> None:
        self._carry(node_id, lambda: self._cluster.nodes[node_id].receive(message))

    def send_beat(self, node_id: NodeId, body: bytes) -> None:
        def arrive() -> None:
            reply = self._cluster.nodes[node_id].receive_beat(self._node, body)
            back = self._cluster.nodes[self._node]
            wire = self._cluster.nodes[node_id].wire
            assert isinstance(wire, Wire)
            wire._carry(self._node, lambda: back.receive_beat_reply(node_id, reply))

        self._carry(node_id, arrive)

    def _carry(self, target: NodeId, arrive: Callable[[], None]) -> None:
        cost = self._cluster.message_us
        self._cluster.loops[self._node].spend(cost)
        loop = self._cluster.loops[target]

        def handle() -> None:
            loop.spend(cost)
            arrive()

        if not loop.stopped:
            self._cluster.scheduler.at(WIRE_US, "arrives", lambda: loop.call_soon(handle))


class Collector:
    """Keeps what a node sends."""

    def __init__(self, sent: list[Message]) -> None:
        self._sent = sent

    def send(self, node_id: NodeId, message: Message) -> None:
        self._sent.append(message)

    def send_beat(self, node_id: NodeId, body: bytes) -> None: ...


# Milliseconds of a sync, microseconds of the loop for a message, partitions, and seconds that all
# elections together may take: three rounds of syncs for each group, on the lanes there are.
@pytest.mark.parametrize(
    ("sync_ms", "message_us", "partitions", "most_s"),
    [(2, 100, 550, 10), (25, 300, 550, 40), (100, 300, 300, 60), (250, 300, 150, 60)],
)
def test_elections_of_hundreds_of_groups_end(
    sync_ms: int, message_us: int, partitions: int, most_s: int
) -> None:
    cluster = SlowCluster(sync_ms * 1000, message_us, partitions)
    cluster.settle(most_s)
    assert cluster.term(CONTROLLER) <= 3
    assert max(cluster.terms()) <= 4
    settled = cluster.terms()
    cluster.run(10)
    assert cluster.terms() == settled, "leaders that everybody follows were replaced"
    cluster.stop(NodeId(1))
    cluster.settle(most_s)
    assert cluster.term(CONTROLLER) <= 6


def test_a_node_whose_disk_is_behind_with_votes_promises_none() -> None:
    cluster = SlowCluster(100_000, 300, 50)
    voter = cluster.nodes[NodeId(2)]
    cluster.loops[NodeId(2)].stopped = True  # what it is given stays in its lanes
    sent: list[Message] = []
    voter.wire = Collector(sent)
    for number in range(1, 50):
        for ballot in (Ballot.VOTE, Ballot.PREVOTE):
            voter.receive(
                VoteRequest(
                    GroupId(number), VOTERS[0], VOTERS[1], Term(1), ballot, NO_OFFSET, NO_TERM
                )
            )
    # Another election of the same group: its promise would wait behind all these votes.
    assert voter.pace.room == 0
    before = len(sent)
    voter.receive(
        VoteRequest(CONTROLLER, VOTERS[0], VOTERS[1], Term(1), Ballot.PREVOTE, NO_OFFSET, NO_TERM)
    )
    assert len(sent) == before
