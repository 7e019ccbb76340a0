"""A majority that is gone for good: the cluster waits until an operator goes on without it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import Nodes, cluster, until
from tests.cluster.orders import Town, create, lose, nodes
from tests.cluster.test_identity import KEEP, starting

from tidelog.cluster import commands as cmd
from tidelog.cluster import joining
from tidelog.cluster.errors import Problem
from tidelog.cluster.jointoken import JoinToken, read_secret
from tidelog.cluster.model import CONTROLLER_GROUP, GROUP_MARGIN, NOTHING_LEFT, PartitionState
from tidelog.cluster.recovering import Fate, RecoveryRefused, Survey, rescue
from tidelog.raft.types import GroupId, NodeId, Vnode

A_WHILE_S = 2.0


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(150):
            await test

    uvloop.run(limited())


# --- The state ------------------------------------------------------------------------------------


def tide(town: Town, index: int = 0) -> PartitionState:
    return town.state.partition_at("tide", index)


def recover(*lost: int, node: int = 1, empty: bool = False) -> cmd.RecoverCluster:
    return cmd.RecoverCluster(
        token=cmd.new_token(),
        node=NodeId(node),
        cluster_id="harbour-2",
        lost=nodes(*lost),
        empty=empty,
        at_ms=1,
        end=7,
    )


def survivors(town: Town, *places: tuple[int, int, int]) -> cmd.RecoverPartitions:
    return cmd.RecoverPartitions(
        token=cmd.new_token(),
        node=NodeId(1),
        survivors=tuple(
            cmd.Survivor(tide(town, index).group, NodeId(node), revision)
            for index, node, revision in places
        ),
        at_ms=1,
    )


class TestState:
    def test_nobody_who_was_a_voter_before_is_one_afterwards(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (2, 1, 3)))
        before = tide(town)
        revision = town.number(recover(2, 3))
        now = tide(town)
        assert [member.revision for member in town.state.members.values()] == [revision] * 3
        assert now.target == tuple(Vnode(NodeId(each), revision) for each in (2, 1, 3))
        heir = town.state.heirs[now.group]
        assert heir.vnode == Vnode(NodeId(1), revision)
        assert heir.former == before.replicas[1]
        assert town.state.knows(now.group, before.replicas[1])  # its files are to be taken over
        assert now.replica_on(NodeId(1)) == heir.vnode
        assert not now.moves  # so that a decommission may place the others elsewhere
        assert town.state.cluster_id == "harbour-2"

    def test_numbers_that_the_lost_end_may_have_given_out_are_not_given_out_again(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        group = tide(town).group
        town.do(recover(2, 3))
        assert town.state.gave_out(group)
        assert not town.state.gave_out(GroupId(group + 1))
        town.do(create("ebb", (1,)))
        after = town.state.partition_at("ebb", 0).group
        assert after == group + 1 + GROUP_MARGIN
        assert town.state.gave_out(after)

    def test_partitions_with_a_majority_left_only_replace_what_is_lost(self) -> None:
        town = Town.founded(1, 2, 3, 4, 5)
        town.do(create("tide", (1, 4, 2), (2, 3, 4), (2, 3, 5), (1, 4, 4 - 1)))
        before = [tide(town, index) for index in range(4)]
        revision = town.number(recover(2, 3, 5))
        lost = Vnode(NodeId(2), revision)
        assert tide(town, 0).target == (*before[0].replicas[:2], lost)
        assert tide(town, 0).founding == before[0].replicas
        assert town.state.heirs.keys() == {before[1].group}
        assert town.state.heirs[before[1].group].vnode == Vnode(NodeId(4), revision)
        assert tide(town, 2).target == tuple(
            Vnode(each.id, revision) for each in before[2].replicas
        )

    def test_what_is_gone_begins_anew_only_if_that_is_asked_for(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (2, 3)))
        revision = town.number(recover(2, 3, empty=True))
        heir = town.state.heirs[tide(town).group]
        assert heir.vnode == Vnode(NodeId(1), revision)
        assert heir.former is None
        assert tide(town).nodes == (1, 3)
        assert town.state.recoveries[-1].empty == 1

    def test_an_heir_is_one_until_the_others_have_caught_up(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        town.do(recover(2, 3))
        target = tide(town).target
        assert target is not None
        group = tide(town).group
        town.do(cmd.FinishReassign(token=cmd.new_token(), group=group, target=target))
        assert not town.state.heirs
        assert tide(town).replicas == target

    def test_one_partition_is_recovered_in_a_cluster_that_is_well(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        before = tide(town).replicas
        for each in before[1:]:
            town.do(lose(each.id, tide(town).group, each.revision))
        revision = town.number(survivors(town, (0, 1, before[0].revision)))
        assert tide(town).target == tuple(Vnode(each.id, revision) for each in before)
        assert tide(town).replicas == (Vnode(NodeId(1), revision), *tide(town).replicas[1:])
        stale = survivors(town, (0, 1, before[0].revision))
        assert town.refuses(stale) is Problem.NOT_CHANGING
        town.do(survivors(town, (0, 3, NOTHING_LEFT)))
        assert town.state.heirs[tide(town).group].former is None

    def test_a_recovered_state_is_restored(self) -> None:
        town = Town.founded(1, 2, 3)
        town.do(create("tide", (1, 2, 3)))
        town.do(recover(2, 3))
        copy = town.copy()
        assert copy.heirs == town.state.heirs
        assert copy.recoveries == town.state.recoveries
        assert "without nodes 2, 3" in str(copy.recoveries[-1])

    def test_only_members_are_given_up_and_never_the_one_that_goes_on(self) -> None:
        town = Town.founded(1, 2, 3)
        assert town.refuses(recover(1, 2)) is Problem.UNKNOWN_NODE
        assert town.refuses(recover(2, 9)) is Problem.UNKNOWN_NODE


# --- Real nodes -----------------------------------------------------------------------------------


def go_on(path: Path, number: int, *keep: int, empty: bool = False) -> Survey:
    """Recover on one node, as the command does; return what it found first."""
    with rescue(path / f"node-{number}") as found:
        survey = found.survey(keep)
        found.go_on(survey, empty=empty)
    return survey


async def has(all_nodes: Nodes, topic: str, end: int, *numbers: int) -> None:
    """Wait until these nodes have a partition up to an offset, as voters."""

    def holds() -> bool:
        found = [all_nodes[number].partition(topic, 0) for number in numbers]
        return all(
            each is not None
            and each.high_watermark == end
            and each.core.vnode in each.core.configuration.voters
            for each in found
        )

    await until(holds, f"{topic} on {numbers} up to {end}")


def seated(all_nodes: Nodes) -> set[int]:
    """Return the voters of the controller, as node 1 knows them."""
    hosted = all_nodes[1].groups.get(CONTROLLER_GROUP)
    assert hosted is not None
    return {each.id for each in hosted.replica.core.configuration.voters}


def wipe(path: Path, *numbers: int) -> None:
    for number in numbers:
        shutil.rmtree(path / f"node-{number}")


def test_two_of_three_are_gone_and_the_third_goes_on_with_all_that_it_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "MAJORITY_S", 1.0)

    async def story() -> None:
        all_nodes = Nodes(tmp_path, 3)
        await all_nodes.start(1, 2, 3)
        await all_nodes.any.controller.create_topic("t", 1, 3, KEEP)
        for number in range(20):
            assert await all_nodes.write("t", 0, b"%d" % number) == number
        await has(all_nodes, "t", 20, 1, 2, 3)
        before = all_nodes[1].state.cluster_id
        await all_nodes.stop_all()
        shutil.copytree(tmp_path / "node-3", tmp_path / "old-3")
        wipe(tmp_path, 2, 3)

        # Nothing happens by itself, and the survivor says what can be done.
        async with starting(all_nodes, 1, 2, 3) as tasks:
            await until(lambda: "tidelog node recover --data" in caplog.text, "the way on")
            assert not any(task.done() for task in tasks)

        survey = go_on(tmp_path, 1)
        assert survey.lost == (2, 3)
        assert [each.fate for each in survey.partitions] == [Fate.ALONE]
        assert survey.partitions[0].flushed == 20  # the configuration counts too

        await all_nodes.start(1)
        assert all_nodes[1].state.cluster_id != before
        assert (await all_nodes.leader("t")).high_watermark == 20
        assert await all_nodes.write("t", 0, b"after") == 20
        assert "this cluster was recovered on" in caplog.text
        # A group with two members that nobody ever sees again would never have a leader.
        await all_nodes.any.controller.create_topic("new", 1, -1, KEEP)
        assert await all_nodes.write("new", 0, b"a") == 0

        # Two empty nodes take the places of those that are gone; neither waits for the other.
        await all_nodes.start(2)
        await has(all_nodes, "t", 21, 1, 2)
        await until(lambda: seated(all_nodes) == {1, 2}, "two voters of the controller")
        await all_nodes.start(3)
        await has(all_nodes, "t", 21, 1, 2, 3)
        await until(lambda: not all_nodes[1].state.heirs, "the end of going on alone")
        await until(lambda: seated(all_nodes) == {1, 2, 3}, "three voters of the controller")
        await all_nodes.stop(1)
        assert await all_nodes.write("t", 0, b"without the survivor") == 21
        await all_nodes.start(1)

        # A node that was given up is told what to do with its directory.
        await all_nodes.stop(3)
        shutil.rmtree(tmp_path / "node-3")
        (tmp_path / "old-3").rename(tmp_path / "node-3")
        caplog.clear()
        async with starting(all_nodes, 3) as tasks:
            await until(
                lambda: "joins as a new node once its data directory is empty" in caplog.text,
                "a refusal",
            )
            await asyncio.sleep(A_WHILE_S)
            assert not tasks[0].done()
            assert await all_nodes.write("t", 0, b"in spite of it") == 22
        await all_nodes.stop_all()

    with caplog.at_level(logging.INFO, "tidelog"):
        run(story())


def test_nodes_of_other_ids_take_over_what_those_had_that_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        all_nodes = Nodes(tmp_path, 3)
        await all_nodes.start(1, 2, 3)
        await all_nodes.any.controller.create_topic("t", 1, 3, KEEP)
        for number in range(20):
            assert await all_nodes.write("t", 0, b"%d" % number) == number
        await has(all_nodes, "t", 20, 1, 2, 3)
        await all_nodes.stop_all()
        wipe(tmp_path, 2, 3)
        go_on(tmp_path, 1)
        await all_nodes.start(1)
        await all_nodes.start(4, 5)
        for gone in (2, 3):
            question = {"operation": "decommission", "arguments": {"node": gone}}
            answer = await all_nodes[1].operate(json.dumps(question).encode())
            assert "result" in json.loads(answer), answer
        await until(lambda: all_nodes[1].state.members.keys() == {1, 4, 5}, "that they are gone")
        await has(all_nodes, "t", 20, 1, 4, 5)
        await until(lambda: seated(all_nodes) == {1, 4, 5}, "the voters of the controller")
        assert await all_nodes.write("t", 0, b"after") == 20
        await all_nodes.stop_all()

    run(story())


def test_a_kept_node_brings_its_data_into_the_recovered_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        all_nodes = Nodes(tmp_path, 5)
        await all_nodes.start(1, 2, 3, 4, 5)
        controller = all_nodes.any.controller
        place = [[NodeId(4), NodeId(2), NodeId(3)]]
        await controller.create_topic("t", -1, -1, KEEP, assignment=place)
        await controller.create_topic("gone", -1, -1, KEEP, assignment=[[NodeId(2), NodeId(3)]])
        for number in range(20):
            assert await all_nodes.write("t", 0, b"%d" % number) == number
        await has(all_nodes, "t", 20, 2, 3, 4)
        await until(
            lambda: all(each.state.version == 0 or each.state.topics.keys() >= {"t", "gone"}
                        for each in all_nodes.running.values()), "the topics",
        )  # fmt: skip
        await all_nodes.stop_all()
        wipe(tmp_path, 2, 3, 5)

        survey = go_on(tmp_path, 1, 4)
        assert {each.topic: each.fate for each in survey.partitions} == {
            "t": Fate.ALONE,
            "gone": Fate.GONE,
        }
        await all_nodes.start(1)
        kept = read_secret(tmp_path / "node-1")
        assert kept is not None
        with rescue(tmp_path / "node-4", needs_log=False) as found:
            found.follow(JoinToken(kept.secret, kept.cluster_id))
        await all_nodes.start(4)
        assert await all_nodes.write("t", 0, b"after") == 20
        assert all_nodes[4].state.cluster_id == kept.cluster_id
        status = all_nodes[1].operations.majorities.describe(10)
        assert status["majority_gone"] == ["gone/0"]
        assert len(status["recoveries"]) == 1
        await all_nodes.stop_all()

    run(story())


def test_a_partition_that_lost_two_of_three_goes_on_where_an_operator_says_so(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", 1, 3, KEEP)
            for number in range(20):
                assert await all_nodes.write("t", 0, b"%d" % number) == number
            await has(all_nodes, "t", 20, 1, 2, 3)
            node = all_nodes[1]
            with pytest.raises(Exception, match="nothing to recover"):
                await node.operations.majorities.recover({"partitions": ["t/0"]})
            for number in (2, 3):
                partition = all_nodes[number].partition("t", 0)
                assert partition is not None
                partition.replica.lose("its disk lies")
            majorities = node.operations.majorities
            await until(lambda: majorities.describe(9)["majority_gone"] == ["t/0"], "the news")
            seen = await majorities.recover({"partitions": ["t/0"]})
            assert seen["recovered"] == 0
            (found,) = seen["partitions"]
            assert found["survivor"]["node"] == 1
            assert found["silent"] == ()
            done = await majorities.recover({"partitions": ["t/0"], "confirm": True})
            assert done["recovered"] == 1
            assert await all_nodes.write("t", 0, b"after") == 20
            await has(all_nodes, "t", 21, 1, 2, 3)
            await until(lambda: not node.state.heirs, "the end of going on alone")
            left = sorted((tmp_path / "node-1" / "topics" / "t").iterdir())
            assert len(left) == 1
            # What it became outlives a restart.
            await all_nodes.stop(1)
            await all_nodes.start(1)
            await has(all_nodes, "t", 21, 1, 2, 3)

    run(story())


def test_a_partition_of_which_nothing_is_left_begins_anew_only_if_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await all_nodes.any.controller.create_topic("t", -1, -1, KEEP, assignment=[[NodeId(2)]])
            await all_nodes.write("t", 0, b"a")
            term = (await all_nodes.leader("t")).core.term
            partition = all_nodes[2].partition("t", 0)
            assert partition is not None
            partition.replica.lose("its disk lies")
            majorities = all_nodes[1].operations.majorities
            await until(lambda: majorities.describe(9)["majority_gone"] == ["t/0"], "the news")
            done = await majorities.recover({"confirm": True})
            assert done["recovered"] == 0
            done = await majorities.recover({"confirm": True, "empty": True})
            assert done["recovered"] == 1
            leader = await all_nodes.leader("t")
            assert leader.high_watermark == 0
            assert leader.core.term > term
            assert await all_nodes.write("t", 0, b"b") == 0

    run(story())


def test_a_directory_in_use_or_of_no_member_is_not_recovered(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "a", 1) as one:
            with pytest.raises(RecoveryRefused, match="stop it first"):
                go_on(tmp_path / "a", 1)
            await one.stop(1)
            with rescue(tmp_path / "a" / "node-1") as found:
                assert found.survey().has_majority
                with pytest.raises(RecoveryRefused, match="nodes 7 are not members"):
                    found.survey([7])
            await one.start(1)  # looking changed nothing
        with pytest.raises(RecoveryRefused, match="not the data directory of a node"):
            go_on(tmp_path / "nowhere", 1)
        assert not (tmp_path / "nowhere").exists()
        newcomers = Nodes(tmp_path / "b", 2)
        async with starting(newcomers, 1):
            await until((tmp_path / "b" / "node-1" / "node.json").exists, "its identity")
        with pytest.raises(RecoveryRefused, match="never was a member"):
            go_on(tmp_path / "b", 1)

    run(story())
