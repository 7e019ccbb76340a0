"""ListOffsets, OffsetForLeaderEpoch and InitProducerId, in every version."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.broker import (
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    NOON,
    OFFSET_FOR_LEADER_EPOCH,
    Broker,
    batch,
    broker,
    run,
)
from tests.kafka.desk import versions
from tests.kafka.test_fetch import end_of_epoch, list_offset, new_epoch

from tidelog.cluster.errors import ClusterError, Problem
from tidelog.kafka.producerids import BLOCK
from tidelog.storage import StorageError

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING = range(-1, -7, -1)


async def found(node: Broker, time: int, **fields: Any) -> tuple[int, int, int]:
    """Return offset, time and epoch of a partition's answer, which must be no error."""
    answer = await list_offset(node, time, **fields)
    assert answer.error_code is ErrorCode.none, answer
    return answer.offset, answer.timestamp, getattr(answer, "leader_epoch", -1)


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
def test_every_version_finds_the_ends_and_times(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a", b"b", time=NOON))
            await node.produce(batch(b"c", time=NOON + 1000))
            epoch = node.partition().epoch if version >= 4 else -1
            assert await found(node, LATEST, version=version) == (3, -1, epoch)
            assert await found(node, EARLIEST, version=version) == (0, -1, epoch)
            assert await found(node, NOON, version=version) == (0, NOON, epoch)
            assert await found(node, NOON + 1, version=version) == (1, NOON + 1, epoch)
            assert await found(node, NOON + 2, version=version) == (2, NOON + 1000, epoch)
            assert await found(node, 0, version=version) == (0, NOON, epoch)
            assert await found(node, NOON + 1001, version=version) == (-1, -1, -1)

    run(story())


@pytest.mark.parametrize(
    ("time", "since"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING, 11), (-7, 99)],
)
def test_special_times_are_served_from_their_version_on(
    tmp_path: Path, time: int, since: int
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for version in versions(LIST_OFFSETS):
                answer = await list_offset(node, time, version=version)
                expected = ErrorCode.none if version >= since else ErrorCode.unsupported_version
                assert answer.error_code is expected, version

    run(story())


def test_special_times_answer_as_kafka_without_tiers(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            assert await found(node, MAX_TIMESTAMP) == (-1, -1, -1)
            await node.produce(batch(b"late", time=NOON + 5000))
            await node.produce(batch(b"early", time=NOON))
            epoch = node.partition().epoch
            assert await found(node, MAX_TIMESTAMP) == (0, NOON + 5000, epoch)
            assert await found(node, EARLIEST_LOCAL) == (0, -1, epoch)
            assert await found(node, LATEST_TIERED) == (-1, -1, -1)
            assert await found(node, PENDING) == (-1, -1, -1)

    run(story())


def test_what_was_deleted_is_found_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for number in range(4):
                await node.produce(batch(b"x", time=NOON + number))
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            node.partition().delete_before(2, done.set_result)
            assert await done == 2
            epoch = node.partition().epoch
            assert await found(node, EARLIEST) == (2, -1, epoch)
            assert await found(node, NOON) == (2, NOON + 2, epoch)
            assert (await node.fetch(1)).error_code is ErrorCode.offset_out_of_range

    run(story())


def test_each_answer_has_the_epoch_of_what_it_found(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a", time=NOON))
            first = node.partition().epoch
            second = await new_epoch(node)
            await node.produce(batch(b"b", time=NOON + 9))
            assert await found(node, EARLIEST) == (0, -1, first)
            assert await found(node, NOON) == (0, NOON, first)
            assert await found(node, NOON + 9) == (1, NOON + 9, second)
            assert await found(node, LATEST) == (2, -1, second)

    run(story())


def test_a_new_leader_that_shows_less_than_its_predecessor_says_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a", time=NOON))
            partition = node.partition()
            behind = partition.core.leading.term_start - 1  # type: ignore[union-attr]
            monkeypatch.setattr(type(partition.core), "readable", property(lambda _: behind))
            for time in (LATEST, NOON + 1):
                answer = await list_offset(node, time)
                assert answer.error_code is ErrorCode.offset_not_available
                old = await list_offset(node, time, version=4)
                assert old.error_code is ErrorCode.leader_not_available
            assert await found(node, EARLIEST) == (0, -1, partition.epoch)

    run(story())


def test_partitions_that_are_not_here_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            missing = await list_offset(node, LATEST, index=1)
            assert missing.error_code is ErrorCode.unknown_topic_or_partition

            def fail(*_: object) -> Any:
                raise StorageError("unreadable")

            monkeypatch.setattr(node.partition().replica.log, "offset_at_time", fail)
            answer = await list_offset(node, NOON)
            assert answer.error_code is ErrorCode.kafka_storage_error

    run(story())


# --- OffsetForLeaderEpoch -------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(OFFSET_FOR_LEADER_EPOCH))
def test_an_epoch_ends_where_the_next_begins(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a", b"b"))
            first = node.partition().epoch
            await new_epoch(node)  # in which nothing is written
            last = await new_epoch(node)
            await node.produce(batch(b"c"))

            async def ask(epoch: int) -> tuple[int, int]:
                answer = await end_of_epoch(node, epoch, version=version)
                assert answer.error_code is ErrorCode.none
                return answer.leader_epoch, answer.end_offset

            assert await ask(first) == (first, 2)
            assert await ask(last - 1) == (last - 1, 2)
            assert await ask(last) == (last, 3)
            assert await ask(last + 1) == (-1, -1)
            assert await ask(2**31 - 1) == (-1, -1)
            assert await ask(-1) == (-1, -1)
            assert await ask(first - 1) == (first - 1, 0)

    run(story())


def test_an_epoch_without_batches_answers_with_the_one_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))
            core = node.partition().core
            first = core.term
            # Terms that nobody won leave no batch behind.
            core.become_follower(first + 3, None)  # type: ignore[arg-type]
            node.partition().hosted.replica._run(core._drain())
            last = await new_epoch(node)
            assert last > first + 3
            answer = await end_of_epoch(node, last - 1)
            assert (answer.leader_epoch, answer.end_offset) == (first, 1)

    run(story())


def test_epochs_of_a_partition_that_is_not_here(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            answer = await end_of_epoch(node, 1, index=1)
            assert answer.error_code is ErrorCode.unknown_topic_or_partition

    run(story())


# --- InitProducerId -------------------------------------------------------------------------------


async def new_id(node: Broker, version: int = 6, **fields: Any) -> Any:
    values = {
        "transactional_id": None,
        "transaction_timeout": timedelta(seconds=60),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return await node.ask(INIT_PRODUCER_ID, version, **(values | fields))


@pytest.mark.parametrize("version", versions(INIT_PRODUCER_ID))
def test_every_version_gets_a_number_of_its_own(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            answers = await asyncio.gather(*(new_id(node, version) for _ in range(10)))
            assert {each.error_code for each in answers} == {ErrorCode.none}
            assert len({each.producer_id for each in answers}) == 10
            assert {each.producer_epoch for each in answers} == {0}
            assert node.node.state.next_producer_id == BLOCK

    run(story())


def test_numbers_go_on_in_another_block(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            seen = {(await new_id(node)).producer_id for _ in range(BLOCK + 1)}
            assert len(seen) == BLOCK + 1
            assert node.node.state.next_producer_id == 2 * BLOCK

    run(story())


def test_a_producer_that_starts_over_gets_a_new_number(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            first = await new_id(node)
            again = await new_id(node, producer_id=first.producer_id, producer_epoch=0)
            assert again.producer_id != first.producer_id
            assert (again.error_code, again.producer_epoch) == (ErrorCode.none, 0)
            half = await new_id(node, producer_id=first.producer_id)
            assert half.error_code is ErrorCode.invalid_request

    run(story())


def test_transactions_are_refused_for_good(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            refused = await new_id(node, transactional_id="tx")
            assert refused.error_code is ErrorCode.unsupported_version
            assert (refused.producer_id, refused.producer_epoch) == (-1, -1)
            empty = await new_id(node, transactional_id="")
            assert empty.error_code is ErrorCode.invalid_request

    run(story())


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem.TIMEOUT, ErrorCode.request_timed_out),
        (Problem.NOT_CONTROLLER, ErrorCode.coordinator_not_available),
    ],
)
def test_without_a_controller_the_client_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Problem, expected: ErrorCode
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:

            async def fail(*_: object, **__: object) -> int:
                raise ClusterError(problem, "not now")

            with monkeypatch.context() as patch:
                patch.setattr(node.node.controller, "allocate_producer_ids", fail)
                assert (await new_id(node)).error_code is expected
            assert (await new_id(node)).error_code is ErrorCode.none

    run(story())
