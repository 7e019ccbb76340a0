"""The network as a node sees it: peers by id, messages to them, calls, and a listener.

`send` and `send_beat` never wait and never raise: Raft repeats what matters. What is lost on the
way is counted in `stats`. Messages to one peer keep their order among those that travel on the same
connection; control overtakes data.
"""

import asyncio
import logging
from typing import Final

from tidelog.raft.messages import AppendRequest, Message, SnapshotChunk
from tidelog.raft.types import NodeId
from tidelog.rpc import codec
from tidelog.rpc.errors import RpcTimeout, Unreachable
from tidelog.rpc.frames import Kind, Lane
from tidelog.rpc.incoming import Doorkeeper
from tidelog.rpc.limits import Limits, Stats
from tidelog.rpc.local import STOPPING, Handler, Local
from tidelog.rpc.outgoing import CallChannel, Peer
from tidelog.rpc.secret import Secret

log = logging.getLogger(__name__)

BACKLOG: Final = 256  # connections that the kernel keeps for us while we are busy
CHECKS_A_SILENCE: Final = 10  # how often connections are looked after, within `Limits.silence`


class Network:
    def __init__(
        self,
        node_id: NodeId,
        cluster: str,
        secret: Secret,
        handler: Handler,
        *,
        limits: Limits = Limits(),
    ) -> None:
        self.stats = Stats()
        self._local = Local(node_id, cluster, secret, handler, limits, self.stats)
        self._keeper = Doorkeeper(self._local)
        self._local.on_came = self._came
        self._peers: dict[NodeId, Peer] = {}
        self._visits: set[CallChannel] = set()  # each for one call to an address
        self._server: asyncio.Server | None = None
        self._checking: asyncio.TimerHandle | None = None

    def identify(self, cluster_id: str) -> None:
        """Name the cluster's random id in every HELLO from now on, and refuse any other."""
        self._local.identify(cluster_id)

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port, which the system chooses if it is 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._keeper.admit, host, port, backlog=BACKLOG, reuse_address=True
        )
        self._look_after()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def set_peer(self, node_id: NodeId, host: str, port: int) -> None:
        """Say where a node is. It is connected with when there is something to send."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.address == (host, port):
            return
        if peer is not None:
            peer.close("its address changed")
        self._peers[node_id] = Peer(self._local, node_id, host, port)

    def remove_peer(self, node_id: NodeId) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.close("the node was removed")

    def _came(self, node_id: NodeId) -> None:
        """A node that connects with us is up again: it may wait for what we have to say."""
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.control.hurry()
            peer.data.hurry()

    def send(self, node_id: NodeId, message: Message) -> None:
        """Send a message if that is possible now; never waits and never raises."""
        peer = self._peers.get(node_id)
        if peer is None:
            self.stats.dropped_unreachable += 1
            return
        try:
            parts = codec.encode(message)
        except ValueError as error:
            self.stats.dropped_unsendable += 1
            log.error("%s", error)
            return
        channel = peer.data if _is_data(message) else peer.control
        self._look_after()
        if channel.send(Kind.MESSAGE, parts):
            self.stats.messages_sent += 1

    def send_beat(self, node_id: NodeId, body: bytes) -> None:
        """Send a light heartbeat if that is possible now; never waits and never raises."""
        peer = self._peers.get(node_id)
        if peer is None:
            self.stats.dropped_unreachable += 1
            return
        self._look_after()
        if peer.control.send(Kind.BEAT, [body]):
            self.stats.beats_sent += 1

    async def call(self, node_id: NodeId, method: int, payload: bytes, timeout: float) -> bytes:
        """Ask a peer; raises `RpcError`, `RpcTimeout` or `Unreachable`."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise Unreachable(f"the address of n{node_id} is not known")
        return await self._call(peer.control, method, payload, timeout)

    async def call_address(
        self, host: str, port: int, method: int, payload: bytes, timeout: float
    ) -> bytes:
        """Ask the node of this cluster that listens there; raises as `call` does."""
        channel = CallChannel(self._local, Lane.NEWCOMER, None, host, port)
        self._visits.add(channel)
        try:
            return await self._call(channel, method, payload, timeout)
        finally:
            self._visits.discard(channel)
            channel.close("the call is over")

    async def _call(
        self, channel: CallChannel, method: int, payload: bytes, timeout: float
    ) -> bytes:
        if self._local.closing:
            raise Unreachable(STOPPING)
        self._look_after()
        self.stats.calls_made += 1
        try:
            async with asyncio.timeout(timeout):
                return await channel.call(method, payload)
        except TimeoutError:
            raise RpcTimeout(f"{channel} did not answer within {timeout} s") from None

    async def close(self) -> None:
        """End everything; returns when no connection and no task is left."""
        if self._checking is not None:
            self._checking.cancel()
        if self._server is not None:
            self._server.close()
        for peer in self._peers.values():
            peer.close(STOPPING)
        self._peers.clear()
        for visit in tuple(self._visits):
            visit.close(STOPPING)
        self._local.close_all()
        await self._local.end_tasks()
        await self._local.all_lost()
        if self._server is not None:
            await self._server.wait_closed()

    def _look_after(self) -> None:
        """See that connections are looked after, from the first use on."""
        if self._checking is None and not self._local.closing:
            loop = asyncio.get_running_loop()
            interval = self._local.limits.silence / CHECKS_A_SILENCE
            self._checking = loop.call_later(interval, self._check)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._local.connections):
            connection.check(now)
        self._checking = None
        self._look_after()


def _is_data(message: Message) -> bool:
    if isinstance(message, AppendRequest):
        return bool(message.batches)
    return isinstance(message, SnapshotChunk)
