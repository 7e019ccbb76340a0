"""Real nodes that found a cluster, lose members, take in others and start again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import Nodes, cluster, until, write

from tidelog.cluster.config import NodeConfig
from tidelog.cluster.errors import ClusterError, Problem, StartFailed
from tidelog.cluster.model import CONTROLLER_GROUP, Address, MemberStatus
from tidelog.cluster.node import Node
from tidelog.raft.types import NodeId
from tidelog.records import parse_batches


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the loop that nodes run on; one that hangs shows where."""

    async def limited() -> None:
        async with asyncio.timeout(120):
            await test

    uvloop.run(limited())


def test_three_nodes_found_one_cluster_and_know_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            ids = {node.state.cluster_id for node in nodes.running.values()}
            assert len(ids) == 1
            assert ids != {""}
            await until(
                lambda: all(
                    set(node.state.members) == {1, 2, 3} for node in nodes.running.values()
                ),
                "membership",
            )

    run(story())


def test_a_topic_that_one_node_creates_has_leaders_that_every_node_knows(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[3].controller.create_topic("t", 6, 3, {})
            assert nodes[3].state.topic("t").replication_factor == 3
            await until(
                lambda: all(
                    node.leader_of("t", index)[0] is not None
                    for node in nodes.running.values()
                    for index in range(6)
                ),
                "leaders",
            )
            leaders = [nodes[1].leader_of("t", index)[0] for index in range(6)]
            assert sorted(leaders) == [1, 1, 2, 2, 3, 3], leaders  # type: ignore[type-var]

    run(story())


def test_what_was_acknowledged_is_there_after_all_nodes_started_again(tmp_path: Path) -> None:
    async def story() -> None:
        nodes = Nodes(tmp_path, 3)
        await nodes.start(1, 2, 3)
        await nodes.any.controller.create_topic("t", 1, 3, {})
        leader = await nodes.leader("t")
        offsets = [await write(leader, b"value-%d" % number) for number in range(20)]
        assert offsets == list(range(20))
        epoch = leader.epoch
        await nodes.stop_all()

        await nodes.start(1, 2, 3)
        leader = await nodes.leader("t")
        assert leader.high_watermark == 20
        assert leader.epoch > epoch
        assert await write(leader, b"one more") == 20
        await nodes.stop_all()

    run(story())


def test_a_partition_that_has_become_quiet_is_saved_and_goes_on_from_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {"retention.ms": "-1"})
            leader = await nodes.leader("t")
            await write(leader, bytes(1 << 20))
            topics = tmp_path / "node-1" / "topics"
            await until(lambda: list(topics.glob("t/*/checkpoint")), "a checkpoint")
            await nodes.stop(1)

            await nodes.start(1)
            leader = await nodes.leader("t")
            assert leader.high_watermark == 1
            assert leader.read(0, 10).bytes > 1 << 20
            assert await write(leader, b"one more") == 1

    run(story())


def test_a_node_that_goes_hands_its_leadership_over_and_writes_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.any.controller.create_topic("t", 1, 3, {})
            leader = await nodes.leader("t")
            await write(leader, b"before")
            gone = leader.core.vnode.id
            await nodes.stop(gone)
            assert (await nodes.leader("t")).core.vnode.id != gone
            assert await nodes.write("t", 0, b"after") == 1
            await until(
                lambda: not any(node.is_alive(gone) for node in nodes.running.values()),
                "its absence",
            )

    run(story())


def test_the_cluster_changes_while_the_node_that_led_it_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await until(lambda: nodes.any.controller_id() is not None, "a controller")
            controller = nodes.any.controller_id()
            assert controller is not None
            await nodes.stop(controller)
            await until(lambda: not nodes.any.is_alive(controller), "its absence")
            await nodes.any.controller.create_topic("t", 1, 2, {})
            await nodes.write("t", 0, b"a")

    run(story())


def test_a_node_that_joins_later_gets_replicas(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.start(4)
            await until(lambda: 4 in nodes[1].state.members, "membership of node 4")
            assert nodes[4].state.cluster_id == nodes[1].state.cluster_id
            await nodes[1].controller.create_topic("t", 4, 3, {})
            hosts = {
                replica.id
                for partition in nodes[1].state.topic("t").partitions
                for replica in partition.replicas
            }
            assert 4 in hosts
            await until(
                lambda: any(
                    len(hosted.replica.core.configuration.voters) == 4
                    for node in nodes.running.values()
                    if (hosted := node.groups.get(CONTROLLER_GROUP)) is not None
                ),
                "a seat in group 0",
            )
            await nodes.stop(4)
            await nodes.start(4)  # and it finds its place again
            await until(lambda: len(nodes[4].hosting) > 0, "its replicas")

    run(story())


def test_a_partition_moves_to_other_nodes_with_all_it_holds(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            controller = nodes.any.controller
            one, two, three = NodeId(1), NodeId(2), NodeId(3)
            await controller.create_topic("t", 1, -1, {}, assignment=[[one, two]])
            leader = await nodes.leader("t")
            for number in range(50):
                await write(leader, b"x" * 1000 + b"%d" % number)
            await controller.reassign("t", 0, [three, two])
            state = nodes.any.state
            await until(
                lambda: (
                    state.partition_at("t", 0).target is None
                    and state.partition_at("t", 0).nodes == (3, 2)
                ),
                "the move",
            )
            await until(lambda: nodes[1].partition("t", 0) is None, "the old replica's end")
            assert (await nodes.leader("t")).core.vnode.id in (2, 3)
            assert await nodes.write("t", 0, b"after") == 50
            await until(lambda: not list((tmp_path / "node-1" / "topics").glob("t/*")), "deletion")

    run(story())


def test_a_node_that_is_decommissioned_ends_up_with_nothing_and_is_no_member(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as nodes:
            controller = nodes[1].controller
            await controller.create_topic("t", 8, 3, {})
            for index in range(8):
                await nodes.write("t", index, b"%d" % index)
            await controller.set_member_status(NodeId(4), MemberStatus.LEAVING)
            await until(lambda: 4 not in nodes[1].state.members, "its departure")
            for index in range(8):
                assert 4 not in nodes[1].state.partition_at("t", index).nodes
                assert await nodes.write("t", index, b"again") == 1
            await until(
                lambda: any(
                    len(hosted.replica.core.configuration.voters) == 3
                    for node in nodes.running.values()
                    if (hosted := node.groups.get(CONTROLLER_GROUP)) is not None
                ),
                "group 0 without it",
            )

    run(story())


def test_a_decommissioned_node_stays_out_until_its_directory_is_emptied(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.start(4)
            operate = nodes[1].operations
            await nodes[1].controller.set_member_status(NodeId(4), MemberStatus.LEAVING)
            await until(lambda: 4 not in nodes[1].state.members, "its departure")
            await nodes.stop(4)

            for _ in range(2):  # a repeat is refused as well
                with pytest.raises(StartFailed, match=r"decommissioned .* empty its data"):
                    await nodes.start(4)
                await nodes.running.pop(4).stop()
            assert 4 not in nodes[1].state.members
            again = json.loads(await operate.operate(_question("decommission", node=4)))
            assert again["result"]["status"] == "gone"

            old = tmp_path / "old"
            (tmp_path / "node-4").rename(old)
            await nodes.start(4)
            await until(lambda: 4 in nodes[1].state.members, "its return as a newcomer")
            await nodes.stop(4)
            shutil.rmtree(tmp_path / "node-4")
            old.rename(tmp_path / "node-4")
            with pytest.raises(StartFailed, match="decommissioned"):
                await nodes.start(4)
            await nodes.running.pop(4).stop()

    run(story())


def test_a_node_that_never_was_cannot_be_decommissioned(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            answer = json.loads(
                await nodes[1].operations.operate(_question("decommission", node=99))
            )
            assert answer["error"]["message"] == (
                "there is no node 99 in this cluster: its nodes are 1"
            )

    run(story())


def _question(operation: str, **arguments: object) -> bytes:
    return json.dumps({"operation": operation, "arguments": arguments}).encode()


def test_a_node_that_is_drained_leads_nothing_until_it_is_told_otherwise(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            controller = nodes.any.controller
            await controller.create_topic("t", 6, 3, {})
            for index in range(6):
                await nodes.leader("t", index)
            await controller.set_member_status(NodeId(1), MemberStatus.DRAINING)
            await until(lambda: nodes[1].hosting.led == 0, "the drain")
            await until(lambda: nodes[2].controller_id() != 1, "another controller")
            for index in range(6):
                assert (await nodes.leader("t", index)).core.vnode.id != 1
            await controller.set_member_status(NodeId(1), MemberStatus.ACTIVE)
            await until(lambda: nodes[1].may_lead, "its return")

    run(story())


def test_settings_of_a_topic_take_effect_while_it_is_used(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            controller = nodes.any.controller
            await controller.create_topic("t", 1, 3, {})
            leader = await nodes.leader("t")
            await controller.set_topic_config("t", {"flush.ms": "7", "flush.bytes": "12345"})
            await until(lambda: leader.config.flush_ms == 7, "the setting")
            assert leader.hosted.flush_ms == 7
            assert leader.core.options.flush_bytes == 12345
            await controller.set_topic_config("t", {"flush.ms": None})
            await until(lambda: leader.config.flush_ms == 100, "the default")

    run(story())


def test_what_makes_no_sense_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            controller = nodes[1].controller
            await controller.create_topic("t", 1, -1, {})
            for attempt, problem in (
                (controller.create_topic("t", 1, 1, {}), Problem.TOPIC_EXISTS),
                (controller.create_topic("a/b", 1, 1, {}), Problem.INVALID_NAME),
                (controller.create_topic("u", 0, 1, {}), Problem.INVALID_PARTITIONS),
                (controller.create_topic("u", 1, 2, {}), Problem.INVALID_REPLICATION),
                (controller.create_topic("u", 1, 1, {"flush.ms": "x"}), Problem.INVALID_CONFIG),
                (controller.delete_topic("nothing"), Problem.UNKNOWN_TOPIC),
                (controller.add_partitions("t", 1), Problem.INVALID_PARTITIONS),
                (controller.reassign("t", 5, [NodeId(1)]), Problem.UNKNOWN_PARTITION),
                (controller.cancel_reassign("t", 0), Problem.NOT_CHANGING),
                (
                    controller.set_member_status(NodeId(1), MemberStatus.LEAVING),
                    Problem.INVALID_REPLICATION,
                ),
            ):
                with pytest.raises(ClusterError) as refused:
                    await attempt
                assert refused.value.problem is problem

    run(story())


def test_a_topic_that_was_deleted_leaves_no_files(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 3, 1, {})
            await write(await nodes.leader("t"), b"a")
            await nodes[1].controller.delete_topic("t")
            await until(lambda: not list((tmp_path / "node-1" / "topics").iterdir()), "deletion")
            await nodes[1].controller.create_topic("t", 1, 1, {})
            assert await write(await nodes.leader("t"), b"anew") == 0

    run(story())


def test_what_follows_a_deletion_inside_a_batch_stays_readable(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {"retention.ms": "-1"})
            partition = await nodes.leader("t")
            await write(partition, *(b"%d" % number for number in range(10)))
            await write(partition, *(b"%d" % number for number in range(10, 30)))
            deleted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            partition.delete_before(25, deleted.set_result)
            assert await deleted == 25
            await until(lambda: partition.replica.log.start > 0, "the files' own beginning")
            assert (partition.log_start, partition.high_watermark) == (25, 30)
            chunk = partition.read(25, 1 << 20)
            (batch,) = parse_batches(b"".join(chunk.parts))
            assert (batch.base_offset, batch.last_offset, chunk.next_offset) == (10, 29, 30)

    run(story())


def test_a_directory_belongs_to_one_node_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1):
            second = Node(NodeConfig(id=1, data=tmp_path / "node-1"))
            with pytest.raises(StartFailed, match="another node uses"):
                await second.start(Address("127.0.0.1", 1))
        other = Node(NodeConfig(id=2, data=tmp_path / "node-1"))
        with pytest.raises(StartFailed, match="holds the data of node 1"):
            await other.start(Address("127.0.0.1", 1))
        await asyncio.sleep(0)

    run(story())


def test_a_status_tells_how_the_controllers_own_replicas_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await until(lambda: nodes.any.controller_id() is not None, "a controller")
            controller = nodes.any.controller_id()
            follower = next(node for node in nodes.running.values() if node.id != controller)
            hosted = follower.groups.get(CONTROLLER_GROUP)
            assert hosted is not None
            hosted.replica.failed = "Input/output error"
            answer = json.loads(await nodes.any.operations.operate(_question("status")))["result"]
            (shown,) = [each for each in answer["nodes"] if each["id"] == follower.id]
            assert "Input/output error" in shown["controller_replica"]["failed"]
            assert answer["controller"] == controller

    run(story())
