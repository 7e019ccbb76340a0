"""`tidelog log verify` on real nodes: everything is read, and damage is named."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cluster.nodes import Nodes, cluster, until
from tests.cluster.test_comparing import a_follower, forge, run, segments, written
from tests.cluster.test_verifying import flip

from tidelog.cli.verify import troubles
from tidelog.cluster.checks import MAX_CHECKS


async def ask(all_nodes: Nodes, name: str = "a", **arguments: Any) -> dict[str, Any]:
    question = {
        "operation": "verify",
        "arguments": {"check": name, "rate": 1 << 30, **arguments},
    }
    answer: dict[str, Any] = json.loads(await all_nodes.any.operate(json.dumps(question).encode()))
    return answer


async def checked(all_nodes: Nodes, name: str = "a", **arguments: Any) -> list[dict[str, Any]]:
    """Ask again until all is done."""
    while True:
        answer = await ask(all_nodes, name, **arguments)
        nodes: list[dict[str, Any]] = answer["result"]["nodes"]
        if all(each.get("over", True) for each in nodes):
            return nodes
        await asyncio.sleep(0.05)


def test_every_replica_is_read_and_sound(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            leader = await written(all_nodes)
            nodes = await checked(all_nodes)
            assert troubles(nodes) == []
            for node in nodes:
                found = {each["partition"]: each for each in node["replicas"]}
                assert found.keys() == {"t/0", "controller"}
                assert found["t/0"]["segments"] > 3
                assert found["t/0"]["bytes"] > 60 * 2000 * 0.9
                assert node["done"] == node["steps"]
            (comparison,) = [each for node in nodes for each in node["comparisons"]]
            assert comparison["last"] == leader.core.committed

    run(story())


def test_damage_is_named_with_its_file_and_offset_and_exactly_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            leader = await written(all_nodes)
            number = a_follower(leader)
            segment = segments(tmp_path, number)[1]
            flip(segment)
            nodes = await checked(all_nodes, topic="t", partition=0)
            (damage,) = [
                (node["node"], each)
                for node in nodes
                for replica in node["replicas"]
                for each in replica["damage"]
            ]
            assert damage[0] == number
            assert damage[1]["file"].endswith(f"/log/{segment.name}")
            assert damage[1]["offset"] >= int(segment.name.partition("-")[0])
            assert len(troubles(nodes)) == 1
            await until(
                lambda: all_nodes[number].hosting.lost.total == 1, "that it is being rebuilt"
            )

    run(story())


def test_a_wrong_copy_and_a_node_that_is_down_are_troubles(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as all_nodes:
            leader = await written(all_nodes)
            offset = forge(segments(tmp_path, a_follower(leader))[2])
            (text,) = troubles(await checked(all_nodes))
            assert f"from offset {offset}" in text
            down = next(each for each in (3, 2) if each != leader.core.vnode.id)
            await all_nodes.stop(down)
            await until(lambda: not all_nodes.any.is_alive(down), "that it is gone")
            said = troubles(await checked(all_nodes, "b"))
            assert any(each.startswith(f"node {down} does not answer") for each in said)

    run(story())


def test_checks_are_few_and_what_is_wrong_with_a_question_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as all_nodes:
            await written(all_nodes, 1)
            for wrong in ({"rate": 0}, {"rate": "x"}, {"topic": "t"}, {"check": ""}):
                assert "error" in await ask(all_nodes, **wrong)
            assert "error" in await ask(all_nodes, topic="t", partition=9)
            for number in range(MAX_CHECKS):
                await checked(all_nodes, f"check {number}")
            (node,) = (await ask(all_nodes, "one more"))["result"]["nodes"]
            assert not node["answers"]

    run(story())
