"""`tidelog up` and `tidelog down` as a user types them, on real nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.server.nodes import LocalCluster

PATIENCE = 60.0


class Place:
    """A directory in which commands are typed."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def process(self, *line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tidelog", *line, "--data", str(self.data)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def type(self, *line: str) -> tuple[int, str, str]:
        with self.process(*line) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    @property
    def pids(self) -> list[int | None]:
        return [node.pid for node in LocalCluster(self.data).nodes]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path / "data")
    LocalCluster(tmp_path / "data").stop_all()


def test_up_repeated_says_that_the_cluster_runs_and_where(place: Place) -> None:
    code, _, said = place.type("up", "--kafka-port", "0", "--nodes", "3", "--detach")
    assert code == 0, said
    assert "3 nodes ready in" in said
    (addresses,) = re.findall(r"clients connect to (\S+)", said)
    before = place.pids

    code, _, said = place.type("up")  # in the foreground, and still it returns
    assert code == 0, said
    assert "runs already: nothing was started" in said
    assert addresses in said
    assert f"tidelog down --data {place.data}" in said
    assert place.pids == before

    LocalCluster(place.data).kill(1)
    code, out, said = place.type("up", "--json")
    assert code == 0, said
    assert json.loads(out)["started"] == [1]
    assert place.pids[1:] == before[1:]

    code, out, said = place.type("down", "--json")
    assert code == 0, said
    assert [each["outcome"] for each in json.loads(out)["nodes"]] == ["stopped"] * 3
    code, _, said = place.type("down")
    assert (code, said.count("was not running")) == (0, 3)


def test_what_is_wrong_is_a_sentence_and_1(place: Place) -> None:
    code, _, said = place.type("down")
    assert code == 1
    assert "There is no cluster in" in said
    assert not place.data.exists()
    place.type("up", "--nodes", "1", "--kafka-port", "0", "--detach")
    code, _, said = place.type("up", "--nodes", "3")
    assert (code, "holds a cluster of 1 nodes, not 3" in said) == (1, True)
    code, _, said = place.type("up", "--kafka-port", "19000")
    assert (code, "cannot change while" in said) == (1, True)
    code, _, said = place.type("down", "--timeout", "0")
    assert code == 1
    assert "did not stop in time and was killed" in said


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "down"])
def test_up_in_the_foreground_ends_with_its_cluster(place: Place, how: str) -> None:
    with place.process("up", "--nodes", "1", "--kafka-port", "0") as process:
        deadline = time.monotonic() + PATIENCE
        while not any(node.address for node in LocalCluster(place.data).nodes):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if how == "down":
            code, _, said = place.type("down")
            assert code == 0, said
        else:
            process.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
    assert LocalCluster(place.data).running == []


def test_status_never_names_a_dead_controller_and_says_what_is_wrong(place: Place) -> None:
    code, _, said = place.type("up", "--kafka-port", "0", "--nodes", "3", "--detach")
    assert code == 0, said
    cluster = LocalCluster(place.data)

    def status() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog", "cluster", "status", "--json"],
            env={**os.environ, "TIDELOG_BOOTSTRAP": cluster.bootstrap},
            capture_output=True,
            check=True,
            timeout=PATIENCE,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = status()["controller"]
    cluster.kill(first)
    for _ in range(2):  # at once, and again
        found = status()
        assert found["controller"] != first
        assert not found["healthy"]
        assert "node_down" in [problem["kind"] for problem in found["problems"]]
    second = next(node.id for node in cluster.nodes if node.id != first)
    cluster.kill(second)
    deadline = time.monotonic() + PATIENCE
    while (found := status())["controller"] is not None:
        assert found["controller"] not in (first, second)  # it has not missed the others yet
        assert time.monotonic() < deadline
    assert found["problems"][0]["kind"] == "controller_majority_gone"
