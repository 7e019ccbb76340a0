"""Three nodes: who is told to go where, who may serve whom, and what a moved leader remembers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tests.cluster.nodes import until
from tests.kafka.broker import (
    FETCH,
    NEWEST_FETCH,
    NEWEST_PRODUCE,
    PATIENCE,
    PRODUCE,
    Broker,
    batch,
    brokers,
    leader_and_others,
    run,
    values_of,
)
from tests.kafka.test_fetch import end_of_epoch, list_offset

from tidelog.cluster.replica import EARLIER_BATCH_MS
from tidelog.raft import events as ev
from tidelog.raft.types import Level

NOT_HERE = ErrorCode.not_leader_or_follower
METADATA, CREATE_TOPICS, CREATE_PARTITIONS = 3, 19, 37
LONG = timedelta(seconds=30)


async def create(running: list[Broker], **config: str) -> tuple[Broker, list[Broker]]:
    """Create a topic that all nodes have; return its leader and the others."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    await running[0].node.controller.create_topic("t", 1, len(running), settings)
    return await leader_and_others(running)


async def move(leader: Broker, to: Broker, running: list[Broker]) -> None:
    """Hand the partition over, and wait until everybody knows."""
    target = to.partition().core.vnode
    while leader is not to:
        # A leader that stepped down has done its part. On a busy machine a third one may win.
        outcome = await leader.node.groups.ask(
            leader.partition().hosted, lambda token: ev.Transfer(token, target), 10.0
        )
        assert isinstance(outcome, ev.Done), outcome
        leader, _ = await leader_and_others(running)


def test_who_comes_to_the_wrong_node_is_told_the_right_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3, ("a", "b", "c")) as running:
            leader, others = await create(running)
            address = leader.node.state.members[leader.node.id].kafka
            rack = leader.node.config.rack
            for other in others:
                for version in (9, 10, NEWEST_PRODUCE):
                    fields = other.topic_fields(
                        "t", partition_data=[{"index": 0, "records": bytes(batch(b"x").data)}]
                    )
                    answer = await other.ask(
                        PRODUCE,
                        version,
                        transactional_id=None,
                        acks=-1,
                        timeout=PATIENCE,
                        topic_data=[fields],
                    )
                    told = answer.responses[0].partition_responses[0]
                    assert told.error_code is NOT_HERE
                    if version >= 10:
                        check_leader(leader, told, answer)
                        (where,) = answer.node_endpoints
                        assert (where.host, where.port) == (address.host, address.port)
                        assert where.rack == rack
                for version in (11, 12, 16, NEWEST_FETCH):
                    answer = await fetch(other, version=version)
                    told = answer.responses[0].partitions[0]
                    assert told.error_code is NOT_HERE
                    if version >= 12:
                        assert told.current_leader.leader_id == leader.node.id
                        assert told.current_leader.leader_epoch == leader.partition().epoch
                    if version >= 16:
                        assert [each.node_id for each in answer.node_endpoints] == [leader.node.id]

    run(story())


def check_leader(leader: Broker, told: Any, answer: Any) -> None:
    assert told.current_leader.leader_id == leader.node.id
    assert told.current_leader.leader_epoch == leader.partition().epoch
    assert [each.node_id for each in answer.node_endpoints] == [leader.node.id]


async def fetch(node: Broker, *, version: int = NEWEST_FETCH) -> Any:
    return await node.ask(
        FETCH,
        version,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            node.topic_fields(
                "t",
                partitions=[{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def test_followers_compare_epochs_before_they_send_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as running:
            leader, others = await create(running)
            await leader.produce(batch(b"x"))
            await move(leader, others[0], running)
            epoch = others[0].partition().epoch
            for follower in (leader, others[1]):
                await until(partial(knows, follower, epoch), "the epoch")
                for told, expected in (
                    (-1, NOT_HERE),
                    (epoch, NOT_HERE),
                    (epoch - 1, ErrorCode.fenced_leader_epoch),
                    (epoch + 1, ErrorCode.unknown_leader_epoch),
                ):
                    assert (await follower.fetch(0, epoch=told)).error_code is expected
                    assert (await list_offset(follower, -1, epoch=told)).error_code is expected
                    asked = await end_of_epoch(follower, 1, current=told)
                    assert asked.error_code is expected

    run(story())


def knows(node: Broker, epoch: int) -> bool:
    return node.partition().epoch == epoch


def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3, ("a", "b", "c")) as running:
            leader, (near, _) = await create(running)
            rack = str(near.node.config.rack)
            await leader.produce(batch(b"one"))
            await until(lambda: near.partition().high_watermark == 1, "the follower")
            sent = await leader.fetch(0, rack=rack)
            assert (sent.error_code, values_of(sent)) == (ErrorCode.none, [])
            assert sent.preferred_read_replica == near.node.id
            # Not a word of it to clients in the leader's rack, in no rack, or of older versions.
            for other in (str(leader.node.config.rack), "", "elsewhere"):
                read = await leader.fetch(0, rack=other)
                assert (read.preferred_read_replica, values_of(read)) == (-1, [(0, b"one")])
            read = await near.fetch(0, rack=rack)
            assert values_of(read) == [(0, b"one")]
            assert read.preferred_read_replica == -1
            # It waits there too.
            waiting = asyncio.ensure_future(near.fetch(1, rack=rack, max_wait=LONG))
            await leader.produce(batch(b"two"))
            assert values_of(await waiting) == [(1, b"two")]
            beyond = await near.fetch(9, rack=rack)
            assert beyond.error_code is ErrorCode.offset_out_of_range

    run(story())


def test_a_replica_that_is_gone_or_behind_is_not_recommended(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3, ("a", "b", "c")) as running:
            leader, (near, _) = await create(running)
            await leader.produce(batch(b"one"))
            rack = str(near.node.config.rack)
            await near.node.stop()
            await until(lambda: not leader.node.is_alive(near.node.id), "its absence")
            read = await leader.fetch(0, rack=rack)
            assert (read.preferred_read_replica, values_of(read)) == (-1, [(0, b"one")])

    run(story())


def test_an_idempotent_producer_survives_a_change_of_leaders(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as running:
            leader, others = await create(running)
            for sequence in range(3):
                await leader.produce(batch(b"%d" % sequence, producer=(5, 0, sequence)))
            await move(leader, others[0], running)
            again = await others[0].produce(batch(b"2", producer=(5, 0, 2)))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, 2)
            early = await others[0].produce(batch(b"x", producer=(5, 0, 4)))
            assert early.error_code is ErrorCode.not_enough_replicas
            replica = others[0].partition().replica
            replica._turned_away_at = replica.host.now() - EARLIER_BATCH_MS
            gap = await others[0].produce(batch(b"x", producer=(5, 0, 4)))
            assert gap.error_code is ErrorCode.out_of_order_sequence_number
            assert (await others[0].produce(batch(b"3", producer=(5, 0, 3)))).base_offset == 3

    run(story())


def test_acknowledgements_wait_for_as_many_replicas_as_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with brokers(tmp_path) as running:
            leader, (first, _) = await create(running, min_insync_replicas="3")
            assert (await leader.produce(batch(b"x"))).base_offset == 0
            assert leader.partition()._copies(leader.partition().core.appended, Level.QUORUM) == 3
            running.remove(first)
            await first.node.stop()
            # It may not be noticed yet that it is gone: then the answer waits in vain.
            answer = await leader.produce(batch(b"y"), timeout=timedelta(milliseconds=100))
            assert answer.error_code in {
                ErrorCode.request_timed_out,
                ErrorCode.not_enough_replicas,
            }
            await until(lambda: not leader.node.is_alive(first.node.id), "its absence")
            replica = leader.partition().replica
            replica._turned_away_at = replica.host.now() - EARLIER_BATCH_MS
            answer = await leader.produce(batch(b"z", producer=(5, 0, 0)))
            assert answer.error_code is ErrorCode.not_enough_replicas
            early = await leader.produce(batch(b"next", producer=(5, 0, 1)), acks=1)
            assert "earlier batch" in early.error_message, "nobody overtakes one that was refused"

    run(story())


async def described(by: Broker, name: str) -> Any:
    """Return what a node says of a topic at once."""
    answer = await by.ask(
        METADATA,
        12,
        topics=[{"name": name, "topic_id": None}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return answer.topics[0]


def test_any_node_names_leaders_as_soon_as_topics_and_partitions_are_created(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3) as running:

            async def led(partitions: int) -> None:
                for each in running:
                    leaders = [part.leader_id for part in (await described(each, "t")).partitions]
                    assert len(leaders) == partitions
                    assert set(leaders) <= {1, 2, 3}

            fresh = {"name": "t", "num_partitions": 12, "replication_factor": 3}
            created = await running[1].ask(
                CREATE_TOPICS,
                7,
                topics=[fresh | {"assignments": [], "configs": []}],
                timeout=PATIENCE,
                validate_only=False,
            )
            assert created.topics[0].error_code == ErrorCode.none
            await led(12)
            grown = await running[2].ask(
                CREATE_PARTITIONS,
                3,
                topics=[{"name": "t", "count": 24, "assignments": None}],
                timeout=PATIENCE,
                validate_only=False,
            )
            assert grown.results[0].error_code == ErrorCode.none
            await led(24)

    run(story())


def test_a_node_that_was_asked_for_a_topic_too_early_knows_it_once_it_is_created(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with brokers(tmp_path, 3) as running:
            for number, creator in enumerate(running * 3):
                name = f"t{number}"
                for each in running:
                    early = await described(each, name)
                    assert early.error_code is ErrorCode.unknown_topic_or_partition
                await creator.node.controller.create_topic(name, 1, 3, {})
                # All at once: what one waits for must not give the others the time they need.
                for told in await asyncio.gather(*(described(each, name) for each in running)):
                    assert told.error_code is ErrorCode.none
                    assert told.partitions[0].leader_id in {1, 2, 3}

    run(story())
