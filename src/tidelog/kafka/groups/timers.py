"""One heap for all deadlines of all groups.

A heartbeat postpones a deadline, and there are a hundred heartbeats for every deadline that passes.
So a postponed timer keeps its old place in the heap: when that place comes up, the timer goes back
in with its new time. Setting a timer costs a heap operation only when it becomes *earlier*. Places
that nobody waits for any more are swept out when the heap has doubled since the last sweep.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

_FIRST_SWEEP: Final = 1024


class Timer:
    """Something that may happen later. Belongs to one `Timers`."""

    __slots__ = ("_timers", "due", "fire", "queued")

    def __init__(self, timers: "Timers", fire: Callable[[int], None]) -> None:
        self._timers = timers
        self.fire = fire
        self.due: int | None = None  # when it fires; None: not at all
        self.queued: int | None = None  # its earliest place in the heap; None: in no place

    def set(self, due: int) -> None:
        """Fire at `due`, and not at the time that was set before."""
        self.due = due
        if self.queued is None or due < self.queued:
            self._timers.push(self, due)

    def cancel(self) -> None:
        self.due = None


class Timers:
    """All timers of one node."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0  # breaks ties in the heap: first set, first fired
        self._sweep_at = _FIRST_SWEEP

    def new(self, fire: Callable[[int], None]) -> Timer:
        return Timer(self, fire)

    def push(self, timer: Timer, due: int) -> None:
        self._count += 1
        timer.queued = due
        heappush(self._heap, (due, self._count, timer))
        if len(self._heap) >= self._sweep_at:
            self._sweep()

    def next(self) -> int | None:
        """Return when to call `run` next. May be early, never late."""
        self._drop_idle()
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> None:
        """Fire every timer that is due."""
        while self._heap and self._heap[0][0] <= now:
            place, _, timer = heappop(self._heap)
            if timer.queued != place:
                continue  # it has an earlier place that was dealt with
            timer.queued = None
            if timer.due is None:
                continue
            if timer.due > now:
                self.push(timer, timer.due)
                continue
            timer.due = None
            timer.fire(now)

    def _drop_idle(self) -> None:
        while self._heap and (
            self._heap[0][2].due is None or self._heap[0][2].queued != self._heap[0][0]
        ):
            place, _, timer = heappop(self._heap)
            if timer.queued == place:
                timer.queued = None

    def _sweep(self) -> None:
        kept = []
        for place, count, timer in self._heap:
            if timer.queued != place:
                continue
            if timer.due is None:
                timer.queued = None
            else:
                kept.append((place, count, timer))
        heapify(kept)
        self._heap = kept
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(kept))

    def __len__(self) -> int:
        """Return the places in the heap, for bounds and metrics."""
        return len(self._heap)
