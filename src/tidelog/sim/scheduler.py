"""Virtual time: a heap of callbacks in the order in which they happen.

Rules:
- Time is an integer number of microseconds and moves only from one callback to the next.
- Callbacks of the same microsecond run in the order in which they were scheduled, so that a run
  depends on nothing but its seed.
- Chance comes from `stream(seed, concern)`: each concern draws from a generator of its own, so that
  one more draw in the network does not change what the disks do.
"""

import heapq
import random
from collections.abc import Callable
from typing import Final

MS: Final = 1_000  # microseconds in a millisecond
SECOND: Final = 1_000_000

# A world has a few timers a node and group and a few hundred messages on their way. Far more than
# that means that something schedules faster than it finishes.
MAX_PENDING: Final = 200_000


class Overload(Exception):
    """Events are scheduled faster than they are executed: somebody spins."""


def stream(seed: int, concern: str) -> random.Random:
    """Return the generator of one concern of one seed."""
    # A string seeds by SHA-512, which is the same in every process; `hash()` would not be.
    return random.Random(f"tidelog/{seed}/{concern}")


class Timer:
    """A callback that was scheduled, and the handle by which it is cancelled."""

    __slots__ = ("callback", "name", "time")

    def __init__(self, time: int, name: str, callback: Callable[[], None]) -> None:
        self.time = time
        self.name = name  # what the trace and the judge call this event
        self.callback: Callable[[], None] | None = callback  # None: cancelled or done

    @property
    def pending(self) -> bool:
        """Whether the callback is still to come."""
        return self.callback is not None

    def cancel(self) -> None:
        """Make sure that the callback never runs; harmless if it already has."""
        self.callback = None


class Scheduler:
    """The clock of a world and everything that is still to happen in it."""

    def __init__(self) -> None:
        self.now = 0  # microseconds since the world began
        self.executed = 0  # callbacks run so far
        self._sequence = 0
        self._heap: list[tuple[int, int, Timer]] = []

    def at(self, delay: int, name: str, callback: Callable[[], None]) -> Timer:
        """Run `callback` after `delay` microseconds; a delay below zero counts as zero."""
        if len(self._heap) >= MAX_PENDING:
            raise Overload(f"{MAX_PENDING} events are pending at {self.now} us, the last is {name}")
        timer = Timer(self.now + max(0, delay), name, callback)
        self._sequence += 1
        heapq.heappush(self._heap, (timer.time, self._sequence, timer))
        return timer

    def step(self) -> Timer | None:
        """Execute the next callback and return its timer; None if nothing is left to happen."""
        while self._heap:
            time, _, timer = heapq.heappop(self._heap)
            callback = timer.callback
            if callback is None:
                continue
            self.now = time
            self.executed += 1
            timer.callback = None
            callback()
            return timer
        return None

    def next_time(self) -> int | None:
        """Return when the next callback is due; None if there is none."""
        while self._heap and not self._heap[0][2].pending:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
