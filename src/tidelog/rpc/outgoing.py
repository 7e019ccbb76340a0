"""Connections that this node opens: one `Channel` for each lane to each peer.

    idle --send--> connecting --PROOF--> up
      ^                |                  |
      |              failed             broken
      |                v                  |
      +--not wanted-- backoff <-----------+
                        |
                        +--wanted--> connecting

A channel connects when it is first used. While it connects, frames wait for it; while it backs off,
they are dropped, since by then they would be old news, but a call waits for the next attempt: the
pause between attempts is the pause of everybody who tries again.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable

from tidelog.raft.groupset import CorruptBeat
from tidelog.raft.types import NodeId
from tidelog.records import Buffer
from tidelog.rpc.connection import Connection
from tidelog.rpc.errors import CorruptFrame, RpcError, Unreachable, WrongSecret
from tidelog.rpc.frames import Frame, Hello, Kind, Lane
from tidelog.rpc.incoming import METHOD
from tidelog.rpc.local import Local
from tidelog.rpc.secret import Side

log = logging.getLogger(__name__)


class Channel:
    """One lane to one node; `node_id` is None if whoever listens there is to be talked to."""

    def __init__(
        self, local: Local, lane: Lane, node_id: NodeId | None, host: str, port: int
    ) -> None:
        self._local = local
        self._lane = lane
        self._node_id = node_id
        self._host = host
        self._port = port
        self._connection: Connection | None = None  # while connecting and while up
        self._opening: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None  # while backing off
        self._wanted = False  # since the backoff began
        self._attempts = 0  # without success that lasted
        self._up_since = 0.0  # when the newest connection became ready
        self._complaint = ""  # what was last logged: trouble that goes on is one line
        self._closed = False

    def __str__(self) -> str:
        node = "a node" if self._node_id is None else f"n{self._node_id}"
        return f"{node} at {self._host}:{self._port} ({self._lane.name.lower()})"

    def send(self, kind: Kind, parts: list[Buffer], call_id: int = 0) -> bool:
        """Queue a frame; False if it was dropped, which is counted."""
        connection = self._connection
        if connection is None:
            if self._retry is not None or self._closed or self._local.closing:
                self._wanted = True
                self._local.stats.dropped_unreachable += 1
                return False
            connection = self._connect()
        return connection.send(kind, parts, call_id)

    def close(self, reason: str) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close(reason)

    def hurry(self) -> None:
        """The node has just been here: do not wait for the rest of a backoff."""
        if self._retry is not None:
            self._retry.cancel()
            self._wanted = True
            self._backed_off()

    # --- Connecting -----------------------------------------------------------------------------

    def _connect(self) -> Connection:
        self._connection = self._local.connection(self, self._lane)
        self._opening = self._local.spawn(self._open(self._connection))
        return self._connection

    async def _open(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._local.limits.handshake):
                await loop.create_connection(lambda: connection, self._host, self._port)
        except TimeoutError:
            connection.abandon(f"no connection within {self._local.limits.handshake} s")
        except (OSError, ValueError, OverflowError) as error:  # the last two: no such address
            connection.abandon(str(error))
        except asyncio.CancelledError:
            connection.abandon("it was given up")
            raise

    def _back_off(self) -> None:
        limits = self._local.limits
        # The exponent is bounded only to keep the number small: 2**10 is past any backoff.
        pause = min(limits.backoff_most, limits.backoff_first * 2 ** min(self._attempts, 10))
        self._attempts += 1
        self._wanted = False
        loop = asyncio.get_running_loop()
        # Jitter, so that nodes that lost the same peer at once do not come back at once.
        self._retry = loop.call_later(pause * random.uniform(0.5, 1.0), self._backed_off)

    def _backed_off(self) -> None:
        self._retry = None
        if self._wanted:
            self._connect()

    # --- rpc.connection.Owner -------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        connection.say_hello(self._local.hello(self._lane))

    def greeted(self, connection: Connection, hello: Hello) -> bool:
        del connection
        difference = self._local.difference(hello)
        if difference is not None:
            raise CorruptFrame(f"it {difference}")
        if self._node_id is not None and hello.node_id != self._node_id:
            raise CorruptFrame(f"it is n{hello.node_id}")
        return True

    def proven(self, connection: Connection, proof: bytes) -> None:
        secret, said, heard = self._local.secret, connection.said, connection.heard
        # Sent in any case: if the secrets differ, the log of the other node says so too.
        connection.say_proof(secret.prove(Side.DIALER, said, heard))
        if not secret.accepts(proof, Side.LISTENER, said, heard):
            self._local.stats.wrong_secrets += 1
            raise WrongSecret("its secret is not that of this node: the two belong to two clusters")
        connection.peer = str(self)
        self._up_since = asyncio.get_running_loop().time()
        self._local.stats.connects += 1
        log.info("connected with %s", self)

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        del connection
        raise CorruptFrame(f"a {frame.kind.name} frame is no answer to anything")

    def lost(self, connection: Connection, reason: str) -> None:
        self._local.lost(connection)
        self._connection = None
        self._opening = None
        if self._closed:
            return
        if not connection.ready:
            self._local.stats.connect_failures += 1
        elif self._lasted():
            self._attempts = 0
            self._complaint = ""
        if reason != self._complaint:
            self._complaint = reason
            # The caller of a single call hears of it, and says so if it matters.
            level = logging.DEBUG if self._lane is Lane.NEWCOMER else logging.WARNING
            log.log(level, "no connection with %s: %s", self, reason)
        self._back_off()

    def _lasted(self) -> bool:
        """Whether the connection was worth the name: a peer may greet us and then hang up."""
        age = asyncio.get_running_loop().time() - self._up_since
        return age > self._local.limits.backoff_most


class CallChannel(Channel):
    """A channel over which something is answered: heartbeats and calls."""

    def __init__(
        self, local: Local, lane: Lane, node_id: NodeId | None, host: str, port: int
    ) -> None:
        super().__init__(local, lane, node_id, host, port)
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bytes]] = {}  # sent, or about to be
        self._under_way = 0  # those and the ones that wait for an attempt; <= limits.calls
        self._attempt = asyncio.Event()  # set when a backoff ends

    async def call(self, method: int, payload: bytes) -> bytes:
        limits = self._local.limits
        if METHOD.size + len(payload) > limits.frame_bytes:
            raise RpcError(f"a call of {len(payload)} bytes is beyond {limits.frame_bytes}")
        if self._under_way == limits.calls:
            raise Unreachable(f"{self._under_way} calls to {self} are under way")
        self._under_way += 1
        try:
            await self._wait_for_attempt()
            return await self._call(method, payload)
        finally:
            self._under_way -= 1

    async def _wait_for_attempt(self) -> None:
        if self._retry is not None:
            self._wanted = True
            await self._attempt.wait()

    async def _call(self, method: int, payload: bytes) -> bytes:
        call_id = next(self._ids)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            if not self.send(Kind.CALL, [METHOD.pack(method), payload], call_id):
                raise Unreachable(f"{self} cannot be sent anything now")
            return await future
        finally:
            del self._calls[call_id]

    def close(self, reason: str) -> None:
        super().close(reason)
        self._attempt.set()
        self._fail_calls(reason)

    def _back_off(self) -> None:
        super()._back_off()
        self._attempt.clear()

    def _backed_off(self) -> None:
        super()._backed_off()
        self._attempt.set()

    def proven(self, connection: Connection, proof: bytes) -> None:
        super().proven(connection, proof)
        if self._lane is Lane.CONTROL:
            self._tell(self._local.handler.on_peer_connected, "a new connection")

    def lost(self, connection: Connection, reason: str) -> None:
        super().lost(connection, reason)
        self._fail_calls(reason)
        if self._lane is Lane.CONTROL and connection.ready and not self._closed:
            self._tell(self._local.handler.on_peer_lost, "a lost connection")

    def _tell(self, listener: Callable[[NodeId], None], what: str) -> None:
        if self._node_id is None:
            return
        try:
            listener(self._node_id)
        except Exception:  # noqa: BLE001  logged there
            self._local.handler_failed(what, self._node_id)

    def _fail_calls(self, reason: str) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Unreachable(f"no connection with {self}: {reason}"))

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is Kind.ANSWER or frame.kind is Kind.FAILURE:
            self._take_answer(frame)
        elif frame.kind is Kind.BEAT_REPLY and self._node_id is not None:
            self._take_beat_reply(self._node_id, bytes(frame.body))
        else:
            super().on_frame(connection, frame)

    def _take_answer(self, frame: Frame) -> None:
        future = self._calls.get(frame.call_id)
        if future is None or future.done():
            return  # the caller gave up before
        if frame.kind is Kind.ANSWER:
            future.set_result(bytes(frame.body))
        else:
            future.set_exception(RpcError(bytes(frame.body).decode(errors="replace")))

    def _take_beat_reply(self, sender: NodeId, body: bytes) -> None:
        try:
            self._local.handler.on_beat_reply(sender, body)
        except CorruptBeat as error:
            raise CorruptFrame(str(error)) from None
        except Exception:  # noqa: BLE001  logged there
            self._local.handler_failed("an answer to a heartbeat", sender)


class Peer:
    """A node that we send to: a connection for what is small and urgent, and one for data."""

    def __init__(self, local: Local, node_id: NodeId, host: str, port: int) -> None:
        self.address = (host, port)
        self.control = CallChannel(local, Lane.CONTROL, node_id, host, port)
        self.data = Channel(local, Lane.DATA, node_id, host, port)

    def close(self, reason: str) -> None:
        self.control.close(reason)
        self.data.close(reason)
