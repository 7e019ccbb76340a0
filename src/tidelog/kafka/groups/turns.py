"""Requests that name many things take turns with everybody else on the event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

# Things that are dealt with before others get a turn: a few milliseconds.
TURN: Final = 200

_T = TypeVar("_T")
_A = TypeVar("_A")


async def in_turns(items: Iterable[_T], work: Callable[[_T], Awaitable[_A]]) -> tuple[_A, ...]:
    """Do the work for each thing, one after the other; return what came of it."""
    done = []
    for number, item in enumerate(items, start=1):
        done.append(await work(item))
        if number % TURN == 0:
            await asyncio.sleep(0)
    return tuple(done)
