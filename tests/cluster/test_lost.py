"""Replicas that were lost: what the state makes of them, and how real nodes rebuild them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import Nodes, cluster, until
from tests.cluster.orders import T, Town, cancel, create, lose, nodes, reassign

from tidelog.cluster import commands as cmd
from tidelog.cluster.errors import Problem
from tidelog.cluster.model import PartitionState
from tidelog.raft.types import GroupId, NodeId, Vnode


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test

    uvloop.run(limited())


def tide(town: Town) -> PartitionState:
    return town.state.partition_at("tide", 0)


def lose_one(town: Town, node: int) -> Vnode:
    """Lose the replica that a node has now; return its successor."""
    mine = tide(town).replica_on(NodeId(node))
    assert mine is not None
    revision = town.number(lose(node, tide(town).group, mine.revision))
    return Vnode(NodeId(node), revision)


def finish(town: Town) -> None:
    target = tide(town).target
    assert target is not None
    town.do(cmd.FinishReassign(token=T, group=tide(town).group, target=target))


class TestState:
    def test_a_lost_replica_gets_a_successor_on_its_node(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        before = tide(town)
        successor = lose_one(town, 3)
        now = tide(town)
        assert now.replicas == before.replicas
        assert now.target == (*before.replicas[:2], successor)
        assert successor.revision > before.replicas[2].revision
        assert now.replica_on(NodeId(3)) == successor
        assert [each.id for each in now.hosts] == [1, 2, 3]
        assert now.rebuilding == (successor,)
        assert not now.moves
        assert town.state.replica_counts[NodeId(3)] == 1
        finish(town)
        assert tide(town).replicas == now.target
        assert not tide(town).rebuilding

    def test_a_replica_is_replaced_once(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        lost = lose(3, tide(town).group, tide(town).replicas[2].revision)
        town.do(lost)
        assert town.refuses(lost) is Problem.NOT_CHANGING
        finish(town)
        assert town.refuses(lost) is Problem.NOT_CHANGING
        assert town.refuses(lose(3, 99, 1)) is Problem.NOT_CHANGING

    def test_a_successor_can_be_lost_as_well(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        first = lose_one(town, 3)
        second = lose_one(town, 3)
        assert second != first
        assert tide(town).target == (*tide(town).replicas[:2], second)

    def test_a_replica_that_is_lost_during_a_move_is_replaced_where_the_move_leads(self) -> None:
        town = Town.founded(1, 2, 3, 4)
        town.do(create("tide", (1, 2, 3)))
        town.do(reassign("tide", 0, 4, 2, 3))
        newcomer = tide(town).hosts[-1]
        lost = lose_one(town, 3)
        target = tide(town).target
        assert target is not None
        assert target == (newcomer, tide(town).replicas[1], lost)
        assert tide(town).moves
        # Node 1 is to lose its replica anyway.
        gone = tide(town).replicas[0]
        assert town.refuses(lose(1, tide(town).group, gone.revision)) is Problem.NOT_CHANGING
        town.do(cancel("tide", 0))
        assert tide(town).target == (*tide(town).founding[:2], lost)
        assert lose_one(town, 1).revision > gone.revision  # it is to stay after all

    def test_rebuilding_is_not_called_off_and_does_not_hinder_a_move(self) -> None:
        town = Town.founded(1, 2, 3, 4)
        town.do(create("tide", (1, 2, 3)))
        lose_one(town, 3)
        assert town.refuses(cancel("tide", 0)) is Problem.NOT_CHANGING
        town.do(reassign("tide", 0, 1, 2, 4))
        target = tide(town).target
        assert target is not None
        assert [each.id for each in target] == [1, 2, 4]
        assert tide(town).moves

    def test_a_new_order_of_replicas_is_kept_while_one_of_them_is_rebuilt(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        one, lost, three = tide(town).replicas
        successor = lose_one(town, 2)
        town.do(reassign("tide", 0, 3, 2, 1))
        now = tide(town)
        assert now.replicas == (three, lost, one)
        assert now.target == (three, successor, one)
        assert not now.moves
        assert now.rebuilding == (successor,)
        # The files of the lost replica are kept until its successor has caught up.
        assert set(now.known) == {one, lost, three, successor}
        assert set(now.founding) == {one, lost, three}
        finish(town)
        assert tide(town).nodes == (3, 2, 1)
        assert tide(town).replicas == (three, successor, one)

    def test_only_those_who_began_a_group_open_it_as_its_voters(self) -> None:
        town = Town.founded(1, 2)
        town.do(create("tide", (1,)))
        founder = tide(town).replicas
        assert tide(town).founding == founder
        town.do(reassign("tide", 0, 2))
        town.do(cancel("tide", 0))
        assert tide(town).nodes == (2,)  # where the group may be by now, and knows it by its log
        assert tide(town).founding == founder
        finish(town)
        assert tide(town).founding == ()

    def test_one_command_replaces_many_replicas_of_a_node(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2), (2, 3), (3, 1)))
        groups = [each.group for each in town.state.topic("tide").partitions]
        revision = town.state.partition_at("tide", 0).replicas[0].revision
        lost = tuple(cmd.LostReplica(group, revision) for group in (*groups, GroupId(99)))
        town.do(cmd.ReplaceReplicas(token=T, node=nodes(1)[0], lost=lost + lost))
        rebuilding = [bool(each.rebuilding) for each in town.state.topic("tide").partitions]
        assert rebuilding == [True, False, True]


# --- Real nodes -----------------------------------------------------------------------------------


def directories(path: Path, node: int) -> list[Path]:
    return sorted((path / f"node-{node}" / "topics" / "t").glob("*"))


async def rebuilt(all_nodes: Nodes, node: int, was: Vnode, path: Path, *numbers: int) -> None:
    """Wait until a node has another replica, as a voter with all that was written."""

    def holds() -> bool:
        partition = all_nodes[node].partition("t", 0)
        if partition is None or partition.core.vnode == was:
            return False
        voters = partition.core.configuration.voters
        state = all_nodes[node].state.partition_at("t", 0)
        return partition.core.vnode in voters and state.target is None

    await until(holds, "the rebuilt replica")
    leader = await all_nodes.leader("t")
    await until(
        lambda: all(
            (partition := all_nodes[number].partition("t", 0)) is not None
            and partition.high_watermark == leader.high_watermark
            for number in numbers
        ),
        "its records",
    )
    await until(lambda: len(directories(path, node)) == 1, "the end of the old files")


def test_a_leader_whose_replica_is_lost_hands_over_and_is_rebuilt(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", 1, 3, {})
            for number in range(20):
                assert await all_nodes.write("t", 0, b"%d" % number) == number
            leader = await all_nodes.leader("t")
            lost = leader.core.vnode
            all_nodes[lost.id].hosting.replica_lost(leader.group, "its disk lies")
            assert not leader.is_leader
            assert await all_nodes.write("t", 0, b"after") == 20
            await rebuilt(all_nodes, lost.id, lost, tmp_path, 1, 2, 3)
            assert await all_nodes.write("t", 0, b"again") == 21

    run(story())


def test_a_replica_whose_files_are_gone_is_closed_and_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", 1, 3, {})
            await all_nodes.write("t", 0, b"before")
            leader = await all_nodes.leader("t")
            lost = leader.core.vnode
            (files,) = directories(tmp_path, lost.id)
            shutil.rmtree(files)
            await all_nodes.write("t", 0, b"to open files")
            all_nodes[lost.id].hosting.replica_lost(leader.group, "its files are gone")
            await rebuilt(all_nodes, lost.id, lost, tmp_path, 1, 2, 3)
            assert await all_nodes.write("t", 0, b"after") == 2

    run(story())
    # An exception there would end a turn of the loop in which other replicas have their due.
    assert "Exception in callback" not in caplog.text


def test_a_log_that_is_damaged_at_a_start_is_rebuilt(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", 1, 3, {})
            for number in range(20):
                assert await all_nodes.write("t", 0, b"%d" % number) == number
            partition = all_nodes[3].partition("t", 0)
            assert partition is not None
            lost = partition.core.vnode
            await until(lambda: partition.replica.log.flushed == partition.core.appended, "disk")
            await all_nodes.stop(3)
            (segment,) = (tmp_path / "node-3" / "topics").glob("t/*/log/*.log")
            content = segment.read_bytes()
            segment.write_bytes(content[: len(content) // 2])
            await all_nodes.start(3)
            await rebuilt(all_nodes, 3, lost, tmp_path, 1, 2, 3)
            assert await all_nodes.write("t", 0, b"after") == 20

    run(story())


def test_a_lost_replica_waits_for_a_controller(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", 1, 3, {})
            await all_nodes.write("t", 0, b"a")
            partition = all_nodes[1].partition("t", 0)
            assert partition is not None
            lost = partition.core.vnode
            await all_nodes.stop(2, 3)
            all_nodes[1].hosting.replica_lost(partition.group, "its disk lies")
            await until(lambda: all_nodes[1].partition("t", 0) is None, "its end")
            assert len(directories(tmp_path, 1)) == 1
            await all_nodes.start(2, 3)
            await rebuilt(all_nodes, 1, lost, tmp_path, 1, 2, 3)

    run(story())
