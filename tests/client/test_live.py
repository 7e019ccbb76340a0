"""The client against real brokers: everything it can do, and a leader that is killed under it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.client.conftest import Run

import tidelog
from tidelog.client import (
    EARLIEST,
    LATEST,
    WHOLE_CLUSTER,
    Admin,
    Cluster,
    Fetcher,
    GroupAdmin,
    GroupConsumer,
    Producer,
    Refused,
    Resource,
    TopicPartition,
    UnknownTopic,
    bounds,
    list_offsets,
    operate,
    positions_at,
)
from tidelog.client.operations import OperationRefused
from tidelog.records import Codec


async def read_all(cluster: Cluster, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    info = await cluster.topic(topic)
    start = {TopicPartition(topic, each.index): 0 for each in info.partitions}
    fetcher = Fetcher(cluster, start)
    found: list[tuple[int, bytes | None]] = []
    while len(found) < count:
        part = await fetcher.next(20)
        assert part is not None, f"{len(found)} of {count} records came"
        found += [(record.partition.index, record.value) for record in part.records()]
    await fetcher.close()
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_written_is_read_whatever_packs_it(codec: Codec, on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        topic = f"codec-{codec.name.lower()}"
        await Admin(cluster).create_topic(topic, 2, 1)
        headers = (("h", b"x"), ("none", None))
        async with Producer(cluster, codec=codec) as producer:
            place = await producer.write(topic, b"value", b"key", headers, partition=1)
            await producer.write(topic, None, b"key", partition=1)
        assert (place.partition, place.offset) == (TopicPartition(topic, 1), 0)
        fetcher = Fetcher(cluster, {TopicPartition(topic, 1): 0})
        records: list[Any] = []
        while len(records) < 2:
            part = await fetcher.next(10)
            assert part is not None
            records += part.records()
        await fetcher.close()
        assert [(each.offset, each.key, each.value) for each in records] == [
            (0, b"key", b"value"),
            (1, b"key", None),
        ]
        assert records[0].headers == headers
        assert abs(records[0].timestamp / 1000 - time.time()) < 600

    on_cluster(work)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_level_of_acknowledgement_writes(acks: int, on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        topic = f"acks{acks}"
        await Admin(cluster).create_topic(topic, 1, 1)
        async with Producer(cluster, acks=acks) as producer:
            for number in range(50):
                await producer.send(topic, b"%d" % number)
        assert await read_all(cluster, topic, 50) == [(0, b"%d" % n) for n in range(50)]

    on_cluster(work)


def test_records_with_a_key_keep_their_order_in_one_partition(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic("keyed", 4, 1)
        async with Producer(cluster) as producer:
            for number in range(2000):
                await producer.send("keyed", b"%d" % number, b"k%d" % (number % 7))
        found = await read_all(cluster, "keyed", 2000)
        for key in range(7):
            mine = [(p, int(value or 0)) for p, value in found if int(value or 0) % 7 == key]
            assert len({partition for partition, _ in mine}) == 1
            assert [number for _, number in mine] == sorted(number for _, number in mine)

    on_cluster(work)


def test_offsets_are_found_by_time(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic("times", 1, 1)
        partition = TopicPartition("times", 0)
        async with Producer(cluster) as producer:
            for second in range(5):
                await (await producer.send("times", b"x", timestamp=1_000_000 + second * 1000))
        assert await list_offsets(cluster, {partition: 1_002_500}) == {partition: 3}
        assert await positions_at(cluster, [partition], 9_000_000) == {partition: 5}
        assert await positions_at(cluster, [partition], EARLIEST) == {partition: 0}
        assert await positions_at(cluster, [partition], LATEST) == {partition: 5}
        assert await Admin(cluster).delete_records(partition, 2) == 2
        assert await bounds(cluster, [partition]) == {partition: (2, 5)}

    on_cluster(work)


def test_topics_are_created_changed_and_deleted(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.create_topic("life", 2, 1, {"retention.ms": "1000"}, validate_only=True)
        with pytest.raises(UnknownTopic):
            await cluster.topic("life")
        await admin.create_topic("life", 2, 1, {"retention.ms": "1000"})
        with pytest.raises(Refused) as refusal:
            await admin.create_topic("life", 2, 1)
        assert refusal.value.code is ErrorCode.topic_already_exists
        await admin.add_partitions("life", 3)
        assert len((await cluster.topic("life", fresh=True)).partitions) == 3
        await admin.change_settings(
            Resource.TOPIC, "life", {"retention.ms": None, "segment.bytes": "2097152"}
        )
        changed = {
            each.name: each.value
            for each in await admin.settings(Resource.TOPIC, "life")
            if not each.is_default
        }
        assert changed == {"segment.bytes": "2097152"}
        await cluster.leader(TopicPartition("life", 0), cluster.deadline())
        assert await admin.elect_preferred(TopicPartition("life", 0)) is False
        assert await admin.moves() == []
        await admin.delete_topic("life")
        with pytest.raises(UnknownTopic):
            await cluster.topic("life", fresh=True)
        with pytest.raises(Refused):
            await admin.delete_topic("life")

    on_cluster(work)


def test_settings_of_the_cluster_are_changed_for_all_nodes(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.change_settings(Resource.BROKER, WHOLE_CLUSTER, {"num.partitions": "5"})
        settings = {each.name: each for each in await admin.settings(Resource.BROKER, "1")}
        assert (settings["num.partitions"].value, settings["num.partitions"].source) == (
            "5",
            "cluster",
        )
        await admin.change_settings(Resource.BROKER, WHOLE_CLUSTER, {"num.partitions": None})
        with pytest.raises(Refused):
            await admin.change_settings(Resource.BROKER, WHOLE_CLUSTER, {"no.such": "1"})

    on_cluster(work)


def test_a_group_goes_on_where_it_stopped(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic("shared", 3, 1)
        async with Producer(cluster) as producer:
            for number in range(300):
                await producer.send("shared", b"%d" % number, b"%d" % number)
        first = await consume(cluster, 100)
        second = await consume(cluster, 300 - len(first))
        assert sorted(first + second) == list(range(300))
        groups = GroupAdmin(cluster)
        assert sum((await groups.offsets("readers")).values()) == 300
        assert [each.name for each in await groups.groups()].count("readers") == 1
        assert (await groups.describe("readers")).members == ()
        await groups.set_offsets("readers", {TopicPartition("shared", 1): 4})
        assert (await groups.offsets("readers"))[TopicPartition("shared", 1)] == 4
        await groups.delete("readers")
        with pytest.raises(Refused, match="readers does not exist"):
            await groups.describe("readers")

    async def consume(cluster: Cluster, at_least: int) -> list[int]:
        found: list[int] = []
        async with GroupConsumer(cluster, "readers", ["shared"]) as consumer:
            while len(found) < at_least:
                part = await consumer.next(30)
                assert part is not None
                found += [int(record.value or b"") for record in part.records()]
        return found

    on_cluster(work)


def test_two_members_share_the_partitions_of_a_topic(bootstrap: str, on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic("split", 4, 1)
        async with (
            Cluster(bootstrap, timeout=20) as other,
            GroupConsumer(cluster, "pair", ["split"]) as one,
            GroupConsumer(other, "pair", ["split"]) as two,
        ):
            await asyncio.wait_for(until_split(one, two), 60)
            assert {*one.assignment, *two.assignment} == {
                TopicPartition("split", index) for index in range(4)
            }
            described = await GroupAdmin(cluster).describe("pair")
            assert sorted(len(member.partitions) for member in described.members) == [2, 2]
            with pytest.raises(Refused, match="still has members"):
                await GroupAdmin(cluster).set_offsets("pair", {TopicPartition("split", 0): 0})

    async def until_split(one: GroupConsumer, two: GroupConsumer) -> None:
        while [len(one.assignment), len(two.assignment)] != [2, 2]:
            await asyncio.gather(one.next(0.5), two.next(0.5))

    on_cluster(work)


def test_operations_tell_how_the_cluster_is(on_cluster: Run[None]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topic("seen", 1, 1)
        status = await operate(cluster, "status")
        assert [node["id"] for node in status["nodes"]] == [1]
        log = await operate(cluster, "log", topic="seen", partition=0)
        assert log["replicas"][0]["node"] == 1
        with pytest.raises(OperationRefused, match="not 9"):
            await operate(cluster, "log", topic="seen", partition=9)

    on_cluster(work)


def test_writers_and_readers_outlive_a_leader_that_is_killed() -> None:
    async def main(bootstrap: str, broker: Any) -> None:
        async with Cluster(bootstrap, timeout=60) as cluster:
            await Admin(cluster).create_topic("survives", 1, 3)
            partition = TopicPartition("survives", 0)
            fetcher = Fetcher(cluster, {partition: 0}, max_wait=0.1)
            async with Producer(cluster) as producer:
                for number in range(100):
                    await producer.write("survives", b"%d" % number)
                leader, info = await cluster.leader(partition, cluster.deadline())
                broker.cluster.kill(leader.id)
                futures = [
                    await producer.send("survives", b"%d" % number) for number in range(100, 200)
                ]
                await asyncio.gather(*futures)
            found: list[int] = []
            while len(found) < 200:
                part = await fetcher.next(60)
                assert part is not None
                found += [int(record.value or b"") for record in part.records()]
            await fetcher.close()
            assert found == list(range(200))
            successor, after = await cluster.leader(partition, cluster.deadline())
            assert successor.id != leader.id
            assert after.epoch > info.epoch

    with tidelog.local(nodes=3) as broker:
        asyncio.run(main(broker.bootstrap, broker))
