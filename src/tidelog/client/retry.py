"""How long to try and how long to wait in between: every retry has both bounds.

    deadline = Deadline(30.0)
    backoff = Backoff()
    while True:
        try: ...
        except Passing as error:
            await backoff.wait(deadline, error)     # raises `TimedOut` from the error in the end

The deadline bounds the whole of a call, retries included. The backoff doubles from 20 ms, where a
leader change takes tens of milliseconds, to one second, where it no longer matters.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from tidelog.client.errors import ClientError, Refused, TimedOut

FIRST_WAIT: Final = 0.02
LONGEST_WAIT: Final = 1.0


class Deadline:
    """A moment after which nobody waits any longer."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def at_most(self, seconds: float) -> Deadline:
        """Return a deadline for a part of the work: in so many seconds, or this one if sooner."""
        return Deadline(min(seconds, self.left))


class Backoff:
    """Waits between attempts, each twice as long as the one before it, with some jitter."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = FIRST_WAIT

    async def wait(self, deadline: Deadline, cause: ClientError) -> None:
        """Wait before the next attempt, or say that time is up and what the last attempt met."""
        pause = self._next * random.uniform(0.75, 1.25)
        if pause >= deadline.left:
            if isinstance(cause, Refused):
                raise cause
            raise TimedOut(f"Gave up after {deadline.seconds:g} s. {cause}") from cause
        self._next = min(self._next * 2, LONGEST_WAIT)
        await asyncio.sleep(pause)
