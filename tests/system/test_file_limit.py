"""A node that may open few files: it serves all its partitions and turns surplus clients away."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from tests.system.system import System, until

from tidelog.server.names import LOG_FILE, NODE_FILE
from tidelog.server.nodes import LocalCluster
from tidelog.storage.filebudget import MIN_FILES

PARTITIONS = 300
CLIENTS = 200


@contextlib.contextmanager
def started(data: Path, limit: int) -> Iterator[tuple[LocalCluster, subprocess.Popen[bytes]]]:
    """Start one node in a process with a limit of open files."""
    cluster = LocalCluster(data)
    cluster.prepare(1, 0)
    directory = cluster.node(1).directory
    tidelog = [sys.executable, "-m", "tidelog", "start", "--config", str(directory / NODE_FILE)]
    with (directory / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *tidelog], stdout=log, stderr=log
        )
    try:
        yield cluster, process
    finally:
        process.terminate()
        process.wait(30)


def write_to_all(address: str, partitions: int) -> None:
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 60_000})
    for index in range(partitions):
        producer.produce(
            "t",
            b"value",
            partition=index,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []


def open_connections(address: str, count: int) -> list[socket.socket]:
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]


def still_open(connections: list[socket.socket]) -> int:
    readable, _, _ = select.select(connections, [], [], 0)
    return len(connections) - len(readable)


def test_a_node_serves_more_partitions_than_it_may_open_files(tmp_path: Path) -> None:
    with started(tmp_path, MIN_FILES) as (cluster, process):
        until(lambda: cluster.node(1).address, "a node that serves")
        system = System(tmp_path, cluster)
        address = system.bootstrap
        system.create("t", PARTITIONS, 1)
        write_to_all(address, PARTITIONS)
        connections = open_connections(address, CLIENTS)
        until(lambda: still_open(connections) < CLIENTS // 2, "surplus connections are closed")
        for connection in connections:
            connection.close()
        until(lambda: "open files" in cluster.node(1).log_tail(), "a line about it in the log")
        write_to_all(address, PARTITIONS)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < MIN_FILES
        assert process.poll() is None


def test_a_node_that_may_open_too_few_files_says_so(tmp_path: Path) -> None:
    with started(tmp_path, MIN_FILES - 1) as (cluster, process):
        assert process.wait(30) == 1
        assert "ulimit -n" in cluster.node(1).log_tail()
