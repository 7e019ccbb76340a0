"""One real replica on a simulated disk, and hands that do for it what a node would do.

`Hands` is a host without a clock, a thread or a network: what the replica sends, resolves or wants
done by a thread is put down here until a test takes it up. `Puppet` is the process around it, which
can lose power and start again from its disk.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.cluster.host import Job as TheirJob
from tidelog.cluster.host import Outcome
from tidelog.cluster.legacy import Legacy
from tidelog.cluster.replica import Replica
from tidelog.machines import Balances, Machine, Producers
from tidelog.raft import events as ev
from tidelog.raft.configuration import Configuration
from tidelog.raft.core import Options
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId, NodeId, Vnode
from tidelog.records import Offset
from tidelog.sim.disk import SimDisk
from tidelog.storage import BatchCache, LogConfig

GROUP = GroupId(1)
DIRECTORY = "group-1"
NOON = 1_700_000_000_000  # what the wall clock of every puppet shows
FLUSH = "flush"


def vnode(number: int, revision: int = 0) -> Vnode:
    """Return a node as a member of the group."""
    return Vnode(NodeId(number), revision)


def machines() -> Sequence[Machine]:
    """Return new machines, as every replica carries them."""
    return (Producers(), Balances())


@dataclass(slots=True)
class Job:
    """Something that a thread would do."""

    run: TheirJob
    done: Callable[[OSError | None], None]


class Hands:
    """The `Host` of one replica. It does nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.outcomes: list[Outcome] = []
        self.roles: list[ev.RoleChanged] = []
        self.lanes: dict[str, deque[Job]] = {}
        self.hears_leader = False
        self.flush_armed = False
        self.time = 0  # of its clock, in milliseconds

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def submit(self, lane: str, job: TheirJob, done: Callable[[OSError | None], None]) -> None:
        self.lanes.setdefault(lane, deque()).append(Job(job, done))

    def resolved(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def role_changed(self, change: ev.RoleChanged) -> None:
        self.roles.append(change)

    def heard_leader(self) -> None:
        self.hears_leader = True

    def leader_alive(self) -> bool:
        return self.hears_leader

    def arm_flush(self) -> None:
        self.flush_armed = True

    def now(self) -> int:
        return self.time

    # --- What a test does with it ----------------------------------------------------------------

    def waits(self, lane: str) -> bool:
        """Whether a job of this lane waits to be done."""
        return bool(self.lanes.get(lane))

    def do(self, lane: str) -> OSError | None:
        """Do the first job of a lane and report it; return the error it ended with."""
        job = self.lanes[lane].popleft()
        error: OSError | None = None
        rest: Callable[[], None] | None = None
        try:
            rest = job.run()
        except OSError as caught:
            error = caught
        job.done(error)
        if rest is not None:
            rest()
        return error

    def do_all(self, *but: str) -> None:
        """Do the jobs of all lanes, and those that follow from them, but for the lanes named."""
        while waiting := [each for each in self.lanes if each not in but and self.waits(each)]:
            self.do(waiting[0])

    def outcome(self, token: int) -> Outcome | None:
        """Return the newest thing that was said about a token."""
        return next((each for each in reversed(self.outcomes) if each.token == token), None)

    def is_done(self, token: int) -> bool:
        return isinstance(self.outcome(token), ev.Done)

    def refusal(self, token: int) -> ev.Refusal | None:
        outcome = self.outcome(token)
        return outcome.why if isinstance(outcome, ev.Refused) else None


class Puppet:
    """A process with one replica and one disk."""

    def __init__(
        self,
        number: int,
        *,
        initial: Configuration | None = None,
        options: Options | None = None,
        log_config: LogConfig | None = None,
        carries: Callable[[], Sequence[Machine]] = machines,
        cache: BatchCache | None = None,
    ) -> None:
        self.vnode = vnode(number)
        self.disk = SimDisk(random.Random(number))
        self.initial = initial
        self.options = options or Options()
        self.log_config = log_config or LogConfig()
        self.carries = carries
        self.cache = cache
        self.hands = Hands()
        self.replica: Replica | None = None  # while the process runs

    @property
    def running(self) -> Replica:
        """The replica of a process that is known to run."""
        assert self.replica is not None, f"{self.vnode} is down"
        return self.replica

    @property
    def balances(self) -> Balances:
        """The accounts as the machines have them."""
        return next(m for m in self.running.machines.machines if isinstance(m, Balances))

    def open(self, hands: Hands | None = None, legacy: Legacy | None = None) -> Replica:
        """Open the replica from the disk. It has not been started yet."""
        self.hands = hands or Hands()
        self.replica = Replica.open(
            self.hands,
            self.disk,
            DIRECTORY,
            group=GROUP,
            vnode=self.vnode,
            initial=self.initial,
            options=self.options,
            log_config=self.log_config,
            machines=self.carries,
            cache=self.cache,
            clock=lambda: NOON,
            legacy=legacy,
        )
        return self.replica

    def start(self, legacy: Legacy | None = None) -> Replica:
        """Open and start the replica, and do what it asks for first."""
        replica = self.open(legacy=legacy)
        replica.start()
        self.hands.do_all(FLUSH)
        return replica

    def lose_power(self) -> None:
        """End the process; nothing survives but what was synced."""
        self.disk = self.disk.durable_copy()
        self.replica = None

    def kill(self) -> None:
        """End the process; what it wrote stays in the page cache."""
        self.disk.crash(power=False)
        self.replica = None

    def step(self, event: ev.Event) -> None:
        """Feed an event, and do everything but flushes that it asks for."""
        self.running.step(event)
        self.hands.do_all(FLUSH)
        self.running.check_invariants()

    def flush(self) -> None:
        """Do the flush that waits, or the one that the timer asks for."""
        if not self.hands.waits(FLUSH):
            self.running.step(ev.FlushDue())
        while self.hands.waits(FLUSH):
            self.hands.do(FLUSH)
        self.hands.do_all(FLUSH)
        self.running.check_invariants()

    def lead(self) -> Replica:
        """Make a puppet that is the only voter the leader, its first batch committed."""
        self.step(ev.ElectionTimeout())
        self.flush()
        assert self.running.core.ready, self.running
        return self.running


def alone(**more: object) -> Puppet:
    """Return a puppet that is a group by itself, and leads it."""
    puppet = Puppet(1, initial=Configuration((vnode(1),)), **more)  # type: ignore[arg-type]
    puppet.start()
    puppet.lead()
    return puppet


def at(offset: int) -> Offset:
    return Offset(offset)
