"""What lies between the nodes: a proxy in front of each, which can cut any of them off any other.

A connection tells who opened it in its first frame, so that one port a node is enough. A cut is
what a broken switch does: bytes are not passed on, nor is the end of a connection, and nobody is
told. What was on its way arrives after the repair, as TCP would have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.nodes import HOST
from tests.system.system import System, system

from tidelog.rpc.errors import CorruptFrame
from tidelog.rpc.frames import Assembler, Hello
from tidelog.server.nodes import LocalCluster

CHUNK = 1 << 16


class Proxy:
    """All links of a cluster; runs on a thread of its own."""

    def __init__(self, targets: dict[int, int]) -> None:
        """`targets` are the nodes and the ports on which they listen."""
        self.ports: dict[int, int] = {}  # where each node is reached through here
        self._targets = targets
        # Of each direction between two nodes: whether bytes pass.
        self._gates: dict[tuple[int, int], asyncio.Event] = defaultdict(_open_gate)
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        # Connections, and between whom they are once that is known.
        self._tasks: dict[asyncio.Task[None], set[int]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    # --- From the test's thread -----------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, one: int, *others: int) -> None:
        """Let nothing pass between one node and others."""
        for other in others:
            self._call(self._set({(one, other), (other, one)}, passing=False))

    def mute(self, one: int, *others: int) -> None:
        """Let nothing pass from one node to others; it still hears them."""
        self._call(self._set({(one, other) for other in others}, passing=False))

    def drop(self, one: int) -> None:
        """Forget all that is on its way to or from a node; its connections break."""
        self._call(self._end({one}))

    def heal(self) -> None:
        self._call(self._set(set(self._gates), passing=True))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    # --- On the loop ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        for node in self._targets:

            def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int = node
            ) -> None:
                self._spawn(node, reader, writer)

            server = await asyncio.start_server(accept, HOST, 0)
            self._servers.append(server)
            self.ports[node] = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._end(set(self._targets))

    async def _end(self, nodes: set[int]) -> None:
        tasks = [task for task, between in self._tasks.items() if between & nodes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, directions: set[tuple[int, int]], *, passing: bool) -> None:
        for direction in directions:
            gate = self._gates[direction]
            if passing:
                gate.set()
            else:
                gate.clear()

    def _spawn(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        between = {node}
        task = self._loop.create_task(self._serve(node, reader, writer, between))
        self._tasks[task] = between
        task.add_done_callback(self._tasks.pop)

    async def _serve(
        self,
        node: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        between: set[int],
    ) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, CorruptFrame):
            first, source = await _who(reader)
            between.add(source)
            await self._gates[source, node].wait()
            there, back = await asyncio.open_connection(HOST, self._targets[node])
            with contextlib.closing(back):
                back.write(first)
                pumps = [
                    self._loop.create_task(_pump(reader, back, self._gates[source, node])),
                    self._loop.create_task(_pump(there, writer, self._gates[node, source])),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


async def _who(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """Read the first frame of a connection; return all bytes read, and who it is from."""
    assembler = Assembler()
    taken = b""
    while True:
        part = await reader.read(CHUNK)
        if not part:
            raise ConnectionError("nobody said HELLO")
        taken += part
        assembler.buffer()[: len(part)] = part
        for frame in assembler.received(len(part)):
            return taken, Hello.decode(frame.body).node_id


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    """Pass bytes on while the gate is open; ends with the connection."""
    with contextlib.suppress(OSError):
        while True:
            await gate.wait()
            data = await reader.read(CHUNK)
            await gate.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def proxied(data: Path, nodes: int = 3, *, settings: str = "") -> Iterator[tuple[System, Proxy]]:
    """Run a cluster whose nodes reach each other through a proxy alone."""
    cluster = LocalCluster(data)
    cluster.prepare(nodes, 0, settings=settings)
    files = {node: node.settings() for node in cluster.nodes}
    proxy = Proxy({node.id: file["rpc"]["port"] for node, file in files.items()})
    proxy.start()
    try:
        for node, file in files.items():
            file["rpc"]["advertised_port"] = proxy.ports[node.id]
            for seed in file["seeds"]:
                seed["port"] = proxy.ports[seed["id"]]
            node.tell(file)
        with system(data, prepared=cluster) as running:
            yield running, proxy
    finally:
        proxy.stop()
