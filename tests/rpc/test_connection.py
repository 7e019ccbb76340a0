"""Signs of life on one connection, with a transport that does nothing and a clock of our own."""

import asyncio
from collections.abc import Iterable

import pytest
from tests.rpc.ends import CLUSTER, Run

from tidelog.raft.types import NodeId
from tidelog.records import Buffer
from tidelog.rpc.connection import Connection
from tidelog.rpc.frames import HEADER_SIZE, Frame, Hello, Kind, Lane, frame
from tidelog.rpc.limits import Limits, Stats

LIMITS = Limits(silence=10.0)
HELLO = Hello(Lane.CONTROL, NodeId(2), CLUSTER)


class Pipe(asyncio.Transport):
    """A transport that keeps what it is given until a test takes some of it away."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote = b""
        self.held = 0
        self.aborted = False

    def writelines(self, parts: Iterable[Buffer]) -> None:
        data = b"".join(map(bytes, parts))
        self.wrote += data
        self.held += len(data)

    def get_write_buffer_size(self) -> int:
        return self.held

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self if name == "socket" else None

    def setsockopt(self, *option: int) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    @property
    def pings(self) -> int:
        return self.wrote.count(b"".join(map(bytes, frame(Kind.PING, 0, ()))))


class Sitter:
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.reasons: list[str] = []

    def opened(self, connection: Connection) -> None:
        connection.say_hello(HELLO)

    def greeted(self, connection: Connection, hello: Hello) -> bool:
        assert hello == HELLO
        return False

    def proven(self, connection: Connection, proof: bytes) -> None:
        raise AssertionError("no proof was asked for")

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        self.frames.append(frame)

    def lost(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


def receive(connection: Connection, data: bytes) -> None:
    room = connection.get_buffer(-1)
    room[: len(data)] = data
    connection.buffer_updated(len(data))


def bytes_of(kind: Kind, body: bytes = b"") -> bytes:
    return b"".join(map(bytes, frame(kind, 0, [body])))


def ready() -> tuple[Connection, Pipe, Sitter]:
    """A connection whose ends have greeted each other; nothing is in flight."""
    sitter, pipe = Sitter(), Pipe()
    connection = Connection(sitter, LIMITS, Stats(), 1000)
    connection.connection_made(pipe)
    receive(connection, bytes_of(Kind.HELLO, HELLO.encode()))
    assert connection.ready
    pipe.wrote, pipe.held = b"", 0
    return connection, pipe, sitter


def test_nothing_is_sent_on_a_connection_where_nothing_is_due(run: Run) -> None:
    async def main() -> None:
        connection, pipe, _ = ready()
        now = asyncio.get_running_loop().time()
        for later in (1, 10, 100, 10_000):
            connection.check(now + later)
        await asyncio.sleep(0)
        assert not connection.closed
        assert pipe.wrote == b""
        connection.close("the test is over")

    run(main())


def test_a_frame_without_an_answer_is_asked_after_once_and_a_pong_is_enough(run: Run) -> None:
    async def main() -> None:
        connection, pipe, sitter = ready()
        now = asyncio.get_running_loop().time()
        connection.send(Kind.MESSAGE, [b"x"])
        await asyncio.sleep(0)
        pipe.held = 0  # it left
        for later in (1.0, 2.0, 3.0, 4.0):
            connection.check(now + later)
            await asyncio.sleep(0)
            pipe.held = 0
        assert pipe.pings == 1
        receive(connection, bytes_of(Kind.PONG))
        assert sitter.frames == []  # a PONG is not the owner's business
        connection.check(now + 1000)
        assert not connection.closed
        connection.close("the test is over")

    run(main())


def test_silence_ends_the_connection(run: Run) -> None:
    async def main() -> None:
        connection, pipe, _ = ready()
        now = asyncio.get_running_loop().time()
        connection.send(Kind.MESSAGE, [b"x"])
        await asyncio.sleep(0)
        pipe.held = 0
        connection.check(now + 9)
        assert not connection.closed
        connection.check(now + 12)
        assert connection.closed
        assert pipe.aborted
        assert connection._stats.silent_connections == 1

    run(main())


def test_bytes_that_leave_slowly_are_a_sign_of_life_and_bytes_that_stay_are_none(run: Run) -> None:
    async def main() -> None:
        connection, pipe, _ = ready()
        now = asyncio.get_running_loop().time()
        connection.send(Kind.MESSAGE, [bytes(900)])
        await asyncio.sleep(0)
        for _ in range(5):
            now += 9
            pipe.held -= 100
            connection.check(now)
            assert not connection.closed
        connection.check(now + 9)
        assert not connection.closed
        connection.check(now + 11)
        assert connection.closed

    run(main())


def test_a_frame_that_never_ends_is_silence(run: Run) -> None:
    async def main() -> None:
        connection, _, _ = ready()
        now = asyncio.get_running_loop().time()
        receive(connection, bytes_of(Kind.MESSAGE, bytes(100))[:50])
        connection.check(now + 1)
        connection.check(now + 5)
        assert not connection.closed
        connection.check(now + 12)
        assert connection.closed

    run(main())


def test_a_ping_is_answered(run: Run) -> None:
    async def main() -> None:
        connection, pipe, sitter = ready()
        receive(connection, bytes_of(Kind.PING))
        await asyncio.sleep(0)
        assert pipe.wrote == bytes_of(Kind.PONG)
        assert sitter.frames == []
        connection.close("the test is over")

    run(main())


def test_many_frames_of_one_iteration_are_one_write(run: Run) -> None:
    async def main() -> None:
        connection, pipe, _ = ready()
        for number in range(10):
            assert connection.send(Kind.MESSAGE, [bytes([number])])
        assert pipe.wrote == b""
        await asyncio.sleep(0)
        assert len(pipe.wrote) == 10 * (HEADER_SIZE + 1)
        connection.close("the test is over")

    run(main())


def test_a_transport_that_has_enough_is_left_alone_until_it_asks_for_more(run: Run) -> None:
    async def main() -> None:
        connection, pipe, _ = ready()
        connection.pause_writing()
        connection.send(Kind.MESSAGE, [b"x"])
        await asyncio.sleep(0)
        assert pipe.wrote == b""
        assert connection.waiting_bytes == HEADER_SIZE + 1
        connection.resume_writing()
        await asyncio.sleep(0)
        assert pipe.wrote == bytes_of(Kind.MESSAGE, b"x")
        connection.close("the test is over")

    run(main())


def test_frames_wait_for_the_hello_of_the_other_end(run: Run) -> None:
    async def main() -> None:
        sitter, pipe = Sitter(), Pipe()
        connection = Connection(sitter, LIMITS, Stats(), 1000)
        assert connection.send(Kind.MESSAGE, [b"early"])
        connection.connection_made(pipe)
        await asyncio.sleep(0)
        assert pipe.wrote == bytes_of(Kind.HELLO, HELLO.encode())
        receive(connection, bytes_of(Kind.HELLO, HELLO.encode()))
        await asyncio.sleep(0)
        assert pipe.wrote.endswith(bytes_of(Kind.MESSAGE, b"early"))
        connection.close("the test is over")

    run(main())


@pytest.mark.parametrize("reported_first", [True, False])
def test_the_end_is_reported_once(run: Run, reported_first: bool) -> None:
    async def main() -> None:
        connection, _, sitter = ready()
        connection.send(Kind.MESSAGE, [b"x"])
        if reported_first:
            connection.connection_lost(None)
            connection.abandon("too late")
        else:
            connection.abandon("given up")
            await asyncio.sleep(0)
            connection.connection_lost(None)
        await asyncio.sleep(0)
        assert sitter.reasons == ["the other end closed it" if reported_first else "given up"]
        assert not connection.send(Kind.MESSAGE, [b"x"])
        assert connection._stats.dropped_unreachable == 2

    run(main())
