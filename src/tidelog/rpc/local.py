"""This end of all connections: who we are, and what they share."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from tidelog.raft.messages import Message
from tidelog.raft.types import NodeId
from tidelog.rpc.connection import Connection, Owner
from tidelog.rpc.frames import Hello, Lane, check_cluster_id
from tidelog.rpc.limits import Limits, Stats

log = logging.getLogger(__name__)

STOPPING: Final = "this node is stopping"


class Handler(Protocol):
    """What a node does with what comes from others."""

    def on_message(self, sender: NodeId, message: Message) -> None:
        """A replica elsewhere says something to one of ours."""

    def on_beat(self, sender: NodeId, body: bytes) -> bytes:
        """Return the answer to a light heartbeat; `CorruptBeat` ends the connection."""

    def on_beat_reply(self, sender: NodeId, body: bytes) -> None:
        """The answer to one of ours; `CorruptBeat` ends the connection."""

    async def on_call(self, sender: NodeId, method: int, payload: bytes) -> bytes:
        """Return the answer to a call; the caller gets an `RpcError` that is raised here.

        The sender may be no member: its id is then -1, or what it would like to be.
        """

    def on_peer_connected(self, node_id: NodeId) -> None:
        """Our control connection to a peer is ready; what is sent from here on will leave."""

    def on_peer_lost(self, node_id: NodeId) -> None:
        """That connection broke: the peer died, or cannot be reached, or did not answer.

        Not called for a connection that was never ready, nor for one that we gave up ourselves
        since the peer was removed or has another address.
        """


class Local:
    def __init__(
        self, node_id: NodeId, cluster_id: str, handler: Handler, limits: Limits, stats: Stats
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.stats = stats
        self.connections: set[Connection] = set()  # every one that is not lost
        self.tasks: set[asyncio.Task[None]] = set()  # that open connections or serve calls
        self.on_came: Callable[[NodeId], None] = lambda _: None  # a node has connected with us
        self.closing = False  # no connection is kept any more
        self._all_lost = asyncio.Event()  # set when the last of the connections is lost
        self.identify(node_id, cluster_id)

    def identify(self, node_id: NodeId, cluster_id: str) -> None:
        check_cluster_id(cluster_id)
        self.node_id = node_id
        self.cluster_id = cluster_id

    def hello(self, lane: Lane) -> Hello:
        return Hello(lane, self.node_id, self.cluster_id)

    def connection(self, owner: Owner, lane: Lane) -> Connection:
        """A connection that is yet to be opened; its owner says when it is `lost`."""
        limits = self.limits
        queue_bytes = limits.data_bytes if lane is Lane.DATA else limits.control_bytes
        connection = Connection(owner, limits, self.stats, queue_bytes)
        self.connections.add(connection)
        self._all_lost.clear()
        if self.closing:  # the listener had accepted it before it stopped
            connection.close(STOPPING)
        return connection

    def close_all(self) -> None:
        """Close every connection, now and from now on."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close(STOPPING)

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_lost.set()

    async def all_lost(self) -> None:
        """Return when there is no connection any more."""
        if self.connections:
            await self._all_lost.wait()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task that `end_tasks` ends if it is still there."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def end_tasks(self) -> None:
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_stranger(self, hello: Hello) -> bool:
        """Whether whoever says this must not take part on this lane of our cluster."""
        if hello.lane is Lane.GUEST:
            known = hello.cluster_id and self.cluster_id
            return bool(known) and hello.cluster_id != self.cluster_id
        return not self.cluster_id or hello.cluster_id != self.cluster_id

    def handler_failed(self, what: str, sender: NodeId) -> None:
        """Note, from an `except`, that our own handler raised; nobody else is to suffer for it."""
        self.stats.handler_errors += 1
        log.exception("handling %s of n%d failed", what, sender)
