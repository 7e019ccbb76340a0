"""One node with its fronts, on the event loop of this process.

The Kafka port is taken first, so that other nodes and clients can be told where it is, but no
client is let in before the node is a member of its cluster. The end is the same in reverse: clients
are turned away first, then leadership is handed over.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
from pathlib import Path
from typing import Final

import uvloop

from tidelog.cluster.config import Listener, NodeConfig
from tidelog.cluster.errors import StartFailed
from tidelog.cluster.model import Address
from tidelog.cluster.node import Node
from tidelog.kafka import KafkaServer
from tidelog.kafka.apis import default_table
from tidelog.kafka.groups.coordinator import Coordinator
from tidelog.server import ports
from tidelog.server.names import SERVING_FILE

log = logging.getLogger(__name__)

# How long a node that starts may listen for leaders before it lets clients in. There may be none.
LEADERS_S: Final = 1.0
# New objects after which the youngest are looked through for garbage. There are few cycles, and a
# busy node has a thousand new objects in every turn of its loop.
COLLECT_AFTER: Final = 10_000


class Server:
    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.node = Node(config)
        self.coordinator = Coordinator(self.node)
        table = default_table()
        table.add_all(self.coordinator.handlers)
        listener = config.kafka
        self.kafka = KafkaServer(
            self.node,
            host=listener.host,
            port=listener.port,
            advertised=Address(listener.public_host, listener.public_port(listener.port)),
            table=table,
        )
        self.node.operations.gauges["kafka_stats"] = self._gauge

    @property
    def address(self) -> Address:
        """Where clients reach this node."""
        return self.kafka.advertised

    def _gauge(self) -> dict[str, int]:
        stats = self.kafka.stats
        return {
            "connections": stats.connections,
            "connections_allowed": self.kafka.max_connections,
            "connections_refused": stats.refused,
            "requests": stats.requests,
            "bytes_in": stats.bytes_in,
            "bytes_out": stats.bytes_out,
        }

    async def start(self) -> None:
        """Return once clients are served."""
        await self.kafka.bind()
        await self.node.start(self.kafka.advertised)
        await self.coordinator.start()
        # Clients ask the first node that answers, and some never ask again about a leader.
        await self.node.know_leaders(LEADERS_S)
        await self.kafka.start()

    async def stop(self) -> None:
        # First the coordinator: members that wait in a rebalance are told to look elsewhere.
        await self.coordinator.stop()
        await self.kafka.stop()
        await self.node.stop()


def run(config: NodeConfig) -> None:
    """Run a node in this process until it is told to stop; raises `StartFailed`."""
    for name, listener in (("kafka", config.kafka), ("rpc", config.rpc)):
        _check_port(name, listener)
    uvloop.run(_run(config))


def _check_port(name: str, listener: Listener) -> None:
    """Say who has a port, which the error of a listener does not."""
    try:
        owner = ports.taken_by(listener.host, listener.port)
    except OSError:
        return  # a name, perhaps; the listener itself tells what is wrong with it
    if owner is not None:
        raise StartFailed(
            f"{owner} has the port {listener.port} on {listener.host}: stop it, or change `port`"
            f" under [{name}] in this node's file"
        )


async def _run(config: NodeConfig) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    config.data.mkdir(parents=True, exist_ok=True)
    serving = config.data / SERVING_FILE
    server = Server(config)
    start = loop.create_task(server.start())
    stop = loop.create_task(stopping.wait())
    # The node may wait for others for as long as it likes, and can be stopped all the same.
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
        return
    start.result()
    _spare_the_collector()
    _announce(serving, server)
    log.info("node %d serves Kafka clients at %s", config.id, server.address)
    try:
        await stop
        log.info("node %d is stopping", config.id)
    finally:
        serving.unlink(missing_ok=True)
        await server.stop()


def _spare_the_collector() -> None:
    """Keep what a node has once it runs out of the garbage collector's sight.

    Modules, schemas and the replicas that were there at the start stay as long as the process. To
    look through all of them for garbage takes a tenth of a second, in which no client is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def _announce(path: Path, server: Server) -> None:
    """Tell those who watch the directory that this node serves clients, and where."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"pid": os.getpid(), "kafka": str(server.address)}))
    partial.replace(path)
