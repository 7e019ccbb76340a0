"""What the simulator gives a replica to live on: the `Host` of one group on one node.

It turns what the replica asks for into timers, jobs and messages of the world. A host belongs to
one incarnation of its node's process and dies with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.host import Job
from tidelog.raft.events import FlushDue, RoleChanged, TransferExpired
from tidelog.raft.messages import Message
from tidelog.raft.types import GroupId
from tidelog.sim.disk import PowerLost
from tidelog.sim.scheduler import MS
from tidelog.sim.world import Failure, Outcome

if TYPE_CHECKING:
    from tidelog.sim.node import SimNode

# Jobs that one lane may hold. A replica asks for a flush, a persist or a chunk at a time and queues
# the rest itself; more than this means that it does not.
MAX_LANE: Final = 256
VERIFY: Final = "verify"  # the lane in which files are read again
# How often the rest of a job is done before the loop hears of its end; mostly the loop is faster.
EARLY_REST: Final = 0.3
# A crash finds a job after at most so many disk operations, or done.
MAX_HALF_DONE: Final = 12


@dataclass(slots=True)
class _Job:
    run: Job
    done: Callable[[OSError | None], None]
    ran: bool = False
    rest: Callable[[], None] | None = None  # what it left to do when it ended

    @property
    def over(self) -> bool:
        """Whether all is done, though the loop may not have heard of it yet."""
        return self.ran and self.rest is None

    def begin(self) -> None:
        """Do all that somebody waits for."""
        self.ran = True
        self.rest = self.run()

    def finish(self) -> None:
        """Do all that is left."""
        if not self.ran:
            self.begin()
        rest, self.rest = self.rest, None
        if rest is not None:
            rest()


class GroupHost:
    """The `cluster.replica.Host` of one replica."""

    def __init__(self, node: SimNode, group: GroupId) -> None:
        self.node = node
        self.group = group
        self._flush_armed = False
        self._retired = False  # its replica failed: jobs end, and nothing comes of them
        self._lanes: dict[str, deque[_Job]] = {}  # the head of each lane is being worked on

    # --- cluster.replica.Host --------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Hand a message to the network."""
        self.node.send(message)

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        """Queue a blocking job; jobs of a lane run one after the other."""
        queue = self._lanes.setdefault(lane, deque())
        if len(queue) >= MAX_LANE:
            raise Failure(f"n{self.node.id}/g{self.group} queued {MAX_LANE} {lane} jobs")
        queue.append(_Job(job, done))
        if len(queue) == 1:
            self._work(lane)

    def resolved(self, outcome: Outcome) -> None:
        """Tell the judge at once and the client later."""
        world = self.node.world
        client = world.asked(outcome.token)
        if client is not None:
            world.judge.on_outcome(self.node, self.group, client, outcome)
        world.answer(self.node, outcome.token, outcome)

    def role_changed(self, change: RoleChanged) -> None:
        """Nothing to do here: the table of heartbeats takes it over after the step."""

    def heard_leader(self) -> None:
        """Restart the election timer."""
        self.node.heard_leader(self.group)

    def leader_alive(self) -> bool:
        """Whether the leader was heard within the base election timeout."""
        return self.node.leader_alive(self.group)

    def arm_flush(self) -> None:
        """Flush soon; asked again meanwhile, the first timer stands."""
        if not self._flush_armed:
            self._flush_armed = True
            delay = self.node.world.knobs.flush_delay
            self.node.after(delay, f"g{self.group} flush due", self._flush)

    def now(self) -> int:
        """Milliseconds on the node's own clock."""
        return self.node.local_time() // MS

    def retire(self) -> None:
        """Let jobs that are under way end; their replica hears of them no more."""
        self._retired = True

    @property
    def is_busy(self) -> bool:
        """Whether a job may still touch the disk."""
        return any(self._lanes.values())

    @property
    def is_verifying(self) -> bool:
        """Whether a round of verification is under way."""
        return bool(self._lanes.get(VERIFY))

    def _flush(self) -> None:
        if self._retired:
            return
        self._flush_armed = False
        self.node.step(self.group, FlushDue())

    def expire_transfer(self) -> None:
        """Let a transfer that was just asked for fail unless it succeeds within a timeout."""
        self.node.after(
            self.node.world.knobs.election,
            f"g{self.group} transfer expires",
            lambda: None if self._retired else self.node.step(self.group, TransferExpired()),
        )

    # --- Jobs ------------------------------------------------------------------------------------

    def _work(self, lane: str) -> None:
        node = self.node
        low, high = node.world.knobs.disk_delay
        delay = node.rng.randint(low, high) * node.slow
        node.after(delay, f"g{self.group} {lane} job", lambda: self._run(lane))

    def _run(self, lane: str) -> None:
        job = self._lanes[lane][0]
        error: OSError | None = None
        try:
            job.begin()
        except OSError as caught:
            error = caught
        node = self.node
        if node.rng.random() < EARLY_REST:
            job.finish()
        if node.rng.random() < node.world.knobs.late_done:
            delay = node.rng.randint(*node.world.knobs.disk_delay)
            node.after(delay, f"g{self.group} {lane} done", lambda: self._finish(lane, error))
        else:
            self._finish(lane, error)

    def _finish(self, lane: str, error: OSError | None) -> None:
        job = self._lanes[lane][0]
        if error is not None:
            self.node.world.trace.note(self.node, self.group, f"{lane} job failed: {error}")
        # The next job starts first: `done` may queue more, and a lane has one worker.
        if job.rest is None:
            self._next(lane)
        else:
            delay = self.node.rng.randint(*self.node.world.knobs.disk_delay)
            self.node.after(delay, f"g{self.group} {lane} rest", lambda: self._rest(lane))
        if not self._retired:
            job.done(error)

    def _rest(self, lane: str) -> None:
        self._lanes[lane][0].finish()
        self._next(lane)

    def _next(self, lane: str) -> None:
        self._lanes[lane].popleft()
        if self._lanes[lane]:
            self._work(lane)

    def leave_half_done(self) -> None:
        """Let the job at the head of each lane go as far as chance takes it, and no further."""
        rng, disk = self.node.rng, self.node.disk
        for lane in sorted(self._lanes):
            queue = self._lanes[lane]
            if queue and not queue[0].over and rng.random() < 0.5:
                disk.lose_power_in(rng.randint(1, MAX_HALF_DONE))
                with suppress(PowerLost, OSError):
                    queue[0].finish()
                disk.restore_power()
