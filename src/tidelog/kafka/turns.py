"""Requests that name many things take turns on the event loop.

A handler that works on a list counts what it does with `Turns`, and after every `TURN` things lets
the others have the loop. One turn is about a millisecond. However many such requests there are, one
of them gets one turn in each iteration of the loop, so that all of them together cost the others no
more than a turn at a time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

# Things that are worked on in one turn, at about 10 us each.
TURN: Final = 100

_T = TypeVar("_T")
_A = TypeVar("_A")


class _Queue:
    """Who waits for a turn on one loop."""

    __slots__ = ("_is_running", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_running = False

    async def turn(self) -> None:
        place = self._loop.create_future()
        self._waiting.append(place)
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._next)
        await place

    def _next(self) -> None:
        """Let the first go on who still wants to; called once in an iteration of the loop."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._next)
        else:
            self._is_running = False


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


async def turn() -> None:
    """Let the others have the loop, and return when it is this request's turn again."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue(loop)
    await queue.turn()


def at_once(steps: Generator[None, None, _T]) -> _T:
    """Do work that stops after every turn, without any turn for others."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


async def in_turns(steps: Generator[None, None, _T]) -> _T:
    """Do the same, and let the others have the loop wherever it stops."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        await turn()


class Turns:
    """Counts the work of one request. Things that are more work than others have a higher cost."""

    __slots__ = ("_left", "_next")

    def __init__(self) -> None:
        self._left = TURN
        self._next: asyncio.Event | None = None  # set when the next turn has come

    async def done(self, cost: int = 1) -> None:
        """Some work was done: let the others have the loop if that was enough.

        Where several tasks share the work of a request, all of them together have one turn.
        """
        self._left -= cost
        while self._left <= 0:
            if self._next is not None:
                await self._next.wait()
                continue
            self._next = come = asyncio.Event()
            try:
                await turn()
            finally:
                self._left = TURN
                self._next = None
                come.set()
            return

    async def map(self, work: Callable[[_T], _A], items: Iterable[_T]) -> tuple[_A, ...]:
        """Do the work for each thing; return what came of it."""
        results = []
        for item in items:
            results.append(work(item))
            self._left -= 1
            if self._left <= 0:
                self._left = TURN
                await turn()
        return tuple(results)

    async def wait(
        self, work: Callable[[_T], Awaitable[_A]], items: Iterable[_T]
    ) -> tuple[_A, ...]:
        """Do work that may have to wait, for one thing after the other."""
        results = []
        for item in items:
            results.append(await work(item))
            await self.done()
        return tuple(results)

    async def pick(self, wanted: Callable[[_T], object], items: Iterable[_T]) -> list[_T]:
        """Return those things that are wanted; the others are looked at as well."""
        found = []
        for item in items:
            if wanted(item):
                found.append(item)
            self._left -= 1
            if self._left <= 0:
                self._left = TURN
                await turn()
        return found

    async def each(self, items: Iterable[_T]) -> list[_T]:
        """Take things from where they are made, one by one."""
        found = []
        for item in items:
            found.append(item)
            self._left -= 1
            if self._left <= 0:
                self._left = TURN
                await turn()
        return found
