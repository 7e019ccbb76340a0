"""The Kafka listener of a node: accepts connections and keeps their sum within bounds.

What one connection does is in `tidelog.kafka.connection`. Here is what all of them share: the
buffer that they receive into, the table of APIs, the counters, and the two totals that are bounded,
bytes of requests that arrive or are worked on and bytes of answers that nobody reads.
"""

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

from tidelog.cluster.model import Address
from tidelog.kafka.connection import SCRATCH_BYTES, SCRATCH_HEAD, Connection
from tidelog.kafka.dispatch import Api, Context, Table
from tidelog.kafka.limits import Limits, Stats
from tidelog.kafka.ratelimit import RateLimited

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

# Connections that wait to be accepted: clients of a whole cluster come at once when a node is back.
_ACCEPT_BACKLOG: Final = 1024
# Reading goes on once this share of the allowed bytes is left, so that it does not flutter.
_RESUME_AT: Final = 0.75


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
        self.table = table or default_table()
        self.stats = Stats()
        self.complaints = RateLimited(log)
        self.scratch = memoryview(bytearray(SCRATCH_HEAD + SCRATCH_BYTES))
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.advertised = advertised
        self._host = host
        self._port = port
        self._listener: asyncio.Server | None = None
        self._ids = itertools.count(1)
        self._connections: set[Connection] = set()
        # Connections with a half-arrived request, the oldest such request first.
        self._arriving: dict[Connection, None] = {}
        # Connections that do not take their answers, the one that began first to be so first.
        self._unread: dict[Connection, None] = {}
        self._inflight_bytes = 0
        self._pressed = False  # too many bytes in flight
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()

    async def bind(self) -> int:
        """Take the port and return it; clients that come are not accepted yet."""
        self.loop = asyncio.get_running_loop()
        self._listener = await self.loop.create_server(
            self._accept,
            self._host,
            self._port,
            backlog=_ACCEPT_BACKLOG,
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

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that arrive or are worked on."""
        return self._inflight_bytes

    # --- What connections tell --------------------------------------------------------------------

    def _accept(self) -> Connection:
        return Connection(self, next(self._ids))

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.stats.accepted += 1
        self.stats.connections = len(self._connections)
        if len(self._connections) > self.limits.max_connections:
            self.stats.refused += 1
            self.complaints.warning(
                "%s is one more than the %d that are allowed: closed",
                connection,
                self.limits.max_connections,
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
        """So many more bytes of requests are held."""
        self._inflight_bytes += count
        if self._inflight_bytes > self.limits.max_inflight_bytes:
            self._pressed = True

    def give(self, count: int) -> None:
        """So many less."""
        self._inflight_bytes -= count
        if self._pressed and self._inflight_bytes < self.limits.max_inflight_bytes * _RESUME_AT:
            self._pressed = False
            for connection in tuple(self._connections):
                connection.regulate()

    def arriving(self, connection: Connection) -> None:
        self._arriving[connection] = None

    def arrived(self, connection: Connection) -> None:
        """No request of this connection is half there any more."""
        if connection in self._arriving:
            was_first = self._first(self._arriving) is connection
            del self._arriving[connection]
            if was_first and self._pressed and self._arriving:
                self._first(self._arriving).regulate()

    def must_wait(self, connection: Connection) -> bool:
        """Tell whether this connection may not be read from, for the sake of all."""
        if not self._pressed:
            return False
        return not self._arriving or self._first(self._arriving) is not connection

    @staticmethod
    def _first(connections: dict[Connection, None]) -> Connection:
        return next(iter(connections))

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
        silent = [
            connection
            for connection in self._connections
            if connection.active < now - limits.stall_timeout
        ]
        first = self._first(self._arriving) if self._pressed and self._arriving else None
        for connection in silent:
            if connection is first:
                self.stats.stalled += 1
                self.complaints.warning("%s never ends its request: closed", connection)
                connection.abort()
            elif connection.is_closing:
                connection.abort()
            elif connection.active < now - limits.idle_timeout and connection.may_be_dropped:
                self.stats.idle += 1
                connection.abort()
