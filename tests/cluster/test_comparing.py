"""Copies that differ with every checksum right: found, named, and rebuilt where that is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from crc32c import crc32c
from tests.cluster.nodes import Nodes, cluster, until
from tests.cluster.test_lost import rebuilt
from tests.cluster.test_verifying import Eager

from tidelog.cluster.comparing import Comparison, Difference, judge
from tidelog.cluster.digests import MAX_RANGES
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.partition import Partition
from tidelog.raft import events as ev
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import parse_batches

CRC_AT, CRC_FROM = 17, 21


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await test

    uvloop.run(limited())


def forge(segment: Path, number: int = 1) -> int:
    """Change a record of a batch, and seal it with the right checksum; return its offset."""
    content = bytearray(segment.read_bytes())
    batch = list(parse_batches(bytes(content)))[number]
    at = content.index(bytes(batch.data))
    end = at + batch.size
    content[end - 2] ^= 1  # the last byte of the value: what follows is a count of headers
    crc = crc32c(bytes(content[at + CRC_FROM : end]))
    content[at + CRC_AT : at + CRC_FROM] = crc.to_bytes(4, "big")
    segment.write_bytes(content)
    (forged,) = [
        each for each in parse_batches(bytes(content)) if each.base_offset == batch.base_offset
    ]
    forged.check_crc()
    return batch.base_offset


def segments(path: Path, node: int) -> list[Path]:
    found = (path / f"node-{node}").glob("topics/t/*/log/*.log")
    return sorted(found, key=lambda each: int(each.name.partition("-")[0]))


async def compared(all_nodes: Nodes) -> Comparison:
    """Compare `t` as its leader does, once all have flushed what they have."""
    leader = await all_nodes.leader("t")
    node = all_nodes[leader.core.vnode.id]
    return await node.comparer.compare(leader)


async def settled(all_nodes: Nodes, *numbers: int) -> Partition:
    """Wait until these nodes have on their disks, as committed, all that the leader has."""
    leader = await all_nodes.leader("t")

    def holds() -> bool:
        found = [all_nodes[number].partition("t", 0) for number in numbers]
        return all(
            each is not None and each.core.committed == leader.core.committed == each.core.flushed
            for each in found
        )

    await until(holds, "the same log everywhere")
    return leader


async def written(all_nodes: Nodes, replicas: int = 3, **config: str) -> Partition:
    settings = {"segment.bytes": "16384", "retention.ms": "-1"} | config
    await all_nodes.any.controller.create_topic("t", 1, replicas, settings)
    for number in range(60):
        await all_nodes.write("t", 0, b"%04d" % number * 500, key=b"%d" % (number % 7))
    found = all_nodes.any.state.partition_at("t", 0).nodes
    return await settled(all_nodes, *found)


def a_follower(leader: Partition) -> int:
    return next(each.id for each in leader.core.configuration.voters if each != leader.core.vnode)


class TestJudging:
    def one(self, *rows: int | None, silent: int = 0) -> Difference:
        found = {Vnode(NodeId(n + 1), 0): row for n, row in enumerate(rows)}
        return judge("t/0", 7, found, len(rows) + silent)

    def test_a_minority_against_two_is_wrong(self) -> None:
        assert self.one(5, 6, 5).wrong == (2,)
        assert self.one(5, None, 5).wrong == (2,)
        assert self.one(5, 5, 6, 5, 7).wrong == (3, 5)

    def test_those_who_do_not_answer_may_side_with_anybody(self) -> None:
        assert self.one(5, 5, 6, silent=2).wrong == ()
        assert self.one(5, 5, 5, 6, silent=1).wrong == (4,)

    @pytest.mark.parametrize("rows", [(5, 6), (5, 6, 7), (5, 5, 6, 6), (5, 5, 6, 7)])
    def test_without_a_majority_nobody_is_wrong(self, rows: tuple[int, ...]) -> None:
        assert self.one(*rows).wrong == ()


@pytest.mark.parametrize("wrong", ["leader", "follower"])
def test_a_silent_wrong_copy_is_found_named_and_rebuilt(
    tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            leader = await written(all_nodes)
            number = leader.core.vnode.id if wrong == "leader" else a_follower(leader)
            partition = all_nodes[number].partition("t", 0)
            assert partition is not None
            was = partition.core.vnode
            assert (await compared(all_nodes)).difference is None
            offset = forge(segments(tmp_path, number)[2])
            found = await compared(all_nodes)
            assert found.difference is not None
            assert found.difference.wrong == (number,)
            assert found.difference.offset == offset
            assert f"differs from offset {offset} of its log on node {number}" in caplog.text
            await rebuilt(all_nodes, number, was, tmp_path, 1, 2, 3)
            await settled(all_nodes, 1, 2, 3)
            again = await compared(all_nodes)
            assert again.difference is None
            assert again.nodes == (1, 2, 3)

    run(story())


def test_of_two_copies_nobody_knows_which_is_wrong(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 2) as all_nodes:
            leader = await written(all_nodes, 2)
            offset = forge(segments(tmp_path, a_follower(leader))[2])
            found = await compared(all_nodes)
            assert found.difference is not None
            assert (found.difference.offset, found.difference.wrong) == (offset, ())
            assert not any(len(node.hosting.lost) for node in all_nodes.running.values())
            comparer = all_nodes[leader.core.vnode.id].comparer
            assert len(comparer.describe()["differences"]) == 1  # type: ignore[arg-type]

    run(story())


def test_the_background_finds_it_too(tmp_path: Path) -> None:
    async def story() -> None:
        nodes = Eager(tmp_path, 3)
        try:
            await nodes.start(1, 2, 3)
            leader = await written(nodes)
            number = a_follower(leader)
            partition = nodes[number].partition("t", 0)
            assert partition is not None
            was = partition.core.vnode
            forge(segments(tmp_path, number)[2])
            await rebuilt(nodes, number, was, tmp_path, 1, 2, 3)
        finally:
            await nodes.stop_all()

    run(story())


async def compact(all_nodes: Nodes) -> None:
    """Compact on all replicas but one, and write more above that."""
    leader = await all_nodes.leader("t")
    lazy = all_nodes[a_follower(leader)].partition("t", 0)
    assert lazy is not None
    lazy.replica.cleans = False
    before = leader.size
    node = all_nodes[leader.core.vnode.id]
    done = await node.groups.ask(leader.hosted, ev.Compact, 30.0)
    assert isinstance(done, ev.Done)
    await until(lambda: leader.size < before, "compaction")
    assert lazy.size >= before
    for number in range(20):
        await all_nodes.write("t", 0, b"above %d" % number)


async def change_leaders(all_nodes: Nodes) -> None:
    for target in (1, 2, 3):
        leader = await all_nodes.leader("t")
        vnode = next(each for each in leader.core.configuration.voters if each.id == target)
        if vnode != leader.core.vnode:
            node = all_nodes[leader.core.vnode.id]
            await node.groups.transfer(leader.hosted, vnode, 5.0)
        for number in range(20):
            await all_nodes.write("t", 0, b"%d" % number * 300)


async def move(all_nodes: Nodes) -> None:
    state = all_nodes.any.state
    await all_nodes.any.controller.reassign("t", 0, [NodeId(1), NodeId(2)])
    await until(lambda: len(state.partition_at("t", 0).replicas) == 2, "the move away")
    await all_nodes.write("t", 0, b"meanwhile")
    await all_nodes.any.controller.reassign("t", 0, [NodeId(1), NodeId(2), NodeId(3)])
    await until(lambda: len(state.partition_at("t", 0).replicas) == 3, "the move back")


async def restart(all_nodes: Nodes) -> None:
    """Leave a tail on a leader that the others cut."""
    leader = await all_nodes.leader("t")
    number = leader.core.vnode.id
    await all_nodes.stop(number)
    await all_nodes.write("t", 0, b"without it")
    await all_nodes.start(number)
    await all_nodes.write("t", 0, b"with it")


@pytest.mark.parametrize(
    ("happens", "config"),
    [
        (compact, {"cleanup.policy": "compact"}),
        (change_leaders, {}),
        (move, {}),
        (restart, {}),
    ],
)
def test_replicas_that_differ_rightly_or_not_at_all_agree(
    tmp_path: Path,
    happens: Callable[[Nodes], Awaitable[None]],
    config: dict[str, str],
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            await written(all_nodes, 3, **config)
            await happens(all_nodes)
            await settled(all_nodes, 1, 2, 3)
            found = await compared(all_nodes)
            assert found.problem is None
            assert found.difference is None
            assert found.nodes == (1, 2, 3)
            assert found.first <= found.last
            if not config:
                assert found.last - found.first >= 60
            assert not any(len(node.hosting.lost) for node in all_nodes.running.values())

    run(story())


def test_an_order_is_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as all_nodes:
            leader = await written(all_nodes, 1)
            digests = all_nodes[1].comparer.digests
            place = {"group": leader.group, "revision": leader.core.vnode.revision, "job": "a"}
            for first, last, span in ((0, MAX_RANGES, 1), (5, 4, 1), (-1, 3, 1), (0, 3, 0)):
                with pytest.raises(ClusterError):
                    await digests.digest({**place, "first": first, "last": last, "span": span})
            with pytest.raises(ClusterError, match="no replica"):
                await digests.marks({**place, "revision": 99})
            found = await compared(all_nodes)
            assert found.problem == "it has one replica that answers"

    run(story())
