"""Writing: in order, without doubles, in batches that fit, with an end to every retry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2
from kio.schema.errors import ErrorCode
from tests.client.scripted import ScriptedBroker, produced, producer_id

from tidelog.client import ClientError, Cluster, Producer, Refused, TimedOut, Written
from tidelog.client.messages import Api
from tidelog.client.partitioner import murmur2, partition_of
from tidelog.records import Batch, read_records


class Appender:
    """The log of one partition, as a leader keeps it: answers doubles with their old offset."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.batches: dict[tuple[int, int], int] = {}  # producer and sequence to base offset
        self.seen: list[Batch] = []

    def append(self, request: Any) -> int:
        batch = batch_of(request)
        self.seen.append(batch)
        place = (batch.producer_id, batch.base_sequence)
        if place in self.batches:
            return self.batches[place]
        base = len(self.values)
        self.batches[place] = base
        self.values += [record.value or b"" for record in read_records(batch)]
        return base


def batch_of(request: Any) -> Batch:
    return Batch.parse(request.topic_data[0].partition_data[0].records)


def with_broker(work: Callable[[ScriptedBroker, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker, Cluster(broker.bootstrap, timeout=5) as cluster:
            broker.on(Api.INIT_PRODUCER_ID, producer_id)
            await work(broker, cluster)

    asyncio.run(main())


def test_records_arrive_in_order_and_know_their_offsets() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        log = Appender()
        broker.on(Api.PRODUCE, lambda r, make: produced(make, r, base_offset=log.append(r)))
        async with Producer(cluster) as producer:
            futures = [await producer.send("orders", b"%d" % n) for n in range(100)]
            written: list[Written] = await asyncio.gather(*futures)
        assert log.values == [b"%d" % n for n in range(100)]
        assert [each.offset for each in written] == list(range(100))
        sequences = [batch.base_sequence for batch in log.seen]
        counts = [batch.count for batch in log.seen]
        assert sequences == [sum(counts[:place]) for place in range(len(counts))]

    with_broker(work)


def test_a_lost_answer_does_not_double_a_record() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        log = Appender()
        losses = iter([True, False, True, False, False])

        def handler(request: Any, make: Any) -> Any:
            base = log.append(request)
            return None if next(losses) else produced(make, request, base_offset=base)

        broker.on(Api.PRODUCE, handler)
        async with Producer(cluster) as producer:
            places = [(await producer.write("orders", value)).offset for value in (b"a", b"b")]
        assert (places, log.values) == ([0, 1], [b"a", b"b"])
        assert len(log.seen) == 4

    with_broker(work)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.request_timed_out,
    ],
)
def test_a_passing_error_is_tried_again(code: ErrorCode) -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        codes = iter((code, code, ErrorCode.none))
        broker.on(Api.PRODUCE, lambda r, make: produced(make, r, error=next(codes), base_offset=3))
        async with Producer(cluster) as producer:
            assert (await producer.write("orders", b"x")).offset == 3
        sent = [batch_of(request).base_sequence for request in broker.requests(Api.PRODUCE)]
        assert sent == [0, 0, 0]

    with_broker(work)


def test_a_record_that_is_too_large_fails_alone() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        log = Appender()

        def handler(request: Any, make: Any) -> Any:
            if batch_of(request).size > 400:
                return produced(make, request, error=ErrorCode.message_too_large, base_offset=-1)
            return produced(make, request, base_offset=log.append(request))

        broker.on(Api.PRODUCE, handler)
        async with Producer(cluster, linger=0.05) as producer:
            values = [b"a" * 50, b"b" * 50, b"c" * 5000, b"d" * 50]
            futures = [await producer.send("orders", value) for value in values]
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert log.values == [values[0], values[1], values[3]]
        assert [type(each) for each in results] == [Written, Written, Refused, Written]
        assert "max.message.bytes" in str(results[2])

    with_broker(work)


def test_a_batch_that_is_given_up_does_not_spoil_those_after_it() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        ids = iter((9, 10))
        broker.on(
            Api.INIT_PRODUCER_ID,
            lambda request, make: make(
                "InitProducerIdResponse",
                throttle_time=producer_id(request, make).throttle_time,
                error_code=ErrorCode.none,
                producer_id=next(ids),
                producer_epoch=0,
            ),
        )
        codes = iter((ErrorCode.none, ErrorCode.out_of_order_sequence_number, ErrorCode.none))
        broker.on(Api.PRODUCE, lambda r, make: produced(make, r, error=next(codes)))
        async with Producer(cluster) as producer:
            await producer.write("orders", b"a")
            with pytest.raises(ClientError, match="lost count"):
                await producer.write("orders", b"b")
            await producer.write("orders", b"c")
        sent = [batch_of(request) for request in broker.requests(Api.PRODUCE)]
        assert [(each.producer_id, each.base_sequence) for each in sent] == [
            (9, 0),
            (9, 1),
            (10, 0),
        ]

    with_broker(work)


def test_records_that_make_no_batch_fail_and_the_next_ones_do_not() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.on(Api.PRODUCE, lambda r, make: produced(make, r))
        async with Producer(cluster) as producer:
            with pytest.raises(ClientError, match="make no batch"):
                await (await producer.send("orders", b"x", timestamp=2**70))
            assert (await producer.write("orders", b"y")).offset == 0

    with_broker(work)


def test_an_old_double_counts_as_written() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        code = ErrorCode.duplicate_sequence_number
        broker.on(Api.PRODUCE, lambda r, make: produced(make, r, error=code, base_offset=-1))
        async with Producer(cluster) as producer:
            assert (await producer.write("orders", b"a")).offset == -1

    with_broker(work)


def test_retrying_ends_when_the_time_for_delivery_is_over() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.on(Api.PRODUCE, lambda r, make: None)
        async with Producer(cluster, delivery_seconds=0.3) as producer:
            with pytest.raises(TimedOut, match="closed the connection"):
                await producer.write("orders", b"a")

    with_broker(work)


def test_the_buffer_is_bounded_and_sending_waits_for_room() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        gate = asyncio.Event()
        log = Appender()

        async def slow(request: Any, make: Any) -> Any:
            await gate.wait()
            return produced(make, request, base_offset=log.append(request))

        broker.on(Api.PRODUCE, slow)
        async with Producer(cluster, max_buffered=1000) as producer:
            accepted: list[asyncio.Future[Written]] = []

            async def fill() -> None:
                while len(accepted) < 10:
                    accepted.append(await producer.send("orders", bytes(200)))

            filling = asyncio.ensure_future(fill())
            await asyncio.sleep(0.1)
            assert len(accepted) == 4  # 232 bytes each
            gate.set()
            await filling
            await asyncio.gather(*accepted)
        assert len(log.values) == 10

    with_broker(work)


def test_with_acks_0_nobody_waits_for_an_answer() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        arrived = asyncio.Event()

        async def silent(request: Any, make: Any) -> Any:
            arrived.set()
            await asyncio.sleep(60)

        broker.on(Api.PRODUCE, silent)
        async with Producer(cluster, acks=0) as producer:
            assert (await producer.write("orders", b"a")).offset == -1
            await asyncio.wait_for(arrived.wait(), 5)
        request = broker.requests(Api.PRODUCE)[0]
        assert (request.acks, batch_of(request).producer_id) == (0, -1)

    with_broker(work)


def test_idempotence_needs_a_quorum() -> None:
    with pytest.raises(ClientError, match="acks=all"):
        Producer(Cluster("localhost"), acks=1, idempotent=True)


@given(st.binary(max_size=64))
def test_keys_go_where_kafkas_own_clients_send_them(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF
    assert partition_of(key, 12) == (kafka_murmur2(key) & 0x7FFFFFFF) % 12
