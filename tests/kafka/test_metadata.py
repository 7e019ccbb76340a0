"""Metadata and DescribeTopicPartitions: what clients learn about topics and leaders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.kafka.desk import PATIENCE, Desk, versions

from tidelog.cluster.leaders import Claim
from tidelog.kafka import admin, fresh, metadata
from tidelog.kafka.groups.hashing import GROUPS_TOPIC
from tidelog.raft.types import GroupId, NodeId

METADATA, DESCRIBE_TOPIC_PARTITIONS = 3, 75


def ask(desk: Desk, version: int, topics: list[dict[str, Any]] | None, **fields: Any) -> Any:
    return desk.ask(METADATA, version, topics=topics, **(QUIET | fields))


QUIET = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def named(name: str | None, topic_id: UUID | None = None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id}


def with_leader(desk: Desk, name: str, node: int = 1, term: int = 3) -> None:
    for partition in desk.node.state.topics[name].partitions:
        desk.node.lead(name, partition.index, node, term)


@pytest.mark.parametrize("version", versions(METADATA))
def test_every_version_tells_brokers_topics_and_leaders(tmp_path: Path, version: int) -> None:
    desk = Desk(tmp_path)
    desk.create("t", 2, 3)
    with_leader(desk, "t", node=2, term=3)
    answer = ask(desk, version, [named("t")])
    assert [(each.node_id, each.port) for each in answer.brokers] == [
        (1, 9101),
        (2, 9102),
        (3, 9103),
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (ErrorCode.none, "t")
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (ErrorCode.none, 2)
        assert set(partition.replica_nodes) == set(partition.isr_nodes) == {1, 2, 3}
        assert getattr(partition, "leader_epoch", 3) == 3
    if version >= 10:
        assert topic.topic_id == desk.node.state.topics["t"].id
    if version >= 2:
        assert answer.cluster_id == "tides"


def test_all_topics_are_asked_for_by_null_and_in_version_0_by_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("b")
    desk.create("a")
    for version, topics in ((0, []), (1, None), (13, None)):
        assert [each.name for each in ask(desk, version, topics).topics] == ["a", "b"]
    assert ask(desk, 1, []).topics == ()


def test_a_replica_that_lags_is_not_in_sync(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t", 1, 3)
    group = desk.node.state.group_of("t", 0)
    assert group is not None
    desk.node.leaders.claim(NodeId(2), Claim(group, 1, (NodeId(2), NodeId(3))))
    (topic,) = ask(desk, 12, [named("t")]).topics
    assert set(topic.partitions[0].isr_nodes) == {2, 3}
    assert set(topic.partitions[0].offline_replicas) == set()


def test_a_dead_leader_and_dead_replicas_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "LEADERS_TIMEOUT", 0.01)
    desk = Desk(tmp_path)
    desk.node.controller.elects = False
    desk.create("t", 1, 3)
    (topic,) = ask(desk, 12, [named("t")]).topics
    assert topic.partitions[0].error_code is ErrorCode.leader_not_available
    with_leader(desk, "t", node=2)
    desk.node.dead.add(2)
    answer = ask(desk, 12, [named("t")])
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
    assert set(partition.offline_replicas) == {2}
    assert set(partition.isr_nodes) == {1, 3}
    assert {each.node_id for each in answer.brokers} == {1, 3}


def test_a_new_topic_is_told_of_with_its_first_leaders(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.node.controller.elects = False
    desk.create("t", 2, 3)

    async def story() -> Any:
        asked = asyncio.create_task(desk.asking(METADATA, 9, topics=[named("t")], **QUIET))
        for index in range(2):
            await asyncio.sleep(0.05)
            assert not asked.done()
            desk.node.lead("t", index, 1)
        return await asked

    (topic,) = asyncio.run(story()).topics
    assert [each.leader_id for each in topic.partitions] == [1, 1]


def test_a_partition_that_gets_no_leader_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    desk.node.controller.elects = False
    desk.create("t")
    waits = []

    async def waiting(_: Any, topics: Any, timeout: float) -> None:
        waits.append([topic.name for topic in topics])
        await asyncio.sleep(timeout)

    monkeypatch.setattr(fresh, "LEADERS_TIMEOUT", 0.01)
    monkeypatch.setattr(fresh, "led", waiting)
    for _ in range(3):
        (topic,) = ask(desk, 9, [named("t")]).topics
        assert topic.partitions[0].leader_id == -1
    assert waits == [["t"]]


@pytest.fixture
def follower(tmp_path: Path) -> Desk:
    """Return a desk in front of a node that may be behind: node 2 leads the cluster."""
    desk = Desk(tmp_path)
    desk.node.leaders.claim(NodeId(2), Claim(GroupId(0), 2, ()))
    return desk


@pytest.mark.parametrize("asks_before", [False, True])
def test_a_node_that_is_behind_waits_for_a_name(
    follower: Desk, monkeypatch: pytest.MonkeyPatch, asks_before: bool
) -> None:
    monkeypatch.setattr(admin, "CATCH_UP_S", PATIENCE.total_seconds())
    node = follower.node

    async def story() -> Any:
        if asks_before:
            node.newest = node.state.version
            absent = await follower.asking(METADATA, 9, topics=[named("late")], **QUIET)
            assert absent.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        node.newest = node.state.version + 1
        asked = asyncio.create_task(follower.asking(METADATA, 9, topics=[named("late")], **QUIET))
        await asyncio.sleep(0.05)
        assert not asked.done()
        await node.controller.create_topic("late", 1, 1, {})
        return await asked

    (late,) = asyncio.run(story()).topics
    assert (late.error_code, late.partitions[0].leader_id) == (ErrorCode.none, 1)


def test_a_node_that_knows_all_there_is_does_not_wait_for_a_name(follower: Desk) -> None:
    follower.node.newest = follower.node.state.version

    async def story() -> None:
        for _ in range(3):
            asked = asyncio.create_task(
                follower.asking(METADATA, 9, topics=[named("never")], **QUIET)
            )
            for _ in range(50):
                await asyncio.sleep(0)
            assert asked.done()
            assert asked.result().topics[0].error_code is ErrorCode.unknown_topic_or_partition

    asyncio.run(story())


def test_a_name_is_given_up_if_the_leader_does_not_say_how_far_it_is(
    follower: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CATCH_UP_S", 0.01)
    (never,) = ask(follower, 9, [named("never")]).topics
    assert never.error_code is ErrorCode.unknown_topic_or_partition


def test_those_who_wait_for_names_share_a_question_that_is_young_enough(follower: Desk) -> None:
    node = follower.node
    node.newest = node.state.version

    async def story() -> None:
        asked = []
        for _ in range(50):
            asked.append(
                asyncio.create_task(follower.asking(METADATA, 9, topics=[named("never")], **QUIET))
            )
            if len(asked) == 1:
                while node.questions == 0:
                    await asyncio.sleep(0)
        await asyncio.gather(*asked)

    asyncio.run(story())
    assert node.questions == 2


def test_descriptions_of_a_new_topic_wait_for_its_first_leaders(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.node.controller.elects = False
    desk.create("t")

    async def story() -> Any:
        asked = asyncio.create_task(
            desk.asking(
                DESCRIBE_TOPIC_PARTITIONS,
                0,
                topics=[{"name": "t"}],
                response_partition_limit=10,
                cursor=None,
            )
        )
        await asyncio.sleep(0.05)
        assert not asked.done()
        desk.node.lead("t", 0, 1)
        return await asked

    (topic,) = asyncio.run(story()).topics
    assert topic.partitions[0].leader_id == 1


def test_a_node_that_is_gone_since_a_moment_is_told_of_and_leads_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t", 1, 3)
    with_leader(desk, "t", node=2)
    desk.node.dead.add(2)
    desk.node.gone_since_a_moment.add(2)
    answer = ask(desk, 12, [named("t")])
    assert {each.node_id for each in answer.brokers} == {1, 2, 3}
    assert answer.topics[0].partitions[0].leader_id == -1


def test_topics_by_id(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t")
    known = desk.node.state.topics["t"].id
    found, missing = ask(desk, 12, [named(None, known), named(None, UUID(int=5))]).topics
    assert (found.error_code, found.name) == (ErrorCode.none, "t")
    assert (missing.error_code, missing.topic_id) == (ErrorCode.unknown_topic_id, UUID(int=5))


@pytest.mark.parametrize("name", ["", None, "other"])
def test_an_id_counts_whatever_name_comes_with_it(tmp_path: Path, name: str | None) -> None:
    desk = Desk(tmp_path)
    desk.create("t")
    (found,) = ask(desk, 13, [named(name, desk.node.state.topics["t"].id)]).topics
    assert (found.error_code, found.name) == (ErrorCode.none, "t")


@pytest.mark.parametrize("version", [10, 11])
def test_an_unknown_id_is_answered_where_names_cannot_be_left_out(
    tmp_path: Path, version: int
) -> None:
    (missing,) = ask(Desk(tmp_path), version, [named(None, UUID(int=5))]).topics
    assert (missing.error_code, missing.name) == (ErrorCode.unknown_topic_id, "")


def test_a_topic_asked_for_twice_is_told_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t")
    assert len(ask(desk, 9, [named("t"), named("t")]).topics) == 1


def test_topics_are_created_if_both_sides_want_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (topic,) = ask(desk, 9, [named("new")]).topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    (topic,) = ask(desk, 9, [named("new")], allow_auto_topic_creation=True).topics
    assert len(topic.partitions) == 1
    assert "new" in desk.node.state.topics
    (bad,) = ask(desk, 9, [named("no/name")], allow_auto_topic_creation=True).topics
    assert bad.error_code is ErrorCode.invalid_topic_exception
    desk.node.state.config = {"auto.create.topics.enable": "false"}
    (topic,) = ask(desk, 9, [named("other")], allow_auto_topic_creation=True).topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition


def test_one_request_creates_a_bounded_number_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "MAX_CREATED", 2)
    desk = Desk(tmp_path)
    wanted = [named(f"t{number}") for number in range(4)]
    answer = ask(desk, 9, wanted, allow_auto_topic_creation=True)
    assert len(desk.node.state.topics) == 2
    codes = [each.error_code for each in answer.topics]
    assert codes[2:] == [ErrorCode.leader_not_available] * 2


def test_the_topic_of_groups_is_created_with_its_own_settings(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    ask(desk, 9, [named(GROUPS_TOPIC)], allow_auto_topic_creation=True)
    topic = desk.node.state.topics[GROUPS_TOPIC]
    assert topic.config["cleanup.policy"] == "compact"
    assert len(topic.partitions) == 16


def test_operations_are_told_to_who_asks(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.create("t")
    silent = ask(desk, 8, [named("t")])
    assert silent.topics[0].topic_authorized_operations == -(2**31)
    assert silent.cluster_authorized_operations == -(2**31)
    told = ask(
        desk,
        8,
        [named("t")],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert told.topics[0].topic_authorized_operations > 0
    assert told.cluster_authorized_operations > 0


# --- DescribeTopicPartitions ----------------------------------------------------------------------


def describe(desk: Desk, names: list[str], limit: int, cursor: Any = None) -> Any:
    return desk.ask(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


def test_topics_are_described_page_by_page(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for name, partitions in (("a", 3), ("b", 2), ("c", 1)):
        desk.create(name, partitions)
        with_leader(desk, name)
    seen: list[tuple[str, int]] = []
    pages = 0
    cursor: Any = None
    while True:
        answer = describe(desk, [], 2, cursor)
        pages += 1
        seen += [
            (topic.name, each.partition_index)
            for topic in answer.topics
            for each in topic.partitions
        ]
        if answer.next_cursor is None:
            break
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    assert pages == 3


def test_unknown_topics_are_described_as_such(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    answer = describe(desk, ["nowhere", "no/name"], 10)
    assert {each.name: each.error_code for each in answer.topics} == {
        "nowhere": ErrorCode.unknown_topic_or_partition,
        "no/name": ErrorCode.invalid_topic_exception,
    }
