"""Real nodes with their Kafka listeners, on a thread of their own, for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from tests.cluster.nodes import HOST, PATIENCE, TOKEN, free_ports

from tidelog.cluster.config import Listener, NodeConfig, Seed
from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.kafka import KafkaServer


class Live:
    """A cluster in this process."""

    def __init__(self, data: Path, count: int) -> None:
        seeds = tuple(
            Seed(id=number, host=HOST, port=port)
            for number, port in enumerate(free_ports(count), start=1)
        )
        self._configs = [
            NodeConfig(
                id=seed.id,
                data=data / f"node-{seed.id}",
                rpc=Listener(port=seed.port),
                seeds=seeds,
                token=TOKEN,
                housekeeping_s=0.2,
            )
            for seed in seeds
        ]
        self.nodes: dict[int, Node] = {}
        self.addresses: dict[int, Address] = {}
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="live", daemon=True)

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(map(str, self.addresses.values()))

    def start(self) -> None:
        """Return when clients are served."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop all nodes."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            uvloop.run(self._run())
        except BaseException as error:  # noqa: BLE001  # raised again on the test's thread
            self._error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        servers = []
        for config in self._configs:
            node = Node(config)
            server = KafkaServer(node, host=HOST, port=0, advertised=Address(HOST, 0))
            self.nodes[config.id] = node
            self.addresses[config.id] = Address(HOST, await server.bind())
            servers.append(server)
        await asyncio.gather(
            *(node.start(self.addresses[number]) for number, node in self.nodes.items())
        )
        for server in servers:
            await server.start()
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            await server.stop()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))


@contextlib.contextmanager
def live(data: Path, count: int) -> Iterator[Live]:
    """Run a cluster for as long as the block lasts."""
    cluster = Live(data, count)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait on the test's thread until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE} s"
        time.sleep(0.01)
