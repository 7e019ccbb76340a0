"""Who a node is: founders that ask first, nodes that lost their memory, and second processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import HOST, Nodes, cluster, until

from tidelog.cluster.config import Listener, Seed
from tidelog.cluster.errors import StartFailed
from tidelog.cluster.identity import load_identity
from tidelog.cluster.model import CONTROLLER_GROUP, Address
from tidelog.cluster.node import Node
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import parse_batches

# How long something must not happen that would be wrong: a few elections take less.
A_WHILE_S = 3.0
KEEP = {"retention.ms": "-1"}  # the records of these tests are from 1970


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(150):
            await test

    uvloop.run(limited())


@contextlib.asynccontextmanager
async def starting(nodes: Nodes, *numbers: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Start nodes that may have to wait for others; they are stopped if they still do."""
    made = {number: Node(nodes.config(number)) for number in numbers}
    tasks = [
        asyncio.create_task(node.start(Address(HOST, 20_000 + number)))
        for number, node in made.items()
    ]
    try:
        yield tasks
    finally:
        for (number, node), task in zip(made.items(), tasks, strict=True):
            if task.done() and not task.cancelled() and task.exception() is None:
                nodes.running[number] = node
            else:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, StartFailed):
                    await task


async def values(nodes: Nodes, topic: str) -> int:
    return (await nodes.leader(topic)).high_watermark


async def whole(nodes: Nodes, *numbers: int) -> None:
    """Wait until every node has all records of `t` as a voter, and nothing is being rebuilt."""

    def holds() -> bool:
        partitions = [nodes[number].partition("t", 0) for number in numbers]
        leaders = [each for each in partitions if each is not None and each.is_leader]
        state = nodes[numbers[0]].state.partition_at("t", 0)
        return bool(leaders) and all(
            each is not None
            and each.core.vnode in each.core.configuration.voters
            and each.high_watermark == leaders[0].high_watermark
            and state.target is None
            for each in partitions
        )

    await until(holds, "that all is rebuilt")


class TestFounding:
    def test_the_id_of_a_cluster_follows_from_its_founders_and_stays(self, tmp_path: Path) -> None:
        async def story() -> None:
            nodes = Nodes(tmp_path, 3)
            await nodes.start(1, 2, 3)
            identities = [node.joining.identity for node in nodes.running.values()]
            assert len({each.cluster_id for each in identities}) == 1
            assert identities[0].births.keys() == {"1", "2", "3"}
            assert all(each.births == identities[0].births for each in identities)
            assert nodes[1].state.cluster_id == identities[0].cluster_id
            await nodes.stop_all()
            await nodes.start(2, 3)
            assert nodes[2].joining.identity.cluster_id == identities[0].cluster_id
            await nodes.stop_all()

        run(story())

    def test_two_founders_wait_for_the_third_and_say_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def story() -> None:
            nodes = Nodes(tmp_path, 3)
            with caplog.at_level(logging.INFO, "tidelog"):
                async with starting(nodes, 1, 2) as tasks:
                    await until(
                        lambda: "waiting for node 3" in caplog.text, "the sentence about it"
                    )
                    assert not any(task.done() for task in tasks)
                    async with starting(nodes, 3) as more:
                        await asyncio.gather(*tasks, *more)
            assert len({node.state.cluster_id for node in nodes.running.values()}) == 1
            await nodes.stop_all()

        run(story())

    def test_a_founder_whose_directory_was_emptied_founds_nothing(self, tmp_path: Path) -> None:
        async def story() -> None:
            nodes = Nodes(tmp_path, 3)
            await nodes.start(1, 2, 3)
            cluster_id = nodes[1].state.cluster_id
            await nodes.stop_all()
            for number in (2, 3):
                shutil.rmtree(tmp_path / f"node-{number}")
            async with starting(nodes, 2, 3) as tasks:
                await asyncio.sleep(A_WHILE_S)  # a majority of the seeds, and not of the cluster
                assert not any(task.done() for task in tasks)
                async with starting(nodes, 1) as first:
                    await asyncio.sleep(A_WHILE_S)
                    assert not any(task.done() for task in (*tasks, *first))
            assert nodes.config(2).data.exists()
            assert f'"{cluster_id}"' in (tmp_path / "node-1" / "node.json").read_text()
            assert cluster_id not in (tmp_path / "node-2" / "node.json").read_text()

        run(story())

    def test_a_directory_belongs_to_one_cluster(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def story() -> None:
            async with cluster(tmp_path / "a", 1) as ours, cluster(tmp_path / "b", 1) as theirs:
                port = theirs.config(1).rpc.port
                await ours.start(2)
                await ours.stop(2)
                stray = ours.config(2).model_copy(
                    update={"seeds": (Seed(id=1, host=HOST, port=port),)}
                )
                node = Node(stray)
                start = asyncio.create_task(node.start(Address(HOST, 20_002)))
                await until(
                    lambda: "belongs to another cluster of the same name" in caplog.text, "news"
                )
                assert not start.done()
                assert 2 not in theirs[1].state.members
                start.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await start

        run(story())


def test_what_two_nodes_acknowledged_is_not_forgotten_when_one_of_them_is_emptied(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        nodes = Nodes(tmp_path, 3)
        await nodes.start(1, 2, 3)
        await nodes.any.controller.create_topic("t", 1, 3, KEEP)
        await nodes.leader("t")
        await until(lambda: all(each.partition("t", 0) for each in nodes.running.values()), "t")
        await nodes.stop(3)
        for number in range(50):
            assert await nodes.write("t", 0, b"%d" % number) == number
        await nodes.stop_all()
        shutil.rmtree(tmp_path / "node-2")

        async with starting(nodes, 2, 3) as tasks:
            await asyncio.sleep(A_WHILE_S)
            assert not any(task.done() for task in tasks)  # unavailable, and nothing forgotten
            async with starting(nodes, 1) as first:
                await asyncio.gather(*first, *tasks)
        assert await values(nodes, "t") == 50
        await whole(nodes, 1, 2, 3)
        assert nodes[2].joining.identity.revision != 0
        assert await nodes.write("t", 0, b"after") == 50
        await until(
            lambda: any(
                set(hosted.replica.core.configuration.voters)
                == {member.vnode for member in node.state.members.values()}
                for node in nodes.running.values()
                if (hosted := node.groups.get(CONTROLLER_GROUP)) is not None
            ),
            "its seat in group 0",
        )
        await nodes.stop(1)  # node 2 counts again
        assert await nodes.write("t", 0, b"without the first") == 51
        await nodes.stop_all()

    run(story())


def replica(data: Path) -> Path:
    (found,) = (data / "topics" / "t").iterdir()
    return found


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_segments(data: Path) -> None:
    for each in (replica(data) / "log").glob("*.log"):
        each.unlink()


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def cut_last_batch(data: Path) -> None:
    """End the log where the last batch begins: a log that a crash might have left."""
    segments = (replica(data) / "log").glob("*.log")
    path = max(segments, key=lambda each: int(each.name.partition("-")[0]))
    content = path.read_bytes()
    sizes = [batch.size for batch in parse_batches(content)]
    cut(path, sum(sizes[:-1]))


def swap_replicas(data: Path) -> None:
    """Exchange the directories of two replicas."""
    one = replica(data)
    (other,) = (data / "topics" / "u").iterdir()
    aside = data / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


LOSSES: dict[str, Callable[[Path], None]] = {
    "everything": shutil.rmtree,
    "the identity": lambda data: remove(data / "node.json"),
    "the registry": lambda data: remove(data / "registry"),
    "a damaged registry": lambda data: cut(data / "registry", 5),
    "all replicas": lambda data: remove(data / "topics"),
    "one replica": lambda data: remove(replica(data)),
    "its log": lambda data: remove(replica(data) / "log"),
    "its segments": remove_segments,
    "its flush mark": lambda data: remove(replica(data) / "log" / "log.flushed"),
    "its vote": lambda data: remove(replica(data) / "vote"),
    "the end of its vote": lambda data: cut(replica(data) / "vote", 512),
    "all of its vote": lambda data: cut(replica(data) / "vote", 0),
    "its snapshots": lambda data: remove(replica(data) / "snapshots"),
    "its last entry": cut_last_batch,
    "another replica in its place": swap_replicas,
    "the controller's replica": lambda data: remove(data / "controller"),
    "the controller's vote": lambda data: remove(data / "controller" / "vote"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_node_that_lost_some_of_its_memory_is_rebuilt(loss: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            for topic in ("t", "u"):
                await nodes.any.controller.create_topic(topic, 1, 3, KEEP)
                for number in range(5):
                    assert await nodes.write(topic, 0, b"%d" % number) == number
            await whole(nodes, 1, 2, 3)
            before = nodes[2].state.partition_at("t", 0).replica_on(NodeId(2))
            revision = nodes[2].joining.identity.revision
            await nodes.stop(2)
            LOSSES[loss](tmp_path / "node-2")
            assert await nodes.write("t", 0, b"meanwhile") == 5
            await nodes.start(2)

            def is_another() -> bool:
                partition = nodes[2].state.partition_at("t", 0)
                return partition.replica_on(NodeId(2)) != before and partition.target is None

            if "controller" in loss:
                assert nodes[2].joining.identity.revision != revision
            else:
                await until(is_another, "a new revision")
            await whole(nodes, 1, 2, 3)
            assert await nodes.write("t", 0, b"after") == 6
            await nodes.stop(2)
            await nodes.start(2)  # and now it remembers
            await whole(nodes, 1, 2, 3)

    run(story())


@pytest.mark.parametrize("below", ["topics/t", "controller"])
def test_an_older_copy_of_a_replica_counts_as_lost(below: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.any.controller.create_topic("t", 1, 3, KEEP)
            for number in range(5):
                assert await nodes.write("t", 0, b"%d" % number) == number
            await whole(nodes, 1, 2, 3)
            before = nodes[2].state.partition_at("t", 0).replica_on(NodeId(2))
            revision = nodes[2].joining.identity.revision
            await nodes.stop(2)
            data = tmp_path / "node-2"
            shutil.copytree(data / below, tmp_path / "copy")
            await nodes.start(2)
            await nodes.any.controller.create_topic("u", 1, 3, KEEP)
            assert await nodes.write("t", 0, b"forgotten") == 5
            await whole(nodes, 1, 2, 3)
            await until(lambda: "u" in nodes[2].state.topics, "all commands")
            await nodes.stop(2)
            shutil.rmtree(data / below)
            shutil.copytree(tmp_path / "copy", data / below)
            await nodes.start(2)
            if below == "controller":
                assert nodes[2].joining.identity.revision != revision
            else:
                place = nodes[2].state.partition_at
                await until(lambda: place("t", 0).replica_on(NodeId(2)) != before, "a successor")
            await whole(nodes, 1, 2, 3)

    run(story())


def test_a_replica_that_was_lost_while_its_node_ran_stays_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes.any.controller.create_topic("t", 1, 3, KEEP)
            await nodes.write("t", 0, b"a")
            await whole(nodes, 1, 2, 3)
            partition = nodes[1].partition("t", 0)
            assert partition is not None
            lost = partition.core.vnode
            await nodes.stop(2, 3)
            nodes[1].hosting.replica_lost(partition.group, "its disk lies")
            place = (partition.group, lost.revision)
            await until(lambda: nodes[1].joining.registry.why_lost(*place), "a note of it")
            await nodes.stop(1)
            async with starting(nodes, 1, 2) as tasks:
                await asyncio.gather(*tasks)
            again = nodes[1].partition("t", 0)
            assert again is None or again.core.vnode != lost
            await nodes.start(3)
            await whole(nodes, 1, 2, 3)
            assert nodes[1].state.partition_at("t", 0).replica_on(NodeId(1)) != lost
            await nodes.stop_all()

    run(story())


class TestSecondProcess:
    def test_an_empty_second_process_is_refused_while_the_first_lives(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with cluster(tmp_path) as nodes:
                for number in (2, 3):
                    second = nodes.config(number).model_copy(
                        update={"data": tmp_path / f"second-{number}", "rpc": Listener()}
                    )
                    with pytest.raises(StartFailed, match=f"node {number} is alive"):
                        await Node(second).start(Address(HOST, 1))
                assert nodes[1].state.member(NodeId(2)).rpc.port == nodes.config(2).rpc.port
                assert nodes[1].state.member(NodeId(2)).vnode == Vnode(NodeId(2), 0)

        run(story())

    def test_a_copy_of_a_directory_is_refused_while_the_first_lives(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with cluster(tmp_path) as nodes:
                await nodes.stop(2)
                shutil.copytree(tmp_path / "node-2", tmp_path / "copy")
                await nodes.start(2)
                second = nodes.config(2).model_copy(
                    update={"data": tmp_path / "copy", "rpc": Listener()}
                )
                with pytest.raises(StartFailed, match="node 2 runs already"):
                    await Node(second).start(Address(HOST, 1))

        run(story())

    def test_a_directory_may_move_to_another_address(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with cluster(tmp_path) as nodes:
                await nodes.stop(2)
                moved = Node(nodes.config(2).model_copy(update={"rpc": Listener()}))
                nodes.running[2] = moved
                await moved.start(Address(HOST, 1))
                assert moved.joining.identity.revision == 0
                address = moved.joining.identity.address
                await until(lambda: nodes[1].state.member(NodeId(2)).rpc == address, "news")

        run(story())

    def test_a_directory_that_was_replaced_does_not_come_back(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with cluster(tmp_path) as nodes:
                await nodes.stop(2)
                (tmp_path / "node-2").rename(tmp_path / "old")
                await nodes.start(2)
                await nodes.stop(2)
                old = Node(nodes.config(2).model_copy(update={"data": tmp_path / "old"}))
                with pytest.raises(StartFailed, match="another data directory since"):
                    await old.start(Address(HOST, 1))

        run(story())


@pytest.mark.parametrize(
    ("format", "says"),
    [
        (1, "it has format 1, .* start this node with that release, or with an empty"),
        (3, "it has format 3, .* upgrade this node"),
    ],
)
def test_an_identity_of_another_release_is_not_called_unreadable(
    tmp_path: Path, format: int, says: str
) -> None:
    (tmp_path / "node.json").write_text(f'{{"format": {format}, "id": 1, "another": "shape"}}')
    with pytest.raises(StartFailed, match=f"was written by another release: {says}"):
        load_identity(tmp_path)
