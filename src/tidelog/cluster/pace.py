"""How many elections a node begins at a time: as many as its disk can follow.

An election puts a vote on the disks of a majority before it is counted. When hundreds of groups
elect at once, on a disk that takes 25 ms for a sync, votes queue; a vote that is saved after its
election timed out is wasted, the next election queues behind it, and none ever ends. So the number
of votes that may be under way is a window, as TCP has one: it grows while votes are saved in time,
and is halved when they are late. A node whose window is used up begins no election and answers no
pre-vote, because it could not keep what the answer promises. Refusing both is always safe.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.cluster.host import Job

# Where it starts: one round of each thread that saves votes (`executor.THREADS` and `ROUNDS`).
FIRST: Final = 16
# Votes of 1 ms, saved by four threads, pass at 4,000 a second: 256 wait for 64 ms.
MOST: Final = 256
# A candidate saves its vote, then a majority saves theirs: two of these in a row, and the messages,
# fit into the shortest election timeout.
LATE: Final = 0.25


class ElectionPace:
    """The window of one node. All but `timed` jobs run on the event loop."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._late_ms = election_timeout_ms * LATE
        self._window = FIRST
        self._under_way = 0
        self._halved_at_ms = 0
        # When votes were handed over and when they were saved; the loop has not seen these yet.
        self._saved: deque[tuple[int, int]] = deque()

    @property
    def room(self) -> int:
        """How many votes may begin now."""
        return max(0, self._window - self._under_way)

    def timed(self, job: Job, now: Callable[[], int]) -> Job:
        """Count a vote as under way, and return its job, which notes how long the disk takes.

        How long the loop takes to hear of it does not count: a busy loop is no slow disk.
        """
        self._under_way += 1
        began_ms = now()

        def work() -> Callable[[], None] | None:
            try:
                return job()
            finally:
                self._saved.append((began_ms, now()))

        return work

    def end(self) -> None:
        """The loop hears that a vote was saved, or that the disk refused it."""
        used_up = self._under_way >= self._window
        self._under_way -= 1
        while self._saved:
            began_ms, saved_ms = self._saved.popleft()
            if saved_ms - began_ms <= self._late_ms:
                if used_up:
                    self._window = min(MOST, self._window + 1)
            elif began_ms >= self._halved_at_ms:
                # Votes that were under way when it was halved say nothing about the new size.
                self._window = max(1, self._window // 2)
                self._halved_at_ms = saved_ms
