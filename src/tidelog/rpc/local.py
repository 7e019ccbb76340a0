"""This end of all connections: who we are, and what they share."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from tidelog.raft.messages import Message
from tidelog.raft.types import NodeId
from tidelog.rpc.complaints import Complaints
from tidelog.rpc.connection import Connection, Owner
from tidelog.rpc.frames import Hello, Lane, check_name
from tidelog.rpc.limits import Limits, Stats
from tidelog.rpc.secret import Secret

log = logging.getLogger(__name__)

STOPPING: Final = "this node is stopping"


class Handler(Protocol):
    """What a node does with what comes from others."""

    def on_message(self, sender: NodeId, message: Message) -> None:
        """A replica elsewhere says something to one of ours."""

    def on_beat(self, sender: NodeId, body: bytes) -> bytes | None:
        """Return the answer to a light heartbeat, if the sender is to have one.

        `CorruptBeat` ends the connection.
        """

    def on_beat_reply(self, sender: NodeId, body: bytes) -> None:
        """The answer to one of ours; `CorruptBeat` ends the connection."""

    async def on_call(self, sender: NodeId, lane: Lane, method: int, payload: bytes) -> bytes:
        """Return the answer to a call; the caller gets an `RpcError` that is raised here.

        The lane says how far the sender is to be believed: on GUEST it has proven nothing, not even
        its id; on NEWCOMER it knows the secret and may be no member yet.
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
        self,
        node_id: NodeId,
        cluster: str,
        secret: Secret,
        handler: Handler,
        limits: Limits,
        stats: Stats,
    ) -> None:
        check_name(cluster)
        self.node_id = node_id
        self.cluster = cluster  # by name
        self.cluster_id = ""  # by its random id, once that is known
        self.secret = secret
        self.handler = handler
        self.limits = limits
        self.stats = stats
        self.connections: set[Connection] = set()  # every one that is not lost
        self.tasks: set[asyncio.Task[None]] = set()  # that open connections or serve calls
        self.on_came: Callable[[NodeId], None] = lambda _: None  # a node has connected with us
        self.closing = False  # no connection is kept any more
        self.complaints = Complaints(log)
        self._all_lost = asyncio.Event()  # set when the last of the connections is lost

    def identify(self, cluster_id: str) -> None:
        check_name(cluster_id)
        self.cluster_id = cluster_id

    def hello(self, lane: Lane) -> Hello:
        return Hello(lane, self.node_id, self.cluster, self.cluster_id)

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

    def difference(self, hello: Hello) -> str | None:
        """Return why the other end is of another cluster, or None if it is of ours."""
        if hello.cluster != self.cluster:
            return f"belongs to cluster {hello.cluster!r} and this node to {self.cluster!r}"
        if hello.cluster_id and self.cluster_id and hello.cluster_id != self.cluster_id:
            return (
                f"belongs to another cluster of the same name: its id is {hello.cluster_id!r}"
                f" and ours {self.cluster_id!r}. If one of them was recovered without the other"
                " (`tidelog node recover`), the other joins as a new node once its data directory"
                " is empty"
            )
        return None

    def handler_failed(self, what: str, sender: NodeId) -> None:
        """Note, from an `except`, that our own handler raised; nobody else is to suffer for it."""
        self.stats.handler_errors += 1
        log.exception("handling %s of n%d failed", what, sender)
