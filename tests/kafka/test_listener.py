"""The listener with real sockets: frames, order, bounds, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import (
    FETCH,
    NEWEST_PRODUCE,
    PATIENCE,
    PRODUCE,
    Broker,
    batch,
    broker,
    run,
    values_of,
)
from tests.kafka.desk import build, versions

from tidelog.cluster.model import Address
from tidelog.kafka import KafkaServer, Limits, codec

API_VERSIONS, METADATA = 18, 3
HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def listening(
    data: Path, limits: Limits | None = None
) -> AsyncIterator[tuple[Broker, KafkaServer]]:
    """Run a node with a listener."""
    async with broker(data) as node:
        server = KafkaServer(
            node.node, host=HOST, port=0, advertised=Address(HOST, 0), limits=limits
        )
        await server.start()
        try:
            yield node, server
        finally:
            await server.stop()


class Client:
    """A client that writes bytes as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0

    @classmethod
    async def connect(cls, server: KafkaServer) -> Client:
        return cls(*await asyncio.open_connection(HOST, server.advertised.port))

    def frame(self, api_key: int, version: int, body: bytes, client_id: bytes = b"me") -> bytes:
        self._sent += 1
        head = struct.pack(">hhih", api_key, version, self._sent, len(client_id)) + client_id
        if codec.is_request_flexible(api_key, version):
            head += b"\x00"
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, api_key: int, version: int, **fields: Any) -> None:
        body = codec.encode(build(api_key, version, **fields))
        self.writer.write(self.frame(api_key, version, body))

    async def receive(self, api_key: int, version: int) -> tuple[int, Any]:
        """Return the correlation id of the next answer, and the answer."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        data = await self.reader.readexactly(size)
        (correlation_id,) = struct.unpack_from(">i", data)
        start = 5 if codec.is_response_flexible(api_key, version) else 4
        return correlation_id, Broker.read(api_key, version, data[start:])

    async def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        self.send(api_key, version, **fields)
        return (await self.receive(api_key, version))[1]

    async def is_closed(self) -> bool:
        """Wait for the end; whatever came before it is dropped."""
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self.reader.read(), 20)
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def produce_fields(node: Broker, *values: bytes, acks: int = -1) -> dict[str, Any]:
    records = bytes(batch(*values).data)
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": PATIENCE,
        "topic_data": [node.topic_fields("t", partition_data=[{"index": 0, "records": records}])],
    }


def fetch_fields(node: Broker, offset: int, **fields: Any) -> dict[str, Any]:
    values = {
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "topics": [
            node.topic_fields(
                "t",
                partitions=[
                    {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                ],
            )
        ],
        "forgotten_topics_data": [],
    }
    return values | fields


@pytest.mark.parametrize("version", versions(API_VERSIONS))
def test_what_is_announced_is_what_is_served(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (_, server):
            client = await Client.connect(server)
            answer = await client.ask(
                API_VERSIONS, version, client_software_name="me", client_software_version="1"
            )
            told = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
            announced = server.table.announced
            assert told == {api.key: (api.min_version, api.max_version) for api in announced}
            assert told[PRODUCE] == (3, 13)
            assert told[FETCH] == (4, 18)
            await client.close()

    run(story())


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (_, server):
            client = await Client.connect(server)
            head = struct.pack(">hhih", API_VERSIONS, 99, 5, 2) + b"me" + bytes(8)
            client.writer.write(struct.pack(">i", len(head)) + head)
            correlation_id, answer = await client.receive(API_VERSIONS, 0)
            assert (correlation_id, answer.error_code) == (5, ErrorCode.unsupported_version)
            assert [each.api_key for each in answer.api_keys] == [API_VERSIONS]
            await client.close()

    run(story())


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">ihhih", 10, PRODUCE, 99, 1, -1),  # a version that is not served
        struct.pack(">ihhih", 10, 999, 0, 1, -1),  # an API that does not exist
        struct.pack(">ihhih", 10, METADATA, 0, 1, 500),  # a client id that lies
        struct.pack(">ihhih", 10, API_VERSIONS, 99, 1, 500),
        struct.pack(">ihhih", -5, METADATA, 0, 1, -1),
        struct.pack(">ihhih", 3, METADATA, 0, 1, -1),
        struct.pack(">ihhih", 2**31 - 1, METADATA, 0, 1, -1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody speaks TLS
    ],
)
def test_what_is_no_request_closes_that_connection_only(tmp_path: Path, sent: bytes) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (_, server):
            good, bad = await Client.connect(server), await Client.connect(server)
            bad.writer.write(sent)
            assert await bad.is_closed()
            assert server.stats.malformed == 1
            assert (await good.ask(METADATA, 1, topics=[])).brokers
            await bad.close()
            await good.close()
            await until(lambda: server.inflight_bytes == 0)

    run(story())


def test_requests_may_come_in_any_pieces(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            client = await Client.connect(server)
            fields = produce_fields(node, b"x" * 100)
            frames = b"".join(
                client.frame(
                    PRODUCE, NEWEST_PRODUCE, codec.encode(build(PRODUCE, NEWEST_PRODUCE, **fields))
                )
                for _ in range(4)
            )
            for start in range(0, len(frames), 7):
                client.writer.write(frames[start : start + 7])
                await client.writer.drain()
                await asyncio.sleep(0)
            for number in range(4):
                correlation_id, answer = await client.receive(PRODUCE, NEWEST_PRODUCE)
                told = answer.responses[0].partition_responses[0]
                assert (correlation_id, told.base_offset) == (number + 1, number)
            await client.close()

    run(story())


def test_a_large_batch_is_received_where_it_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            client = await Client.connect(server)
            fields = produce_fields(node, b"x" * 900_000)
            answer = await client.ask(PRODUCE, NEWEST_PRODUCE, **fields)
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
            assert values_of(await node.fetch(0, partition_max_bytes=1 << 21)) == [
                (0, b"x" * 900_000)
            ]
            await client.close()
            await until(lambda: server.inflight_bytes == 0)

    run(story())


def test_answers_leave_in_the_order_of_requests(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            client = await Client.connect(server)
            expected = []
            for number in range(5):
                client.send(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"%d" % number))
                expected.append((PRODUCE, NEWEST_PRODUCE))
                client.send(METADATA, 1, topics=[])
                expected.append((METADATA, 1))
                client.send(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"x", acks=0))
                client.send(FETCH, 18, **fetch_fields(node, 0))
                expected.append((FETCH, 18))
            ids = [(await client.receive(*each))[0] for each in expected]
            assert ids == sorted(ids)
            assert len(values_of(await node.fetch(0))) == 10
            await client.close()

    run(story())


def test_a_fetch_that_waits_does_not_hold_up_other_clients(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            reader, writer = await Client.connect(server), await Client.connect(server)
            reader.send(FETCH, 18, **fetch_fields(node, 0, max_wait=timedelta(seconds=30)))
            answer = await writer.ask(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"x"))
            assert answer.responses[0].partition_responses[0].base_offset == 0
            _, fetched = await reader.receive(FETCH, 18)
            assert values_of(fetched.responses[0].partitions[0]) == [(0, b"x")]
            await reader.close()
            await writer.close()

    run(story())


def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            client = await Client.connect(server)
            client.send(FETCH, 18, **fetch_fields(node, 0, max_wait=timedelta(seconds=30)))
            await until(lambda: len(node.partition()._watchers) == 2, "the wait")
            await client.close()
            await until(lambda: len(node.partition()._watchers) == 1, "its end")
            await until(lambda: server.stats.connections == 0)
            assert (server.inflight_bytes, server.stats.failed) == (0, 0)

    run(story())


def test_an_unacknowledged_write_to_the_wrong_place_closes_the_connection(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            client = await Client.connect(server)
            client.send(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"x", acks=0))
            assert await client.is_closed()
            assert server.stats.failed == 0
            await client.close()
            await until(lambda: server.inflight_bytes == 0)

    run(story())


def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path, Limits(max_connections=2)) as (_, server):
            clients = [await Client.connect(server) for _ in range(2)]
            await until(lambda: server.stats.connections == 2)
            third = await Client.connect(server)
            assert await third.is_closed()
            assert server.stats.refused == 1
            for client in (*clients, third):
                assert client is third or (await client.ask(METADATA, 1, topics=[])).brokers
                await client.close()

    run(story())


def test_a_client_that_never_reads_is_closed_when_memory_is_needed(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(response_high_water=64 * 1024, max_unread_bytes=256 * 1024)
        async with listening(tmp_path, limits) as (node, server):
            await node.create()
            for _ in range(4):
                await node.produce(batch(b"x" * 900_000))
            greedy, modest = await Client.connect(server), await Client.connect(server)
            for _ in range(40):
                greedy.send(FETCH, 18, **fetch_fields(node, 0))
            cast(Any, greedy.writer.transport).pause_reading()
            await until(lambda: server.stats.unread == 1, "the end of patience")
            fetched = await modest.ask(FETCH, 18, **fetch_fields(node, 0))
            assert fetched.responses[0].partitions[0].high_watermark == 4
            greedy.writer.transport.abort()
            await modest.close()

    run(story())


async def send_slowly(client: Client, length: int, at_once: int) -> None:
    """Send most of a Produce request at once and the rest byte by byte, until it is refused."""
    client.writer.write(struct.pack(">ihhih", length, PRODUCE, 9, 1, -1) + bytes(at_once))
    with contextlib.suppress(ConnectionError):
        while not client.writer.transport.is_closing():
            client.writer.write(b"\0")
            await client.writer.drain()
            await asyncio.sleep(0.01)


SLOW = Limits(
    max_inflight_bytes=200_000, least_rate=100_000, stall_timeout=0.2, sweep_interval=0.05
)


def test_small_requests_pass_while_slow_large_ones_fill_the_memory(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path, replace(SLOW, stall_timeout=1000.0)) as (node, server):
            await node.create()
            slow = [await Client.connect(server) for _ in range(3)]
            senders = [asyncio.create_task(send_slowly(each, 1_000_000, 99_000)) for each in slow]
            await until(lambda: server.inflight_bytes > 200_000, "the memory is full")
            good = await Client.connect(server)
            assert (await good.ask(METADATA, 1, topics=[])).brokers
            answer = await good.ask(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"small"))
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none
            # A small request may come in pieces as well.
            whole = good.frame(METADATA, 1, codec.encode(build(METADATA, 1, topics=[])))
            for piece in (whole[:9], whole[9:]):
                good.writer.write(piece)
                await asyncio.sleep(0.05)
            assert (await good.receive(METADATA, 1))[1].brokers
            assert server.stats.stalled == 0
            for client, sender in zip(slow, senders, strict=True):
                client.writer.transport.abort()
                await sender
            await until(lambda: server.inflight_bytes == 0)
            await good.close()

    run(story())


def test_a_request_that_only_trickles_is_closed_and_large_ones_pass_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with listening(tmp_path, SLOW) as (node, server):
            await node.create()
            slow = [await Client.connect(server) for _ in range(3)]
            senders = [asyncio.create_task(send_slowly(each, 1_000_000, 99_000)) for each in slow]
            await until(lambda: server.inflight_bytes > 200_000, "the memory is full")
            good = await Client.connect(server)
            answer = await good.ask(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"x" * 150_000))
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none
            assert server.stats.stalled >= 1
            assert "too slowly" in caplog.text
            for client, sender in zip(slow, senders, strict=True):
                client.writer.transport.abort()
                await sender
            await until(lambda: server.inflight_bytes == 0)
            await good.close()

    run(story())


def test_a_request_that_trickles_is_closed_though_there_is_memory(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(least_rate=100_000, request_patience=0.2, sweep_interval=0.05)
        async with listening(tmp_path, limits) as (_, server):
            slow = await Client.connect(server)
            # What came quickly at first does not pay for what comes slowly later.
            await asyncio.wait_for(send_slowly(slow, 1_000_000, 900_000), PATIENCE.total_seconds())
            assert server.stats.stalled == 1
            assert server.inflight_bytes == 0
            await slow.close()

    run(story())


def test_a_client_that_waits_for_its_own_request_is_not_slow(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(least_rate=100_000, request_patience=0.5, sweep_interval=0.02)
        async with listening(tmp_path, limits) as (node, server):
            await node.create()
            client = await Client.connect(server)
            waits = fetch_fields(node, 0) | {"max_wait": timedelta(seconds=2), "min_bytes": 1}
            client.send(FETCH, 18, **waits)
            # The second request waits for the first, so the third is not read to its end.
            client.send(METADATA, 1, topics=[])
            whole = client.frame(METADATA, 1, codec.encode(build(METADATA, 1, topics=[])))
            client.writer.write(whole[:-1])
            await client.receive(FETCH, 18)
            client.writer.write(whole[-1:])
            for _ in range(2):
                assert (await client.receive(METADATA, 1))[1].brokers
            assert server.stats.stalled == 0
            await client.close()

    run(story())


def test_silent_clients_are_closed_after_a_while(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(idle_timeout=0.1, stall_timeout=0.05, sweep_interval=0.02)
        async with listening(tmp_path, limits) as (_, server):
            client = await Client.connect(server)
            assert await client.is_closed()
            assert server.stats.idle == 1
            await client.close()

    run(story())


def test_nobody_is_let_in_before_the_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            server = KafkaServer(node.node, host=HOST, port=0, advertised=Address(HOST, 0))
            port = await server.bind()
            assert port == server.advertised.port > 0
            with pytest.raises(ConnectionError):
                await Client.connect(server)
            assert await server.start() == port
            client = await Client.connect(server)
            assert (await client.ask(METADATA, 1, topics=[])).brokers
            await client.close()
            await server.stop()

    run(story())


def test_a_stop_finishes_what_was_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening(tmp_path) as (node, server):
            await node.create()
            client = await Client.connect(server)
            for number in range(3):
                client.send(PRODUCE, NEWEST_PRODUCE, **produce_fields(node, b"%d" % number))
            await until(lambda: server.stats.requests == 3)
            await server.stop()
            for number in range(3):
                _, answer = await client.receive(PRODUCE, NEWEST_PRODUCE)
                assert answer.responses[0].partition_responses[0].base_offset == number
            assert await client.is_closed()
            await client.close()

    run(story())
