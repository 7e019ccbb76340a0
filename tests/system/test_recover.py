"""The majority of three node processes is lost, and an operator goes on with the third."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import confluent_kafka
from tests.system.system import PATIENCE, System, system, until
from typer.testing import CliRunner

from tidelog.cli.app import app
from tidelog.server.names import NODE_FILE

LOST = "is lost and will be rebuilt"  # of what the state assigned to an emptied directory
VALUES = [b"%d" % number for number in range(200)]


def type_line(*line: str, status: int = 0, answer: str | None = None) -> str:
    result = CliRunner().invoke(app, list(line), input=answer)
    assert result.exit_code == status, result.output
    return result.output


def write(cluster: System, number: int, *values: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.addresses[number]})
    for value in values:
        producer.produce("t", value)
    assert producer.flush(PATIENCE) == 0


def read(cluster: System, number: int, count: int) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.addresses[number],
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    values: list[bytes | None] = []

    def done() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
        return len(values) >= count

    until(done, f"{count} records")
    consumer.close()
    return values


def empty(directory: Path) -> None:
    """Take everything from a node but what it was told before its first start."""
    for path in directory.iterdir():
        if path.name != NODE_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_two_lost_disks_of_three_and_the_way_back(tmp_path: Path) -> None:
    with system(tmp_path, expected=LOST) as running:
        running.create("t", retention_ms="-1")
        write(running, running.leader("t")[0], *VALUES)
        data = running.cluster.node(1).directory
        refused = type_line("node", "recover", "--data", str(data), "--yes", status=1)
        assert "stop it first" in refused
        # Whatever was acknowledged is on two disks; the third has it a moment later.
        until(lambda: _flushed(running) == {len(VALUES)}, "the same log on all")
        running.cluster.stop_all()
        for number in (2, 3):
            empty(running.cluster.node(number).directory)

        # The three cannot go on, and say why.
        running.cluster.start_all()
        until(lambda: "tidelog node recover --data" in running.log_of(1), "what can be done")
        assert all(running.cluster.node(number).address is None for number in (1, 2, 3))
        running.cluster.stop_all()

        seen = type_line("node", "recover", "--data", str(data), status=1)
        assert "to be given up:   2, 3" in seen
        assert "goes on here, alone" in seen
        assert "--yes" in seen  # nothing is done where nobody can be asked
        said = type_line("node", "recover", "--data", str(data), "--yes")
        assert "Node 1 is a cluster by itself now" in said
        running.start(1)
        assert read(running, 1, len(VALUES)) == VALUES
        write(running, 1, b"after")

        # Empty nodes come in the places of those that are gone, and get copies.
        running.start(2, 3)
        status = until(lambda: _healthy(running), "a healthy cluster", PATIENCE)
        assert [each["lost"] for each in status["recoveries"]] == [[2, 3]]
        running.stop(1)
        assert read(running, 2, len(VALUES) + 1) == [*VALUES, b"after"]
        running.start(1)
        until(lambda: _healthy(running), "a healthy cluster", PATIENCE)
        one = running.addresses[1]
        nothing = type_line("node", "recover", "--partition", "all", "-b", one, status=1)
        assert "there is nothing to recover" in nothing
        sound = type_line("log", "verify", "--all", "--bootstrap", running.bootstrap)
        assert "All that was read is sound." in sound
        assert "of nodes 1, 2, 3 are equal" in sound or "of nodes 1, 3, 2 are equal" in sound


def _flushed(running: System) -> set[int]:
    found = CliRunner().invoke(
        app, ["log", "show", "t/0", "--json", "--bootstrap", running.bootstrap]
    )
    return {each["high_watermark"] for each in json.loads(found.stdout)["replicas"]}


def _healthy(running: System) -> dict[str, object] | None:
    """Return the status of the cluster if node 1 and the others find nothing wrong."""
    result = CliRunner().invoke(
        app, ["cluster", "status", "--json", "--bootstrap", running.addresses[1]]
    )
    if result.exit_code != 0:
        return None
    found: dict[str, object] = json.loads(result.stdout)
    return found if found["healthy"] else None
