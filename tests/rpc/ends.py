"""Both ends of a wire: a handler that notes down what it hears, and networks on real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

from tidelog.raft.messages import AppendRequest, Message
from tidelog.raft.types import NodeId
from tidelog.rpc import Limits, Network, RpcError, Secret
from tidelog.rpc.frames import HEADER_SIZE, Frame, Hello, Kind, Lane, frame
from tidelog.rpc.secret import Side

HOST = "127.0.0.1"
CLUSTER = "harbour"
SECRET = Secret(bytes(range(32)))
PATIENCE = 60.0  # seconds that a shared machine may take for what takes milliseconds

ECHO, REFUSE, FAIL, HANG, GROW = range(5)  # methods that an `Ear` serves

Run = Callable[[Coroutine[None, None, None]], None]


class Ear:
    """A handler that hears everything and does what a call asks of it."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.beats: list[tuple[NodeId, bytes]] = []
        self.replies: list[tuple[NodeId, bytes]] = []
        self.peers: list[str] = []  # "+2" connected, "-2" lost
        self.callers: list[NodeId] = []
        self.lanes: list[Lane] = []  # on which the calls came
        self.hanging = 0
        self.beat_error: Exception | None = None
        self.answers_beats = True
        self.message_error: Exception | None = None
        self.peer_error: Exception | None = None

    @property
    def seqs(self) -> list[int]:
        return [each.seq for each in self.heard if isinstance(each, AppendRequest)]

    def on_message(self, sender: NodeId, message: Message) -> None:
        assert message.source.id == sender
        if self.message_error is not None:
            raise self.message_error
        self.heard.append(message)

    def on_beat(self, sender: NodeId, body: bytes) -> bytes | None:
        if self.beat_error is not None:
            raise self.beat_error
        self.beats.append((sender, body))
        return body[::-1] if self.answers_beats else None

    def on_beat_reply(self, sender: NodeId, body: bytes) -> None:
        if self.beat_error is not None:
            raise self.beat_error
        self.replies.append((sender, body))

    async def on_call(self, sender: NodeId, lane: Lane, method: int, payload: bytes) -> bytes:
        self.callers.append(sender)
        self.lanes.append(lane)
        if method == REFUSE:
            raise RpcError("not today")
        if method == FAIL:
            raise KeyError("a bug")
        if method == GROW:
            return bytes(int(payload))
        if method == HANG:
            self.hanging += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.hanging -= 1
        return payload

    def on_peer_connected(self, node_id: NodeId) -> None:
        self.peers.append(f"+{node_id}")
        if self.peer_error is not None:
            raise self.peer_error

    def on_peer_lost(self, node_id: NodeId) -> None:
        self.peers.append(f"-{node_id}")
        if self.peer_error is not None:
            raise self.peer_error


class End:
    """One node: its network and its ear."""

    def __init__(
        self,
        number: int,
        cluster: str = CLUSTER,
        limits: Limits = Limits(),
        secret: Secret = SECRET,
    ) -> None:
        self.id = NodeId(number)
        self.ear = Ear()
        self.network = Network(self.id, cluster, secret, self.ear, limits=limits)
        self.stats = self.network.stats
        self.port = 0

    async def listen(self, port: int = 0) -> None:
        self.port = await self.network.listen(HOST, port)

    def knows(self, other: "End") -> None:
        self.network.set_peer(other.id, HOST, other.port)

    async def close(self) -> None:
        await self.network.close()
        assert not self.network._local.connections
        assert not self.network._local.tasks
        assert not self.network._keeper._sessions
        assert self.network._keeper.open == 0


@asynccontextmanager
async def two_ends(
    limits: Limits = Limits(), others: Limits | None = None
) -> AsyncIterator[tuple[End, End]]:
    """Two nodes that know each other; afterwards, nothing of them is left."""
    before = asyncio.all_tasks()
    one, two = End(1, limits=limits), End(2, limits=others or limits)
    await one.listen()
    await two.listen()
    one.knows(two)
    two.knows(one)
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()
    # Connections that were being accepted are tasks of asyncio's own for an iteration or two.
    await until(lambda: asyncio.all_tasks() == before)


async def until(happened: Callable[[], object]) -> None:
    """Wait for something to happen, which must not take forever."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.002)


async def raises_nothing(step: Awaitable[object]) -> None:
    """Await something whose failure is none of the test's business."""
    await asyncio.gather(step, return_exceptions=True)


def hello(lane: Lane = Lane.CONTROL, node: int = 9, cluster: str = CLUSTER) -> bytes:
    return wire(Kind.HELLO, hello_body(lane, node, cluster))


def hello_body(lane: Lane = Lane.CONTROL, node: int = 9, cluster: str = CLUSTER) -> bytes:
    return Hello(lane, NodeId(node), cluster).encode()


async def shake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    lane: Lane = Lane.CONTROL,
    node: int = 9,
    *,
    secret: Secret = SECRET,
    then: bytes = b"",
) -> None:
    """Do the dialer's part of a handshake by hand; `then` follows in the same segment."""
    said = hello_body(lane, node)
    writer.write(wire(Kind.HELLO, said))
    heard = bytes((await read_frame(reader)).body)
    proof = await read_frame(reader)
    assert proof.kind is Kind.PROOF
    writer.write(wire(Kind.PROOF, secret.prove(Side.DIALER, said, heard)) + then)


async def answer_shake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    node: int = 9,
    *,
    secret: Secret = SECRET,
) -> None:
    """Do the listener's part of a handshake by hand."""
    heard = bytes((await read_frame(reader)).body)
    said = hello_body(Hello.decode(memoryview(heard)).lane, node)
    writer.write(wire(Kind.HELLO, said))
    writer.write(wire(Kind.PROOF, secret.prove(Side.LISTENER, heard, said)))
    assert (await read_frame(reader)).kind is Kind.PROOF


def wire(kind: Kind, body: bytes = b"", call_id: int = 0) -> bytes:
    return b"".join(map(bytes, frame(kind, call_id, [body])))


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read a frame as a program in another language would."""
    header = await reader.readexactly(HEADER_SIZE)
    length = int.from_bytes(header[8:12], "big")
    call_id = int.from_bytes(header[12:20], "big")
    return Frame(Kind(header[5]), call_id, memoryview(await reader.readexactly(length)))
