"""Nodes on small file systems that fill up: one alone, one of three, two of three, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.nodes import AGAIN, Nodes, attempt, cluster, until, write
from tests.cluster.test_healing import status, values
from tests.cluster.test_lost import run
from tests.cluster.trouble import troubled
from tests.smalldisks import MIB, fill, make_room, small_disk

from tidelog.cluster.partition import Partition, Produced, ProduceFailed
from tidelog.cluster.reserve import NAME
from tidelog.cluster.room import Level
from tidelog.cluster.strictjson import NotThis
from tidelog.raft.events import Refusal
from tidelog.raft.types import NodeId

DISK_MIB = 24  # so 3 MiB are LOW, and 768 KiB are FULL
VALUE = bytes(64 << 10)
# One segment takes a few values, so that deleting records frees something. Records of the tests are
# from 1970.
SETTINGS = {"segment.bytes": "262144", "retention.ms": "-1"}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Three nodes with a small file system each."""
    with contextlib.ExitStack() as stack:
        at = [tmp_path / f"node-{number}" for number in (1, 2, 3)]
        yield [stack.enter_context(small_disk(each, DISK_MIB)) for each in at]


async def write_until_refused(leader: Partition) -> tuple[int, Refusal]:
    """Write until there is no room; return how many writes were acknowledged, and why no more."""
    for count in range(10_000):
        result = await attempt(leader, VALUE)
        if isinstance(result, ProduceFailed):
            return count, result.why
        await asyncio.sleep(0.005)  # a disk is not filled between two looks
    raise AssertionError("the disk was never full")


async def fill_up(nodes: Nodes, number: int, disk: Path) -> None:
    """Fill a disk to the last byte, in two steps, so that the node has a reserve by then."""
    fill(disk, 4 * MIB)
    await until((disk / NAME).exists, f"node {number} holds a reserve")
    fill(disk)
    await level(nodes, number, Level.FULL)


async def level(nodes: Nodes, number: int, wanted: Level) -> None:
    await until(lambda: nodes[number].space.level is wanted, f"node {number} is {wanted.name}")


async def hears(nodes: Nodes, about: int) -> None:
    """Wait until all others know that a node has no room."""
    others = [node for number, node in nodes.running.items() if number != about]
    await until(
        lambda: not any(node.space.has_room(nodes[about].id) for node in others), "all heard it"
    )


async def write_patiently(nodes: Nodes, topic: str, value: bytes) -> None:
    """Write as a client does that is told that there is no room: again, until there is."""
    while True:
        result = await attempt(await nodes.leader(topic), value)
        if isinstance(result, Produced):
            return
        assert result.why in (*AGAIN, Refusal.NO_ROOM), result
        await asyncio.sleep(0.05)


async def delete_records(partition: Partition, before: int) -> int | ProduceFailed:
    done: asyncio.Future[int | ProduceFailed] = asyncio.get_running_loop().create_future()
    partition.delete_before(before, done.set_result)
    return await done


def test_a_node_alone_refuses_reads_on_and_goes_on_when_a_topic_is_deleted(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            for topic in ("t", "u"):
                await nodes[1].controller.create_topic(topic, 1, 1, SETTINGS)
            acknowledged, why = await write_until_refused(await nodes.leader("t"))
            assert why is Refusal.NO_ROOM
            assert acknowledged > 200, "it is used up to the threshold"
            leader = await nodes.leader("t")
            assert leader.end == acknowledged
            assert values(leader)[0] == VALUE
            shown = await status(nodes, 1, 1)
            disk = shown["disk"]
            assert isinstance(disk, dict)
            assert (disk["level"], disk["refused_writes"]) == ("low", 1)
            assert disk["refusing"] == ["t/0", "u/0"]
            assert (tmp_path / "node-1" / NAME).exists()
            await nodes[1].controller.delete_topic("t")
            await level(nodes, 1, Level.ROOMY)
            await write_patiently(nodes, "u", b"after")

    with small_disk(tmp_path / "node-1", DISK_MIB):
        run(story())


@pytest.mark.parametrize("restarted", [False, True])
def test_deleting_works_on_a_disk_that_other_programs_filled_to_the_last_byte(
    tmp_path: Path, restarted: bool
) -> None:
    async def story(disk: Path) -> None:
        async with cluster(tmp_path, 1) as nodes:
            for topic in ("t", "u"):
                await nodes[1].controller.create_topic(topic, 1, 1, SETTINGS)
            leader = await nodes.leader("t")
            for _ in range(40):
                await write(leader, VALUE)
            await fill_up(nodes, 1, disk)
            await until(lambda: not leader.replica.takes_writes, "it refuses")
            assert await attempt(leader, VALUE) == ProduceFailed(Refusal.NO_ROOM)
            if restarted:
                await nodes.stop(1)
                await nodes.start(1)
                leader = await nodes.leader("t")
                assert len(values(leader)) > 0
                assert leader.end == 40
            await nodes[1].controller.set_topic_config("t", {"retention.bytes": "500000"})
            assert await delete_records(leader, 30) == 30
            await until(lambda: leader.replica.log.start >= 28, "its segments are gone")
            await nodes[1].controller.delete_topic("t")
            await until(lambda: not (disk / "topics/t").exists(), "its files are gone")
            make_room(disk)
            await level(nodes, 1, Level.ROOMY)
            await write_patiently(nodes, "u", b"after")

    with small_disk(tmp_path / "node-1", DISK_MIB) as disk:
        run(story(disk))


def test_a_leader_without_room_hands_over_and_takes_part_again(
    tmp_path: Path, disks: list[Path]
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 3, SETTINGS)
            leader = await nodes.leader("t")
            await write(leader, b"before")
            full = leader.core.vnode.id
            await fill_up(nodes, full, disks[full - 1])
            await until(lambda: leader.core.leading is None, "it hands over")
            await until(lambda: nodes[full % 3 + 1].controller_id() not in (None, full), "group 0")
            for number in range(20):
                await nodes.write("t", 0, b"%d" % number)
            assert (await nodes.leader("t")).core.vnode.id != full
            assert leader.end == 1, "clients' writes are not taken"
            await nodes[full].controller.create_topic("u", 1, 2, {})
            assert full not in nodes[full].state.partition_at("u", 0).nodes
            make_room(disks[full - 1])
            now = await nodes.leader("t")
            await until(lambda: leader.end == now.end, "it has caught up")
            assert values(leader)[-1] == b"19"
            assert nodes[full].space.describe()["handovers"] != 0

    run(story())


def test_two_of_three_without_room_refuse_what_no_majority_takes(
    tmp_path: Path, disks: list[Path]
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            for topic in ("t", "u"):
                await nodes[1].controller.create_topic(topic, 1, 3, SETTINGS)
            for number in range(100):
                await nodes.write("t", 0, VALUE if number else b"first")
            for full in (1, 2):
                await fill_up(nodes, full, disks[full - 1])
                await hears(nodes, full)
            leader = nodes[3].partition("t", 0)
            assert leader is not None
            await until(lambda: leader.is_leader, "the one with room leads")
            await until(lambda: not leader.replica.takes_writes, "it refuses")
            before = leader.end
            assert await attempt(leader, VALUE) == ProduceFailed(Refusal.NO_ROOM)
            shown = (await status(nodes, 1, 3))["disk"]
            assert isinstance(shown, dict)
            assert (shown["level"], shown["refusing"]) == ("roomy", ["t/0", "u/0"])
            assert leader.end == before, "nothing is written that nobody would acknowledge"
            assert values(leader)[0] == b"first"
            assert await delete_records(leader, 50) == 50
            await nodes[1].controller.delete_topic("t")
            files = [disk / "topics/t" for disk in disks]
            await until(lambda: not any(each.exists() for each in files), "its files are gone")
            for full in (1, 2):
                make_room(disks[full - 1])
            await write_patiently(nodes, "u", b"after")

    run(story())


def test_a_leader_whose_disk_refuses_although_it_has_room_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = troubled(tmp_path, monkeypatch)

    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await nodes[1].controller.create_topic("t", 1, 3, {})
            leader = await nodes.leader("t")
            sick = leader.core.vnode.id
            found[sick].full_below = "topics/t/"
            assert await attempt(leader, VALUE) == ProduceFailed(Refusal.STORAGE)
            await until(lambda: leader.core.leading is None, "it hands over")
            await nodes.write("t", 0, b"value")
            assert nodes[sick].space.describe()["refused_appends"] != 0
            found[sick].full_below = None
            now = await nodes.leader("t")
            await until(lambda: leader.end == now.end, "it has caught up")

    run(story())


def test_a_level_that_a_peer_told_is_believed_for_a_while_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            space, peer = nodes[1].space, NodeId(7)
            space.take(peer, b'{"level":"LOW"}')
            assert not space.has_room(peer)
            space.take(peer, b'{"level":"ROOMY"}')
            assert space.has_room(peer)
            space.take(peer, b'{"level":"FULL"}')
            told, end = space._told[peer]
            space._told[peer] = (told, end - 60)
            assert space.has_room(peer)
            with pytest.raises(NotThis):
                space.take(peer, b'{"level":"SOME"}')

    run(story())
