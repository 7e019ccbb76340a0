"""Damage to a controller's replica on a node that runs: control goes on, and it is rebuilt."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import PATIENCE, Nodes, cluster, until, write
from tests.cluster.test_verifying import Eager, run

from tidelog.cluster import steward
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.model import CONTROLLER_GROUP
from tidelog.cluster.replica import Replica
from tidelog.raft.types import NodeId, Vnode
from tidelog.records import NO_OFFSET
from tidelog.storage import DamagedLog


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot takes the place of a few commands."""
    monkeypatch.setattr(steward, "MAX_COMMANDS", 10)


def limited(story: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(story, 120))


def controller(nodes: Nodes, number: int) -> Replica:
    hosted = nodes[number].groups.get(CONTROLLER_GROUP)
    assert hosted is not None
    return hosted.replica


async def create(nodes: Nodes, number: int, name: str) -> None:
    """Create a topic through a node, as a client does: again while nobody leads."""
    state = nodes[number].state
    async with asyncio.timeout(PATIENCE):
        while name not in state.topics:
            copies = min(3, len(state.members))
            try:
                await nodes[number].controller.create_topic(name, 1, copies, {}, timeout=5.0)
            except ClusterError:
                await asyncio.sleep(0.05)


async def founded(nodes: Nodes) -> None:
    """Start a cluster whose controllers have snapshots, and a log that goes on from there."""
    await nodes.start(1, 2, 3)
    for number in range(12):
        await create(nodes, 1, f"t{number}")
    await until(
        lambda: all(controller(nodes, number).core.snapshot for number in (1, 2, 3)), "snapshots"
    )
    await create(nodes, 1, "last")


async def rebuilt(nodes: Nodes, number: int, was: Vnode) -> None:
    """Wait until a node has a successor of its replica that counts, and knows everything."""

    def holds() -> bool:
        hosted = nodes[number].groups.get(CONTROLLER_GROUP)
        if hosted is None:
            return False
        core = hosted.replica.core
        return (
            core.vnode != was
            and core.vnode in core.configuration.voters
            and was not in core.configuration.members
            and hosted.replica.machines.machines == (nodes[number].state,)
            and nodes[number].group_zero.why_lost is None
        )

    await until(holds, "the successor")
    other = nodes[number % 3 + 1]
    await until(lambda: nodes[number].state.version == other.state.version, "the same state")
    assert nodes[number].state.snapshot() == other.state.snapshot()


async def shown(nodes: Nodes, asked: int, about: int) -> dict[str, object]:
    """What one node says of another's replica of the controller when an operator asks."""
    answer = await nodes[asked].operate(b'{"operation": "status", "arguments": {}}')
    found = {each["id"]: each for each in json.loads(answer)["result"]["nodes"]}
    told: dict[str, object] = found[about]["controller_replica"]
    return told


def newest(data: Path, kind: str) -> Path:
    found = data.glob(f"controller*/{kind}")
    return max(found, key=lambda each: int(each.name.partition("-")[0]))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit of its log": lambda data: flip(newest(data, "log/*.log"), 70),
    "a bit of its snapshot": lambda data: flip(newest(data, "snapshots/*.snapshot"), -2),
    "its snapshot": lambda data: newest(data, "snapshots/*.snapshot").unlink(),
    "its vote": lambda data: (data / "controller" / "vote").unlink(),
}


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("harm", DAMAGE)
def test_a_damaged_replica_of_the_controller_is_rebuilt_while_its_node_runs(
    harm: str, leads: bool, tmp_path: Path
) -> None:
    async def story(nodes: Eager) -> None:
        await founded(nodes)
        leader = nodes[1].controller_id()
        assert leader is not None
        sick = leader if leads else NodeId(leader % 3 + 1)
        was = controller(nodes, sick).core.vnode
        versions: list[int] = []
        nodes[sick].state.on_change(lambda: versions.append(nodes[sick].state.version))
        DAMAGE[harm](tmp_path / f"node-{sick}")
        await until(lambda: nodes[sick].verifier.counts.damaged, "that it is found")
        for number in (1, 2, 3):
            await create(nodes, number, f"by{number}")
        await rebuilt(nodes, sick, was)
        assert versions == sorted(versions), "what the node knew before stays known"
        registry = nodes[sick].joining.registry
        assert registry.why_lost(CONTROLLER_GROUP, was.revision)
        successor = controller(nodes, sick).core.vnode
        await nodes.stop(sick)
        await nodes.start(sick)
        assert controller(nodes, sick).core.vnode == successor

    run(tmp_path, story)


def test_a_damaged_replica_is_shown_until_it_is_rebuilt(tmp_path: Path) -> None:
    async def story(nodes: Eager) -> None:
        await founded(nodes)
        leader = nodes[1].controller_id()
        assert leader is not None
        sick, away, well = leader % 3 + 1, (leader + 1) % 3 + 1, leader
        was = controller(nodes, sick).core.vnode
        await nodes.stop(away)  # so that no majority can grant a revision
        controller(nodes, sick).damaged(DamagedLog("controller/log", 0, NO_OFFSET, "it rots"))
        await until(lambda: nodes[sick].groups.get(CONTROLLER_GROUP) is None, "that it is closed")
        assert "it rots" in str((await shown(nodes, well, sick))["lost"])
        assert "t0" in nodes[sick].state.topics
        await nodes.start(away)
        await rebuilt(nodes, sick, was)
        assert (await shown(nodes, well, sick))["lost"] is None

    run(tmp_path, story)


def test_a_failed_replica_that_is_found_damaged_is_rebuilt(tmp_path: Path) -> None:
    async def story(nodes: Eager) -> None:
        await founded(nodes)
        leader = nodes[1].controller_id()
        assert leader is not None
        sick = leader % 3 + 1
        replica = controller(nodes, sick)
        was = replica.core.vnode
        (tmp_path / f"node-{sick}" / "controller" / "vote").write_bytes(b"")
        replica._fail(OSError(errno.EIO, "a test says so"))
        await create(nodes, sick, "meanwhile")
        await rebuilt(nodes, sick, was)

    run(tmp_path, story)


def test_a_lone_controller_whose_files_are_lost_says_that_nobody_else_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            await create(nodes, 1, "t")
            controller(nodes, 1).damaged(DamagedLog("controller/log", 0, NO_OFFSET, "it rots"))
            await until(lambda: "no other node has a copy" in caplog.text, "the sentence")
            assert "it rots" in str((await shown(nodes, 1, 1))["lost"])
            leader = await nodes.leader("t")
            await write(leader, b"value")  # what needs no controller goes on

    limited(story())


def test_a_lone_controller_does_without_a_snapshot_whose_header_is_damaged(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            for number in range(12):
                await create(nodes, 1, f"t{number}")
            await until(lambda: controller(nodes, 1).log.start > 0, "a log that begins late")
            checkpoint = tmp_path / "node-1" / "controller" / "checkpoint"
            await until(checkpoint.exists, "the checkpoint that is taken with a snapshot")
            await nodes.stop(1)
            flip(newest(tmp_path / "node-1", "snapshots/*.snapshot"), 20)
            await nodes.start(1)
            assert nodes[1].groups.snapshots_set_aside == 1
            await create(nodes, 1, "after")
            assert nodes[1].state.topics.keys() == {
                "after",
                *(f"t{number}" for number in range(12)),
            }

    limited(story())
