"""Connections that others opened: their messages, heartbeats and calls.

Until the other end has proven the cluster's secret it is a stranger: it takes the place of no other
connection, and gets little room and little time. A guest remains a stranger.
"""

import asyncio
import logging
from collections import Counter
from struct import Struct
from typing import Final

from tidelog.raft.groupset import CorruptBeat
from tidelog.raft.types import NodeId
from tidelog.rpc import codec
from tidelog.rpc.connection import Connection
from tidelog.rpc.errors import CorruptFrame, RpcError, WrongSecret
from tidelog.rpc.frames import Frame, Hello, Kind, Lane
from tidelog.rpc.local import Local
from tidelog.rpc.secret import Side

log = logging.getLogger(__name__)

METHOD: Final = Struct(">I")  # a call's body begins with it; the payload follows

_ALLOWED: Final = {
    Lane.CONTROL: frozenset({Kind.MESSAGE, Kind.BEAT, Kind.CALL}),
    Lane.DATA: frozenset({Kind.MESSAGE}),
    Lane.GUEST: frozenset({Kind.CALL}),
    Lane.NEWCOMER: frozenset({Kind.CALL}),
}
_OF_A_MEMBER: Final = frozenset({Lane.CONTROL, Lane.DATA})

WRONG_SECRET: Final = (
    "it does not know the secret of this node's cluster: give it a token that `tidelog node token`"
    " prints on the machine of a member"
)


class Doorkeeper:
    """Knows all sessions, so that their number is bounded and each lane of a node has only one."""

    def __init__(self, local: Local) -> None:
        self.local = local
        # Sessions whose connection is neither lost nor evicted, and those of them that have proven
        # nothing, oldest first.
        self._all: set[Session] = set()
        self._strangers: dict[Session, None] = {}
        self._sessions: dict[tuple[NodeId, Lane], Session] = {}

    @property
    def open(self) -> int:
        return len(self._all)

    def admit(self) -> Connection:
        """A connection for the listener to fill."""
        session = Session(self)
        self._all.add(session)
        self._strangers[session] = None
        session.connection = self.local.connection(session, Lane.CONTROL)
        return session.connection

    def has_room(self, newest: "Session") -> bool:
        """Whether a stranger may come in; another one may have to leave for it."""
        limits = self.local.limits
        if len(self._strangers) <= limits.strangers and self.open <= limits.inbound_connections:
            return True
        others = [each for each in self._strangers if each is not newest]
        if not others:
            return False
        hosts = Counter(each.host for each in others)
        most = max(hosts.values())
        evicted = next(each for each in others if hosts[each.host] == most)
        self.local.stats.evicted_strangers += 1
        self._forget(evicted)
        evicted.connection.close("others want to come in, and it has proven nothing")
        return True

    def trust(self, session: "Session") -> None:
        """The other end has proven the secret."""
        self._strangers.pop(session, None)

    def seat(self, session: "Session") -> None:
        """Let a session take the place of the one before it, whose end may never have shown."""
        before = self._sessions.get((session.sender, session.lane))
        self._sessions[session.sender, session.lane] = session
        if before is not None:
            before.connection.close("the same node opened another")

    def leave(self, session: "Session") -> None:
        self._forget(session)
        place = (session.sender, session.lane)
        if self._sessions.get(place) is session:
            del self._sessions[place]

    def _forget(self, session: "Session") -> None:
        self._all.discard(session)
        self._strangers.pop(session, None)


class Session:
    """The owner of one accepted connection."""

    connection: Connection

    def __init__(self, keeper: Doorkeeper) -> None:
        self._keeper = keeper
        self._local = keeper.local
        self._serving = 0  # calls; 0 <= serving <= limits.calls
        self._trusted = False  # it has proven the secret
        self.host = "?"
        self.sender = NodeId(-1)
        self.lane = Lane.GUEST

    # --- rpc.connection.Owner -------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.host = connection.peer.rpartition(":")[0]
        if self._keeper.has_room(self):
            return
        self._local.stats.refused_connections += 1
        most = self._local.limits.inbound_connections
        self._complain(f"refusing connections: {most} are open, which is the limit")
        connection.close("too many connections")

    def greeted(self, connection: Connection, hello: Hello) -> bool:
        local = self._local
        connection.say_hello(local.hello(hello.lane))
        difference = local.difference(hello)
        if difference is not None:
            raise CorruptFrame(f"n{hello.node_id} {difference}")
        if hello.lane in _OF_A_MEMBER and hello.node_id in (-1, local.node_id):
            raise CorruptFrame(f"another node may not call itself n{hello.node_id}")
        self.sender = hello.node_id
        self.lane = hello.lane
        connection.peer = f"n{hello.node_id} ({connection.peer}, {hello.lane.name.lower()})"
        if hello.lane is Lane.GUEST:
            connection.frame_bytes = local.limits.guest_frame_bytes
            connection.queue_bytes = local.limits.guest_queue_bytes
            local.stats.accepts += 1
            return False
        connection.say_proof(local.secret.prove(Side.LISTENER, connection.heard, connection.said))
        return True

    def proven(self, connection: Connection, proof: bytes) -> None:
        local = self._local
        if not local.secret.accepts(proof, Side.DIALER, connection.heard, connection.said):
            local.stats.wrong_secrets += 1
            raise WrongSecret(WRONG_SECRET)
        self._trusted = True
        self._keeper.trust(self)
        local.stats.accepts += 1
        if self.lane in _OF_A_MEMBER:
            self._keeper.seat(self)
            local.on_came(self.sender)

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
            self._complain(f"closed the connection from {connection.peer}: {reason}")
        self._keeper.leave(self)
        self._local.lost(connection)

    def _complain(self, message: str) -> None:
        # Strangers share a source: they can choose their ids, but not where they come from.
        source = (self.host, self.sender if self._trusted else None)
        self._local.complaints.warn(source, asyncio.get_running_loop().time(), message)

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
            if reply is not None:
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
            answer = await self._local.handler.on_call(self.sender, self.lane, method, payload)
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
