"""Produce: what a client sends is written once, or it hears why not."""

from __future__ import annotations

import asyncio
import errno
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import (
    NEWEST_PRODUCE,
    NOON,
    PATIENCE,
    PRODUCE,
    Broker,
    batch,
    batches_of,
    broker,
    run,
    values_of,
)
from tests.kafka.desk import build, versions

from tidelog.cluster.partition import Partition
from tidelog.cluster.replica import EARLIER_BATCH_MS
from tidelog.kafka import codec
from tidelog.kafka.dispatch import Disconnect
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.kafka.produce import CODES
from tidelog.raft import events as ev
from tidelog.records import Codec, Record, TimestampType, build_batch
from tidelog.storage import StorageError, wall_ms

IDEMPOTENT = (7, 0)
# What only changes of the configuration are told, and what no batch of a client can be.
NOT_OF_WRITES = {ev.Refusal.CHANGING, ev.Refusal.NOT_CHANGING, ev.Refusal.INVALID}


def body_of(broker: Broker, data: Any, *, acks: int = -1, version: int = NEWEST_PRODUCE) -> bytes:
    """Return the body of a request that writes one batch to partition 0 of the topic."""
    partitions = [{"index": 0, "records": bytes(data.data)}]
    return codec.encode(
        build(
            PRODUCE,
            version,
            transactional_id=None,
            acks=acks,
            timeout=PATIENCE,
            topic_data=[broker.topic_fields("t", partition_data=partitions)],
        )
    )


def start(broker: Broker, data: Any, *, acks: int = -1) -> asyncio.Future[Any]:
    """Start a request as a listener does, without waiting for its answer."""
    loop = asyncio.get_running_loop()
    body = body_of(broker, data, acks=acks)
    task: asyncio.Task[bytes | None] = asyncio.Task(
        broker.hand_in(PRODUCE, NEWEST_PRODUCE, body), loop=loop
    )

    async def read() -> Any:
        answer = broker.read(PRODUCE, NEWEST_PRODUCE, await task)
        return answer.responses[0].partition_responses[0]

    return asyncio.ensure_future(read())


@pytest.mark.parametrize("version", versions(PRODUCE))
@pytest.mark.parametrize("acks", [-1, 1])
def test_every_version_writes_and_answers_with_the_offset(
    tmp_path: Path, version: int, acks: int
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for offset in (0, 2):
                answer = await node.produce(batch(b"a", b"b"), version=version, acks=acks)
                assert answer.error_code is ErrorCode.none
                assert (answer.index, answer.base_offset) == (0, offset)
                assert getattr(answer, "log_start_offset", 0) == 0
            read = values_of(await node.fetch(0))
            assert read == [(0, b"a"), (1, b"b"), (2, b"a"), (3, b"b")]

    run(story())


@pytest.mark.parametrize("version", [3, 9, 13])
def test_one_request_writes_to_many_topics_and_partitions(tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("a", 2)
            await node.create("b", 1)
            fields = [
                node.topic_fields(
                    name,
                    partition_data=[
                        {"index": index, "records": bytes(batch(b"%d" % index).data)}
                        for index in indexes
                    ],
                )
                for name, indexes in (("a", (1, 0)), ("b", (0, 5)))
            ]
            answer = await node.ask(
                PRODUCE, version, transactional_id=None, acks=1, timeout=PATIENCE, topic_data=fields
            )
            found = [
                [(each.index, each.error_code) for each in topic.partition_responses]
                for topic in answer.responses
            ]
            unknown = ErrorCode.unknown_topic_or_partition
            none = ErrorCode.none
            assert found == [[(1, none), (0, none)], [(0, none), (5, unknown)]]
            assert values_of(await node.fetch(0, topic="a", index=1)) == [(0, b"1")]

    run(story())


def test_acks_0_writes_in_order_and_answers_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for number in range(5):
                assert await node.produce(batch(b"%d" % number), acks=0) is None
            assert (await node.produce(batch(b"last"))).base_offset == 5
            read = values_of(await node.fetch(0))
            assert [value for _, value in read] == [b"0", b"1", b"2", b"3", b"4", b"last"]

    run(story())


def test_an_unacknowledged_write_that_fails_costs_the_connection(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            with pytest.raises(Disconnect, match="unknown_topic"):
                await node.produce(batch(b"x"), acks=0, topic="nowhere", version=12)

    run(story())


def test_errors_have_kafkas_codes(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, max_message_bytes="200")
            await node.create("compacted", 1, cleanup_policy="compact")
            await node.create(GROUPS_TOPIC)
            wrong = bytearray(batch(b"x").data)
            wrong[-1] ^= 1
            old = bytearray(batch(b"x").data)
            old[16] = 1
            two = bytes(batch(b"x").data) * 2
            control = build_batch([Record(0, NOON, b"k", b"v")], control=True)
            transactional = build_batch(
                [Record(0, NOON, b"k", b"v")],
                transactional=True,
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
            )
            cases: list[tuple[dict[str, Any], ErrorCode]] = [
                ({"data": batch(b"x" * 300)}, ErrorCode.message_too_large),
                ({"data": bytes(wrong)}, ErrorCode.corrupt_message),
                ({"data": b"no batch at all"}, ErrorCode.corrupt_message),
                ({"data": bytes(old)}, ErrorCode.unsupported_for_message_format),
                ({"data": two}, ErrorCode.invalid_record),
                ({"data": control}, ErrorCode.invalid_record),
                ({"data": None}, ErrorCode.invalid_record),
                ({"data": b""}, ErrorCode.invalid_record),
                ({"data": transactional}, ErrorCode.invalid_txn_state),
                ({"data": batch(b"x"), "transactional_id": "tx"}, ErrorCode.invalid_txn_state),
                ({"data": batch(b"x"), "acks": 2}, ErrorCode.invalid_required_acks),
                ({"data": batch(b"x"), "index": 1}, ErrorCode.unknown_topic_or_partition),
                ({"data": batch(b"x"), "index": -1}, ErrorCode.unknown_topic_or_partition),
                ({"data": batch(b"x"), "topic": "nowhere"}, ErrorCode.unknown_topic_id),
                (
                    {"data": batch(b"x"), "topic": "nowhere", "version": 12},
                    ErrorCode.unknown_topic_or_partition,
                ),
                ({"data": batch(b"x", key=None), "topic": "compacted"}, ErrorCode.invalid_record),
                (
                    {"data": batch(b"x"), "topic": GROUPS_TOPIC},
                    ErrorCode.invalid_topic_exception,
                ),
                (
                    {"data": batch(b"x", codec=Codec.ZSTD), "version": 6},
                    ErrorCode.unsupported_compression_type,
                ),
            ]
            for fields, expected in cases:
                answer = await node.produce(**fields)
                assert answer.error_code is expected, (fields, answer)
                assert answer.base_offset == -1
            assert node.partition().high_watermark == 0
            assert node.partition("compacted").high_watermark == 0

    run(story())


def test_a_compacted_topic_takes_records_with_keys(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, cleanup_policy="compact")
            assert (await node.produce(batch(b"x", codec=Codec.LZ4))).base_offset == 0
            answer = await node.produce(batch(b"x", b"y", key=None, codec=Codec.GZIP))
            assert answer.error_code is ErrorCode.invalid_record
            assert "2 records have no key" in answer.error_message

    run(story())


def test_the_time_of_arrival_is_told_and_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, message_timestamp_type="LogAppendTime")
            before = wall_ms()
            answer = await node.produce(batch(b"x", b"y", time=1000))
            told = int(answer.log_append_time.timestamp() * 1000)
            assert before <= told <= wall_ms()
            (read,) = batches_of(await node.fetch(0))
            assert read.timestamp_type is TimestampType.LOG_APPEND
            assert read.max_timestamp == told

    run(story())


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_a_codec_of_its_own_packs_what_comes_otherwise(
    tmp_path: Path, wanted: str
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, compression_type=wanted)
            for sent in Codec:
                await node.produce(batch(b"one", b"two", codec=sent))
            read = await node.fetch(0)
            codecs = {each.codec.name.lower() for each in batches_of(read)}
            assert codecs == {"none" if wanted == "uncompressed" else wanted}
            assert [value for _, value in values_of(read)] == [b"one", b"two"] * len(Codec)

    run(story())


@pytest.mark.parametrize(
    ("wanted", "least", "most"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -5, 19)]
)
def test_a_topic_says_how_hard_its_codec_tries(
    tmp_path: Path, wanted: str, least: int, most: int
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            words = random.Random(1)
            value = b" ".join(b"%d" % words.randrange(1000) for _ in range(20_000))
            sizes: list[int] = []
            for level in (least, most):
                name = f"t{len(sizes)}"
                settings = {"compression_type": wanted, f"compression_{wanted}_level": str(level)}
                await node.create(name, 1, **settings)
                await node.produce(batch(value), topic=name)
                read = await node.fetch(0, topic=name)
                assert values_of(read) == [(0, value)]
                sizes.append(batches_of(read)[0].size)
            assert sizes[0] > sizes[1]

    run(story())


def test_settings_changed_live_hold_for_the_next_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            assert (await node.produce(batch(b"x" * 500))).error_code is ErrorCode.none
            await node.node.controller.set_topic_config("t", {"max.message.bytes": "100"})
            await until(lambda: node.partition().config.max_message_bytes == 100)
            answer = await node.produce(batch(b"x" * 500))
            assert answer.error_code is ErrorCode.message_too_large

    run(story())


# --- Idempotence ----------------------------------------------------------------------------------


def test_a_batch_that_comes_twice_is_written_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            for sequence in range(5):
                await node.produce(batch(b"%d" % sequence, producer=(*IDEMPOTENT, sequence)))
            for sequence in range(5):
                again = await node.produce(
                    batch(b"%d" % sequence, producer=(*IDEMPOTENT, sequence))
                )
                assert (again.error_code, again.base_offset) == (ErrorCode.none, sequence)
            assert node.partition().high_watermark == 5

    run(story())


def test_a_repeated_batch_waits_for_its_original(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            sent = [start(node, batch(b"x", producer=(*IDEMPOTENT, 0))) for _ in range(3)]
            answers = await asyncio.gather(*sent)
            assert {(each.error_code, each.base_offset) for each in answers} == {
                (ErrorCode.none, 0)
            }
            assert node.partition().high_watermark == 1

    run(story())


def test_a_repeated_batch_is_not_acknowledged_before_its_original_is_safe(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            held = hold_flushes(node)
            first = start(node, batch(b"x", producer=(*IDEMPOTENT, 0)))
            again = start(node, batch(b"x", producer=(*IDEMPOTENT, 0)))
            await asyncio.sleep(0.05)
            assert not first.done()
            assert not again.done()
            held.release()
            assert (await first).base_offset == (await again).base_offset == 0

    run(story())


def test_five_batches_in_flight_are_written_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            sent = [
                start(node, batch(b"%d" % number, producer=(*IDEMPOTENT, number)))
                for number in range(5)
            ]
            answers = await asyncio.gather(*sent)
            assert [each.base_offset for each in answers] == [0, 1, 2, 3, 4]

    run(story())


def test_a_gap_behind_a_refusal_is_refused_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader becomes ready between two requests of one connection."""

    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"0", producer=(7, 1, 0)))
            replica = node.partition().replica
            replica._turned_away_at = replica.host.now() - EARLIER_BATCH_MS
            with monkeypatch.context() as patch:
                patch.setattr(Partition, "is_leader", False)
                refused = await node.produce(batch(b"1", producer=(7, 1, 1)))
                assert refused.error_code is ErrorCode.not_leader_or_follower
            early = await node.produce(batch(b"2", producer=(7, 1, 2)))
            assert early.error_code is ErrorCode.not_enough_replicas
            for sequence in (1, 2):
                again = await node.produce(batch(b"%d" % sequence, producer=(7, 1, sequence)))
                assert (again.error_code, again.base_offset) == (ErrorCode.none, sequence)

    run(story())


def test_gaps_and_fenced_epochs_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"x", producer=(7, 1, 0)))
            replica = node.partition().replica
            replica._turned_away_at = replica.host.now() - EARLIER_BATCH_MS
            gap = await node.produce(batch(b"x", producer=(7, 1, 2)))
            assert gap.error_code is ErrorCode.out_of_order_sequence_number
            old = await node.produce(batch(b"x", producer=(7, 0, 1)))
            assert old.error_code is ErrorCode.invalid_producer_epoch
            assert (await node.produce(batch(b"x", producer=(7, 2, 0)))).base_offset == 1

    run(story())


def test_the_second_batch_of_a_producer_waits_for_its_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            early = await node.produce(batch(b"2", producer=(*IDEMPOTENT, 1)))
            assert early.error_code is ErrorCode.not_enough_replicas, "a code to try again after"
            assert early.error_message is not None
            assert "earlier batch" in early.error_message
            for number in range(2):
                answer = await node.produce(batch(b"%d" % number, producer=(*IDEMPOTENT, number)))
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number)

    run(story())


def test_a_repeated_batch_is_recognised_after_a_new_election(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"x", producer=(*IDEMPOTENT, 0)))
            partition = node.partition()
            partition.hosted.step(ev.QuorumLost())
            refused = await node.produce(batch(b"y", producer=(*IDEMPOTENT, 1)))
            assert refused.error_code is ErrorCode.not_leader_or_follower
            partition.hosted.step(ev.ElectionTimeout())
            await until(lambda: partition.is_leader)
            again = await node.produce(batch(b"x", producer=(*IDEMPOTENT, 0)))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
            assert (await node.produce(batch(b"y", producer=(*IDEMPOTENT, 1)))).base_offset == 1

    run(story())


# --- Disks ----------------------------------------------------------------------------------------


class Held:
    """Flushes that a disk does not get done."""

    def __init__(self, node: Broker) -> None:
        self._executor = node.node.executor
        self._submit = self._executor.submit
        self._jobs: list[tuple[Any, Any]] = []
        self._executor.submit = self._take  # type: ignore[method-assign]

    def _take(self, lane: str, job: Any, done: Any) -> None:
        if lane == "flush":
            self._jobs.append((job, done))
        else:
            self._submit(lane, job, done)

    def release(self) -> None:
        self._executor.submit = self._submit  # type: ignore[method-assign]
        for job, done in self._jobs:
            self._submit("flush", job, done)


def hold_flushes(node: Broker) -> Held:
    return Held(node)


def test_a_write_whose_outcome_is_unknown_times_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            held = hold_flushes(node)
            answer = await node.produce(batch(b"x"), timeout=timedelta(milliseconds=20))
            assert answer.error_code is ErrorCode.request_timed_out
            held.release()

    run(story())


def test_acks_1_and_write_caching_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.create("cached", 1, write_caching="true")
            held = hold_flushes(node)
            assert (await node.produce(batch(b"x"), acks=1)).error_code is ErrorCode.none
            cached = await node.produce(batch(b"x"), topic="cached")
            assert (cached.error_code, cached.base_offset) == (ErrorCode.none, 0)
            held.release()

    run(story())


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            log = node.partition().replica.log

            def refuse(_: object) -> Any:
                raise StorageError("full", OSError(errno.ENOSPC, "no space left on device"))

            with monkeypatch.context() as patch:
                patch.setattr(log, "append", refuse)
                for acks in (-1, 1):
                    answer = await node.produce(batch(b"x"), acks=acks)
                    assert answer.error_code is ErrorCode.kafka_storage_error
            assert (await node.produce(batch(b"x"))).base_offset == 0

    run(story())


def test_without_room_writes_are_refused_but_what_was_written_is_acknowledged(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            await node.produce(batch(b"0", producer=(*IDEMPOTENT, 0)))
            node.partition().replica.takes_writes = False
            for acks in (-1, 1):
                answer = await node.produce(batch(b"x"), acks=acks)
                assert answer.error_code is ErrorCode.kafka_storage_error
                assert "add space" in (answer.error_message or "")
            answer = await node.produce(batch(b"1", producer=(*IDEMPOTENT, 1)))
            assert answer.error_code is ErrorCode.kafka_storage_error
            again = await node.produce(batch(b"0", producer=(*IDEMPOTENT, 0)))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
            assert node.partition().end == 1
            node.partition().replica.takes_writes = True
            answer = await node.produce(batch(b"1", producer=(*IDEMPOTENT, 1)))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1)

    run(story())


def test_a_disk_that_failed_takes_nothing_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create()
            node.partition().replica._fail(OSError(errno.EIO, "the disk is gone"))
            answer = await node.produce(batch(b"x"))
            assert answer.error_code is ErrorCode.kafka_storage_error

    run(story())


def test_fewer_replicas_than_asked_for_refuse_before_anything_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node:
            await node.create("t", 1, min_insync_replicas="2")
            answer = await node.produce(batch(b"x"))
            assert answer.error_code is ErrorCode.not_enough_replicas
            assert node.partition().end == 0
            assert (await node.produce(batch(b"x"), acks=1)).base_offset == 0

    run(story())


def test_every_refusal_of_a_write_has_an_error_code() -> None:
    assert set(CODES) == set(ev.Refusal) - NOT_OF_WRITES
