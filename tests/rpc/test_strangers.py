"""Whoever connects with a node, or answers it, may be anybody: raw sockets that do as they like."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from tests.rpc.ends import ECHO, HOST, PATIENCE, End, Run, hello, read_frame, two_ends, until, wire
from tests.rpc.letters import append, large_append

from tidelog.raft.types import NodeId
from tidelog.rpc import Limits, Unreachable
from tidelog.rpc.codec import encode
from tidelog.rpc.frames import Kind, Lane
from tidelog.rpc.incoming import METHOD

ONE, TWO, NINE = NodeId(1), NodeId(2), NodeId(9)
QUICK = Limits(backoff_first=0.01, backoff_most=0.05)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def dial(
    end: End,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HOST, end.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[int]:
    """Somebody who listens and is no node."""
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    listener = await asyncio.start_server(serve, HOST, 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Wait for the other end to hang up; return what it said before."""
    said = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while part := await reader.read(1 << 16):
                said += part
    return said


GARBAGE = {
    "noise": b"\x00" * 100,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a message before the hello": wire(Kind.MESSAGE, b"x"),
    "a hello of 1 MiB": wire(Kind.HELLO, bytes(1 << 20)),
    "a hello of nothing": wire(Kind.HELLO),
    "a second hello": hello() + hello(),
    "an answer to nothing": hello() + wire(Kind.ANSWER, b"x", 1),
    "a message of no kind": hello() + wire(Kind.MESSAGE, b"\xff" * 50),
    "a call without a method": hello() + wire(Kind.CALL, b"x", 1),
    "a beat on the data lane": hello(Lane.DATA) + wire(Kind.BEAT, b"x"),
    "a message from a guest": hello(Lane.GUEST) + wire(Kind.MESSAGE, b"x"),
    "half a header and then noise": hello() + b"TIDE" + b"\xff" * 100,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_stranger_that_sends_garbage_is_closed_with_one_log_line(
    run: Run, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            async with dial(two) as (reader, writer):
                writer.write(garbage)
                await closed(reader)
            await until(lambda: two.network._keeper.open == 0)
            assert two.stats.corrupt_connections == 1
            assert two.stats.handler_errors == 0
            assert not two.ear.heard
            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"

    run(main())
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "closed the connection from" in lines[0].message


def test_a_stranger_that_says_nothing_is_closed(run: Run) -> None:
    async def main() -> None:
        async with (
            two_ends(replace(QUICK, handshake=0.1)) as (_, two),
            dial(two) as (reader, _),
        ):
            assert await closed(reader) == b""
            await until(lambda: two.network._keeper.open == 0)

    run(main())


def test_strangers_beyond_the_limit_are_refused_and_the_others_served(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, inbound_connections=3)) as (one, two):
            assert await one.network.call(TWO, ECHO, b"before", PATIENCE) == b"before"
            async with dial(two), dial(two):
                await until(lambda: two.network._keeper.open == 3)
                async with dial(two) as (reader, _):
                    assert await closed(reader) == b""
                assert await one.network.call(TWO, ECHO, b"while", PATIENCE) == b"while"
            await until(lambda: two.network._keeper.open == 1)
            async with dial(two) as (reader, writer):
                writer.write(hello(Lane.GUEST) + wire(Kind.CALL, METHOD.pack(ECHO) + b"a", 5))
                assert (await read_frame(reader)).kind is Kind.HELLO
                answer = await read_frame(reader)
                assert (answer.kind, answer.call_id, answer.body) == (Kind.ANSWER, 5, b"a")
            assert two.stats.refused_connections == 1

    run(main())
    assert "3 are open, which is the limit" in caplog.text


def test_a_node_that_connects_again_takes_the_place_of_its_former_self(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (_, two), dial(two) as (old_reader, old):
            old.write(hello())
            assert (await read_frame(old_reader)).kind is Kind.HELLO
            async with dial(two) as (reader, new):
                new.write(hello() + wire(Kind.BEAT, b"ab"))
                assert await closed(old_reader) == b""
                assert (await read_frame(reader)).kind is Kind.HELLO
                assert (await read_frame(reader)).body == b"ba"

    run(main())


def test_a_stranger_that_calls_and_never_reads_is_bounded(run: Run) -> None:
    async def main() -> None:
        limits = replace(QUICK, control_bytes=100_000, silence=600.0)
        async with two_ends(limits) as (_, two), dial(two) as (reader, writer):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(hello(Lane.GUEST))
            assert (await read_frame(reader)).kind is Kind.HELLO
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            call = wire(Kind.CALL, METHOD.pack(ECHO) + bytes(50_000), 1)

            async def fill() -> None:
                while two.stats.dropped_full < 5:
                    writer.write(call)
                    await writer.drain()
                    (connection,) = two.network._local.connections
                    assert connection.waiting_bytes < 200_000

            async with asyncio.timeout(PATIENCE):
                await fill()

    run(main())


def test_a_call_does_not_wait_behind_a_peer_that_never_reads(run: Run) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(hello(node=9))
        await asyncio.Event().wait()

    async def main() -> None:
        limits = replace(QUICK, data_bytes=1 << 20, silence=1.0)
        async with two_ends(limits) as (one, _), server(talk) as port:
            one.network.set_peer(NINE, HOST, port)
            sent = 0

            def given_up() -> bool:
                nonlocal sent
                if one.stats.silent_connections == 0:
                    sent += 1
                    one.network.send(NINE, large_append(1, 9, sent, 500_000))
                waiting = sum(each.waiting_bytes for each in one.network._local.connections)
                assert waiting < (2 << 20)
                return one.stats.silent_connections > 0

            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"
            await until(given_up)
            assert one.stats.dropped_full > 0
            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"

    run(main())


def test_a_peer_that_greets_and_hangs_up_is_left_alone_for_longer_each_time(run: Run) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(hello(node=9))
        await writer.drain()
        writer.close()

    async def main() -> None:
        # A connection that lasts as long as the longest pause would be a success.
        limits = Limits(backoff_first=0.001, backoff_most=100.0)
        async with two_ends(limits) as (one, _), server(talk) as port:
            one.network.set_peer(NINE, HOST, port)
            channel = one.network._peers[NINE].control

            def flapped() -> bool:
                one.network.send(NINE, append(1, 9, 1))
                return one.ear.peers.count("-9") > 4

            await until(flapped)
            assert channel._attempts > 4

    run(main())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", hello(node=9) + wire(Kind.CALL, b"\x00" * 4, 1)],
    ids=["not a node", "a call that comes back"],
)
def test_a_server_that_is_no_node_is_unreachable(run: Run, answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await closed(reader)

    async def main() -> None:
        async with two_ends(QUICK) as (one, _), server(talk) as port:
            one.network.set_peer(NINE, HOST, port)
            with pytest.raises(Unreachable):
                await one.network.call(NINE, ECHO, b"", PATIENCE)
            assert one.stats.corrupt_connections > 0

    run(main())


def test_a_message_that_is_cut_off_reaches_nobody(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (_, two):
            body = b"".join(map(bytes, encode(large_append(9, 2, 1, 100_000))))
            for lane in (Lane.CONTROL, Lane.DATA):
                async with dial(two) as (reader, writer):
                    writer.write(hello(lane))
                    assert (await read_frame(reader)).kind is Kind.HELLO
                    received = two.stats.bytes_received
                    writer.write(wire(Kind.MESSAGE, body)[:-1])
                    await until(lambda: two.stats.bytes_received >= received + len(body))  # noqa: B023
                await until(lambda: two.network._keeper.open == 0)
            assert not two.ear.heard
            assert two.stats.corrupt_connections == 0

    run(main())
