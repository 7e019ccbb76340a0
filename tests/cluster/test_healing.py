"""Replicas whose disk fails, on real nodes: they hand over, say so, and come back by themselves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.cluster.nodes import Nodes, attempt, cluster, until, write
from tests.cluster.test_lost import run
from tests.cluster.trouble import Disks, troubled

from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.cluster.partition import Partition, Produced
from tidelog.records import parse_batches, read_records


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    return troubled(tmp_path, monkeypatch)


async def status(nodes: Nodes, asked: int, about: int) -> dict[str, object]:
    """What one node says about another when an operator asks."""
    answer = await nodes[asked].operate(b'{"operation": "status", "arguments": {}}')
    found = {each["id"]: each for each in json.loads(answer)["result"]["nodes"]}
    result: dict[str, object] = found[about]
    return result


def values(partition: Partition) -> list[bytes]:
    chunk = partition.read(partition.log_start, 1 << 20)
    data = b"".join(bytes(part) for part in chunk.parts)
    return [each.value or b"" for batch in parse_batches(data) for each in read_records(batch)]


def test_a_leader_whose_disk_fails_hands_over_at_once_and_comes_back(
    tmp_path: Path, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 3, {})
            leader = await nodes.leader("t")
            await write(leader, b"before")
            sick = leader.core.vnode.id
            disks[sick].fails_below = "topics/t/"
            await attempt(leader, b"in doubt")
            await nodes.write("t", 0, b"meanwhile")
            assert (await nodes.leader("t")).core.vnode.id != sick
            shown = await status(nodes, sick % 3 + 1, sick)
            assert "t/0" in str(shown["failed_partitions"])
            assert shown["replicas_failed"] == 1
            disks[sick].fails_below = None
            await until(lambda: not len(nodes[sick].hosting.healing), "the replica is back")
            await nodes.write("t", 0, b"after")
            healed = nodes[sick].partition("t", 0)
            assert healed is not None
            leader = await nodes.leader("t")
            await until(lambda: healed.end == leader.end, "it has caught up")
            assert values(leader)[0] == b"before"
            assert values(leader)[-1] == b"after"
            assert b"meanwhile" in values(leader)
            said = [each for each in caplog.records if "takes no part until" in each.message]
            assert len(said) == 1, "however often it was tried"

    with caplog.at_level(logging.INFO):
        run(story())


def test_the_controller_survives_a_disk_that_fails(tmp_path: Path, disks: Disks) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 3, {})
            sick = nodes[1].controller_id()
            assert sick is not None
            well = sick % 3 + 1
            disks[sick].fails_below = "controller"
            await nodes[well].controller.create_topic("u", 1, 3, {})
            assert nodes[well].controller_id() != sick
            shown = await status(nodes, well, sick)
            controller = shown["controller_replica"]
            assert isinstance(controller, dict)
            assert "troubled" in controller["failed"]
            assert "t" in nodes[sick].state.topics, "what it knew before stays known"
            disks[sick].fails_below = None
            await until(lambda: not len(nodes[sick].hosting.healing), "the replica is back")
            await until(lambda: "u" in nodes[sick].state.topics, "it knows what it has missed")
            await nodes[sick].controller.create_topic("v", 1, 3, {})
            await until(lambda: "v" in nodes[well].state.topics, "it is known elsewhere")
            assert nodes[sick].state.snapshot() == nodes[well].state.snapshot()
            hosted = nodes[sick].groups.get(CONTROLLER_GROUP)
            assert hosted is not None
            assert hosted.replica.machines.machines == (nodes[sick].state,)

    run(story())


def test_a_replica_alone_comes_back_with_all_that_was_acknowledged(
    tmp_path: Path, disks: Disks
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {})
            leader = await nodes.leader("t")
            for number in range(10):
                await write(leader, b"%d" % number)
            disks[1].fails_below = "topics/t/"
            assert not isinstance(await attempt(leader, b"in doubt"), Produced)
            disks[1].fails_below = None
            await until(lambda: not len(nodes[1].hosting.healing), "the replica is back")
            leader = await nodes.leader("t")
            assert values(leader)[:10] == [b"%d" % number for number in range(10)]
            await write(leader, b"after")

    run(story())


def test_a_replica_that_cannot_be_opened_is_opened_once_that_works(
    tmp_path: Path, disks: Disks
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            disks[1].full_below = "topics/"
            await nodes[1].controller.create_topic("t", 1, 1, {})
            await until(lambda: len(nodes[1].hosting.healing), "it cannot be opened")
            disks[1].full_below = None
            await write(await nodes.leader("t"), b"value")

    run(story())


def test_a_failed_replica_of_a_deleted_topic_leaves_no_files(tmp_path: Path, disks: Disks) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await nodes[1].controller.create_topic("t", 1, 1, {})
            leader = await nodes.leader("t")
            disks[1].fails_below = "topics/t/"
            await attempt(leader, b"value")
            await until(lambda: nodes[1].partition("t", 0) is None, "it is closed")
            await nodes[1].controller.delete_topic("t")
            await until(lambda: not (tmp_path / "node-1/topics/t").exists(), "its files are gone")
            assert not len(nodes[1].hosting.healing)

    run(story())
