"""Reading: in order, across leader changes, truncations, cut batches and aborted transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.client.scripted import NONE, ScriptedBroker, fetched

from tidelog.client import EARLIEST, Cluster, Fetcher, Refused, TopicPartition, Unsupported
from tidelog.client.fetcher import whole_batches, without_aborted
from tidelog.client.messages import Api
from tidelog.records import (
    Batch,
    CorruptBatch,
    MarkerType,
    Offset,
    Record,
    Term,
    TimestampType,
    build_batch,
    transaction_marker,
)

ORDERS = TopicPartition("orders", 0)


def batch(base: int, count: int, term: int = 1, **settings: Any) -> Batch:
    records = [Record(n, 1000 + n, None, b"%d" % (base + n)) for n in range(count)]
    return build_batch(records, base_offset=Offset(base), term=Term(term), **settings)


def data_of(*batches: Batch) -> bytes:
    return b"".join(bytes(each.data) for each in batches)


def with_broker(work: Callable[[ScriptedBroker, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker, Cluster(broker.bootstrap, timeout=5) as cluster:
            await work(broker, cluster)

    asyncio.run(main())


class Leader:
    """Serves a list of batches from any offset, one batch an answer, and waits at the end."""

    def __init__(self, broker: ScriptedBroker, batches: list[Batch]) -> None:
        self.batches = batches
        self.offsets: list[int] = []
        broker.on(Api.FETCH, self.handle)

    async def handle(self, request: Any, make: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        self.offsets.append(offset)
        for each in self.batches:
            if each.last_offset >= offset:
                return fetched(make, request, bytes(each.data))
        await asyncio.sleep(0.05)
        return fetched(make, request)


async def read(fetcher: Fetcher, count: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < count:
        part = await fetcher.next(5)
        assert part is not None
        offsets += [record.offset for record in part.records()]
    return offsets


def test_batches_come_in_order_and_a_start_inside_a_batch_is_kept_to() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        Leader(broker, [batch(0, 5), batch(5, 3), batch(10, 2)])
        fetcher = Fetcher(cluster, {ORDERS: 3})
        assert await read(fetcher, 7) == [3, 4, 5, 6, 7, 10, 11]
        assert fetcher.positions == {ORDERS: 12}
        await fetcher.close()

    with_broker(work)


def test_a_fetcher_is_an_async_iterator() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        Leader(broker, [batch(0, 2), batch(2, 1)])
        fetcher = Fetcher(cluster, {ORDERS: 0})
        offsets: list[int] = []
        async for part in fetcher:
            offsets += [record.offset for record in part.records()]
            if part.next == 3:
                break
        assert offsets == [0, 1, 2]
        await fetcher.close()

    with_broker(work)


def test_at_the_end_nothing_comes_until_something_is_written() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [])
        fetcher = Fetcher(cluster, {ORDERS: 0})
        assert await fetcher.next(0.1) is None
        leader.batches.append(batch(0, 1))
        assert await read(fetcher, 1) == [0]
        await fetcher.close()

    with_broker(work)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
    ],
)
def test_a_fenced_fetch_looks_for_the_leader_and_goes_on_where_it_was(code: ErrorCode) -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [batch(0, 2), batch(2, 2)])
        fenced = False

        async def handle(request: Any, make: Any) -> Any:
            nonlocal fenced
            asked = request.topics[0].partitions[0]
            if asked.fetch_offset == 2 and not fenced:
                fenced = True
                broker.epoch = 2
                return fetched(make, request, error=code)
            if fenced:
                assert asked.current_leader_epoch == 2
            return await leader.handle(request, make)

        broker.on(Api.FETCH, handle)
        fetcher = Fetcher(cluster, {ORDERS: 0})
        assert await read(fetcher, 4) == [0, 1, 2, 3]
        assert fenced
        await fetcher.close()

    with_broker(work)


def test_a_lost_connection_is_not_the_end() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [batch(0, 2), batch(2, 2)])
        losses = iter((True, False, True))

        async def handle(request: Any, make: Any) -> Any:
            return None if next(losses, False) else await leader.handle(request, make)

        broker.on(Api.FETCH, handle)
        fetcher = Fetcher(cluster, {ORDERS: 0})
        assert await read(fetcher, 4) == [0, 1, 2, 3]
        await fetcher.close()

    with_broker(work)


def test_a_log_that_was_cut_is_read_again_from_where_it_parts() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [batch(0, 4, term=1)])
        fetcher = Fetcher(cluster, {ORDERS: 0})
        assert await read(fetcher, 4) == [0, 1, 2, 3]
        cut = False

        async def handle(request: Any, make: Any) -> Any:
            nonlocal cut
            asked = request.topics[0].partitions[0]
            if not cut:
                assert asked.last_fetched_epoch == 1
                cut = True
                leader.batches = [batch(0, 2, term=1), batch(2, 3, term=3)]
                diverging = make("EpochEndOffset", epoch=1, end_offset=2)
                return fetched(make, request, diverging_epoch=diverging)
            return await leader.handle(request, make)

        broker.on(Api.FETCH, handle)
        assert await read(fetcher, 3) == [2, 3, 4]
        await fetcher.close()

    with_broker(work)


def listed(offset: int) -> Callable[[Any, Any], Any]:
    def handler(request: Any, make: Any) -> Any:
        return make(
            "ListOffsetsResponse",
            throttle_time=NONE,
            topics=(
                make(
                    "ListOffsetsTopicResponse",
                    name="orders",
                    partitions=(
                        make(
                            "ListOffsetsPartitionResponse",
                            partition_index=0,
                            error_code=ErrorCode.none,
                            timestamp=-1,
                            offset=offset,
                            leader_epoch=1,
                        ),
                    ),
                ),
            ),
        )

    return handler


def test_an_offset_that_is_gone_goes_to_where_the_caller_says() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [batch(5, 2)])

        async def handle(request: Any, make: Any) -> Any:
            if request.topics[0].partitions[0].fetch_offset < 5:
                return fetched(make, request, error=ErrorCode.offset_out_of_range)
            return await leader.handle(request, make)

        broker.on(Api.FETCH, handle)
        broker.on(Api.LIST_OFFSETS, listed(5))
        fetcher = Fetcher(cluster, {ORDERS: 1}, reset=EARLIEST)
        assert await read(fetcher, 2) == [5, 6]
        await fetcher.close()
        strict = Fetcher(cluster, {ORDERS: 1})
        with pytest.raises(Refused, match="orders/0 has no offset 1"):
            await strict.next(5)
        await strict.close()

    with_broker(work)


def test_one_request_a_node_is_on_its_way_and_one_answer_waits() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        leader = Leader(broker, [batch(n, 1) for n in range(50)])
        fetcher = Fetcher(cluster, {ORDERS: 0})
        assert await read(fetcher, 1) == [0]
        await asyncio.sleep(0.1)
        assert leader.offsets == [0, 1]  # a caller that rests is not flooded
        await fetcher.close()

    with_broker(work)


def test_a_batch_cut_short_at_the_end_of_an_answer_is_left_for_the_next() -> None:
    whole = data_of(batch(0, 3), batch(3, 2))
    for size in range(len(whole) + 1):
        found = list(whole_batches(whole[:size], ORDERS))
        assert [each.base_offset for each in found] == [0, 3][: len(found)]
        assert sum(each.size for each in found) <= size
    assert len(list(whole_batches(whole, ORDERS))) == 2


def test_a_batch_with_a_wrong_crc_is_not_handed_out() -> None:
    data = bytearray(data_of(batch(0, 3)))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        list(whole_batches(bytes(data), ORDERS))


def test_records_from_before_kafka_0_11_are_a_sentence() -> None:
    old = bytearray(data_of(batch(0, 1)))
    old[16] = 1
    with pytest.raises(Unsupported, match=r"before Kafka 0\.11"):
        list(whole_batches(bytes(old), ORDERS))


def test_the_time_of_a_batch_that_the_cluster_stamped_is_the_time_of_its_records() -> None:
    async def work(broker: ScriptedBroker, cluster: Cluster) -> None:
        stamped = batch(0, 2).set_time(77_000, TimestampType.LOG_APPEND)
        Leader(broker, [stamped])
        fetcher = Fetcher(cluster, {ORDERS: 0})
        part = await fetcher.next(5)
        assert part is not None
        assert [record.timestamp for record in part.records()] == [77_000, 77_000]
        await fetcher.close()

    with_broker(work)


def test_what_a_transaction_aborted_is_left_out() -> None:
    def transactional(base: int, producer: int) -> Batch:
        return batch(
            base, 2, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )

    def marker(base: int, producer: int, kind: MarkerType) -> Batch:
        made = transaction_marker(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
        )
        return made.stamp(Offset(base), Term(1))

    batches = [
        transactional(0, 1),
        transactional(2, 2),
        marker(4, 1, MarkerType.ABORT),
        transactional(5, 1),
        marker(7, 1, MarkerType.COMMIT),
        marker(8, 2, MarkerType.COMMIT),
        batch(9, 1),
    ]
    aborted = [SimpleNamespace(producer_id=1, first_offset=0)]
    kept = [each.base_offset for each in without_aborted(batches, aborted) if not each.is_control]
    assert kept == [2, 5, 9]
