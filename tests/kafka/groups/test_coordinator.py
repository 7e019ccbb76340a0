"""The driver: what is told waits for the log, and what cannot be told is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.groups.fakes import FakeNode, FakePartition
from tests.kafka.groups.world import GROUP, OK, a_join

from tidelog.cluster.node import Node
from tidelog.kafka.groups import coordinator as driver
from tidelog.kafka.groups.classic_types import JoinAnswer
from tidelog.kafka.groups.config import GroupConfig
from tidelog.kafka.groups.coordinator import Coordinator
from tidelog.kafka.groups.outbox import Step
from tidelog.kafka.groups.records import OffsetKey, OffsetValue, encode
from tidelog.kafka.groups.shard import Shard
from tidelog.kafka.groups.shard_types import Commit, CommittedOffset, Fetch
from tidelog.kafka.groups.unavailable import Unavailable
from tidelog.kafka.groups.writing import Journal
from tidelog.raft import events as ev
from tidelog.raft.types import Level
from tidelog.records import Record, build_batch


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@contextlib.asynccontextmanager
async def coordinating(
    node: FakeNode, config: GroupConfig | None = None
) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(cast(Node, node), config or GroupConfig(initial_rebalance_delay=0))
    await coordinator.start()
    try:
        await settle()
        yield coordinator
    finally:
        await coordinator.stop()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def commit(
    coordinator: Coordinator, offset: int, group: str = GROUP
) -> tuple[ErrorCode, ...]:
    wanted = Commit("", None, -1, 9, (CommittedOffset("t", 0, offset),))
    return await coordinator.ask(group, lambda shard, now: shard.commit(group, wanted, now))


async def committed(coordinator: Coordinator, group: str = GROUP) -> int | None:
    answer = await coordinator.ask(
        group, lambda shard, _: shard.fetch(group, Fetch(None, -1, (("t", 0),)))
    )
    value = answer.offsets[0][2]
    return None if value is None else value.offset


def code(task: "asyncio.Task[Any]") -> ErrorCode:
    error = task.exception()
    assert isinstance(error, Unavailable)
    return error.code


def test_an_answer_waits_until_all_that_was_written_before_it_is_committed() -> None:
    async def story() -> None:
        partition = FakePartition(by_itself=False)
        async with coordinating(FakeNode(partition, t=1)) as coordinator:
            write = asyncio.ensure_future(commit(coordinator, 5))
            await settle()
            read = asyncio.ensure_future(committed(coordinator))
            await settle()
            assert not write.done()
            assert not read.done(), "what it says is not committed yet"
            partition.commit()
            assert await write == (OK,)
            assert await read == 5

    run(story())


def test_steps_of_one_moment_share_an_append_and_appends_have_a_bound() -> None:
    async def story() -> None:
        partition = FakePartition(by_itself=False)
        config = GroupConfig(max_append_bytes=200, max_appends=2)
        async with coordinating(FakeNode(partition, t=1), config) as coordinator:
            few = [asyncio.ensure_future(commit(coordinator, number)) for number in range(3)]
            await settle()
            assert [batch.count for batch in partition.batches] == [3]
            many = [asyncio.ensure_future(commit(coordinator, number)) for number in range(30)]
            await settle()
            assert len(partition.waiting) == 2
            for _ in range(40):
                if partition.waiting:
                    partition.commit(1)
                await settle()
                assert len(partition.waiting) <= 2
            assert {await one for one in few + many} == {(OK,)}
            assert sum(batch.count for batch in partition.batches) == 33

    run(story())


def test_answers_keep_their_order_also_if_a_later_append_is_known_first() -> None:
    class Backwards(FakePartition):
        def produce(self, batch: Any, level: Level, timeout: float, done: Any) -> None:
            super().produce(batch, level, timeout, done)
            self.waiting.reverse()

    async def story() -> None:
        partition = Backwards(by_itself=False)
        async with coordinating(FakeNode(partition, t=1)) as coordinator:
            first = asyncio.ensure_future(commit(coordinator, 1))
            await settle()
            second = asyncio.ensure_future(commit(coordinator, 2))
            await settle()
            partition.commit(1)
            await settle()
            assert not first.done()
            assert not second.done()
            partition.commit(1)
            assert (await first, await second) == ((OK,), (OK,))

    run(story())


def test_a_failed_write_drops_what_is_in_memory_and_reads_the_log_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "RELOAD_AFTER_S", 0.0)

    async def story() -> None:
        partition = FakePartition(by_itself=False)
        async with coordinating(FakeNode(partition, t=1)) as coordinator:
            write = asyncio.ensure_future(commit(coordinator, 1))
            await settle()
            partition.commit()
            await write
            lost = [asyncio.ensure_future(commit(coordinator, number)) for number in (2, 3)]
            await settle()
            partition.fail(ev.Refusal.UNKNOWN)
            await asyncio.wait(lost)
            assert [code(one) for one in lost] == [ErrorCode.coordinator_not_available] * 2
            # It is in the log and may be committed yet: until that is known, nobody is served.
            await asyncio.sleep(3 * driver.LOAD_WAIT_S)
            with pytest.raises(Unavailable) as refused:
                await committed(coordinator)
            assert refused.value.code is ErrorCode.coordinator_load_in_progress
            partition.high_watermark = partition.end
            await asyncio.sleep(3 * driver.LOAD_WAIT_S)
            assert await committed(coordinator) == 3

    run(story())


def test_whoever_waits_is_sent_away_when_leadership_is_lost_and_comes_back_to_the_same_groups() -> (
    None
):
    async def story() -> None:
        partition = FakePartition()
        node = FakeNode(partition, t=1)
        config = GroupConfig(initial_rebalance_delay=60_000)
        async with coordinating(node, config) as coordinator:
            await commit(coordinator, 4)
            join = asyncio.ensure_future(
                coordinator.wait(
                    "waits", lambda shard, ticket, now: shard.join("waits", a_join(), ticket, now)
                )
            )
            await settle()
            partition.is_leader = False
            with pytest.raises(Unavailable) as refused:
                await committed(coordinator)
            assert refused.value.code is ErrorCode.not_coordinator
            node.notify(partition)
            answer = await join
            assert isinstance(answer, JoinAnswer)
            assert answer.error is ErrorCode.not_coordinator
            partition.is_leader, partition.epoch = True, 3
            node.notify(partition)
            node.notify(partition)
            reads = partition.reads
            await settle()
            assert await committed(coordinator) == 4
            assert partition.reads == reads + 1, "once is enough"

    run(story())


def test_a_partition_that_is_closed_is_not_coordinated() -> None:
    async def story() -> None:
        partition = FakePartition()
        node = FakeNode(partition, t=1)
        async with coordinating(node) as coordinator:
            partition.closed = True
            node.notify(partition)
            with pytest.raises(Unavailable) as refused:
                await committed(coordinator)
            assert refused.value.code is ErrorCode.not_coordinator

    run(story())


def test_news_of_an_older_replica_does_not_disturb_its_successor() -> None:
    async def story() -> None:
        old = FakePartition()
        node = FakeNode(old, t=1)
        async with coordinating(node) as coordinator:
            old.closed = True
            new = FakePartition()
            new.epoch = 5
            node.notify(new)
            await settle()
            await commit(coordinator, 3)
            node.notify(old)
            assert await committed(coordinator) == 3

    run(story())


def test_bytes_in_the_log_that_are_no_groups_are_passed_over() -> None:
    async def story() -> None:
        partition = FakePartition()
        key, value = encode(OffsetKey(GROUP, "t", 0), OffsetValue(8))
        records = [
            Record(0, 0, None, b"nobody"),
            Record(1, 0, key, value),
            Record(2, 0, b"\0\1gar", b"bage"),
        ]
        partition.produce(build_batch(records), Level.QUORUM, 1.0, lambda _: None)
        async with coordinating(FakeNode(partition, t=1)) as coordinator:
            assert await committed(coordinator) == 8

    run(story())


def test_a_mistake_of_ours_costs_a_reload_and_not_the_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "RELOAD_AFTER_S", 0.0)

    async def story() -> None:
        async with coordinating(FakeNode(FakePartition(), t=1)) as coordinator:
            await commit(coordinator, 6)

            def break_something(shard: Shard, now: int) -> None:
                shard.groups.clear()
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await coordinator.ask(GROUP, break_something)
            await settle()
            assert await committed(coordinator) == 6

    run(story())


def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RELOAD_AFTER_S", 0.0)

    class Stubborn(FakePartition):
        failures = 2

        def read(self, offset: int, max_bytes: int) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError("not now")
            return super().read(offset, max_bytes)

    async def story() -> None:
        partition = Stubborn()
        key, value = encode(OffsetKey(GROUP, "t", 0), OffsetValue(8))
        batch = build_batch([Record(0, 0, key, value)])
        partition.produce(batch, Level.QUORUM, 1.0, lambda _: None)
        async with coordinating(FakeNode(partition, t=1)) as coordinator:
            await asyncio.sleep(0.05)
            assert await committed(coordinator) == 8

    run(story())


def test_requests_are_refused_while_too_much_waits_for_the_log() -> None:
    async def story() -> None:
        partition = FakePartition(by_itself=False)
        config = GroupConfig(max_pending_steps=3)
        async with coordinating(FakeNode(partition, t=1), config) as coordinator:
            writes = [asyncio.ensure_future(commit(coordinator, number)) for number in range(5)]
            await settle()
            partition.commit()
            await settle()
            refused = [one for one in writes if one.exception() is not None]
            assert [code(one) for one in refused] == [ErrorCode.coordinator_load_in_progress] * 2
            assert await committed(coordinator) == 2

    run(story())


def test_deadlines_are_kept_without_any_request() -> None:
    async def story() -> None:
        config = GroupConfig(initial_rebalance_delay=0, min_session_timeout=1)
        async with coordinating(FakeNode(FakePartition(), t=1), config) as coordinator:
            request = a_join(session_timeout=30)
            await coordinator.wait(
                GROUP, lambda shard, ticket, now: shard.join(GROUP, request, ticket, now)
            )
            for _ in range(200):
                await asyncio.sleep(0.01)
                view = await coordinator.ask(GROUP, lambda shard, _: shard.describe_classic(GROUP))
                if view is not None and view.state == "Empty":
                    return
            raise AssertionError("the member is still there")

    run(story())


def test_a_deleted_topic_takes_its_offsets_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TOPICS_SETTLE_S", 0.0)

    async def story() -> None:
        node = FakeNode(FakePartition(), t=1)
        async with coordinating(node) as coordinator:
            await commit(coordinator, 6)
            node.delete_topic("t")
            node.set_topic("t", 1)
            await asyncio.sleep(0.01)
            await settle()
            assert await committed(coordinator) is None

    run(story())


def test_groups_are_listed_only_when_all_are_loaded() -> None:
    async def story() -> None:
        partition = FakePartition()
        node = FakeNode(partition, t=1)
        async with coordinating(node) as coordinator:
            await commit(coordinator, 6)
            assert [one.group for shard in coordinator.shards() for one in shard.listed()] == [
                GROUP
            ]
            partition.epoch += 1
            node.notify(partition)
            with pytest.raises(Unavailable) as refused:
                list(coordinator.shards())
            assert refused.value.code is ErrorCode.coordinator_load_in_progress

    run(story())


def test_a_step_that_is_larger_than_an_append_is_written_in_pieces() -> None:
    async def story() -> None:
        partition = FakePartition()
        config = GroupConfig(max_append_bytes=100)
        async with coordinating(FakeNode(partition, t=1), config) as coordinator:
            wanted = Commit(
                "", None, -1, 9, tuple(CommittedOffset("t", index, 1) for index in range(20))
            )
            errors = await coordinator.ask(
                GROUP, lambda shard, now: shard.commit(GROUP, wanted, now)
            )
            assert set(errors) == {OK}
            assert len(partition.batches) > 5
            assert sum(batch.count for batch in partition.batches) == 20

    run(story())


def test_a_step_that_fits_into_an_append_is_written_whole() -> None:
    async def story() -> None:
        partition = FakePartition(by_itself=False)
        config = GroupConfig(max_append_bytes=300)
        async with coordinating(FakeNode(partition, t=1), config) as coordinator:
            offsets = tuple(CommittedOffset("t", index, 1) for index in range(5))
            wanted = Commit("", None, -1, 9, offsets)
            writes = [
                asyncio.ensure_future(
                    coordinator.ask(GROUP, lambda shard, now: shard.commit(GROUP, wanted, now))
                )
                for _ in range(7)
            ]
            await settle()
            while partition.waiting:
                partition.commit(1)
                await settle()
            assert all(one.done() for one in writes)
            assert {batch.count for batch in partition.batches} == {5}

    run(story())


def test_a_journal_that_is_closed_hands_back_what_waited() -> None:
    told: list[object] = []
    later: list[Any] = []
    partition = FakePartition(by_itself=False)
    journal = Journal(
        cast(Any, partition),
        GroupConfig(),
        now=lambda: 1,
        soon=later.append,
        deliver=told.append,
        failed=told.append,
    )
    journal.add(Step([], [("at once", 0)]))
    journal.add(Step([(b"k", b"v")], [("waits", 1)]))
    later.pop()()
    assert told == [("at once", 0)]
    assert journal.close() == [("waits", 1)]
    partition.commit()
    assert told == [("at once", 0)]
