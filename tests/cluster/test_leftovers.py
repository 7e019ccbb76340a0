"""What lies in a node's directory at a start: only what the cluster took back is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.cluster.nodes import Nodes, cluster, until

from tidelog.cluster.registry import Registry
from tidelog.raft.types import GroupId
from tidelog.storage import RealDisk

AWAY = 3  # the node whose directory it is about
BEYOND = 10_000  # a group that the cluster has not given out


def run(story: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(story, 120))


async def founded(nodes: Nodes) -> None:
    for topic in ("kept", "deleted"):
        await nodes.any.controller.create_topic(topic, 1, 3, {})
        await nodes.write(topic, 0, b"value")
        await until(lambda topic=topic: nodes[AWAY].partition(topic, 0), "its replica")  # type: ignore[misc]
    await until(
        lambda: all(
            nodes[AWAY].joining.registry.hosts(each.group, each.core.vnode.revision)
            for each in nodes[AWAY].partitions()
        ),
        "the notes of them",
    )


def note(data: Path, birth: str, *places: tuple[int, int]) -> None:
    """Let a node that is down believe that it hosts more."""
    registry = Registry.load(RealDisk(data), birth)
    assert registry is not None
    registry.add([(GroupId(group), revision) for group, revision in places])


def make(data: Path, name: str) -> Path:
    path = data / "topics" / name
    path.mkdir(parents=True)
    (path / "precious").write_text("what an operator put here, or the cluster forgot")
    return path


def test_only_what_the_cluster_took_back_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await founded(nodes)
            data = tmp_path / f"node-{AWAY}"
            birth = nodes[AWAY].joining.identity.birth
            kept = nodes[AWAY].partition("kept", 0)
            assert kept is not None
            group = kept.group
            await nodes.stop(AWAY)
            (taken,) = (data / "topics" / "deleted").iterdir()
            (wanted,) = (data / "topics" / "kept").iterdir()
            await nodes.any.controller.delete_topic("deleted")
            await nodes.any.controller.create_topic("later", 1, 2, {})
            beyond = make(data, f"gone/0-g{BEYOND}-r1")
            unnoted = make(data, "gone/1-g1-r77")
            strange = make(data, "gone/readme")
            former = make(data, f"kept/0-g{group}-r0")
            note(data, birth, (BEYOND, 1), (group, 0))
            caplog.clear()
            await nodes.start(AWAY)
            await until(lambda: not taken.exists(), "that it is gone")
            await until(lambda: not former.exists(), "that it is gone")
            assert not nodes[AWAY].joining.registry.hosts(group, 0)
            for path in (beyond, unnoted, strange):
                assert (path / "precious").exists(), path
            assert wanted.exists()
            again = nodes[AWAY].partition("kept", 0)
            assert again is None or again.core.vnode == kept.core.vnode
            await until(lambda: nodes[AWAY].partition("kept", 0), "the replica")
            assert "3 directories below" in caplog.text

    run(story())


def test_a_state_that_knows_too_little_deletes_nothing(tmp_path: Path) -> None:
    """As that of a controller which lost its log, and gave out no group yet."""

    async def story() -> None:
        async with cluster(tmp_path) as nodes:
            await founded(nodes)
            node = nodes[AWAY]
            before = sorted((tmp_path / f"node-{AWAY}" / "topics").glob("*/*"))
            assert len(before) == 2
            node.state.restore(b"")
            node.hosting.delete_leftovers()
            await node.executor.run("open", lambda: None)
            assert sorted((tmp_path / f"node-{AWAY}" / "topics").glob("*/*")) == before

    run(story())
