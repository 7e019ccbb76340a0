"""The Kafka listener of a node: accepts connections and keeps their sum within bounds.

What one connection does is in `tidelog.kafka.connection`. Here is what all of them share: the
buffer that they receive into, the table of APIs, the counters, and the two totals that are bounded,
bytes of requests that arrive or are worked on (`tidelog.kafka.arrivals`) and bytes of answers that
clients do not read.
"""

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

from tidelog.cluster.model import Address
from tidelog.kafka.arrivals import Arrivals
from tidelog.kafka.connection import SCRATCH_BYTES, SCRATCH_HEAD, Connection
from tidelog.kafka.dispatch import Api, Context, Table
from tidelog.kafka.large import LargeRequests
from tidelog.kafka.limits import Limits, Stats
from tidelog.kafka.ratelimit import RateLimited

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)


class KafkaServer:
    def __init__(
        self,
        node: "Node",
        *,
        host: str,
        port: int,
        advertised: Address,
        table: Table | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Prepare a listener; a port of 0, also of the advertised address, means any free one."""
        from tidelog.kafka.apis import default_table

        self.node = node
        self.limits = limits or Limits()
        # Each connection takes a file descriptor, and the logs of this node need theirs.
        self.max_connections = min(self.limits.max_connections, node.files.clients)
        self.table = table or default_table()
        self.stats = Stats()
        self.complaints = RateLimited(log)
        self.large = LargeRequests(self.limits.max_request_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_HEAD + SCRATCH_BYTES))
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.advertised = advertised
        self._host = host
        self._port = port
        self._listener: asyncio.Server | None = None
        self._ids = itertools.count(1)
        self._connections: set[Connection] = set()
        self._arrivals = Arrivals(self.limits)
        # Connections that do not take their answers, the one that began first to be so first.
        self._unread: dict[Connection, None] = {}
        self._swept = 0.0  # when the timeouts were looked after last
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()

    async def bind(self) -> int:
        """Take the port and return it; clients that come are not accepted yet."""
        self.loop = asyncio.get_running_loop()
        self._listener = await self.loop.create_server(
            self._accept,
            self._host,
            self._port,
            backlog=self.node.files.backlog,  # the clients of a whole cluster may come at once
            start_serving=False,
        )
        port = int(self._listener.sockets[0].getsockname()[1])
        if self.advertised.port == 0:
            self.advertised = Address(self.advertised.host, port)
        return port

    async def start(self) -> int:
        """Accept clients, and return the port."""
        if self._listener is None:
            await self.bind()
        assert self._listener is not None
        await self._listener.start_serving()
        self._swept = self.loop.time()
        self._sweep_timer = self.loop.call_later(self.limits.sweep_interval, self._sweep)
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more requests, finish those that are worked on, and close all connections."""
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self._connections):
            if connection.is_idle:
                connection.close()
            else:
                connection.regulate()
        if self._connections:
            self._all_gone.clear()
            try:
                await asyncio.wait_for(self._all_gone.wait(), self.limits.drain_timeout)
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.abort()
                await self._all_gone.wait()
        if self._listener is not None:
            await self._listener.wait_closed()
        self.large.close()

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that arrive or are worked on."""
        return self._arrivals.bytes

    # --- What connections tell --------------------------------------------------------------------

    def _accept(self) -> Connection:
        return Connection(self, next(self._ids))

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.stats.accepted += 1
        self.stats.connections = len(self._connections)
        if len(self._connections) > self.max_connections:
            self.stats.refused += 1
            self.complaints.warning(
                "%s is closed: %d client connections are allowed with a limit of %d open files",
                connection,
                self.max_connections,
                self.node.files.limit,
            )
            connection.abort()
        elif self.stopping:
            connection.abort()

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.stats.connections = len(self._connections)
        self._unread.pop(connection, None)
        self.arrived(connection)
        if not self._connections:
            self._all_gone.set()

    def context(self, connection_id: int, host: str, client_id: str | None) -> Context:
        return Context(self.node, self.advertised, connection_id, host, client_id)

    def count_request(self, api: Api) -> None:
        self.stats.requests += 1
        self.stats.requests_by_api[api.key] += 1

    def failed(self, connection: Connection, api: Api, error: BaseException) -> None:
        """A handler raised what it should not have: that is our mistake, so say where it was."""
        self.stats.failed += 1
        log.error("%s request of %s failed: closed", api.name, connection, exc_info=error)

    # --- Bytes of requests ------------------------------------------------------------------------

    def take(self, count: int) -> None:
        """Count bytes of requests as held."""
        self._arrivals.take(count)

    def give(self, count: int) -> None:
        """Count bytes of requests as released."""
        if self._arrivals.give(count):
            for connection in tuple(self._connections):
                connection.regulate()

    def arriving(self, connection: Connection) -> None:
        self._arrivals.begin(connection)

    def arrived(self, connection: Connection) -> None:
        """This connection has no half-arrived request left."""
        following = self._arrivals.end(connection)
        if following is not None:
            following.regulate()

    def must_wait(self, connection: Connection) -> bool:
        """Tell whether this connection may not be read, for the sake of the others."""
        return self._arrivals.must_wait(connection)

    # --- Bytes of answers -------------------------------------------------------------------------

    def unread(self, connection: Connection) -> None:
        self._unread[connection] = None
        unread = sum(each.unread_bytes() for each in self._unread)
        for each in tuple(self._unread):
            if unread <= self.limits.max_unread_bytes:
                break
            unread -= each.unread_bytes()
            self.stats.unread += 1
            self.complaints.warning("%s does not read its answers: closed", each)
            del self._unread[each]
            each.abort()

    def read_again(self, connection: Connection) -> None:
        self._unread.pop(connection, None)

    # --- Timeouts ---------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self._sweep_timer = self.loop.call_later(self.limits.sweep_interval, self._sweep)
        now, limits = self.loop.time(), self.limits
        # If this loop was held up, bytes may be here that it has not read yet.
        passed = min(now - self._swept, 2 * limits.sweep_interval)
        for connection in self._arrivals.overdue(passed):
            self.stats.stalled += 1
            self.complaints.warning(
                "%s sends a request of %d bytes too slowly, %d are here: closed",
                connection,
                connection.arriving_length,
                connection.arrived_bytes,
            )
            connection.abort()
        self._swept = now
        for connection in tuple(self._connections):
            silent = now - connection.active
            if silent > limits.stall_timeout and connection.is_closing:
                connection.abort()
            elif silent > limits.idle_timeout and connection.may_be_dropped:
                self.stats.idle += 1
                connection.abort()
