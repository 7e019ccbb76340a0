"""Connections that others opened: their messages, heartbeats and calls."""

import asyncio
import logging
from struct import Struct
from typing import Final

from tidelog.raft.groupset import CorruptBeat
from tidelog.raft.types import NodeId
from tidelog.rpc import codec
from tidelog.rpc.connection import Connection
from tidelog.rpc.errors import CorruptFrame, RpcError
from tidelog.rpc.frames import Frame, Hello, Kind, Lane
from tidelog.rpc.local import Local

log = logging.getLogger(__name__)

METHOD: Final = Struct(">I")  # a call's body begins with it; the payload follows

_ALLOWED: Final = {
    Lane.CONTROL: frozenset({Kind.MESSAGE, Kind.BEAT, Kind.CALL}),
    Lane.DATA: frozenset({Kind.MESSAGE}),
    Lane.GUEST: frozenset({Kind.CALL}),
}


class Doorkeeper:
    """Knows all sessions, so that their number is bounded and each lane of a node has only one."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.open = 0  # sessions whose connection is not lost, greeted or not
        self._sessions: dict[tuple[NodeId, Lane], Session] = {}

    def admit(self) -> Connection:
        """A connection for the listener to fill."""
        self.open += 1
        session = Session(self)
        session.connection = self.local.connection(session, Lane.CONTROL)
        return session.connection

    def seat(self, session: "Session", hello: Hello) -> None:
        """Let a session take the place of the one before it, whose end may never have shown."""
        if hello.lane is Lane.GUEST:
            return
        before = self._sessions.get((hello.node_id, hello.lane))
        self._sessions[hello.node_id, hello.lane] = session
        if before is not None:
            before.connection.close("the same node opened another")

    def leave(self, session: "Session") -> None:
        place = (session.sender, session.lane)
        if self._sessions.get(place) is session:
            del self._sessions[place]


class Session:
    """The owner of one accepted connection."""

    connection: Connection

    def __init__(self, keeper: Doorkeeper) -> None:
        self._keeper = keeper
        self._local = keeper.local
        self._serving = 0  # calls; 0 <= serving <= limits.calls
        self.sender = NodeId(-1)
        self.lane = Lane.GUEST

    # --- rpc.connection.Owner -------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        if self._keeper.open > self._local.limits.inbound_connections:
            self._local.stats.refused_connections += 1
            log.warning(
                "refusing a connection from %s: %d are open, which is the limit",
                connection.peer,
                self._local.limits.inbound_connections,
            )
            connection.close("too many connections")

    def greeted(self, connection: Connection, hello: Hello) -> None:
        connection.say_hello(self._local.hello(hello.lane))
        if self._local.is_stranger(hello):
            raise CorruptFrame(
                f"n{hello.node_id} belongs to cluster {hello.cluster_id!r}"
                f" and this node to {self._local.cluster_id!r}"
            )
        if hello.lane is not Lane.GUEST and hello.node_id in (-1, self._local.node_id):
            raise CorruptFrame(f"another node may not call itself n{hello.node_id}")
        self.sender = hello.node_id
        self.lane = hello.lane
        connection.peer = f"n{hello.node_id} ({connection.peer}, {hello.lane.name.lower()})"
        self._keeper.seat(self, hello)
        self._local.stats.accepts += 1
        if hello.lane is not Lane.GUEST:
            self._local.on_came(hello.node_id)

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind not in _ALLOWED[self.lane]:
            raise CorruptFrame(f"a {frame.kind.name} frame has no place on this connection")
        if frame.kind is Kind.MESSAGE:
            self._take_message(frame.body)
        elif frame.kind is Kind.BEAT:
            self._take_beat(connection, bytes(frame.body))
        else:
            self._take_call(connection, frame)

    def lost(self, connection: Connection, reason: str) -> None:
        if connection.corrupt:
            log.warning("closed the connection from %s: %s", connection.peer, reason)
        self._keeper.open -= 1
        self._keeper.leave(self)
        self._local.lost(connection)

    # --- What came ------------------------------------------------------------------------------

    def _take_message(self, body: memoryview) -> None:
        message = codec.decode(body)
        if message.source.id != self.sender:
            raise CorruptFrame(f"n{self.sender} sent a message of {message.source}")
        self._local.stats.messages_received += 1
        try:
            self._local.handler.on_message(self.sender, message)
        except Exception:  # noqa: BLE001  one group's trouble is not every group's
            self._local.handler_failed(type(message).__name__, self.sender)

    def _take_beat(self, connection: Connection, body: bytes) -> None:
        self._local.stats.beats_received += 1
        try:
            reply = self._local.handler.on_beat(self.sender, body)
        except CorruptBeat as error:
            raise CorruptFrame(str(error)) from None
        except Exception:  # noqa: BLE001  logged there
            self._local.handler_failed("a heartbeat", self.sender)
        else:
            connection.send(Kind.BEAT_REPLY, (reply,))

    def _take_call(self, connection: Connection, frame: Frame) -> None:
        if len(frame.body) < METHOD.size:
            raise CorruptFrame(f"{len(frame.body)} bytes are too few for a call")
        if self._serving == self._local.limits.calls:
            _refuse(connection, frame.call_id, f"{self._serving} calls are under way")
            return
        self._serving += 1
        self._local.spawn(self._serve(connection, frame)).add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        del task
        self._serving -= 1

    async def _serve(self, connection: Connection, frame: Frame) -> None:
        self._local.stats.calls_served += 1
        (method,) = METHOD.unpack_from(frame.body)
        payload = bytes(frame.body[METHOD.size :])
        try:
            answer = await self._local.handler.on_call(self.sender, method, payload)
        except RpcError as error:
            _refuse(connection, frame.call_id, str(error))
        except Exception as error:  # noqa: BLE001  logged there
            self._local.handler_failed(f"call {method}", self.sender)
            _refuse(connection, frame.call_id, f"call {method} failed: {type(error).__name__}")
        else:
            self._answer(connection, frame.call_id, method, answer)

    def _answer(self, connection: Connection, call_id: int, method: int, answer: bytes) -> None:
        most = self._local.limits.frame_bytes
        if len(answer) > most:
            _refuse(
                connection,
                call_id,
                f"the answer to call {method} has {len(answer)} bytes and {most} can be sent",
            )
        else:
            connection.send(Kind.ANSWER, (answer,), call_id)


def _refuse(connection: Connection, call_id: int, reason: str) -> None:
    connection.send(Kind.FAILURE, (reason.encode(),), call_id)
