"""A node on a thread of this process whose event loop is watched while it works on a request.

Two things are told of the longest stretch in which the loop did nothing else: how long it took, and
how many functions were called in it. The time is what other clients wait; it depends on the machine
and on its neighbours. The calls do not, so a test can hold a bound on them.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import uvloop

from bench._largest import TOPIC, Large
from tidelog.cluster.config import NodeConfig
from tidelog.kafka import codec
from tidelog.server.process import Server

TICK_S: Final = 0.001
ANSWER_S: Final = 300.0

_T = TypeVar("_T")
Meter = Callable[[asyncio.Event], Coroutine[Any, Any, _T]]


@contextlib.contextmanager
def watched(data: Path) -> Iterator["Watched"]:
    """Run a node for as long as the block lasts."""
    node = Watched(data)
    node.start()
    try:
        yield node
    finally:
        node.stop()


class Watched:
    def __init__(self, data: Path) -> None:
        self.server = Server(NodeConfig(id=1, data=data / "node-1"))
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, name="watched", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def create_topic(self) -> UUID:
        """Create the topic that requests are about, and return its id."""
        created = self.server.node.controller.create_topic(TOPIC, 1, 1, {})
        return asyncio.run_coroutine_threadsafe(created, self._loop).result().id

    def pause_ms(self, request: Large) -> float:
        """Send a request; return the longest time that the loop had for nothing else."""
        return 1000 * self._while(request, _longest_pause)

    def calls(self, request: Large) -> int:
        """Send a request; return the most calls of functions between two turns of the loop."""
        return self._while(request, _most_calls)

    def _while(self, request: Large, meter: Meter[_T]) -> _T:
        over = asyncio.Event()
        measured = asyncio.run_coroutine_threadsafe(meter(over), self._loop)
        try:
            self._send(request)
        finally:
            self._loop.call_soon_threadsafe(over.set)
        return measured.result()

    def _send(self, request: Large) -> None:
        """Return when the request is answered, or refused by closing the connection."""
        address = self.server.address
        head = struct.pack(">hhih", request.api.key, request.version, 1, -1)
        if codec.is_request_flexible(request.api.key, request.version):
            head += b"\x00"
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((address.host, address.port), ANSWER_S) as connection,
        ):
            connection.sendall(struct.pack(">i", len(head) + len(request.body)) + head)
            connection.sendall(request.body)
            with connection.makefile("rb") as answer:
                length = answer.read(4)
                if len(length) == 4:
                    answer.read(int.from_bytes(length))

    def _main(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self.server.start()
        self._started.set_result(None)
        await self._stopping.wait()
        await self.server.stop()


async def _longest_pause(over: asyncio.Event) -> float:
    longest, before = 0.0, time.perf_counter()
    while not over.is_set():
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        longest = max(longest, now - before - TICK_S)
        before = now
    return longest


async def _most_calls(over: asyncio.Event) -> int:
    calls = most = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        if event in {"call", "c_call"}:
            calls += 1

    sys.setprofile(count)  # of this thread, which is the loop's
    try:
        while not over.is_set():
            await asyncio.sleep(0)
            most, calls = max(most, calls), 0
    finally:
        sys.setprofile(None)
    return most
