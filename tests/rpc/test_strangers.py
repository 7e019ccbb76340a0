"""Whoever connects with a node, or answers it, may be anybody: raw sockets that do as they like."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from tests.rpc.ends import (
    ECHO,
    HOST,
    PATIENCE,
    End,
    Run,
    answer_shake,
    hello,
    read_frame,
    shake,
    two_ends,
    until,
    wire,
)
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
    "a message instead of a proof": hello() + wire(Kind.MESSAGE, b"x"),
    "a call instead of a proof": hello(Lane.NEWCOMER) + wire(Kind.CALL, METHOD.pack(ECHO), 1),
    "a ping instead of a proof": hello() + wire(Kind.PING),
    "an empty proof": hello() + wire(Kind.PROOF),
    "a proof of zeros": hello() + wire(Kind.PROOF, bytes(32)),
    "a message from a guest": hello(Lane.GUEST) + wire(Kind.MESSAGE, b"x"),
    "a beat from a guest": hello(Lane.GUEST) + wire(Kind.BEAT, b"x"),
    "a proof from a guest": hello(Lane.GUEST) + wire(Kind.PROOF, bytes(32)),
    "a large call from a guest": hello(Lane.GUEST) + wire(Kind.CALL, bytes(1100), 1),
    "half a header and then noise": hello(Lane.GUEST) + b"TIDE" + b"\xff" * 100,
}
# What a node that has proven the secret may still get wrong.
FAULTS = {
    "an answer to nothing": (Lane.CONTROL, wire(Kind.ANSWER, b"x", 1)),
    "a message of no kind": (Lane.CONTROL, wire(Kind.MESSAGE, b"\xff" * 50)),
    "a call without a method": (Lane.CONTROL, wire(Kind.CALL, b"x", 1)),
    "a beat on the data lane": (Lane.DATA, wire(Kind.BEAT, b"x")),
    "a message from a newcomer": (Lane.NEWCOMER, wire(Kind.MESSAGE, b"x")),
    "a second proof": (Lane.CONTROL, wire(Kind.PROOF, bytes(32))),
    "noise": (Lane.CONTROL, b"TIDE" + b"\xff" * 100),
}


def one_line_about_it(caplog: pytest.LogCaptureFixture) -> None:
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "closed the connection from" in lines[0].message


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
            assert not two.ear.beats
            assert not two.ear.callers
            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"

    run(main())
    one_line_about_it(caplog)


@pytest.mark.parametrize(("lane", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_node_that_sends_garbage_is_closed_with_one_log_line(
    run: Run, caplog: pytest.LogCaptureFixture, lane: Lane, fault: bytes
) -> None:
    async def main() -> None:
        async with two_ends() as (one, two):
            async with dial(two) as (reader, writer):
                await shake(reader, writer, lane, then=fault)
                await closed(reader)
            await until(lambda: two.network._keeper.open == 0)
            assert two.stats.corrupt_connections == 1
            assert two.stats.handler_errors == 0
            assert not two.ear.heard
            assert await one.network.call(TWO, ECHO, b"fine", PATIENCE) == b"fine"

    run(main())
    one_line_about_it(caplog)


def test_a_stranger_that_says_nothing_is_closed(run: Run) -> None:
    async def main() -> None:
        async with (
            two_ends(replace(QUICK, handshake=0.1)) as (_, two),
            dial(two) as (reader, _),
        ):
            assert await closed(reader) == b""
            await until(lambda: two.network._keeper.open == 0)

    run(main())


def test_a_node_that_says_hello_and_proves_nothing_is_closed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            two_ends(replace(QUICK, handshake=0.1)) as (_, two),
            dial(two) as (reader, writer),
        ):
            writer.write(hello())
            await closed(reader)
            await until(lambda: two.network._keeper.open == 0)
            assert two.stats.accepts == 0

    run(main())


def test_strangers_push_out_the_oldest_of_them_and_never_a_node(run: Run) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, strangers=2, handshake=600.0)) as (one, two):
            assert await one.network.call(TWO, ECHO, b"before", PATIENCE) == b"before"
            async with dial(two) as (oldest, _), dial(two) as (_, guest):
                guest.write(hello(Lane.GUEST))
                await until(lambda: two.network._keeper.open == 3)
                async with dial(two):
                    assert await closed(oldest) == b""
                    assert await one.network.call(TWO, ECHO, b"while", PATIENCE) == b"while"
                    one.network.send(TWO, large_append(1, 2, 1, 100))
                    await until(lambda: two.ear.seqs == [1])
            assert two.stats.evicted_strangers >= 1
            assert two.stats.refused_connections == 0

    run(main())


def test_a_host_with_many_connections_gives_way_to_one_with_few() -> None:
    async def main() -> None:
        end = End(2, limits=Limits(strangers=3))
        keeper = end.network._keeper
        hosts = ["few", "many", "many", "many"]
        for _ in hosts:
            keeper.admit()
        sessions = list(keeper._strangers)
        for session, host in zip(sessions, hosts, strict=True):
            session.host = host
        assert keeper.has_room(sessions[-1])
        assert [each.host for each in keeper._strangers] == ["few", "many", "many"]
        await end.close()

    asyncio.run(main())


def test_nodes_beyond_the_limit_are_refused_and_the_others_served(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with two_ends(replace(QUICK, inbound_connections=2)) as (one, two):
            assert await one.network.call(TWO, ECHO, b"before", PATIENCE) == b"before"
            async with dial(two) as streams:
                await shake(*streams, node=8)
                await until(lambda: two.stats.accepts == 2)
                async with dial(two) as (reader, _):
                    assert await closed(reader) == b""
                assert await one.network.call(TWO, ECHO, b"while", PATIENCE) == b"while"
            await until(lambda: two.network._keeper.open == 1)
            assert two.stats.refused_connections == 1

    run(main())
    assert "2 are open, which is the limit" in caplog.text


def test_a_guest_is_served_and_its_lane_is_told(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two), dial(two) as (reader, writer):
            writer.write(hello(Lane.GUEST) + wire(Kind.CALL, METHOD.pack(ECHO) + b"a", 5))
            assert (await read_frame(reader)).kind is Kind.HELLO
            answer = await read_frame(reader)
            assert (answer.kind, answer.call_id, answer.body) == (Kind.ANSWER, 5, b"a")
            assert two.ear.lanes == [Lane.GUEST]

    run(main())


def test_a_node_that_connects_again_takes_the_place_of_its_former_self(run: Run) -> None:
    async def main() -> None:
        async with two_ends() as (_, two), dial(two) as (old_reader, old):
            await shake(old_reader, old)
            await until(lambda: two.stats.accepts == 1)
            async with dial(two) as (reader, new):
                await shake(reader, new, then=wire(Kind.BEAT, b"ab"))
                assert await closed(old_reader) == b""
                assert (await read_frame(reader)).body == b"ba"

    run(main())


def test_a_stranger_takes_the_place_of_no_node(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (one, two):
            assert await one.network.call(TWO, ECHO, b"before", PATIENCE) == b"before"
            async with dial(two) as (reader, writer):
                writer.write(hello(node=1) + wire(Kind.PROOF, bytes(32)))
                await closed(reader)
            assert await one.network.call(TWO, ECHO, b"after", PATIENCE) == b"after"
            assert one.stats.connects == 1

    run(main())


def test_a_large_frame_right_behind_the_proof_is_taken(run: Run) -> None:
    async def main() -> None:
        async with two_ends(QUICK) as (_, two), dial(two) as (reader, writer):
            call = wire(Kind.CALL, METHOD.pack(ECHO) + bytes(1_000_000), 5)
            await shake(reader, writer, then=wire(Kind.BEAT, b"ab") + call)
            assert (await read_frame(reader)).body == b"ba"
            assert len((await read_frame(reader)).body) == 1_000_000

    run(main())


@pytest.mark.parametrize("lane", [Lane.GUEST, Lane.NEWCOMER])
def test_a_caller_that_never_reads_is_bounded(run: Run, lane: Lane) -> None:
    async def main() -> None:
        limits = replace(QUICK, control_bytes=100_000, silence=600.0)
        async with two_ends(limits) as (_, two), dial(two) as (reader, writer):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if lane is Lane.GUEST:
                writer.write(hello(lane))
                assert (await read_frame(reader)).kind is Kind.HELLO
            else:
                await shake(reader, writer, lane)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            size, most = (1000, 20_000) if lane is Lane.GUEST else (50_000, 200_000)
            call = wire(Kind.CALL, METHOD.pack(ECHO) + bytes(size), 1)

            async def fill() -> None:
                while two.stats.dropped_full < 5:
                    writer.write(call)
                    await writer.drain()
                    (connection,) = two.network._local.connections
                    assert connection.waiting_bytes < most

            async with asyncio.timeout(PATIENCE):
                await fill()

    run(main())


def test_a_call_does_not_wait_behind_a_peer_that_never_reads(run: Run) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_shake(reader, writer)
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
        await answer_shake(reader, writer)
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


async def not_a_node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await closed(reader)


async def calls_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await answer_shake(reader, writer)
    writer.write(wire(Kind.CALL, b"\x00" * 4, 1))
    await closed(reader)


async def proves_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_frame(reader)
    writer.write(hello(node=9) + wire(Kind.ANSWER, b"welcome", 1))
    await closed(reader)


@pytest.mark.parametrize("talk", [not_a_node, calls_back, proves_nothing])
def test_a_server_that_is_no_node_is_unreachable(run: Run, talk: Talk) -> None:
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
                    accepted = two.stats.accepts
                    await shake(reader, writer, lane)
                    await until(lambda: two.stats.accepts > accepted)  # noqa: B023
                    received = two.stats.bytes_received
                    writer.write(wire(Kind.MESSAGE, body)[:-1])
                    await until(lambda: two.stats.bytes_received >= received + len(body))  # noqa: B023
                await until(lambda: two.network._keeper.open == 0)
            assert not two.ear.heard
            assert two.stats.corrupt_connections == 0

    run(main())
