"""What a replica and whoever runs it are to each other: the `Host`, its jobs, and outcomes.

A node runs replicas on its event loop and its executor, the simulator on simulated time, and tests
by hand.
"""

from collections.abc import Callable
from typing import Protocol

from tidelog.raft import events as ev
from tidelog.raft import messages as msg

Outcome = ev.Accepted | ev.Done | ev.Refused
Job = Callable[[], Callable[[], None] | None]


class Host(Protocol):
    """What a replica needs from whoever runs it."""

    def send(self, message: msg.Message) -> None: ...

    def submit(self, lane: str, job: Job, done: Callable[[OSError | None], None]) -> None:
        """Run a blocking job elsewhere, those of one lane in order; then call `done` here.

        What the job returns is run there too, before the next one of its lane.
        """

    def resolved(self, outcome: Outcome) -> None:
        """A proposal, change, transfer, barrier or compaction got on, or ended."""

    def role_changed(self, change: ev.RoleChanged) -> None: ...

    def heard_leader(self) -> None:
        """Restart the election timer."""

    def leader_alive(self) -> bool:
        """Whether the leader was heard within the base election timeout."""

    def arm_flush(self) -> None:
        """Something waits for the disk: step with `FlushDue` within the longest delay allowed."""

    def now(self) -> int:
        """Milliseconds on a clock that never goes back."""
