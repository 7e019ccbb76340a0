"""Large requests and answers: read and written beside the event loop, within a bound on memory.

A request of a few bytes an element becomes Python objects of hundreds. Reading a million of them
takes seconds, so that is done on a thread of its own, and so is the writing of a large answer; the
handler between the two takes turns with everybody else (`turns`). A large request waits while those
that are being worked on hold as much as one may have, so that their objects do not add up.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidelog.kafka import codec
from tidelog.kafka.codec import Buffer
from tidelog.kafka.dispatch import Api, Context

# Bytes of a request that are read at once on the loop: a few thousand elements, some milliseconds.
LIGHT_BYTES: Final = 16 * 1024
# Elements of an answer that are written at once on the loop.
LIGHT_ELEMENTS: Final = 500
# Bytes that an element takes in a large request at least, for what is held once it is read: a group
# that waits for its members with a large subscription is one element, and holds up nobody.
_ELEMENT_BYTES: Final = 16


class LargeRequests:
    def __init__(self, most: int) -> None:
        """Let requests of so many bytes together be worked on."""
        self._most = most
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-large")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self, api: Api, version: int, body: memoryview, position: int, context: Context
    ) -> list[Buffer]:
        """Read a request, have it handled, and write the answer; raises `Malformed`."""
        assert api.handler is not None
        held = len(body)
        await self._take(held)
        try:
            loop = asyncio.get_running_loop()
            request, elements = await loop.run_in_executor(
                self._thread, codec.decode_counted, api.key, version, body, position
            )
            needed = min(held, elements * _ELEMENT_BYTES)
            self._give(held - needed)
            held = needed
            return await self.encoded(await api.handler(context, request))
        finally:
            self._give(held)

    async def encoded(self, answer: Any) -> list[Buffer]:
        """Write the body of an answer."""
        if _left_of(answer, LIGHT_ELEMENTS) > 0:
            return [codec.encode(answer)]
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._thread, codec.encode, answer)]

    async def _take(self, count: int) -> None:
        if not self._waiting and self._fits(count):
            self._held += count
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append((count, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give(count)
            raise

    def _give(self, count: int) -> None:
        self._held -= count
        while self._waiting:
            wanted, place = self._waiting[0]
            if not place.done() and not self._fits(wanted):
                return
            self._waiting.popleft()
            if not place.done():
                self._held += wanted
                place.set_result(None)

    def _fits(self, count: int) -> bool:
        return self._held == 0 or self._held + count <= self._most


def _left_of(entity: Any, left: int) -> int:
    """Subtract the elements of a message's arrays from `left`; stop where nothing is left."""
    for name in entity.__dataclass_fields__:
        value = getattr(entity, name)
        if type(value) is tuple:
            left -= len(value)
            if left > 0 and value and hasattr(value[0], "__dataclass_fields__"):
                for each in value:
                    left = _left_of(each, left)
                    if left <= 0:
                        break
            if left <= 0:
                return 0
    return left
