"""One replica without a node: opened on a directory that no process uses, and led alone.

`OfflineHost` has no event loop and no peers. Jobs are done after the step that asked for them, in
that order; messages go nowhere, because a replica that is its only voter needs none.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.cluster.host import Job, Outcome
from tidelog.cluster.replica import Replica
from tidelog.raft import events as ev
from tidelog.raft import messages as msg
from tidelog.raft.types import Level
from tidelog.records import Batch
from tidelog.storage import StorageError

TURNS: Final = 10_000  # far more than an election and the fold of a short log take
_TOKEN: Final = 1


class OfflineHost:
    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, Callable[[OSError | None], None]]] = deque()
        self.outcome: Outcome | None = None

    # --- cluster.replica.Host -------------------------------------------------------------------

    def send(self, message: msg.Message) -> None:
        """Send to nobody."""

    def submit(self, _lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        self._jobs.append((job, done))

    def resolved(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def role_changed(self, change: ev.RoleChanged) -> None:
        """Nobody wants to know."""

    def heard_leader(self) -> None:
        """There is no timer."""

    def leader_alive(self) -> bool:
        return False

    def arm_flush(self) -> None:
        """`lead` and `write` flush."""

    def now(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def forget(self) -> None:
        """Forget how the last proposal ended."""
        self.outcome = None

    # --- Doing ----------------------------------------------------------------------------------

    def work(self) -> bool:
        """Do one job; say whether there was one."""
        if not self._jobs:
            return False
        job, done = self._jobs.popleft()
        error: OSError | None = None
        rest: Callable[[], None] | None = None
        try:
            rest = job()
        except OSError as caught:
            error = caught
        done(error)
        if rest is not None:
            rest()
        return True


def lead(host: OfflineHost, replica: Replica) -> None:
    """Make a replica that is its only voter the leader of a group that is all applied."""
    replica.start()
    for _ in range(TURNS):
        if replica.core.ready or replica.failed is not None or replica.lost is not None:
            break
        if not host.work():
            leads = replica.core.leading is not None
            replica.step(ev.FlushDue() if leads else ev.ElectionTimeout())
    _check(replica)
    if not replica.core.ready:
        raise StorageError(f"the replica does not come to lead its group: {replica}")


def write(host: OfflineHost, replica: Replica, batch: Batch) -> None:
    """Write a batch, and return when it is applied."""
    host.forget()
    replica.step(ev.Propose(_TOKEN, (batch,), Level.QUORUM))
    goal = replica.core.dirty
    for _ in range(TURNS):
        if replica.core.applied >= goal or replica.failed is not None or replica.lost is not None:
            break
        if not host.work():
            replica.step(ev.FlushDue())
    _check(replica)
    if isinstance(host.outcome, ev.Refused) or replica.core.applied < goal:
        raise StorageError(f"the replica takes no writes: {host.outcome}")


def _check(replica: Replica) -> None:
    why = replica.failed or replica.lost
    if why is not None:
        raise StorageError(why)
