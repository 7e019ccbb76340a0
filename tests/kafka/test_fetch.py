"""Fetch: batches as they lie in the log, waits that end in time, and the rules of epochs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import (
    FETCH,
    LIST_OFFSETS,
    NEWEST_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PATIENCE,
    Broker,
    batch,
    batches_of,
    broker,
    run,
    values_of,
)
from tests.kafka.desk import build, versions

from tidelog.kafka import codec
from tidelog.raft import events as ev
from tidelog.records import Codec, Offset
from tidelog.storage import StorageError

LONG = timedelta(seconds=30)
SHORT = timedelta(milliseconds=30)


async def new_epoch(node: Broker) -> int:
    """Let the partition's leader step down and be elected again; return its new epoch."""
    partition = node.partition()
    before = partition.epoch
    partition.hosted.step(ev.QuorumLost())
    partition.hosted.step(ev.ElectionTimeout())
    await until(lambda: partition.is_leader and partition.epoch > before, "another epoch")
    return partition.epoch


@pytest.mark.parametrize("version", versions(FETCH))
def test_every_version_reads_what_was_written(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for codec_ in (Codec.NONE, Codec.LZ4, Codec.GZIP):
                await node.produce(batch(b"a", b"b", codec=codec_))
            fetched = await node.fetch(2, version=version)
            assert fetched.error_code is ErrorCode.none
            assert fetched.partition_index == 0
            assert fetched.high_watermark == fetched.last_stable_offset == 6
            assert getattr(fetched, "log_start_offset", 0) == 0
            assert values_of(fetched) == [(2, b"a"), (3, b"b"), (4, b"a"), (5, b"b")]
            assert {each.term for each in batches_of(fetched)} == {node.partition().epoch}
            end = await node.fetch(6, version=version)
            assert (end.error_code, values_of(end)) == (ErrorCode.none, [])

    run(story())


@pytest.mark.parametrize("version", versions(FETCH))
def test_every_version_has_an_answer_for_errors(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            gone = await node.fetch(99, version=version)
            assert gone.error_code is ErrorCode.offset_out_of_range
            assert (gone.high_watermark, values_of(gone)) == (-1, [])
            nowhere = await node.fetch(0, version=version, topic="nowhere")
            expected = (
                ErrorCode.unknown_topic_id
                if version >= 13
                else ErrorCode.unknown_topic_or_partition
            )
            assert nowhere.error_code is expected
            missing = await node.fetch(0, version=version, index=3)
            assert missing.error_code is ErrorCode.unknown_topic_or_partition

    run(story())


def test_nothing_is_aborted_for_those_who_read_committed_data(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))
            assert (await node.fetch(0, isolation_level=0)).aborted_transactions is None
            committed = await node.fetch(0, isolation_level=1)
            assert committed.aborted_transactions == ()
            assert values_of(committed) == [(0, b"a")]

    run(story())


# --- How much -------------------------------------------------------------------------------------


def letters(fetched: Any) -> bytes:
    return b"".join((value or b"")[:1] for _, value in values_of(fetched))


def test_readers_of_the_same_end_get_the_same_bytes_and_no_more_than_they_ask_for(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for value in (b"a", b"b", b"c"):
                await node.produce(batch(value * 5000))
            first, second = await node.fetch(0), await node.fetch(0)
            assert first.records == second.records
            assert letters(second) == b"abc"
            two = 2 * batch(b"x" * 5000).size
            assert letters(await node.fetch(0, partition_max_bytes=two)) == b"ab"
            assert letters(await node.fetch(1)) == b"bc"
            await node.produce(batch(b"d" * 5000))
            assert letters(await node.fetch(1)) == b"bcd"

    run(story())


def test_the_first_batch_comes_whole_however_little_is_allowed(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for _ in range(3):
                await node.produce(batch(b"x" * 5000))
            cases: list[dict[str, Any]] = [
                {"max_bytes": 10},
                {"partition_max_bytes": 10},
                {"max_bytes": 0, "partition_max_bytes": 0},
                {"partition_max_bytes": -1},
            ]
            for limits in cases:
                assert len(values_of(await node.fetch(0, **limits))) == 1, limits
            two = await node.fetch(0, partition_max_bytes=2 * batch(b"x" * 5000).size)
            assert len(values_of(two)) == 2

    run(story())


def test_bytes_are_shared_out_over_partitions_and_only_the_first_may_exceed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 3)
            for index in range(3):
                await node.produce(batch(b"x" * 1000), index=index)
            size = batch(b"x" * 1000).size
            for allowed, expected in ((1, 1), (size, 1), (2 * size, 2), (10 * size, 3)):
                answer = await fetch_all(node, 3, max_bytes=allowed)
                sizes = [len(each.records) for each in answer.responses[0].partitions]
                assert [bool(each) for each in sizes] == [index < expected for index in range(3)], (
                    allowed
                )

    run(story())


async def fetch_all(node: Broker, partitions: int, **fields: Any) -> Any:
    values = {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "rack_id": "",
        "topics": [
            node.topic_fields(
                "t",
                partitions=[
                    {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
                    for index in range(partitions)
                ],
            )
        ],
    }
    return await node.ask(FETCH, NEWEST_FETCH, **(values | fields))


# --- How long -------------------------------------------------------------------------------------


def test_a_fetch_at_the_end_waits_for_the_next_write(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            waiting = asyncio.ensure_future(node.fetch(0, max_wait=LONG))
            await asyncio.sleep(0.03)
            assert not waiting.done()
            await node.produce(batch(b"x"))
            assert values_of(await waiting) == [(0, b"x")]
            assert len(node.partition()._watchers) == 1  # the node's own

    run(story())


def test_a_wait_ends_with_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            fetched = await node.fetch(0, max_wait=SHORT)
            assert (fetched.error_code, values_of(fetched)) == (ErrorCode.none, [])
            assert len(node.partition()._watchers) == 1

    run(story())


def test_a_wait_for_many_bytes_counts_what_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"x" * 1000))
            waiting = asyncio.ensure_future(node.fetch(0, max_wait=LONG, min_bytes=3000))
            await node.produce(batch(b"x" * 1000))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            await node.produce(batch(b"x" * 1000))
            assert len(values_of(await waiting)) == 3

    run(story())


def test_a_wait_ends_when_leadership_or_the_topic_goes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            waiting = asyncio.ensure_future(node.fetch(0, max_wait=LONG))
            await asyncio.sleep(0.02)
            node.partition().hosted.step(ev.QuorumLost())
            assert (await waiting).error_code is ErrorCode.not_leader_or_follower
            node.partition().hosted.step(ev.ElectionTimeout())
            await until(lambda: node.partition().is_leader)
            waiting = asyncio.ensure_future(node.fetch(0, max_wait=LONG))
            await asyncio.sleep(0.02)
            await node.node.controller.delete_topic("t")
            assert (await waiting).error_code is ErrorCode.unknown_topic_id

    run(story())


def test_a_client_that_goes_away_leaves_no_watcher(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            waiting = asyncio.ensure_future(node.fetch(0, max_wait=LONG))
            await asyncio.sleep(0.02)
            assert len(node.partition()._watchers) == 2
            waiting.cancel()
            await asyncio.sleep(0.02)
            assert len(node.partition()._watchers) == 1

    run(story())


def test_an_error_in_one_partition_ends_the_wait_for_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            answer = await asyncio.wait_for(fetch_all(node, 2, max_wait=LONG), 5)
            errors = [each.error_code for each in answer.responses[0].partitions]
            assert errors == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]

    run(story())


def test_what_is_not_committed_is_neither_shown_nor_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))
            submit = node.node.executor.submit
            held: list[Any] = []
            node.node.executor.submit = lambda *job: held.append(job)  # type: ignore[method-assign]
            writing = asyncio.ensure_future(node.produce(batch(b"b")))
            await until(lambda: node.partition().end == 2)
            fetched = await node.fetch(0)
            assert (fetched.high_watermark, values_of(fetched)) == (1, [(0, b"a")])
            between = await node.fetch(2)
            assert (between.error_code, values_of(between)) == (ErrorCode.none, [])
            assert (await node.fetch(3)).error_code is ErrorCode.offset_out_of_range
            node.node.executor.submit = submit  # type: ignore[method-assign]
            for job in held:
                submit(*job)
            assert (await writing).base_offset == 1

    run(story())


def test_a_disk_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))

            def fail(*_: object, **__: object) -> Any:
                raise StorageError("unreadable")

            with monkeypatch.context() as patch:
                patch.setattr(node.partition().replica.log, "read", fail)
                assert (await node.fetch(0)).error_code is ErrorCode.kafka_storage_error
            assert values_of(await node.fetch(0)) == [(0, b"a")]

    run(story())


# --- Epochs ---------------------------------------------------------------------------------------


def test_the_epoch_of_a_client_is_compared_in_every_api(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))
            epoch = await new_epoch(node)
            assert epoch > 1
            for told, expected in (
                (-1, ErrorCode.none),
                (epoch, ErrorCode.none),
                (epoch - 1, ErrorCode.fenced_leader_epoch),
                (0, ErrorCode.fenced_leader_epoch),
                (epoch + 1, ErrorCode.unknown_leader_epoch),
            ):
                assert (await node.fetch(0, epoch=told)).error_code is expected
                assert (await list_offset(node, -1, epoch=told)).error_code is expected
                assert (await end_of_epoch(node, epoch, current=told)).error_code is expected

    run(story())


def test_the_epoch_comes_before_leadership(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a"))
            epoch = node.partition().epoch
            node.partition().hosted.step(ev.QuorumLost())
            for told, expected in (
                (-1, ErrorCode.not_leader_or_follower),
                (epoch, ErrorCode.not_leader_or_follower),
                (epoch - 1, ErrorCode.fenced_leader_epoch),
                (epoch + 1, ErrorCode.unknown_leader_epoch),
            ):
                assert (await node.fetch(0, epoch=told)).error_code is expected, told
                assert (await list_offset(node, -1, epoch=told)).error_code is expected, told
                assert (await end_of_epoch(node, 1, current=told)).error_code is expected, told

    run(story())


def test_a_log_that_the_client_read_and_we_do_not_have_diverges(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"a", b"b"))
            first = node.partition().epoch
            second = await new_epoch(node)
            await node.produce(batch(b"c"))

            async def ask(offset: int, last_epoch: int) -> tuple[ErrorCode, tuple[int, int]]:
                fetched = await node.fetch(offset, last_epoch=last_epoch)
                where = fetched.diverging_epoch
                return fetched.error_code, (where.epoch, where.end_offset)

            fine = (ErrorCode.none, (-1, -1))
            assert await ask(1, first) == fine
            assert await ask(2, first) == fine
            assert await ask(3, second) == fine
            # Epoch `first` ended at 2: what this client has at 2 is not ours.
            assert await ask(3, first) == (ErrorCode.none, (first, 2))
            assert await ask(0, 0) == (ErrorCode.none, (-1, -1))
            assert await ask(1, 0) == (ErrorCode.none, (0, 0))
            assert (await ask(3, second + 1))[0] is ErrorCode.offset_out_of_range
            # Versions before 12 have no word for it.
            assert (await node.fetch(3, last_epoch=first, version=11)).error_code is ErrorCode.none

    run(story())


async def list_offset(
    node: Broker, time: int, *, epoch: int = -1, version: int = 11, index: int = 0
) -> Any:
    answer = await node.ask(
        LIST_OFFSETS,
        version,
        replica_id=-1,
        isolation_level=0,
        timeout=PATIENCE,
        topics=[
            {
                "name": "t",
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": epoch, "timestamp": time}
                ],
            }
        ],
    )
    return answer.topics[0].partitions[0]


async def end_of_epoch(
    node: Broker, epoch: int, *, current: int = -1, version: int = 4, index: int = 0
) -> Any:
    answer = await node.ask(
        OFFSET_FOR_LEADER_EPOCH,
        version,
        replica_id=-1,
        topics=[
            {
                "topic": "t",
                "partitions": [
                    {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
                ],
            }
        ],
    )
    return answer.topics[0].partitions[0]


# --- Replicas -------------------------------------------------------------------------------------


def test_a_replica_of_kafka_is_sent_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for version in (11, 14, 15, NEWEST_FETCH):
                fetched = await node.fetch(0, replica_id=5, version=version)
                assert fetched.error_code is ErrorCode.not_leader_or_follower, version
                fetched = await node.fetch(0, replica_id=5, epoch=1, version=version)
                assert fetched.error_code is ErrorCode.unknown_leader_epoch, version

    run(story())


def test_old_clients_are_warned_of_a_topic_of_zstd(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, compression_type="zstd")
            await node.produce(batch(b"a"))
            old = await node.fetch(0, version=9)
            assert old.error_code is ErrorCode.unsupported_compression_type
            assert (await node.fetch(0, version=10)).error_code is ErrorCode.none

    run(story())


def test_answers_are_views_of_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"x" * 50_000))
            body = codec.encode(
                build(
                    FETCH,
                    NEWEST_FETCH,
                    max_wait=timedelta(0),
                    min_bytes=1,
                    topics=[
                        node.topic_fields(
                            "t",
                            partitions=[
                                {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
                            ],
                        )
                    ],
                    forgotten_topics_data=[],
                )
            )
            api = node.table.get(FETCH)
            assert api is not None
            assert api.raw is not None
            parts = api.raw(node.context, NEWEST_FETCH, memoryview(bytearray(body)))
            assert isinstance(parts, list)
            large = [part for part in parts if len(part) > 1000]
            first = node.partition()._translation.to_log(Offset(0))
            (kept,) = node.partition().replica.log.read(first, 1)
            assert [part.obj for part in large] == [kept.data.obj]  # type: ignore[union-attr]

    run(story())
