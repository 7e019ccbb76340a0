"""Requests of every version, as bytes, to a real node."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.cluster.nodes import Nodes, until
from tests.kafka.broker import Broker, broker, run
from tests.kafka.groups.requests import (
    COMMIT,
    CONSUMER_DESCRIBE,
    DELETE,
    DELETE_OFFSETS,
    DESCRIBE,
    FETCH,
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OK,
    SYNC,
    beat,
    commit,
    coordinated,
    coordinator_of,
    fetch,
    find,
    join,
    loaded,
    one,
    served,
    sync,
)
from tests.kafka.groups.world import subscription

from tidelog.kafka.groups.hashing import GROUPS_TOPIC


def test_a_coordinator_is_found_in_every_version_and_its_topic_created_on_the_way(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node, coordinated(node):
            for version in served(node, FIND):
                found = await find(node, "g", version)
                assert (found.error_code, found.node_id) == (OK, node.node.id)
                assert (found.host, found.port) == ("127.0.0.1", 9101)
            topic = node.node.state.topics[GROUPS_TOPIC]
            assert topic.internal
            for kind in (1, 2, 9):
                found = await find(node, "g", key_type=kind)
                assert found.error_code is ErrorCode.invalid_request
                assert found.error_message
            many = await node.ask(FIND, 4, key_type=0, coordinator_keys=["a", "b"])
            assert [each.key for each in many.coordinators] == ["a", "b"]

    run(story())


def test_members_of_every_version_join_sync_beat_and_leave(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            for version in served(node, JOIN):
                group = f"join-{version}"
                joined = await join(node, group, version)
                assert joined.error_code is OK
                assert joined.leader == joined.member_id
                assert joined.members[0].metadata == subscription("t")
                assert joined.protocol_name == "range"
                if version >= 7:
                    assert joined.protocol_type == "consumer"
                wrong = await join(node, group, version, "nobody")
                assert wrong.error_code is ErrorCode.unknown_member_id
                assert wrong.protocol_name == (None if version >= 7 else "")
            for version in served(node, SYNC):
                group = f"sync-{version}"
                joined = await join(node, group, version=0)
                synced = await sync(node, group, joined, version)
                assert (synced.error_code, synced.assignment) == (OK, b"work")
                late = await sync(node, group, joined, version, generation_id=99)
                assert late.error_code is ErrorCode.illegal_generation
            joined = await join(node, "beats")
            for version in served(node, HEARTBEAT):
                for member, generation, error in (
                    (joined.member_id, 1, OK),
                    (joined.member_id, 2, ErrorCode.illegal_generation),
                    ("x", 1, ErrorCode.unknown_member_id),
                ):
                    answer = await node.ask(
                        HEARTBEAT,
                        version,
                        group_id="beats",
                        generation_id=generation,
                        member_id=member,
                    )
                    assert answer.error_code is error
            for version in served(node, LEAVE):
                joined = await join(node, f"leave-{version}")
                for error in (OK, ErrorCode.unknown_member_id):
                    answer = await node.ask(
                        LEAVE,
                        version,
                        group_id=f"leave-{version}",
                        member_id=joined.member_id,
                        members=[{"member_id": joined.member_id, "group_instance_id": None}],
                    )
                    if version >= 3:
                        assert answer.error_code is OK
                        assert answer.members[0].error_code is error
                    else:
                        assert answer.error_code is error

    run(story())


def test_two_members_share_a_group_and_a_static_one_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            first = await join(node, "g", instance="a")
            second_join = asyncio.ensure_future(join(node, "g"))
            await asyncio.sleep(0.05)
            assert not second_join.done()
            first = await join(node, "g", member_id=first.member_id, instance="a")
            second = await second_join
            assert first.generation_id == second.generation_id == 2
            assert {member.group_instance_id for member in first.members} == {"a", None}
            waiting = asyncio.ensure_future(sync(node, "g", second, assignments=[]))
            work = [
                {"member_id": first.member_id, "assignment": b"1"},
                {"member_id": second.member_id, "assignment": b"2"},
            ]
            await sync(node, "g", first, assignments=work, group_instance_id="a")
            assert (await waiting).assignment == b"2"
            back = await join(node, "g", instance="a")
            assert back.skip_assignment
            assert back.generation_id == 2
            fenced = await sync(node, "g", first, group_instance_id="a")
            assert fenced.error_code is ErrorCode.fenced_instance_id

    run(story())


def test_offsets_are_committed_and_fetched_in_every_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            topic_id = node.node.state.topics["t"].id
            for version in served(node, COMMIT):
                unknown = (
                    ErrorCode.unknown_topic_id
                    if version >= 10
                    else ErrorCode.unknown_topic_or_partition
                )
                assert await commit(node, f"g{version}", version) == [OK, unknown]
            for version in served(node, FETCH):
                answer = await fetch(node, "g10", version)
                known, unknown_topic = answer.topics
                offsets = [each.committed_offset for each in known.partitions]
                assert offsets == [7, -1]
                assert known.partitions[0].metadata == "note"
                assert {each.committed_offset for each in unknown_topic.partitions} == {-1}
                if version >= 5:
                    assert known.partitions[0].committed_leader_epoch == 2
                if version >= 10:
                    assert known.topic_id == topic_id
                    assert unknown_topic.partitions[0].error_code is ErrorCode.unknown_topic_id
                else:
                    assert unknown_topic.partitions[0].error_code is OK
                if version >= 2:
                    assert answer.error_code is OK
                    answer = await fetch(node, "g10", version, all_topics=True)
                    assert len(answer.topics) == 1
                    assert len(answer.topics[0].partitions) == 1
                nothing = await fetch(node, "no such group", version)
                assert nothing.topics[0].partitions[0].committed_offset == -1

    run(story())


def test_several_groups_are_asked_about_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            await commit(node, "a")
            topics = [node.topic_fields("t", partition_indexes=[0])]
            groups = [
                {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
                for group in ("a", "b")
            ]
            answer = await node.ask(FETCH, 9, groups=groups, require_stable=False)
            offsets = [group.topics[0].partitions[0].committed_offset for group in answer.groups]
            assert offsets == [7, -1]

    run(story())


def test_groups_are_listed_described_and_deleted_in_every_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            await commit(node, "bare")
            joined = await join(node, "classic")
            await sync(node, "classic", joined)
            await beat(node, "new", "m", 0)
            for version in served(node, LIST):
                answer = await node.ask(LIST, version, states_filter=[], types_filter=[])
                assert answer.error_code is OK
                assert {each.group_id for each in answer.groups} == {"bare", "classic", "new"}
            for states, types, groups in (
                (["stable"], [], {"classic", "new"}),
                (["Empty"], [], {"bare"}),
                ([], ["CONSUMER"], {"new"}),
                (["Empty", "Stable"], ["classic"], {"bare", "classic"}),
                (["Dead"], [], set()),
            ):
                answer = await node.ask(LIST, 5, states_filter=states, types_filter=types)
                assert {each.group_id for each in answer.groups} == groups
            for version in served(node, DESCRIBE):
                answer = await node.ask(
                    DESCRIBE,
                    version,
                    groups=["classic", "bare", "none", "new"],
                    include_authorized_operations=True,
                )
                classic, bare, none, new = answer.groups
                assert (classic.group_state, classic.protocol_data) == ("Stable", "range")
                assert classic.members[0].member_assignment == b"work"
                assert classic.members[0].client_host == "/127.0.0.1"
                assert bare.group_state == "Empty"
                for each in (none, new):
                    assert each.group_state == "Dead"
                    expected = ErrorCode.group_id_not_found if version >= 6 else OK
                    assert each.error_code is expected
            for version in served(node, CONSUMER_DESCRIBE):
                answer = await node.ask(
                    CONSUMER_DESCRIBE,
                    version,
                    group_ids=["new", "classic"],
                    include_authorized_operations=False,
                )
                new, classic = answer.groups
                assert (new.group_state, new.group_epoch, new.assignor_name) == (
                    "Stable",
                    1,
                    "uniform",
                )
                [part] = new.members[0].assignment.topic_partitions
                assert (part.topic_name, part.partitions) == ("t", (0, 1))
                assert classic.error_code is ErrorCode.group_id_not_found
            for version in served(node, DELETE):
                await commit(node, f"gone-{version}")
                names = [f"gone-{version}", "classic", "none"]
                answer = await node.ask(DELETE, version, groups_names=names)
                assert [each.error_code for each in answer.results] == [
                    OK,
                    ErrorCode.non_empty_group,
                    ErrorCode.group_id_not_found,
                ]

    run(story())


def test_offsets_are_deleted_unless_somebody_reads_their_topic(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:

            async def delete(group: str) -> Any:
                return await node.ask(
                    DELETE_OFFSETS,
                    0,
                    group_id=group,
                    topics=[{"name": "t", "partitions": [{"partition_index": 0}]}],
                )

            await commit(node, "bare")
            answer = await delete("bare")
            assert answer.topics[0].partitions[0].error_code is OK
            assert (await fetch(node, "bare")).topics[0].partitions[0].committed_offset == -1
            joined = await join(node, "read")
            await sync(node, "read", joined)
            answer = await delete("read")
            code = answer.topics[0].partitions[0].error_code
            assert code is ErrorCode.group_subscribed_to_topic
            assert (await delete("none")).error_code is ErrorCode.group_id_not_found

    run(story())


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_of_a_consumer_group_enters_commits_and_leaves(
    tmp_path: Path, version: int
) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            topic_id = node.node.state.topics["t"].id
            entered = await beat(node, "g", "" if version == 0 else "m", 0, version=version)
            assert entered.error_code is OK
            member = entered.member_id
            assert member
            assert entered.heartbeat_interval == timedelta(seconds=2)
            [part] = entered.assignment.topic_partitions
            assert (part.topic_id, part.partitions) == (topic_id, (0, 1))
            owned = [{"topic_id": topic_id, "partitions": [0, 1]}]
            again = await beat(node, "g", member, 1, topic_partitions=owned, version=version)
            assert (again.error_code, again.member_epoch, again.assignment) == (OK, 1, None)
            fields = {"generation_id_or_member_epoch": 1, "member_id": member}
            assert (await commit(node, "g", **fields))[0] is OK
            fields["generation_id_or_member_epoch"] = 5
            assert (await commit(node, "g", **fields))[0] is ErrorCode.stale_member_epoch
            answer = await fetch(node, "g", 9, member_id=member, member_epoch=5)
            assert answer.error_code is ErrorCode.stale_member_epoch
            answer = await fetch(node, "g", 9, member_id=member, member_epoch=1)
            assert answer.topics[0].partitions[0].committed_offset == 7
            wrong = await beat(node, "g", member, 9, version=version)
            assert wrong.error_code is ErrorCode.fenced_member_epoch
            assert wrong.error_message
            gone = await beat(node, "g", member, -1, version=version)
            assert (gone.error_code, gone.member_epoch) == (OK, -1)

    run(story())


def test_a_pattern_subscribes_and_a_nameless_member_of_version_1_is_refused(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            nameless = await beat(node, "g", "", 0)
            assert nameless.error_code is ErrorCode.invalid_request
            entered = await beat(
                node, "g", "m", 0, subscribed_topic_names=None, subscribed_topic_regex="t.*"
            )
            assert entered.assignment.topic_partitions[0].partitions == (0, 1)
            await node.create("tt")
            again = await beat(node, "g", "m", 1)
            assert len(again.assignment.topic_partitions) == 2

    run(story())


def test_a_group_takes_no_members_of_the_other_protocol(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            await beat(node, "new", "m", 0)
            refused = await join(node, "new")
            assert refused.error_code is ErrorCode.inconsistent_group_protocol
            await join(node, "classic")
            answer = await beat(node, "classic", "m", 0)
            assert answer.error_code is ErrorCode.group_id_not_found

    run(story())


def test_offsets_of_a_deleted_topic_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            await commit(node, "g")
            await node.node.controller.delete_topic("t")
            await node.create("t", 2)
            offset = 7
            for _ in range(200):  # deleted topics are looked for a moment later
                answer = await fetch(node, "g")
                offset = answer.topics[0].partitions[0].committed_offset
                if offset == -1:
                    break
                await asyncio.sleep(0.05)
            assert offset == -1

    run(story())


def test_groups_are_found_again_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            joined = await join(node, "classic", instance="a")
            await sync(node, "classic", joined, group_instance_id="a")
            await commit(node, "bare")
            await beat(node, "new", "m", 0)
        async with broker(tmp_path) as node, coordinated(node) as [coordinator]:
            await until(lambda: loaded(coordinator), "the groups to be loaded")
            answer = await fetch(node, "bare", 9)
            assert answer.topics[0].partitions[0].committed_offset == 7
            answer = await node.ask(
                HEARTBEAT,
                4,
                group_id="classic",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id="a",
            )
            assert answer.error_code is OK
            answer = await beat(node, "new", "m", 1)
            assert (answer.error_code, answer.member_epoch) == (OK, 1)

    run(story())


def test_without_the_internal_topic_nobody_coordinates(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as node, coordinated(node):
            await node.create("t")
            lost = ErrorCode.not_coordinator
            assert (await join(node, "g")).error_code is lost
            assert (await commit(node, "g"))[0] is lost
            assert (await fetch(node, "g")).error_code is lost
            old = await fetch(node, "g", 1)
            assert old.topics[0].partitions[0].error_code is lost
            assert (await beat(node, "g", "m", 0)).error_code is lost
            answer = await node.ask(LIST, 5, states_filter=[], types_filter=[])
            assert (answer.error_code, answer.groups) == (OK, ())
            answer = await node.ask(DELETE, 2, groups_names=["g"])
            assert answer.results[0].error_code is lost
            answer = await node.ask(DESCRIBE, 6, groups=["g"], include_authorized_operations=False)
            assert answer.groups[0].error_code is lost
            answer = await node.ask(
                CONSUMER_DESCRIBE, 1, group_ids=["g"], include_authorized_operations=False
            )
            assert answer.groups[0].error_code is lost

    run(story())


def test_another_node_takes_over_with_all_members_and_offsets(tmp_path: Path) -> None:
    async def story() -> None:
        nodes = Nodes(tmp_path, 3)
        await nodes.start(1, 2, 3)
        running = [Broker(nodes[number]) for number in (1, 2, 3)]
        async with coordinated(*running) as coordinators:
            await running[0].node.controller.create_topic("t", 2, 3, {})
            await until(
                lambda: all("t" in node.node.state.topics for node in running), "all to know t"
            )
            leader = await coordinator_of(running, "g")
            joined = await join(leader, "g", instance="a")
            await sync(leader, "g", joined, group_instance_id="a")
            fields = {
                "generation_id_or_member_epoch": joined.generation_id,
                "member_id": joined.member_id,
                "group_instance_id": "a",
            }
            assert (await commit(leader, "g", **fields))[0] is OK
            others = [node for node in running if node is not leader]
            refused = [(await join(node, "g")).error_code for node in others]
            assert refused == [ErrorCode.not_coordinator] * 2

            await coordinators[running.index(leader)].stop()
            await nodes.stop(leader.node.id)
            successor = await coordinator_of(others, "g")
            answer = await fetch(successor, "g")
            assert answer.topics[0].partitions[0].committed_offset == 7
            synced = await sync(successor, "g", joined, group_instance_id="a")
            assert (synced.error_code, synced.assignment) == (OK, b"work")
        await nodes.stop_all()

    run(story())


def test_topic_ids_that_make_no_sense_do_no_harm(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            nonsense = [{"topic_id": UUID(int=99), "partitions": [-5, 2**31 - 1]}]
            entered = await beat(node, "g", "m", 0)
            answer = await beat(node, "g", "m", entered.member_epoch, topic_partitions=nonsense)
            assert answer.error_code is OK

    run(story())


def test_names_that_are_too_long_are_refused_by_every_api(tmp_path: Path) -> None:
    async def story() -> None:
        async with one(tmp_path) as node:
            long = "g" * 100_000
            invalid = ErrorCode.invalid_group_id
            assert (await find(node, long)).error_code is invalid
            assert (await join(node, long)).error_code is invalid
            assert (await commit(node, long))[0] is invalid
            assert (await fetch(node, long)).error_code is invalid
            assert (await beat(node, long, "m", 0)).error_code is invalid
            for name in (long, "é" * 3_000):
                member = await beat(node, "g", name, 0)
                assert member.error_code is ErrorCode.invalid_request
                static = await join(node, "g", instance=name)
                assert static.error_code is ErrorCode.invalid_request
            client = node.at("c" * 30_000)
            client.table = node.table
            assert len((await join(client, "g")).member_id) < 300
            many = await node.ask(DELETE, 2, groups_names=["none"] * 1_000)
            assert len(many.results) == 1_000

    run(story())
