"""Asking for the room on a disk: never on the event loop, and never in more than one thread."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest
import uvloop
from tests.cluster.nodes import cluster

from tidelog.cli.health import problems
from tidelog.cluster import diskspace
from tidelog.cluster.diskspace import DiskSpace


class HungDisk:
    """Answers when a test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.goes_on = threading.Event()
        self._real = shutil.disk_usage
        patch.setattr(shutil, "disk_usage", self._usage)

    def _usage(self, path: Path) -> object:
        self.asked += 1
        self.goes_on.wait()
        return self._real(path)


def test_a_disk_that_hangs_costs_one_thread_and_no_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskspace, "PATIENCE_S", 0.05)
    disk = HungDisk(monkeypatch)

    async def story() -> None:
        space = DiskSpace(tmp_path)
        for _ in range(3):
            with pytest.raises(TimeoutError, match="does not answer"):
                await space.look()
        assert disk.asked == 1
        monkeypatch.setattr(diskspace, "PATIENCE_S", 60.0)
        last = asyncio.create_task(space.look())
        await asyncio.sleep(0)
        disk.goes_on.set()
        assert (await last).total_bytes > 0
        assert disk.asked == 1
        assert (await space.look()).free_bytes >= 0
        assert disk.asked == 2, "an answer is not kept"

    try:
        uvloop.run(story())
    finally:
        disk.goes_on.set()


def test_a_node_whose_data_directory_vanished_is_alive_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            gone = tmp_path / "gone"
            monkeypatch.setattr(nodes[1].operations, "_disk", DiskSpace(gone))
            answer = await nodes[1].operate(b'{"operation": "status", "arguments": {}}')
            status = json.loads(answer)["result"]
            (node,) = status["nodes"]
            assert node["alive"]
            assert str(gone) in node["disk_error"]
            assert "disk_free_bytes" not in node
            assert [each.kind for each in problems(status)] == ["disk_unreadable"]

    uvloop.run(story())


def test_founders_that_never_came_are_in_the_status(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 1) as nodes:
            nodes[1].steward.close()  # or it would make room for that founder
            nodes[1].state.seeds = {**nodes[1].state.seeds, 7: "birth"}  # type: ignore[dict-item]
            answer = await nodes[1].operate(b'{"operation": "status", "arguments": {}}')
            status = json.loads(answer)["result"]
            assert status["absent_founders"] == [7]
            assert [each.kind for each in problems(status)] == ["founder_absent"]

    uvloop.run(story())
